//! Renewal of a session: a new instance of the service inherits the session.

use super::{KeySet, KeySlot, LinkStatistics, Session, UnknownFlows};

impl Session {
    /// The records belong to `instance` from now on. Datagrams of the old instance are neither accepted nor
    /// acknowledged. To the new instance the session looks new.
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
        // The old instance has died without releasing the held requests.
        self.ingest.journal.hold_turns(false);
        self.statistics = LinkStatistics::default();
    }
}
