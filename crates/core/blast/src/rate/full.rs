use core::time::Duration;

use super::Sample;

/// Stages of BBR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The rate doubles in each round trip until the measured rate no longer grows.
    Startup,
    /// The queue of the startup drains.
    Drain,
    /// Eight phases of a round trip each: faster, slower, and six at the measured rate.
    Cruise { phase: usize, since: Duration },
    /// Two blasts under way for 200 ms, so that the shortest round trip is seen again.
    ShortestRoundTrip { until: Duration },
}

/// As fast as the network allows, by its measured rate and shortest round trip.
#[derive(Debug)]
pub(super) struct Full {
    stage: Stage,
    round_trip_min: Duration,
    round_trip_min_at: Duration,
    /// Highest rate of each of the last round trips in which the network was the limit, bytes in a second.
    rates: [u64; RATE_ROUNDS],
    /// The newest of `rates`.
    newest: usize,
    /// The next rate is that of another round trip.
    is_next: bool,
    /// Round trips so far, counted by deliveries.
    round: u64,
    /// A round trip is over when what was sent after so many delivered bytes is delivered.
    round_ends: u64,
    /// Rate at which the startup saw growth last, and round trips since.
    grown: (u64, u32),
    /// Bytes of this round trip: delivered and lost.
    share: (u64, u64),
    /// After heavy loss the window is smaller, until this round.
    careful_until: u64,
}

/// Round trips of which the highest rate counts.
const RATE_ROUNDS: usize = 10;
const STARTUP_GAIN: u64 = 289;
/// Of the rate, percent, in each phase of the cruise.
const CRUISE_GAINS: [u64; 8] = [125, 75, 100, 100, 100, 100, 100, 100];
/// Round trips without growth by a quarter, after which the startup ends.
const FULL_ROUNDS: u32 = 3;
/// Time after which the shortest round trip is measured anew.
const ROUND_TRIP_AGE: Duration = Duration::from_secs(10);
const SHORTEST_STAGE: Duration = Duration::from_millis(200);
/// Lost share of a round trip, percent, that is taken for congestion.
const HEAVY_LOSS: u64 = 5;
const CAREFUL_ROUNDS: u64 = 8;
const INITIAL_WINDOW: u64 = 64 * 1024;

impl Full {
    pub(super) const fn new(round_trip: Duration) -> Self {
        Self {
            stage: Stage::Startup,
            round_trip_min: round_trip,
            round_trip_min_at: Duration::ZERO,
            rates: [0; RATE_ROUNDS],
            newest: 0,
            is_next: false,
            round: 0,
            round_ends: 0,
            grown: (0, 0),
            share: (0, 0),
            careful_until: 0,
        }
    }

    pub(super) fn pacing_rate(&self) -> u64 {
        let gain = match self.stage {
            Stage::Startup => STARTUP_GAIN,
            Stage::Drain => 10_000 / STARTUP_GAIN,
            Stage::Cruise { phase, .. } => CRUISE_GAINS[phase],
            Stage::ShortestRoundTrip { .. } => 100,
        };
        percent(self.rate(), gain)
    }

    pub(super) fn window(&self) -> u64 {
        let gain = match self.stage {
            Stage::Startup | Stage::Drain => STARTUP_GAIN,
            Stage::Cruise { .. } if self.round < self.careful_until => 100,
            Stage::Cruise { .. } => 200,
            Stage::ShortestRoundTrip { .. } => return 0,
        };
        percent(self.in_network(), gain)
    }

    pub(super) fn on_sample(&mut self, sample: &Sample, now: Duration) {
        let is_round_over = self.count_round(sample);
        self.is_next |= is_round_over;
        if !sample.is_limited || sample.rate > self.rate() {
            if core::mem::take(&mut self.is_next) {
                self.newest = (self.newest + 1) % RATE_ROUNDS;
                self.rates[self.newest] = 0;
            }
            let rate = &mut self.rates[self.newest];
            *rate = sample.rate.max(*rate);
        }
        self.measure_round_trip(sample, now);
        self.advance(sample, is_round_over, now);
    }

    pub(super) const fn on_marked(&mut self, bytes: u64) {
        self.share.1 += bytes;
    }

    /// Bytes in a second: the highest of the last round trips.
    fn rate(&self) -> u64 {
        let measured = self.rates.iter().copied().max().unwrap_or(0);
        if measured > 0 {
            return measured;
        }
        let ns = u64::try_from(self.round_trip_min.as_nanos()).unwrap_or(u64::MAX);
        INITIAL_WINDOW.saturating_mul(1_000_000_000) / ns.max(1)
    }

    /// Bytes in the network without a queue.
    fn in_network(&self) -> u64 {
        let bytes = u128::from(self.rate()) * self.round_trip_min.as_nanos() / 1_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    fn count_round(&mut self, sample: &Sample) -> bool {
        self.share.0 += sample.delivered.bytes;
        self.share.1 += sample.delivered.lost;
        let (sent_after, delivered) = sample.total;
        if sent_after < self.round_ends {
            return false;
        }
        self.round_ends = delivered;
        let (arrived, lost) = core::mem::take(&mut self.share);
        if lost * 100 > (arrived + lost) * HEAVY_LOSS {
            self.careful_until = self.round + CAREFUL_ROUNDS;
        }
        self.round += 1;
        true
    }

    fn measure_round_trip(&mut self, sample: &Sample, now: Duration) {
        let Some(round_trip) = sample.delivered.round_trip else {
            return;
        };
        let is_first = self.round_trip_min_at.is_zero();
        let is_old = now.saturating_sub(self.round_trip_min_at) > ROUND_TRIP_AGE;
        if is_first || is_old || round_trip <= self.round_trip_min {
            if is_old && !is_first && round_trip > self.round_trip_min {
                let until = now + SHORTEST_STAGE.max(round_trip);
                self.stage = Stage::ShortestRoundTrip { until };
            }
            self.round_trip_min = round_trip.max(Duration::from_micros(1));
            self.round_trip_min_at = now;
        }
    }

    fn advance(&mut self, sample: &Sample, is_round_over: bool, now: Duration) {
        let cruise = Stage::Cruise {
            phase: 2,
            since: now,
        };
        match self.stage {
            Stage::Startup if is_round_over && !sample.is_limited => {
                let (rate, grown) = (self.rate(), self.grown);
                let has_grown = rate >= percent(grown.0, 125);
                self.grown = if has_grown {
                    (rate, 0)
                } else {
                    (grown.0, grown.1 + 1)
                };
                if self.grown.1 >= FULL_ROUNDS {
                    self.stage = Stage::Drain;
                }
            }
            Stage::Startup => {}
            Stage::Drain if sample.in_flight <= self.in_network() => self.stage = cruise,
            Stage::Drain => {}
            Stage::Cruise { phase, since } => {
                let is_drained = phase == 1 && sample.in_flight <= self.in_network();
                if now.saturating_sub(since) > self.round_trip_min || is_drained {
                    self.stage = Stage::Cruise {
                        phase: (phase + 1) % CRUISE_GAINS.len(),
                        since: now,
                    };
                }
            }
            Stage::ShortestRoundTrip { until } if now >= until => self.stage = cruise,
            Stage::ShortestRoundTrip { .. } => {}
        }
    }
}

fn percent(value: u64, percent: u64) -> u64 {
    u64::try_from(u128::from(value) * u128::from(percent) / 100).unwrap_or(u64::MAX)
}
