//! A session that becomes that of another instance: the host of its service has begun a new life.

use super::{KeySet, KeySlot, LinkStatistics, Session, Unknown};

impl Session {
    /// The records are those of `instance` from now on. Nobody of the old life is heard any more, and
    /// nothing is said to it; to the new one it is as if it had just begun.
    pub(in crate::link) fn renew(&mut self, instance: u64) {
        self.instance = instance;
        self.up = KeySet::EMPTY;
        self.newest = KeySlot::Zero;
        self.acks.to = None;
        self.acks.down = KeySet::EMPTY;
        self.acks.slot = KeySlot::Zero;
        self.acks.counter = 0;
        self.acks.said = 0;
        self.heard = None;
        self.due.clear();
        self.grown.clear();
        self.drop_upload();
        for flow in self.flows.iter_mut() {
            flow.due = false;
        }
        self.unknown = Unknown::default();
        self.intake.notices.clear();
        // Who held them has died without letting them go.
        self.intake.journal.hold_turns(false);
        self.statistics = LinkStatistics::default();
    }
}
