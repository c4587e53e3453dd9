use core::time::Duration;

use super::Sample;

/// A window that shrinks when a queue grows (LEDBAT, RFC 6817): other traffic goes first.
#[derive(Debug)]
pub(super) struct Background {
    packet: u64,
    window: u64,
    is_slow_start: bool,
    round_trip: Duration,
    /// The last round trips: the shortest tells the queue of this moment (RFC 6817, 2.4.2, CURRENT_FILTER).
    newest: [Duration; CURRENT_COUNT],
    /// Shortest round trips of this minute and of the minute before: the round trip without a queue.
    shortest: [Option<Duration>; 2],
    minute: Duration,
    /// No further reduction before this time.
    reduced_until: Duration,
}

/// Queue that a transfer in the background may cause.
const QUEUE_TARGET: Duration = Duration::from_millis(15);
const HISTORY_TIME: Duration = Duration::from_secs(60);
const CURRENT_COUNT: usize = 4;
const WINDOW_MIN_PACKETS: u64 = 2;
const INITIAL_PACKETS: u64 = 10;

impl Background {
    pub(super) const fn new(packet: u64, round_trip: Duration) -> Self {
        Self {
            packet,
            window: packet * INITIAL_PACKETS,
            is_slow_start: true,
            round_trip,
            newest: [Duration::ZERO; CURRENT_COUNT],
            shortest: [None; 2],
            minute: Duration::ZERO,
            reduced_until: Duration::ZERO,
        }
    }

    pub(super) const fn window(&self) -> u64 {
        self.window
    }

    pub(super) fn pacing_rate(&self) -> u64 {
        let ns = self.round_trip.as_nanos().max(1);
        let rate = u128::from(self.window) * 1_250_000_000 / ns;
        u64::try_from(rate).unwrap_or(u64::MAX)
    }

    pub(super) fn on_sample(&mut self, sample: &Sample, now: Duration) {
        if let Some(round_trip) = sample.delivered.round_trip {
            self.round_trip = round_trip;
            self.newest.rotate_right(1);
            self.newest[0] = round_trip;
            self.measure(round_trip, now);
        }
        if sample.delivered.lost > 0 {
            self.reduce(now);
        } else {
            self.grow(sample.delivered.bytes);
        }
    }

    fn measure(&mut self, round_trip: Duration, now: Duration) {
        if now.saturating_sub(self.minute) > HISTORY_TIME {
            self.minute = now;
            self.shortest = [None, self.shortest[0]];
        }
        let shortest = self.shortest[0].unwrap_or(round_trip);
        self.shortest[0] = Some(shortest.min(round_trip));
    }

    /// Halves the window, once in a round trip.
    pub(super) fn reduce(&mut self, now: Duration) {
        self.is_slow_start = false;
        if now >= self.reduced_until {
            self.window = (self.window / 2).max(self.packet * WINDOW_MIN_PACKETS);
            self.reduced_until = now + self.round_trip;
        }
    }

    /// Without a queue the window grows by a packet in a round trip (RFC 6817, 2.4.2). With a queue above the target it
    /// shrinks by the excess, as a share of the target, and by half at most (LEDBAT++,
    /// draft-irtf-iccrg-ledbat-plus-plus, 4.2): a packet in a round trip would take seconds to make room.
    fn grow(&mut self, bytes: u64) {
        let base = self.shortest.iter().flatten().min();
        let current = self.newest.iter().min();
        let queue = current.copied().unwrap_or_default();
        let queue = queue.saturating_sub(base.copied().unwrap_or_default());
        if self.is_slow_start {
            if queue < QUEUE_TARGET * 3 / 4 {
                self.window += bytes;
                return;
            }
            self.is_slow_start = false;
        }
        let target = QUEUE_TARGET.as_micros();
        let share = |micros: u128, bytes: u128| {
            let bytes = micros * bytes / target;
            u64::try_from(bytes).unwrap_or(u64::MAX)
        };
        let bytes = u128::from(bytes);
        self.window = match QUEUE_TARGET.checked_sub(queue) {
            Some(below) => {
                let packets = bytes * u128::from(self.packet) / u128::from(self.window.max(1));
                self.window + share(below.as_micros(), packets)
            }
            None => {
                let above = (queue - QUEUE_TARGET).as_micros();
                self.window
                    .saturating_sub(share(above.min(target / 2), bytes))
            }
        };
        self.window = self.window.max(self.packet * WINDOW_MIN_PACKETS);
    }
}
