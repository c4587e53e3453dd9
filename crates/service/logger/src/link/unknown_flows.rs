//! Numbers of flows that are not known, or were refused: each is told at most once a second.

use std::{collections::BTreeMap, time::Duration};

const INTERVAL: Duration = Duration::from_secs(1);
/// So many numbers are told at most in an interval: who makes up numbers must not cost more.
const AT_MOST: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Unknown {
    told: BTreeMap<u32, Duration>,
}

impl Unknown {
    /// Whether this number is to be told now.
    pub(super) fn is_news(&mut self, flow_low: u32, now: Duration) -> bool {
        let recent = |then: &Duration| now.saturating_sub(*then) < INTERVAL;
        if self.told.get(&flow_low).is_some_and(recent) {
            return false;
        }
        if self.told.len() >= AT_MOST {
            self.told.retain(|_, then| recent(then));
        }
        if self.told.len() >= AT_MOST {
            return false;
        }
        self.told.insert(flow_low, now);
        true
    }

    /// Whether this number is to be told now, of a flow whose service is usually told by another way: only if the
    /// number still comes an interval later. Segments may overtake the word of the service, or be under way when the
    /// service hears.
    pub(super) fn comes_again(&mut self, flow_low: u32, now: Duration) -> bool {
        let came_before = self.told.contains_key(&flow_low);
        self.is_news(flow_low, now) && came_before
    }
}
