//! Packets on TCP connections, where no datagrams pass: `blast::connections` with sockets, ciphers and data.
//!
//! The kernel delivers bytes in order, and a header tells the place of the payload behind it. So a read has a place for
//! the payload, the tag and the next header as its buffers. The place is that in the memory of the sink, or a buffer
//! that is written to a file.

use std::{
    io::{self, IoSlice, IoSliceMut, Read, Write},
    net::{Shutdown, TcpStream},
    sync::Mutex,
    time::{Duration, Instant},
};

use blast::{
    Extent, Layout,
    connections::{Arrivals, Queue, Reading, StreamError, packets_in},
};
use protocol::blast::{DATAGRAM_VERSION, PACKET_HEADER_LEN, TAG_LEN};

use super::{
    PacketKey, Placement, Progress, STOP_CHECK_TIME, Sink, Source, Supervisor, cipher::Cipher,
};
use crate::{
    error::{BulkError, SocketContext},
    locks::locked,
};

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
        let mut sent = locked(&self.sent);
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
    (queue, pace): (&Mutex<Queue>, &Pace),
    source: &mut dyn Source,
    supervisor: &dyn Supervisor,
) -> Result<(), BulkError> {
    let timeout = connection.set_write_timeout(Some(STOP_CHECK_TIME));
    timeout.doing("set a time limit")?;
    let cipher = Cipher::new(&transfer.key);
    let mut bytes = Vec::new();
    let next = || locked(queue).take();
    while let Some(blast) = next() {
        seal_blast(transfer, blast, &cipher, source, &mut bytes)?;
        write(connection, &bytes, supervisor)?;
        let position = locked(queue).position();
        supervisor.on_progress(Progress {
            position,
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
    let mut end = 0;
    for (header, payload) in packets_in(transfer.layout, transfer.size, blast) {
        let head = header.encode(DATAGRAM_VERSION);
        let start = end;
        end += PACKET_HEADER_LEN + payload.len + TAG_LEN;
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        let (head_place, rest) = bytes[start..end].split_at_mut(PACKET_HEADER_LEN);
        let (place, tag) = rest.split_at_mut(payload.len);
        head_place.copy_from_slice(&head);
        let read = source.read(payload.position, place);
        read.map_err(BulkError::Source)?;
        cipher.seal(header.nonce(), &head, place, tag);
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

/// Receives blasts on a connection, into the sink, until the sender ends the connection or the supervisor ends the
/// transfer.
///
/// # Errors
/// The sender breaks the protocol, or has another key; the sink or the connection fails.
pub fn receive_blasts(
    connection: &TcpStream,
    transfer: (&PacketKey, &Mutex<Arrivals>),
    sink: &mut dyn Sink,
    placement: Placement,
    supervisor: &dyn Supervisor,
) -> Result<(), BulkError> {
    let timeout = connection.set_read_timeout(Some(STOP_CHECK_TIME));
    timeout.doing("set a time limit")?;
    let mut connection = connection;
    receive_from(&mut connection, transfer, sink, placement, supervisor)
}

/// The same from any source of bytes.
pub(crate) fn receive_from(
    connection: &mut dyn Read,
    (key, arrivals): (&PacketKey, &Mutex<Arrivals>),
    sink: &mut dyn Sink,
    placement: Placement,
    supervisor: &dyn Supervisor,
) -> Result<(), BulkError> {
    let packet_len = usize::try_from(locked(arrivals).layout().packet_bytes()).unwrap_or(0);
    let cipher = Cipher::new(key);
    let is_placed = placement == Placement::Placed && sink.memory().is_some();
    let mut buffer = (!is_placed).then(|| vec![0; packet_len]);
    let mut reading = Reading::new();
    loop {
        let place = place_of(reading.payload(), sink, &mut buffer)?;
        let len = match read(connection, &mut reading.places(place), supervisor)? {
            0 => return reading.end().map_err(Into::into),
            len => len,
        };
        let is_packet = reading.advance(len, &mut locked(arrivals))?;
        let Some(payload) = reading.payload().filter(|_| is_packet) else {
            continue;
        };
        open(
            &cipher,
            &reading,
            place_of(Some(payload), sink, &mut buffer)?,
        )?;
        if let Some(buffer) = &buffer {
            let bytes = IoSlice::new(&buffer[..payload.len]);
            let written = sink.write(payload.position, &mut [bytes]);
            written.map_err(BulkError::Sink)?;
        }
        let mut arrivals = locked(arrivals);
        let accepted = reading.accept(&mut arrivals);
        let position = arrivals.position();
        drop(arrivals);
        if accepted != Ok(false) {
            supervisor.on_progress(Progress {
                position,
                ..Progress::default()
            });
        }
        accepted?;
    }
}

/// Where a payload is received: in the buffer, or without a buffer in the memory of the sink.
fn place_of<'a>(
    payload: Option<Extent>,
    sink: &'a mut dyn Sink,
    buffer: &'a mut Option<Vec<u8>>,
) -> Result<&'a mut [u8], BulkError> {
    let place = match (payload, buffer) {
        (None, _) => Some(&mut [][..]),
        (Some(payload), Some(buffer)) => buffer.get_mut(..payload.len),
        (Some(payload), None) => {
            let start = usize::try_from(payload.position).unwrap_or(usize::MAX);
            let end = start.saturating_add(payload.len);
            sink.memory().and_then(|it| it.get_mut(start..end))
        }
    };
    place.ok_or(BulkError::OutOfOrder)
}

fn open(cipher: &Cipher, reading: &Reading, payload: &mut [u8]) -> Result<(), BulkError> {
    let is_authentic = reading.packet().is_some_and(|(header, head, tag)| {
        let nonce = header.nonce();
        cipher.open(nonce, head, payload, tag)
    });
    match is_authentic {
        true => Ok(()),
        false => Err(BulkError::Forged),
    }
}

impl From<StreamError> for BulkError {
    fn from(error: StreamError) -> Self {
        match error {
            StreamError::OutOfOrder => Self::OutOfOrder,
            StreamError::Cut => Self::Closed,
        }
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
