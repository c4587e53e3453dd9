//! Acknowledgements for a new server whose client's window is closed (`zero_window.h`).
//!
//! A replay is shown room that the client does not have; otherwise the replay would wait for a client that does not
//! read. Behind the end of the replay the server's TCP fills that room with new segments, and the client discards
//! these. From then on the server's TCP retransmits at intervals that double, up to two minutes (`TCP_RTO_MAX`). A
//! window update does not end the wait: for the server's TCP the retransmission is still in flight.
//!
//! So the acknowledgement of the last bytes is held back while the client's window is closed. The window update
//! releases the acknowledgement: the retransmission has arrived, and the server's TCP sends the missing segments at
//! once.
//!
//! | the server's TCP | while the client's window is closed |
//! |---|---|
//! | sends a segment that the client has, for the first time | an acknowledgement of all but the last [`HELD_BACK`]
//! bytes |
//! | retransmits that segment, with nothing sent behind the replay | an acknowledgement of all, window 0: the server
//! waits for a window update |
//! | has sent segments behind the replay | an acknowledgement of all but the last [`HELD_BACK`] bytes, window 0 |
//! | retransmits a segment without an acknowledgement | no answer in the client's name: the segment goes to the
//! client, and the client answers |
//!
//! The window update, and each acknowledgement before, reach the server with TSecr 0 and without SACK blocks. From
//! both Linux would conclude that the retransmission timer had fired too early (RFC 4015), and would no longer regard
//! the segments as lost.

use wire::SeqNumber;

use crate::flow::Flow;

/// Self-ACKs have round-trip times of microseconds and would inflate the congestion window. This
/// window limits the data in flight of a replaying server, bytes. The window is not smaller than a
/// segment can be: into a smaller window, Linux sends a segment of the loopback (65483 bytes) only
/// when the persist timer fires, five times a second.
const SELF_ACK_WINDOW: u32 = 65_535;

/// More than a whole segment of Ethernet, bytes: Linux goes on when a retransmitted segment is acknowledged as a
/// whole. Larger segments wait for the retransmission timer.
const HELD_BACK: u32 = 1500;

/// Window field that shows at least [`SELF_ACK_WINDOW`] bytes.
pub(crate) fn self_ack_window(flow: &Flow) -> u16 {
    let unit = 1u32 << (flow.client.window_scale & 15);
    u16::try_from(SELF_ACK_WINDOW.div_ceil(unit)).unwrap_or(u16::MAX)
}

/// Window field of a self-ACK. Behind the end of the replay the client's own window is true.
pub(crate) fn window_of_self_ack(flow: &Flow) -> u16 {
    if is_zero_window(flow) && !is_replaying(flow) {
        0
    } else {
        self_ack_window(flow)
    }
}

fn is_zero_window(flow: &Flow) -> bool {
    flow.client.window == 0
}

/// The client's acknowledgement, server space.
pub(crate) fn client_una(flow: &Flow) -> SeqNumber {
    flow.client.ack - flow.splice.delta_seq
}

/// Whether the client has more output than the new server has sent so far.
pub(crate) fn is_replaying(flow: &Flow) -> bool {
    flow.splice.nxt.before(client_una(flow))
}

/// Has the server sent segments for which the client has no room? (MPTCP clients are left out: `egress` acknowledges
/// the part of a segment that such a client has, and the client would never be asked.)
pub(crate) fn sent_beyond_window(flow: &Flow) -> bool {
    is_zero_window(flow) && !flow.whole_segments && flow.splice.nxt.after(client_una(flow))
}

/// The acknowledgement that the server reads when the client has acknowledged `ack` (server space). `all`: hold
/// nothing back from a server with nothing sent behind the replay. The server's own check refuses a number that no
/// server has sent.
pub(crate) fn ack_for_server(flow: &Flow, ack: SeqNumber, all: bool) -> SeqNumber {
    let beyond = sent_beyond_window(flow);
    let may_be_held = is_zero_window(flow) && !flow.whole_segments && (beyond || !all);
    if ack.after(flow.splice.nxt) || !may_be_held {
        return ack;
    }
    // One byte more, once: Linux before 6.6 takes a closed window only from an acknowledgement of new bytes.
    let least = flow.splice.una + u32::from(beyond && !flow.splice.ack_withheld);
    let most = client_una(flow) - HELD_BACK + u32::from(beyond);
    let most = most.max_seq(least);
    if most.before(ack) { most } else { ack }
}

/// The server's socket reads this acknowledgement. Called at ingress alone, which every acknowledgement passes.
pub(crate) fn advance_una(flow: &mut Flow, ack: SeqNumber) {
    if ack.after(flow.splice.nxt) {
        return;
    }
    flow.splice.una = flow.splice.una.max_seq(ack);
    let una = flow.splice.una;
    let behind = una.before(client_una(flow)) && una.before(flow.splice.nxt);
    flow.splice.ack_withheld = is_zero_window(flow) && !flow.whole_segments && behind;
}

#[cfg(test)]
mod tests;
