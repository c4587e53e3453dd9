//! What the logger knows of the connections, as the recovery wants to hear it.

use std::collections::BTreeMap;

use protocol::control::RecordSummary;
use recovery::Candidate;
use ssw::Flow;
use wire::{FlowId, FlowKey};

/// The records of all connections, by number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Records(BTreeMap<FlowId, RecordSummary>);

impl Records {
    pub(crate) fn of(summaries: &[RecordSummary]) -> Self {
        let records = summaries.iter().map(|summary| (summary.flow, *summary));
        Self(records.collect())
    }

    /// The connection with its record. A handshake can be completed after the ring was drained:
    /// the frame that opens its record is then still on its way, and nothing else of it can have
    /// reached the server. Of one that was told more there is no record; by its numbers alone the
    /// recovery could not tell, behind 2 GiB.
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
            standing: None,
        }
    }
}

#[cfg(test)]
mod tests;
