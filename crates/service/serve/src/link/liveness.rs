//! Hearing whether the logger in use lives, and judging when it does not.

use std::{net::SocketAddr, time::Duration};

use super::{
    Link, News, REKEY,
    session::{mtu_of, unreachable_by_udp},
};
use crate::{config::OnLoggerLoss, logger_client::LoggerClient};

impl Link {
    /// Take what has arrived: answers to probes, and what the logger says by itself.
    pub(super) fn hear(&mut self, now: Duration) {
        let Some(session) = &mut self.session else {
            return;
        };
        let mut other_size = false;
        let mut buffer = [0; 2048];
        // An error is that of a datagram that we sent: nobody listens there (any more), perhaps.
        while let Ok(len) = session.socket.recv(&mut buffer) {
            other_size |= session.prober.heard(&buffer[..len], now);
        }
        if other_size {
            self.news.push_back(News::Settings);
        }
        if let Some(Err(error)) = session.client.as_mut().map(LoggerClient::listen) {
            self.broken(&error, now);
        }
    }

    pub(super) fn ask(&mut self, now: Duration) {
        let Some(session) = &mut self.session else {
            return;
        };
        if session.prober.has_shrunk(now) {
            session.prober.search(mtu_of(&session.socket), now);
        }
        let before = session.prober.mtu();
        for datagram in session.prober.due(now) {
            // Too long for our own interface, no way to it now, nobody there: it is not answered.
            let _ = session.socket.send(&datagram);
        }
        if session.prober.mtu() != before {
            self.news.push_back(News::Settings);
        }
        let complete = session.prober.mtu().is_some() && session.client.is_some();
        let seen = session.way.hidden.is_none();
        if complete && seen && (!session.up || self.told_lost) && session.is_heard() {
            let kept = std::mem::replace(&mut session.kept, true);
            session.up = true;
            self.told_lost = false;
            self.tried = 0;
            self.news.push_back(News::Up { kept });
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
                session.prober.search(mtu_of(&session.socket), now); // it may be larger now
                self.news.push_back(News::Settings);
            }
            Err(error) => self.broken(&error, now),
        }
    }

    /// Is the logger lost?
    pub(super) fn judge(&mut self, now: Duration) {
        let Some(session) = &self.session else {
            if self.tried >= self.config.loggers.len() && !self.told_lost {
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
        let why = match &session.deaf {
            Some((_, why)) => why.clone(),
            None if session.is_heard() && session.way.hidden.is_some() => {
                "what goes there leaves by an interface without our programs (they need Ethernet)"
                    .into()
            }
            None if session.up => format!("no answer for {} ms", self.config.timeout.as_millis()),
            None => unreachable_by_udp(logger),
        };
        if !self.told_lost {
            self.lose(logger, why);
        }
        let may_change = self.config.on_loss == OnLoggerLoss::Unprotect || !was_up;
        if may_change && !self.awaits_heritage {
            self.dialing = None;
            self.next = self.session.take().map_or(0, |session| session.logger);
            self.advance(now);
        } else if let Some(session) = &mut self.session
            && session.deaf.is_none()
        {
            // The stream may hang where the machine is another one by now.
            session.client = None;
            session.deaf = Some((now, "it did not answer".to_owned()));
            self.retry_at = now;
            self.next = session.logger;
        }
    }

    fn lose(&mut self, logger: SocketAddr, why: String) {
        self.told_lost = true;
        self.news.push_back(News::Lost { logger, why });
    }
}
