//! What a client hears while nobody serves it (FT-TCP IV.E.1).
//!
//! A client that is not answered sends again, less and less often, and gives up at last. One whose peer
//! has no room for more does neither: it asks now and then whether there is some (RFC 9293 3.8.6.1), for
//! as long as it is answered. So whoever keeps the record of a connection tells its client that all of it
//! has arrived, and that there is no room now. When the connection is served again it is told of room at
//! once ([`crate::window_update_ack`]), and does not wait for its next question.
//!
//! What a client makes of it depends on what it was sent that the record does not know of:
//!
//! - It knows of nothing more: the segment stands at its RCV.NXT, and its window is taken. Where that is
//!   tells what the client acknowledged, or the end of the recorded outstream, if that is later: a
//!   short answer is recorded as a whole, and its acknowledgement often is not. (If the client had not had that
//!   yet, the window is taken as well, and opens with what follows that.)
//! - It has acknowledged more: the segment lies below its window, and it answers with an acknowledgement
//!   of its own (RFC 9293 3.10.7.4), which tells where it stands. The next one is right then.
//! - It has a timestamp that is newer than ours (RFC 7323 5.3): the segment is dropped; Linux from 6.14
//!   on does not even answer. Nothing is lost by it.
//!
//! Tried with Linux 6.18 (`testing/e2e/tests/closed_window.rs`): the client keeps retransmitting segments in
//! flight when the window closes, without giving up; later writes wait for room.

use core::time::Duration;

use protocol::control::{RecordSummary, Recorded};
use wire::EmitError;

use crate::{fabricate::acknowledgement, restored::restored_flow};

/// How far our timestamps may go beyond what the client was heard to have: far less than half of the
/// numbers, beyond which the newer would be the older (RFC 7323 5.2). At 1 ms a tick it is 12 days.
const MOST_TICKS: u32 = 1 << 30;

/// An acknowledgement of all that is recorded of a connection, with a window of 0.
///
/// `silence` is how long nothing was heard of the client's timestamps: since `recorded.tsecr` was noted.
/// The dead server may have sent some since then that were never echoed, one a millisecond as Linux
/// counts; ours must not be older. A client that has taken ours echoes it, so that who serves it later
/// learns of it.
///
/// Whoever sends it must be the only one that speaks for the service, and the record must be whole
/// (`summary.unprotected` is `None`) and safe: what is acknowledged is never sent again.
///
/// # Errors
/// None in practice: the segment has no payload.
pub fn closed_window_ack(
    recorded: &Recorded,
    summary: &RecordSummary,
    silence: Duration,
) -> Result<Vec<u8>, EmitError> {
    let mut flow = restored_flow(recorded, summary, 0);
    if let Some(said) = summary.outstream_end {
        flow.server.nxt = flow.server.nxt.max_seq(said);
    }
    let ticks = u32::try_from(silence.as_millis()).unwrap_or(u32::MAX);
    flow.server.tsval = flow.server.tsval.wrapping_add(ticks.min(MOST_TICKS));
    let numbers = (flow.server.ack, 0);
    acknowledgement(recorded.beginning.key, &flow, numbers, flow.client.tsval)
}

#[cfg(test)]
mod tests;
