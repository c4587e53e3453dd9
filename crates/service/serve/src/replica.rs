//! The server of a hot standby: the server replays the determinants of the active host (`ft-tcp-infocom-2001`, VI.C),
//! sends no output, and waits wherever the next determinant is unknown.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    time::Duration,
};

use north_host::{Divergence, Ends, LogFeed};
use protocol::control::Edition;
use south_model::newest_records;
use supervise::{Cgroup, Exit, Server};

use crate::{
    error::{ServeError, SystemContext},
    logger_client::LoggerClient,
    north::{North, ends},
};

/// Time from SIGKILL to the end of the processes.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// Retained output at which the logger is asked how much clients have, bytes. The next request is at twice the rest.
const RETAINED_OUTPUT_BYTES: usize = 4 << 20;

/// The replica process, and the input from the logger.
pub(crate) struct Replica {
    pub(crate) north: North,
    server: Server,
    edition: Edition,
    feeds: BTreeMap<u32, LogFeed>,
    trim_at: usize,
    /// Time at which the replica caught up first.
    caught_up: Option<Duration>,
}

/// Failure of a replica.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReplicaError {
    #[error("the replica could not be started: {0}")]
    NotStarted(String),
    #[error("the replica exited ({0})")]
    Ended(Exit),
    #[error("{0}")]
    Diverged(Divergence),
    #[error("there is no room for the server's record here (--limit-total): {0}")]
    NoRoom(io::Error),
    #[error("the replica reports impossible connections: {0}")]
    Nonsense(north_host::HandoverError),
    #[error("child processes of the server have clients, and a replica has the first process only")]
    Children,
}

impl ReplicaError {
    /// Another replica would fail, too.
    pub(crate) fn is_permanent(&self) -> bool {
        matches!(self, Self::Children)
    }
}

impl Replica {
    /// A replica of this edition, just started.
    pub(crate) fn new(north: North, server: Server, edition: Edition) -> Self {
        Self {
            north,
            server,
            edition,
            feeds: BTreeMap::new(),
            trim_at: RETAINED_OUTPUT_BYTES,
            caught_up: None,
        }
    }

    pub(crate) fn edition(&self) -> Edition {
        self.edition
    }

    pub(crate) fn pid(&self) -> u32 {
        self.server.pid().as_raw_pid().unsigned_abs()
    }

    /// Readable after the end of the process.
    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    /// Received bytes of each stream.
    pub(crate) fn streams(&self) -> Vec<(u32, u64)> {
        let memory = self.north.memory();
        let feeds = self.feeds.iter();
        feeds
            .map(|(process, feed)| (*process, feed.position(memory)))
            .collect()
    }

    /// Appends bytes to a stream. `false`: bytes before `from` are missing.
    pub(crate) fn append(
        &mut self,
        process: u32,
        from: u64,
        bytes: &[u8],
    ) -> Result<bool, ReplicaError> {
        let memory = self.north.memory();
        let feed = self
            .feeds
            .entry(process)
            .or_insert_with(|| LogFeed::new(process));
        if feed.position(memory) != from {
            return Ok(false);
        }
        feed.take(memory, bytes).map_err(ReplicaError::NoRoom)?;
        Ok(true)
    }

    /// Received determinants are ready for replay. Checks that the replica is of use, and has reported no unexpected
    /// state.
    pub(crate) fn poll(&mut self) -> Result<(), ReplicaError> {
        if self.north.memory().is_served_by_children() {
            return Err(ReplicaError::Children);
        }
        self.north.memory().notify_appended();
        self.north.listen().map_err(ReplicaError::Nonsense)?;
        if let Some(divergence) = self.north.divergence() {
            return Err(ReplicaError::Diverged(divergence));
        }
        match self.server.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(exit)) => Err(ReplicaError::Ended(exit)),
            Err(_) => Err(ReplicaError::Ended(Exit::Unseen)),
        }
    }

    /// Received bytes that are not replayed.
    pub(crate) fn lag_bytes(&self) -> u64 {
        self.north.memory().lag()
    }

    /// Has the replica caught up for the first time?
    pub(crate) fn reaches_end(&mut self, now: Duration) -> bool {
        let first = self.caught_up.is_none() && self.lag_bytes() == 0 && !self.feeds.is_empty();
        if first {
            self.caught_up = Some(now);
        }
        first
    }

    /// Time at which the replica caught up first.
    pub(crate) fn caught_up(&self) -> Option<Duration> {
        self.caught_up
    }

    /// Drops retained output that clients have, above a threshold.
    pub(crate) fn trim_output(&mut self, logger: &mut LoggerClient) -> Result<(), ServeError> {
        if self.north.held() < self.trim_at {
            return Ok(());
        }
        // The replica's output up to now is for connections that the logger knows, unless the connections are over.
        let (connections, _) = newest_records(logger.connections()?);
        let received: HashMap<Ends, u64> = connections
            .iter()
            .map(|one| (ends(one.beginning.key), one.acknowledged))
            .collect();
        self.north.forget(&received);
        self.trim_at = RETAINED_OUTPUT_BYTES.max(2 * self.north.held());
        Ok(())
    }

    /// Fetch the rest of the record from a logger that no other host writes to any more. `None`: the logger's record is
    /// not the replicated record. An error inside: the replica is of no use.
    pub(crate) fn fetch_rest(
        &mut self,
        logger: &mut LoggerClient,
    ) -> Result<Option<Result<(), ReplicaError>>, ServeError> {
        let there = logger.determinants()?;
        let lengths: HashMap<u32, u64> = there.streams.iter().copied().collect();
        let is_known = |(process, length): &(u32, u64)| {
            lengths.get(process).is_some_and(|there| there >= length)
        };
        if there.edition != Some(self.edition) || !self.streams().iter().all(is_known) {
            return Ok(None);
        }
        let memory = self.north.memory();
        for (process, length) in there.streams {
            let feed = self
                .feeds
                .entry(process)
                .or_insert_with(|| LogFeed::new(process));
            let mut fed = Ok(());
            logger.read_determinants(process, feed.position(memory), length, |bytes| {
                if fed.is_ok() {
                    fed = feed.take(memory, bytes);
                }
            })?;
            if let Err(error) = fed {
                return Ok(Some(Err(ReplicaError::NoRoom(error))));
            }
            // No output depends on the incomplete last determinant of the dead host.
            if feed.is_torn() {
                logger.cut_determinants(process, memory.length(process))?;
            }
        }
        if memory.may_be_served_by_children() {
            return Ok(Some(Err(ReplicaError::Children)));
        }
        Ok(Some(self.poll()))
    }

    /// The parts of a promoted replica.
    pub(crate) fn into_parts(self) -> (North, Server) {
        (self.north, self.server)
    }

    /// Kills the process and drops the input.
    pub(crate) fn end(mut self, cgroup: &Cgroup) -> Result<(), ServeError> {
        cgroup.kill()?;
        cgroup.wait_empty(KILL_TIMEOUT)?;
        self.server
            .wait(KILL_TIMEOUT)
            .doing("end the server that stands by")?;
        Ok(())
    }
}
