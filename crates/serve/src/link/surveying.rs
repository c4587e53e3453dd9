//! Which of the loggers knows of an earlier life of the service.
//!
//! A service of which nothing is on its host may have had one: the host has stopped. Then one of the
//! loggers has the records, and perhaps another one has older ones, which are the past. So all are
//! asked before the first is taken in use, and as it may be that they have stopped with the host, for
//! longer than one is usually waited for. The records with the highest [`Attach::session`] become those
//! of this instance; loggers that are not chosen forget what they have.

use std::{cmp::Reverse, net::UdpSocket, time::Duration};

use dataplane::link_socket;

use super::{
    Link, RETRY, Refused,
    dialing::{Dialed, Dialing},
};
use crate::{
    clock,
    error::{ServeError, SystemContext},
};

/// How soon one is asked again whose records were somebody's a moment ago.
const STILL_SERVED: Duration = Duration::from_millis(200);
/// How long somebody else may have them before they are believed to be his.
const SOMEBODY_ELSE: Duration = Duration::from_secs(5);

/// How long loggers that do not answer are waited for, once each was asked; `None`: for ever.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// If none has answered.
    pub(crate) none: Option<Duration>,
    /// If some have.
    pub(crate) some: Duration,
}

/// How far all are.
pub(crate) struct Survey {
    asked: Vec<Asked>,
    since: Duration,
}

/// How far one is.
enum Asked {
    Not {
        until: Duration,
        tried: bool,
    },
    Now(Dialing, UdpSocket),
    Answered(Box<Dialed>, UdpSocket),
    /// There is no sense in asking again.
    Refused,
}

impl Survey {
    /// Nobody was asked yet.
    pub(crate) fn of(link: &Link, now: Duration) -> Self {
        let not = |_| Asked::Not {
            until: now,
            tried: false,
        };
        Self {
            asked: link.config.loggers.iter().map(not).collect(),
            since: now,
        }
    }

    /// Look at what has come, and ask again. Tells whether it is enough.
    ///
    /// # Errors
    /// All refuse us, which no waiting will change.
    pub(crate) fn poll(
        &mut self,
        link: &mut Link,
        patience: Patience,
        now: Duration,
    ) -> Result<bool, ServeError> {
        for (logger, one) in self.asked.iter_mut().enumerate() {
            link.ask_once(logger, one, self.since, now);
        }
        if let Some(why) = link.refused_by_all() {
            return Err(ServeError::NoLogger(why));
        }
        let waited = now.saturating_sub(self.since);
        let tried = self.asked.iter().all(Asked::was_tried);
        let known = self.asked.iter().all(Asked::is_known);
        let patient = if self.asked.iter().any(Asked::has_answered) {
            waited < patience.some
        } else {
            patience.none.is_none_or(|none| waited < none)
        };
        Ok(known || (tried && !patient))
    }

    /// Take the one in use that knows most, if any has answered.
    pub(crate) fn choose(self, link: &mut Link) {
        let knows = |one: &Asked| match one {
            Asked::Answered(dialed, _) if dialed.attached.kept => Some(dialed.attached.session),
            Asked::Answered(..) => Some(0),
            _ => None,
        };
        let known = self.asked.iter().map(knows).enumerate();
        let known = known.filter_map(|(logger, session)| Some((session?, logger)));
        // Of several that know nothing, or the same, the one that the operator prefers.
        let chosen = known.max_by_key(|(session, logger)| (*session, Reverse(*logger)));
        let Some((_, chosen)) = chosen else {
            return; // we go on without, and attach to the first that answers
        };
        for (logger, one) in self.asked.into_iter().enumerate() {
            match one {
                Asked::Answered(dialed, socket) if logger == chosen => {
                    if dialed.attached.kept {
                        link.inherited_from = Some(logger);
                    }
                    link.attached(logger, socket, *dialed, clock::now());
                }
                Asked::Answered(dialed, _) => dialed.client.shut_down(),
                _ => {}
            }
        }
    }
}

impl Link {
    fn ask_once(&mut self, logger: usize, one: &mut Asked, since: Duration, now: Duration) {
        match one {
            Asked::Not { until, .. } if now >= *until => {
                *one = match self.begin_asking(logger) {
                    Ok((dialing, socket)) => Asked::Now(dialing, socket),
                    Err(error) => self.no_answer(logger, &error, since, now),
                }
            }
            Asked::Now(dialing, _) => {
                let Some(result) = dialing.result() else {
                    return;
                };
                let before = std::mem::replace(one, Asked::Refused);
                *one = match (result, before) {
                    (Ok(dialed), Asked::Now(_, socket)) => {
                        self.refused[logger] = None;
                        Asked::Answered(Box::new(dialed), socket)
                    }
                    (Err(error), _) => self.no_answer(logger, &error, since, now),
                    (Ok(_), other) => other,
                };
            }
            Asked::Not { .. } | Asked::Answered(..) | Asked::Refused => {}
        }
    }

    fn begin_asking(&mut self, logger: usize) -> Result<(Dialing, UdpSocket), ServeError> {
        let socket = link_socket(self.config.loggers[logger])?;
        let port = socket.local_addr().doing("ask for our own port")?.port();
        let dialing = self.start(logger, port, true)?;
        Ok((dialing, socket))
    }

    /// When it is asked again.
    fn no_answer(
        &mut self,
        logger: usize,
        error: &ServeError,
        since: Duration,
        now: Duration,
    ) -> Asked {
        if matches!(error, ServeError::StillServed(_)) {
            if now.saturating_sub(since) < SOMEBODY_ELSE {
                return Asked::again(now + STILL_SERVED);
            }
            self.trouble(format!(
                "{error}: another one of this name serves there, and its connections are left to it; give each service of a host its own --name"
            ));
            return Asked::Refused;
        }
        let refused = Refused::of(error);
        let for_good = refused.for_good;
        self.note_refusal(logger, refused);
        if for_good {
            return Asked::Refused;
        }
        Asked::again(now + RETRY / 4)
    }
}

impl Asked {
    const fn again(until: Duration) -> Self {
        Self::Not { until, tried: true }
    }

    fn was_tried(&self) -> bool {
        !matches!(self, Self::Not { tried: false, .. } | Self::Now(..))
    }

    fn is_known(&self) -> bool {
        self.has_answered() || matches!(self, Self::Refused)
    }

    fn has_answered(&self) -> bool {
        matches!(self, Self::Answered(..))
    }
}
