//! Zero-window ACKs to the clients of a session while no host serves them (FT-TCP IV.E.1).

use std::{net::IpAddr, time::Duration};

use south_model::closed_window_ack;
use wire::FlowId;

use super::Session;
use crate::{link::outbox::Outbox, rpc::record_summary};

/// Assumed silence of a client that is known only from a log, which has no times. The value must exceed the real
/// silence, or the client takes the ACK for old, and must be below the limit of [`closed_window_ack`].
const LOGGED: Duration = Duration::from_secs(24 * 3600);

impl Session {
    /// The next connection with a record, in the order of numbers.
    pub(crate) fn next_protected(&self, after: Option<FlowId>) -> Option<FlowId> {
        self.ingest.journal.next_protected(after)
    }

    /// Whether all recorded input is in the log, if there is a log for which ACKs wait.
    pub(crate) fn is_written(&self, out: &Outbox) -> bool {
        out.has_written(self.recorded)
    }

    /// The client's address, and an ACK of all recorded bytes with a zero window. `None` if the record is
    /// incomplete, or if no segment ever came from the client: the address may be forged.
    pub(crate) fn closed_window(&self, id: FlowId, now: Duration) -> Option<(IpAddr, Vec<u8>)> {
        let flow = self.flows.get(id).filter(|flow| !flow.is_half_open)?;
        let journal = &self.ingest.journal;
        let summary = record_summary(journal, &journal.summary(id)?);
        let recorded = self.recorded(id)?;
        let seen = flow.progress.timestamps.is_some() || recorded.acknowledged > 0;
        if summary.unprotected.is_some() || !seen && summary.stable_seq == flow.client_isn + 1 {
            return None;
        }
        let silence = flow.seen.map_or(LOGGED, |seen| now.saturating_sub(seen));
        let packet = closed_window_ack(&recorded, &summary, silence).ok()?;
        Some((flow.key.client().ip(), packet))
    }
}
