//! Injects fabricated packets into the server's stack, or sends fabricated packets to a client.
//!
//! For the server: a packet socket sends the frame on the interface on which the client's packets
//! arrive, with a mark of the service. The egress program redirects the frame into that interface's
//! ingress (`bpf_redirect`). So the frame takes the same way as a packet from the network, and
//! passes `rp_filter`. No helper device is needed. Long replays go as GSO frames with a partial
//! checksum, as a NIC would deliver such frames.
//!
//! For the client: the way out is looked up; the packet socket sends a frame without link addresses on that
//! device, and the egress program adds the addresses (`bpf_redirect_neigh`). So the packet passes no filter of this
//! host. A connection tracker knows the numbers of the server's TCP. After a splice the client's numbers differ, the
//! tracker would call the packet invalid, and a firewall would drop the packet. A client on this host gets the packet
//! by a raw socket.

use std::{
    cell::RefCell,
    io::{self, IoSlice},
    net::{IpAddr, SocketAddr},
    os::fd::{AsRawFd, OwnedFd},
};

use rustix::net::{self, AddressFamily, Protocol, RawProtocol, SocketFlags, SocketType};
use south_model::{MARK_FROM_SERVER, MARK_QUEUED, MARK_TO_CLIENT, MARK_TO_NEIGHBOUR};
use supervise::Addresses;
use wire::{IpPacket, neighbour::ether_type};

use crate::{
    error::{DataplaneError, SocketContext},
    interfaces::Interface,
    packet_socket,
};

/// How a packet for the server is numbered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    /// The client's numbers; the data plane translates.
    Client = 0,
    /// The numbers of the server's socket.
    Server = 1,
    /// The client's numbers, of a request that has waited for its turn.
    Queued = MARK_QUEUED as isize,
}

/// Payload of one segment of a GSO frame on a link with a larger MTU.
const SEGMENT: usize = 1400;
/// Largest payload of one injected frame, which fits an IP packet with all headers.
pub const MAX_INJECTED: usize = 65_000;

/// `struct virtio_net_hdr`, linux/virtio_net.h.
#[repr(C)]
#[derive(Default)]
struct VirtioNetHeader {
    flags: u8,
    gso_type: u8,
    hdr_len: u16,
    gso_size: u16,
    csum_start: u16,
    csum_offset: u16,
}
const VIRTIO_NEEDS_CSUM: u8 = 1;
const VIRTIO_GSO_TCPV4: u8 = 1;
const VIRTIO_GSO_TCPV6: u8 = 4;
const ETHERNET: usize = 14;
const TCP_CHECKSUM_OFFSET: u16 = 16;

/// The sockets.
pub struct Injector {
    client_space: OwnedFd,
    server_space: OwnedFd,
    queued: OwnedFd,
    to_neighbour: OwnedFd,
    from_server: OwnedFd,
    to_client: [OwnedFd; 2],
    routes: RefCell<Addresses>,
}

impl Injector {
    /// Open the sockets in this network namespace; `mark` as in the data plane's settings.
    ///
    /// # Errors
    /// `CAP_NET_RAW` or `CAP_NET_ADMIN` is missing.
    pub fn new(mark: u32) -> Result<Self, DataplaneError> {
        let packet = |offset: u32| -> Result<OwnedFd, DataplaneError> {
            let socket = packet_socket::open().doing("open a packet socket")?;
            set_option(&socket, libc::SOL_PACKET, libc::PACKET_VNET_HDR, 1)?;
            set_mark(&socket, mark.wrapping_add(offset))?;
            Ok(socket)
        };
        let raw = |family| -> Result<OwnedFd, DataplaneError> {
            let protocol =
                RawProtocol::new(libc::IPPROTO_RAW.unsigned_abs()).map(Protocol::from_raw);
            let socket = net::socket_with(family, SocketType::RAW, SocketFlags::CLOEXEC, protocol)
                .map_err(io::Error::from)
                .doing("open a raw socket")?;
            set_mark(&socket, mark.wrapping_add(MARK_TO_CLIENT))?;
            Ok(socket)
        };
        Ok(Self {
            client_space: packet(Space::Client as u32)?,
            server_space: packet(Space::Server as u32)?,
            queued: packet(Space::Queued as u32)?,
            to_neighbour: packet(MARK_TO_NEIGHBOUR)?,
            from_server: packet(MARK_FROM_SERVER)?,
            to_client: [raw(AddressFamily::INET)?, raw(AddressFamily::INET6)?],
            routes: RefCell::new(Addresses::open().doing("open a socket to look up routes")?),
        })
    }

    /// Delivers an IP packet to this host's stack, as if from the network on `interface`. The TCP
    /// checksum field holds the pseudo-header's sum ([`wire::ChecksumMode::Partial`]).
    ///
    /// # Errors
    /// The packet is malformed, or the interface is down.
    pub fn to_server(
        &self,
        interface: &Interface,
        packet: &[u8],
        space: Space,
    ) -> Result<(), DataplaneError> {
        let ip = IpPacket::parse(packet)?;
        let v6 = ip.source().is_ipv6();
        let tcp_header = usize::from(ip.payload().get(12).copied().unwrap_or(0) >> 4) * 4;
        let segment_len = ip.payload().len().saturating_sub(tcp_header);
        let offset = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
        let mut header = VirtioNetHeader {
            flags: VIRTIO_NEEDS_CSUM,
            csum_start: offset(ETHERNET + ip.header_len()),
            csum_offset: TCP_CHECKSUM_OFFSET,
            ..Default::default()
        };
        let headers = ip.header_len() + tcp_header;
        let mtu = usize::try_from(interface.mtu).unwrap_or(usize::MAX);
        // Never 0, even with an MTU without space for a payload.
        let segment = SEGMENT.min(mtu.saturating_sub(headers)).max(64);
        if segment_len > segment {
            header.gso_type = if v6 {
                VIRTIO_GSO_TCPV6
            } else {
                VIRTIO_GSO_TCPV4
            };
            header.gso_size = offset(segment);
            header.hdr_len = offset(ETHERNET + headers);
        }
        let socket = match space {
            Space::Client => &self.client_space,
            Space::Server => &self.server_space,
            Space::Queued => &self.queued,
        };
        send_frame(socket, interface, &header, packet, v6).doing("inject a packet for the server")
    }

    /// Sends an IP packet of the server once more, in the numbers of its socket: the programs translate, and find the
    /// neighbour.
    ///
    /// # Errors
    /// The packet is malformed, or the interface is down.
    pub fn from_server(&self, interface: &Interface, packet: &[u8]) -> Result<(), DataplaneError> {
        let v6 = IpPacket::parse(packet)?.source().is_ipv6();
        let header = VirtioNetHeader::default();
        send_frame(&self.from_server, interface, &header, packet, v6)
            .doing("send a packet of the server")
    }

    /// Send an IP packet of the service to a client, past the gate. `arrives_at`: the interface on which the client's
    /// packets arrive; packets to a client with a link-local address leave there, too.
    ///
    /// # Errors
    /// The packet is malformed, or there is no route.
    pub fn to_client<'a>(
        &self,
        packet: &[u8],
        arrives_at: u32,
        mut interfaces: impl Iterator<Item = &'a Interface>,
    ) -> Result<(), DataplaneError> {
        let ip = IpPacket::parse(packet)?;
        let (source, destination) = (ip.source(), ip.destination());
        let device = match destination {
            IpAddr::V6(client) if client.is_unicast_link_local() => Some(arrives_at),
            _ => self
                .routes
                .borrow_mut()
                .device_towards(destination, source)
                .doing("look up the way to a client")?,
        };
        // Without an Ethernet header, or without our programs: as any other packet of this host.
        let leaves_there = |interface: &&Interface| Some(interface.index) == device;
        if let Some(interface) = interfaces.find(leaves_there) {
            let header = VirtioNetHeader::default();
            let v6 = destination.is_ipv6();
            return send_frame(&self.to_neighbour, interface, &header, packet, v6)
                .doing("send a packet to a client");
        }
        let socket = match destination {
            IpAddr::V4(_) => &self.to_client[0],
            IpAddr::V6(_) => &self.to_client[1],
        };
        net::sendto(
            socket,
            packet,
            net::SendFlags::empty(),
            &SocketAddr::new(destination, 0),
        )
        .map_err(io::Error::from)
        .doing("send a packet to a client")?;
        Ok(())
    }
}

/// Sends an IP packet as a frame from the interface to the same interface: the egress program decides the way.
fn send_frame(
    socket: &OwnedFd,
    interface: &Interface,
    header: &VirtioNetHeader,
    packet: &[u8],
    v6: bool,
) -> io::Result<()> {
    let mut ethernet = [0u8; ETHERNET];
    ethernet[..6].copy_from_slice(&interface.mac);
    ethernet[6..12].copy_from_slice(&interface.mac);
    let ethertype = if v6 {
        ether_type::IPV6
    } else {
        ether_type::IPV4
    };
    ethernet[12..].copy_from_slice(&ethertype.to_be_bytes());
    let parts = [
        IoSlice::new(bytes_of(header)),
        IoSlice::new(&ethernet),
        IoSlice::new(packet),
    ];
    packet_socket::send(socket, interface.index, ethertype, &parts)
}

fn set_mark(socket: &OwnedFd, mark: u32) -> Result<(), DataplaneError> {
    set_option(socket, libc::SOL_SOCKET, libc::SO_MARK, mark)
}

fn set_option(socket: &OwnedFd, level: i32, name: i32, value: u32) -> Result<(), DataplaneError> {
    let pointer = std::ptr::from_ref(&value).cast();
    // SAFETY: `pointer` is valid for the length given.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, pointer, 4) };
    if result == 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error()).doing("set a socket option")
}

/// The header in the form for the kernel.
fn bytes_of(header: &VirtioNetHeader) -> &[u8] {
    let start = std::ptr::from_ref(header).cast::<u8>();
    // SAFETY: the header is plain integers without padding (six fields, ten bytes).
    unsafe { std::slice::from_raw_parts(start, size_of::<VirtioNetHeader>()) }
}
