//! Mirroring (`mirror.h`): copies of the instream, and of the head of each response, go into a ring
//! that the logger reads.
//!
//! One rule makes the record complete: a segment that finds no space in the ring is not delivered
//! to the server either. The program drops the segment without an ACK, and the client's TCP
//! retransmits. If the supervisor's heartbeat is missing, the connection becomes unprotected and
//! the segment passes, so that no upload freezes.

use protocol::{Digest, mirror::FrameKind};
use types::UnprotectedReason;
use wire::{ChecksumMode, FlowKey, SeqNumber};

use crate::{
    egress::LARGEST_WINDOW,
    flow::{Flow, Response},
    packet::{Packet, Segment, length32},
    south::Shared,
};

/// Sizes of the parts of a record, bytes.
const HEADER: usize = protocol::mirror::HEADER_LEN;
const FIXED: [usize; 5] = [128, 256, 512, 1024, 2048];
const SLICE: usize = 4096;
const SLICES: usize = 64;

/// A frame of the model, which owns the packet.
pub type MirrorFrame = protocol::mirror::MirrorFrame<Vec<u8>>;

impl Shared {
    /// A frame without a packet. False: there was no room.
    pub(crate) fn mirror_marker(&mut self, flow: &Flow, kind: FrameKind, now_ns: u64) -> bool {
        self.mirror
            .push(HEADER, frame(flow, kind, 0, Vec::new(), now_ns))
    }

    /// Mirrors a digest of the client's outstream.
    pub(crate) fn mirror_output_digest(&mut self, flow: &Flow, digest: Digest, now_ns: u64) {
        let bytes = digest.to_bytes().to_vec();
        let frame = frame(flow, FrameKind::Digest, bytes.len(), bytes, now_ns);
        if !self.mirror.push(HEADER + Digest::LEN, frame) {
            self.counters.heads_lost += 1;
        }
    }

    /// Records a client's segment. False: the server must not get the segment now.
    pub(crate) fn mirror_instream(
        &mut self,
        packet: &Packet,
        key: FlowKey,
        flow: &mut Flow,
        segment: &Segment,
        now_ns: u64,
    ) -> bool {
        if flow.unprotected.is_some() || flow.log.ended {
            return true;
        }
        if self.settings.link {
            return self.link_instream(packet, key, flow, segment, now_ns);
        }
        let len = segment.network.ip_len;
        if self.mirror_packet(packet, segment, flow, FrameKind::Instream, len, now_ns) {
            self.counters.mirrored += 1;
            return true;
        }
        self.counters.mirror_full += 1;
        if !self.abandoned(now_ns) && len <= SLICE * SLICES {
            return false;
        }
        self.lose_protection(key, flow, UnprotectedReason::MirrorLost, now_ns);
        true
    }

    /// A request begins: the next output is the head of the response.
    pub(crate) fn begin_head(&self, flow: &mut Flow) {
        flow.verify.head_next = flow.server.nxt;
        flow.verify.head_sent = flow.server.sent;
        flow.verify.head_left = self.settings.verify_head;
    }

    /// Records the head of a response, for the comparison in a replay. The packet is as the client
    /// gets the packet, and `seq` too. With a log link the head goes by the link, at once, and by
    /// the ring, which loses no frame while this host lives. A lost head is only a gap in the
    /// record. But a head must not begin late, in the middle of a response, where the head would
    /// look like a body. So the part of a segment that belongs to an earlier response (a new server
    /// has both in the send queue) is left out: the frame says where the head goes on.
    pub(crate) fn mirror_head(
        &mut self,
        packet: &Packet,
        flow: &mut Flow,
        segment: &Segment,
        seq: SeqNumber,
        now_ns: u64,
    ) {
        let from = flow.verify.head_next;
        let left = flow.verify.head_left;
        if segment.payload_len == 0 || flow.unprotected.is_some() {
            return;
        }
        let Some(skip) = from.distance_from(seq).filter(|_| left > 0) else {
            // A segment that the fence has withheld comes again. No retransmission fills a larger hole.
            let hole = seq.distance_from(from).unwrap_or(0);
            if left > 0 && hole > LARGEST_WINDOW {
                flow.verify.head_left = 0;
            }
            self.report_request_end(packet, flow, segment, now_ns);
            return;
        };
        let take = length32(segment.payload_len).saturating_sub(skip).min(left);
        if take == 0 {
            return;
        }
        flow.verify.request_end = segment.ack;
        self.link_head(packet, flow, segment, (skip, take), now_ns);
        let payload = usize::try_from(skip + take).unwrap_or(usize::MAX);
        let len = segment.headers_len() + payload;
        let asked = flow.verify.request_end;
        let kind = FrameKind::Outstream { from, asked };
        flow.verify.head_next = from + take;
        flow.verify.heads_to = from + take;
        if self.mirror_packet(packet, segment, flow, kind, len, now_ns) {
            self.counters.heads += 1;
            flow.verify.head_left -= take;
        } else {
            self.counters.heads_lost += 1;
            flow.verify.head_left = 0;
        }
    }

    /// The server goes on with a response whose head is recorded, and has read more input by now,
    /// which may not be recorded yet. So that input was no request whose response has a head. A
    /// SEGMENT without payload tells the logger: this host may crash before the mirrored input
    /// arrives. Input in doubt that the server has read is no longer in doubt.
    fn report_request_end(
        &mut self,
        packet: &Packet,
        flow: &mut Flow,
        segment: &Segment,
        now_ns: u64,
    ) {
        let heard = segment.ack;
        let is_linked = self.settings.link && self.settings.verify_head > 0;
        if !is_linked || !heard.after(flow.verify.request_end) {
            return;
        }
        flow.verify.request_end = heard;
        let was_doubted = flow.log.doubt.is_some_and(|doubt| heard.after(doubt));
        if heard.after(flow.log.stable) || was_doubted {
            self.link_head(packet, flow, segment, (0, 0), now_ns);
        }
    }

    /// Whether this output is a response to the client's newest input. As `answer` of the journal,
    /// for connections without a record: all output is a response, except for interim responses of
    /// HTTP/1.x and the beginning of such a response.
    pub(crate) fn observe_response(
        &self,
        packet: &Packet,
        flow: &mut Flow,
        segment: &Segment,
        seq: SeqNumber,
    ) {
        let begins = segment.payload(&packet.bytes);
        let new = seq == flow.client.response_start && flow.verify.response == Response::None;
        if !self.settings.link || !new || begins.is_empty() {
            return;
        }
        let interim = b"HTTP/1.? 1"; // in place of the question mark any minor version
        let mut both = begins.iter().zip(interim);
        if both.any(|(byte, wanted)| *wanted != b'?' && byte != wanted) {
            flow.verify.response = Response::Begun;
        } else if begins.get(10..12) == Some(b"01") {
            flow.verify.response = Response::OtherProtocol;
        }
    }

    /// Copy the first `len` bytes of the IP packet. False: there was no room.
    fn mirror_packet(
        &mut self,
        packet: &Packet,
        segment: &Segment,
        flow: &Flow,
        kind: FrameKind,
        len: usize,
        now_ns: u64,
    ) -> bool {
        let (Some(size), Some(copy)) = (record_size(len), packet.bytes.get(..len)) else {
            return false;
        };
        let whole = segment.network.ip_len;
        let frame = MirrorFrame {
            unfinished: packet.checksum == ChecksumMode::Partial,
            ..frame(flow, kind, whole, copy.to_vec(), now_ns)
        };
        self.mirror.has_room(size) && self.mirror.push(size, frame)
    }
}

fn frame(flow: &Flow, kind: FrameKind, whole: usize, packet: Vec<u8>, now_ns: u64) -> MirrorFrame {
    MirrorFrame {
        timestamp_ns: now_ns,
        server_nxt: flow.server.nxt,
        server_ack: flow.server.ack,
        packet_len: length32(whole),
        packet,
        ..MirrorFrame::of(kind, flow.id)
    }
}

/// The size of a record with `len` bytes of a packet: one of a few fixed sizes, or a multiple of
/// slices. `None`: the packet is too long.
fn record_size(len: usize) -> Option<usize> {
    let slices = (len / SLICE <= SLICES).then(|| len.next_multiple_of(SLICE));
    let room = FIXED.into_iter().find(|room| len <= *room).or(slices);
    Some(HEADER + room?)
}

#[cfg(test)]
mod tests;
