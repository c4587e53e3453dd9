//! What the logger knows of the connections, as the recovery wants to hear it.

use std::collections::BTreeMap;

use protocol::control::FlowSummary;
use recovery::{Candidate, ClientFin, Record};
use ssw::Flow;
use wire::{FlowId, FlowKey};

/// The records of all connections, by number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Records(BTreeMap<FlowId, Record>);

impl Records {
    pub(crate) fn of(summaries: &[FlowSummary]) -> Self {
        let records = summaries
            .iter()
            .map(|summary| (summary.flow, record_of(summary)));
        Self(records.collect())
    }

    /// The connection with its record. A handshake can be completed after the ring was drained:
    /// the frame that opens its record is then still on its way, and nothing else of it can have
    /// reached the server. Of one that was told more there is no record; by its numbers alone the
    /// recovery could not tell, behind 2 GiB.
    pub(crate) fn candidate(&self, key: FlowKey, flow: Flow) -> Candidate {
        let fresh = flow.server.ack == flow.client.isn + 1;
        let record = self.0.get(&flow.id).copied();
        let record = record.or_else(|| fresh.then(|| fresh_record(&flow)));
        Candidate {
            key,
            record,
            flow,
            standing: None,
        }
    }
}

fn record_of(summary: &FlowSummary) -> Record {
    Record {
        start: summary.start,
        stable_seq: summary.stable_seq,
        client_fin: summary.client_fin.map(|fin| ClientFin {
            seq: fin.seq,
            heard: fin.heard,
        }),
        turn_instream: summary.turn_instream,
        turn_outstream: summary.turn_outstream,
        answers: summary.answers,
        outstream_end: summary.outstream_end,
        unprotected: summary.unprotected.map(|reason| reason.code()),
    }
}

/// The record of a connection of which nothing has arrived.
fn fresh_record(flow: &Flow) -> Record {
    Record {
        start: flow.client.isn + 1,
        stable_seq: flow.client.isn + 1,
        client_fin: None,
        turn_instream: flow.client.isn + 1,
        turn_outstream: flow.server.isn + 1,
        answers: [flow.server.isn + 1; 2],
        outstream_end: None,
        unprotected: None,
    }
}

#[cfg(test)]
mod tests;
