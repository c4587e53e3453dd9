//! The ways between clients, balancer and members, and the clocks of hosts.

use std::{collections::BTreeMap, time::Duration};

use objects::records::Moment;
use rand::{Rng, rngs::SmallRng};

use super::scenario::Quality;
use crate::MS;

/// Shortest and longest way between two hosts of the pool, ns.
const LINK_DELAY: std::ops::Range<u64> = MS / 20..MS / 4;
/// Datagrams between hosts of the pool that are lost, of a thousand.
const LINK_LOST: u32 = 10;

/// Where a packet goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Receiver {
    Client(usize),
    Balancer,
    Member(usize),
}

/// Things on their way, by time of arrival, then in the order of sending.
#[derive(Debug)]
pub(super) struct Route<T> {
    on_the_way: BTreeMap<(u64, u64), T>,
    sent: u64,
}

impl<T> Route<T> {
    pub(super) const fn new() -> Self {
        Self {
            on_the_way: BTreeMap::new(),
            sent: 0,
        }
    }

    pub(super) fn carry(&mut self, arrives: u64, thing: T) {
        self.sent += 1;
        self.on_the_way.insert((arrives, self.sent), thing);
    }

    pub(super) fn due(&self) -> u64 {
        self.on_the_way
            .keys()
            .next()
            .map_or(u64::MAX, |(at, _)| *at)
    }

    /// The next thing that has arrived, and its place in the order of sending.
    pub(super) fn arrived(&mut self, now: u64) -> Option<(u64, T)> {
        let first = self.on_the_way.first_entry()?;
        let (at, order) = *first.key();
        (at <= now).then(|| (order, first.remove()))
    }

    /// Between hosts of the pool.
    pub(super) fn link(&mut self, thing: T, rng: &mut SmallRng, now: u64) {
        if !rng.random_ratio(LINK_LOST, 1000) {
            self.carry(now + link_delay(rng), thing);
        }
    }
}

impl Route<(Receiver, Vec<u8>)> {
    /// Between a client and the pool.
    pub(super) fn send(
        &mut self,
        to: Receiver,
        packet: Vec<u8>,
        quality: Quality,
        rng: &mut SmallRng,
        now: u64,
    ) {
        let Quality {
            delay,
            jitter,
            lost,
            doubled,
        } = quality;
        for _ in 0..=u32::from(rng.random_ratio(doubled, 1000)) {
            let arrives = now + delay + rng.random_range(0..=jitter);
            if !rng.random_ratio(lost, 1000) {
                self.carry(arrives, (to, packet.clone()));
            }
        }
    }
}

pub(super) fn link_delay(rng: &mut SmallRng) -> u64 {
    rng.random_range(LINK_DELAY)
}

/// The clock of a host: true nanoseconds in, readings out.
#[derive(Debug, Clone, Copy)]
pub(super) struct Clock {
    booted: u64,
    ppm: i64,
    /// Unix time less the reading.
    pub(super) unix_offset: Duration,
}

impl Clock {
    /// The clock of a host that is booted now.
    pub(super) fn drawn(rng: &mut SmallRng, most_ppm: u32, now: u64) -> Self {
        let most = i64::from(most_ppm);
        let unix = super::site::UNIX_START + rng.random_range(0..3);
        Self {
            booted: now,
            ppm: rng.random_range(-most..=most),
            unix_offset: Duration::from_secs(unix) + Duration::from_nanos(now)
                - Duration::from_secs(1),
        }
    }

    /// The clock of a host was at one second when the host was booted.
    pub(super) fn reading(&self, now: u64) -> Duration {
        let passed = i128::from(now.saturating_sub(self.booted));
        let advance = passed * i128::from(1_000_000 + self.ppm) / 1_000_000;
        Duration::from_secs(1) + Duration::from_nanos(u64::try_from(advance).unwrap_or(0))
    }

    /// The reading, and Unix time.
    pub(super) fn moment(&self, now: u64) -> Moment {
        let now = self.reading(now);
        let unix = self.unix_offset + now;
        Moment { now, unix }
    }

    /// The first true time with at least this reading.
    pub(super) fn when(&self, reading: Duration) -> u64 {
        let advance = reading.saturating_sub(Duration::from_secs(1)).as_nanos();
        let advance = i128::try_from(advance).unwrap_or(i128::MAX / 2_000_000);
        let passed = advance.saturating_mul(1_000_000) / i128::from(1_000_000 + self.ppm) + 1;
        let passed = u64::try_from(passed).unwrap_or(u64::MAX);
        self.booted.saturating_add(passed)
    }
}
