//! Hot standby: the server runs here, too, and replays the determinants of the active host. When this host is granted
//! the service, the replica continues as the server. A replica with any fault is dropped: then this host takes over
//! like a cold standby, with a replay from the beginning.

use std::{os::fd::AsFd, time::Duration};

use protocol::control::Edition;
use rustix::event::{PollFd, PollFlags};

use super::Service;
use crate::{
    clock,
    config::in_words,
    error::{ServeError, SystemContext},
    events::Event,
    lease_client::{LOGGER_CONNECT_TIMEOUT, LeaseClient},
    logger_client::{LoggerClient, LoggerMessage},
    north::North,
    replica::{Replica, ReplicaError},
    standby_eligibility,
    status::ReplicaStatus,
};

/// Delay after a failed request to the logger.
const LOGGER_RETRY_DELAY: Duration = Duration::from_secs(1);
/// Delay before the first restart of a replica. Each failure doubles the delay.
const FIRST_RESTART_DELAY: Duration = Duration::from_secs(1);
/// Failures in a row after which this host is a cold standby.
const CONSECUTIVE_FAILURES_MAX: u32 = 5;
/// Replay without failure after which earlier failures no longer count.
const FAILURE_RESET_AFTER: Duration = Duration::from_secs(60);

/// The replica of a hot standby, and the stream of determinants from the logger.
#[derive(Default)]
pub(super) struct HotReplica {
    stream: Option<LoggerClient>,
    /// Stream of the lease client when `stream` was opened:
    /// [`Position::stream`](crate::lease_client::Position::stream).
    beside: u64,
    replica: Option<Replica>,
    /// No attempt before this time.
    not_before: Duration,
    failures: u32,
}

/// Failure of the replication.
enum ReplicationError {
    /// The stream has failed, and is opened again.
    Stream(ServeError),
    Replica(ReplicaError),
}

impl From<ReplicaError> for ReplicationError {
    fn from(useless: ReplicaError) -> Self {
        Self::Replica(useless)
    }
}

impl Service {
    /// A step of the replication on a hot standby. A failure never ends the standby.
    pub(super) fn replicate(&mut self) -> Result<(), ServeError> {
        let position = self.resources.lease.as_ref().map(LeaseClient::position);
        let Some(position) = position.filter(|position| position.stands_by.is_some()) else {
            return Ok(());
        };
        if !self.config.hot || self.hot_replica.failures >= CONSECUTIVE_FAILURES_MAX {
            return Ok(());
        }
        // No request goes out on this stream: `serve` would wait for a logger without power for ever.
        if std::mem::replace(&mut self.hot_replica.beside, position.stream) != position.stream {
            self.hot_replica.stream = None;
        }
        match self.replicate_step()? {
            Ok(()) => self.check_replica_listeners(),
            Err(ReplicationError::Stream(error)) => {
                tracing::debug!(%error, "the logger is not followed");
                self.hot_replica.stream = None;
                self.hot_replica.not_before = clock::now() + LOGGER_RETRY_DELAY;
                Ok(())
            }
            Err(ReplicationError::Replica(useless)) => self.drop_replica(&useless),
        }
    }

    fn replicate_step(&mut self) -> Result<Result<(), ReplicationError>, ServeError> {
        if self.hot_replica.stream.is_none() {
            if clock::now() < self.hot_replica.not_before {
                return Ok(self.poll_replica());
            }
            match self.open_replica_stream() {
                Ok(stream) => self.hot_replica.stream = Some(stream),
                Err(error) => return Ok(Err(ReplicationError::Stream(error))),
            }
        }
        loop {
            let Some(stream) = &mut self.hot_replica.stream else {
                return Ok(Ok(()));
            };
            if let Err(error) = stream.listen() {
                return Ok(Err(ReplicationError::Stream(error)));
            }
            if !stream.has_message() {
                break;
            }
            while let Some(said) = self
                .hot_replica
                .stream
                .as_mut()
                .and_then(LoggerClient::next_message)
            {
                if let Err(error) = self.handle_message(said)? {
                    return Ok(Err(error));
                }
            }
            if let Err(error) = self.poll_replica() {
                return Ok(Err(error));
            }
        }
        Ok(self.poll_replica())
    }

    fn open_replica_stream(&self) -> Result<LoggerClient, ServeError> {
        let (Some(at), Some(link)) = (
            standby_eligibility::granter(&self.config),
            &self.config.link,
        ) else {
            return Err(ServeError::SeveralLoggers);
        };
        let mut stream = LoggerClient::call(at, &link.key_file, LOGGER_CONNECT_TIMEOUT)?;
        let replica = self.hot_replica.replica.as_ref();
        let edition = replica.map(Replica::edition);
        let streams = replica.map_or_else(Vec::new, Replica::streams);
        stream.follow(self.config.name.clone(), edition, streams)?;
        Ok(stream)
    }

    fn handle_message(
        &mut self,
        said: LoggerMessage,
    ) -> Result<Result<(), ReplicationError>, ServeError> {
        match said {
            LoggerMessage::Followed(edition) => {
                self.stop_replica()?;
                // A server without a record has no determinants to replicate.
                let edition = edition.filter(|one| one.record != Edition::WITHOUT);
                if let Some(edition) = edition
                    && let Err(error) = self.start_replica(edition)
                {
                    return Ok(Err(ReplicaError::NotStarted(error.to_string()).into()));
                }
            }
            LoggerMessage::Grown(process, from, bytes) => {
                if let Some(replica) = &mut self.hot_replica.replica {
                    match replica.append(process, from, &bytes) {
                        Ok(true) => {}
                        Ok(false) => {
                            let error = ServeError::Logger("it left something out".into());
                            return Ok(Err(ReplicationError::Stream(error)));
                        }
                        Err(useless) => return Ok(Err(useless.into())),
                    }
                }
            }
            _ => {}
        }
        Ok(Ok(()))
    }

    /// Starts the server as a replica of this edition.
    fn start_replica(&mut self, edition: Edition) -> Result<(), ServeError> {
        let directory = self.resources.lock.directory();
        let mut north = North::inherited(directory, self.config.limits.total, edition.record)?;
        north.memory().hold(self.hold());
        north.memory().clients_connect_to(&self.config.addresses);
        north.memory().follow();
        let command = supervise::Command::new(self.config.command.clone());
        let shipping = self.sender_socket()?;
        let shipping = shipping.as_ref().map(AsFd::as_fd);
        let server = north
            .start(&command, &self.resources.cgroup, shipping, &mut |_| Ok(()))
            .map_err(std::io::Error::other)
            .doing("start the server that is to follow")?;
        let replica = Replica::new(north, server, edition);
        let pid = replica.pid();
        self.hot_replica.replica = Some(replica);
        self.readiness.started(clock::now());
        self.emit(Event::ReplicaStarted { pid });
        Ok(())
    }

    fn poll_replica(&mut self) -> Result<(), ReplicationError> {
        let Some(replica) = &mut self.hot_replica.replica else {
            return Ok(());
        };
        replica.poll()?;
        if let Some(stream) = &mut self.hot_replica.stream {
            replica
                .trim_output(stream)
                .map_err(ReplicationError::Stream)?;
        }
        if replica.reaches_end(clock::now()) {
            let bytes = replica.north.record_bytes();
            self.emit(Event::CaughtUp { bytes });
        }
        Ok(())
    }

    /// Ends a failed replica. The next replica starts after a delay, or never.
    fn drop_replica(&mut self, why: &ReplicaError) -> Result<(), ServeError> {
        let now = clock::now();
        let since = self
            .hot_replica
            .replica
            .as_ref()
            .and_then(Replica::caught_up);
        if since.is_some_and(|since| now.saturating_sub(since) >= FAILURE_RESET_AFTER) {
            self.hot_replica.failures = 0;
        }
        let pause = FIRST_RESTART_DELAY * (1 << self.hot_replica.failures);
        self.hot_replica.failures += 1;
        if why.is_permanent() {
            self.hot_replica.failures = CONSECUTIVE_FAILURES_MAX;
        }
        self.hot_replica.not_before = now + pause;
        self.hot_replica.stream = None;
        self.stop_replica()?;
        let again = self.hot_replica.failures < CONSECUTIVE_FAILURES_MAX;
        let milliseconds = || u64::try_from(pause.as_millis()).unwrap_or(u64::MAX);
        self.emit(Event::ReplicaDropped {
            reason: why.to_string(),
            retry_ms: again.then(milliseconds),
        });
        Ok(())
    }

    /// Ends the replica, if present.
    pub(super) fn stop_replica(&mut self) -> Result<(), ServeError> {
        match self.hot_replica.replica.take() {
            Some(replica) => {
                self.readiness.settled();
                replica.end(&self.resources.cgroup)
            }
            None => Ok(()),
        }
    }

    /// This host was granted the service with this record: promotes the replica, if possible.
    pub(super) fn promote_replica(&mut self, record: u64) -> Result<bool, ServeError> {
        self.hot_replica.stream = None;
        while !self.should_stop()
            && self
                .link()
                .is_some_and(|link| link.awaits_inherited_records())
        {
            let Some(mut replica) = self.hot_replica.replica.take() else {
                return Ok(false);
            };
            let behind = replica.lag_bytes();
            let fetched = match replica.edition().record == record {
                true => self.ask_logger(|logger| replica.fetch_rest(logger))?,
                false => Some(None),
            };
            let useless = match fetched {
                Some(Some(Ok(()))) => {
                    let pid = replica.pid();
                    let lag_bytes = behind.max(replica.lag_bytes());
                    let (north, server) = replica.into_parts();
                    (self.north, self.server) = (Some(north), Some(server));
                    self.emit(Event::ReplicaPromoted { pid, lag_bytes });
                    return Ok(true);
                }
                Some(Some(Err(useless))) => useless.to_string(),
                Some(None) => "what it has followed is not the record that there is".into(),
                None => {
                    self.hot_replica.replica = Some(replica); // until the logger answers
                    self.look_at_link()?;
                    self.idle()?;
                    continue;
                }
            };
            replica.end(&self.resources.cgroup)?;
            self.emit(Event::ReplicaDropped {
                reason: useless,
                retry_ms: None,
            });
        }
        Ok(false)
    }

    /// Continues with the promoted server: all connections are known behind the gate.
    pub(super) fn take_over_with_replica(&mut self) -> Result<(), ServeError> {
        let now = clock::now();
        self.recovery.promote(self.restore_cause(), now);
        self.execute()?;
        self.incarnation += 1;
        let pid = self.server.as_ref().map(|server| server.pid());
        let pid = pid.map_or(0, |pid| pid.as_raw_pid().unsigned_abs());
        self.resources.plane.main_process(pid)?;
        self.backoff.started(now);
        self.readiness.started(now);
        let hold = self.hold();
        if let Some(north) = &mut self.north {
            north.promote(hold);
        }
        self.set_sender_destination()?;
        self.compare_determinants()?;
        if self.listens()? {
            self.recovery.listening(clock::now());
        }
        if let Some(north) = &self.north {
            north.memory().end_replica();
        }
        Ok(())
    }

    /// Adds the descriptors of the replication.
    pub(super) fn watch_replica<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        let stream = self.hot_replica.stream.as_ref();
        fds.extend(stream.map(|one| PollFd::from_borrowed_fd(one.as_fd(), PollFlags::IN)));
        let replica = self.hot_replica.replica.as_ref();
        fds.extend(replica.map(|one| PollFd::new(one.server(), PollFlags::IN)));
        let says = replica.map(|one| PollFd::from_borrowed_fd(one.north.watch(), PollFlags::IN));
        fds.extend(says);
    }

    /// The replica has replayed the whole record.
    pub(super) fn replica_is_current(&self) -> bool {
        let replica = self.hot_replica.replica.as_ref();
        replica.is_some_and(|replica| replica.lag_bytes() == 0)
    }

    pub(super) fn replica_status(&self) -> Option<ReplicaStatus> {
        let replica = self.hot_replica.replica.as_ref()?;
        let missing = match self.replica_is_current() {
            true => self.not_listened_on().unwrap_or_default(),
            false => Vec::new(),
        };
        Some(ReplicaStatus {
            pid: replica.pid(),
            record_bytes: replica.north.record_bytes(),
            lag_bytes: replica.lag_bytes(),
            not_listening: in_words(&missing),
        })
    }
}
