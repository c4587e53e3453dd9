//! The receiving end: opens packets, collects blasts, and answers.

use std::{io::IoSlice, net::SocketAddr};

use blast::{BlastRanges, Layout, Receiver, Reception as Packet};
use protocol::blast::{DATAGRAM_VERSION, PACKET_HEADER_LEN, PacketHeader, TAG_LEN};

use super::{
    DataSocket, PacketKey, Placement, Progress, STOP_CHECK_TIME, Sink, Supervisor,
    cipher::Cipher,
    placing::Placing,
    socket::{Joined, READ_BATCH, ReadBuffers},
};
use crate::error::{BulkError, SocketContext};

/// A transfer, as agreed.
#[derive(Debug, Clone)]
pub struct Incoming {
    /// Number of the transfer.
    pub transfer: u32,
    /// Address of the sender's UDP socket.
    pub sender: SocketAddr,
    /// Key of the packets.
    pub key: PacketKey,
    /// Key of the acknowledgements.
    pub answer_key: PacketKey,
    /// Sizes.
    pub layout: Layout,
    /// Bytes in all.
    pub size: u64,
    /// Blasts that are taken beyond the whole ones.
    pub ahead: u32,
    /// Blasts that are there.
    pub present: BlastRanges,
    /// Where payloads are received.
    pub placement: Placement,
}

/// A transfer that is over.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reception {
    /// Packets that were received at their final positions.
    pub placed: u64,
    /// Packets that were received at the positions of other packets, and copied.
    pub moved: u64,
    /// Copies of these.
    pub copies: u64,
    /// Packets that arrived more than once.
    pub duplicates: u32,
    /// Datagrams that were not made with the key of the transfer, or were changed.
    pub forged: u64,
}

/// Receives all data of a transfer into the sink, and answers the sender until the supervisor ends the reception: the
/// sender may lack the last acknowledgement. The position of the progress is the size when everything is in the sink.
///
/// # Errors
/// The sender breaks the protocol; the sink or the socket fails; the reception ended before everything was there.
pub fn receive(
    socket: &DataSocket,
    incoming: Incoming,
    sink: &mut dyn Sink,
    supervisor: &dyn Supervisor,
) -> Result<Reception, BulkError> {
    let mut end = ReceivingEnd::new(socket, incoming, sink)?;
    end.run(supervisor)
}

struct ReceivingEnd<'a> {
    socket: &'a DataSocket,
    sender: SocketAddr,
    cipher: Cipher,
    answers: Cipher,
    core: Receiver,
    layout: Layout,
    size: u64,
    sink: &'a mut dyn Sink,
    ahead: u32,
    answer: Vec<u8>,
    result: Reception,
    placing: Option<Placing>,
}

impl<'a> ReceivingEnd<'a> {
    fn new(
        socket: &'a DataSocket,
        incoming: Incoming,
        sink: &'a mut dyn Sink,
    ) -> Result<Self, BulkError> {
        let Incoming {
            transfer,
            sender,
            key,
            answer_key,
            layout,
            size,
            ahead,
            present,
            placement,
        } = incoming;
        let has_memory = sink
            .memory()
            .is_some_and(|memory| u64::try_from(memory.len()) == Ok(size));
        let placing = match placement {
            Placement::Placed | Placement::Misplaced if has_memory => {
                Some(Placing::new(layout, placement == Placement::Misplaced))
            }
            _ => None,
        };
        let credit = present.first_gap(0).saturating_add(ahead);
        Ok(Self {
            socket,
            sender,
            cipher: Cipher::new(&key),
            answers: Cipher::new(&answer_key),
            core: Receiver::new(layout, transfer, Some(size), credit, present)?,
            layout,
            size,
            sink,
            ahead,
            answer: Vec::new(),
            result: Reception::default(),
            placing,
        })
    }

    fn run(&mut self, supervisor: &dyn Supervisor) -> Result<Reception, BulkError> {
        let mut buffers = ReadBuffers::new();
        // Of an earlier attempt all may be there.
        let mut was_whole = self.core.is_whole();
        let mut below = Some(self.core.whole_below());
        self.report_progress(supervisor);
        if was_whole {
            self.core.announce();
        }
        while !supervisor.is_stopped() {
            let is_more = match self.placing.is_some() {
                true => self.read_in_place()?,
                false => self.read(&mut buffers)?,
            };
            let ahead = self.core.whole_below().saturating_add(self.ahead);
            self.core.grant(ahead);
            if below != Some(self.core.whole_below()) {
                below = Some(self.core.whole_below());
                self.report_progress(supervisor);
            }
            if self.core.is_whole() && !was_whole {
                was_whole = true;
                self.core.announce();
            }
            self.answer().doing("send acknowledgements")?;
            if !is_more {
                let waited = self.socket.wait(false, STOP_CHECK_TIME);
                waited.doing("wait for packets")?;
            }
        }
        self.result.duplicates = self.core.duplicates();
        match was_whole {
            true => Ok(self.result.clone()),
            false => Err(BulkError::Stopped),
        }
    }

    fn report_progress(&self, supervisor: &dyn Supervisor) {
        let below = self.layout.blast_position(self.core.whole_below());
        let predictions = self.core.predictions();
        supervisor.on_progress(Progress {
            position: below.min(self.size),
            arrived: predictions.packets,
            predicted: predictions.right,
            ..Progress::default()
        });
    }

    fn read(&mut self, buffers: &mut ReadBuffers) -> Result<bool, BulkError> {
        let Self {
            socket,
            core,
            layout,
            cipher,
            sink,
            result,
            ..
        } = self;
        let mut outcome = Ok(());
        let is_more = socket.receive(buffers, |joined| {
            if outcome.is_ok() {
                outcome = take(core, cipher, layout, *sink, joined, result);
            }
        });
        outcome?;
        is_more.doing("read packets")
    }

    /// Receives packets at their positions. Returns whether more may be there.
    fn read_in_place(&mut self) -> Result<bool, BulkError> {
        for _ in 0..READ_BATCH {
            let (Some(placing), Some(memory)) = (&mut self.placing, self.sink.memory()) else {
                return Ok(false);
            };
            let Self {
                socket,
                core,
                cipher,
                result,
                ..
            } = self;
            if !placing.read(socket, core, cipher, memory, result)? {
                return Ok(false);
            }
            if placing.has_copies() {
                // The sender goes on meanwhile (section 2).
                self.answer().doing("send acknowledgements")?;
                if let (Some(placing), Some(memory)) = (&mut self.placing, self.sink.memory()) {
                    placing.relocate(memory);
                }
            }
        }
        Ok(true)
    }

    fn answer(&mut self) -> std::io::Result<()> {
        while let Some(answer) = self.core.poll_acknowledgement() {
            self.answer.clear();
            answer.encode(DATAGRAM_VERSION, &mut self.answer);
            let mut tag = [0; TAG_LEN];
            self.answers
                .seal(answer.nonce(), &self.answer, &mut [], &mut tag);
            self.answer.extend_from_slice(&tag);
            // An answer that finds no space counts as lost on the way.
            self.socket
                .send(self.sender, &self.answer, self.answer.len())?;
        }
        Ok(())
    }
}

/// Opens packets that the kernel has joined, and writes the payloads: neighbours in a single call.
fn take(
    core: &mut Receiver,
    cipher: &Cipher,
    layout: &Layout,
    sink: &mut dyn Sink,
    joined: Joined<'_>,
    result: &mut Reception,
) -> Result<(), BulkError> {
    let mut row = Row {
        start: 0,
        end: 0,
        payloads: Vec::with_capacity(joined.bytes.len() / joined.datagram_len + 1),
    };
    for datagram in joined.bytes.chunks_mut(joined.datagram_len) {
        let Some((header, payload)) = open(cipher, datagram) else {
            result.forged += 1;
            continue;
        };
        let packet = core.on_packet(&header, payload.len(), joined.is_marked)?;
        if let Packet::Fresh(id) = packet {
            row.add(layout.position(id), payload, sink)?;
        }
    }
    row.write(sink)
}

/// Payloads that lie one behind the other.
struct Row<'d> {
    start: u64,
    end: u64,
    payloads: Vec<IoSlice<'d>>,
}

impl<'d> Row<'d> {
    fn add(
        &mut self,
        position: u64,
        payload: &'d [u8],
        sink: &mut dyn Sink,
    ) -> Result<(), BulkError> {
        if position != self.end {
            self.write(sink)?;
            self.start = position;
            self.end = position;
        }
        self.end += u64::try_from(payload.len()).unwrap_or(0);
        self.payloads.push(IoSlice::new(payload));
        Ok(())
    }

    fn write(&mut self, sink: &mut dyn Sink) -> Result<(), BulkError> {
        if self.payloads.is_empty() {
            return Ok(());
        }
        let written = sink.write(self.start, &mut self.payloads);
        self.payloads.clear();
        self.start = self.end;
        written.map_err(BulkError::Sink)
    }
}

/// Decrypts a packet in place.
pub(super) fn open<'d>(
    cipher: &Cipher,
    datagram: &'d mut [u8],
) -> Option<(PacketHeader, &'d [u8])> {
    let len = datagram.len().checked_sub(TAG_LEN)?;
    let header = PacketHeader::decode(datagram).ok()?;
    let (head, rest) = datagram.split_at_mut_checked(PACKET_HEADER_LEN)?;
    let (payload, tag) = rest.split_at_mut_checked(len.checked_sub(PACKET_HEADER_LEN)?)?;
    let tag = <[u8; TAG_LEN]>::try_from(&*tag).ok()?;
    let is_ours = cipher.open(header.nonce(), head, payload, tag);
    is_ours.then_some((header, payload))
}
