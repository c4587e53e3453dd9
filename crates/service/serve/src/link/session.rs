//! A logger, as long as it is the one that is used.

use std::{
    net::{SocketAddr, UdpSocket},
    time::Duration,
};

use protocol::{DigestSeed, link::LinkKeys};

use super::{PROBE_INTERVAL, REKEY, prober::Prober};
use crate::{
    config::LinkConfig,
    logger_client::{Attached, LoggerClient},
};

/// A logger that has answered once.
pub(super) struct Session {
    pub(super) logger: usize,
    pub(super) socket: UdpSocket,
    pub(super) prober: Prober,
    pub(super) keys: LinkKeys,
    /// What the key of the digests in its records is made of, if it takes any.
    pub(super) digests: Option<DigestSeed>,
    pub(super) rekey_at: Duration,
    pub(super) client: Option<LoggerClient>,
    /// When it was attached to last.
    pub(super) attached_at: Duration,
    /// Since when there is no control stream, and why.
    pub(super) disconnected: Option<(Duration, String)>,
    pub(super) kept: bool,
    pub(super) up: bool,
    pub(super) route: Route,
}

/// Whether the programs see what goes to the logger: if it leaves by an interface without them, they
/// send their copies where it went before, or nowhere.
#[derive(Debug)]
pub(super) struct Route {
    /// Probes that they had seen when that was looked at last, and how many were answered by then.
    seen: Option<(u32, u64)>,
    /// They see none, since then.
    pub(super) hidden: Option<Duration>,
    seen_at: Duration,
}

/// So many answers to probes that the programs did not see are no coincidence.
const UNSEEN: u64 = 10;

impl Route {
    fn new(now: Duration) -> Self {
        Self {
            seen: None,
            hidden: Some(now),
            seen_at: now,
        }
    }

    /// They have seen `seen` probes by now, and `answered` were answered.
    pub(super) fn observe(&mut self, seen: u32, answered: u64, now: Duration) {
        match self.seen {
            None => self.seen = Some((seen, answered)),
            Some((before, _)) if before != seen => {
                self.seen = Some((seen, answered));
                self.seen_at = now;
                self.hidden = None;
            }
            Some((_, at)) if answered >= at + UNSEEN => {
                self.hidden.get_or_insert(self.seen_at);
            }
            Some(_) => {}
        }
    }
}

impl Session {
    pub(super) fn new(
        logger: usize,
        socket: UdpSocket,
        client: LoggerClient,
        attached: Attached,
        config: &LinkConfig,
        now: Duration,
    ) -> Self {
        let v6 = config.loggers[logger].is_ipv6();
        let interval = PROBE_INTERVAL.min(config.timeout / 4);
        // Above what an earlier session can have used; new keys are another space anyway.
        let counter = u64::try_from(now.as_micros()).unwrap_or(0);
        let prober = Prober::new(attached.keys, counter, v6, mtu_of(&socket), interval, now);
        Self {
            logger,
            prober,
            socket,
            keys: attached.keys,
            digests: attached.digests,
            rekey_at: now + REKEY,
            client: Some(client),
            attached_at: now,
            disconnected: None,
            kept: attached.kept,
            up: false,
            route: Route::new(now),
        }
    }

    pub(super) fn set_keys(&mut self, keys: LinkKeys, now: Duration) {
        self.keys = keys;
        self.prober.rekey(keys);
        self.rekey_at = now + REKEY;
    }

    /// How long something was missing that makes it a logger in use.
    pub(super) fn missing(&self, now: Duration) -> Duration {
        let disconnected = self
            .disconnected
            .as_ref()
            .map(|(since, _)| now.saturating_sub(*since));
        // It has a while to answer, once it is attached to.
        let silence = self
            .prober
            .silence(now)
            .min(now.saturating_sub(self.attached_at));
        let hidden = self.route.hidden.map(|since| now.saturating_sub(since));
        silence
            .max(disconnected.unwrap_or_default())
            .max(hidden.unwrap_or_default())
    }

    /// It has answered a probe since it was attached to.
    pub(super) fn has_answered_probe(&self) -> bool {
        self.prober.answered_since(self.attached_at)
    }
}

/// Why one that can be attached to cannot be used.
pub(super) fn unreachable_by_udp(logger: SocketAddr) -> String {
    let port = logger.port();
    format!("it answers on TCP, and not on UDP: let port {port} through, both ways")
}

/// Largest packet of the interface that leads to the logger, bytes.
pub(super) fn mtu_of(socket: &UdpSocket) -> u32 {
    use rustix::net::sockopt::{ip_mtu, ipv6_mtu};
    let mtu = match socket.local_addr() {
        Ok(SocketAddr::V6(_)) => ipv6_mtu(socket),
        _ => ip_mtu(socket),
    };
    mtu.unwrap_or(1500)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn route_is_hidden_if_unseen_probes_are_answered() {
        let at = Duration::from_secs;
        let mut route = Route::new(at(1));
        assert!(route.hidden.is_some(), "nothing was seen yet");
        route.observe(7, 0, at(1));
        route.observe(8, 0, at(2));
        assert_eq!(route.hidden, None);
        // Neither seen nor answered: nobody asks.
        route.observe(8, 0, at(60));
        assert_eq!(route.hidden, None);
        route.observe(9, 1, at(61));
        route.observe(9, UNSEEN, at(62));
        assert_eq!(route.hidden, None);
        route.observe(9, UNSEEN + 1, at(63));
        assert_eq!(route.hidden, Some(at(61)));
        route.observe(10, UNSEEN + 2, at(64));
        assert_eq!(route.hidden, None);
    }
}
