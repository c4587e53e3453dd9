//! Where the logger is on another machine, what the server's processes are told goes there before they say anything
//! (*output commit*; `ft-tcp-infocom-2001`, IV.D), and a host that begins where another one has ended finds it there.
//!
//! The processes send it by themselves. Here they are told where to, what of it is there, and that they shall.

use std::net::{IpAddr, SocketAddr};

use wrap::layout::{Destination, Hold};

use super::Service;
use crate::{error::ServeError, events::Happening, link::Settings, north::North};

/// Headers of UDP, and of IPv4 or IPv6, bytes.
const HEADERS: (u16, u16) = (8 + 20, 8 + 40);

impl Service {
    /// The logger in use, or its keys, are other ones than they were, or the record is: the processes are told where
    /// determinants go.
    pub(super) fn show_processes_the_way(&mut self) -> Result<(), ServeError> {
        let Some(link) = self.ground.logger.link() else {
            return Ok(());
        };
        let settings = link.settings()?;
        let instance = link.instance();
        if let (Some(north), Some(settings)) = (&self.north, settings) {
            north.memory().ship_to(&destination(&settings, instance));
        }
        Ok(())
    }

    /// The logger says how much it has of the record. What it has of another one, it drops.
    pub(super) fn compare_record(&mut self) -> Result<(), ServeError> {
        let Some(record) = self.north.as_ref().map(|north| north.memory().record()) else {
            return Ok(());
        };
        if self.config.link.is_none() {
            return Ok(());
        }
        let there = self.ask_logger(|logger| logger.determinants(Some(record)))?;
        if let (Some(north), Some(there)) = (&self.north, there) {
            north.is_with_the_logger(&there.streams);
        }
        Ok(())
    }

    /// When the processes may speak.
    pub(super) fn hold(&self) -> Hold {
        match &self.config.link {
            None => Hold::Never,
            Some(link) if link.commit_effects => Hold::EffectsToo,
            Some(_) => Hold::UntilStable,
        }
    }

    /// Take up the record of an earlier life, on this host or on another one, if the logger has it. Tells whether
    /// there is one.
    pub(super) fn inherit_record(&mut self) -> Result<bool, ServeError> {
        if !self.config.wrapped {
            self.leave_record()?;
            return Ok(false);
        }
        loop {
            let directory = self.ground.lock.directory().to_owned();
            let bytes = self.config.limits.total;
            let found = self.ask_logger(|logger| North::inherit(logger, &directory, bytes))?;
            if let Some(north) = found {
                self.north = north;
                return Ok(self.north.is_some());
            }
            if self.is_to_stop() || !self.link().is_some_and(|link| link.awaits_heritage()) {
                return Ok(false);
            }
            self.look_at_link()?;
            self.idle()?;
        }
    }

    /// The earlier life had state, and this one is not to have it: whoever was told of it must not be served without.
    fn leave_record(&mut self) -> Result<(), ServeError> {
        let there = self.ask_logger(|logger| logger.determinants(None))?;
        if there.is_some_and(|there| there.record.is_some()) {
            self.tell(Happening::Trouble {
                message: "the service was served with --north=require, and is not here: its server's state is lost, and so are its connections. Give all hosts the same options".into(),
            });
            self.recovery.forgotten();
        }
        Ok(())
    }
}

fn destination(settings: &Settings, instance: u64) -> Destination {
    let (ip, scope) = match settings.remote {
        SocketAddr::V4(remote) => (remote.ip().to_ipv6_mapped(), 0),
        SocketAddr::V6(remote) => (*remote.ip(), remote.scope_id()),
    };
    let is_v4 = matches!(settings.remote.ip().to_canonical(), IpAddr::V4(_));
    let headers = if is_v4 { HEADERS.0 } else { HEADERS.1 };
    Destination {
        ip: ip.octets(),
        port: settings.remote.port(),
        scope,
        datagram: settings.mtu.saturating_sub(headers),
        slot: settings.keys.slot.number(),
        instance,
        up: settings.keys.up.0,
        down: settings.keys.down.0,
    }
}
