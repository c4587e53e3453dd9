//! Which of the loggers knows of an earlier life of the service.
//!
//! A service of which nothing is on its host may have had one: the host has stopped. Then one of the
//! loggers has the records, and perhaps another one has older ones, which are the past. So all are
//! asked before the first is taken in use, and as it may be that they have stopped with the host, for
//! longer than one is usually waited for. The records of the latest session become those of this
//! instance; loggers that are not chosen forget what they have.

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

/// How soon one is asked again that somebody else may use.
const TAKEN_RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// How soon one is asked again that writes the last of the records: clients wait for no more than its disk.
const UNWRITTEN_RETRY_INTERVAL: Duration = Duration::from_millis(5);
/// How long somebody else may have them before they are believed to be his.
const TAKEN_TIMEOUT: Duration = Duration::from_secs(5);

/// How long loggers that do not answer are waited for, once each was asked; `None`: for ever.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SurveyTimeouts {
    /// If none has answered.
    pub(crate) none: Option<Duration>,
    /// If some have.
    pub(crate) some: Duration,
}

/// How far all are.
pub(crate) struct Survey {
    candidates: Vec<Candidate>,
    since: Duration,
}

/// How far one is.
struct Candidate {
    state: State,
    /// There was an answer, or an error, once.
    tried: bool,
    /// Since when somebody else has the records.
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
    /// Nobody was asked yet.
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

    /// Look at what has come, and ask again. Tells whether it is enough.
    ///
    /// # Errors
    /// All refuse us, which no waiting will change; or one knows another service with an address of ours.
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

    /// Whose answers are awaited.
    pub(crate) fn watch<'a>(&'a self, fds: &mut Vec<PollFd<'a>>) {
        let watched = self.candidates.iter().filter_map(|one| match &one.state {
            State::Now(dialing, _) => Some(dialing.as_fd()),
            _ => None,
        });
        fds.extend(watched.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
    }

    /// Take the one in use that knows most, if any has answered.
    pub(crate) fn choose(self, link: &mut Link) {
        let knows = |one: &Candidate| match &one.state {
            State::Answered(dialed, _) => Some((dialed.attached.kept, dialed.attached.session)),
            _ => None,
        };
        let known = self.candidates.iter().map(knows).enumerate();
        let known = known.filter_map(|(logger, knows)| Some((knows?, Reverse(logger))));
        // Of several that know nothing, or the same, the one that the operator prefers.
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
