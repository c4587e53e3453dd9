//! With a logger on another machine, the determinants of the server's processes go to the logger before any output
//! leaves (*output commit*; `ft-tcp-infocom-2001`, IV.D). A host that takes over finds the determinants there.
//!
//! The processes send the determinants themselves. `serve` gives the processes the destination, the keys and the
//! position of the logger.

use std::{
    net::{IpAddr, SocketAddr},
    os::fd::OwnedFd,
};

use north_host::{
    Memory,
    layout::{Destination, Hold},
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt::set_ipv6_v6only};

use super::{Service, images::Fetched};
use crate::{
    error::{ServeError, SystemContext},
    events::Code,
    link::Settings,
    logger_client::LoggerClient,
    north::North,
};

/// Headers of UDP, and of IPv4 or IPv6, bytes.
const UDP_IP_HEADER_BYTES: (u16, u16) = (8 + 20, 8 + 40);

impl Service {
    /// The logger in use, the keys or the record have changed: the processes learn the new destination of determinants.
    pub(super) fn set_sender_destination(&mut self) -> Result<(), ServeError> {
        let Some(link) = self.resources.logger.link() else {
            return Ok(());
        };
        let settings = link.settings()?;
        let instance = link.instance();
        if let (Some(north), Some(settings)) = (&self.north, settings) {
            north
                .memory()
                .set_destination(&destination(&settings, instance));
        }
        Ok(())
    }

    /// Compares the record with the logger's copy. The logger drops a copy of another record. After a loss of records,
    /// `serve` sends the missing part: the processes send determinants only before output.
    pub(super) fn compare_determinants(&mut self) -> Result<(), ServeError> {
        // Determinants that arrive meanwhile are sent by the processes.
        let heads = self
            .north
            .as_ref()
            .map(|north| north.streams(Memory::length));
        let heads = heads.unwrap_or_default();
        while let Some(north) = self.north.as_mut().filter(|_| self.config.link.is_some()) {
            let (record, said) = (north.memory().record(), north.told());
            let there = self.ask_logger(|logger| logger.determinants_of(record, said))?;
            let (Some(north), Some(there)) = (&mut self.north, there) else {
                break;
            };
            north.set_stable(&there.streams);
            if north.is_over() {
                break; // the logger knows now
            }
            let uploaded = north.compare_image(&there);
            self.handle_upload(uploaded)?;
            let Some(north) = &self.north else {
                break;
            };
            if north.is_over() {
                continue; // the logger does not know yet
            }
            let Some((process, from, bytes)) = north.lacking(&heads, &there.streams)? else {
                break;
            };
            self.heartbeat()?;
            let tell =
                |logger: &mut LoggerClient| logger.send_determinants(record, process, from, bytes);
            if there.edition.is_none() || self.ask_logger(tell)?.is_none() {
                break; // no memory at the logger
            }
        }
        Ok(())
    }

    /// Output that waits for the logger.
    pub(super) fn hold(&self) -> Hold {
        match &self.config.link {
            None => Hold::Never,
            Some(link) if link.commit_effects => Hold::EffectsToo,
            Some(_) => Hold::UntilStable,
        }
    }

    /// Socket from the server's next incarnation to the logger; `None`: no remote logger.
    pub(crate) fn sender_socket(&self) -> Result<Option<OwnedFd>, ServeError> {
        if self.config.link.is_none() {
            return Ok(None);
        }
        let of = |family| socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
        let socket = match of(AddressFamily::INET6) {
            Ok(socket) => {
                set_ipv6_v6only(&socket, false).doing(SOCKET)?;
                socket
            }
            // A host without IPv6.
            Err(_) => of(AddressFamily::INET).doing(SOCKET)?,
        };
        Ok(Some(socket))
    }

    /// Take up the record of an earlier incarnation, on this host or on another host; `record` is the number of the
    /// logger's record. Returns whether the service has a record now.
    pub(super) fn inherit_record(&mut self, record: Option<u64>) -> Result<bool, ServeError> {
        let Some(record) = record else {
            self.stop_replica()?;
            return Ok(false);
        };
        if !self.config.wrapped {
            let reason = "the service was served with --stateful=require, and is not here: its server's state is lost, and so are its connections. Give all hosts the same options";
            self.warn(Code::StateLost, reason);
            self.recovery.on_state_lost();
            return Ok(false);
        }
        if self.promote_replica(record)? {
            return Ok(true);
        }
        self.stop_replica()?;
        while !self.should_stop()
            && self
                .link()
                .is_some_and(|link| link.awaits_inherited_records())
        {
            match self.fetch_record(record)? {
                Fetched::Whole => return Ok(true),
                Fetched::Silent => {
                    self.look_at_link()?;
                    self.idle()?;
                }
                Fetched::Not(why) => {
                    let message =
                        format!("the server's state is lost, and so are its connections: {why}");
                    self.warn(Code::StateLost, message);
                    return Ok(false);
                }
            }
        }
        Ok(false)
    }

    /// Fetches the image at the beginning of the record, if there is an image, and the rest of the record.
    fn fetch_record(&mut self, record: u64) -> Result<Fetched, ServeError> {
        // The record may have changed: another attempt was interrupted.
        let Some(there) = self.ask_logger(LoggerClient::determinants)? else {
            return Ok(Fetched::Silent);
        };
        if !there.is_whole || there.edition.map(|one| one.record) != Some(record) {
            return Ok(Fetched::Not("the logger has lost its record".into()));
        }
        let directory = self.resources.lock.directory().to_owned();
        let mut north = North::inherited(&directory, self.config.limits.total, record)?;
        if let Err(error) = north.take_images(&self.config, &directory) {
            if there.image.is_some() {
                return Ok(Fetched::Not(error.to_string()));
            }
            let message = format!("no checkpoints are made: {error}");
            self.warn(Code::NoCheckpoints, message);
        }
        if let Some(image) = &there.image {
            match self.fetch_image(&mut north, image)? {
                Fetched::Whole => {}
                other => return Ok(other),
            }
        }
        Ok(match self.ask_logger(|logger| north.fetch(logger))? {
            Some(Ok(())) => {
                self.north = Some(north);
                Fetched::Whole
            }
            Some(Err(error)) => Fetched::Not(format!(
                "there is no room for the server's record here (--limit-total): {error}"
            )),
            None => Fetched::Silent,
        })
    }
}

const SOCKET: &str = "make a socket for what the server is told";

fn destination(settings: &Settings, instance: u64) -> Destination {
    let (ip, scope) = match settings.remote {
        SocketAddr::V4(remote) => (remote.ip().to_ipv6_mapped(), 0),
        SocketAddr::V6(remote) => (*remote.ip(), remote.scope_id()),
    };
    let is_v4 = matches!(settings.remote.ip().to_canonical(), IpAddr::V4(_));
    let headers = if is_v4 {
        UDP_IP_HEADER_BYTES.0
    } else {
        UDP_IP_HEADER_BYTES.1
    };
    Destination {
        ip: ip.octets(),
        port: settings.remote.port(),
        scope,
        datagram: settings.mtu.saturating_sub(headers),
        version: settings.keys.version,
        slot: settings.keys.slot.number(),
        instance,
        up: settings.keys.up.0,
        down: settings.keys.down.0,
    }
}
