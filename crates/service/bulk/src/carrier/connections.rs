//! Packets on TCP connections, where no datagrams pass.
//!
//! Several connections share the blasts of a transfer: a connection takes the next blast when it has sent the blast
//! before, and waits for no slower connection. The kernel delivers bytes in order, and a header tells the place of the
//! payload behind it. So nothing is predicted: a read has a place for the payload, the tag and the next header as its
//! buffers. The place is that in the memory of the sink, or a buffer that is written to a file.

use std::{
    io::{self, IoSlice, IoSliceMut, Read, Write},
    net::{Shutdown, TcpStream},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use blast::{BlastRanges, Layout, PacketId};
use protocol::blast::{DATAGRAM_VERSION, PACKET_HEADER_LEN, PacketHeader};

use super::{
    PacketKey, Placement, Progress, STOP_CHECK_TIME, Sink, Source, Supervisor, TAG_LEN,
    cipher::Cipher,
};
use crate::error::{BulkError, SocketContext};

/// Number of a transfer that has a key of its own.
const TRANSFER_NUMBER: u32 = 0;
/// Buffers of a read: payload, tag, next header.
const READ_BUFFERS: usize = 3;

/// A transfer on connections, as agreed.
#[derive(Debug, Clone, Copy)]
pub struct Connected {
    /// Key of the packets, of this transfer alone.
    pub key: PacketKey,
    /// Sizes.
    pub layout: Layout,
    /// Bytes in all.
    pub size: u64,
}

impl Connected {
    fn blasts(&self) -> Result<u32, BulkError> {
        Ok(self.layout.blasts(self.size)?)
    }

    fn blast_len(&self, blast: u32) -> u64 {
        let rest = self.size.saturating_sub(self.layout.blast_position(blast));
        rest.min(self.layout.blast_bytes())
    }
}

/// Blasts that are to be sent, for the connections to a receiver.
#[derive(Debug)]
pub struct Queue {
    present: BlastRanges,
    blasts: u32,
    next: Mutex<u32>,
}

impl Queue {
    /// The blasts of a transfer that the receiver lacks.
    ///
    /// # Errors
    /// The transfer has too many.
    pub fn new(transfer: &Connected, present: BlastRanges) -> Result<Self, BulkError> {
        Ok(Self {
            blasts: transfer.blasts()?,
            next: Mutex::new(present.first_gap(0)),
            present,
        })
    }

    /// Position below which all blasts are taken.
    fn position(&self, transfer: &Connected) -> u64 {
        let position = transfer.layout.blast_position(*self.next());
        position.min(transfer.size)
    }

    fn take(&self) -> Option<u32> {
        let mut next = self.next();
        let taken = (*next < self.blasts).then_some(*next)?;
        *next = self.present.first_gap(taken + 1);
        Some(taken)
    }

    fn next(&self) -> MutexGuard<'_, u32> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The speed of all connections of a sender together.
#[derive(Debug)]
pub struct Pace {
    /// Bytes in a second.
    rate: Option<u64>,
    begun: Instant,
    sent: Mutex<u64>,
}

impl Pace {
    /// At most so many bytes in a second; `None`: as many as the network takes.
    #[must_use]
    pub fn new(rate: Option<u64>) -> Self {
        Self {
            rate,
            begun: Instant::now(),
            sent: Mutex::new(0),
        }
    }

    /// Time until the next bytes may leave, after `len` bytes have left.
    fn wait_after(&self, len: usize) -> Duration {
        let Some(rate) = self.rate else {
            return Duration::ZERO;
        };
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        *sent += u64::try_from(len).unwrap_or(0);
        #[expect(clippy::cast_precision_loss, reason = "a pause")]
        let due = Duration::from_secs_f64(*sent as f64 / rate.max(1) as f64);
        due.saturating_sub(self.begun.elapsed())
    }
}

/// Sends blasts of the queue on a connection, until none is left or the supervisor ends the transfer. The connection
/// ends with the last.
///
/// # Errors
/// The source or the connection fails: the blast is lost, and the transfer with it.
pub fn send_blasts(
    connection: &TcpStream,
    transfer: &Connected,
    (queue, pace): (&Queue, &Pace),
    source: &mut dyn Source,
    supervisor: &dyn Supervisor,
) -> Result<(), BulkError> {
    let timeout = connection.set_write_timeout(Some(STOP_CHECK_TIME));
    timeout.doing("set a time limit")?;
    let cipher = Cipher::new(&transfer.key);
    let mut bytes = Vec::new();
    while let Some(blast) = queue.take() {
        seal_blast(transfer, blast, &cipher, source, &mut bytes)?;
        write(connection, &bytes, supervisor)?;
        supervisor.on_progress(Progress {
            position: queue.position(transfer),
            ..Progress::default()
        });
        let wait_until = Instant::now() + pace.wait_after(bytes.len());
        while let Some(rest) = wait_until.checked_duration_since(Instant::now()) {
            if supervisor.is_stopped() {
                return Err(BulkError::Stopped);
            }
            std::thread::sleep(rest.min(STOP_CHECK_TIME));
        }
    }
    connection
        .shutdown(Shutdown::Write)
        .doing("end a connection")
}

/// Header, payload and tag of each packet of a blast.
fn seal_blast(
    transfer: &Connected,
    blast: u32,
    cipher: &Cipher,
    source: &mut dyn Source,
    bytes: &mut Vec<u8>,
) -> Result<(), BulkError> {
    let len = transfer.blast_len(blast);
    let count = transfer.layout.packets_of(len);
    let mut end = 0;
    for packet in 0..count {
        let header = PacketHeader {
            transfer: TRANSFER_NUMBER,
            blast,
            packet,
            count,
            round: 0,
            asks: false,
            sent_us: 0,
        };
        let head = header.encode(DATAGRAM_VERSION);
        let payload_len = transfer.layout.packet_len(packet, len);
        let payload_len = usize::try_from(payload_len).unwrap_or(0);
        let start = end;
        end += PACKET_HEADER_LEN + payload_len + TAG_LEN;
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        let (head_place, rest) = bytes[start..end].split_at_mut(PACKET_HEADER_LEN);
        let (payload, tag) = rest.split_at_mut(payload_len);
        head_place.copy_from_slice(&head);
        let position = transfer.layout.position(PacketId { blast, packet });
        source.read(position, payload).map_err(BulkError::Source)?;
        cipher.seal(header.nonce(), &head, payload, tag);
    }
    bytes.truncate(end);
    Ok(())
}

fn write(
    mut connection: &TcpStream,
    mut bytes: &[u8],
    supervisor: &dyn Supervisor,
) -> Result<(), BulkError> {
    while !bytes.is_empty() {
        match connection.write(bytes) {
            Ok(len) => bytes = &bytes[len..],
            Err(error) if would_block(&error) => {}
            Err(error) => return Err(error).doing("send on a connection"),
        }
        if supervisor.is_stopped() {
            return Err(BulkError::Stopped);
        }
    }
    Ok(())
}

/// The blasts that have arrived on all connections of a transfer.
#[derive(Debug)]
pub struct Arrivals {
    transfer: Connected,
    blasts: u32,
    present: Mutex<BlastRanges>,
    /// Blasts that are there or that a connection has begun.
    claimed: Mutex<BlastRanges>,
}

impl Arrivals {
    /// A transfer of which the blasts `present` are there.
    ///
    /// # Errors
    /// The transfer has too many blasts.
    pub fn new(transfer: Connected, present: BlastRanges) -> Result<Self, BulkError> {
        Ok(Self {
            blasts: transfer.blasts()?,
            transfer,
            claimed: Mutex::new(present.clone()),
            present: Mutex::new(present),
        })
    }

    /// All is there.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.present().first_gap(0) >= self.blasts
    }

    /// Position below which all bytes are there.
    #[must_use]
    pub fn position(&self) -> u64 {
        let below = self.present().first_gap(0);
        let position = self.transfer.layout.blast_position(below);
        position.min(self.transfer.size)
    }

    fn add(&self, blast: u32) {
        self.present().insert(blast, blast + 1);
    }

    /// A connection begins a blast. False: another connection has.
    fn claim(&self, blast: u32) -> bool {
        let mut claimed = self.claimed.lock().unwrap_or_else(PoisonError::into_inner);
        let is_free = !claimed.contains(blast);
        claimed.insert(blast, blast + 1);
        is_free
    }

    fn present(&self) -> MutexGuard<'_, BlastRanges> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Receives blasts on a connection, into the sink, until the sender ends the connection or the supervisor ends the
/// transfer.
///
/// # Errors
/// The sender breaks the protocol, or has another key; the sink or the connection fails.
pub fn receive_blasts(
    connection: &TcpStream,
    arrivals: &Arrivals,
    sink: &mut dyn Sink,
    placement: Placement,
    supervisor: &dyn Supervisor,
) -> Result<(), BulkError> {
    let timeout = connection.set_read_timeout(Some(STOP_CHECK_TIME));
    timeout.doing("set a time limit")?;
    let mut connection = connection;
    receive_from(&mut connection, arrivals, sink, placement, supervisor)
}

/// The same from any source of bytes.
pub(crate) fn receive_from(
    connection: &mut dyn Read,
    arrivals: &Arrivals,
    sink: &mut dyn Sink,
    placement: Placement,
    supervisor: &dyn Supervisor,
) -> Result<(), BulkError> {
    let transfer = &arrivals.transfer;
    let packet_len = usize::try_from(transfer.layout.packet_bytes()).unwrap_or(0);
    let mut reader = Reader {
        connection,
        supervisor,
        head: [0; PACKET_HEADER_LEN],
        filled: 0,
        tag: [0; TAG_LEN],
    };
    let cipher = Cipher::new(&transfer.key);
    let is_placed = placement == Placement::Placed && sink.memory().is_some();
    let mut buffer = vec![0; if is_placed { 0 } else { packet_len }];
    let mut expected = None;
    while let Some(head) = reader.next_head()? {
        let header = PacketHeader::decode(&head).map_err(|_| BulkError::OutOfOrder)?;
        let (position, len) = check(arrivals, &header, expected)?;
        match sink.memory().filter(|_| is_placed) {
            Some(memory) => {
                let start = usize::try_from(position).unwrap_or(usize::MAX);
                let place = memory.get_mut(start..start.saturating_add(len));
                let place = place.ok_or(BulkError::OutOfOrder)?;
                reader.read_payload(place)?;
                open(&cipher, &head, &header, place, reader.tag)?;
            }
            None => {
                let payload = &mut buffer[..len];
                reader.read_payload(payload)?;
                open(&cipher, &head, &header, payload, reader.tag)?;
                let written = sink.write(position, &mut [IoSlice::new(payload)]);
                written.map_err(BulkError::Sink)?;
            }
        }
        expected = match header.packet + 1 < header.count {
            true => Some(PacketId {
                blast: header.blast,
                packet: header.packet + 1,
            }),
            false => {
                arrivals.add(header.blast);
                let position = arrivals.position();
                supervisor.on_progress(Progress {
                    position,
                    ..Progress::default()
                });
                None
            }
        };
    }
    match expected {
        None => Ok(()),
        Some(_) => Err(BulkError::Closed),
    }
}

/// Position and length of the payload behind a header. A blast is sent from its first packet to its last.
fn check(
    arrivals: &Arrivals,
    header: &PacketHeader,
    expected: Option<PacketId>,
) -> Result<(u64, usize), BulkError> {
    let id = PacketId {
        blast: header.blast,
        packet: header.packet,
    };
    let is_next = match expected {
        Some(expected) => id == expected,
        // Nothing is written a second time: the bytes may be hashed already.
        None => id.packet == 0 && id.blast < arrivals.blasts && arrivals.claim(id.blast),
    };
    let transfer = &arrivals.transfer;
    let len = transfer.blast_len(id.blast);
    let has_count = header.count == transfer.layout.packets_of(len);
    if header.is_probe() || header.transfer != TRANSFER_NUMBER || !is_next || !has_count {
        return Err(BulkError::OutOfOrder);
    }
    let payload_len = transfer.layout.packet_len(id.packet, len);
    Ok((
        transfer.layout.position(id),
        usize::try_from(payload_len).unwrap_or(0),
    ))
}

fn open(
    cipher: &Cipher,
    head: &[u8],
    header: &PacketHeader,
    payload: &mut [u8],
    tag: [u8; TAG_LEN],
) -> Result<(), BulkError> {
    match cipher.open(header.nonce(), head, payload, tag) {
        true => Ok(()),
        false => Err(BulkError::Forged),
    }
}

struct Reader<'a> {
    connection: &'a mut dyn Read,
    supervisor: &'a dyn Supervisor,
    /// The next header, as far as it has arrived.
    head: [u8; PACKET_HEADER_LEN],
    filled: usize,
    tag: [u8; TAG_LEN],
}

impl Reader<'_> {
    /// `None`: the sender has ended the connection.
    fn next_head(&mut self) -> Result<Option<[u8; PACKET_HEADER_LEN]>, BulkError> {
        while self.filled < PACKET_HEADER_LEN {
            let rest = &mut self.head[self.filled..];
            match read(
                self.connection,
                &mut [IoSliceMut::new(rest)],
                self.supervisor,
            )? {
                0 if self.filled == 0 => return Ok(None),
                0 => return Err(BulkError::Closed),
                len => self.filled += len,
            }
        }
        self.filled = 0;
        Ok(Some(self.head))
    }

    /// Reads a payload, the tag, and the beginning of the next header.
    fn read_payload(&mut self, place: &mut [u8]) -> Result<(), BulkError> {
        let needed = place.len() + TAG_LEN;
        let mut taken = 0;
        while taken < needed {
            let mut buffers: [IoSliceMut<'_>; READ_BUFFERS] = [
                IoSliceMut::new(place),
                IoSliceMut::new(&mut self.tag),
                IoSliceMut::new(&mut self.head),
            ];
            let mut rest = &mut buffers[..];
            IoSliceMut::advance_slices(&mut rest, taken);
            match read(self.connection, rest, self.supervisor)? {
                0 => return Err(BulkError::Closed),
                len => taken += len,
            }
        }
        self.filled = taken - needed;
        Ok(())
    }
}

/// The bytes that are there; 0 at the end of the connection.
fn read(
    connection: &mut dyn Read,
    buffers: &mut [IoSliceMut<'_>],
    supervisor: &dyn Supervisor,
) -> Result<usize, BulkError> {
    loop {
        if supervisor.is_stopped() {
            return Err(BulkError::Stopped);
        }
        match connection.read_vectored(buffers) {
            Err(error) if would_block(&error) => {}
            read => return read.doing("read from a connection"),
        }
    }
}

fn would_block(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

#[cfg(test)]
mod tests;
