//! A program at XDP that passes each frame.
//!
//! A veth has two conditions for the frames that XDP sends. Its other end must have NAPI (GRO, or a program at XDP):
//! otherwise the frames are dropped. And the driver wakes the other end for `XDP_TX` only if a program at XDP is there
//! (`veth_xdp_flush`, Linux 6.18): otherwise the frames wait for another frame.

use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use libbpf_rs::libbpf_sys::{
    BPF_PROG_TYPE_XDP, XDP_FLAGS_DRV_MODE, bpf_insn, bpf_prog_load, bpf_xdp_attach,
};
use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// `r0 = XDP_PASS; exit` (RFC 9669).
const PROGRAM: [(u8, i32); 2] = [(0xb7, 2), (0x95, 0)];

/// Attaches the program to an interface of the calling thread's namespace.
pub(crate) fn pass_at_xdp(interface: &str) -> io::Result<()> {
    let program = PROGRAM.map(|(code, imm)| bpf_insn {
        code,
        imm,
        ..bpf_insn::default()
    });
    let (kind, flags) = (SocketType::DGRAM, SocketFlags::CLOEXEC);
    let socket = socket_with(AddressFamily::INET, kind, flags, None)?;
    let index = name_to_index(&socket, interface)?;
    let index = i32::try_from(index).map_err(io::Error::other)?;
    // SAFETY: texts and instructions are valid until the call returns, and null options are the defaults.
    let fd = unsafe {
        bpf_prog_load(
            BPF_PROG_TYPE_XDP,
            c"pass".as_ptr(),
            c"GPL".as_ptr(),
            program.as_ptr(),
            PROGRAM.len() as _,
            std::ptr::null_mut(),
        )
    };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: the kernel has just made this descriptor, which has no other owner.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: null options are the defaults.
    match unsafe { bpf_xdp_attach(index, fd.as_raw_fd(), XDP_FLAGS_DRV_MODE, std::ptr::null()) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(-error)),
    }
}
