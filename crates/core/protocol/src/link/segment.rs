//! SEGMENT: a client's packet as it arrived, with what the connection's number implies replaced by
//! what the logger needs.
//!
//! | field of the packet | holds |
//! |---|---|
//! | IPv4: both addresses; IPv6: first half of the source | tag `u64`, little-endian |
//! | IPv6: the rest of both addresses | 0 |
//! | TTL, hop limit | [`SegmentFlags`] |
//! | IPv4: TOS; IPv6: traffic class | the agreed version of the link |
//! | IPv6: the highest 4 bits of the flow label | 0 |
//! | TCP ports | low 32 bits of the flow's number, little-endian |
//! | TCP urgent pointer | low 16 bits of the sequence number, big-endian |
//! | TCP window | [`heads_digest`] of where the newest head ended then, big-endian; of [`SegmentKind::Noted`] how far
//! the packet lies beyond [`SegmentView::noted`]; of [`SegmentKind::Doubted`] how far [`SegmentView::heard`] lies
//! beyond the acknowledgement number |
//!
//! **Copies that are left out.** A server with state writes notes of all that it has read, and the logger has
//! those. What is in them, or will be, need not be copied as well: the record of the connection's instream
//! then has holes that nothing fills. A segment of the kind [`SegmentKind::Noted`] says up to where there
//! may be some: what lies before that place the logger has in the notes, and the record need not.
//!
//! A *head* is the beginning of what the server says to a client, in the same form, as the client gets it:
//! cut to what one datagram carries, with the end of the head before it in the place of the
//! acknowledgement number ([`SegmentView::after`]), how many bytes it is to have in that of the window
//! (a packet that has more begins with some of the answer before: [`SegmentView::head`]), and always with the sum of
//! the pseudo-header in the place of its checksum, or what the kernel makes of that. Behind the payload stands how far
//! the client had sent when the answer began ([`SegmentView::asked`], big-endian).
//!
//! When a client has acknowledged all that it was sent, and that is more than what heads are recorded of, the logger
//! is told the digest of that ([`SegmentKind::Said`], [`SegmentView::said`]), for a host that takes over: in the place
//! of the payload, of the client's segment, with the same checksum as a head, nothing in the place of the window, and
//! how far the server's TCP has acknowledged in that of the acknowledgement number: what the client says from there on
//! the server has not had yet.
//!
//! The tag is that of 16 bytes: flow_id `u64`, base_seq `u32` (both little-endian), the flags, the version,
//! and what has the place of the window.
//!
//! The TCP checksum is that of the segment with ports, urgent pointer and window replaced and with
//! the pseudo-header of the original addresses; or, if the kernel had left it for later, the sum of
//! that pseudo-header alone. That of the IPv4 header is not kept up.
//!
//! **Cut on the way.** A packet that the network card or the kernel had joined from several may be
//! cut again by segmentation offload. The pieces then have sequence numbers, lengths, checksums
//! and flags of their own, and everything that was replaced is equal in all: the urgent pointer
//! says where the first piece began, which the tag covers ([`SegmentView::base_seq`]).

use wire::{FlowId, FlowKey, IpPacket, PROTOCOL_TCP, Segment, SeqNumber, WireError, checksum};

use super::head::u64_at;
use super::{KeySet, KeySlot, LinkError, LinkKey, Mode, VERSIONS};
use crate::Digest;

const KINDS: u8 = 7;
const UNFINISHED: u8 = 1 << 3;
const SLOT: u8 = 1 << 4;
/// The highest three bits hold the mode.
const MODE_SHIFT: u32 = 5;

// Offsets in an IPv4 header.
const V4_TOS: usize = 1;
const V4_TTL: usize = 8;
const V4_ADDRESSES: usize = 12;
// Offsets in an IPv6 header.
const V6_HOP_LIMIT: usize = 7;
const V6_ADDRESSES: usize = 8;
const V6_ADDRESSES_END: usize = 40;
const V6_HEADER: usize = 40;
// Offsets in a TCP header.
const PORTS: core::ops::Range<usize> = 0..4;
const ACKNOWLEDGMENT: core::ops::Range<usize> = 8..12;
const WINDOW: core::ops::Range<usize> = 14..16;
const CHECKSUM: core::ops::Range<usize> = 16..18;
const URGENT: core::ops::Range<usize> = 18..20;
/// Bytes behind the payload of a head.
const ASKED: usize = 4;
/// What a copy says of how far a client has sent is at most so much beyond what that was told.
const MOST_ASKED: u32 = (1 << 24) - 1;

/// What a SEGMENT is to the talk of client and server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentKind {
    /// The client had not heard everything that the server had said when it sent this.
    Plain = 0,
    /// It had: what is said next answers this, and is recorded as the head of an answer. But the server's
    /// TCP may have had this before.
    HeardAll = 1,
    /// The same, and the server's TCP waits for just this segment: what the server has sent ends at the
    /// acknowledgement number, what its TCP has acknowledged at the sequence number. (Without the second
    /// a request that the server has answered, and that is sent again because it was lost on the link,
    /// would look like one after that answer.)
    Turn = 2,
    /// As [`SegmentKind::Plain`], of a connection whose server notes what it reads: all that lies before
    /// [`SegmentView::noted`] the logger has in the server's notes.
    Noted = 4,
    /// Not the client's, but the server's: the head of an answer.
    Head = 5,
    /// The client's host of now is not the one that it has heard [`SegmentView::heard`] of: that one may have answered
    /// this already, and nobody has recorded the answer.
    Doubted = 6,
    /// Nothing that either says: the digest of what the client was sent, and has heard.
    Said = 7,
}

/// What the sender knew of the packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentFlags {
    /// The agreed version of the link. Not in the hop limit.
    pub version: u8,
    /// What it is.
    pub kind: SegmentKind,
    /// The kernel has left the checksum for later and vouches for the packet.
    pub unfinished: bool,
    /// The slot of the key that the tag was made with.
    pub slot: KeySlot,
}

impl SegmentFlags {
    /// The flags as in the hop limit.
    #[must_use]
    pub const fn byte(self) -> u8 {
        let mut byte = (Mode::Replay as u8) << MODE_SHIFT | self.kind as u8;
        if self.unfinished {
            byte |= UNFINISHED;
        }
        if matches!(self.slot, KeySlot::One) {
            byte |= SLOT;
        }
        byte
    }

    fn from_bytes(version: u8, byte: u8) -> Result<Self, LinkError> {
        if !VERSIONS.contains(version) {
            return Err(LinkError::UnknownVersion(version));
        }
        Mode::from_number(byte >> MODE_SHIFT)?;
        Ok(Self {
            version,
            kind: match byte & KINDS {
                0 => SegmentKind::Plain,
                1 => SegmentKind::HeardAll,
                2 => SegmentKind::Turn,
                4 => SegmentKind::Noted,
                5 => SegmentKind::Head,
                6 => SegmentKind::Doubted,
                7 => SegmentKind::Said,
                _ => return Err(LinkError::BadField("kind")),
            },
            unfinished: byte & UNFINISHED != 0,
            slot: if byte & SLOT == 0 {
                KeySlot::Zero
            } else {
                KeySlot::One
            },
        })
    }
}

/// What of a flow's number a SEGMENT tells: several flows may share it, the tag tells them apart.
#[must_use]
pub const fn flow_low(flow: FlowId) -> u32 {
    let [a, b, c, d, ..] = flow.0.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// A SEGMENT. It borrows the datagram. Nothing that it says is to be believed before
/// [`SegmentView::verify`] has found its flow and [`SegmentView::is_undamaged`] its payload whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentView<'a> {
    flags: SegmentFlags,
    tag: u64,
    flow_low: u32,
    base_seq: SeqNumber,
    transport: &'a [u8],
    segment: Segment<'a>,
}

impl<'a> SegmentView<'a> {
    /// Reads a datagram.
    ///
    /// # Errors
    ///
    /// [`LinkError`], if it is not an IP packet with a TCP segment in it, or its hop limit does not
    /// hold flags of a known version.
    pub fn parse(datagram: &'a [u8]) -> Result<Self, LinkError> {
        let packet = IpPacket::parse(datagram)?;
        let segment = Segment::of(&packet)?;
        // The packet has been parsed: its header is there.
        let (version, flags, tag) = if packet.source().is_ipv4() {
            let tag = u64_at(datagram, V4_ADDRESSES);
            (datagram[V4_TOS], datagram[V4_TTL], tag)
        } else {
            let class = datagram[0] << 4 | datagram[1] >> 4;
            let tag = u64_at(datagram, V6_ADDRESSES);
            (class, datagram[V6_HOP_LIMIT], tag)
        };
        let flags = SegmentFlags::from_bytes(version, flags)?;
        let transport = packet.payload();
        let mut ports = [0; 4];
        ports.copy_from_slice(&transport[PORTS]);
        Ok(Self {
            flags,
            tag,
            flow_low: u32::from_le_bytes(ports),
            base_seq: base_of(segment.seq(), segment.urgent()),
            transport,
            segment,
        })
    }

    /// What the sender knew of the packet.
    #[must_use]
    pub const fn flags(&self) -> SegmentFlags {
        self.flags
    }

    /// The low 32 bits of the flow's number.
    #[must_use]
    pub const fn flow_low(&self) -> u32 {
        self.flow_low
    }

    /// The sequence number of the packet of which this may be a piece.
    #[must_use]
    pub const fn base_seq(&self) -> SeqNumber {
        self.base_seq
    }

    /// Of a head: where the one before it ended, of what the server has sent; its first byte's number, if
    /// it is the first. Of a [`SegmentKind::Said`]: how far the server's TCP has acknowledged. (The client's
    /// acknowledgement number, in any other.)
    #[must_use]
    pub fn after(&self) -> SeqNumber {
        self.segment.ack()
    }

    /// Of a head: where it begins, what there is of it, and how many bytes come later by another way. A server that
    /// says again what its client has, and then what it has not, may have both in one packet: the head is what that
    /// ends with.
    #[must_use]
    pub fn head(&self) -> (SeqNumber, &'a [u8], u32) {
        let whole = self.segment.window();
        let payload = self.segment.payload();
        let kept = payload.len().saturating_sub(ASKED);
        let payload = &payload[..kept];
        let skip = payload.len().saturating_sub(usize::from(whole));
        let head = &payload[skip..];
        // No packet is longer than 64 KiB.
        let length = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        let more = u32::from(whole).saturating_sub(length(head.len()));
        (self.segment.seq() + length(skip), head, more)
    }

    /// Of a head: how far its client had sent when the answer began, or more that the logger has by now. `None`: it is
    /// no head.
    #[must_use]
    pub fn asked(&self) -> Option<SeqNumber> {
        let is_head = matches!(self.flags.kind, SegmentKind::Head);
        let (_, asked) = self.segment.payload().split_last_chunk::<ASKED>()?;
        is_head.then_some(SeqNumber(u32::from_be_bytes(*asked)))
    }

    /// Of a [`SegmentKind::Doubted`]: what its client has heard of a host that is dead ends there, or somewhat later.
    #[must_use]
    pub fn heard(&self) -> Option<SeqNumber> {
        let is_doubted = matches!(self.flags.kind, SegmentKind::Doubted);
        is_doubted.then(|| self.segment.ack() + u32::from(self.segment.window()))
    }

    /// Of a [`SegmentKind::Said`]: the digest.
    #[must_use]
    pub fn said(&self) -> Option<Digest> {
        let is_said = matches!(self.flags.kind, SegmentKind::Said);
        let digest = self.segment.payload().try_into().ok()?;
        is_said.then(|| Digest::from_bytes(digest))
    }

    /// Of a client's segment that is neither [`SegmentKind::Noted`] nor [`SegmentKind::Doubted`]: [`heads_digest`] of
    /// where the newest head ended when it came.
    #[must_use]
    pub fn heads(&self) -> u16 {
        self.segment.window()
    }

    /// Of a [`SegmentKind::Noted`]: all that its client has sent before this the logger has in the server's
    /// notes. It lies before the whole packet of which this may be a piece, by less than 64 KiB, or at its beginning.
    #[must_use]
    pub fn noted(&self) -> Option<SeqNumber> {
        let is_noted = matches!(self.flags.kind, SegmentKind::Noted);
        is_noted.then(|| self.base_seq - u32::from(self.segment.window()))
    }

    /// The segment. Its ports, its urgent pointer and its window are not those of the client.
    #[must_use]
    pub const fn segment(&self) -> &Segment<'a> {
        &self.segment
    }

    /// Whether this is of the flow with this number, from who knows one of `keys`. The payload is
    /// not covered.
    #[must_use]
    pub fn verify(&self, keys: &KeySet, flow: FlowId) -> bool {
        let signed = signed(flow, self.base_seq, self.flags, self.segment.window());
        flow_low(flow) == self.flow_low && keys.verify(self.flags.slot, &signed, self.tag)
    }

    /// Whether the server's TCP takes it for whole, too: it drops what has a wrong checksum, and
    /// the record must not hold other bytes than the server got. `key` has the addresses that
    /// were replaced.
    #[must_use]
    pub fn is_undamaged(&self, key: &FlowKey) -> bool {
        let (client, server) = (key.client().ip(), key.server().ip());
        let len = u32::try_from(self.transport.len()).unwrap_or(u32::MAX);
        let pseudo = checksum::pseudo_header(client, server, PROTOCOL_TCP, len);
        let left_for_later =
            self.flags.unfinished && self.segment.checksum() == checksum::fold(pseudo);
        left_for_later || checksum::fold(pseudo + checksum::sum(self.transport)) == u16::MAX
    }
}

/// What tells one end of the heads from another, if one of them is missing: positions that are a power of
/// two apart, as the answers of a server may be, have different ones.
#[must_use]
pub const fn heads_digest(end: SeqNumber) -> u16 {
    const ODD: u32 = 0x9e37_79b1; // as far from a pattern as the golden ratio is
    let [high, low, ..] = end.0.wrapping_mul(ODD).to_be_bytes();
    u16::from_be_bytes([high, low])
}

/// Where the packet began whose pieces have `low` in their urgent pointers, and one of them `seq`.
/// No packet that is cut is longer than 64 KiB.
fn base_of(seq: SeqNumber, low: u16) -> SeqNumber {
    seq - u32::from(low_half(seq.0).wrapping_sub(low))
}

const fn low_half(number: u32) -> u16 {
    let [_, _, a, b] = number.to_be_bytes();
    u16::from_be_bytes([a, b])
}

/// What the tag covers.
fn signed(flow: FlowId, base_seq: SeqNumber, flags: SegmentFlags, window: u16) -> [u8; 16] {
    let mut signed = [0; 16];
    signed[..8].copy_from_slice(&flow.0.to_le_bytes());
    signed[8..12].copy_from_slice(&base_seq.0.to_le_bytes());
    signed[12] = flags.byte();
    signed[13] = flags.version;
    signed[14..].copy_from_slice(&window.to_be_bytes());
    signed
}

/// Appends to `out` the SEGMENT of a client's `packet`, as the programs in the kernel make it: for
/// whoever stands in for them. `place` is where the newest head ended or, of a [`SegmentKind::Noted`], what
/// [`SegmentView::noted`] is to be: not after the packet, and less than 64 KiB before it; or, of a
/// [`SegmentKind::Doubted`], what [`SegmentView::heard`] is to be: not before the acknowledgement number. `key` is the
/// one in the slot of `flags`; with `unfinished` the checksum of the packet is taken for a pseudo-header's sum. Bytes
/// behind the packet are left out.
///
/// # Errors
///
/// If it is not a TCP packet; nothing is appended.
pub fn seal(
    packet: &[u8],
    flow: FlowId,
    (flags, place): (SegmentFlags, SeqNumber),
    key: &LinkKey,
    out: &mut Vec<u8>,
) -> Result<(), WireError> {
    let window = match flags.kind {
        SegmentKind::Noted => {
            let base_seq = Segment::of(&IpPacket::parse(packet)?)?.seq();
            low_half(base_seq.0.wrapping_sub(place.0))
        }
        SegmentKind::Doubted => {
            let ack = Segment::of(&IpPacket::parse(packet)?)?.ack();
            u16::try_from(place.0.wrapping_sub(ack.0)).unwrap_or(u16::MAX)
        }
        _ => heads_digest(place),
    };
    replaced(packet, flow, (flags, window), key, out)
}

fn replaced(
    packet: &[u8],
    flow: FlowId,
    (flags, window): (SegmentFlags, u16),
    key: &LinkKey,
    out: &mut Vec<u8>,
) -> Result<(), WireError> {
    let ip = IpPacket::parse(packet)?;
    let base_seq = Segment::of(&ip)?.seq();
    let tag = key
        .tag(&signed(flow, base_seq, flags, window))
        .to_le_bytes();
    let start = out.len();
    out.extend_from_slice(&packet[..ip.total_len()]);
    let (header, transport) = out[start..].split_at_mut(ip.header_len());
    if ip.source().is_ipv4() {
        header[V4_TOS] = flags.version;
        header[V4_TTL] = flags.byte();
        header[V4_ADDRESSES..][..tag.len()].copy_from_slice(&tag);
    } else {
        header[0] = 6 << 4 | flags.version >> 4;
        header[1] = flags.version << 4;
        header[V6_HOP_LIMIT] = flags.byte();
        header[V6_ADDRESSES..V6_ADDRESSES_END].fill(0);
        header[V6_ADDRESSES..][..tag.len()].copy_from_slice(&tag);
    }
    let low = low_half(base_seq.0).to_be_bytes();
    replace(transport, PORTS, &flow_low(flow).to_le_bytes(), flags);
    replace(transport, URGENT, &low, flags);
    replace(transport, WINDOW, &window.to_be_bytes(), flags);
    Ok(())
}

/// What a head says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Where the one before it ended.
    pub after: SeqNumber,
    /// How many bytes of the packet are kept: it ends with those.
    pub keep: u16,
    /// How many bytes it is to have, with those that come later by another way.
    pub whole: u16,
    /// How far the client had sent when the answer began. What is before the packet's acknowledgement number, or far
    /// behind it, is not told: it becomes that number, or 16 MiB more.
    pub asked: SeqNumber,
}

impl Head {
    /// What a copy says that is none.
    #[must_use]
    pub const fn of(place: SeqNumber) -> Self {
        Self {
            after: place,
            keep: 0,
            whole: 0,
            asked: SeqNumber(0),
        }
    }
}

/// What a copy is signed with.
#[derive(Debug, Clone, Copy)]
pub struct Signer<'a> {
    /// The agreed version of the link.
    pub version: u8,
    /// The slot of the key.
    pub slot: KeySlot,
    /// The key.
    pub key: &'a LinkKey,
}

impl Signer<'_> {
    const fn flags(&self, kind: SegmentKind) -> SegmentFlags {
        SegmentFlags {
            version: self.version,
            kind,
            unfinished: true,
            slot: self.slot,
        }
    }
}

/// Appends to `out` the SEGMENT of the head of an answer, with which the beginning of the payload of the
/// server's `packet` ends. As [`seal`].
///
/// # Errors
///
/// If it is not a TCP packet; nothing is appended.
pub fn seal_head(
    packet: &[u8],
    flow: FlowId,
    head: Head,
    signer: Signer<'_>,
    out: &mut Vec<u8>,
) -> Result<(), WireError> {
    let ack = Segment::of(&IpPacket::parse(packet)?)?.ack();
    let ahead = head.asked.distance_from(ack).unwrap_or(0);
    let asked = (ack + ahead.min(MOST_ASKED)).0.to_be_bytes();
    let cut = cut(packet, head.keep.into(), &asked, head.after)?;
    let flags = signer.flags(SegmentKind::Head);
    replaced(&cut, flow, (flags, head.whole), signer.key, out)
}

/// Appends to `out` the SEGMENT that tells a digest, made of the client's `packet` that has acknowledged all before the
/// digest's end; the server's TCP has acknowledged up to `heard`. As [`seal`].
///
/// # Errors
///
/// If it is not a TCP packet; nothing is appended.
pub fn seal_said(
    packet: &[u8],
    flow: FlowId,
    (said, heard): (Digest, SeqNumber),
    signer: Signer<'_>,
    out: &mut Vec<u8>,
) -> Result<(), WireError> {
    let cut = cut(packet, 0, &said.to_bytes(), heard)?;
    let flags = signer.flags(SegmentKind::Said);
    replaced(&cut, flow, (flags, 0), signer.key, out)
}

/// A packet with this acknowledgement number, of whose payload so many bytes are kept, with others behind those; its
/// checksum is the pseudo-header's sum.
fn cut(packet: &[u8], keep: usize, behind: &[u8], ack: SeqNumber) -> Result<Vec<u8>, WireError> {
    let ip = IpPacket::parse(packet)?;
    let header = ip.header_len() + ip.payload_len() - Segment::of(&ip)?.payload().len();
    let len = ip.total_len().min(header + keep);
    let mut cut = [&packet[..len], behind].concat();
    let len = cut.len();
    let v4 = ip.source().is_ipv4();
    let (at, counted) = if v4 { (2, len) } else { (4, len - V6_HEADER) };
    // It was about as long, and that fitted.
    let counted = u16::try_from(counted).unwrap_or(u16::MAX);
    cut[at..at + 2].copy_from_slice(&counted.to_be_bytes());
    let transport = &mut cut[ip.header_len()..];
    let length = u32::try_from(transport.len()).unwrap_or(u32::MAX);
    let pseudo = checksum::pseudo_header(ip.source(), ip.destination(), PROTOCOL_TCP, length);
    transport[ACKNOWLEDGMENT].copy_from_slice(&ack.0.to_be_bytes());
    transport[CHECKSUM].copy_from_slice(&checksum::fold(pseudo).to_be_bytes());
    Ok(cut)
}

/// Overwrites a field of the TCP header and carries the change into the checksum, if it is one.
fn replace(transport: &mut [u8], at: core::ops::Range<usize>, new: &[u8], flags: SegmentFlags) {
    if !flags.unfinished {
        let old = u16::from_be_bytes([transport[CHECKSUM.start], transport[CHECKSUM.start + 1]]);
        let updated = checksum::update_bytes(old, &transport[at.clone()], new);
        transport[CHECKSUM].copy_from_slice(&updated.to_be_bytes());
    }
    transport[at].copy_from_slice(new);
}
