//! What the decisions depend on, and where a service can stand.

use std::time::Duration;

use types::ReplayMode;

use crate::replay::Replay;

/// What the decisions depend on.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where replays begin.
    pub replay: ReplayMode,
    /// The server replays a record of its own before it is given its connections (the north side wrap).
    pub wrapped: bool,
    /// Connections that may wait for the answer to their fabricated SYN at the same time.
    pub splice_window: usize,
    /// How long connections wait for a server that does not come back before they are reset.
    pub give_up_after: Duration,
    /// How long the restarted server may leave a fabricated SYN unanswered.
    pub accept_timeout: Duration,
    /// How long a client that must say where it stands may be silent.
    pub answer_timeout: Duration,
    /// How long a server waits for clients that it knows, and that must say where they stand, before it goes on
    /// without them.
    pub hear_timeout: Duration,
    /// How long one that must say where it stands may be silent if it has neither sent a byte nor acknowledged one, as
    /// far as is known.
    pub half_open_timeout: Duration,
    /// How long the server may leave a replay unread.
    pub replay_timeout: Duration,
    /// How long the server may be silent when old output is due in a replay: as long as the longest request takes.
    pub output_repeat_timeout: Duration,
    /// How long a server must survive a replay before it is thought to have done so.
    pub settle: Duration,
    /// Deaths during a connection's replay after which it is given up.
    pub quarantine_after: u32,
    /// How much of each turn's output is recorded for comparison, bytes.
    pub verify_head: u32,
    /// Longest piece of record delivered at a time, bytes.
    pub max_segment: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            replay: ReplayMode::Connection,
            wrapped: false,
            splice_window: 64,
            give_up_after: Duration::from_secs(60),
            accept_timeout: Duration::from_secs(10),
            answer_timeout: Duration::from_secs(600),
            hear_timeout: Duration::from_secs(1),
            half_open_timeout: Duration::from_secs(30),
            replay_timeout: Duration::from_secs(30),
            output_repeat_timeout: Duration::from_secs(600),
            settle: Duration::from_millis(100),
            quarantine_after: 3,
            verify_head: 4096,
            max_segment: 60_000,
        }
    }
}

impl Config {
    /// How long this replay may stand still.
    pub(crate) fn stall_timeout(&self, replay: &Replay) -> Duration {
        match replay.awaits() {
            Some(_) => self.output_repeat_timeout,
            None => self.replay_timeout,
        }
    }
}

/// Where the service stands; see the crate's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// All is well.
    Serving,
    /// What is left of a dead server is being removed.
    Clearing,
    /// The server is being started.
    Starting,
    /// It listens; flows and records are being read.
    Listing,
    /// Connections are being spliced and replayed.
    Recovering,
}
