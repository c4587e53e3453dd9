use core::time::Duration;

use crate::{BlastRanges, round_trip::RoundTrip};

/// Some of the receivers of a transfer, by number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PeerSet(u64);

impl PeerSet {
    /// Most receivers of a transfer.
    pub const PEERS_MAX: usize = 64;

    /// The first `count` receivers.
    #[must_use]
    pub fn first(count: usize) -> Self {
        (0..count.min(Self::PEERS_MAX)).fold(Self::default(), Self::with)
    }

    /// These receivers and the receiver `peer`.
    #[must_use]
    pub const fn with(self, peer: usize) -> Self {
        Self(self.0 | 1 << (peer % Self::PEERS_MAX))
    }

    /// These receivers without the receiver `peer`.
    #[must_use]
    pub const fn without(self, peer: usize) -> Self {
        Self(self.0 & !(1 << (peer % Self::PEERS_MAX)))
    }

    /// The receivers that are in both sets.
    #[must_use]
    pub const fn intersection(self, others: Self) -> Self {
        Self(self.0 & others.0)
    }

    /// Whether the receiver is in the set.
    #[must_use]
    pub const fn contains(self, peer: usize) -> bool {
        peer < Self::PEERS_MAX && self.0 >> peer & 1 != 0
    }

    /// Number of receivers.
    #[must_use]
    pub const fn count(self) -> u32 {
        self.0.count_ones()
    }

    /// No receiver.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Numbers of the receivers, ascending.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..Self::PEERS_MAX).filter(move |peer| self.contains(*peer))
    }
}

/// An acknowledgement that no correct receiver sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Protest {
    /// The blast was never sent, or not in this round.
    #[error("the receiver acknowledges blast {0}, which was not sent")]
    NeverSent(u32),
    /// The bitmap has another number of packets than the blast.
    #[error("the receiver counts {found} packets in blast {blast}, which has {sent}")]
    Packets {
        /// The blast.
        blast: u32,
        /// Packets by the acknowledgement.
        found: u16,
        /// Packets of the blast.
        sent: u16,
    },
}

/// A receiver, as the sender sees it.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) round_trip: RoundTrip,
    /// The receiver takes blasts below this number.
    pub(crate) credit: u32,
    /// The receiver has all blasts below this number.
    pub(crate) whole_below: u32,
    /// Blasts that the receiver had at the beginning.
    pub(crate) present: BlastRanges,
    /// An answer is missing since then.
    pub(crate) unanswered_since: Option<Duration>,
    /// Number of the newest acknowledgement.
    pub(crate) newest_answer: u32,
    /// Packets with a mark of congestion, by the newest acknowledgement.
    pub(crate) congestion: u32,
}

impl Peer {
    pub(crate) const fn new(credit: u32, present: BlastRanges, round_trip: Duration) -> Self {
        Self {
            round_trip: RoundTrip::new(round_trip),
            credit,
            whole_below: 0,
            present,
            unanswered_since: None,
            newest_answer: 0,
            congestion: 0,
        }
    }
}
