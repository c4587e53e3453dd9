//! Blasts that the sender has begun, and at least one receiver lacks.

use core::{ops::Range, time::Duration};
use std::collections::VecDeque;

use protocol::blast::PacketSet;

use crate::{Layout, PeerSet, rate::Snapshot};

/// What happens next with a blast.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Packets of a round are to be sent.
    Unsent,
    /// The last packet of a round was sent.
    Asked,
    /// The last packet of a round is to be sent once more.
    Unanswered,
    /// Each receiver has the blast.
    Whole,
}

/// A blast.
#[derive(Debug)]
pub(crate) struct Blast {
    /// Bytes.
    pub(crate) len: u64,
    /// Packets.
    pub(crate) count: u16,
    pub(crate) round: u16,
    pub(crate) phase: Phase,
    /// Packets of the round that are not sent.
    pub(crate) rest: PacketSet,
    /// By receiver: packets that the receiver lacks.
    pub(crate) missing: Vec<PacketSet>,
    /// Receivers whose answer to this round has not arrived.
    pub(crate) awaited: PeerSet,
    /// Bytes that were sent since the last answer of all receivers.
    pub(crate) unconfirmed: u64,
    /// The packet that asked last.
    pub(crate) asking: u16,
    pub(crate) asked_at: Duration,
    pub(crate) snapshot: Snapshot,
}

impl Blast {
    /// All packets of a round were sent, and not all receivers have answered.
    pub(crate) const fn is_asked(&self) -> bool {
        matches!(self.phase, Phase::Asked | Phase::Unanswered)
    }

    /// When the round was sent that an acknowledgement of this round answers first.
    pub(crate) fn answered_at(&self, peer: usize, round: u16) -> Option<Duration> {
        let is_answer = round == self.round && self.is_asked() && self.awaited.contains(peer);
        is_answer.then_some(self.asked_at)
    }

    /// The receiver has the blast.
    pub(crate) fn is_at(&self, peer: usize) -> bool {
        self.missing.get(peer).is_none_or(PacketSet::is_empty)
    }

    /// Takes the next packets of the round, at most `count` in a row. Returns the packets and their bytes.
    pub(crate) fn take_packets(
        &mut self,
        count: u16,
        layout: &Layout,
    ) -> Option<(Range<u16>, u64)> {
        let first = self.rest.first_from(0)?;
        let (mut end, mut bytes) = (first, 0);
        while end - first < count && self.rest.remove(end) {
            bytes += u64::from(layout.packet_len(end, self.len));
            end += 1;
        }
        Some((first..end, bytes))
    }

    /// Receivers that lack one of these packets.
    pub(crate) fn lacking_peers(&self, packets: &Range<u16>) -> PeerSet {
        let lacks = |missing: &PacketSet| {
            let found = missing.first_from(packets.start);
            found.is_some_and(|packet| packet < packets.end)
        };
        let lacking = self.missing.iter().enumerate().filter(|(_, it)| lacks(it));
        lacking.fold(PeerSet::default(), |set, (peer, _)| set.with(peer))
    }

    /// Packets that at least one receiver lacks.
    pub(crate) fn lacking(&self) -> PacketSet {
        let mut all = PacketSet::empty(self.count);
        self.missing.iter().for_each(|missing| all.union(missing));
        all
    }

    /// Bytes of these packets.
    pub(crate) fn bytes_of(&self, packets: &PacketSet, layout: &Layout) -> u64 {
        let full = u64::from(packets.len()) * u64::from(layout.packet_bytes());
        let last = self.count.saturating_sub(1);
        match packets.contains(last) {
            true => {
                let short = layout.packet_bytes() - layout.packet_len(last, self.len);
                full.saturating_sub(u64::from(short))
            }
            false => full,
        }
    }
}

/// Blasts from the first that is not whole at all receivers to the newest.
#[derive(Debug)]
pub(crate) struct Window {
    blasts: VecDeque<Blast>,
    base: u32,
}

impl Window {
    /// All receivers have the blasts before `base`.
    pub(crate) const fn starting_at(base: u32) -> Self {
        Self {
            blasts: VecDeque::new(),
            base,
        }
    }

    /// The first blast that is not whole at all receivers.
    pub(crate) const fn base(&self) -> u32 {
        self.base
    }

    /// The first blast that is not begun.
    pub(crate) fn next(&self) -> u32 {
        self.base + u32::try_from(self.blasts.len()).unwrap_or(u32::MAX)
    }

    pub(crate) fn get(&self, number: u32) -> Option<&Blast> {
        let index = number.checked_sub(self.base)?;
        self.blasts.get(usize::try_from(index).ok()?)
    }

    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut Blast> {
        let index = number.checked_sub(self.base)?;
        self.blasts.get_mut(usize::try_from(index).ok()?)
    }

    /// Begins the next blast of `len` bytes. `lacks` tells whether a receiver lacks the blast.
    pub(crate) fn begin(
        &mut self,
        len: u64,
        count: u16,
        lacks: impl Iterator<Item = bool>,
    ) -> &mut Blast {
        let mut awaited = PeerSet::default();
        let mut missing = Vec::new();
        for (peer, lacks) in lacks.enumerate() {
            missing.push(match lacks {
                true => PacketSet::full(count),
                false => PacketSet::empty(count),
            });
            if lacks {
                awaited = awaited.with(peer);
            }
        }
        let is_whole = awaited.is_empty();
        let blast = Blast {
            len,
            count,
            round: 0,
            phase: if is_whole {
                Phase::Whole
            } else {
                Phase::Unsent
            },
            rest: PacketSet::full(count),
            missing,
            awaited,
            unconfirmed: 0,
            asking: 0,
            asked_at: Duration::ZERO,
            snapshot: Snapshot::default(),
        };
        self.blasts.push_back(blast);
        let last = self.blasts.len() - 1;
        &mut self.blasts[last]
    }

    /// Lets whole blasts at the beginning go.
    pub(crate) fn release(&mut self) {
        while self
            .blasts
            .front()
            .is_some_and(|it| it.phase == Phase::Whole)
        {
            self.blasts.pop_front();
            self.base += 1;
        }
    }
}
