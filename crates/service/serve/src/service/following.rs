//! Standing by hot: the server is started here, too, and follows what it is told where it serves. When this host is
//! granted the service it goes on as it is. If anything is wrong with it, it is dropped: then this host takes over
//! as one that stands by cold does, with a replay from the beginning.

use std::{os::fd::AsFd, time::Duration};

use protocol::control::Edition;
use rustix::event::{PollFd, PollFlags};

use super::Service;
use crate::{
    clock,
    config::in_words,
    error::{ServeError, SystemContext},
    events::Happening,
    keeper::{CONNECT, Keeper},
    leasing,
    logger_client::{LoggerClient, Said},
    north::North,
    replica::{Replica, Useless},
    status::ReplicaStatus,
};

/// How long is waited after the logger could not be asked.
const AGAIN: Duration = Duration::from_secs(1);
/// The pause before a replica is started again, which doubles with each failure.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// So many in a row that were of no use, and this host stands by cold.
const MOST_FAILURES: u32 = 5;
/// One that was of use for so long is forgiven.
const FORGIVEN: Duration = Duration::from_secs(60);

/// What a host that stands by hot has.
#[derive(Default)]
pub(super) struct Hot {
    stream: Option<LoggerClient>,
    /// By which stream the lease was asked for when that was opened, as
    /// [`Position::stream`](crate::keeper::Position::stream).
    beside: u64,
    replica: Option<Replica>,
    /// Nothing is tried before.
    not_before: Duration,
    failures: u32,
}

/// What became of following.
enum Trouble {
    /// Of the stream: it is opened again.
    Stream(ServeError),
    Replica(Useless),
}

impl From<Useless> for Trouble {
    fn from(useless: Useless) -> Self {
        Self::Replica(useless)
    }
}

impl Service {
    /// A step of following, if this host is to. Whatever goes wrong with it, this host stands by.
    pub(super) fn follow(&mut self) -> Result<(), ServeError> {
        let position = self.ground.keeper.as_ref().map(Keeper::position);
        let Some(position) = position.filter(|position| position.stands_by.is_some()) else {
            return Ok(());
        };
        if !self.config.hot || self.hot.failures >= MOST_FAILURES {
            return Ok(());
        }
        // Nothing is asked here: a logger that has lost its power would be listened to for ever.
        if std::mem::replace(&mut self.hot.beside, position.stream) != position.stream {
            self.hot.stream = None;
        }
        match self.follow_on()? {
            Ok(()) => self.look_where_it_will_listen(),
            Err(Trouble::Stream(error)) => {
                tracing::debug!(%error, "the logger is not followed");
                self.hot.stream = None;
                self.hot.not_before = clock::now() + AGAIN;
                Ok(())
            }
            Err(Trouble::Replica(useless)) => self.drop_replica(&useless),
        }
    }

    fn follow_on(&mut self) -> Result<Result<(), Trouble>, ServeError> {
        if self.hot.stream.is_none() {
            if clock::now() < self.hot.not_before {
                return Ok(self.look_at_replica());
            }
            match self.begin_to_follow() {
                Ok(stream) => self.hot.stream = Some(stream),
                Err(error) => return Ok(Err(Trouble::Stream(error))),
            }
        }
        loop {
            let Some(stream) = &mut self.hot.stream else {
                return Ok(Ok(()));
            };
            if let Err(error) = stream.listen() {
                return Ok(Err(Trouble::Stream(error)));
            }
            if !stream.has_said() {
                break;
            }
            while let Some(said) = self.hot.stream.as_mut().and_then(LoggerClient::said) {
                if let Err(trouble) = self.heed_said(said)? {
                    return Ok(Err(trouble));
                }
            }
            if let Err(trouble) = self.look_at_replica() {
                return Ok(Err(trouble));
            }
        }
        Ok(self.look_at_replica())
    }

    fn begin_to_follow(&self) -> Result<LoggerClient, ServeError> {
        let (Some(at), Some(link)) = (leasing::granter(&self.config), &self.config.link) else {
            return Err(ServeError::SeveralLoggers);
        };
        let mut stream = LoggerClient::call(at, &link.key_file, CONNECT)?;
        let replica = self.hot.replica.as_ref();
        let edition = replica.map(Replica::edition);
        let streams = replica.map_or_else(Vec::new, Replica::streams);
        stream.follow(self.config.name.clone(), edition, streams)?;
        Ok(stream)
    }

    fn heed_said(&mut self, said: Said) -> Result<Result<(), Trouble>, ServeError> {
        match said {
            Said::Followed(edition) => {
                self.end_replica()?;
                // Of a server without a record there is nothing to follow.
                let edition = edition.filter(|one| one.record != Edition::WITHOUT);
                if let Some(edition) = edition
                    && let Err(error) = self.begin_replica(edition)
                {
                    return Ok(Err(Useless::NotStarted(error.to_string()).into()));
                }
            }
            Said::Grown(process, from, bytes) => {
                if let Some(replica) = &mut self.hot.replica {
                    match replica.take(process, from, &bytes) {
                        Ok(true) => {}
                        Ok(false) => {
                            let error = ServeError::Logger("it left something out".into());
                            return Ok(Err(Trouble::Stream(error)));
                        }
                        Err(useless) => return Ok(Err(useless.into())),
                    }
                }
            }
            _ => {}
        }
        Ok(Ok(()))
    }

    /// Start the server, to follow this.
    fn begin_replica(&mut self, edition: Edition) -> Result<(), ServeError> {
        let directory = self.ground.lock.directory();
        let mut north = North::inherited(directory, self.config.limits.total, edition.record)?;
        north.memory().hold(self.hold());
        north.memory().clients_connect_to(&self.config.addresses);
        north.memory().follow();
        let command = supervise::Command::new(self.config.command.clone());
        let shipping = self.shipping_socket()?;
        let shipping = shipping.as_ref().map(AsFd::as_fd);
        let server = north
            .start(&command, &self.ground.cgroup, shipping, &mut |_| Ok(()))
            .map_err(std::io::Error::other)
            .doing("start the server that is to follow")?;
        let replica = Replica::new(north, server, edition);
        let pid = replica.pid();
        self.hot.replica = Some(replica);
        self.listening.started(clock::now());
        self.tell(Happening::ReplicaStarted { pid });
        Ok(())
    }

    fn look_at_replica(&mut self) -> Result<(), Trouble> {
        let Some(replica) = &mut self.hot.replica else {
            return Ok(());
        };
        replica.look()?;
        if let Some(stream) = &mut self.hot.stream {
            replica.forget(stream).map_err(Trouble::Stream)?;
        }
        if replica.catches_up(clock::now()) {
            let bytes = replica.north.record_bytes();
            self.tell(Happening::CaughtUp { bytes });
        }
        Ok(())
    }

    /// It is of no use: another one is tried after a pause, or none any more.
    fn drop_replica(&mut self, why: &Useless) -> Result<(), ServeError> {
        let now = clock::now();
        let since = self.hot.replica.as_ref().and_then(Replica::caught_up);
        if since.is_some_and(|since| now.saturating_sub(since) >= FORGIVEN) {
            self.hot.failures = 0;
        }
        let pause = FIRST_PAUSE * (1 << self.hot.failures);
        self.hot.failures += 1;
        if why.is_for_good() {
            self.hot.failures = MOST_FAILURES;
        }
        self.hot.not_before = now + pause;
        self.hot.stream = None;
        self.end_replica()?;
        let again = self.hot.failures < MOST_FAILURES;
        let milliseconds = || u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
        self.tell(Happening::ReplicaDropped {
            reason: why.to_string(),
            retry_ms: again.then(milliseconds),
        });
        Ok(())
    }

    /// End it, if there is one.
    pub(super) fn end_replica(&mut self) -> Result<(), ServeError> {
        match self.hot.replica.take() {
            Some(replica) => {
                self.listening.settled();
                replica.end(&self.ground.cgroup)
            }
            None => Ok(()),
        }
    }

    /// This host is granted the service, whose record is this: the replica goes on with it, if it can.
    pub(super) fn with_replica(&mut self, record: u64) -> Result<bool, ServeError> {
        self.hot.stream = None;
        while !self.is_to_stop() && self.link().is_some_and(|link| link.awaits_heritage()) {
            let Some(mut replica) = self.hot.replica.take() else {
                return Ok(false);
            };
            let behind = replica.behind();
            let fetched = match replica.edition().record == record {
                true => self.ask_logger(|logger| replica.fetch_rest(logger))?,
                false => Some(None),
            };
            let useless = match fetched {
                Some(Some(Ok(()))) => {
                    let pid = replica.pid();
                    let lag_bytes = behind.max(replica.behind());
                    let (north, server) = replica.into_parts();
                    (self.north, self.server) = (Some(north), Some(server));
                    self.tell(Happening::ReplicaPromoted { pid, lag_bytes });
                    return Ok(true);
                }
                Some(Some(Err(useless))) => useless.to_string(),
                Some(None) => "what it has followed is not the record that there is".into(),
                None => {
                    self.hot.replica = Some(replica); // until the logger answers
                    self.look_at_link()?;
                    self.idle()?;
                    continue;
                }
            };
            replica.end(&self.ground.cgroup)?;
            self.tell(Happening::ReplicaDropped {
                reason: useless,
                retry_ms: None,
            });
        }
        Ok(false)
    }

    /// The connections are known behind the gate, and the server is here already.
    pub(super) fn server_goes_on(&mut self) -> Result<(), ServeError> {
        let now = clock::now();
        self.recovery.goes_on_here(self.cause_of_restoring(), now);
        self.act()?;
        self.incarnation += 1;
        let pid = self.server.as_ref().map(|server| server.pid());
        let pid = pid.map_or(0, |pid| pid.as_raw_pid().unsigned_abs());
        self.ground.plane.main_process(pid)?;
        self.backoff.started(now);
        self.listening.started(now);
        let hold = self.hold();
        if let Some(north) = &mut self.north {
            north.goes_on(hold);
        }
        self.show_processes_the_way()?;
        self.compare_record()?;
        if self.listens()? {
            self.recovery.listening(clock::now());
        }
        if let Some(north) = &self.north {
            north.memory().end_replica();
        }
        Ok(())
    }

    /// What tells that there is something to follow.
    pub(super) fn watch_followed<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        let stream = self.hot.stream.as_ref();
        fds.extend(stream.map(|one| PollFd::from_borrowed_fd(one.as_fd(), PollFlags::IN)));
        let replica = self.hot.replica.as_ref();
        fds.extend(replica.map(|one| PollFd::new(one.server(), PollFlags::IN)));
        let says = replica.map(|one| PollFd::from_borrowed_fd(one.north.watch(), PollFlags::IN));
        fds.extend(says);
    }

    /// There is a server that follows, and has nothing left to do.
    pub(super) fn follows_to_the_end(&self) -> bool {
        let replica = self.hot.replica.as_ref();
        replica.is_some_and(|replica| replica.behind() == 0)
    }

    pub(super) fn replica_status(&self) -> Option<ReplicaStatus> {
        let replica = self.hot.replica.as_ref()?;
        let missing = match self.follows_to_the_end() {
            true => self.not_listened_on().unwrap_or_default(),
            false => Vec::new(),
        };
        Some(ReplicaStatus {
            pid: replica.pid(),
            record_bytes: replica.north.record_bytes(),
            lag_bytes: replica.behind(),
            not_listening: in_words(&missing),
        })
    }
}
