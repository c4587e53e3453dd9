//! A session that becomes that of another instance: the host of its service has begun a new life.

use super::{KeySet, KeySlot, LinkStatistics, Session, UnknownFlows};

impl Session {
    /// The records are those of `instance` from now on. The old instance is neither read nor answered any more; to the
    /// new instance the session is as if it had just begun.
    pub(in crate::link) fn renew(&mut self, instance: u64) {
        self.instance = instance;
        self.up = KeySet::EMPTY;
        self.newest = KeySlot::Zero;
        self.acks.to = None;
        self.acks.down = KeySet::EMPTY;
        self.acks.slot = KeySlot::Zero;
        self.acks.counter = 0;
        self.acks.count = 0;
        self.active_at = None;
        self.due.clear();
        self.grown.clear();
        self.drop_upload();
        for flow in self.flows.iter_mut() {
            flow.due = false;
        }
        self.unknown = UnknownFlows::default();
        self.ingest.notices.clear();
        // Who held them has died without letting them go.
        self.ingest.journal.hold_turns(false);
        self.statistics = LinkStatistics::default();
    }
}
