//! Fabricated segments: in a recovery, segments to the new server in the client's name, and to the
//! client in the server's name.

use std::net::SocketAddr;

use wire::{ChecksumMode, EmitError, Flags, FlowKey, SegmentSpec, SeqNumber, replace_timestamps};

use crate::flow::Flow;

const SYN_FLAGS: Flags = Flags::SYN.union(Flags::ECE).union(Flags::CWR);
const TIMESTAMPS_LEN: usize = 12;

/// The client's SYN for the new server (FT-TCP IV.E.3): the client's own options with the newest
/// TSval. The sequence number is the number before the first byte of the replay, so that the server
/// uses the client's numbers. The receiver of an injected frame computes the checksum.
///
/// # Errors
/// The recorded options are no options: a bug of `outlive`.
pub fn fabricated_syn(key: FlowKey, flow: &Flow) -> Result<Vec<u8>, EmitError> {
    let mut options = flow.syn_options.clone();
    replace_timestamps(&mut options, flow.client.tsval, 0);
    let syn = SegmentSpec {
        seq: flow.splice.instream,
        ack: SeqNumber(0),
        flags: Flags::from_bits(flow.syn_flags & SYN_FLAGS.bits()),
        window: flow.syn_window,
        options: &options,
        payload: &[],
        ..between(key.client(), key.server())
    };
    emit(&syn, ChecksumMode::Partial)
}

/// A piece of the instream for the new server, numbered as the client numbers the stream. The client may have no room:
/// the way in shows the server more room during the replay.
///
/// # Errors
/// The payload does not fit an IP packet.
pub fn replayed_segment(
    key: FlowKey,
    flow: &Flow,
    seq: SeqNumber,
    payload: &[u8],
    fin: bool,
) -> Result<Vec<u8>, EmitError> {
    let mut flags = Flags::ACK.union(Flags::PSH);
    if fin {
        flags = flags.union(Flags::FIN);
    }
    from_client(key, flow, (seq, flags), payload)
}

/// The client's present window and acknowledgement: after the end of a replay, the window of
/// self-ACKs is obsolete.
///
/// # Errors
/// None in practice: the segment has no payload.
pub fn window_update(key: FlowKey, flow: &Flow) -> Result<Vec<u8>, EmitError> {
    let numbers = (flow.splice.ack, Flags::ACK);
    from_client(key, flow, numbers, &[])
}

/// RSTs that end the client's connection (RFC 9293 3.5.2): at the client's last acknowledgement,
/// and at the end of the outstream. The client's RCV.NXT is one of both unless segments are on the
/// way. (The client answers any other number with a challenge, RFC 5961 3.2, and gets an ordinary
/// RST for the challenge.)
///
/// # Errors
/// None in practice.
pub fn resets_to_client(key: FlowKey, flow: &Flow) -> Result<Vec<Vec<u8>>, EmitError> {
    let mut numbers = vec![flow.client.ack];
    if flow.server.nxt != flow.client.ack {
        numbers.push(flow.server.nxt);
    }
    let reset = |seq| {
        let segment = SegmentSpec {
            seq,
            ack: flow.server.ack,
            flags: Flags::RST.union(Flags::ACK),
            window: 0,
            options: &[],
            payload: &[],
            ..between(key.server(), key.client())
        };
        emit(&segment, ChecksumMode::Full)
    };
    numbers.into_iter().map(reset).collect()
}

/// A segment that makes the client's TCP tell its own numbers, where another host knew more of the client (RFC 9293
/// 3.8.4, 3.10.7.4). The segment lies below the client's window, so TCP answers with an acknowledgement and changes
/// nothing. The segment acknowledges everything before `server.ack`, with a zero window (FT-TCP IV.E.1). It has an
/// octet that the client has (RFC 1122 4.2.3.6): its TSval may be older than the client's newest, and of such segments
/// without an octet Linux answers one in half a second, or, from 6.14 on, none.
///
/// # Errors
/// None in practice: the segment has no payload.
pub fn keepalive_probe(key: FlowKey, flow: &Flow) -> Result<Vec<u8>, EmitError> {
    let options = timestamps(flow.server.tsval, flow.client.tsval);
    let segment = SegmentSpec {
        seq: flow.client.ack - 1,
        ack: flow.server.ack,
        flags: Flags::ACK,
        window: 0,
        payload: &[0],
        options: if flow.server.timestamps {
            &options
        } else {
            &[]
        },
        ..between(key.server(), key.client())
    };
    emit(&segment, ChecksumMode::Full)
}

/// Opens the client's window at the end of a replay (FT-TCP IV.E.2), if another host had served the client before, or
/// the client has waited for long. The dead server may have acknowledged less, and we have announced a zero window
/// ([`keepalive_probe`], [`zero_window_ack`]); and if the client has all output of the new server, no other segment
/// reaches the client.
///
/// The right edge of the window never goes beyond the edge that was offered before: segments beyond that edge are not
/// recorded (`ingress.h`). Only the server may offer more.
///
/// # Errors
/// None in practice: the segment has no payload.
pub fn window_update_ack(key: FlowKey, flow: &Flow) -> Result<Vec<u8>, EmitError> {
    let (server, offered) = (flow.splice.rcv_wnd_edge, flow.server.rcv_wnd_edge);
    let edge = if offered.before(server) {
        offered
    } else {
        server
    };
    let room = edge.distance_from(flow.server.ack).unwrap_or(0);
    acknowledgement(key, flow, (flow.server.ack, room), flow.client.tsval)
}

/// Closes the window of a client that waits for a server (FT-TCP IV.E.1), and repeats the acknowledgement. The window
/// may shrink by that (RFC 9293 3.8.6 asks senders to bear it). See [`crate::closed_window_ack`] for a client without a
/// flow.
///
/// # Errors
/// None in practice: the segment has no payload.
pub fn zero_window_ack(key: FlowKey, flow: &Flow) -> Result<Vec<u8>, EmitError> {
    acknowledgement(key, flow, (flow.server.ack, 0), flow.client.tsval)
}

/// An acknowledgement of all input that the server's TCP has, for a client with a lower
/// acknowledgement because the logger had not answered (FT-TCP IV.C). The client no longer waits
/// for the logger. `None`: the client has the acknowledgement.
///
/// # Errors
/// None in practice: the segment has no payload.
pub fn released_ack(key: FlowKey, flow: &Flow) -> Result<Option<Vec<u8>>, EmitError> {
    // Without a link the acknowledgement of the server's TCP is unknown, and 0 is a valid number.
    let never_linked = flow.log.ifindex == 0;
    if never_linked || !flow.log.ack.after(flow.server.ack) {
        return Ok(None);
    }
    let room = flow
        .log
        .rcv_wnd_edge
        .distance_from(flow.log.ack)
        .unwrap_or(0);
    acknowledgement(key, flow, (flow.log.ack, room), flow.log.tsecr).map(Some)
}

/// A pure ACK of the server, with a window of `room` bytes.
pub(crate) fn acknowledgement(
    key: FlowKey,
    flow: &Flow,
    (ack, room): (SeqNumber, u32),
    tsecr: u32,
) -> Result<Vec<u8>, EmitError> {
    let window = room.checked_shr(flow.server.window_scale.into());
    let options = timestamps(flow.server.tsval, tsecr);
    let segment = SegmentSpec {
        seq: flow.server.nxt,
        ack,
        flags: Flags::ACK,
        window: u16::try_from(window.unwrap_or(0)).unwrap_or(u16::MAX),
        options: if flow.server.timestamps {
            &options
        } else {
            &[]
        },
        payload: &[],
        ..between(key.server(), key.client())
    };
    emit(&segment, ChecksumMode::Full)
}

fn from_client(
    key: FlowKey,
    flow: &Flow,
    (seq, flags): (SeqNumber, Flags),
    payload: &[u8],
) -> Result<Vec<u8>, EmitError> {
    let options = timestamps(flow.client.tsval, flow.server.tsval);
    let segment = SegmentSpec {
        seq,
        ack: flow.client.ack,
        flags,
        window: flow.client.window,
        options: if flow.server.timestamps {
            &options
        } else {
            &[]
        },
        payload,
        ..between(key.client(), key.server())
    };
    emit(&segment, ChecksumMode::Partial)
}

/// RFC 7323 appendix A.
fn timestamps(tsval: u32, tsecr: u32) -> [u8; TIMESTAMPS_LEN] {
    let mut options = [1, 1, 8, 10, 0, 0, 0, 0, 0, 0, 0, 0];
    options[4..8].copy_from_slice(&tsval.to_be_bytes());
    options[8..].copy_from_slice(&tsecr.to_be_bytes());
    options
}

fn between(source: SocketAddr, destination: SocketAddr) -> SegmentSpec<'static> {
    SegmentSpec {
        source,
        destination,
        seq: SeqNumber(0),
        ack: SeqNumber(0),
        flags: Flags::from_bits(0),
        window: 0,
        options: &[],
        payload: &[],
    }
}

fn emit(segment: &SegmentSpec<'_>, mode: ChecksumMode) -> Result<Vec<u8>, EmitError> {
    let mut out = Vec::with_capacity(120 + segment.payload.len());
    segment.emit(&mut out, mode)?;
    Ok(out)
}

#[cfg(test)]
mod tests;
