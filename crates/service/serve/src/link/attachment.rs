//! Attaching to a logger, and again to the same logger.

use std::{net::UdpSocket, time::Duration};

use dataplane::link_socket;
use protocol::{DigestSeed, control::Attach};

use super::{
    AttachRequest, KEY_FILE_POLL_INTERVAL, Link, LinkEvent, RETRY, Refused,
    dial::{AttachedLogger, DialAttempt},
    session::Session,
};
use crate::{
    error::{ServeError, SystemContext},
    events::Code,
    logger_client::{Attached, LoggerClient},
};

/// The warning if a logger knows another service with an address of this service.
const TWO_SERVICES: &str = "two services have one address, and two hosts answer its clients (or it is another address behind NAT: --shared-address)";

impl Link {
    /// The key file has a new first key, or lacks the key in use: attach to the same logger again.
    pub(super) fn poll_keys(&mut self, now: Duration) {
        if now < self.poll_keys_at {
            return;
        }
        self.poll_keys_at = now + KEY_FILE_POLL_INTERVAL;
        self.reload_keys();
        let first = self.keys.first();
        let client = self
            .session
            .as_ref()
            .and_then(|session| session.client.as_ref());
        let stale = client
            .and_then(LoggerClient::key)
            .is_some_and(|key| key != first);
        if stale && self.dial_attempt.is_none() && now >= self.retry_at {
            self.next = self.session.as_ref().map_or(0, |session| session.logger);
            self.retry_at = now + RETRY; // if the logger does not know the new key yet
            self.start_dial(now);
        }
    }

    pub(super) fn poll_dial(&mut self, now: Duration) {
        let Some(result) = self
            .dial_attempt
            .as_ref()
            .and_then(|(dialing, _)| dialing.result())
        else {
            return;
        };
        let Some((dialing, socket)) = self.dial_attempt.take() else {
            return;
        };
        match result {
            Ok(dialed) => self.on_attached(dialing.logger, socket, dialed, now),
            Err(error) => self.on_dial_failure(dialing.logger, &error, now),
        }
    }

    /// A logger has answered on the control stream.
    pub(super) fn on_attached(
        &mut self,
        logger: usize,
        socket: UdpSocket,
        dialed: AttachedLogger,
        now: Duration,
    ) {
        let AttachedLogger {
            mut client,
            attached,
            beside,
        } = dialed;
        self.refused[logger] = None;
        if let Some(other) = beside {
            self.warn(Code::AddressShared, format!("{TWO_SERVICES}: {other}"));
        }
        let mut attached = self.number_session(logger, attached);
        self.frames.attached(attached.kept);
        attached.digests = self.usable_seed(attached.digests);
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
                session.disconnected = None;
                session.kept &= attached.kept;
                session.digests = attached.digests;
                session.set_keys(attached.keys, now);
                if !attached.kept && session.up && !self.is_loss_reported {
                    session.kept = true;
                    self.events.push_back(LinkEvent::Emptied);
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
        self.events
            .extend([LinkEvent::Settings, LinkEvent::Attached]);
    }

    /// Digests with another key are of use only if this service adopts the key, together with the records of an earlier
    /// incarnation.
    fn usable_seed(&self, theirs: Option<DigestSeed>) -> Option<DigestSeed> {
        theirs
            .filter(|theirs| self.awaits_inherited_records || self.request.digests == Some(*theirs))
    }

    /// Records of an earlier session are the past if another logger was in use since.
    fn number_session(&mut self, logger: usize, attached: Attached) -> Attached {
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

    fn on_dial_failure(&mut self, logger: usize, error: &ServeError, now: Duration) {
        if let ServeError::AddressClaimed(why) = error {
            self.claimed = Some(why.clone());
        }
        self.record_refusal(logger, Refused::of(error));
        self.advance(now);
    }

    pub(super) fn record_refusal(&mut self, logger: usize, refused: Refused) {
        let refused = Some(refused);
        if self.refused[logger] != refused {
            let why = refused.as_ref().map(|refused| refused.why.clone());
            let warning = why.map(|why| LinkEvent::Warning(Code::LoggerRefuses, why));
            self.events.extend(warning);
            self.refused[logger] = refused;
        }
    }

    /// Go on to the next logger; after the last logger, wait before the next try.
    pub(super) fn advance(&mut self, now: Duration) {
        self.tried += 1;
        if let Some(logger) = self.required_logger() {
            self.next = logger;
            self.retry_at = now + RETRY.min(self.config.timeout / 4);
            return;
        }
        self.next = (self.next + 1) % self.config.loggers.len();
        self.retry_at = if self.next == 0 { now + RETRY } else { now };
    }

    pub(super) fn needs_dial(&self) -> bool {
        let attached = self
            .session
            .as_ref()
            .is_some_and(|session| session.client.is_some());
        !attached && self.dial_attempt.is_none()
    }

    pub(super) fn dial(&mut self, now: Duration) {
        if self.needs_dial() && now >= self.retry_at {
            self.start_dial(now);
        }
    }

    fn reload_keys(&mut self) {
        if let Err(error) = self.keys.reload_if_changed() {
            let message = format!("{error}; the old keys stay in use");
            self.warn(Code::KeysNotRead, message);
        }
    }

    fn start_dial(&mut self, now: Duration) {
        let logger = self.next;
        if let Err(error) = self.try_dial(logger) {
            self.on_dial_failure(logger, &error, now);
        }
    }

    fn try_dial(&mut self, logger: usize) -> Result<(), ServeError> {
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
        // The logger may have died before writing that the records belong to this instance now.
        let inherit = self.inherited_from == Some(logger);
        self.dial_attempt = Some((self.start_attach(logger, port, inherit)?, socket));
        Ok(())
    }

    pub(super) fn start_attach(
        &mut self,
        logger: usize,
        udp_port: u16,
        inherit: bool,
    ) -> Result<DialAttempt, ServeError> {
        let at = self.config.loggers[logger];
        self.reload_keys(); // the logger may have read the file a moment ago
        let attach = Attach {
            udp_port,
            inherit,
            ..self.request.attach.clone()
        };
        let key = self.keys.first().clone();
        let request = AttachRequest {
            attach,
            ..self.request.clone()
        };
        DialAttempt::start(logger, at, key, request, self.config.timeout)
            .doing("start a thread that calls the logger")
    }
}
