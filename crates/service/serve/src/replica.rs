//! The server of a host that stands by *hot*: it does already what it does on the host that serves
//! (`ft-tcp-infocom-2001`, VI.C), says nothing, and waits wherever it is not known yet what came next.

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

/// How long its processes may take to be gone after a SIGKILL.
const KILLED: Duration = Duration::from_secs(5);
/// So much of what was said is kept before it is asked what clients have of it, bytes. Then, whenever twice as
/// much is kept as was left.
const KEPT: usize = 4 << 20;

/// The server, and what it follows.
pub(crate) struct Replica {
    pub(crate) north: North,
    server: Server,
    edition: Edition,
    feeds: BTreeMap<u32, LogFeed>,
    forget_at: usize,
    /// When it had replayed all that there was for the first time.
    caught_up: Option<Duration>,
}

/// Why it is of no use.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Useless {
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

impl Useless {
    /// Is another one of no use, either?
    pub(crate) fn is_for_good(&self) -> bool {
        matches!(self, Self::Children)
    }
}

impl Replica {
    /// It was just started, and follows that.
    pub(crate) fn new(north: North, server: Server, edition: Edition) -> Self {
        Self {
            north,
            server,
            edition,
            feeds: BTreeMap::new(),
            forget_at: KEPT,
            caught_up: None,
        }
    }

    pub(crate) fn edition(&self) -> Edition {
        self.edition
    }

    pub(crate) fn pid(&self) -> u32 {
        self.server.pid().as_raw_pid().unsigned_abs()
    }

    /// Readable when it has ended.
    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    /// What it has of each stream.
    pub(crate) fn streams(&self) -> Vec<(u32, u64)> {
        let memory = self.north.memory();
        let feeds = self.feeds.iter();
        feeds
            .map(|(process, feed)| (*process, feed.position(memory)))
            .collect()
    }

    /// More of a stream. `false`: something before it is missing.
    pub(crate) fn take(&mut self, process: u32, from: u64, bytes: &[u8]) -> Result<bool, Useless> {
        let memory = self.north.memory();
        let feed = self
            .feeds
            .entry(process)
            .or_insert_with(|| LogFeed::new(process));
        if feed.position(memory) != from {
            return Ok(false);
        }
        feed.take(memory, bytes).map_err(Useless::NoRoom)?;
        Ok(true)
    }

    /// What has come is there for it. Tells whether it is useful, and has said nothing odd.
    pub(crate) fn look(&mut self) -> Result<(), Useless> {
        if self.north.memory().is_served_by_children() {
            return Err(Useless::Children);
        }
        self.north.memory().notify_appended();
        self.north.listen().map_err(Useless::Nonsense)?;
        if let Some(divergence) = self.north.divergence() {
            return Err(Useless::Diverged(divergence));
        }
        match self.server.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(exit)) => Err(Useless::Ended(exit)),
            Err(_) => Err(Useless::Ended(Exit::Unseen)),
        }
    }

    /// How much it still has to replay of what is here, bytes.
    pub(crate) fn behind(&self) -> u64 {
        self.north.memory().lag()
    }

    /// Has it come to the end of what there is just now, for the first time?
    pub(crate) fn catches_up(&mut self, now: Duration) -> bool {
        let first = self.caught_up.is_none() && self.behind() == 0 && !self.feeds.is_empty();
        if first {
            self.caught_up = Some(now);
        }
        first
    }

    /// Since when it could have taken over at once.
    pub(crate) fn caught_up(&self) -> Option<Duration> {
        self.caught_up
    }

    /// If much of what it has said is kept, ask what clients have of it.
    pub(crate) fn forget(&mut self, logger: &mut LoggerClient) -> Result<(), ServeError> {
        if self.north.held() < self.forget_at {
            return Ok(());
        }
        // What it has said by now is of connections that the logger knows, if they are not over.
        let (connections, _) = newest_records(logger.connections()?);
        let received: HashMap<Ends, u64> = connections
            .iter()
            .map(|one| (ends(one.beginning.key), one.acknowledged))
            .collect();
        self.north.forget(&received);
        self.forget_at = KEPT.max(2 * self.north.held());
        Ok(())
    }

    /// Fetch what it does not have yet, from the logger that nobody else tells anything any more. `None`: what is
    /// there is not what it has followed. An error inside: it is of no use.
    pub(crate) fn fetch_rest(
        &mut self,
        logger: &mut LoggerClient,
    ) -> Result<Option<Result<(), Useless>>, ServeError> {
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
                return Ok(Some(Err(Useless::NoRoom(error))));
            }
            // Nothing was said that depended on what the dead host had begun to say to the logger.
            if feed.is_torn() {
                logger.cut_determinants(process, memory.length(process))?;
            }
        }
        if memory.may_be_served_by_children() {
            return Ok(Some(Err(Useless::Children)));
        }
        Ok(Some(self.look()))
    }

    /// It goes on as the server of this host.
    pub(crate) fn into_parts(self) -> (North, Server) {
        (self.north, self.server)
    }

    /// It ends, and what it has followed goes.
    pub(crate) fn end(mut self, cgroup: &Cgroup) -> Result<(), ServeError> {
        cgroup.kill()?;
        cgroup.wait_empty(KILLED)?;
        self.server
            .wait(KILLED)
            .doing("end the server that stands by")?;
        Ok(())
    }
}
