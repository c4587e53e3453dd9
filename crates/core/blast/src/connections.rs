//! Blasts on connections, where no datagrams pass.
//!
//! Several connections share the blasts of a transfer: a connection takes the next blast when it has sent the blast
//! before, and waits for no slower connection. A connection delivers its bytes in order, and a header tells the place
//! of the payload behind it. So nothing is predicted, acknowledged or repeated. A connection that breaks ends the
//! attempt, and the next attempt sends the blasts that are not whole.
//!
//! - [`Queue`]: the blasts that are to be sent, for all connections to a receiver.
//! - [`packets_in`]: the packets of a blast, in the order in which a connection carries them.
//! - [`Arrivals`]: the blasts that have arrived on all connections.
//! - [`Reading`]: the places of the next bytes of a connection.

use std::io::IoSliceMut;

use protocol::blast::{PACKET_HEADER_LEN, PacketHeader, TAG_LEN};

use crate::{BlastRanges, Extent, Layout, LayoutError, PacketId, flaws::Flaws};

/// Number of a transfer that has a key of its own.
const TRANSFER_NUMBER: u32 = 0;
/// Places of the next bytes: payload, tag, next header.
const PLACE_COUNT: usize = 3;

/// The stream of a connection is not that of a correct sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// No header, a packet out of order, or a blast that need not be sent.
    #[error("the sender broke the order of the packets on a connection")]
    OutOfOrder,
    /// The connection ended in the middle of a blast.
    #[error("a connection ended in the middle of a blast")]
    Cut,
}

/// Blasts that are to be sent.
#[derive(Debug)]
pub struct Queue {
    layout: Layout,
    size: u64,
    blasts: u32,
    present: BlastRanges,
    next: u32,
    flaws: Flaws,
}

impl Queue {
    /// The blasts of a transfer of `size` bytes that are not `present` at the receiver.
    ///
    /// # Errors
    /// The transfer has too many.
    pub fn new(layout: Layout, size: u64, present: BlastRanges) -> Result<Self, LayoutError> {
        Ok(Self {
            blasts: layout.blasts(size)?,
            layout,
            size,
            next: present.first_gap(0),
            present,
            flaws: Flaws::default(),
        })
    }

    /// Plants mistakes.
    #[cfg(feature = "flaws")]
    pub const fn plant(&mut self, flaws: Flaws) {
        self.flaws = flaws;
    }

    /// The next blast, for one connection. `None`: all are taken.
    pub fn take(&mut self) -> Option<u32> {
        let taken = (self.next < self.blasts).then_some(self.next)?;
        self.next = match self.flaws.skips_present() {
            true => self.present.first_gap(taken + 1),
            false => taken + 1,
        };
        Some(taken)
    }

    /// Position below which all blasts are taken.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.layout.blast_position(self.next).min(self.size)
    }
}

/// Header and payload of each packet of a blast, from the first to the last.
pub fn packets_in(
    layout: Layout,
    size: u64,
    blast: u32,
) -> impl Iterator<Item = (PacketHeader, Extent)> {
    let len = layout.blast_len(blast, size);
    let count = layout.packets_of(len);
    (0..count).map(move |packet| {
        let header = PacketHeader {
            transfer: TRANSFER_NUMBER,
            blast,
            packet,
            count,
            round: 0,
            asks: false,
            sent_us: 0,
        };
        (header, layout.extent(PacketId { blast, packet }, size))
    })
}

/// The blasts that have arrived on all connections of a transfer.
#[derive(Debug)]
pub struct Arrivals {
    layout: Layout,
    size: u64,
    blasts: u32,
    present: BlastRanges,
    /// Blasts that are there or that a connection has begun.
    claimed: BlastRanges,
    flaws: Flaws,
}

impl Arrivals {
    /// A transfer of `size` bytes, of which the blasts `present` are there.
    ///
    /// # Errors
    /// The transfer has too many blasts.
    pub fn new(layout: Layout, size: u64, present: BlastRanges) -> Result<Self, LayoutError> {
        Ok(Self {
            blasts: layout.blasts(size)?,
            layout,
            size,
            claimed: present.clone(),
            present,
            flaws: Flaws::default(),
        })
    }

    /// Plants mistakes.
    #[cfg(feature = "flaws")]
    pub const fn plant(&mut self, flaws: Flaws) {
        self.flaws = flaws;
    }

    /// Sizes of the packets.
    #[must_use]
    pub const fn layout(&self) -> Layout {
        self.layout
    }

    /// All is there.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.present.first_gap(0) >= self.blasts
    }

    /// Position below which all bytes are there, and do not change any more.
    #[must_use]
    pub fn position(&self) -> u64 {
        let below = self.present.first_gap(0);
        self.layout.blast_position(below).min(self.size)
    }

    /// Whether the blast is there.
    #[must_use]
    pub fn contains(&self, blast: u32) -> bool {
        self.present.contains(blast)
    }

    /// A connection begins a blast. False: the blast is there, or begun, or behind the end.
    fn claim(&mut self, blast: u32) -> bool {
        let is_free = !self.claimed.contains(blast) || !self.flaws.refuses_claimed();
        if !is_free || blast >= self.blasts {
            return false;
        }
        self.claimed.insert(blast, blast + 1);
        true
    }

    /// The payload behind a header. A blast is sent from its first packet to its last.
    fn payload_of(
        &mut self,
        header: &PacketHeader,
        expected: Option<PacketId>,
    ) -> Result<Extent, StreamError> {
        let id = PacketId {
            blast: header.blast,
            packet: header.packet,
        };
        let len = self.layout.blast_len(id.blast, self.size);
        let has_count = header.count == self.layout.packets_of(len);
        if header.is_probe() || header.transfer != TRANSFER_NUMBER || !has_count {
            return Err(StreamError::OutOfOrder);
        }
        let is_next = match expected {
            Some(expected) => id == expected,
            // Nothing is written a second time: the bytes may be hashed already.
            None => id.packet == 0 && self.claim(id.blast),
        };
        match is_next {
            true => Ok(self.layout.extent(id, self.size)),
            false => Err(StreamError::OutOfOrder),
        }
    }

    /// A packet is in its place. Returns whether its blast is whole now.
    fn add(&mut self, header: &PacketHeader) -> bool {
        let is_last = header.packet + 1 >= header.count;
        if is_last || !self.flaws.awaits_last_packet() {
            self.present.insert(header.blast, header.blast + 1);
        }
        is_last
    }
}

/// A packet of which the payload is on its way.
#[derive(Debug, Clone, Copy)]
struct Packet {
    header: PacketHeader,
    /// The header as it came: the tag covers it.
    head: [u8; PACKET_HEADER_LEN],
    payload: Extent,
}

/// The receiving end of a connection: which bytes come next, and where they belong.
#[derive(Debug)]
pub struct Reading {
    packet: Option<Packet>,
    /// Bytes of payload and tag that have come.
    taken: usize,
    tag: [u8; TAG_LEN],
    /// The next header, as far as it has come.
    head: [u8; PACKET_HEADER_LEN],
    filled: usize,
    /// The next packet of the blast that the connection has begun.
    expected: Option<PacketId>,
}

impl Default for Reading {
    fn default() -> Self {
        Self::new()
    }
}

impl Reading {
    /// A connection that has brought nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            packet: None,
            taken: 0,
            tag: [0; TAG_LEN],
            head: [0; PACKET_HEADER_LEN],
            filled: 0,
            expected: None,
        }
    }

    /// Where the payload belongs that is on its way. `None`: a header comes first.
    #[must_use]
    pub fn payload(&self) -> Option<Extent> {
        self.packet.map(|packet| packet.payload)
    }

    /// The places of the next bytes, given the place of the whole payload (empty if [`Self::payload`] is `None`): the
    /// rest of the payload, of the tag, and of the next header.
    ///
    /// # Panics
    /// The place has another length than the payload; or a packet is there, and was not accepted.
    pub fn places<'a>(&'a mut self, payload: &'a mut [u8]) -> [IoSliceMut<'a>; PLACE_COUNT] {
        let len = self.packet.map_or(0, |packet| packet.payload.len);
        assert_eq!(payload.len(), len, "the place of a payload");
        let tag_taken = match self.packet {
            Some(_) => self.taken.saturating_sub(len),
            None => TAG_LEN,
        };
        [
            IoSliceMut::new(&mut payload[self.taken.min(len)..]),
            IoSliceMut::new(&mut self.tag[tag_taken..]),
            IoSliceMut::new(&mut self.head[self.filled..]),
        ]
    }

    /// So many bytes have come to their places. Returns whether a packet is there: [`Self::packet`] has header and tag.
    /// If the tag is right, and the payload in its place, [`Self::accept`] follows.
    ///
    /// # Errors
    /// [`StreamError::OutOfOrder`]: the connection is of no use any more.
    pub fn advance(&mut self, len: usize, arrivals: &mut Arrivals) -> Result<bool, StreamError> {
        let Some(packet) = &self.packet else {
            self.filled += len;
            return self.begin(arrivals).map(|()| false);
        };
        let needed = packet.payload.len + TAG_LEN;
        self.taken += len;
        match self.taken.checked_sub(needed) {
            Some(more) => {
                self.filled = more;
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// The packet that is there: header, its bytes, and the tag.
    #[must_use]
    pub fn packet(&self) -> Option<(&PacketHeader, &[u8; PACKET_HEADER_LEN], [u8; TAG_LEN])> {
        let packet = self.packet.as_ref()?;
        Some((&packet.header, &packet.head, self.tag))
    }

    /// The packet is authentic, and its payload in its place. Returns whether its blast is whole now.
    ///
    /// # Errors
    /// [`StreamError::OutOfOrder`]: the header behind the packet has no place here. The packet counts all the same.
    pub fn accept(&mut self, arrivals: &mut Arrivals) -> Result<bool, StreamError> {
        let Some(Packet { header, .. }) = self.packet.take() else {
            return Ok(false);
        };
        let is_whole = arrivals.add(&header);
        self.taken = 0;
        self.expected = (!is_whole).then_some(PacketId {
            blast: header.blast,
            packet: header.packet + 1,
        });
        self.begin(arrivals)?;
        Ok(is_whole)
    }

    /// The sender has ended the connection.
    ///
    /// # Errors
    /// [`StreamError::Cut`]: not between two blasts.
    pub fn end(&self) -> Result<(), StreamError> {
        match self.packet.is_none() && self.filled == 0 && self.expected.is_none() {
            true => Ok(()),
            false => Err(StreamError::Cut),
        }
    }

    /// Begins a packet if its header is there.
    fn begin(&mut self, arrivals: &mut Arrivals) -> Result<(), StreamError> {
        if self.filled < PACKET_HEADER_LEN {
            return Ok(());
        }
        let header = PacketHeader::decode(&self.head).map_err(|_| StreamError::OutOfOrder)?;
        let payload = arrivals.payload_of(&header, self.expected)?;
        self.packet = Some(Packet {
            header,
            head: self.head,
            payload,
        });
        self.filled = 0;
        Ok(())
    }
}
