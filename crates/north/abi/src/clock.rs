//! Clocks that can be read again.
//!
//! A server reads its clocks several times for each request. Recording each would be most of the record.
//! So the process has clocks of its own, which stand still but for a nanosecond for each time that they are read
//! (no two readings are equal), and are put forward when the real ones are [`Clock::GRAIN`] ahead. Only
//! that is recorded: a [`Tick`], with how often the clocks were read since the last one.
//!
//! The clock that tells the time of day is the monotonic one and an offset, which changes only when somebody
//! sets the time. In the next life the monotonic clock goes on where it stood, plus the time that has passed since by
//! the time of day.

use crate::{Call, Record};

/// The clocks were put forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tick {
    /// How often they were read since the last tick.
    pub reads: u32,
    /// By how much, microseconds.
    pub advance: u64,
    /// Time of day minus monotonic time, nanoseconds, if it is not what it was.
    pub wall: Option<i64>,
}

impl Tick {
    /// Its record, for whose payload it needs room.
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

    /// The tick in this record; `None`: it is none.
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
    /// How often they were read since.
    reads: u32,
    /// Time of day minus monotonic time, nanoseconds.
    wall: i64,
    /// This clock minus the kernel's, nanoseconds.
    shift: i64,
}

impl Clock {
    /// How far the real clocks may be ahead, nanoseconds: a tick for each command of a busy redis would be a third of
    /// its record.
    pub const GRAIN: u64 = 20_000;
    /// The time of day was set if it is off by more than that, nanoseconds: two clocks cannot be read at once.
    const WALL_NOISE: u64 = 20_000;

    /// Has enough time passed for a tick, if the kernel's monotonic clock shows `monotonic` nanoseconds?
    #[must_use]
    #[inline]
    pub fn is_due(&self, monotonic: u64) -> bool {
        let real = monotonic.wrapping_add_signed(self.shift);
        real.saturating_sub(self.at) >= Self::GRAIN || self.reads == u32::MAX
    }

    /// Put the clocks forward to what the kernel's show, in nanoseconds. The tick is to be recorded.
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

    /// The same in a replay. `false`: the clocks were not read as often as they should have been by now.
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

    /// How often they were read since the last tick.
    #[must_use]
    pub fn reads(&self) -> u32 {
        self.reads
    }

    /// Where the monotonic clock stands, nanoseconds: nobody has read it for that.
    #[must_use]
    pub fn stands(&self) -> u64 {
        self.at.saturating_add(u64::from(self.reads))
    }

    /// Read the monotonic clock, nanoseconds.
    #[inline]
    pub fn monotonic(&mut self) -> u64 {
        let now = self.stands();
        self.reads = self.reads.saturating_add(1);
        now
    }

    /// Read the time of day, nanoseconds since 1970.
    #[inline]
    pub fn time_of_day(&mut self) -> u64 {
        self.monotonic().wrapping_add_signed(self.wall)
    }

    /// When this clock shows `deadline`, the kernel's monotonic clock shows this; nanoseconds.
    #[must_use]
    pub fn kernels(&self, deadline: u64) -> u64 {
        deadline.saturating_add_signed(self.shift.saturating_neg())
    }

    /// How long it is until this clock shows `deadline`, or, if it is a time of day, until that; nanoseconds. For a
    /// replay, where the clocks stand still.
    #[must_use]
    pub fn until(&self, deadline: u64, is_wall: bool) -> u64 {
        let wall = if is_wall { self.wall } else { 0 };
        deadline.saturating_sub(self.stands().saturating_add_signed(wall))
    }

    /// A replay is over, and the kernel's clocks show this, in nanoseconds: go on from where these stand, plus
    /// the time that has passed since.
    pub fn go_on(&mut self, monotonic: u64, time_of_day: u64) {
        let stood = self.stands();
        let passed = time_of_day.saturating_sub(stood.wrapping_add_signed(self.wall));
        let now = stood.saturating_add(passed);
        self.shift = now.wrapping_sub(monotonic).cast_signed();
    }
}
