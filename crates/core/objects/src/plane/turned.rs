//! Packets that are turned round (`turned.h`): an acknowledgement for the client, made from the client's own; an
//! acknowledgement in the client's name, made from a segment of the server.

use alloc::vec;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::time::Duration;

use wire::{ChecksumMode, Flags, FlowKey, SeqNumber, checksum};

use super::egress::egress;
use super::packet::{
    ACK_OFFSET, CHECKSUM_OFFSET, DATA_OFFSET, FLAGS_OFFSET, Packet, SEQ_OFFSET, Segment,
    V4_HEADER_LEN, V6_HEADER_LEN, WINDOW_OFFSET, overwrite, read32, write32,
};
use super::request::sent_end;
use super::{Counter, MARK_FROM_SERVER, MARK_SERVER_SPACE, Plane, Shared, Verdict};
use crate::flow::Flow;

const TIME_TO_LIVE: u8 = 64;
/// A TCP header whose only option is timestamps, bytes.
const HEADER_WITH_TIMESTAMPS: usize = 32;
/// A TCP header without options, bytes.
const HEADER_WITHOUT_OPTIONS: usize = 20;
/// NOP, NOP, and the beginning of timestamps (RFC 7323, appendix A).
const TIMESTAMPS_START: [u8; 4] = [1, 1, 8, 10];

/// Exchanges the ends of the network header.
fn exchange_ends(bytes: &mut [u8], is_v6: bool) {
    let (ttl_at, source_at, len) = if is_v6 { (7, 8, 16) } else { (8, 12, 4) };
    let source: Vec<u8> = bytes[source_at..source_at + len].to_vec();
    bytes.copy_within(source_at + len..source_at + 2 * len, source_at);
    overwrite(bytes, source_at + len, &source);
    bytes[ttl_at] = TIME_TO_LIVE;
    if !is_v6 {
        seal_v4(bytes);
    }
}

/// The checksum of an IPv4 header without options.
fn seal_v4(bytes: &mut [u8]) {
    overwrite(bytes, 10, &[0, 0]);
    let sum = checksum::sum(&bytes[..V4_HEADER_LEN]);
    overwrite(bytes, 10, &(!checksum::fold(sum)).to_be_bytes());
}

fn write_timestamps(header: &mut [u8], value: u32, echo: u32) {
    overwrite(header, 20, &TIMESTAMPS_START);
    write32(header, 24, value);
    write32(header, 28, echo);
}

fn exchange_ports(header: &mut [u8], segment: &Segment) {
    overwrite(header, 0, &segment.header[2..4]);
    overwrite(header, 2, &segment.header[..2]);
}

/// The client's pure ACK has ended a turn. Nobody else would tell the client that its request has arrived: the
/// client would send the request again, and the server's TCP might close before. An acknowledgement leaves, in the
/// numbers of the server's socket, and is translated as any other; NOPs are in the place of other options than
/// timestamps. With payload or a FIN the server's TCP answers.
pub(super) fn make_ack(
    plane: &mut Plane,
    packet: &Packet,
    key: &FlowKey,
    segment: &Segment,
    now: Duration,
) {
    let Some(flow) = plane.flows.get(key) else {
        return;
    };
    let is_pure = segment.payload_len == 0 && !segment.has(Flags::FIN);
    let has_form = segment.header.len() >= HEADER_WITH_TIMESTAMPS && segment.network.is_plain();
    if !is_pure || !has_form || !flow.client.has_timestamps {
        return;
    }
    let server = &flow.server;
    let window = server.window_edge.0.wrapping_sub(server.received.0);
    let window = (window >> (server.window_scale.unwrap_or(0) & 15)) & 0xffff;
    let mut header = segment.header.clone();
    exchange_ports(&mut header, segment);
    let seq = sent_end(&flow.client, server) - server.delta;
    write32(&mut header, SEQ_OFFSET, seq.0);
    write32(&mut header, ACK_OFFSET, server.received.0);
    header[FLAGS_OFFSET] = Flags::ACK.bits();
    let [_, _, window @ ..] = window.to_be_bytes();
    overwrite(&mut header, WINDOW_OFFSET, &window);
    let value = flow.echoes.parts().newest_tsval;
    write_timestamps(&mut header, value, flow.client.tsval);
    header[HEADER_WITH_TIMESTAMPS..].fill(wire::kind::NO_OPERATION);
    let mut made = packet.clone();
    made.mark = plane.shared.settings.mark.wrapping_add(MARK_FROM_SERVER);
    exchange_ends(&mut made.bytes, segment.network.source.is_ipv6());
    segment.commit(&mut made, header);
    if egress(plane, &mut made, now) == Verdict::RedirectNeighbour {
        made.mark = 0;
        plane.shared.sent.push_back(made);
    }
    plane.shared.count(Counter::AcksMade);
}

/// Turns a segment of the server into the client's pure ACK of everything before `ack`: the client has these bytes,
/// from another server. `ack`: number of the server's socket.
pub(super) fn self_ack(
    shared: &mut Shared,
    packet: &mut Packet,
    flow: &Flow,
    segment: &Segment,
    ack: SeqNumber,
) -> Verdict {
    // Of another form than the kernel's TCP has: as if lost.
    if !segment.network.is_plain() {
        return Verdict::Withheld;
    }
    let newest = flow.echoes.parts().newest_tsval;
    let server_tsval = if segment.header.len() >= HEADER_WITH_TIMESTAMPS {
        read32(&segment.header, 24)
    } else {
        newest
    };
    let has_timestamps = flow.client.has_timestamps;
    let len = if has_timestamps {
        HEADER_WITH_TIMESTAMPS
    } else {
        HEADER_WITHOUT_OPTIONS
    };
    let mut header = vec![0; len];
    exchange_ports(&mut header, segment);
    write32(&mut header, SEQ_OFFSET, segment.ack.0);
    write32(&mut header, ACK_OFFSET, ack.0);
    header[DATA_OFFSET] = if has_timestamps { 0x80 } else { 0x50 };
    header[FLAGS_OFFSET] = Flags::ACK.bits();
    let missing = flow.server.floor - flow.server.delta;
    let window = flow.client.window_before(missing.0.wrapping_sub(ack.0));
    overwrite(&mut header, WINDOW_OFFSET, &window.to_be_bytes());
    if has_timestamps {
        write_timestamps(&mut header, flow.client.tsval, server_tsval);
    }
    let (from, to) = (segment.network.destination, segment.network.source);
    let sum = checksum::tcp_checksum(from, to, &header);
    overwrite(&mut header, CHECKSUM_OFFSET, &sum.to_be_bytes());
    replace_segment(packet, segment.network.source, &header);
    packet.mark = shared.settings.mark.wrapping_add(MARK_SERVER_SPACE);
    packet.checksum = ChecksumMode::Full;
    shared.count(Counter::SelfAcks);
    Verdict::RedirectIngress
}

/// Puts a whole segment in the place of another, and exchanges the ends of the packet.
fn replace_segment(packet: &mut Packet, source: IpAddr, segment: &[u8]) {
    let is_v6 = source.is_ipv6();
    let (header_len, len_at) = if is_v6 {
        (V6_HEADER_LEN, 4)
    } else {
        (V4_HEADER_LEN, 2)
    };
    packet.bytes.truncate(header_len);
    packet.bytes.extend_from_slice(segment);
    let len = segment.len() + if is_v6 { 0 } else { header_len };
    let len = u16::try_from(len).unwrap_or(u16::MAX);
    overwrite(&mut packet.bytes, len_at, &len.to_be_bytes());
    exchange_ends(&mut packet.bytes, is_v6);
}
