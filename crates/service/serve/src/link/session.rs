//! A logger in use.

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
    /// Seed of the digest key in the logger's records, if the logger takes digests.
    pub(super) digests: Option<DigestSeed>,
    pub(super) rekey_at: Duration,
    pub(super) client: Option<LoggerClient>,
    /// Time of the last attach.
    pub(super) attached_at: Duration,
    /// Since when there is no control stream, and why.
    pub(super) disconnected: Option<(Duration, String)>,
    pub(super) kept: bool,
    pub(super) up: bool,
    pub(super) route: Route,
}

/// Whether the programs see the datagrams to the logger. If the datagrams leave by an interface without programs, the
/// programs send copies to an old route, or nowhere.
#[derive(Debug)]
pub(super) struct Route {
    /// Number of seen probes at the last look, and number of answered probes at that time.
    seen: Option<(u32, u64)>,
    /// Since this time the programs see no probes.
    pub(super) hidden: Option<Duration>,
    seen_at: Duration,
}

/// Answered probes without the programs' notice that are no coincidence.
const UNSEEN: u64 = 10;

impl Route {
    fn new(now: Duration) -> Self {
        Self {
            seen: None,
            hidden: Some(now),
            seen_at: now,
        }
    }

    /// The programs have seen `seen` probes up to now, and `answered` were answered.
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
        // Above all counters of an earlier session; new keys have a separate space anyway.
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

    /// Time for which a necessary part of a logger in use has been missing.
    pub(super) fn missing(&self, now: Duration) -> Duration {
        let disconnected = self
            .disconnected
            .as_ref()
            .map(|(since, _)| now.saturating_sub(*since));
        // A logger gets time to answer after an attach.
        let silence = self
            .prober
            .silence(now)
            .min(now.saturating_sub(self.attached_at));
        let hidden = self.route.hidden.map(|since| now.saturating_sub(since));
        silence
            .max(disconnected.unwrap_or_default())
            .max(hidden.unwrap_or_default())
    }

    /// The logger has answered a probe since the last attach.
    pub(super) fn has_answered_probe(&self) -> bool {
        self.prober.answered_since(self.attached_at)
    }
}

/// Why a logger cannot be used although an attach succeeds.
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
        // Neither seen nor answered: no probes are sent.
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
