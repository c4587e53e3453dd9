//! Packets at their final positions: the optimistic implementation (section 2 of the paper).
//!
//! A read of the socket gives the kernel a row of buffers. The payloads of the packets that are expected next have
//! their buffers in the memory of the transfer; headers and tags have buffers elsewhere. A packet that was not expected
//! lies at the position of another packet, and is copied after the acknowledgement. A foreign or forged packet does the
//! same harm as a lost packet: a missing packet is received over the foreign bytes.

use std::{io::IoSliceMut, ops::Range};

use blast::{
    Landed, Layout, PacketId, Receiver, Reception as Packet, Relocation, Spot, plan_relocations,
};
use protocol::blast::{PACKET_HEADER_LEN, PacketHeader, TAG_LEN};

use super::{
    DataSocket,
    cipher::Cipher,
    receiving::{Reception, open},
    socket::{Scattered, control_space},
};
use crate::error::{BulkError, SocketContext};

/// Most datagrams that the kernel joins.
const JOINED_MAX: usize = 64;
/// Space for datagrams that no prediction has room for: the longest that the kernel hands out.
const OVERFLOW_BYTES: usize = 64 * 1024;
/// Buffers of a datagram: header, payload, tag.
const BUFFERS_PER_DATAGRAM: usize = 3;

/// Where payloads are received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// In buffers of the receiver, and copied to the sink out of the processor's cache.
    Copied,
    /// At their final positions, if the sink has memory.
    Placed,
    /// As `Placed`, but each prediction is wrong: the worst case of the paper's section 4, for measurements.
    Misplaced,
}

/// The buffers of reads, used again for each.
pub(super) struct Placing {
    is_misled: bool,
    datagram_len: usize,
    payload_len: usize,
    layout: Layout,
    expected: Vec<PacketId>,
    headers: [[u8; PACKET_HEADER_LEN]; JOINED_MAX],
    tags: [[u8; TAG_LEN]; JOINED_MAX],
    overflow: Vec<u8>,
    /// Datagrams that lie across their buffers, and payloads of unexpected packets.
    staged: Vec<u8>,
    /// Buffers by number: parts of `staged`.
    buffers: Vec<Range<usize>>,
    landed: Vec<Landed>,
    copies: Vec<Relocation>,
    spare: Vec<u8>,
    control: Vec<u8>,
}

impl Placing {
    pub(super) fn new(layout: Layout, is_misled: bool) -> Self {
        let payload_len = usize::try_from(layout.packet_bytes()).unwrap_or(usize::MAX);
        Self {
            is_misled,
            datagram_len: PACKET_HEADER_LEN + payload_len + TAG_LEN,
            payload_len,
            layout,
            expected: Vec::with_capacity(JOINED_MAX),
            headers: [[0; PACKET_HEADER_LEN]; JOINED_MAX],
            tags: [[0; TAG_LEN]; JOINED_MAX],
            overflow: vec![0; OVERFLOW_BYTES],
            staged: Vec::new(),
            buffers: Vec::new(),
            landed: Vec::with_capacity(JOINED_MAX),
            copies: Vec::new(),
            spare: vec![0; payload_len],
            control: control_space(),
        }
    }

    /// Reads the datagrams that the kernel has joined. False: no datagram is there. Misplaced packets are copied by
    /// [`Self::relocate`].
    pub(super) fn read(
        &mut self,
        socket: &DataSocket,
        core: &mut Receiver,
        cipher: &Cipher,
        memory: &mut [u8],
        result: &mut Reception,
    ) -> Result<bool, BulkError> {
        let most = (OVERFLOW_BYTES / self.datagram_len).clamp(1, JOINED_MAX);
        self.expected.clear();
        core.expected(most, &mut self.expected);
        if self.is_misled && !self.expected.is_empty() {
            self.expected.rotate_left(1);
        }
        let Some(arrival) = self.receive(socket, memory).doing("read packets")? else {
            return Ok(false);
        };
        self.landed.clear();
        self.staged.clear();
        self.buffers.clear();
        let in_place = match arrival.datagram_len == self.datagram_len {
            true => (arrival.len / self.datagram_len).min(self.expected.len()),
            false => 0,
        };
        for number in 0..in_place {
            let packet = self.open_in_place(number, cipher, memory);
            let Some(header) = packet else {
                result.forged += 1;
                continue;
            };
            let arrived = core.on_packet(&header, self.payload_len, arrival.is_marked)?;
            self.count(Spot::At(self.expected[number]), arrived, result);
        }
        self.take_staged(in_place, &arrival, core, cipher, memory, result)?;
        self.copies.clear();
        plan_relocations(&self.landed, &mut self.copies);
        result.copies += u64::try_from(self.copies.len()).unwrap_or(0);
        Ok(true)
    }

    pub(super) const fn has_copies(&self) -> bool {
        !self.copies.is_empty()
    }

    /// Copies misplaced packets to their positions. Nothing may be read in between.
    pub(super) fn relocate(&mut self, memory: &mut [u8]) {
        let copies = std::mem::take(&mut self.copies);
        for Relocation { from, to } in &copies {
            let to = match to {
                Spot::At(id) => self.place(*id, memory.len()),
                Spot::Spare | Spot::Buffer(_) => 0..0,
            };
            match from {
                Spot::At(id) if to.is_empty() => {
                    let from = self.place(*id, memory.len());
                    self.spare[..from.len()].copy_from_slice(&memory[from]);
                }
                // A misplaced packet has the full length, as all packets that are expected.
                Spot::At(id) => memory.copy_within(self.place(*id, memory.len()), to.start),
                Spot::Buffer(number) => {
                    let buffer = self.buffers[*number].clone();
                    memory[to].copy_from_slice(&self.staged[buffer]);
                }
                Spot::Spare => {
                    let len = to.len();
                    memory[to].copy_from_slice(&self.spare[..len]);
                }
            }
        }
        self.copies = copies;
    }

    fn place(&self, id: PacketId, size: usize) -> Range<usize> {
        let start = usize::try_from(self.layout.position(id)).unwrap_or(usize::MAX);
        start.min(size)..start.saturating_add(self.payload_len).min(size)
    }

    fn receive(
        &mut self,
        socket: &DataSocket,
        memory: &mut [u8],
    ) -> std::io::Result<Option<Scattered>> {
        let mut order = [0; JOINED_MAX];
        for (number, at) in order.iter_mut().enumerate() {
            *at = number;
        }
        let order = &mut order[..self.expected.len()];
        order.sort_unstable_by_key(|number| self.expected[*number]);
        let mut places: [IoSliceMut<'_>; JOINED_MAX] = std::array::from_fn(|_| empty());
        let (mut rest, mut begun) = (memory, 0);
        let size = rest.len();
        for number in order {
            let place = self.place(self.expected[*number], size);
            let (_, behind) = rest.split_at_mut(place.start - begun);
            let (payload, behind) = behind.split_at_mut(place.len());
            places[*number] = IoSliceMut::new(payload);
            (rest, begun) = (behind, place.end);
        }
        let mut row: [IoSliceMut<'_>; BUFFERS_PER_DATAGRAM * JOINED_MAX + 1] =
            std::array::from_fn(|_| empty());
        let pieces = self.headers.iter_mut().zip(places).zip(&mut self.tags);
        for (number, ((header, place), tag)) in pieces.enumerate().take(self.expected.len()) {
            row[BUFFERS_PER_DATAGRAM * number] = IoSliceMut::new(header);
            row[BUFFERS_PER_DATAGRAM * number + 1] = place;
            row[BUFFERS_PER_DATAGRAM * number + 2] = IoSliceMut::new(tag);
        }
        let used = BUFFERS_PER_DATAGRAM * self.expected.len();
        row[used] = IoSliceMut::new(&mut self.overflow);
        socket.receive_row(&mut row[..=used], &mut self.control)
    }

    /// Decrypts a packet that has the full length, where it lies.
    fn open_in_place(
        &self,
        number: usize,
        cipher: &Cipher,
        memory: &mut [u8],
    ) -> Option<PacketHeader> {
        let head = &self.headers[number];
        let header = PacketHeader::decode(head).ok()?;
        let place = self.place(self.expected[number], memory.len());
        let payload = &mut memory[place];
        let is_ours = cipher.open(header.nonce(), head, payload, self.tags[number]);
        is_ours.then_some(header)
    }

    fn count(&mut self, spot: Spot, arrived: Packet, result: &mut Reception) {
        let packet = match arrived {
            Packet::Fresh(id) => Some(id),
            _ => None,
        };
        if packet.map(Spot::At) == Some(spot) {
            result.placed += 1;
        } else if packet.is_some() {
            result.moved += 1;
        }
        self.landed.push(Landed { spot, packet });
    }

    /// Datagrams behind the packets that lie in place: shorter, too many, or of another length than the transfer has.
    fn take_staged(
        &mut self,
        in_place: usize,
        arrival: &Scattered,
        core: &mut Receiver,
        cipher: &Cipher,
        memory: &[u8],
        result: &mut Reception,
    ) -> Result<(), BulkError> {
        self.gather(in_place * self.datagram_len..arrival.len, memory);
        let mut staged = std::mem::take(&mut self.staged);
        let starts = (0..staged.len()).step_by(arrival.datagram_len);
        for (start, datagram) in starts.zip(staged.chunks_mut(arrival.datagram_len)) {
            let Some((header, payload)) = open(cipher, datagram) else {
                result.forged += 1;
                continue;
            };
            let arrived = core.on_packet(&header, payload.len(), arrival.is_marked)?;
            self.count(Spot::Buffer(self.buffers.len()), arrived, result);
            let begin = start + PACKET_HEADER_LEN;
            self.buffers.push(begin..begin + payload.len());
        }
        self.staged = staged;
        Ok(())
    }

    /// Appends these bytes of the arrival to `staged`, as the network delivered them.
    fn gather(&mut self, bytes: Range<usize>, memory: &[u8]) {
        let mut at = bytes.start;
        while at < bytes.end {
            let (number, offset) = (at / self.datagram_len, at % self.datagram_len);
            let rest = bytes.end - at;
            let Some(id) = self.expected.get(number) else {
                let start = at - self.expected.len() * self.datagram_len;
                self.staged
                    .extend_from_slice(&self.overflow[start..start + rest]);
                return;
            };
            let behind = offset.checked_sub(PACKET_HEADER_LEN);
            let piece = match behind {
                None => &self.headers[number][offset..],
                Some(behind) if behind < self.payload_len => {
                    &memory[self.place(*id, memory.len())][behind..]
                }
                Some(behind) => &self.tags[number][behind - self.payload_len..],
            };
            let len = piece.len().min(rest);
            self.staged.extend_from_slice(&piece[..len]);
            at += len;
        }
    }
}

fn empty<'a>() -> IoSliceMut<'a> {
    IoSliceMut::new(&mut [])
}

#[cfg(test)]
mod tests;
