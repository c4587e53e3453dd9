//! The lab's switch: a separate namespace with a bridge for each subnet.
//!
//! A subnet may be a shared medium instead of a switch, as an Ethernet hub is: every frame of every host then goes
//! through a single token bucket before the bridge. The bucket is the queue of a device (`ifb`). Frames of the hosts
//! are redirected to this device, and the device returns each frame to the port from which the frame came. Unlike on a
//! real hub there are no collisions, hosts do not back off, and frames wait in a single queue in the order of sending.

use std::collections::{BTreeMap, btree_map};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::namespace::Namespace;
use crate::{Error, line};

/// The switch. The switch has no addresses: frames pass, and the switch answers none.
#[derive(Debug)]
pub(crate) struct Switch {
    namespace: Arc<Namespace>,
    /// The subnets, and whether the subnet is a shared medium.
    bridges: Mutex<BTreeMap<u8, bool>>,
    ports: AtomicU32,
}

impl Switch {
    pub(crate) fn create(name: &str) -> Result<Self, Error> {
        let namespace = Namespace::create(name)?;
        // Otherwise each interface would announce an address.
        for scope in ["all", "default"] {
            namespace.sysctl(&format!("net.ipv6.conf.{scope}.disable_ipv6"), "1")?;
        }
        Ok(Self {
            namespace,
            bridges: Mutex::default(),
            ports: AtomicU32::new(0),
        })
    }

    pub(crate) fn namespace(&self) -> &Arc<Namespace> {
        &self.namespace
    }

    /// A number for a new port.
    pub(crate) fn next_port(&self) -> u32 {
        self.ports.fetch_add(1, Ordering::Relaxed)
    }

    /// The bridge of a subnet, made at the first call. The bridge floods multicast (neighbour discovery then needs no
    /// querier) and forwards from the first moment.
    pub(crate) fn bridge(&self, subnet: u8) -> Result<(), Error> {
        let mut bridges = self.bridges.lock().unwrap_or_else(PoisonError::into_inner);
        if let btree_map::Entry::Vacant(entry) = bridges.entry(subnet) {
            self.create_bridge(subnet)?;
            entry.insert(false);
        }
        Ok(())
    }

    fn create_bridge(&self, subnet: u8) -> Result<(), Error> {
        let bridge = bridge_name(subnet);
        self.namespace.ip(&format!(
            "link add name {bridge} type bridge stp_state 0 forward_delay 0 mcast_snooping 0\n\
             link set dev {bridge} up\n"
        ))
    }

    /// Makes a subnet without hosts a shared medium of so many bits per second, or changes the rate of a shared
    /// medium.
    pub(crate) fn share(&self, subnet: u8, rate: u64) -> Result<(), Error> {
        let mut bridges = self.bridges.lock().unwrap_or_else(PoisonError::into_inner);
        let medium = medium_name(subnet);
        match bridges.get(&subnet) {
            Some(true) => {}
            Some(false) => {
                return Err(Error::Invalid(format!(
                    "subnet {subnet} has hosts already: a shared medium comes before them"
                )));
            }
            None => {
                self.create_bridge(subnet)?;
                self.namespace.ip(&format!(
                    "link add name {medium} type ifb\nlink set dev {medium} up\n"
                ))?;
                bridges.insert(subnet, true);
            }
        }
        let bucket = line::bucket(rate, 1500);
        self.namespace
            .tc(&format!("qdisc replace dev {medium} root {bucket}\n"))
    }

    /// Makes a device a port of a subnet's bridge.
    pub(crate) fn join(&self, subnet: u8, device: &str) -> Result<(), Error> {
        if self.is_shared(subnet) {
            let medium = medium_name(subnet);
            self.namespace.tc(&format!(
                "qdisc replace dev {device} clsact\n\
                 filter replace dev {device} ingress pref 1 handle 800::800 protocol all \
                 u32 match u32 0 0 action mirred egress redirect dev {medium}\n"
            ))?;
        }
        let bridge = bridge_name(subnet);
        self.namespace
            .ip(&format!("link set dev {device} master {bridge}\n"))
    }

    /// The reverse of [`Switch::join`].
    pub(crate) fn leave(&self, subnet: u8, device: &str) -> Result<(), Error> {
        self.namespace
            .ip(&format!("link set dev {device} nomaster\n"))?;
        if self.is_shared(subnet) {
            // Incoming frames no longer go to the medium.
            self.namespace
                .tc(&format!("qdisc del dev {device} clsact\n"))?;
        }
        Ok(())
    }

    fn is_shared(&self, subnet: u8) -> bool {
        let bridges = self.bridges.lock().unwrap_or_else(PoisonError::into_inner);
        bridges.get(&subnet).copied().unwrap_or_default()
    }
}

fn bridge_name(subnet: u8) -> String {
    format!("br{subnet}")
}

fn medium_name(subnet: u8) -> String {
    format!("medium{subnet}")
}
