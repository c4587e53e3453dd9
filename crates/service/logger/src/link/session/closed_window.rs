//! Zero-window ACKs to the clients of a session while no host serves them (FT-TCP IV.E.1).

use std::{net::IpAddr, time::Duration};

use south_model::closed_window_ack;
use wire::FlowId;

use super::Session;
use crate::{link::outbox::Outbox, rpc::record_summary};

/// The silence of a client that we know from a log, which does not tell it: longer than
/// it can have been, or the client takes our segment for old; less than [`closed_window_ack`] would allow.
const LOGGED: Duration = Duration::from_secs(24 * 3600);

impl Session {
    /// The connection with a record after this one, in the order of their numbers.
    pub(crate) fn next_protected(&self, after: Option<FlowId>) -> Option<FlowId> {
        self.ingest.journal.next_protected(after)
    }

    /// Whether all that is recorded of clients is where it outlives us, if it has to be.
    pub(crate) fn is_written(&self, out: &Outbox) -> bool {
        out.has_written(self.recorded)
    }

    /// A packet for the client of this connection: all that is recorded has arrived, and there is no
    /// room now. And where to. `None` if the record is not whole, or if nothing ever came from the
    /// client: it may be nobody.
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
