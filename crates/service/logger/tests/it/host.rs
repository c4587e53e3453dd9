//! A serving host without a kernel: connections whose clients retransmit unacknowledged bytes, and the datagrams
//! that the BPF programs make of the packets.

use std::{collections::BTreeMap, net::SocketAddr};

use protocol::{
    control::{Attach, ReplayMode},
    link::{
        Ack, Handshake, KeySet, LinkKey, LinkKeys, Open, SegmentFlags, SegmentKind, SegmentView,
        Signer, seal,
    },
    mirror::{self, FrameKind, MirrorFrame},
};
use rand::{Rng, RngCore, SeedableRng, rngs::SmallRng};
use wire::{ChecksumMode, Flags, FlowId, FlowKey, SegmentSpec, SeqNumber};

/// The request of a service.
pub(crate) fn attach(instance: u64, udp_port: u16) -> Attach {
    Attach {
        instance,
        replay: ReplayMode::Connection,
        per_connection: 64 << 20,
        total: 256 << 20,
        connections: 1000,
        udp_port,
        inherit: false,
        service: "test".into(),
        ..Attach::PLAIN
    }
}

/// The signer of datagrams.
pub(crate) fn signer<'a>(keys: &LinkKeys, key: &'a LinkKey) -> Signer<'a> {
    Signer {
        version: keys.version,
        slot: keys.slot,
        key,
    }
}

/// A frame of the control stream.
pub(crate) fn frame(flow: FlowId, kind: FrameKind, packet: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    MirrorFrame {
        packet_len: u32::try_from(packet.len()).expect("short"),
        packet,
        ..MirrorFrame::of(kind, flow)
    }
    .encode(mirror::VERSION, &mut bytes)
    .expect("a frame");
    bytes
}

/// A connection from the client's view.
pub(crate) struct Connection {
    pub(crate) flow: FlowId,
    pub(crate) key: FlowKey,
    pub(crate) client_isn: SeqNumber,
    pub(crate) server_isn: SeqNumber,
    /// All input of the client, before the FIN.
    pub(crate) data: Vec<u8>,
    /// The logger knows of the handshake.
    pub(crate) opened: bool,
    /// Number of recorded sequence numbers after the SYN, FIN included.
    pub(crate) stable: usize,
    /// Ranges in the newest ACK beyond `stable`.
    pub(crate) ranges: Vec<(usize, usize)>,
    /// The read cursor: segments before need not be mirrored.
    pub(crate) noted: usize,
    /// Bytes of output that the client has received.
    pub(crate) said: u32,
    counter: u64,
}

impl Connection {
    pub(crate) fn new(flow: FlowId, v6: bool, data: Vec<u8>, isn: SeqNumber) -> Self {
        let [_, _, _, _, _, _, a, b] = flow.0.to_be_bytes();
        let port = u16::from_be_bytes([a, b]);
        let (client, server) = if v6 {
            ("[fd00::1]", "[fd00::10]:80")
        } else {
            ("10.0.0.1", "10.0.0.10:80")
        };
        let client: SocketAddr = format!("{client}:{port}").parse().expect("an address");
        Self {
            flow,
            key: FlowKey::new(client, server.parse().expect("an address")),
            client_isn: isn,
            server_isn: SeqNumber(77),
            data,
            opened: false,
            stable: 0,
            ranges: Vec::new(),
            noted: 0,
            said: 0,
            counter: 0,
        }
    }

    /// All bytes and the FIN.
    pub(crate) fn whole(&self) -> usize {
        self.data.len() + 1
    }

    pub(crate) fn is_recorded(&self) -> bool {
        self.stable == self.whole()
    }

    fn seq(&self, at: usize) -> SeqNumber {
        self.client_isn + 1 + u32::try_from(at).expect("no 4 GiB")
    }

    /// The client's packet with up to `len` bytes from `at` on, with the FIN after the last byte.
    pub(crate) fn packet(&self, at: usize, len: usize, mode: ChecksumMode) -> Vec<u8> {
        let end = (at + len).min(self.data.len());
        let mut flags = Flags::ACK;
        if end == self.data.len() {
            flags = flags | Flags::FIN;
        }
        let mut bytes = Vec::new();
        SegmentSpec {
            source: self.key.client(),
            destination: self.key.server(),
            seq: self.seq(at),
            ack: self.server_isn + 1 + self.said,
            flags,
            window: 1000,
            options: &[1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2],
            payload: &self.data[at..end],
        }
        .emit(&mut bytes, mode)
        .expect("a packet");
        bytes
    }

    /// The server sends output: the packet.
    pub(crate) fn answer(&mut self, payload: &[u8]) -> (SeqNumber, Vec<u8>) {
        let from = self.server_isn + 1 + self.said;
        let mut bytes = Vec::new();
        SegmentSpec {
            source: self.key.server(),
            destination: self.key.client(),
            seq: from,
            ack: self.seq(0),
            flags: Flags::ACK,
            window: 1000,
            options: &[],
            payload,
        }
        .emit(&mut bytes, ChecksumMode::Full)
        .expect("a packet");
        self.said += u32::try_from(payload.len()).expect("short");
        (from, bytes)
    }

    /// An ACK arrives. A later ACK must not take back earlier acknowledged bytes.
    fn acknowledged(&mut self, ack: &Ack) {
        assert_eq!(ack.key, self.key);
        if ack.counter <= self.counter {
            return; // overtaken
        }
        self.counter = ack.counter;
        self.opened = true;
        let place = |seq: SeqNumber| {
            let distance = seq
                .distance_from(self.client_isn + 1)
                .expect("beyond the SYN");
            usize::try_from(distance).expect("usize")
        };
        let stable = place(ack.stable_seq);
        assert!(stable >= self.stable, "an ACK went back");
        assert!(stable <= self.whole(), "an ACK of what was never sent");
        self.stable = stable;
        let ranges = ack.ranges.iter().flatten();
        self.ranges = ranges
            .map(|(start, end)| (place(*start), place(*end)))
            .collect();
        for (start, end) in &self.ranges {
            assert!(*start > stable && start < end && *end <= self.data.len());
        }
    }
}

/// A serving host, and the state of the link.
pub(crate) struct Host {
    pub(crate) connections: BTreeMap<FlowId, Connection>,
    pub(crate) keys: LinkKeys,
    pub(crate) down: KeySet,
    pub(crate) random: SmallRng,
}

impl Host {
    pub(crate) fn new(keys: LinkKeys, seed: u64) -> Self {
        let mut host = Self {
            connections: BTreeMap::new(),
            keys,
            down: KeySet::EMPTY,
            random: SmallRng::seed_from_u64(seed),
        };
        host.use_keys(keys);
        host
    }

    /// From now on these keys make the tags.
    pub(crate) fn use_keys(&mut self, keys: LinkKeys) {
        self.keys = keys;
        self.down.put(keys.slot, keys.down);
    }

    /// A connection whose client will send `len` random bytes.
    pub(crate) fn connect(&mut self, flow: u64, len: usize) {
        let mut data = vec![0; len];
        self.random.fill_bytes(&mut data);
        let isn = SeqNumber(self.random.random());
        let flow = FlowId(flow);
        let v6 = self.random.random();
        let connection = Connection::new(flow, v6, data, isn);
        self.connections.insert(flow, connection);
    }

    pub(crate) fn is_recorded(&self) -> bool {
        self.connections.values().all(Connection::is_recorded)
    }

    pub(crate) fn open(&self, connection: &Connection) -> Vec<u8> {
        let open = Open {
            version: protocol::link::VERSION,
            slot: self.keys.slot,
            flow: connection.flow,
            key: connection.key,
            client_isn: connection.client_isn,
            server_isn: connection.server_isn,
            handshake: Handshake::PLAIN,
        };
        open.encode(&self.keys.up).to_vec()
    }

    pub(crate) fn segment(&self, connection: &Connection, packet: &[u8], partial: bool) -> Vec<u8> {
        self.sealed(
            connection,
            packet,
            partial,
            (SegmentKind::Turn, SeqNumber(0)),
        )
    }

    /// A datagram with the read cursor `noted`.
    pub(crate) fn noted(
        &self,
        connection: &Connection,
        packet: &[u8],
        partial: bool,
        noted: usize,
    ) -> Vec<u8> {
        let place = connection.seq(noted);
        self.sealed(connection, packet, partial, (SegmentKind::Noted, place))
    }

    fn sealed(
        &self,
        connection: &Connection,
        packet: &[u8],
        unfinished: bool,
        (kind, place): (SegmentKind, SeqNumber),
    ) -> Vec<u8> {
        let (slot, key) = (self.keys.slot, &self.keys.up);
        let flags = SegmentFlags {
            version: protocol::link::VERSION,
            kind,
            unfinished,
            slot,
        };
        let mut datagram = Vec::new();
        let sealed = seal(packet, connection.flow, (flags, place), key, &mut datagram);
        sealed.expect("a TCP packet");
        datagram
    }

    /// The clients' next datagrams, of at most `most` bytes each, within a window of `window`: a datagram of each
    /// connection that is not completely recorded.
    pub(crate) fn datagrams(&mut self, most: usize, window: usize) -> Vec<Vec<u8>> {
        let mut random = self.random.clone();
        let mut datagrams = Vec::new();
        for connection in self.connections.values() {
            if connection.is_recorded() {
                continue;
            }
            if !connection.opened {
                datagrams.push(self.open(connection));
                continue;
            }
            let from = connection.stable.min(connection.data.len());
            let to = (from + window).min(connection.data.len());
            // The first missing byte more often than other places: as after a duplicate ACK.
            let at = if random.random_bool(0.5) {
                from
            } else {
                random.random_range(from..=to)
            };
            let partial = random.random_bool(0.2);
            let mode = if partial {
                ChecksumMode::Partial
            } else {
                ChecksumMode::Full
            };
            let packet = connection.packet(at, random.random_range(1..=most), mode);
            datagrams.push(if (1..=at).contains(&connection.noted) {
                self.noted(connection, &packet, partial, connection.noted)
            } else {
                self.segment(connection, &packet, partial)
            });
        }
        self.random = random;
        datagrams
    }

    /// A datagram of the logger arrives.
    pub(crate) fn hear(&mut self, datagram: &[u8]) -> Ack {
        let ack = Ack::decode(datagram, &self.down).expect("an ACK of our logger");
        // An ACK for a closed connection may arrive late.
        if let Some(connection) = self.connections.get_mut(&ack.flow) {
            connection.acknowledged(&ack);
        }
        ack
    }
}

/// The pieces of at most `size` bytes of payload into which segmentation offload cuts a SEGMENT.
pub(crate) fn cut(datagram: &[u8], key: &FlowKey, size: usize) -> Vec<Vec<u8>> {
    let Ok(view) = SegmentView::parse(datagram) else {
        return vec![datagram.to_vec()];
    };
    let segment = view.segment();
    if segment.payload().len() <= size {
        return vec![datagram.to_vec()];
    }
    let ip = datagram.len() - segment.header_len() - segment.payload().len();
    let (client, server) = (key.client().ip(), key.server().ip());
    let last = segment.payload().len().div_ceil(size) - 1;
    let cut = |(index, payload): (usize, &[u8])| {
        let mut piece = datagram[..ip + segment.header_len()].to_vec();
        piece.extend_from_slice(payload);
        let len = u16::try_from(piece.len()).expect("short");
        match ip {
            20 => piece[2..4].copy_from_slice(&len.to_be_bytes()),
            _ => piece[4..6].copy_from_slice(&(len - 40).to_be_bytes()),
        }
        let seq = segment.seq() + u32::try_from(index * size).expect("short");
        piece[ip + 4..ip + 8].copy_from_slice(&seq.0.to_be_bytes());
        if index < last {
            piece[ip + 13] &= !Flags::FIN.bits();
        }
        let checksum = wire::checksum::tcp_checksum(client, server, &piece[ip..]);
        piece[ip + 16..ip + 18].copy_from_slice(&checksum.to_be_bytes());
        piece
    };
    segment
        .payload()
        .chunks(size)
        .enumerate()
        .map(cut)
        .collect()
}
