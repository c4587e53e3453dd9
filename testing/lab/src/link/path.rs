//! The three ways between a host's port and the bridge, and the changes between the ways.

use std::sync::Arc;

use super::{DEFAULT_MTU, Inner};
use crate::error::Doing;
use crate::namespace::Namespace;
use crate::packet_socket::PacketSocket;
use crate::relay::{Relay, Ways};
use crate::tools::run;
use crate::{Error, line};

#[derive(Debug)]
pub(super) enum Path {
    Detached,
    Direct(Rates),
    Relayed(Relay),
}

/// The kernel's rate limits, in bits per second; `None` for no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rates {
    pub(super) to_host: Option<u64>,
    pub(super) from_host: Option<u64>,
}

impl Inner {
    /// After this no frame passes, and no frame waits.
    pub(super) fn detach(&self, path: &mut Path, host: &Arc<Namespace>) -> Result<(), Error> {
        match path {
            Path::Detached => Ok(()),
            Path::Direct(rates) => {
                let rates = *rates;
                self.switch.leave(self.subnet(), &self.port())?;
                *path = Path::Detached;
                self.shape(host, rates, Rates::default(), DEFAULT_MTU)
            }
            Path::Relayed(relay) => {
                relay.set(&Ways::closed());
                *path = Path::Detached;
                self.remove_relay(host)
            }
        }
    }

    /// Makes the port a port of the bridge.
    pub(super) fn attach(
        &self,
        path: &mut Path,
        host: &Arc<Namespace>,
        rates: Rates,
        mtu: u32,
    ) -> Result<(), Error> {
        if let Path::Direct(now) = path {
            let before = std::mem::replace(now, rates);
            let shaped = self.shape(host, before, rates, mtu);
            if shaped.is_err() {
                *now = Rates::default();
            }
            return shaped;
        }
        self.shape(host, Rates::default(), rates, mtu)?;
        if let Path::Relayed(_) = path {
            // A drop of the relay sends the frames under way.
            *path = Path::Detached;
            self.remove_relay(host)?;
        }
        self.switch.join(self.subnet(), &self.port())?;
        *path = Path::Direct(rates);
        Ok(())
    }

    /// The relay carries the frames.
    pub(super) fn relay(
        &self,
        path: &mut Path,
        host: &Arc<Namespace>,
        ways: &Ways,
        mtu: u32,
    ) -> Result<(), Error> {
        if let Path::Relayed(relay) = path {
            relay.set(ways);
            return Ok(());
        }
        if let Path::Direct(_) = path {
            self.detach(path, host)?;
        }
        let relay = self.insert_relay(host, mtu).inspect_err(|_| {
            // Parts of an incomplete relay must not block the next try.
            let near = self.near();
            let _ = self
                .switch
                .namespace()
                .ip(&format!("link delete dev {near}\n"));
        })?;
        relay.set(ways);
        *path = Path::Relayed(relay);
        Ok(())
    }

    /// Builds a relay, closed both ways, and moves the link to the relay.
    fn insert_relay(&self, host: &Arc<Namespace>, mtu: u32) -> Result<Relay, Error> {
        let switch = self.switch.namespace();
        let (port, near, far) = (self.port(), self.near(), self.far());
        switch.ip(&format!(
            "link add name {near} mtu {mtu} type veth peer name {far} mtu {mtu}\n\
             link set dev {near} up\n\
             link set dev {far} up\n"
        ))?;
        offload(switch, &far, false)?;
        offload(host, &self.interface, false)?;
        let open = |interface: &str| PacketSocket::open(interface, true);
        let (to_host, to_bridge) =
            switch
                .enter(|| Ok((open(&port)?, open(&near)?)))?
                .map_err(|source| Error::Io {
                    action: format!("open packet sockets on {port} and {near}"),
                    source,
                })?;
        let name = format!("{} {}", self.host, self.interface);
        let relay = Relay::start(&name, to_host, to_bridge, &Ways::closed())
            .doing(|| format!("start the relay of {name}"))?;
        self.switch.join(self.subnet(), &far)?;
        Ok(relay)
    }

    /// Removes the devices of [`Inner::insert_relay`], except the relay.
    fn remove_relay(&self, host: &Arc<Namespace>) -> Result<(), Error> {
        let near = self.near();
        self.switch
            .namespace()
            .ip(&format!("link delete dev {near}\n"))?;
        offload(host, &self.interface, true)
    }

    /// Gives both ends another MTU.
    pub(super) fn resize(&self, host: &Arc<Namespace>, mtu: u32) -> Result<(), Error> {
        let (port, interface) = (self.port(), &self.interface);
        self.switch
            .namespace()
            .ip(&format!("link set dev {port} mtu {mtu}\n"))?;
        host.ip(&format!("link set dev {interface} mtu {mtu}\n"))
    }

    /// Lets the kernel enforce the rates: frames to the host wait at the port, frames from the host at the host's
    /// interface. If both limits cannot be set, neither is.
    fn shape(
        &self,
        host: &Arc<Namespace>,
        before: Rates,
        rates: Rates,
        mtu: u32,
    ) -> Result<(), Error> {
        let change = |namespace: &Arc<Namespace>, device: &str, before, rate: Option<u64>| {
            if before == rate {
                return Ok(());
            }
            let bucket = rate.map_or("noqueue".to_owned(), |rate| line::bucket(rate, mtu));
            namespace.tc(&format!("qdisc replace dev {device} root {bucket}\n"))
        };
        let (switch, port) = (self.switch.namespace(), self.port());
        let all = |before: Rates, rates: Rates| {
            change(switch, &port, before.to_host, rates.to_host)?;
            change(host, &self.interface, before.from_host, rates.from_host)
        };
        all(before, rates).inspect_err(|_| {
            // The error that is told is the first.
            let _ = all(rates, Rates::default());
        })
    }
}

/// Sets whether a device may get several segments as one. When off, the kernel cuts the segments before the device, so
/// that the relay's losses are losses of single segments.
fn offload(namespace: &Arc<Namespace>, interface: &str, on: bool) -> Result<(), Error> {
    let value = if on { "on" } else { "off" };
    let mut command = namespace.command("ethtool");
    command.args(["-K", interface]);
    for feature in ["tso", "gso", "tx-udp-segmentation"] {
        command.args([feature, value]);
    }
    run(&mut command)
}
