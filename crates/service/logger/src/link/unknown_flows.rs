//! Numbers of flows that are not known, or were refused: each is reported at most once a second.

use std::{collections::BTreeMap, time::Duration};

const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Most numbers that are reported in an interval: invented numbers must not cost more.
const MAX_REPORTED: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct UnknownFlows {
    reported: BTreeMap<u32, Duration>,
}

impl UnknownFlows {
    /// Whether to report this number now.
    pub(super) fn is_due(&mut self, flow_low: u32, now: Duration) -> bool {
        let recent = |then: &Duration| now.saturating_sub(*then) < REPORT_INTERVAL;
        if self.reported.get(&flow_low).is_some_and(recent) {
            return false;
        }
        if self.reported.len() >= MAX_REPORTED {
            self.reported.retain(|_, then| recent(then));
        }
        if self.reported.len() >= MAX_REPORTED {
            return false;
        }
        self.reported.insert(flow_low, now);
        true
    }

    /// Whether to report this number now, of a flow whose service usually gets another message: only if the number
    /// still comes an interval later. Segments may overtake that message, or be under way when the message arrives.
    pub(super) fn is_repeated(&mut self, flow_low: u32, now: Duration) -> bool {
        let came_before = self.reported.contains_key(&flow_low);
        self.is_due(flow_low, now) && came_before
    }
}
