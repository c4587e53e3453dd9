//! Acknowledgements to the service.

use journal::Journal;
use protocol::link::{Ack, KeySet, KeySlot, MAX_RANGES};
use wire::SeqNumber;

use super::flows::Flow;
use super::outbox::{Outbox, Peer};

/// The shared state of a session's acknowledgements.
#[derive(Debug)]
pub(super) struct Acks {
    /// The service's address; `None` before the first attachment after the log was read.
    pub(super) to: Option<Peer>,
    /// The agreed version of the link.
    pub(super) version: u8,
    pub(super) down: KeySet,
    pub(super) slot: KeySlot,
    /// The counter of the last acknowledgement.
    pub(super) counter: u64,
    /// Number of acknowledgements.
    pub(super) count: u64,
}

impl Acks {
    /// Acknowledges the recorded bytes of a flow that has a record.
    pub(super) fn send(&mut self, flow: &mut Flow, journal: &Journal, out: &mut Outbox) {
        flow.due = false;
        let (Some(stable_seq), Some(to), Some(key)) = (
            journal.stable_seq(flow.id),
            self.to,
            self.down.get(self.slot),
        ) else {
            return;
        };
        self.counter += 1;
        self.count += 1;
        let ack = Ack {
            version: self.version,
            slot: self.slot,
            counter: self.counter,
            flow: flow.id,
            key: flow.key,
            stable_seq,
            ranges: ranges(flow, journal),
        };
        out.ack(to, ack.encode(key));
    }
}

/// The recorded ranges beyond the first hole, newest arrival first.
fn ranges(flow: &mut Flow, journal: &Journal) -> [Option<(SeqNumber, SeqNumber)>; MAX_RANGES] {
    let mut ranges = [None; MAX_RANGES];
    let mut count = 0;
    for newest in std::mem::take(&mut flow.newest).into_iter().flatten() {
        let range = journal.range_of(flow.id, newest);
        if count < MAX_RANGES && range.is_some() && !ranges.contains(&range) {
            ranges[count] = range;
            flow.newest[count] = Some(newest);
            count += 1;
        }
    }
    ranges
}
