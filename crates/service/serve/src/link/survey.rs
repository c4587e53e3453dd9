//! Search for the logger that knows an earlier incarnation of the service.
//!
//! A service without data on this host may have an earlier incarnation: the host was down. Then a logger has the
//! records, and another logger may have older, stale records. Therefore `serve` asks all loggers before the first
//! logger is in use. The loggers may have been down together with the host, so this wait is longer than a usual wait
//! for a logger. The records of the latest session become the records of this instance; all other loggers drop their
//! records.

use std::{cmp::Reverse, net::UdpSocket, time::Duration};

use dataplane::link_socket;
use rustix::event::{PollFd, PollFlags};

use super::{
    Link, RETRY, Refused,
    dial::{AttachedLogger, DialAttempt},
};
use crate::{
    clock,
    error::{ServeError, SystemContext},
    events::Code,
};

/// Delay of the next request to a logger whose records may be in use by another host.
const TAKEN_RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// Delay of the next request to a logger that writes the end of the records: clients wait for no more than the logger's
/// disk.
const UNWRITTEN_RETRY_INTERVAL: Duration = Duration::from_millis(5);
/// Time after which records in use by another host are believed to belong to that host.
const TAKEN_TIMEOUT: Duration = Duration::from_secs(5);

/// Wait for loggers that do not answer, once each logger was asked; `None`: for ever.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SurveyTimeouts {
    /// If none has answered.
    pub(crate) none: Option<Duration>,
    /// If some have.
    pub(crate) some: Duration,
}

/// Progress of all loggers.
pub(crate) struct Survey {
    candidates: Vec<Candidate>,
    since: Duration,
}

/// Progress of a logger.
struct Candidate {
    state: State,
    /// There was an answer, or an error, once.
    tried: bool,
    /// When the records were first seen in use by another host.
    taken_since: Option<Duration>,
}

enum State {
    Again(Duration),
    Now(DialAttempt, UdpSocket),
    Answered(Box<AttachedLogger>, UdpSocket),
    /// There is no sense in asking again.
    Refused,
}

impl Survey {
    /// Begins the survey; no request is sent yet.
    pub(crate) fn of(link: &Link, now: Duration) -> Self {
        let not_yet = |_| Candidate {
            state: State::Again(now),
            tried: false,
            taken_since: None,
        };
        Self {
            candidates: link.config.loggers.iter().map(not_yet).collect(),
            since: now,
        }
    }

    /// Handle arrived answers, and send due requests. Returns whether the survey is complete.
    ///
    /// # Errors
    /// All loggers refuse this service, and waiting will not change the reason; or a logger knows another service with
    /// an address of this service.
    pub(crate) fn poll(
        &mut self,
        link: &mut Link,
        timeouts: SurveyTimeouts,
        now: Duration,
    ) -> Result<bool, ServeError> {
        for (logger, one) in self.candidates.iter_mut().enumerate() {
            link.poll_candidate(logger, one, now)?;
        }
        if let Some(why) = link.refused_by_all() {
            return Err(ServeError::NoLogger(why));
        }
        let waited = now.saturating_sub(self.since);
        let tried = self.candidates.iter().all(|one| one.tried);
        let known = self.candidates.iter().all(Candidate::is_known);
        let patient = if self.candidates.iter().any(Candidate::has_answered) {
            waited < timeouts.some
        } else {
            timeouts.none.is_none_or(|none| waited < none)
        };
        Ok(known || (tried && !patient))
    }

    /// Descriptors of the open attempts.
    pub(crate) fn watch<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        let watched = self.candidates.iter().filter_map(|one| match &one.state {
            State::Now(dialing, _) => Some(dialing.as_fd()),
            _ => None,
        });
        fds.extend(watched.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
    }

    /// Use the logger that knows most, if any has answered.
    pub(crate) fn choose(self, link: &mut Link) {
        let knows = |one: &Candidate| match &one.state {
            State::Answered(dialed, _) => Some((dialed.attached.kept, dialed.attached.session)),
            _ => None,
        };
        let known = self.candidates.iter().map(knows).enumerate();
        let known = known.filter_map(|(logger, knows)| Some((knows?, Reverse(logger))));
        // Of several loggers with the same knowledge, or none, the logger that the operator prefers.
        let Some((_, Reverse(chosen))) = known.max() else {
            return; // we go on without, and attach to the first that answers
        };
        for (logger, one) in self.candidates.into_iter().enumerate() {
            match one.state {
                State::Answered(dialed, socket) if logger == chosen => {
                    if dialed.attached.kept {
                        link.inherited_from = Some(logger);
                        link.awaits_inherited_records = true;
                    }
                    link.on_attached(logger, socket, *dialed, clock::now());
                }
                State::Answered(dialed, _) => drop(dialed.client.shut_down()),
                _ => {}
            }
        }
    }
}

impl Link {
    fn poll_candidate(
        &mut self,
        logger: usize,
        one: &mut Candidate,
        now: Duration,
    ) -> Result<(), ServeError> {
        let state = std::mem::replace(&mut one.state, State::Refused);
        one.state = match state {
            State::Again(at) if now >= at => match self.start_candidate(logger) {
                Ok((dialing, socket)) => State::Now(dialing, socket),
                Err(error) => self.on_failed_attempt(logger, one, &error, now),
            },
            State::Now(dialing, socket) => match dialing.result() {
                None => State::Now(dialing, socket),
                Some(Ok(dialed)) => {
                    one.tried = true;
                    self.refused[logger] = None;
                    State::Answered(Box::new(dialed), socket)
                }
                Some(Err(error @ ServeError::AddressClaimed(_))) => return Err(error),
                Some(Err(error)) => self.on_failed_attempt(logger, one, &error, now),
            },
            other => other,
        };
        Ok(())
    }

    fn start_candidate(&mut self, logger: usize) -> Result<(DialAttempt, UdpSocket), ServeError> {
        let socket = link_socket(self.config.loggers[logger])?;
        let port = socket.local_addr().doing("ask for our own port")?.port();
        let dialing = self.start_attach(logger, port, true)?;
        Ok((dialing, socket))
    }

    fn on_failed_attempt(
        &mut self,
        logger: usize,
        one: &mut Candidate,
        error: &ServeError,
        now: Duration,
    ) -> State {
        one.tried = true;
        match error {
            ServeError::StillWritten(_) => return State::Again(now + UNWRITTEN_RETRY_INTERVAL),
            ServeError::StillServed(_) => {
                let since = *one.taken_since.get_or_insert(now);
                if now.saturating_sub(since) < TAKEN_TIMEOUT {
                    return State::Again(now + TAKEN_RETRY_INTERVAL);
                }
                let message = format!(
                    "{error}: another one of this name serves there, and its connections are left to it; give each service of a host its own --name"
                );
                self.warn(Code::NameInUse, message);
                return State::Refused;
            }
            _ => one.taken_since = None,
        }
        let refused = Refused::of(error);
        let for_good = refused.for_good;
        self.record_refusal(logger, refused);
        if for_good {
            return State::Refused;
        }
        State::Again(now + RETRY / 4)
    }
}

impl Candidate {
    fn is_known(&self) -> bool {
        matches!(self.state, State::Answered(..) | State::Refused)
    }

    fn has_answered(&self) -> bool {
        matches!(self.state, State::Answered(..))
    }
}
