//! News of the pool for the operator.

use lease::Speech;

use crate::{event::Event, pool_client::PoolView};

/// News of a membership that were told already.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Seen {
    pub(super) epoch: u64,
    has_lease: bool,
    has_failure: bool,
    has_other_settings: bool,
}

impl Seen {
    /// News in a view.
    pub(super) fn news(&mut self, view: &PoolView) -> Vec<Event> {
        let mut events = Vec::new();
        if !self.has_lease && view.speech != Speech::Silent {
            self.has_lease = true;
            events.push(Event::Joined);
        }
        if view.table.epoch > self.epoch {
            self.epoch = view.table.epoch;
            events.push(Event::PoolChanged {
                epoch: view.table.epoch,
                members: view.table.members.len(),
            });
        }
        if view.failure.is_some() != self.has_failure {
            self.has_failure = view.failure.is_some();
            events.push(match view.failure.clone() {
                Some(reason) => Event::BalancerLost { reason },
                None => Event::BalancerFound,
            });
        }
        if view.has_other_settings != self.has_other_settings {
            self.has_other_settings = view.has_other_settings;
            events.extend(view.has_other_settings.then_some(Event::OtherSettings));
        }
        events
    }
}
