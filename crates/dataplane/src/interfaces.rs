//! The network interfaces of this namespace on which a service can be reached.

use std::io;

use crate::error::{DataplaneError, SocketContext};

/// An interface whose frames have an Ethernet header: a NIC, a veth, a bridge, the loopback.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Its index in this network namespace.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its link-layer address; zeros on the loopback.
    pub mac: [u8; 6],
}

/// All interfaces with an Ethernet header. Others (tun, WireGuard) have none and are left out:
/// connections through them are not protected.
///
/// # Errors
/// The kernel does not list its interfaces.
pub fn ethernet_interfaces() -> Result<Vec<Interface>, DataplaneError> {
    let mut found = Vec::new();
    let addresses = nix::ifaddrs::getifaddrs()
        .map_err(io::Error::from)
        .doing("list the network interfaces")?;
    for entry in addresses {
        let Some(link) = entry.address.as_ref().and_then(|a| a.as_link_addr()) else {
            continue;
        };
        let ethernet = link.hatype() == libc::ARPHRD_ETHER || link.hatype() == libc::ARPHRD_LOOPBACK;
        if let (true, Some(mac), Ok(index)) = (ethernet, link.addr(), u32::try_from(link.ifindex())) {
            found.push(Interface {
                index,
                name: entry.interface_name.clone(),
                mac,
            });
        }
    }
    Ok(found)
}
