//! Datagrams on their way.

use std::collections::BTreeMap;

use protocol::blast::{Acknowledgement, PacketHeader};
use rand::{Rng, rngs::SmallRng};

/// Quality of a path.
#[derive(Debug, Clone)]
pub(super) struct Path {
    /// Shortest time on the way, ns.
    pub(super) delay: u64,
    /// Most additional time, ns: later datagrams overtake earlier ones.
    pub(super) jitter: u64,
    /// Lost datagrams, of a thousand.
    pub(super) lost: u32,
    /// Doubled datagrams, of a thousand.
    pub(super) doubled: u32,
    /// Damaged or forged datagrams that arrive in addition, of a thousand.
    pub(super) forged: u32,
    /// ns that a byte takes at the bottleneck.
    pub(super) ns_per_byte: u64,
    /// Longest queue at the bottleneck, ns.
    pub(super) queue: u64,
    /// Losses end at this time.
    pub(super) lossy_until: u64,
    /// Nothing passes from the first to the second time.
    pub(super) cuts: Vec<(u64, u64)>,
}

/// Where a datagram goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// To the sender, from this receiver.
    Sender(usize),
    Receiver(usize),
}

/// A datagram.
#[derive(Debug, Clone)]
pub(super) enum Datagram {
    /// Header and payload. A forged packet has no header that the receiver could authenticate.
    Packet(Option<PacketHeader>, Vec<u8>),
    Acknowledgement(Acknowledgement),
}

#[derive(Debug)]
pub(super) struct Network {
    path: Path,
    on_the_way: BTreeMap<(u64, u64), (End, Datagram)>,
    sent: u64,
    /// The bottleneck towards the receivers is busy until then.
    busy_until: u64,
}

impl Network {
    pub(super) const fn new(path: Path) -> Self {
        Self {
            path,
            on_the_way: BTreeMap::new(),
            sent: 0,
            busy_until: 0,
        }
    }

    pub(super) fn due(&self) -> u64 {
        let first = self.on_the_way.keys().next();
        first.map_or(u64::MAX, |(at, _)| *at)
    }

    pub(super) fn arrived(&mut self, now: u64) -> Option<(End, Datagram)> {
        let first = self.on_the_way.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    pub(super) fn send(&mut self, to: End, datagram: Datagram, rng: &mut SmallRng, now: u64) {
        let is_cut = |cut: &(u64, u64)| (cut.0..cut.1).contains(&now);
        if self.path.cuts.iter().any(is_cut) {
            return;
        }
        let leaves = match &datagram {
            Datagram::Packet(_, payload) => {
                let start = self.busy_until.max(now);
                if start > now + self.path.queue {
                    return;
                }
                let bytes = u64::try_from(payload.len()).unwrap_or(u64::MAX) + 60;
                self.busy_until = start + bytes * self.path.ns_per_byte;
                self.busy_until
            }
            Datagram::Acknowledgement(_) => now,
        };
        if rng.random_ratio(self.path.forged, 1000)
            && let Datagram::Packet(_, payload) = &datagram
        {
            let forged = payload.iter().map(|byte| byte ^ 0x55).collect();
            self.carry(to, Datagram::Packet(None, forged), rng, leaves);
        }
        let is_lossy = now < self.path.lossy_until;
        for _ in 0..=u32::from(rng.random_ratio(self.path.doubled, 1000)) {
            if !(is_lossy && rng.random_ratio(self.path.lost, 1000)) {
                self.carry(to, datagram.clone(), rng, leaves);
            }
        }
    }

    fn carry(&mut self, to: End, datagram: Datagram, rng: &mut SmallRng, leaves: u64) {
        let arrives = leaves + self.path.delay + rng.random_range(0..=self.path.jitter);
        self.sent += 1;
        self.on_the_way.insert((arrives, self.sent), (to, datagram));
    }
}
