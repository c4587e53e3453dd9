//! Reaction of the service to a logger that is reached, lost, or empty.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use protocol::{
    UnprotectedReason,
    control::Resume,
    mirror::{self, CloseReason, FrameKind, MirrorFrame},
};
use recovery::{ReplayMode, Stage};
use south_model::{Flow, Response, released_ack};
use wire::{FlowId, FlowKey, SeqNumber};

use super::Service;
use crate::{
    clock,
    config::{LinkConfig, OnLoggerLoss},
    error::ServeError,
    events::{Awaits, Code, Event},
    link::LinkEvent,
    logger_client::LoggerClient,
};

/// Time in which segments may reach a logger before the request to record them.
const OVERTAKEN: Duration = Duration::from_secs(3);

/// Time that the server's start waits for each logger at most.
const FIRST_CONTACT: Duration = Duration::from_secs(3);

impl Service {
    /// Reach a logger before there are connections to be recorded.
    ///
    /// # Errors
    /// All refuse us, which no waiting will change.
    pub(super) fn reach_logger(&mut self) -> Result<(), ServeError> {
        let until = Instant::now() + self.first_contact();
        while Instant::now() < until && !self.should_stop() {
            self.look_at_link()?;
            self.heartbeat()?; // there may be connections that we have taken over
            let Some(link) = self.resources.logger.link() else {
                break;
            };
            if link.is_up() {
                return Ok(());
            }
            if let Some(why) = link.refused_by_all() {
                return Err(ServeError::NoLogger(why));
            }
            if let Some(why) = link.claimed() {
                return Err(ServeError::AddressClaimed(why.to_owned()));
            }
            if link.is_out_of_reach() {
                break; // the policy decides the consequence
            }
            self.await_loggers(None)?;
        }
        Ok(())
    }

    pub(super) fn first_contact(&self) -> Duration {
        let loggers = self.config.link.as_ref().map(|link| link.loggers.len());
        let loggers = loggers.and_then(|loggers| u32::try_from(loggers).ok());
        FIRST_CONTACT.saturating_mul(loggers.unwrap_or(0))
    }

    pub(super) fn look_at_link(&mut self) -> Result<(), ServeError> {
        let now = clock::now();
        let Some(link) = self.resources.logger.link() else {
            return Ok(());
        };
        let timeout = self.config.link.as_ref().map(|link| link.timeout / 2);
        if link.silence(now) >= timeout {
            // Acknowledgements of the logger are a sign of life, too: an answer can be lost behind them.
            let acks = self.resources.plane.counters()?.link_acks();
            if self
                .link_acks
                .replace(acks)
                .is_some_and(|before| before != acks)
            {
                link.on_activity(now);
            }
        } else {
            self.link_acks = None;
        }
        link.observe_probes(self.resources.plane.probes_seen()?, now);
        link.poll(now);
        while let Some(event) = self
            .resources
            .logger
            .link()
            .and_then(crate::link::Link::next_event)
        {
            self.handle(event)?;
        }
        self.end_waiting()
    }

    pub(super) fn handle(&mut self, event: LinkEvent) -> Result<(), ServeError> {
        match event {
            LinkEvent::Settings => self.set_link(),
            LinkEvent::Attached => self.greet_logger(),
            LinkEvent::Up { kept } => self.logger_up(kept),
            LinkEvent::Emptied => {
                self.resumed.clear(); // the dead process had these requests
                let connections = self.unprotect_all(UnprotectedReason::LoggerLost)?;
                self.emit(Event::LoggerRestarted { connections });
                self.recovery.logger_restarted();
                self.reprotect_all().map(drop)
            }
            LinkEvent::Lost { logger, why } => self.logger_lost(logger.to_string(), why),
            LinkEvent::Warning(code, message) => {
                self.warn(code, message);
                Ok(())
            }
        }
    }

    /// The logger may have missed the beginning or the end of a recovery.
    fn greet_logger(&mut self) -> Result<(), ServeError> {
        let hold = self.recovery.stage() != Stage::Serving;
        let _ = self.ask_logger(|logger| logger.hold_turns(hold))?;
        if let Some(north) = &mut self.north {
            north.restart_upload();
        }
        self.compare_determinants()?;
        // Before that, no connection is known here.
        if self.resources.instance.has_begun() {
            if self.config.without {
                self.report_no_record()?;
            }
            self.compare_connections()?;
        }
        if let Some(link) = self.resources.logger.link() {
            link.repeat_drain(clock::now())?;
        }
        self.tell_in_use()
    }

    /// What the service lacks without a remote logger; `None`: a logger is in use.
    pub(super) fn awaits(&mut self) -> Option<Awaits> {
        let up = self.resources.logger.link().is_none_or(|link| link.is_up());
        let held = self.policy() == Some(OnLoggerLoss::Hold);
        match (up, held) {
            (true, _) => None,
            (false, true) => Some(Awaits::Service),
            (false, false) => Some(Awaits::Protection),
        }
    }

    /// The number is stored here before the logger learns the number: no number is used twice.
    fn tell_in_use(&mut self) -> Result<(), ServeError> {
        let Some((logger, session)) = self.resources.logger.link().and_then(|link| link.in_use())
        else {
            return Ok(());
        };
        match self.resources.instance.uses(logger, session) {
            Ok(()) => self.ask_logger(|logger| logger.in_use(session)).map(drop),
            Err(error) => {
                let reason =
                    format!("after a restart of the host an older record may be taken: {error}");
                self.warn(Code::OldRecordPossible, reason);
                Ok(())
            }
        }
    }

    /// A logger, or the route to the logger, may have died between two messages. A lost message to the logger that a
    /// connection is over would keep the record as long as the service lives. A lost message from the logger that a
    /// record is given up would let the client wait for the logger as long. A record with content belongs to a
    /// connection that the data plane knows, or knew.
    fn compare_connections(&mut self) -> Result<(), ServeError> {
        let Some(summaries) = self.ask_logger(LoggerClient::summaries)? else {
            return Ok(());
        };
        let known = self.resources.plane.flows()?.into_iter();
        let known: BTreeMap<FlowId, (bool, SeqNumber)> = known
            .map(|(_, flow)| (flow.id, (flow.unprotected.is_none(), flow.server.ack)))
            .collect();
        let now = clock::now();
        for summary in summaries {
            let flow = summary.flow;
            let begun = summary.stable_seq.after(summary.client_isn + 1);
            match (known.get(&flow), summary.unprotected) {
                (Some((true, _)), Some(reason)) => self.unprotect(flow, reason)?,
                (Some((true, told)), None) if summary.client_fin.is_none() => {
                    self.recovery
                        .record_ends(flow, summary.stable_seq, *told, now);
                }
                (None, given_up) if begun || given_up.is_some() => self.tell_closed(flow)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn tell_closed(&mut self, flow: FlowId) -> Result<(), ServeError> {
        let mut bytes = Vec::new();
        let closed = MirrorFrame::<&[u8]>::of(FrameKind::Closed(CloseReason::Finished), flow);
        if closed.encode(mirror::VERSION, &mut bytes).is_ok() {
            self.ask_logger(|logger| logger.frames(&bytes))?;
        }
        Ok(())
    }

    fn set_link(&mut self) -> Result<(), ServeError> {
        let (Some(config), Some(link)) = (&self.config.link, self.resources.logger.link()) else {
            return Ok(());
        };
        link.observe_probes(self.resources.plane.probes_seen()?, clock::now());
        if let Some(settings) = link.settings()? {
            self.resources.plane.set_link(&dataplane::LinkSettings {
                local: settings.local,
                remote: settings.remote,
                version: settings.keys.version,
                slot: settings.keys.slot.number(),
                up: settings.keys.up.0,
                down: settings.keys.down.0,
                mtu: settings.mtu,
                strategy: config.strategy,
                digests: settings.digests,
            })?;
            link.send_probe(clock::now());
        }
        self.set_sender_destination()
    }

    fn logger_up(&mut self, kept: bool) -> Result<(), ServeError> {
        let link = self.resources.logger.link();
        let logger = link.and_then(|link| link.address());
        let logger = logger.map_or_else(String::new, |at| at.to_string());
        if !kept {
            self.unprotect_all(UnprotectedReason::LoggerLost)?;
        }
        self.resources.plane.link_up(true)?;
        self.forget_stale()?;
        let waiting = self.reprotect_all()?;
        if std::mem::replace(&mut self.logger_loss_reported, false) {
            let unprotected = self.count_unprotected()?;
            self.emit(Event::LoggerBack {
                logger,
                waiting,
                unprotected: unprotected.saturating_sub(waiting),
            });
        } else {
            self.emit(Event::LoggerInUse { logger });
        }
        Ok(())
    }

    fn logger_lost(&mut self, logger: String, reason: String) -> Result<(), ServeError> {
        self.resumed.clear();
        self.logger_loss_reported = true;
        let connections = match self.policy() {
            Some(OnLoggerLoss::Unprotect) => {
                self.resources.plane.link_up(false)?;
                Some(self.unprotect_all(UnprotectedReason::LoggerLost)?)
            }
            Some(OnLoggerLoss::Hold) | None => None,
        };
        self.emit(Event::LoggerLost {
            logger,
            reason,
            connections,
        });
        Ok(())
    }

    /// Policy for the loss of all loggers. A host that serves by leases is silent then: the connections of the clients
    /// wait.
    pub(super) fn policy(&self) -> Option<OnLoggerLoss> {
        let link: &LinkConfig = self.config.link.as_ref()?;
        Some(if self.is_leased {
            OnLoggerLoss::Hold
        } else {
            link.on_loss
        })
    }

    /// Work that waits for a logger goes on when a logger is there, or when no client waits for the logger any more.
    fn end_waiting(&mut self) -> Result<(), ServeError> {
        let gone = self.logger_loss_reported && self.policy() == Some(OnLoggerLoss::Unprotect);
        let Some(link) = self.resources.logger.link() else {
            return Ok(());
        };
        let there = link.client().is_some();
        if gone && let Some(token) = link.draining() {
            link.drained(token);
            self.recovery.drained(token.wrapping_sub(self.barriers));
        }
        if self.listing_pending && (there || gone) {
            self.list_connections()?;
        }
        if there || gone {
            self.recovery.logger_answers(clock::now());
        }
        Ok(())
    }

    /// Whether a logger that does not answer now is worth waiting for.
    pub(crate) fn awaits_logger(&self) -> bool {
        let lost = self.logger_loss_reported && self.policy() == Some(OnLoggerLoss::Unprotect);
        self.config.link.is_some() && !lost
    }

    /// All open connections lose the records. Returns the number of open connections.
    pub(super) fn unprotect_all(&mut self, reason: UnprotectedReason) -> Result<usize, ServeError> {
        let mut connections = 0;
        for (key, flow) in self.resources.plane.flows()? {
            if flow.unprotected.is_none() {
                connections += usize::from(flow.closed_ns == 0);
                self.release(key, &flow, reason);
            }
        }
        Ok(connections)
    }

    /// The connection has no record any more, and the client gets the ACK that the server's TCP has already sent.
    pub(super) fn release(&mut self, key: FlowKey, flow: &Flow, reason: UnprotectedReason) {
        if self
            .resources
            .plane
            .unprotect(key, flow.id, reason.code())
            .is_err()
        {
            return; // gone meanwhile: as well
        }
        self.recovery.unprotected(flow.id, reason);
        // Behind a gate, no server has the data of such an ACK.
        if self.config.link.is_some() && self.recovery.stage() == Stage::Serving {
            let told = released_ack(key, flow)
                .map_err(ServeError::from)
                .and_then(|packet| match packet {
                    Some(packet) => Ok(self.resources.send_to_client(flow, &packet)?),
                    None => Ok(()),
                });
            if let Err(error) = told {
                // The client's TCP retransmits the last segment, and gets the ACK then.
                tracing::warn!(%error, %key, "a client that waits was not told");
            }
        }
    }

    /// The logger's records of connections that continued without the logger are stale: no host may rebuild a
    /// connection from such a record.
    fn forget_stale(&mut self) -> Result<(), ServeError> {
        for (_, flow) in self.resources.plane.flows()? {
            if flow.unprotected.is_some() {
                let _ = self.ask_logger(|logger| logger.unprotect(flow.id))?;
            }
        }
        Ok(())
    }

    /// Connections without records are recorded again from the next request on, if replays begin there. Returns the
    /// number of such connections.
    fn reprotect_all(&mut self) -> Result<usize, ServeError> {
        if self.config.replay != ReplayMode::Request {
            return Ok(0);
        }
        let mut waiting = 0;
        for (key, flow) in self.resources.plane.flows()? {
            let reason = flow.unprotected.map(types::UnprotectedReason::code);
            let lost = [UnprotectedReason::LoggerLost, UnprotectedReason::AwaitsTurn]
                .iter()
                .any(|lost| reason == Some(lost.code()));
            if !lost || flow.closed_ns != 0 {
                continue;
            }
            // In a connection at rest the next request begins here: the logger must know this before the first segment.
            let at = (flow.server.ack, flow.server.nxt);
            let rests = (flow.client.nxt, flow.client.ack) == at;
            if rests && flow.verify.response == Response::Begun {
                self.resume(key, &flow, at)?;
            }
            // A connection that waits already is no error, and waits.
            let _ = self.resources.plane.reprotect(key, flow.id);
            waiting += 1;
        }
        Ok(waiting)
    }

    pub(super) fn resume(
        &mut self,
        key: FlowKey,
        flow: &Flow,
        (instream, outstream): (SeqNumber, SeqNumber),
    ) -> Result<(), ServeError> {
        let resume = Resume {
            flow: flow.id,
            key,
            client_isn: flow.client.isn,
            server_isn: flow.server.isn,
            instream,
            outstream,
            handshake: flow.handshake(),
        };
        let now = clock::now();
        self.resumed
            .retain(|_, (_, at)| now.saturating_sub(*at) < 10 * OVERTAKEN);
        self.resumed.insert(flow.id, ((instream, outstream), now));
        self.ask_logger(|logger| logger.resume(resume)).map(drop)
    }

    /// The data plane records a connection again, from here on.
    pub(super) fn reprotected(
        &mut self,
        key: FlowKey,
        flow: FlowId,
        instream: SeqNumber,
        outstream: SeqNumber,
    ) -> Result<(), ServeError> {
        let found = self.resources.plane.flow(key)?;
        let Some(known) = found.filter(|known| known.id == flow) else {
            return Ok(());
        };
        let at = (instream, outstream);
        // A repeated message would drop the bytes recorded in between.
        let said = self
            .resumed
            .get(&flow)
            .is_some_and(|(known, _)| *known == at);
        if !said {
            self.resume(key, &known, at)?;
        }
        self.emit(Event::ProtectionResumed {
            connection: key.to_string(),
        });
        Ok(())
    }

    /// The logger has no record of a connection whose segments arrive there.
    pub(super) fn not_recorded(&mut self, flow_low: u32) -> Result<(), ServeError> {
        let low = |id: FlowId| id.0 & u64::from(u32::MAX) == u64::from(flow_low);
        let flows = self.resources.plane.flows()?;
        let found = flows.into_iter().find(|(_, flow)| low(flow.id));
        // Segments can overtake the message that the record begins; the segments are retransmitted.
        let fresh = |id| {
            let resumed = self.resumed.get(&id);
            resumed.is_some_and(|(_, at)| clock::now().saturating_sub(*at) < OVERTAKEN)
        };
        // The message that a connection is over takes a faster way to the logger than the last segments of the
        // connection.
        let lost = |flow: &Flow| flow.unprotected.is_none() && flow.closed_ns == 0;
        if let Some((key, flow)) = found.filter(|(_, flow)| lost(flow) && !fresh(flow.id)) {
            let reason = UnprotectedReason::LoggerLost;
            self.release(key, &flow, reason);
            self.emit(Event::Unprotected {
                connection: key.to_string(),
                reason: reason.to_string(),
            });
        }
        Ok(())
    }

    fn count_unprotected(&self) -> Result<usize, ServeError> {
        let flows = self.resources.plane.flows()?;
        let open = flows.iter().filter(|(_, flow)| flow.closed_ns == 0);
        Ok(open.filter(|(_, flow)| flow.unprotected.is_some()).count())
    }
}
