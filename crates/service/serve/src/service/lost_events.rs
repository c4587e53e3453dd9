//! Events that the kernel could not report.
//!
//! The ring for the kernel's events has space for some ten thousand events; many clients, or strangers, may fill the
//! ring while `serve` does not read. Each event is reported once. The content of a lost event about a connection is in
//! the flow, too, where `serve` must look. A lost event about the server is found by `poll_gate` and by the listening
//! sockets.

use std::{collections::BTreeSet, time::Duration};

use dataplane::{Event as KernelEvent, EventKind};
use protocol::control::RecordSummary;
use recovery::Count;
use south_model::{Flow, UnprotectedReason};
use wire::{FlowId, FlowKey};

use super::Service;
use crate::{clock, error::ServeError, events::Code, logger_client::LoggerClient};

/// Interval between two warnings of lost events: the ring may stay full.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// Knowledge of the events that found no room.
#[derive(Debug, Default)]
pub(crate) struct LostEvents {
    /// Number of lost events at the last look at the connections.
    seen: u64,
    /// Number of reported losses, and time of the next possible warning.
    told: u64,
    say_at: Duration,
}

impl LostEvents {
    /// Losses up to now need no warning: no `serve` read the ring, because this process did not serve.
    fn excuses(&mut self, lost: u64) {
        self.told = lost;
    }

    /// Number of losses to report now.
    fn untold(&mut self, now: Duration) -> Option<u64> {
        let untold = self
            .seen
            .checked_sub(self.told)
            .filter(|count| *count > 0)?;
        if now < self.say_at {
            return None;
        }
        (self.told, self.say_at) = (self.seen, now + WARNING_INTERVAL);
        Some(untold)
    }
}

impl Service {
    /// If events were lost since the last look: search for the content of these events.
    pub(super) fn poll_lost_events(&mut self) -> Result<(), ServeError> {
        let lost = self.resources.plane.counters()?.events_lost();
        if lost != self.lost_events.seen {
            self.reconcile_flows()?;
            self.lost_events.seen = lost; // later losses are found next time
        }
        if let Some(count) = self.lost_events.untold(clock::now()) {
            let count = Count(usize::try_from(count).unwrap_or(usize::MAX), "event");
            let reason = format!(
                "{count} of the kernel found no room, because serve was stopped or very busy; all connections were looked at instead. Strangers who listen on the service's port, or connect beyond --max-connections, again and again, do that"
            );
            self.warn(Code::EventsLost, reason);
        }
        Ok(())
    }

    /// From now on the kernel's events are read.
    pub(super) fn reset_lost_events(&mut self) -> Result<(), ServeError> {
        let lost = self.resources.plane.counters()?.events_lost();
        self.lost_events.excuses(lost);
        Ok(())
    }

    /// Looks at the flows of an adopted service, with or without lost events.
    pub(super) fn reconcile_events(&mut self) -> Result<(), ServeError> {
        let lost = self.resources.plane.counters()?.events_lost();
        self.reconcile_flows()?;
        self.lost_events.seen = lost;
        Ok(())
    }

    /// Handles the state of the flows like the kernel's events. A repetition does no harm.
    fn reconcile_flows(&mut self) -> Result<(), ServeError> {
        let flows = self.resources.plane.flows()?;
        for (key, flow) in &flows {
            if flow.is_late(self.incarnation) {
                self.late.push((*key, flow.id));
            }
            if flow.has_diverged(self.incarnation) {
                self.recovery.diverged(*key, flow);
            }
        }
        self.late_connections()?;
        let summaries = self
            .ask_logger(LoggerClient::summaries)?
            .unwrap_or_default();
        for (key, flow, reason) in unheard(&flows, &summaries) {
            self.kernel_event(KernelEvent {
                at: clock::now(),
                incarnation: self.incarnation,
                kind: EventKind::Unprotected { key, flow, reason },
            })?;
        }
        Ok(())
    }
}

/// Connections without a record that the logger takes for recorded: another host would rebuild the connections from the
/// logger's records.
fn unheard(
    flows: &[(FlowKey, Flow)],
    summaries: &[RecordSummary],
) -> Vec<(FlowKey, FlowId, UnprotectedReason)> {
    let recorded = summaries.iter().filter(|one| one.unprotected.is_none());
    let recorded: BTreeSet<FlowId> = recorded.map(|one| one.flow).collect();
    let open = flows.iter().filter(|(_, flow)| flow.closed_ns == 0);
    let unprotected = open.filter_map(|(key, flow)| Some((*key, flow.id, flow.unprotected?)));
    // The record of a connection that waits for the next request may have begun at the logger already.
    let lost = unprotected.filter(|(_, _, reason)| *reason != UnprotectedReason::AwaitsTurn);
    lost.filter(|(_, flow, _)| recorded.contains(flow))
        .collect()
}

#[cfg(test)]
mod tests {
    use wire::SeqNumber;

    use super::*;

    fn flow(number: u16, unprotected: Option<UnprotectedReason>) -> (FlowKey, Flow) {
        let client = std::net::SocketAddr::from(([10, 0, 0, 2], number));
        let flow = Flow {
            id: FlowId(number.into()),
            unprotected,
            ..Flow::default()
        };
        (FlowKey::new(client, ([10, 0, 0, 1], 80).into()), flow)
    }

    fn summary(number: u64, unprotected: Option<protocol::UnprotectedReason>) -> RecordSummary {
        let at = SeqNumber(0);
        RecordSummary {
            unprotected,
            ..RecordSummary::fresh(FlowId(number), at, at)
        }
    }

    #[test]
    fn unreported_loss_of_protection_is_found() {
        let lost = Some(UnprotectedReason::LoggerLost);
        let mut closed = flow(5, lost);
        closed.1.closed_ns = 1;
        let flows = [
            flow(1, None),
            flow(2, lost),
            flow(3, lost),
            flow(4, Some(UnprotectedReason::AwaitsTurn)),
            closed,
            flow(6, lost),
        ];
        let known = Some(protocol::UnprotectedReason::LoggerLost);
        let summaries = [1, 2, 4, 5].map(|number| summary(number, None));
        let all = [&summaries[..], &[summary(3, known)]].concat();
        let found: Vec<FlowId> = unheard(&flows, &all).iter().map(|one| one.1).collect();
        assert_eq!(found, [FlowId(2)]);
        assert!(unheard(&flows, &[]).is_empty());
    }

    #[test]
    fn lost_events_warn_at_interval() {
        let at = Duration::from_secs;
        let mut lost = LostEvents::default();
        (lost.seen, lost.told) = (7, 7);
        assert_eq!(lost.untold(at(1)), None);
        lost.seen = 9;
        assert_eq!(lost.untold(at(1)), Some(2));
        lost.seen = 10;
        assert_eq!(lost.untold(at(60)), None);
        lost.seen = 12;
        assert_eq!(lost.untold(at(61)), Some(3));
        assert_eq!(lost.untold(at(200)), None);
        lost.excuses(20);
        lost.seen = 20;
        assert_eq!(lost.untold(at(300)), None);
        lost.seen = 21;
        assert_eq!(lost.untold(at(300)), Some(1));
    }
}
