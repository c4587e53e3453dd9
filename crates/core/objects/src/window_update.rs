//! The client's newest window, told to the server's TCP again.
//!
//! A server's TCP whose client had no window waits for a window update, and probes the window with pauses that double.
//! An update that is lost, as in the time without a lease, is not sent again. The client repeats its guarded request,
//! and each repetition restarts the timer of the probes (Linux: `tcp_ack_probe`) without telling the window: its
//! number is older than the newest (RFC 9293, 3.10.7.4). With repetitions that come before the probes, the two would
//! wait for each other for ever. So the member answers a repetition with an acknowledgement in the client's name.

use alloc::vec::Vec;

use wire::{ChecksumMode, Flags, FlowKey, SegmentSpec};

use crate::flow::{Flow, Phase, ResponseEnd};
use crate::revive::segments::{emit, timestamps_if};

/// An acknowledgement for the server's TCP, in the numbers of its socket. `None`: the client lacks bytes that have
/// left, and the server's TCP sends these again; or no response is under way.
#[must_use]
pub fn after_repetition(key: FlowKey, flow: &Flow) -> Option<Vec<u8>> {
    let (client, server) = (&flow.client, &flow.server);
    if flow.turn.phase != Phase::Body || client.ack.before(server.nxt) {
        return None;
    }
    // After a revival the server's TCP may not have sent as much yet, and then ignores the acknowledgement
    // (RFC 9293, 3.10.7.4). Of chunks that are not read again it has sent less for certain.
    let ack = match flow.turn.end {
        ResponseEnd::AtLastChunk(body) => server.nxt.min_seq(body.next),
        ResponseEnd::After(_) | ResponseEnd::AtClose => server.nxt,
    };
    let missing = match server.floor.after(ack) {
        true => server.floor.0.wrapping_sub(ack.0),
        false => 0,
    };
    let options = timestamps_if(
        client.has_timestamps,
        client.tsval,
        flow.echoes.parts().newest_tsval,
    );
    let spec = SegmentSpec {
        source: key.client(),
        destination: key.server(),
        seq: client.nxt,
        ack: ack - server.delta,
        flags: Flags::ACK,
        window: client.window_before(missing),
        options: options.as_slice(),
        payload: &[],
    };
    emit(&spec, ChecksumMode::Full)
}
