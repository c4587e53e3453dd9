//! The network interfaces of this namespace on which a service can be reached.

use std::{io, net::SocketAddr, os::fd::AsRawFd};

use crate::error::{DataplaneError, SocketContext};

/// An interface whose frames have an Ethernet header: a NIC, a veth, a bridge, the loopback.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Index in this network namespace.
    pub index: u32,
    /// Name of the interface.
    pub name: String,
    /// Link-layer address; zeros on the loopback.
    pub mac: [u8; 6],
    /// Largest IP packet, bytes; 1500 until the programs are attached.
    pub mtu: u32,
}

/// All interfaces with an Ethernet header. Interfaces without (tun, WireGuard) are left out:
/// connections there are not protected.
///
/// # Errors
/// The kernel does not list the interfaces.
pub fn ethernet_interfaces() -> Result<Vec<Interface>, DataplaneError> {
    let mut found = Vec::new();
    let addresses = nix::ifaddrs::getifaddrs()
        .map_err(io::Error::from)
        .doing("list the network interfaces")?;
    for entry in addresses {
        let Some(link) = entry.address.as_ref().and_then(|a| a.as_link_addr()) else {
            continue;
        };
        let ethernet =
            link.hatype() == libc::ARPHRD_ETHER || link.hatype() == libc::ARPHRD_LOOPBACK;
        if let (true, Some(mac), Ok(index)) = (ethernet, link.addr(), u32::try_from(link.ifindex()))
        {
            found.push(Interface {
                index,
                name: entry.interface_name.clone(),
                mac,
                mtu: 1500,
            });
        }
    }
    Ok(found)
}

/// The cookie of this network namespace, by which the tracepoints identify the namespace.
///
/// # Errors
/// The kernel has no cookies (before Linux 5.14).
pub fn netns_cookie() -> Result<u64, DataplaneError> {
    let socket = std::net::UdpSocket::bind("[::]:0")
        .or_else(|_| std::net::UdpSocket::bind("0.0.0.0:0"))
        .doing("open a socket")?;
    let mut cookie = 0u64;
    let mut len = libc::socklen_t::try_from(size_of::<u64>()).unwrap_or(8);
    let value = std::ptr::from_mut(&mut cookie).cast();
    // SAFETY: `value` has room for the eight bytes that `len` announces.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            value,
            &raw mut len,
        )
    };
    if result == 0 {
        return Ok(cookie);
    }
    Err(io::Error::last_os_error()).doing("read the cookie of the network namespace (Linux 5.14)")
}

/// asm-generic/socket.h; libc has the constant only for some architectures.
const SO_NETNS_COOKIE: i32 = 71;

/// Checks that all settings of interfaces for `addresses` can be changed. Changes no setting.
///
/// # Errors
/// A setting cannot be changed.
pub fn check_settings(addresses: &[SocketAddr]) -> Result<(), DataplaneError> {
    let localnet = addresses.iter().any(|address| address.ip().is_loopback());
    for interface in ethernet_interfaces()? {
        crate::link::check_switches(&interface, localnet)?;
    }
    Ok(())
}
