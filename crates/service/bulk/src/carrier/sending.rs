//! The sending end: reads blasts, seals packets, and follows the core.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use blast::{BlastRanges, Layout, PeerSet, Run, Sender, SenderEvent, Settings, Transmission};
use protocol::blast::{
    Acknowledgement, DATAGRAM_VERSION, PACKET_HEADER_LEN, PacketHeader, TAG_LEN,
};

use super::{
    DataSocket, PacketKey, Progress, STOP_CHECK_TIME, Source, Supervisor, cipher::Cipher,
    socket::ReadBuffers,
};
use crate::error::{BulkError, SocketContext};

/// Without an answer in this time, no datagrams pass between sender and receivers.
const FIRST_ANSWER_TIME: Duration = Duration::from_secs(3);

/// A receiver of a transfer.
#[derive(Debug, Clone)]
pub struct Target {
    /// Address of the UDP socket.
    pub address: SocketAddr,
    /// Key of the acknowledgements.
    pub key: PacketKey,
    /// Number of the first blast that the receiver does not take yet.
    pub credit: u32,
    /// Blasts that the receiver has.
    pub present: BlastRanges,
}

/// A transfer, as agreed.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// Key of the packets.
    pub key: PacketKey,
    /// Sizes, and how fast.
    pub settings: Settings,
    /// The receivers.
    pub targets: Vec<Target>,
}

/// A transfer that is over.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Transmitted {
    /// Receivers that have all data, by number.
    pub complete: Vec<usize>,
    /// Packets that were sent, one for each receiver.
    pub packets: u64,
    /// Packets that a transfer without losses needs.
    pub needed: u64,
}

/// Sends the source to all targets, until each has all data or is lost.
///
/// # Errors
/// All receivers are lost; no datagrams pass; the source or the socket fails; the supervisor ends the transfer.
pub fn send(
    socket: &DataSocket,
    outgoing: Outgoing,
    source: &mut dyn Source,
    supervisor: &dyn Supervisor,
) -> Result<Transmitted, BulkError> {
    let mut end = SendingEnd::new(socket, outgoing, source)?;
    end.run(supervisor)?;
    match end.result.complete.is_empty() {
        true => Err(BulkError::PeersLost),
        false => Ok(end.result),
    }
}

struct SendingEnd<'a> {
    socket: &'a DataSocket,
    source: &'a mut dyn Source,
    layout: Layout,
    size: u64,
    transfer: u32,
    cipher: Cipher,
    targets: Vec<(SocketAddr, Cipher)>,
    core: Sender,
    epoch: Instant,
    /// Number and bytes of the newest blast.
    blast: (Option<u32>, Vec<u8>),
    /// Sealed datagrams of a run.
    sealed: Vec<u8>,
    /// A receiver has answered.
    is_heard: bool,
    result: Transmitted,
}

impl<'a> SendingEnd<'a> {
    fn new(
        socket: &'a DataSocket,
        outgoing: Outgoing,
        source: &'a mut dyn Source,
    ) -> Result<Self, BulkError> {
        let Outgoing {
            key,
            settings,
            targets,
        } = outgoing;
        let layout = settings.layout;
        let size = source.size();
        let peers = targets.iter().map(|it| (it.credit, it.present.clone()));
        let mut core = Sender::new(settings, peers.collect());
        core.finish(size)?;
        let needed = size.div_ceil(u64::from(layout.packet_bytes()));
        Ok(Self {
            socket,
            source,
            layout,
            size,
            transfer: settings.transfer,
            cipher: Cipher::new(&key),
            targets: targets
                .iter()
                .map(|it| (it.address, Cipher::new(&it.key)))
                .collect(),
            core,
            epoch: Instant::now(),
            blast: (None, Vec::new()),
            sealed: Vec::new(),
            is_heard: false,
            result: Transmitted {
                needed: needed * u64::try_from(targets.len()).unwrap_or(1),
                ..Transmitted::default()
            },
        })
    }

    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    fn run(&mut self, supervisor: &dyn Supervisor) -> Result<(), BulkError> {
        let mut buffers = ReadBuffers::new();
        // Of no bytes every receiver has all at once.
        self.take_events();
        while !self.core.is_over() {
            self.obey(supervisor)?;
            let is_full = self.transmit()?;
            while self
                .take_answers(&mut buffers)
                .doing("read acknowledgements")?
            {}
            let now = self.now();
            self.core.on_timeout(now);
            self.take_events();
            let due = self.core.timeout().unwrap_or(Duration::MAX);
            let pause = due.saturating_sub(now).min(STOP_CHECK_TIME);
            if !self.core.is_over() && (is_full || !pause.is_zero()) {
                let waited = self.socket.wait(is_full, pause);
                waited.doing("wait for acknowledgements")?;
            }
        }
        Ok(())
    }

    fn obey(&mut self, supervisor: &dyn Supervisor) -> Result<(), BulkError> {
        if supervisor.is_stopped() {
            return Err(BulkError::Stopped);
        }
        if !self.is_heard && self.now() >= FIRST_ANSWER_TIME {
            return Err(BulkError::NoDatagrams);
        }
        let now = self.now();
        for peer in 0..self.targets.len() {
            if supervisor.has_left(peer) {
                self.core.drop_peer(peer, now);
            }
        }
        let below = self.layout.blast_position(self.core.released_below());
        supervisor.on_progress(Progress {
            position: below.min(self.size),
            packets: self.result.packets,
            needed: self.result.needed,
            ..Progress::default()
        });
        Ok(())
    }

    /// Sends all packets that may leave now. Returns whether the socket is full.
    fn transmit(&mut self) -> Result<bool, BulkError> {
        let most = self.socket.batch_max(self.datagram_len());
        let most = u16::try_from(most).unwrap_or(u16::MAX);
        while let Some(transmission) = self.core.poll_transmit(self.now(), most) {
            let is_sent = match transmission {
                Transmission::Run(run) => self.send_run(&run)?,
                Transmission::Probe { blast, round, to } => {
                    let header = PacketHeader {
                        transfer: self.transfer,
                        blast,
                        packet: 0,
                        count: 0,
                        round,
                        asks: true,
                        sent_us: blast::timestamp_us(self.now()),
                    };
                    self.sealed.clear();
                    seal(&self.cipher, &header, &[], &mut self.sealed);
                    self.send_sealed(to, PACKET_HEADER_LEN + TAG_LEN)?
                }
            };
            // A packet that finds no space counts as lost on the way.
            if !is_sent {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn send_run(&mut self, run: &Run) -> Result<bool, BulkError> {
        self.load(run.blast).map_err(BulkError::Source)?;
        let sent_us = blast::timestamp_us(self.now());
        self.sealed.clear();
        let packet_bytes = usize::try_from(self.layout.packet_bytes()).unwrap_or(usize::MAX);
        for packet in run.first..run.first + run.packets {
            let asks = run.asks && packet + 1 == run.first + run.packets;
            let header = PacketHeader {
                transfer: self.transfer,
                blast: run.blast,
                packet,
                count: run.count,
                round: run.round,
                asks,
                sent_us,
            };
            let start = usize::from(packet) * packet_bytes;
            let end = (start + packet_bytes).min(self.blast.1.len());
            seal(
                &self.cipher,
                &header,
                &self.blast.1[start..end],
                &mut self.sealed,
            );
        }
        self.result.packets += u64::from(run.packets) * u64::from(run.to.count());
        self.send_sealed(run.to, self.datagram_len())
    }

    fn datagram_len(&self) -> usize {
        let packet_bytes = usize::try_from(self.layout.packet_bytes()).unwrap_or(usize::MAX);
        PACKET_HEADER_LEN + packet_bytes + TAG_LEN
    }

    fn send_sealed(&self, to: PeerSet, len: usize) -> Result<bool, BulkError> {
        let mut is_sent = true;
        for peer in to.iter() {
            let address = self.targets[peer].0;
            let sent = self.socket.send(address, &self.sealed, len);
            is_sent &= sent.doing("send packets")?;
        }
        Ok(is_sent)
    }

    /// Reads a blast, unless the blast is there.
    fn load(&mut self, number: u32) -> std::io::Result<()> {
        if self.blast.0 == Some(number) {
            return Ok(());
        }
        let position = self.layout.blast_position(number);
        let len = self.layout.blast_len(number, self.size);
        self.blast.0 = None;
        self.blast
            .1
            .resize(usize::try_from(len).unwrap_or(usize::MAX), 0);
        self.source.read(position, &mut self.blast.1)?;
        self.blast.0 = Some(number);
        Ok(())
    }

    fn take_answers(&mut self, buffers: &mut ReadBuffers) -> std::io::Result<bool> {
        let now = self.now();
        let Self {
            socket,
            targets,
            core,
            is_heard,
            ..
        } = self;
        socket.receive(buffers, |joined| {
            let Some(peer) = targets.iter().position(|it| it.0 == joined.from) else {
                return;
            };
            for datagram in joined.bytes.chunks(joined.datagram_len) {
                if let Some(answer) = open(&targets[peer].1, datagram) {
                    *is_heard = true;
                    // An acknowledgement that breaks the protocol does not count: the receiver is lost in time.
                    let _ = core.on_acknowledgement(peer, &answer, now);
                }
            }
        })
    }

    fn take_events(&mut self) {
        while let Some(event) = self.core.poll_event() {
            if let SenderEvent::PeerComplete(peer) = event {
                self.result.complete.push(peer);
            }
        }
    }
}

fn seal(cipher: &Cipher, header: &PacketHeader, payload: &[u8], out: &mut Vec<u8>) {
    let head = header.encode(DATAGRAM_VERSION);
    out.extend_from_slice(&head);
    let start = out.len();
    out.extend_from_slice(payload);
    let end = out.len();
    out.extend_from_slice(&[0; TAG_LEN]);
    let (payload, tag) = out[start..].split_at_mut(end - start);
    cipher.seal(header.nonce(), &head, payload, tag);
}

/// Reads an acknowledgement. The tag covers the datagram, which is not encrypted.
fn open(cipher: &Cipher, datagram: &[u8]) -> Option<Acknowledgement> {
    let (bytes, tag) = datagram.split_at_checked(datagram.len().checked_sub(TAG_LEN)?)?;
    let answer = Acknowledgement::decode(bytes).ok()?;
    let tag = tag.try_into().ok()?;
    cipher
        .open(answer.nonce(), bytes, &mut [], tag)
        .then_some(answer)
}
