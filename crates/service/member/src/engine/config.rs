//! Settings of a member.

use std::time::Duration;

use supervise::Command;

use crate::pool_client::PoolSettings;

/// Settings of a member.
#[derive(Debug, Clone)]
pub(crate) struct MemberConfig {
    /// The balancer, and who asks.
    pub(crate) pool: PoolSettings,
    /// The server.
    pub(crate) command: Command,
    /// Most bytes that are taken from the server and thrown away, because the server ignores ranges.
    pub(crate) discard_limit: u64,
    /// Objects never change under a name.
    pub(crate) is_immutable: bool,
    /// Longest time for which a request stays unacknowledged.
    pub(crate) withhold: Duration,
    /// Responses may have inputs.
    pub(crate) takes_inputs: bool,
    /// Every server sends the same chunks of the same response.
    pub(crate) takes_chunks: bool,
    /// First of the eight marks of the member's packets.
    pub(crate) mark: u32,
}
