//! Addresses that a host has for a limited time (rtnetlink(7)).
//!
//! A killed supervisor must not leave behind an address that another host is to have. The kernel prevents this: an
//! address may have a lifetime in seconds, for IPv4 as well as IPv6 (`valid_lft` in ip-address(8)). The supervisor
//! renews the lifetime again and again.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REPLACE, NLM_F_REQUEST,
    NetlinkPayload,
};
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressMessage, AddressScope, CacheInfo,
};
use netlink_packet_route::link::{LinkFlags, LinkMessage};
use netlink_packet_route::neighbour::{NeighbourMessage, NeighbourState};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rustix::io::Errno;
use rustix::net::netdevice::name_to_index;
use rustix::net::{self, SocketFlags, SocketType};

use crate::netlink::{Netlink, encode};

/// An address that this host has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostAddress {
    /// The address.
    pub ip: IpAddr,
    /// Number of the device with the address.
    pub device: u32,
    /// The address has no lifetime. Addresses of [`Addresses::hold`] always have a lifetime.
    pub permanent: bool,
}

/// The way of packets to another host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Number of the device on which the packets leave.
    pub device: u32,
    /// The address of this host that the kernel chooses as the source.
    pub source: IpAddr,
}

/// The addresses of the host, in the network namespace in which this value was opened.
#[derive(Debug)]
pub struct Addresses {
    netlink: Netlink,
}

impl Addresses {
    /// Opens the way to the kernel.
    ///
    /// # Errors
    ///
    /// When there is no such socket to be had.
    pub fn open() -> io::Result<Self> {
        Ok(Self {
            netlink: Netlink::open(None)?,
        })
    }

    /// The number of a device, `None` if there is none of this name.
    ///
    /// # Errors
    ///
    /// When the kernel does not say.
    pub fn device(name: &str) -> io::Result<Option<u32>> {
        let (family, flags) = (net::AddressFamily::INET, SocketFlags::CLOEXEC);
        let socket = net::socket_with(family, SocketType::DGRAM, flags, None)?;
        match name_to_index(socket.as_fd(), name) {
            Ok(index) => Ok(Some(index)),
            Err(Errno::NODEV) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns all addresses.
    ///
    /// # Errors
    ///
    /// When the kernel does not list the addresses.
    pub fn list(&mut self) -> io::Result<Vec<HostAddress>> {
        loop {
            if let Some(complete) = self.list_once()? {
                return Ok(complete);
            }
        }
    }

    /// `None` if the list changed meanwhile, and may be incomplete.
    fn list_once(&mut self) -> io::Result<Option<Vec<HostAddress>>> {
        let request = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        self.dump(request, |message| match message {
            RouteNetlinkMessage::NewAddress(address) => HostAddress::from_message(&address),
            _ => None,
        })
    }

    /// Gives up all packets that wait for the link-layer address of a neighbour that has not answered yet.
    ///
    /// No tc program has seen these packets: tc sees a packet when the packet leaves the device. If a fence held back
    /// the question for the neighbour, the packets could leave after the end of the fence.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn drop_waiting(&mut self) -> io::Result<()> {
        let waiting = loop {
            let request = RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default());
            let complete = self.dump(request, |message| match message {
                RouteNetlinkMessage::NewNeighbour(neighbour) => {
                    (neighbour.header.state == NeighbourState::Incomplete).then_some(neighbour)
                }
                _ => None,
            })?;
            if let Some(complete) = complete {
                break complete;
            }
        };
        for neighbour in waiting {
            let request = RouteNetlinkMessage::DelNeighbour(neighbour);
            let sequence = self.request(request, NLM_F_ACK)?;
            match self.acknowledgement(sequence) {
                // The neighbour is gone, or the device is.
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV)) => {
                }
                done => done?,
            }
        }
        Ok(())
    }

    /// Chosen parts of the answers; `None` if the list changed meanwhile, and may be incomplete.
    fn dump<T>(
        &mut self,
        request: RouteNetlinkMessage,
        mut choose: impl FnMut(RouteNetlinkMessage) -> Option<T>,
    ) -> io::Result<Option<Vec<T>>> {
        let sequence = self.request(request, NLM_F_DUMP)?;
        let (mut found, mut interrupted) = (Vec::new(), false);
        loop {
            for message in self.netlink.receive::<RouteNetlinkMessage>()? {
                if message.header.sequence_number != sequence {
                    continue;
                }
                interrupted |= message.header.flags & NLM_F_DUMP_INTR != 0;
                match message.payload {
                    NetlinkPayload::InnerMessage(message) => found.extend(choose(message)),
                    NetlinkPayload::Error(error) => return Err(error.to_io()),
                    NetlinkPayload::Done(_) => return Ok((!interrupted).then_some(found)),
                    _ => {}
                }
            }
        }
    }

    /// Gives a device this address for `lifetime`, in whole seconds, at least 1 s. A lifetime of an address that the
    /// device has begins again.
    ///
    /// The address is alone in its network (`/32`, `/128`): no other address is routed by this address. An IPv6 address
    /// can be used at once, without duplicate address detection, which takes a second or more. An IPv6 address is also
    /// deprecated (RFC 4862 5.5.4): the host answers with the address, but does not begin connections, which would end
    /// when the address moves.
    ///
    /// # Errors
    ///
    /// When the kernel refuses: the device does not exist, IPv6 is switched off, or the permission is missing.
    pub fn hold(&mut self, ip: IpAddr, device: u32, lifetime: Duration) -> io::Result<()> {
        // The largest number means an unlimited lifetime.
        let seconds = u32::try_from(lifetime.as_secs()).unwrap_or(u32::MAX);
        let seconds = seconds.clamp(1, u32::MAX - 1);
        let mut cache = CacheInfo::default();
        cache.ifa_valid = seconds;
        cache.ifa_preferred = if ip.is_ipv6() { 0 } else { seconds };
        let mut message = message(ip, device);
        message.attributes.push(AddressAttribute::CacheInfo(cache));
        if ip.is_ipv6() {
            let flags = AddressAttribute::Flags(AddressFlags::Nodad);
            message.attributes.push(flags);
        }
        let request = RouteNetlinkMessage::NewAddress(message);
        let sequence = self.request(request, NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE)?;
        self.acknowledgement(sequence)
    }

    /// Whether the host accepts packets to this address. For a new IPv6 address, this takes a moment: a thread of the
    /// kernel makes the route. Earlier packets are lost without a report.
    ///
    /// # Errors
    ///
    /// When the kernel does not answer.
    pub fn is_received(&mut self, ip: IpAddr) -> io::Result<bool> {
        let route = self.route(ip, None)?;
        Ok(route.is_some_and(|route| route.header.kind == RouteType::Local))
    }

    /// The number of the device on which packets from `from` to `to` leave. `None`: the packets stay on this host, or
    /// there is no way.
    ///
    /// # Errors
    ///
    /// When the kernel does not say.
    pub fn device_towards(&mut self, to: IpAddr, from: IpAddr) -> io::Result<Option<u32>> {
        let route = self.route(to, Some(from))?;
        let route = route.filter(|route| route.header.kind == RouteType::Unicast);
        let attributes = route.map(|route| route.attributes).unwrap_or_default();
        Ok(attributes
            .into_iter()
            .find_map(|attribute| match attribute {
                RouteAttribute::Oif(device) => Some(device),
                _ => None,
            }))
    }

    /// The way of packets to `to`, perhaps through routers. `None`: this host has the address, or there is no way.
    ///
    /// # Errors
    ///
    /// When the kernel does not say.
    pub fn route_to(&mut self, to: IpAddr) -> io::Result<Option<Route>> {
        let route = self.route(to, None)?;
        let route = route.filter(|route| route.header.kind == RouteType::Unicast);
        let (mut device, mut source) = (None, None);
        for attribute in route.map(|route| route.attributes).unwrap_or_default() {
            match attribute {
                RouteAttribute::Oif(number) => device = Some(number),
                RouteAttribute::PrefSource(RouteAddress::Inet(ip)) => source = Some(ip.into()),
                RouteAttribute::PrefSource(RouteAddress::Inet6(ip)) => source = Some(ip.into()),
                _ => {}
            }
        }
        let found = device.zip(source);
        Ok(found.map(|(device, source)| Route { device, source }))
    }

    /// The number of the device on whose link `to` is. `None`: this host has the address, or packets go through a
    /// router, or there is no way.
    ///
    /// # Errors
    ///
    /// When the kernel does not say.
    pub fn device_of_neighbour(&mut self, to: IpAddr) -> io::Result<Option<u32>> {
        let route = self.route(to, None)?;
        let route = route.filter(|route| route.header.kind == RouteType::Unicast);
        let attributes = route.map(|route| route.attributes).unwrap_or_default();
        let is_routed = |attribute: &RouteAttribute| {
            matches!(
                attribute,
                RouteAttribute::Gateway(_) | RouteAttribute::Via(_)
            )
        };
        if attributes.iter().any(is_routed) {
            return Ok(None);
        }
        Ok(attributes
            .into_iter()
            .find_map(|attribute| match attribute {
                RouteAttribute::Oif(device) => Some(device),
                _ => None,
            }))
    }

    /// The route that a packet would take.
    fn route(&mut self, to: IpAddr, from: Option<IpAddr>) -> io::Result<Option<RouteMessage>> {
        let mut message = RouteMessage::default();
        let (family, bits) = match to {
            IpAddr::V4(_) => (AddressFamily::Inet, 32),
            IpAddr::V6(_) => (AddressFamily::Inet6, 128),
        };
        message.header.address_family = family;
        message.header.destination_prefix_length = bits;
        let destination = RouteAttribute::Destination(route_address(to));
        message.attributes.push(destination);
        if let Some(from) = from {
            message.header.source_prefix_length = bits;
            let source = RouteAttribute::Source(route_address(from));
            message.attributes.push(source);
        }
        let sequence = self.request(RouteNetlinkMessage::GetRoute(message), 0)?;
        loop {
            for message in self.netlink.receive::<RouteNetlinkMessage>()? {
                if message.header.sequence_number != sequence {
                    continue;
                }
                return match message.payload {
                    NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(route)) => {
                        Ok(Some(route))
                    }
                    NetlinkPayload::Error(error) => match error.to_io() {
                        error if is_unreachable(&error) => Ok(None),
                        error => Err(error),
                    },
                    _ => continue,
                };
            }
        }
    }

    /// Switches the device on.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn switch_on(&mut self, device: u32) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = device;
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        let request = RouteNetlinkMessage::SetLink(message);
        let sequence = self.request(request, NLM_F_ACK)?;
        self.acknowledgement(sequence)
    }

    /// Removes the address from the device. Returns false if the address was gone already.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn remove(&mut self, ip: IpAddr, device: u32) -> io::Result<bool> {
        let request = RouteNetlinkMessage::DelAddress(message(ip, device));
        let sequence = self.request(request, NLM_F_ACK)?;
        match self.acknowledgement(sequence) {
            Ok(()) => Ok(true),
            Err(error) => match error.raw_os_error() {
                Some(libc::EADDRNOTAVAIL | libc::ENODEV) => Ok(false),
                _ => Err(error),
            },
        }
    }

    /// Returns the sequence number of the request.
    fn request(&mut self, request: RouteNetlinkMessage, flags: u16) -> io::Result<u32> {
        let sequence = self.netlink.next_sequence();
        let mut bytes = Vec::new();
        encode(request, NLM_F_REQUEST | flags, sequence, &mut bytes);
        self.netlink.send(&bytes)?;
        Ok(sequence)
    }

    fn acknowledgement(&mut self, sequence: u32) -> io::Result<()> {
        loop {
            for message in self.netlink.receive::<RouteNetlinkMessage>()? {
                if message.header.sequence_number == sequence
                    && let NetlinkPayload::Error(error) = message.payload
                {
                    return match error.code {
                        None => Ok(()),
                        Some(_) => Err(error.to_io()),
                    };
                }
            }
        }
    }
}

impl HostAddress {
    fn from_message(message: &AddressMessage) -> Option<Self> {
        let (mut local, mut address, mut flags) = (None, None, AddressFlags::empty());
        for attribute in &message.attributes {
            match attribute {
                AddressAttribute::Local(ip) => local = Some(*ip),
                AddressAttribute::Address(ip) => address = Some(*ip),
                AddressAttribute::Flags(all) => flags = *all,
                _ => {}
            }
        }
        Some(Self {
            // On a point-to-point link the latter is the other end's.
            ip: local.or(address)?,
            device: message.header.index,
            permanent: flags.contains(AddressFlags::Permanent),
        })
    }
}

fn is_unreachable(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENETUNREACH | libc::EHOSTUNREACH)
    )
}

fn route_address(ip: IpAddr) -> RouteAddress {
    match ip {
        IpAddr::V4(ip) => RouteAddress::Inet(ip),
        IpAddr::V6(ip) => RouteAddress::Inet6(ip),
    }
}

fn message(ip: IpAddr, device: u32) -> AddressMessage {
    let mut message = AddressMessage::default();
    let (family, prefix_len) = match ip {
        IpAddr::V4(_) => (AddressFamily::Inet, 32),
        IpAddr::V6(_) => (AddressFamily::Inet6, 128),
    };
    message.header.family = family;
    message.header.prefix_len = prefix_len;
    message.header.scope = AddressScope::Universe;
    message.header.index = device;
    message.attributes = vec![AddressAttribute::Local(ip), AddressAttribute::Address(ip)];
    message
}
