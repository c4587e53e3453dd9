//! ACKs to a client while no host serves (FT-TCP IV.E.1).
//!
//! A client without an answer retransmits, less and less often, and gives up at last. A client of a
//! peer with a zero window does neither: the client sends window probes (RFC 9293 3.8.6.1), for as
//! long as the probes are answered. So the holder of a record acknowledges all recorded input to
//! the client, with a zero window. When a host serves the connection again, a window update
//! ([`crate::window_update_ack`]) goes out at once, and the client does not wait for the next
//! probe.
//!
//! The effect on a client depends on output that the record does not know:
//!
//! - The client has no further output: the segment stands at the client's RCV.NXT, and the client
//!   takes the window. RCV.NXT is the client's acknowledgement or the end of the recorded
//!   outstream, if later: a short response is recorded as a whole, and the acknowledgement often is
//!   not. (If the client does not have that response yet, the client takes the window as well, and
//!   opens the window with the next segment.)
//! - The client has acknowledged more: the segment lies below the client's window. The client
//!   answers with an acknowledgement (RFC 9293 3.10.7.4), which shows the client's numbers. The
//!   next zero-window ACK is right then.
//! - The client has a newer timestamp (RFC 7323 5.3): the client drops the segment; Linux from 6.14
//!   on does not even answer. The dropped segment does no harm.
//!
//! Tried with Linux 6.18 (`testing/e2e/tests/closed_window.rs`): a client whose window closes
//! retransmits segments in flight without giving up; later writes wait for the window.

use core::time::Duration;

use protocol::control::{RecordSummary, Recorded};
use wire::EmitError;

use crate::{fabricate::acknowledgement, restored::restored_flow};

/// Limit of the TSval beyond the client's newest known value: far less than half of the number
/// space, beyond which the newer value would be older (RFC 7323 5.2). With a tick of 1 ms, 12 days.
const MOST_TICKS: u32 = 1 << 30;

/// A zero-window ACK of the whole recorded instream of a connection.
///
/// `silence` is the time since `recorded.tsecr` was recorded. The dead server may have sent timestamps since then
/// without an echo, one a millisecond as Linux counts; the TSval of this ACK must not be older. A client that accepts
/// the TSval echoes the value, and a later server learns the value from the echo.
///
/// Only the host that alone speaks for the service may send this ACK. The record must be whole (`summary.unprotected`
/// is `None`) and safe: acknowledged input is never sent again.
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
