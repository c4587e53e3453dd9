//! The one thing for which no safe crate has a function: UDP without checksums.
//!
//! The datagrams of the link have none: what they carry has its own, and the programs in the kernel
//! at the other end could neither make one without reading all bytes, nor read one that the kernel
//! has left unfinished.

use std::{io, net::UdpSocket, os::fd::AsRawFd};

use libc::{c_int, socklen_t};

/// Makes a UDP socket one of the log link, at either end: the checksums of what is sent are switched
/// off, and what has none is taken (which over IPv4 everybody does). Nor are datagrams joined: the
/// kernel does that only with those that have a checksum.
///
/// # Errors
/// The socket is of the other family.
pub fn without_checksums(socket: &UdpSocket, v6: bool) -> io::Result<()> {
    if v6 {
        set(socket, libc::IPPROTO_UDP, libc::UDP_NO_CHECK6_TX, 1)?;
        set(socket, libc::IPPROTO_UDP, libc::UDP_NO_CHECK6_RX, 1)?;
    } else {
        set(socket, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1)?;
    }
    set(socket, libc::IPPROTO_UDP, libc::UDP_GRO, 0)
}

#[expect(unsafe_code, reason = "no safe crate has these options")]
fn set(socket: &UdpSocket, level: c_int, option: c_int, value: c_int) -> io::Result<()> {
    let len = socklen_t::try_from(size_of::<c_int>()).unwrap_or(4);
    let value = (&raw const value).cast();
    // SAFETY: `value` points to the bytes of a c_int, and `len` is their number.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, value, len) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
