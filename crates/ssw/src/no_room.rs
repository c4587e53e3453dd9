//! What a new server is told of its client while it says again what the client has, and of a client that has no room then
//! (`no_room.h`).
//!
//! A replay is shown room that the client does not have, or it would wait for a client that does not read. Behind the end
//! of the replay the server's TCP sends into that room, too, and the client discards that. The server's TCP then has sent
//! what its client does not take, and sends it again at times that double, up to two minutes (`TCP_RTO_MAX`): it does not
//! wait for the client's word that there is room, as it would had it sent nothing (RFC 9293 3.8.6.1). When that word comes,
//! its TCP sends nothing at once, because what it has sent again is on its way, for all it knows.
//!
//! So the end of what the client has is held back from the server while the client has no room. With the client's word
//! that there is room the server is told all: what it has sent again has arrived, and it sends what is missing.
//!
//! | the server's TCP | while its client has no room |
//! |---|---|
//! | says what the client has for the first time | is told of all but the last [`HELD_BACK`] bytes |
//! | says that again, and has sent nothing behind it | is told all, and that there is no room: it has sent nothing in vain, and waits for room |
//! | has sent something behind it ([`sent_in_vain`]) | is told of all but the last [`HELD_BACK`] bytes, and that there is no room |
//! | sends again what it was not told of | is not answered in the client's name: the client answers that with what room it has |
//!
//! A word of the client that follows shows no round trip (TSecr 0), no SACK block: from the client's own words Linux would
//! conclude that the timer had fired too early (RFC 4015), and take back that anything was lost.

use wire::SeqNumber;

use crate::flow::Flow;

/// Self-ACKs have microsecond round trips and would inflate the congestion window; this keeps what
/// a replaying server may have in flight small, bytes. It is no less than a segment can have: into a
/// smaller window Linux sends one of the loopback's (65483 bytes) only when its persist timer
/// fires, five times a second.
const SELF_ACK_WINDOW: u32 = 65_535;

/// More than a whole segment of Ethernet, bytes: Linux goes on when a segment that it has sent again is acknowledged as a
/// whole. With larger ones the server goes on at its timer.
const HELD_BACK: u32 = 1500;

/// Window field that shows at least [`SELF_ACK_WINDOW`] bytes.
pub(crate) fn self_ack_window(flow: &Flow) -> u16 {
    let unit = 1u32 << (flow.client.window_scale & 15);
    u16::try_from(SELF_ACK_WINDOW.div_ceil(unit)).unwrap_or(u16::MAX)
}

/// Window field of what we tell the server in the client's name. Behind the end of the replay the client's own is true.
pub(crate) fn window_of_self_ack(flow: &Flow) -> u16 {
    if has_no_room(flow) && !is_replaying(flow) {
        0
    } else {
        self_ack_window(flow)
    }
}

fn has_no_room(flow: &Flow) -> bool {
    flow.client.window == 0
}

/// The end of what the client has, server space.
pub(crate) fn client_heard(flow: &Flow) -> SeqNumber {
    flow.client.ack - flow.splice.delta_seq
}

/// Has the client more than the new server has said so far?
pub(crate) fn is_replaying(flow: &Flow) -> bool {
    flow.splice.nxt.before(client_heard(flow))
}

/// Has the server sent what its client has no room for? (An MPTCP client is not asked by what it has in part: `egress`.)
pub(crate) fn sent_in_vain(flow: &Flow) -> bool {
    has_no_room(flow) && !flow.whole_segments && flow.splice.nxt.after(client_heard(flow))
}

/// What the server is told when the client has all before `ack` (server space). `all`: nothing of that is held back from a
/// server that has sent nothing behind it. What no server has sent is for the server's own check to refuse.
pub(crate) fn told_of(flow: &Flow, ack: SeqNumber, all: bool) -> SeqNumber {
    let in_vain = sent_in_vain(flow);
    let may_be_held = has_no_room(flow) && !flow.whole_segments && (in_vain || !all);
    if ack.after(flow.splice.nxt) || !may_be_held {
        return ack;
    }
    // One byte more, once: Linux before 6.6 believes that there is no room only from who acknowledges more.
    let least = flow.splice.una + u32::from(in_vain && !flow.splice.held);
    let most = client_heard(flow) - HELD_BACK + u32::from(in_vain);
    let most = most.max_seq(least);
    if most.before(ack) { most } else { ack }
}

/// The server is told this: at ingress alone, where all passes that its socket is told.
pub(crate) fn note_told(flow: &mut Flow, ack: SeqNumber) {
    if ack.after(flow.splice.nxt) {
        return;
    }
    flow.splice.una = flow.splice.una.max_seq(ack);
    let una = flow.splice.una;
    let behind = una.before(client_heard(flow)) && una.before(flow.splice.nxt);
    flow.splice.held = has_no_room(flow) && !flow.whole_segments && behind;
}

#[cfg(test)]
mod tests;
