//! Times and sizes of the loop around the core: `serve` and the simulator have the same.

use std::time::Duration;

/// Time between two heartbeats of the loop.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two sweeps of closed flows.
pub const SWEEP_INTERVAL: Duration = Duration::from_secs(5);
/// Age from which on a sweep removes a closed flow: longer than a TIME-WAIT (RFC 9293 3.4.2 as Linux has it, 60 s).
pub const SWEEP_AGE: Duration = Duration::from_secs(65);
/// Most bytes that a replay is given at a time of input that the client sent during the replay. When the server has the
/// bytes of a window, the client can send more.
pub const MORE_RECORD_BYTES: u32 = 1 << 20;
