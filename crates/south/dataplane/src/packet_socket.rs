//! Whole frames through a packet socket (packet(7)).

use std::{
    io::{self, IoSlice},
    mem,
    os::fd::{AsRawFd, OwnedFd},
};

use rustix::net::{self, AddressFamily, SocketFlags, SocketType};

/// A socket that only sends, in the network namespace of the calling thread.
pub(crate) fn open() -> io::Result<OwnedFd> {
    let (family, kind) = (AddressFamily::PACKET, SocketType::RAW);
    // Protocol 0: the socket receives no frames.
    Ok(net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?)
}

/// A socket that receives the frames of a protocol that arrive at a device, and sends.
pub(crate) fn open_at(device: u32, ethertype: u16) -> io::Result<OwnedFd> {
    let (family, kind) = (AddressFamily::PACKET, SocketType::RAW);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // Without a protocol until the socket is bound: else frames of other devices come, too.
    let socket = net::socket_with(family, kind, flags, None)?;
    let address = address_of(device, ethertype);
    // SAFETY: the address is valid for the size that is told.
    let bound = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            std::ptr::from_ref(&address).cast(),
            u32::try_from(size_of::<libc::sockaddr_ll>()).unwrap_or(0),
        )
    };
    if bound < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(socket)
}

fn address_of(device: u32, ethertype: u16) -> libc::sockaddr_ll {
    // SAFETY: all zeros is a valid address.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    address.sll_family = u16::try_from(libc::AF_PACKET).unwrap_or(0);
    address.sll_protocol = ethertype.to_be();
    address.sll_ifindex = i32::try_from(device).unwrap_or(i32::MAX);
    address
}

/// Sends a frame, with the header, on a device.
pub(crate) fn send(
    socket: &OwnedFd,
    device: u32,
    ethertype: u16,
    parts: &[IoSlice<'_>],
) -> io::Result<()> {
    let mut address = address_of(device, ethertype);
    // SAFETY: all zeros is a valid message without address, data or control part.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_name = std::ptr::from_mut(&mut address).cast();
    message.msg_namelen = u32::try_from(size_of::<libc::sockaddr_ll>()).unwrap_or(0);
    // `IoSlice` is guaranteed to have the layout of `iovec`; sending does not write through the
    // pointer.
    message.msg_iov = parts.as_ptr().cast_mut().cast();
    message.msg_iovlen = parts.len();
    // SAFETY: the message points to memory that lives until the call returns.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &message, 0) };
    if sent < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}
