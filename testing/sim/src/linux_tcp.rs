//! TCP behaviour of Linux that smoltcp 0.12 lacks.
//!
//! * smoltcp has no persist timer: a lost window update stops a connection for ever. In some states
//!   smoltcp also forgets the retransmission timer. After a silence a host therefore sends what Linux
//!   sends as a probe: an empty segment one before SND.UNA, whose answer tells the window. With data in
//!   flight and no progress, the stack also receives the last acknowledgement three times more, which
//!   makes the stack retransmit. In CLOSE-WAIT and LAST-ACK each acknowledgement stops the
//!   retransmission timer: there the same happens while the other side asks again and again.
//! * Acknowledgements in retransmissions carry the number of the retransmitted data instead of SND.NXT
//!   (RFC 9293 3.4), and the other side may refuse them. They are corrected here.
//! * A segment beyond the announced window makes smoltcp lose the bytes before a FIN, or the head of the
//!   segment. (With a window scale an honest sender may send such a segment, RFC 7323 2.4.) The segment
//!   is cut here.
//! * smoltcp takes the window back by less than the scale rounds off (Linux rounds up), and then ignores
//!   a peer that has sent that much. Such a segment is moved to the edge.
//! * smoltcp echoes the timestamp of a segment before the window, and an older timestamp after a newer
//!   one if segments have overtaken each other (RFC 7323 4.3 does neither). The echo is corrected here: a
//!   host that has seen the newest echo believes no older one.
//! * smoltcp overlooks a FIN behind bytes that it has. The bytes are cut off, too.

use std::{collections::BTreeMap, net::SocketAddr};

use smoltcp::{iface::SocketSet, socket::tcp::State};
use wire::{
    ChecksumMode, Flags, IpPacket, Segment, SegmentMut, SegmentSpec, SeqNumber, SynOptions,
    Timestamps, kind,
};

use crate::{MS, SECOND, host::ends, length32};

/// Silence before a probe, ns.
const PROBE_AFTER: u64 = 2 * SECOND;

/// The known state of a connection.
#[derive(Debug, Default)]
struct Known {
    first: SeqNumber,
    /// Both sides scale windows.
    scaled: bool,
    /// The newest acknowledgement from the other side.
    una: Option<SeqNumber>,
    una_at: u64,
    /// The window in that acknowledgement.
    peer_window: u16,
    /// End of the data that this host has sent.
    nxt: Option<SeqNumber>,
    /// Acknowledgement, window and timestamps that we sent last.
    ack: Option<SeqNumber>,
    window: u16,
    stamps: Option<Timestamps>,
    said_at: u64,
    probe_at: u64,
    /// When the stack is told the last acknowledgement again, if something is in flight.
    again_at: u64,
    /// The other side has repeated data.
    is_asked: bool,
}

/// The packets to send.
#[derive(Debug, Default)]
pub(crate) struct Due {
    /// To the other side.
    pub(crate) out: Vec<Vec<u8>>,
    /// To the host's own stack, as if sent by the other side.
    pub(crate) back: Vec<Vec<u8>>,
}

/// The connections of a host.
#[derive(Debug, Default)]
pub(crate) struct LinuxTcp(BTreeMap<(SocketAddr, SocketAddr), Known>);

/// A segment that is for us.
pub(crate) struct ReceivedSegment {
    /// The segment is a SYN without ACK.
    pub(crate) syn: bool,
    /// A socket has this connection.
    pub(crate) known: bool,
    /// Sequence numbers beyond the window that the other side last received.
    pub(crate) excess: u32,
    /// The distance of the segment's start beyond that window, where an earlier window may have been taken back.
    pub(crate) beyond: u32,
    /// Acknowledged sequence numbers before a FIN.
    pub(crate) stale: u32,
}

impl LinuxTcp {
    /// Inspects an arriving packet. `None`: the packet is no segment.
    pub(crate) fn inspect(
        &mut self,
        packet: &[u8],
        sockets: &SocketSet<'_>,
        now: u64,
    ) -> Option<ReceivedSegment> {
        let packet = IpPacket::parse(packet).ok()?;
        let segment = Segment::of(&packet).ok()?;
        let remote = SocketAddr::new(packet.source(), segment.source_port());
        let local = SocketAddr::new(packet.destination(), segment.destination_port());
        let socket = sockets.iter().find_map(|(_, socket)| {
            let smoltcp::socket::Socket::Tcp(socket) = socket;
            (ends(socket) == Some((local, remote))).then_some(socket)
        });
        let syn = segment.flags().contains(Flags::SYN);
        let ack = segment.flags().contains(Flags::ACK);
        if syn && socket.is_none_or(|socket| socket.state() == State::SynSent) {
            let known = Known {
                first: segment.seq() + 1,
                scaled: SynOptions::parse(segment.option_bytes())
                    .window_scale
                    .is_some(),
                probe_at: now + PROBE_AFTER,
                ..Known::default()
            };
            self.0.insert((local, remote), known);
        }
        let (mut edge, mut ours, mut beyond) = (None, None, 0);
        if let (Some(socket), Some(known)) = (socket, self.0.get_mut(&(local, remote))) {
            known.probe_at = now + PROBE_AFTER;
            // A segment before the window only tells that the other side asks.
            let old = known.ack.is_some_and(|ours| !segment.end_seq().after(ours));
            let asks = old && segment.sequence_len() > 0;
            known.is_asked = asks;
            if ack && !asks && known.una.is_none_or(|una| !segment.ack().before(una)) {
                known.peer_window = segment.window();
                if known.una != Some(segment.ack()) {
                    known.una = Some(segment.ack());
                    known.una_at = now;
                    known.again_at = now + PROBE_AFTER;
                }
            }
            let (told, shift) = (
                known.edge(socket.recv_capacity()),
                known.shift(socket.recv_capacity()),
            );
            let behind = segment.seq().distance_from(told);
            beyond = behind.filter(|behind| behind >> shift == 0).unwrap_or(0);
            edge = Some(told);
            ours = known.ack.filter(|_| segment.flags().contains(Flags::FIN));
        }
        Some(ReceivedSegment {
            syn: syn && !ack,
            known: socket.is_some(),
            excess: edge
                .and_then(|edge| segment.end_seq().distance_from(edge))
                .unwrap_or(0),
            beyond,
            stale: ours
                .filter(|ours| segment.end_seq().after(*ours))
                .and_then(|ours| ours.distance_from(segment.seq()))
                .unwrap_or(0),
        })
    }

    /// The stack has sent a packet.
    pub(crate) fn note_sent(&mut self, bytes: &mut [u8], now: u64) {
        let Ok(packet) = IpPacket::parse(bytes) else {
            return;
        };
        let header_len = packet.header_len();
        let Ok(segment) = Segment::of(&packet) else {
            return;
        };
        let local = SocketAddr::new(packet.source(), segment.source_port());
        let remote = SocketAddr::new(packet.destination(), segment.destination_port());
        let empty = !segment.flags().contains(Flags::SYN) && !segment.flags().contains(Flags::RST);
        if let (true, Some(known)) = (empty, self.0.get_mut(&(local, remote))) {
            known.ack = Some(segment.ack());
            known.window = segment.window();
            let nxt = known
                .nxt
                .map_or(segment.end_seq(), |nxt| nxt.max_seq(segment.end_seq()));
            if !known.in_flight() {
                known.again_at = now + PROBE_AFTER;
            }
            known.nxt = Some(nxt);
            let answers = std::mem::take(&mut known.is_asked) && segment.sequence_len() == 0;
            let before = known.stamps.map(|stamps| SeqNumber(stamps.echo));
            known.stamps = segment.timestamps().map(|stamps| {
                let echo = SeqNumber(stamps.echo);
                let echo = before.map_or(echo, |before| match answers {
                    true => before,
                    false => before.max_seq(echo),
                });
                Timestamps {
                    echo: echo.0,
                    ..stamps
                }
            });
            let stamps = known.stamps;
            known.said_at = now;
            known.probe_at = known.probe_at.max(now + PROBE_AFTER / 2);
            let rewound = segment.sequence_len() == 0 && segment.seq().before(nxt);
            if let Ok(mut segment) = SegmentMut::parse(&mut bytes[header_len..], ChecksumMode::Full)
            {
                if let Some(stamps) = stamps {
                    segment.edit_options(|options| {
                        wire::replace_timestamps(options, stamps.value, stamps.echo)
                    });
                }
                if rewound {
                    segment.set_seq(nxt);
                }
            }
        }
    }

    /// The probes that are due, for the other side and for the stack itself; connections without a
    /// socket are forgotten.
    pub(crate) fn send(&mut self, sockets: &SocketSet<'_>, now: u64) -> Due {
        if self.due().is_none_or(|due| now < due) {
            return Due::default();
        }
        let mut alive = BTreeMap::new();
        for (_, socket) in sockets.iter() {
            let smoltcp::socket::Socket::Tcp(socket) = socket;
            if let Some(ends) = ends(socket) {
                alive.insert(ends, socket.state());
            }
        }
        self.0.retain(|ends, _| alive.contains_key(ends));
        let mut probes = Due::default();
        for ((local, remote), known) in &mut self.0 {
            if now < known.due() {
                continue;
            }
            let state = alive.get(&(*local, *remote));
            let open = !matches!(
                state,
                None | Some(State::SynSent | State::SynReceived | State::TimeWait | State::Closed)
            );
            let forgets = matches!(state, Some(State::CloseWait | State::LastAck));
            let unmoved = now >= known.again_at;
            if unmoved {
                known.again_at = now + PROBE_AFTER;
            }
            let silent = now >= known.probe_at;
            if silent {
                known.probe_at = now + PROBE_AFTER;
            }
            let (true, Some(una)) = (open, known.una) else {
                continue;
            };
            if silent {
                probes.out.extend(known.probe(*local, *remote, una, now));
            }
            if known.in_flight()
                && (forgets && unmoved || silent && now >= known.una_at + PROBE_AFTER)
            {
                probes.back.extend(known.repeated(*local, *remote, una));
            }
        }
        probes
    }

    pub(crate) fn due(&self) -> Option<u64> {
        self.0.values().map(Known::due).min()
    }
}

impl Known {
    /// When there may be something to send.
    fn due(&self) -> u64 {
        match self.in_flight() {
            true => self.probe_at.min(self.again_at),
            false => self.probe_at,
        }
    }

    /// Something that was sent is not acknowledged yet.
    fn in_flight(&self) -> bool {
        let flight = self.nxt.zip(self.una);
        flight.is_some_and(|(nxt, una)| nxt.after(una))
    }

    /// The right edge of the window that the other side was told; in the handshake, of the
    /// buffer, which is `capacity` bytes.
    fn edge(&self, capacity: usize) -> SeqNumber {
        let Some(ack) = self.ack else {
            return self.first + length32(capacity.min(65_535));
        };
        ack + (u32::from(self.window) << self.shift(capacity))
    }

    /// The window shift that smoltcp chooses: the bits of the buffer's size beyond 16.
    fn shift(&self, capacity: usize) -> u32 {
        let bits = usize::BITS - capacity.leading_zeros();
        if self.scaled {
            bits.saturating_sub(16)
        } else {
            0
        }
    }

    fn probe(
        &self,
        local: SocketAddr,
        remote: SocketAddr,
        una: SeqNumber,
        now: u64,
    ) -> Option<Vec<u8>> {
        let mut options = Vec::new();
        if let Some(stamps) = self.stamps {
            let passed = u32::try_from(now / MS - self.said_at / MS).unwrap_or(u32::MAX);
            options.extend([1, 1, kind::TIMESTAMPS, 10]); // RFC 7323 appendix A
            options.extend(stamps.value.wrapping_add(passed).to_be_bytes());
            options.extend(stamps.echo.to_be_bytes());
        }
        pure_ack(local, remote, (una - 1, self.ack?), self.window, &options)
    }

    /// The last acknowledgement: first with another window, which is no duplicate, then with the right window, and
    /// three duplicates.
    fn repeated(&self, local: SocketAddr, remote: SocketAddr, una: SeqNumber) -> Vec<Vec<u8>> {
        let Some(ack) = self.ack else {
            return Vec::new();
        };
        let window = self.peer_window;
        let windows = [window.wrapping_add(1), window, window, window, window];
        let acks = windows
            .iter()
            .map(|window| pure_ack(remote, local, (ack, una), *window, &[]));
        acks.flatten().collect()
    }
}

fn pure_ack(
    source: SocketAddr,
    destination: SocketAddr,
    (seq, ack): (SeqNumber, SeqNumber),
    window: u16,
    options: &[u8],
) -> Option<Vec<u8>> {
    let mut packet = Vec::new();
    let flags = Flags::ACK;
    let segment = SegmentSpec {
        source,
        destination,
        seq,
        ack,
        flags,
        window,
        options,
        payload: &[],
    };
    segment.emit(&mut packet, ChecksumMode::Full).ok()?;
    Some(packet)
}
