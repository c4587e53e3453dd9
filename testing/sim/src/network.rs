//! The network between the clients and the server's host: delay, reordering, loss and duplicates.

use std::collections::BTreeMap;

use rand::{Rng, rngs::SmallRng};

use crate::{MS, trace};

/// Quality of a network.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Quality {
    /// Shortest delay, ns.
    pub(crate) delay: u64,
    /// Largest additional delay, ns: packets overtake each other.
    pub(crate) jitter: u64,
    /// Packets lost, of a thousand.
    pub(crate) lost: u32,
    /// Packets doubled, of a thousand.
    pub(crate) doubled: u32,
    /// Packets, of a thousand, that begin an outage without any delivery.
    pub(crate) outages: u32,
}

/// Destination of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Destination {
    Server,
    Client(usize),
    /// On the link's network.
    Logger,
}

/// Packets on their way.
#[derive(Debug)]
pub(crate) struct Network {
    quality: Quality,
    /// By time of arrival, then in the order of sending.
    on_the_way: BTreeMap<(u64, u64), (Destination, Vec<u8>)>,
    sent: u64,
    outage_until: u64,
}

impl Network {
    pub(crate) fn new(quality: Quality) -> Self {
        Self {
            quality,
            on_the_way: BTreeMap::new(),
            sent: 0,
            outage_until: 0,
        }
    }

    pub(crate) fn send(&mut self, to: Destination, packet: Vec<u8>, rng: &mut SmallRng, now: u64) {
        let Quality {
            lost,
            doubled,
            outages,
            ..
        } = self.quality;
        if rng.random_ratio(outages, 1000) {
            self.outage_until = now + rng.random_range(MS..200 * MS);
        }
        if now < self.outage_until || rng.random_ratio(lost, 1000) {
            trace::packet(now, "lost", &packet);
            return;
        }
        if rng.random_ratio(doubled, 1000) {
            self.carry(to, packet.clone(), rng, now);
        }
        self.carry(to, packet, rng, now);
    }

    fn carry(&mut self, to: Destination, packet: Vec<u8>, rng: &mut SmallRng, now: u64) {
        let arrival = now + self.quality.delay + rng.random_range(0..=self.quality.jitter);
        self.sent += 1;
        self.on_the_way.insert((arrival, self.sent), (to, packet));
    }

    /// Time of the next arrival.
    pub(crate) fn due(&self) -> Option<u64> {
        self.on_the_way.keys().next().map(|(time, _)| *time)
    }

    /// The next packet that has arrived.
    pub(crate) fn arrived(&mut self, now: u64) -> Option<(Destination, Vec<u8>)> {
        let first = self.on_the_way.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }
}
