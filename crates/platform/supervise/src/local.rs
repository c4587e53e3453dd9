//! Which addresses are this host's, in the network namespace of the calling thread.

use std::fmt;
use std::io;
use std::net::IpAddr;

use nix::ifaddrs::{InterfaceAddress, getifaddrs};

/// An address of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalAddress {
    /// The network interface with the address.
    pub interface: String,
    /// The address.
    pub ip: IpAddr,
}

impl fmt::Display for LocalAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.ip, self.interface)
    }
}

/// Every IPv4 and IPv6 address of this host's interfaces, for messages.
///
/// # Errors
///
/// When the kernel does not give the list.
pub fn local_addresses() -> io::Result<Vec<LocalAddress>> {
    let all = getifaddrs()?;
    Ok(all.filter_map(|interface| ip_of(&interface)).collect())
}

/// Whether a server on this host can be reached at `ip`: an interface has the address, or the address is in the
/// loopback network or is the wildcard. Addresses that are local only by a route (`ip route add local …`) are not
/// recognised.
///
/// # Errors
///
/// As [`local_addresses`].
pub fn address_is_local(ip: IpAddr) -> io::Result<bool> {
    let ip = ip.to_canonical();
    Ok(ip.is_loopback()
        || ip.is_unspecified()
        || local_addresses()?.iter().any(|local| local.ip == ip))
}

fn ip_of(interface: &InterfaceAddress) -> Option<LocalAddress> {
    let address = interface.address.as_ref()?;
    let v4 = address.as_sockaddr_in().map(|a| IpAddr::from(a.ip()));
    let v6 = || address.as_sockaddr_in6().map(|a| IpAddr::from(a.ip()));
    Some(LocalAddress {
        interface: interface.interface_name.clone(),
        ip: v4.or_else(v6)?,
    })
}
