//! The logger's records of the connections, in the form that the recovery needs.

use std::collections::BTreeMap;

use protocol::control::RecordSummary;
use recovery::Candidate;
use south_model::Flow;
use wire::{FlowId, FlowKey};

/// The records of all connections, by number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Records(BTreeMap<FlowId, RecordSummary>);

impl Records {
    pub(crate) fn of(summaries: &[RecordSummary]) -> Self {
        let records = summaries.iter().map(|summary| (summary.flow, *summary));
        Self(records.collect())
    }

    /// The connection with the record. After the ring was drained, a handshake can still complete: the frame that
    /// opens the record is on the way then, and the server has no byte of the client. A connection whose server
    /// has such bytes has no record; behind 2 GiB, the sequence numbers alone would not show the difference.
    pub(crate) fn candidate(&self, key: FlowKey, flow: Flow) -> Candidate {
        let fresh = flow.server.ack == flow.client.isn + 1;
        let record = self.0.get(&flow.id).copied();
        let record = record.or_else(|| {
            fresh.then(|| RecordSummary::fresh(flow.id, flow.client.isn, flow.server.isn))
        });
        Candidate {
            key,
            record,
            flow,
            replay_position: None,
        }
    }
}

#[cfg(test)]
mod tests;
