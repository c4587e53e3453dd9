use core::time::Duration;

use super::{Delivered, Sample};

/// Counters at the time of sending.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Snapshot {
    delivered: u64,
    delivered_at: Duration,
    first_sent_at: Duration,
    sent_at: Duration,
    is_limited: bool,
}

impl Snapshot {
    /// Data, credit or the caller, not the network, limit the transfer.
    pub(crate) const fn limited(self, is_limited: bool) -> Self {
        Self {
            is_limited: self.is_limited || is_limited,
            ..self
        }
    }
}

/// Delivered bytes, and when.
#[derive(Debug, Default)]
pub(super) struct Delivery {
    delivered: u64,
    delivered_at: Duration,
    /// Time of sending of the newest packet that was delivered.
    first_sent_at: Duration,
}

impl Delivery {
    pub(super) const fn on_sent(&mut self, in_flight: u64, now: Duration) -> Snapshot {
        if in_flight == 0 {
            self.delivered_at = now;
            self.first_sent_at = now;
        }
        Snapshot {
            delivered: self.delivered,
            delivered_at: self.delivered_at,
            first_sent_at: self.first_sent_at,
            sent_at: now,
            is_limited: false,
        }
    }

    pub(super) fn on_delivered(
        &mut self,
        delivered: Delivered,
        in_flight: u64,
        now: Duration,
    ) -> Sample {
        let snapshot = delivered.snapshot;
        self.delivered += delivered.bytes;
        self.delivered_at = now;
        self.first_sent_at = self.first_sent_at.max(snapshot.sent_at);
        let sending = snapshot.sent_at.saturating_sub(snapshot.first_sent_at);
        let answering = now.saturating_sub(snapshot.delivered_at);
        let interval = sending.max(answering).max(Duration::from_micros(1));
        let bytes = u128::from(self.delivered - snapshot.delivered);
        let rate = bytes * 1_000_000_000 / interval.as_nanos();
        Sample {
            rate: u64::try_from(rate).unwrap_or(u64::MAX),
            is_limited: snapshot.is_limited,
            delivered,
            total: (snapshot.delivered, self.delivered),
            in_flight,
        }
    }
}
