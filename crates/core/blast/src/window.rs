//! Blasts that the sender has begun, and at least one receiver lacks.

use core::time::Duration;
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
    fn unused() -> Self {
        Self {
            len: 0,
            count: 0,
            round: 0,
            phase: Phase::Whole,
            rest: PacketSet::default(),
            missing: Vec::new(),
            awaited: PeerSet::default(),
            unconfirmed: 0,
            asking: 0,
            asked_at: Duration::ZERO,
            snapshot: Snapshot::default(),
        }
    }

    /// All packets of a round were sent, and not all receivers have answered.
    pub(crate) const fn is_asked(&self) -> bool {
        matches!(self.phase, Phase::Asked | Phase::Unanswered)
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
#[derive(Debug, Default)]
pub(crate) struct Window {
    blasts: VecDeque<Blast>,
    base: u32,
    /// For the next blasts: a blast in a row of thousands allocates no memory.
    unused: Vec<Blast>,
}

impl Window {
    const UNUSED_MAX: usize = 64;

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
        let mut blast = self.unused.pop().unwrap_or_else(Blast::unused);
        let mut missing = core::mem::take(&mut blast.missing);
        missing.clear();
        let mut awaited = PeerSet::default();
        for (peer, lacks) in lacks.enumerate() {
            missing.push(match lacks {
                true => PacketSet::full(count),
                false => PacketSet::empty(count),
            });
            if lacks {
                awaited = awaited.with(peer);
            }
        }
        blast = Blast {
            len,
            count,
            phase: match awaited.is_empty() {
                true => Phase::Whole,
                false => Phase::Unsent,
            },
            rest: PacketSet::full(count),
            missing,
            awaited,
            ..Blast::unused()
        };
        self.blasts.push_back(blast);
        let last = self.blasts.len() - 1;
        &mut self.blasts[last]
    }

    /// Lets whole blasts at the beginning go. Returns whether a blast went.
    pub(crate) fn release(&mut self) -> bool {
        let before = self.base;
        while self
            .blasts
            .front()
            .is_some_and(|it| it.phase == Phase::Whole)
        {
            if let Some(blast) = self.blasts.pop_front()
                && self.unused.len() < Self::UNUSED_MAX
            {
                self.unused.push(blast);
            }
            self.base += 1;
        }
        self.base > before
    }
}
