//! Packet sockets of the lab, and the state of offloads.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use wire::IpPacket;

/// A socket that gets all packets that pass the interface.
pub(super) fn tap(interface: u32) -> OwnedFd {
    let socket = packet_socket();
    let address = link_address(interface, libc::ETH_P_ALL);
    let len = u32::try_from(size_of_val(&address)).expect("32 bits");
    // SAFETY: the address is valid for the size that is told.
    let bound = unsafe { libc::bind(socket.as_raw_fd(), std::ptr::from_ref(&address).cast(), len) };
    assert_eq!(bound, 0, "the socket is bound");
    socket
}

pub(super) fn packet_socket() -> OwnedFd {
    // SAFETY: no pointers.
    let fd = unsafe {
        libc::socket(
            libc::AF_PACKET,
            libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
            0,
        )
    };
    assert!(fd >= 0, "a packet socket");
    // SAFETY: a new descriptor.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

pub(super) fn link_address(interface: u32, ethertype: i32) -> libc::sockaddr_ll {
    // SAFETY: all zeros is a valid address.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = u16::try_from(libc::AF_PACKET).expect("16 bits");
    address.sll_protocol = u16::try_from(ethertype).expect("16 bits").to_be();
    address.sll_ifindex = i32::try_from(interface).expect("31 bits");
    address
}

/// A socket that sends frames with the state of a network device's offloads (packet(7), `PACKET_VNET_HDR`).
pub(super) fn offloading_socket() -> OwnedFd {
    let socket = packet_socket();
    let on = 1_i32;
    // SAFETY: the option is valid for the size that is told.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_VNET_HDR,
            std::ptr::from_ref(&on).cast(),
            4,
        )
    };
    assert_eq!(set, 0, "a kernel with offloads");
    socket
}

/// `struct virtio_net_hdr`: the checksum is unfinished, and the segment is to be cut.
pub(super) fn offloads(is_v6: bool, segment_size: u16) -> [u8; 10] {
    const NEEDS_CHECKSUM: u8 = 1;
    let (kind, start) = if is_v6 { (4, 54_u16) } else { (1, 34) };
    let [s0, s1] = segment_size.to_ne_bytes();
    let [c0, c1] = start.to_ne_bytes();
    let [h0, h1] = (start + 32).to_ne_bytes();
    let [o0, o1] = 16_u16.to_ne_bytes();
    [NEEDS_CHECKSUM, kind, h0, h1, s0, s1, c0, c1, o0, o1]
}

/// Leaves the checksum to a device: the sum of the pseudo-header alone.
pub(super) fn unfinish(bytes: &mut [u8]) {
    let packet = IpPacket::parse(bytes).expect("an IP packet");
    let (header_len, len) = (packet.header_len(), packet.payload_len());
    let len = u32::try_from(len).expect("a length");
    let sum = wire::checksum::pseudo_header(packet.source(), packet.destination(), 6, len);
    let sum = wire::checksum::fold(sum);
    bytes[header_len + 16..header_len + 18].copy_from_slice(&sum.to_be_bytes());
}
