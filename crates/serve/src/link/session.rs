//! A logger, as long as it is the one that is used.

use std::{
    net::{SocketAddr, UdpSocket},
    time::Duration,
};

use protocol::link::LinkKeys;

use super::{PROBE_INTERVAL, REKEY, probing::Prober};
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
    pub(super) rekey_at: Duration,
    pub(super) client: Option<LoggerClient>,
    /// When it was attached to last.
    pub(super) attached_at: Duration,
    /// Since when there is no control stream, and why.
    pub(super) deaf: Option<(Duration, String)>,
    pub(super) kept: bool,
    pub(super) up: bool,
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
            rekey_at: now + REKEY,
            client: Some(client),
            attached_at: now,
            deaf: None,
            kept: attached.kept,
            up: false,
        }
    }

    pub(super) fn set_keys(&mut self, keys: LinkKeys, now: Duration) {
        self.keys = keys;
        self.prober.rekey(keys);
        self.rekey_at = now + REKEY;
    }

    /// How long something was missing that makes it a logger in use.
    pub(super) fn missing(&self, now: Duration) -> Duration {
        let deaf = self
            .deaf
            .as_ref()
            .map(|(since, _)| now.saturating_sub(*since));
        // It has a while to answer, once it is attached to.
        let silence = self
            .prober
            .silence(now)
            .min(now.saturating_sub(self.attached_at));
        silence.max(deaf.unwrap_or_default())
    }

    /// It has answered a probe since it was attached to.
    pub(super) fn is_heard(&self) -> bool {
        self.prober.heard_since(self.attached_at)
    }
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
