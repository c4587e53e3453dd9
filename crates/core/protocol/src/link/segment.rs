//! SEGMENT: a client's packet as it arrived. Fields that the number of the connection implies carry
//! data for the logger instead.
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
//! | TCP window | [`heads_digest`] of the end of the newest head at that time, big-endian |
//! | TCP window of [`SegmentKind::Noted`] | the distance from [`SegmentView::noted`] to the packet |
//! | TCP window of [`SegmentKind::Doubted`] | the distance from the acknowledgement number to [`SegmentView::heard`] |
//!
//! **Copies that are left out.** A server with state logs determinants of all input that the server
//! reads. The logger need not get the same bytes a second time, so the sender may leave out
//! mirrored segments. The record of the instream then has gaps that no packet fills. A segment of
//! the kind [`SegmentKind::Noted`] names the end of such gaps: the determinants at the logger have
//! every byte before that place.
//!
//! A *head* is the beginning of a response, in the same form and in the client's sequence space.
//! The sender cuts the head to the size of one datagram. Fields have another meaning in a head:
//!
//! - acknowledgement number: the end of the previous head ([`SegmentView::after`])
//! - window: the length of the whole head. A packet with more bytes begins with a part of the previous response
//!   ([`SegmentView::head`])
//! - checksum: the sum of the pseudo-header, or the checksum that the kernel makes of that sum
//! - behind the payload: the end of the client's data when the response began ([`SegmentView::asked`], big-endian)
//!
//! A digest of the outstream ([`SegmentKind::Said`], [`SegmentView::said`]) is for a host that
//! takes over. The sender sends the digest when the client has acknowledged the whole outstream,
//! and the outstream is longer than the heads. The datagram is a client's segment with the digest
//! as payload, the checksum of a head and window 0. The acknowledgement number is that of the
//! server's TCP: later input has not reached the server.
//!
//! The tag covers 16 bytes: flow_id `u64`, base_seq `u32` (both little-endian), the flags, the
//! version, and the content of the window field.
//!
//! The TCP checksum is correct for the segment with the replaced ports, urgent pointer and window
//! and with the pseudo-header of the original addresses. If the kernel had deferred the checksum,
//! the field holds the sum of that pseudo-header alone. The checksum of the IPv4 header is not
//! updated.
//!
//! **Cut on the way.** Segmentation offload may cut a packet that the network card or the kernel
//! had joined. Each piece then has a sequence number, length, checksum and flags of that piece. All
//! replaced fields are equal in all pieces. The urgent pointer tells the beginning of the first
//! piece, which the tag covers ([`SegmentView::base_seq`]).

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
/// Limit of [`Head::asked`] beyond the packet's acknowledgement number, in bytes.
const MOST_ASKED: u32 = (1 << 24) - 1;

/// Role of a SEGMENT between client and server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentKind {
    /// The client had not acknowledged the whole outstream.
    Plain = 0,
    /// The client had acknowledged the whole outstream. The next output is a response to this
    /// segment, and the response head is recorded. But the server's TCP may have had this segment
    /// before.
    HeardAll = 1,
    /// As [`SegmentKind::HeardAll`], and the server's TCP expects exactly this segment: the
    /// outstream ends at the acknowledgement number, and the server's TCP has acknowledged up to
    /// the sequence number. Without the second condition, a retransmission of a request that was
    /// lost on the link would look like a new request after the response.
    Turn = 2,
    /// As [`SegmentKind::Plain`], of a connection whose server logs determinants of reads. The
    /// determinants at the logger have all input before [`SegmentView::noted`].
    Noted = 4,
    /// Not the client's, but the server's: the head of an answer.
    Head = 5,
    /// The serving host is not the host whose output reaches up to [`SegmentView::heard`]. The
    /// former host may have answered this segment already, and no logger has recorded the response.
    Doubted = 6,
    /// No input: the digest of the outstream that the client has acknowledged.
    Said = 7,
}

/// Facts about the packet that only the sender knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentFlags {
    /// The agreed version of the link. Not in the hop limit.
    pub version: u8,
    /// Role of the segment.
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

/// The part of a flow's number that a SEGMENT carries. Several flows may share the low half; the
/// tag distinguishes the flows.
#[must_use]
pub const fn flow_low(flow: FlowId) -> u32 {
    let [a, b, c, d, ..] = flow.0.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// A SEGMENT, borrowed from the datagram. Do not trust any field before [`SegmentView::verify`] has
/// found the flow and [`SegmentView::is_undamaged`] has checked the payload.
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
    /// Parses a datagram.
    ///
    /// # Errors
    ///
    /// [`LinkError`], if the datagram is not an IP packet with a TCP segment, or if the
    /// flags are not those of a known version.
    pub fn parse(datagram: &'a [u8]) -> Result<Self, LinkError> {
        let packet = IpPacket::parse(datagram)?;
        let segment = Segment::of(&packet)?;
        // `IpPacket::parse` has checked the length of the header.
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

    /// Facts about the packet that only the sender knows.
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

    /// The acknowledgement number. Of a head: the end of the previous head in the outstream, or the
    /// sequence number of the first byte if no head came before. Of a [`SegmentKind::Said`]: the
    /// acknowledgement of the server's TCP. Of any other kind: the client's acknowledgement number.
    #[must_use]
    pub fn after(&self) -> SeqNumber {
        self.segment.ack()
    }

    /// Of a head: begin, bytes in this datagram, and number of bytes that come later by another
    /// way. A replaying server may have repeated output and new output in one packet: the head is
    /// the last part of such a packet.
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

    /// Of a head: the end of the client's data when the response began, or a later position that
    /// the logger has by now. `None` for other kinds.
    #[must_use]
    pub fn asked(&self) -> Option<SeqNumber> {
        let is_head = matches!(self.flags.kind, SegmentKind::Head);
        let (_, asked) = self.segment.payload().split_last_chunk::<ASKED>()?;
        is_head.then_some(SeqNumber(u32::from_be_bytes(*asked)))
    }

    /// Of a [`SegmentKind::Doubted`]: the client has acknowledged output of a dead host up to here
    /// or somewhat further.
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

    /// Of a client's segment that is neither [`SegmentKind::Noted`] nor [`SegmentKind::Doubted`]:
    /// [`heads_digest`] of the end of the newest head when the segment came.
    #[must_use]
    pub fn heads(&self) -> u16 {
        self.segment.window()
    }

    /// Of a [`SegmentKind::Noted`]: the determinants at the logger have all input before this
    /// position. The position is at most 64 KiB − 1 before the beginning of the whole packet, of
    /// which this segment may be a piece.
    #[must_use]
    pub fn noted(&self) -> Option<SeqNumber> {
        let is_noted = matches!(self.flags.kind, SegmentKind::Noted);
        is_noted.then(|| self.base_seq - u32::from(self.segment.window()))
    }

    /// The segment. Ports, urgent pointer and window are not those of the client.
    #[must_use]
    pub const fn segment(&self) -> &Segment<'a> {
        &self.segment
    }

    /// Whether this segment belongs to the flow and comes from a holder of a key in `keys`. The tag
    /// does not cover the payload.
    #[must_use]
    pub fn verify(&self, keys: &KeySet, flow: FlowId) -> bool {
        let signed = signed(flow, self.base_seq, self.flags, self.segment.window());
        flow_low(flow) == self.flow_low && keys.verify(self.flags.slot, &signed, self.tag)
    }

    /// Whether the server's TCP accepts the checksum, too: TCP drops a segment with a wrong
    /// checksum, and the record must hold the same bytes as the server. `key` has the addresses
    /// that were replaced.
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

/// Hash of the end of the newest head, to detect a missing head. Positions that are a power of two
/// apart, as responses of a server may be, have different hashes.
#[must_use]
pub const fn heads_digest(end: SeqNumber) -> u16 {
    const ODD: u32 = 0x9e37_79b1; // as far from a pattern as the golden ratio is
    let [high, low, ..] = end.0.wrapping_mul(ODD).to_be_bytes();
    u16::from_be_bytes([high, low])
}

/// Begin of the packet whose pieces carry `low` in the urgent pointer; `seq` is the sequence number
/// of a piece. No packet that is cut is longer than 64 KiB.
fn base_of(seq: SeqNumber, low: u16) -> SeqNumber {
    seq - u32::from(low_half(seq.0).wrapping_sub(low))
}

const fn low_half(number: u32) -> u16 {
    let [_, _, a, b] = number.to_be_bytes();
    u16::from_be_bytes([a, b])
}

/// The bytes that the tag covers.
fn signed(flow: FlowId, base_seq: SeqNumber, flags: SegmentFlags, window: u16) -> [u8; 16] {
    let mut signed = [0; 16];
    signed[..8].copy_from_slice(&flow.0.to_le_bytes());
    signed[8..12].copy_from_slice(&base_seq.0.to_le_bytes());
    signed[12] = flags.byte();
    signed[13] = flags.version;
    signed[14..].copy_from_slice(&window.to_be_bytes());
    signed
}

/// Appends to `out` the SEGMENT of a client's `packet`, as the programs in the kernel make a
/// SEGMENT: for a stand-in of the programs. Bytes behind the packet are left out. `key` is the key
/// in the slot of `flags`. With `unfinished`, the checksum of the packet counts as the sum of a
/// pseudo-header. The meaning of `place` depends on the kind:
///
/// - [`SegmentKind::Noted`]: [`SegmentView::noted`], not after the packet and less than 64 KiB before the packet
/// - [`SegmentKind::Doubted`]: [`SegmentView::heard`], not before the acknowledgement number
/// - otherwise: the end of the newest head
///
/// # Errors
///
/// If `packet` is not a TCP packet; nothing is appended.
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

/// Fields of the head of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// End of the previous head.
    pub after: SeqNumber,
    /// Number of payload bytes of the packet that are kept: the head ends with the last kept byte.
    pub keep: u16,
    /// Length of the whole head, with the bytes that come later by another way.
    pub whole: u16,
    /// End of the client's data when the response began. A position before the packet's
    /// acknowledgement number becomes that number; a position more than 16 MiB beyond becomes that
    /// number plus 16 MiB − 1.
    pub asked: SeqNumber,
}

impl Head {
    /// The fields of a segment that is no head.
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

/// Key and version for the tag of a SEGMENT.
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

/// Appends to `out` the SEGMENT of the head of a response: the kept part of the payload of the
/// server's `packet` ends with the head. As [`seal`].
///
/// # Errors
///
/// If `packet` is not a TCP packet; nothing is appended.
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

/// Appends to `out` the SEGMENT of a digest, made of the client's `packet` that has acknowledged
/// all output before the end of the digest. The server's TCP has acknowledged up to `heard`. As
/// [`seal`].
///
/// # Errors
///
/// If `packet` is not a TCP packet; nothing is appended.
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

/// The packet with the first `keep` bytes of the payload, followed by `behind`, with
/// acknowledgement number `ack`. The checksum is the sum of the pseudo-header.
fn cut(packet: &[u8], keep: usize, behind: &[u8], ack: SeqNumber) -> Result<Vec<u8>, WireError> {
    let ip = IpPacket::parse(packet)?;
    let header = ip.header_len() + ip.payload_len() - Segment::of(&ip)?.payload().len();
    let len = ip.total_len().min(header + keep);
    let mut cut = [&packet[..len], behind].concat();
    let len = cut.len();
    let v4 = ip.source().is_ipv4();
    let (at, counted) = if v4 { (2, len) } else { (4, len - V6_HEADER) };
    // The packet was about as long, and the length of the packet fitted.
    let counted = u16::try_from(counted).unwrap_or(u16::MAX);
    cut[at..at + 2].copy_from_slice(&counted.to_be_bytes());
    let transport = &mut cut[ip.header_len()..];
    let length = u32::try_from(transport.len()).unwrap_or(u32::MAX);
    let pseudo = checksum::pseudo_header(ip.source(), ip.destination(), PROTOCOL_TCP, length);
    transport[ACKNOWLEDGMENT].copy_from_slice(&ack.0.to_be_bytes());
    transport[CHECKSUM].copy_from_slice(&checksum::fold(pseudo).to_be_bytes());
    Ok(cut)
}

/// Overwrites a field of the TCP header and carries the change into the checksum, if the checksum
/// is finished.
fn replace(transport: &mut [u8], at: core::ops::Range<usize>, new: &[u8], flags: SegmentFlags) {
    if !flags.unfinished {
        let old = u16::from_be_bytes([transport[CHECKSUM.start], transport[CHECKSUM.start + 1]]);
        let updated = checksum::update_bytes(old, &transport[at.clone()], new);
        transport[CHECKSUM].copy_from_slice(&updated.to_be_bytes());
    }
    transport[at].copy_from_slice(new);
}
