//! Getting to a logger, and to the same one again.

use std::{net::UdpSocket, time::Duration};

use dataplane::link_socket;
use protocol::{DigestSeed, control::Attach};

use super::{
    Asks, LOOK_AT_KEYS, Link, News, RETRY, Refused,
    dial::{Dialed, Dialing},
    session::Session,
};
use crate::{
    error::{ServeError, SystemContext},
    events::Code,
    logger_client::{Attached, LoggerClient},
};

/// What is told where a logger knows of another one.
const TWO_SERVICES: &str = "two services have one address, and two hosts answer its clients (or it is another address behind NAT: --shared-address)";

impl Link {
    /// Another first key, or the one in use was removed: the same logger is attached to anew.
    pub(super) fn look_at_keys(&mut self, now: Duration) {
        if now < self.look_at_keys {
            return;
        }
        self.look_at_keys = now + LOOK_AT_KEYS;
        self.reload_keys();
        let first = self.keys.first();
        let client = self
            .session
            .as_ref()
            .and_then(|session| session.client.as_ref());
        let stale = client
            .and_then(LoggerClient::key)
            .is_some_and(|key| key != first);
        if stale && self.dialing.is_none() && now >= self.retry_at {
            self.next = self.session.as_ref().map_or(0, |session| session.logger);
            self.retry_at = now + RETRY; // if it does not know the new key yet
            self.start_dialing(now);
        }
    }

    pub(super) fn look_at_dialing(&mut self, now: Duration) {
        let Some(result) = self
            .dialing
            .as_ref()
            .and_then(|(dialing, _)| dialing.result())
        else {
            return;
        };
        let Some((dialing, socket)) = self.dialing.take() else {
            return;
        };
        match result {
            Ok(dialed) => self.attached(dialing.logger, socket, dialed, now),
            Err(error) => self.not_reached(dialing.logger, &error, now),
        }
    }

    /// A logger has answered on the control stream.
    pub(super) fn attached(
        &mut self,
        logger: usize,
        socket: UdpSocket,
        dialed: Dialed,
        now: Duration,
    ) {
        let Dialed {
            mut client,
            attached,
            beside,
        } = dialed;
        self.refused[logger] = None;
        if let Some(other) = beside {
            self.trouble(Code::AddressShared, format!("{TWO_SERVICES}: {other}"));
        }
        let mut attached = self.take_in_use(logger, attached);
        self.frames.attached(attached.kept);
        attached.digests = self.of_one_key(attached.digests);
        if attached.digests.is_none() {
            client.without_digests();
        }
        match self
            .session
            .as_mut()
            .filter(|session| session.logger == logger)
        {
            Some(session) => {
                session.client = Some(client);
                session.attached_at = now;
                session.deaf = None;
                session.kept &= attached.kept;
                session.digests = attached.digests;
                session.set_keys(attached.keys, now);
                if !attached.kept && session.up && !self.told_lost {
                    session.kept = true;
                    self.news.push_back(News::Emptied);
                }
            }
            None => {
                self.session = Some(Session::new(
                    logger,
                    socket,
                    client,
                    attached,
                    &self.config,
                    now,
                ))
            }
        }
        self.news.extend([News::Settings, News::Attached]);
    }

    /// Digests of another key than ours are of use only if that becomes ours, as it does with the records of an
    /// earlier life.
    fn of_one_key(&self, theirs: Option<DigestSeed>) -> Option<DigestSeed> {
        theirs.filter(|theirs| self.awaits_heritage || self.asks.digests == Some(*theirs))
    }

    /// Records of an earlier session are the past if another logger was in use since.
    fn take_in_use(&mut self, logger: usize, attached: Attached) -> Attached {
        let at = self.config.loggers[logger];
        let again = self.latest.replace(at) == Some(at);
        let inherited = self.inherited_from == Some(logger);
        if !inherited {
            self.inherited_from = None;
        }
        // Above all that any logger may know.
        self.number = self.number.max(attached.session);
        if !again {
            self.number = self.number.saturating_add(1);
        }
        Attached {
            kept: attached.kept && (again || inherited),
            ..attached
        }
    }

    fn not_reached(&mut self, logger: usize, error: &ServeError, now: Duration) {
        if let ServeError::AddressClaimed(why) = error {
            self.claimed = Some(why.clone());
        }
        self.note_refusal(logger, Refused::of(error));
        self.advance(now);
    }

    pub(super) fn note_refusal(&mut self, logger: usize, refused: Refused) {
        let refused = Some(refused);
        if self.refused[logger] != refused {
            let why = refused.as_ref().map(|refused| refused.why.clone());
            let news = why.map(|why| News::Trouble(Code::LoggerRefuses, why));
            self.news.extend(news);
            self.refused[logger] = refused;
        }
    }

    /// On to the next logger; after the last one, a while later.
    pub(super) fn advance(&mut self, now: Duration) {
        self.tried += 1;
        if let Some(logger) = self.only_one() {
            self.next = logger;
            self.retry_at = now + RETRY.min(self.config.timeout / 4);
            return;
        }
        self.next = (self.next + 1) % self.config.loggers.len();
        self.retry_at = if self.next == 0 { now + RETRY } else { now };
    }

    pub(super) fn wants_dial(&self) -> bool {
        let attached = self
            .session
            .as_ref()
            .is_some_and(|session| session.client.is_some());
        !attached && self.dialing.is_none()
    }

    pub(super) fn dial(&mut self, now: Duration) {
        if self.wants_dial() && now >= self.retry_at {
            self.start_dialing(now);
        }
    }

    fn reload_keys(&mut self) {
        if let Err(error) = self.keys.reload_if_changed() {
            let message = format!("{error}; the old keys stay in use");
            self.trouble(Code::KeysNotRead, message);
        }
    }

    fn start_dialing(&mut self, now: Duration) {
        let logger = self.next;
        if let Err(error) = self.try_dialing(logger) {
            self.not_reached(logger, &error, now);
        }
    }

    fn try_dialing(&mut self, logger: usize) -> Result<(), ServeError> {
        let at = self.config.loggers[logger];
        let same = self
            .session
            .as_ref()
            .filter(|session| session.logger == logger);
        let socket = match same {
            Some(session) => session
                .socket
                .try_clone()
                .doing("share the link's socket")?,
            None => link_socket(at)?,
        };
        let port = socket.local_addr().doing("ask for our own port")?.port();
        // It may have died before it had written that the records are ours now.
        let inherit = self.inherited_from == Some(logger);
        self.dialing = Some((self.start_attaching(logger, port, inherit)?, socket));
        Ok(())
    }

    pub(super) fn start_attaching(
        &mut self,
        logger: usize,
        udp_port: u16,
        inherit: bool,
    ) -> Result<Dialing, ServeError> {
        let at = self.config.loggers[logger];
        self.reload_keys(); // it may have read its own a moment ago
        let attach = Attach {
            udp_port,
            inherit,
            ..self.asks.attach.clone()
        };
        let key = self.keys.first().clone();
        let asks = Asks {
            attach,
            ..self.asks.clone()
        };
        Dialing::start(logger, at, key, asks, self.config.timeout)
            .doing("start a thread that calls the logger")
    }
}
