//! Settings of a recovery, and the stages of a service.

use std::time::Duration;

use types::ReplayMode;

use crate::replay::Replay;

/// Settings of a recovery.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where replays begin.
    pub replay: ReplayMode,
    /// The server replays a determinant log before the server receives connections (the north side wrap).
    pub wrapped: bool,
    /// Most connections whose fabricated SYN may wait for an answer at a time.
    pub splice_window: usize,
    /// Time after which waiting connections are reset if the server has not come back.
    pub give_up_after: Duration,
    /// Time within which the restarted server must answer a fabricated SYN.
    pub accept_timeout: Duration,
    /// Time within which a probed client must answer.
    pub answer_timeout: Duration,
    /// Time that a server waits for probed clients of known connections. After this time the server continues without
    /// these clients.
    pub hear_timeout: Duration,
    /// Time within which a probed client must answer if no data and no acknowledgement of the client are known.
    pub half_open_timeout: Duration,
    /// Time within which the server must read more of a replay.
    pub replay_timeout: Duration,
    /// How long the server may be silent when old output is due in a replay: as long as the longest request takes.
    pub output_repeat_timeout: Duration,
    /// Time that a server must survive after a replay before the replay counts as survived.
    pub settle: Duration,
    /// Deaths during the replay of a connection after which the connection is given up.
    pub quarantine_after: u32,
    /// Bytes of each response that are recorded for comparison.
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

/// The stage of a service; see the crate's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// All is well.
    Serving,
    /// The rest of a dead server is being removed.
    Clearing,
    /// The server is being started.
    Starting,
    /// The server listens; flows and records are being read.
    Listing,
    /// Connections are being spliced and replayed.
    Recovering,
}
