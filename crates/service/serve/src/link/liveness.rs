//! Liveness of the logger in use: detection and consequences.

use std::{net::SocketAddr, time::Duration};

use super::{
    Link, LinkEvent, REKEY,
    session::{mtu_of, unreachable_by_udp},
};
use crate::{config::OnLoggerLoss, logger_client::LoggerClient};

impl Link {
    /// Handle arrived datagrams and messages: answers to probes, and messages without a request.
    pub(super) fn receive(&mut self, now: Duration) {
        let Some(session) = &mut self.session else {
            return;
        };
        let mut other_size = false;
        let mut buffer = [0; 2048];
        // An error belongs to an earlier datagram of `serve`: perhaps no logger listens there (any more).
        while let Ok(len) = session.socket.recv(&mut buffer) {
            other_size |= session.prober.on_datagram(&buffer[..len], now);
        }
        if other_size {
            self.events.push_back(LinkEvent::Settings);
        }
        if let Some(Err(error)) = session.client.as_mut().map(LoggerClient::listen) {
            self.broken(&error, now);
        }
    }

    pub(super) fn probe(&mut self, now: Duration) {
        let Some(session) = &mut self.session else {
            return;
        };
        if session.prober.has_shrunk(now) {
            session.prober.search(mtu_of(&session.socket), now);
        }
        let before = session.prober.mtu();
        for datagram in session.prober.due(now) {
            // Too long for the interface, no route, no logger: no answer comes.
            let _ = session.socket.send(&datagram);
        }
        if session.prober.mtu() != before {
            self.events.push_back(LinkEvent::Settings);
        }
        let complete = session.prober.mtu().is_some() && session.client.is_some();
        let seen = session.route.hidden.is_none();
        if complete
            && seen
            && (!session.up || self.is_loss_reported)
            && session.has_answered_probe()
        {
            let kept = std::mem::replace(&mut session.kept, true);
            session.up = true;
            self.is_loss_reported = false;
            self.tried = 0;
            self.events.push_back(LinkEvent::Up { kept });
        }
    }

    pub(super) fn rekey(&mut self, now: Duration) {
        let Some(session) = &mut self.session else {
            return;
        };
        if now < session.rekey_at {
            return;
        }
        session.rekey_at = now + REKEY;
        let Some(client) = &mut session.client else {
            return;
        };
        match client.rekey() {
            Ok(keys) => {
                session.set_keys(keys, now);
                session.prober.search(mtu_of(&session.socket), now); // the MTU may be larger now
                self.events.push_back(LinkEvent::Settings);
            }
            Err(error) => self.broken(&error, now),
        }
    }

    /// Is the logger lost?
    pub(super) fn detect_loss(&mut self, now: Duration) {
        let Some(session) = &self.session else {
            if self.tried >= self.config.loggers.len() && !self.is_loss_reported {
                self.lose(
                    self.config.loggers[0],
                    "no logger can be reached".to_owned(),
                );
            }
            return;
        };
        if session.missing(now) < self.config.timeout {
            return;
        }
        let was_up = session.up;
        let logger = self.config.loggers[session.logger];
        let why = match &session.disconnected {
            Some((_, why)) => why.clone(),
            None if session.has_answered_probe() && session.route.hidden.is_some() => {
                "what goes there leaves by an interface without our programs (they need Ethernet)"
                    .into()
            }
            None if session.up => format!("no answer for {} ms", self.config.timeout.as_millis()),
            None => unreachable_by_udp(logger),
        };
        if !self.is_loss_reported {
            self.lose(logger, why);
        }
        let may_change = self.config.on_loss == OnLoggerLoss::Unprotect || !was_up;
        if may_change && !self.awaits_inherited_records {
            self.dial_attempt = None;
            self.next = self.session.take().map_or(0, |session| session.logger);
            self.advance(now);
        } else if let Some(session) = &mut self.session
            && session.disconnected.is_none()
        {
            // The stream may hang because the machine at the address has changed.
            session.client = None;
            session.disconnected = Some((now, "it did not answer".to_owned()));
            self.retry_at = now;
            self.next = session.logger;
        }
    }

    fn lose(&mut self, logger: SocketAddr, why: String) {
        self.is_loss_reported = true;
        self.events.push_back(LinkEvent::Lost { logger, why });
    }
}
