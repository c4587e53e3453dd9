//! The socket at the serving host's end of the log link.
//!
//! The programs send from the socket's port, and learn the way to the logger from datagrams of the
//! socket.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    os::fd::AsRawFd,
};

use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
};

use crate::error::{DataplaneError, SocketContext};

/// linux/udp.h.
const UDP_NO_CHECK6_TX: i32 = 101;
const UDP_NO_CHECK6_RX: i32 = 102;

/// A UDP socket connected to the logger at `remote`, on a separate port: non-blocking, without UDP
/// checksums (the datagrams have tags). A datagram that is too long for the path is dropped, not
/// fragmented.
///
/// # Errors
/// There is no route to that address.
pub fn link_socket(remote: SocketAddr) -> Result<UdpSocket, DataplaneError> {
    let any = match remote {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let doing = "open the socket of the log link";
    let socket = UdpSocket::bind(any).doing(doing)?;
    socket.set_nonblocking(true).doing(doing)?;
    let discover = match remote {
        SocketAddr::V4(_) => {
            set(&socket, libc::SOL_SOCKET, libc::SO_NO_CHECK)?;
            set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::PROBE)
        }
        SocketAddr::V6(_) => {
            set(&socket, libc::IPPROTO_UDP, UDP_NO_CHECK6_TX)?;
            set(&socket, libc::IPPROTO_UDP, UDP_NO_CHECK6_RX)?;
            set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::PROBE)
        }
    };
    discover.map_err(io::Error::from).doing(doing)?;
    socket.connect(remote).doing("find the way to the logger")?;
    Ok(socket)
}

/// Switch an option on.
fn set(socket: &UdpSocket, level: i32, option: i32) -> Result<(), DataplaneError> {
    let on = 1i32;
    let len = libc::socklen_t::try_from(size_of::<i32>()).unwrap_or(4);
    let value = (&raw const on).cast();
    // SAFETY: `value` points to the four bytes that `len` announces.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, value, len) };
    if result == 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error()).doing("switch off the checksums of the log link")
}
