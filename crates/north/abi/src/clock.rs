//! Clocks whose readings a replay repeats.
//!
//! A server reads clocks several times for each request. Most of the record would be clock readings. Each process has
//! clocks in memory instead. A clock stands still, except for one nanosecond for each reading, and no two readings
//! are equal. When the real clocks are [`Clock::GRAIN`] ahead, the process puts the clocks in memory forward. Only
//! this step is recorded: a [`Tick`], with the number of readings since the last tick.
//!
//! The time of day is the monotonic time plus an offset, which changes only when the system time is set. In the next
//! incarnation the monotonic clock continues at the last reading, plus the time that has passed by the time of day.

use crate::{Call, Record};

/// A step by which the clocks were put forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tick {
    /// Readings since the last tick.
    pub reads: u32,
    /// Length of the step, microseconds.
    pub advance: u64,
    /// Time of day minus monotonic time, nanoseconds, if the difference has changed.
    pub wall: Option<i64>,
}

impl Tick {
    /// The record of the tick. `payload` is memory for the record's payload.
    pub fn record<'a>(&self, payload: &'a mut [u8; 8]) -> Record<'a> {
        let length = match self.wall {
            Some(wall) => {
                *payload = wall.to_le_bytes();
                8
            }
            None => 0,
        };
        Record {
            call: Call::Clock,
            fd: self.reads,
            outcome: i64::try_from(self.advance).unwrap_or(i64::MAX),
            payload: &payload[..length],
        }
    }

    /// The tick in this record. `None`: the record is no tick.
    #[must_use]
    pub fn from_record(record: &Record<'_>) -> Option<Self> {
        let wall = match record.payload {
            [] => None,
            bytes => Some(i64::from_le_bytes(bytes.try_into().ok()?)),
        };
        (record.call == Call::Clock).then_some(Self {
            reads: record.fd,
            advance: u64::try_from(record.outcome).ok()?,
            wall,
        })
    }
}

/// The clocks of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Clock {
    /// Monotonic time at the last tick, nanoseconds.
    at: u64,
    /// Readings since the last tick.
    reads: u32,
    /// Time of day minus monotonic time, nanoseconds.
    wall: i64,
    /// This clock minus the kernel's, nanoseconds.
    shift: i64,
}

impl Clock {
    /// Lead of the real clocks that makes a tick due, nanoseconds. A tick for each command of a busy redis would be a
    /// third of the record.
    pub const GRAIN: u64 = 20_000;
    /// A larger change of the offset means that the time of day was set, nanoseconds. A smaller change is noise: two
    /// clocks cannot be read at once.
    const WALL_NOISE: u64 = 20_000;

    /// Whether a tick is due when the kernel's monotonic clock shows `monotonic` nanoseconds.
    #[must_use]
    #[inline]
    pub fn is_due(&self, monotonic: u64) -> bool {
        let real = monotonic.wrapping_add_signed(self.shift);
        real.saturating_sub(self.at) >= Self::GRAIN || self.reads == u32::MAX
    }

    /// Puts the clocks forward to the kernel's clocks, in nanoseconds. The caller records the tick.
    pub fn tick(&mut self, monotonic: u64, time_of_day: u64) -> Tick {
        let real = monotonic.wrapping_add_signed(self.shift);
        let behind = real.saturating_sub(self.at).max(u64::from(self.reads));
        let advance = behind.div_ceil(1000);
        let at = self.at.saturating_add(advance.saturating_mul(1000));
        let wall = time_of_day.wrapping_sub(at).cast_signed();
        let is_set = wall.abs_diff(self.wall) > Self::WALL_NOISE;
        let tick = Tick {
            reads: self.reads,
            advance,
            wall: is_set.then_some(wall),
        };
        self.apply(&tick);
        tick
    }

    /// Applies a tick of a replay. `false`: the number of readings since the last tick differs from the record.
    pub fn replay(&mut self, tick: &Tick) -> bool {
        let agrees = tick.reads == self.reads;
        self.apply(tick);
        agrees
    }

    fn apply(&mut self, tick: &Tick) {
        self.at = self.at.saturating_add(tick.advance.saturating_mul(1000));
        self.reads = 0;
        self.wall = tick.wall.unwrap_or(self.wall);
    }

    /// Readings since the last tick.
    #[must_use]
    pub fn reads(&self) -> u32 {
        self.reads
    }

    /// Monotonic time, nanoseconds, without a reading.
    #[must_use]
    pub fn stands(&self) -> u64 {
        self.at.saturating_add(u64::from(self.reads))
    }

    /// Reads the monotonic clock, nanoseconds.
    #[inline]
    pub fn monotonic(&mut self) -> u64 {
        let now = self.stands();
        self.reads = self.reads.saturating_add(1);
        now
    }

    /// Reads the time of day, nanoseconds since 1970.
    #[inline]
    pub fn time_of_day(&mut self) -> u64 {
        self.monotonic().wrapping_add_signed(self.wall)
    }

    /// Time of the kernel's monotonic clock at the moment at which this clock shows `deadline`, nanoseconds.
    #[must_use]
    pub fn kernels(&self, deadline: u64) -> u64 {
        deadline.saturating_add_signed(self.shift.saturating_neg())
    }

    /// Time until this clock, or the time of day with `is_wall`, shows `deadline`, nanoseconds. For a replay, where
    /// the clocks stand still.
    #[must_use]
    pub fn until(&self, deadline: u64, is_wall: bool) -> u64 {
        let wall = if is_wall { self.wall } else { 0 };
        deadline.saturating_sub(self.stands().saturating_add_signed(wall))
    }

    /// Ends a replay, with the present time of the kernel's clocks in nanoseconds: the clock continues at the last
    /// reading, plus the time that has passed since.
    pub fn go_on(&mut self, monotonic: u64, time_of_day: u64) {
        let stood = self.stands();
        let passed = time_of_day.saturating_sub(stood.wrapping_add_signed(self.wall));
        let now = stood.saturating_add(passed);
        self.shift = now.wrapping_sub(monotonic).cast_signed();
    }
}
