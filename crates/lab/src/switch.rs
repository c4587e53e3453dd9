//! The lab's switch: a namespace of its own with one bridge for each subnet.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::Error;
use crate::namespace::Namespace;

/// The switch. It has no addresses: frames pass, nothing in it answers.
#[derive(Debug)]
pub(crate) struct Switch {
    namespace: Arc<Namespace>,
    bridges: Mutex<BTreeSet<u8>>,
    ports: AtomicU32,
}

impl Switch {
    pub(crate) fn create(name: &str) -> Result<Self, Error> {
        let namespace = Namespace::create(name)?;
        // Else each of its interfaces would announce an address of its own.
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

    /// The bridge of a subnet, made when first asked for. It floods multicast (neighbour
    /// discovery needs no querier then) and forwards from the first moment.
    pub(crate) fn bridge(&self, subnet: u8) -> Result<String, Error> {
        let bridge = format!("br{subnet}");
        let mut bridges = self.bridges.lock().unwrap_or_else(PoisonError::into_inner);
        if !bridges.contains(&subnet) {
            self.namespace.ip(&format!(
                "link add name {bridge} type bridge stp_state 0 forward_delay 0 mcast_snooping 0\n\
                 link set dev {bridge} up\n"
            ))?;
            bridges.insert(subnet);
        }
        Ok(bridge)
    }
}
