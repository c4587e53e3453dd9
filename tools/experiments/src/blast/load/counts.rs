//! Blasts that arrive at a host, and packets that interrupt them.

use std::ops::AddAssign;

/// Bytes of a packet in front of the payload: kind, number of the blast, packet, packets.
pub(super) const HEADER_BYTES: usize = 9;

/// Kinds of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Asks for a blast with this many packets.
    Read,
    /// Asks for an answer.
    Query,
    /// A packet of a blast.
    Data,
    Answer,
    Broadcast,
}

const KINDS: [Kind; 5] = [
    Kind::Read,
    Kind::Query,
    Kind::Data,
    Kind::Answer,
    Kind::Broadcast,
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Packet {
    pub(super) kind: Kind,
    pub(super) blast: u32,
    pub(super) packet: u16,
    pub(super) count: u16,
}

impl Packet {
    pub(super) fn encode(self) -> [u8; HEADER_BYTES] {
        let kind = KINDS.iter().position(|kind| *kind == self.kind);
        let mut out = [0; HEADER_BYTES];
        out[0] = kind.and_then(|kind| u8::try_from(kind).ok()).unwrap_or(0);
        out[1..5].copy_from_slice(&self.blast.to_le_bytes());
        out[5..7].copy_from_slice(&self.packet.to_le_bytes());
        out[7..9].copy_from_slice(&self.count.to_le_bytes());
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let head = bytes.first_chunk::<HEADER_BYTES>()?;
        let [kind, a, b, c, d, e, f, g, h] = *head;
        Some(Self {
            kind: *KINDS.get(usize::from(kind))?,
            blast: u32::from_le_bytes([a, b, c, d]),
            packet: u16::from_le_bytes([e, f]),
            count: u16::from_le_bytes([g, h]),
        })
    }
}

/// What a host has counted, as in Tables 4 to 6.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) blasts: u64,
    pub(crate) by_broadcasts: u64,
    pub(crate) by_blasts: u64,
    pub(crate) by_others: u64,
    /// Packets that belong to no blast.
    pub(crate) others: u64,
    /// Packets of blasts.
    pub(crate) packets: u64,
}

impl Counts {
    pub(crate) const fn interrupted(&self) -> u64 {
        self.by_broadcasts + self.by_blasts + self.by_others
    }

    /// Interrupted blasts of all blasts.
    pub(crate) fn share(&self) -> f64 {
        self.interrupted() as f64 / self.blasts.max(1) as f64
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.blasts += other.blasts;
        self.by_broadcasts += other.by_broadcasts;
        self.by_blasts += other.by_blasts;
        self.by_others += other.by_others;
        self.others += other.others;
        self.packets += other.packets;
    }
}

/// A blast of which packets have arrived.
struct Open<P> {
    peer: P,
    blast: u32,
    interrupted_by: Option<Kind>,
}

/// Counts packets in the order of their arrival, from peers `P`.
pub(super) struct Arrivals<P> {
    open: Vec<Open<P>>,
    pub(super) counts: Counts,
}

impl<P: PartialEq + Copy> Arrivals<P> {
    pub(super) const fn new() -> Self {
        Self {
            open: Vec::new(),
            counts: Counts {
                blasts: 0,
                by_broadcasts: 0,
                by_blasts: 0,
                by_others: 0,
                others: 0,
                packets: 0,
            },
        }
    }

    /// Returns whether a blast is complete. A blast whose last packet is lost does not count.
    pub(super) fn add(&mut self, peer: P, packet: &Packet) -> bool {
        let is_data = packet.kind == Kind::Data;
        let is_own = |open: &Open<P>| is_data && open.peer == peer && open.blast == packet.blast;
        for open in self.open.iter_mut().filter(|open| !is_own(open)) {
            open.interrupted_by.get_or_insert(packet.kind);
        }
        if !is_data {
            self.counts.others += 1;
            return false;
        }
        self.counts.packets += 1;
        if packet.packet == 0 {
            self.open.retain(|open| open.peer != peer);
            self.open.push(Open {
                peer,
                blast: packet.blast,
                interrupted_by: None,
            });
        }
        if packet.packet + 1 < packet.count {
            return false;
        }
        let Some(at) = self.open.iter().position(is_own) else {
            return false; // the first packet was lost
        };
        self.counts.blasts += 1;
        match self.open.swap_remove(at).interrupted_by {
            None => {}
            Some(Kind::Broadcast) => self.counts.by_broadcasts += 1,
            Some(Kind::Data) => self.counts.by_blasts += 1,
            Some(_) => self.counts.by_others += 1,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(kind: Kind, blast: u32, packet: u16) -> Packet {
        Packet {
            kind,
            blast,
            packet,
            count: 3,
        }
    }

    fn counted(packets: &[(char, Kind, u32, u16)]) -> Counts {
        let mut arrivals = Arrivals::new();
        for &(peer, kind, blast, number) in packets {
            arrivals.add(peer, &packet(kind, blast, number));
        }
        arrivals.counts
    }

    #[test]
    fn packet_is_read_as_it_was_written() {
        for kind in KINDS {
            let packet = packet(kind, 70_000, 2);
            assert_eq!(Packet::decode(&packet.encode()), Some(packet));
        }
        assert_eq!(Packet::decode(&[9; HEADER_BYTES]), None);
        assert_eq!(Packet::decode(&[0; HEADER_BYTES - 1]), None);
    }

    #[test]
    fn packet_between_first_and_last_interrupts() {
        use Kind::{Broadcast, Data, Query};
        let whole = [('a', Data, 1, 0), ('a', Data, 1, 1), ('a', Data, 1, 2)];
        let around = [&[('b', Query, 0, 0)], &whole[..], &[('b', Query, 0, 0)]].concat();
        let counts = counted(&around);
        assert_eq!(
            (counts.blasts, counts.interrupted(), counts.others),
            (1, 0, 2)
        );
        let mut between = whole.to_vec();
        between.insert(1, ('b', Broadcast, 0, 0));
        between.insert(2, ('b', Query, 0, 0));
        let counts = counted(&between);
        // The first that interrupts counts.
        assert_eq!((counts.by_broadcasts, counts.by_others), (1, 0));
    }

    #[test]
    fn blasts_of_two_peers_interrupt_each_other() {
        use Kind::Data;
        let counts = counted(&[
            ('a', Data, 1, 0),
            ('b', Data, 1, 0),
            ('a', Data, 1, 1),
            ('a', Data, 1, 2),
            ('b', Data, 1, 1),
            ('b', Data, 1, 2),
        ]);
        assert_eq!((counts.blasts, counts.by_blasts), (2, 2));
    }

    #[test]
    fn blast_without_its_last_packet_does_not_count() {
        use Kind::Data;
        let counts = counted(&[
            ('a', Data, 1, 0),
            ('a', Data, 2, 0),
            ('a', Data, 2, 1),
            ('a', Data, 2, 2),
        ]);
        assert_eq!((counts.blasts, counts.interrupted()), (1, 0));
    }
}
