//! A raw socket on an interface: whole Ethernet frames in and out.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::sockopt::{set_socket_recv_buffer_size_force, set_socket_send_buffer_size_force};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// Bytes before each frame of a socket that carries offload state: `struct
/// virtio_net_hdr` of linux/virtio_net.h.
pub(crate) const OFFLOAD_HEADER_BYTES: usize = 10;

/// The largest frame that the kernel hands out: 64 KiB of a super-frame with headers.
pub(crate) const MAX_FRAME_BYTES: usize = OFFLOAD_HEADER_BYTES + 65_536 + 64;

/// Room for the frames that arrive while the reader does not run, in bytes.
const RECEIVE_BUFFER_BYTES: usize = 16 << 20;

/// A non-blocking packet socket.
#[derive(Debug)]
pub(crate) struct PacketSocket {
    fd: OwnedFd,
}

impl PacketSocket {
    /// Opens a socket on an interface of the calling thread's namespace. The socket receives all frames that arrive on
    /// the interface, and none that leave.
    ///
    /// With `offload`, [`OFFLOAD_HEADER_BYTES`] bytes precede each frame both ways. These bytes describe the work that
    /// the kernel has put off: a checksum not yet filled in, segments not yet cut.
    pub(crate) fn open(interface: &str, offload: bool) -> io::Result<Self> {
        // Without a protocol the socket receives no frame before the bind.
        let fd = rustix::net::socket_with(
            AddressFamily::PACKET,
            SocketType::RAW,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        let index = rustix::net::netdevice::name_to_index(&fd, interface)?;
        set_socket_recv_buffer_size_force(&fd, RECEIVE_BUFFER_BYTES)?;
        set_socket_send_buffer_size_force(&fd, RECEIVE_BUFFER_BYTES)?;
        set_option(&fd, libc::PACKET_IGNORE_OUTGOING)?;
        if offload {
            set_option(&fd, libc::PACKET_VNET_HDR)?;
        }
        bind(&fd, index)?;
        Ok(Self { fd })
    }

    /// The next frame's length in `buffer`, or `None` when there is none now. A frame that
    /// does not fit comes as a length greater than the buffer's.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let flags = RecvFlags::TRUNC;
        match rustix::net::recv(&self.fd, buffer, flags) {
            Ok((_, length)) => Ok(Some(length)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends a frame.
    pub(crate) fn send(&self, frame: &[u8]) -> io::Result<()> {
        rustix::net::send(&self.fd, frame, SendFlags::empty())?;
        Ok(())
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Switches a `SOL_PACKET` option on.
fn set_option(fd: &OwnedFd, option: libc::c_int) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the pointer and the length describe `on`, which outlives the call.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_PACKET,
            option,
            (&raw const on).cast(),
            length_of::<libc::c_int>(),
        )
    };
    checked(result)
}

/// Starts reception of all protocols on an interface.
fn bind(fd: &OwnedFd, interface: u32) -> io::Result<()> {
    // The kernel expects network byte order; ETH_P_ALL is 3.
    let all = 3u16.to_be();
    let address = libc::sockaddr_ll {
        sll_family: u16::try_from(libc::AF_PACKET).map_err(io::Error::other)?,
        sll_protocol: all,
        sll_ifindex: i32::try_from(interface).map_err(io::Error::other)?,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    // SAFETY: the pointer and the length describe `address`, which outlives the call.
    let result = unsafe {
        libc::bind(
            fd.as_raw_fd(),
            (&raw const address).cast(),
            length_of::<libc::sockaddr_ll>(),
        )
    };
    checked(result)
}

fn length_of<T>() -> libc::socklen_t {
    // Both types measured here have a few bytes.
    libc::socklen_t::try_from(mem::size_of::<T>()).unwrap_or(0)
}

fn checked(result: libc::c_int) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
