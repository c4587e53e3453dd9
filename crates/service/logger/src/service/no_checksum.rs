//! UDP without checksums: no safe crate has a function for these socket options.
//!
//! The datagrams of the link have no UDP checksum, because the content has a checksum already. The BPF programs at
//! the other end could neither compute a UDP checksum without reading all bytes, nor read a checksum that the
//! kernel has left unfinished.

use std::{io, net::UdpSocket, os::fd::AsRawFd};

use libc::{c_int, socklen_t};

/// Prepares a UDP socket for either end of the log link: the socket sends without checksums, and accepts datagrams
/// without checksums (as all IPv4 sockets do). GRO is off, because the kernel joins only datagrams that have a
/// checksum.
///
/// # Errors
/// The socket belongs to the other address family.
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
