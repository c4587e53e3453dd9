//! Which packets are the balancer's: `bpf/pool/classify.h` in Rust.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Connection {
    pub(super) client: SocketAddr,
    pub(super) service: SocketAddr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    Other,
    Segment(Connection),
    Icmp(Connection),
    Fragment,
}

const TCP_PROTOCOL: u8 = 6;

/// Addresses of a header, the protocol behind it, and the place of that; `None`: cut off, or malformed.
struct Header {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    fragment: u16,
    len: usize,
}

fn header(packet: &[u8], v6: bool) -> Option<Header> {
    let address = |at: usize| -> Option<IpAddr> {
        match v6 {
            true => <[u8; 16]>::try_from(packet.get(at..at + 16)?)
                .ok()
                .map(|b| Ipv6Addr::from(b).into()),
            false => <[u8; 4]>::try_from(packet.get(at..at + 4)?)
                .ok()
                .map(|b| Ipv4Addr::from(b).into()),
        }
    };
    if v6 {
        return Some(Header {
            source: address(8)?,
            destination: address(24)?,
            protocol: packet[6],
            fragment: 0,
            len: 40,
        });
    }
    let (source, destination) = (address(12)?, address(16)?);
    let len = usize::from(packet[0] & 15) * 4;
    Some(Header {
        source,
        destination,
        protocol: packet[9],
        fragment: u16::from_be_bytes([packet[6], packet[7]]),
        len,
    })
    .filter(|header| header.len >= 20)
}

fn ports(packet: &[u8], at: usize) -> Option<(u16, u16)> {
    let bytes = packet.get(at..at + 4)?;
    let port = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    Some((port(0), port(2)))
}

pub(super) fn classify(packet: &[u8], v6: bool, services: &[SocketAddr]) -> Class {
    found(packet, v6, services).unwrap_or(Class::Other)
}

fn found(packet: &[u8], v6: bool, services: &[SocketAddr]) -> Option<Class> {
    let ip = header(packet, v6)?;
    let is_fragment = ip.fragment & 0x3fff != 0;
    if ip.protocol == TCP_PROTOCOL && !is_fragment {
        let (client, service) = ports(packet, ip.len)?;
        let connection = Connection {
            client: SocketAddr::new(ip.source, client),
            service: SocketAddr::new(ip.destination, service),
        };
        let is_ours = services.contains(&connection.service);
        return is_ours.then_some(Class::Segment(connection));
    }
    if !services
        .iter()
        .any(|service| service.ip() == ip.destination)
    {
        return None;
    }
    let protocol_in_pieces = if v6 && ip.protocol == 44 {
        packet.get(ip.len..ip.len + 8).map(|bytes| bytes[0])
    } else {
        is_fragment.then_some(ip.protocol)
    };
    if protocol_in_pieces == Some(TCP_PROTOCOL) {
        return Some(Class::Fragment);
    }
    let icmp = if v6 { 58 } else { 1 };
    if ip.protocol != icmp || is_fragment {
        return None;
    }
    let kind = *packet.get(ip.len)?;
    let is_error = if v6 {
        (1..=4).contains(&kind)
    } else {
        [3, 11, 12].contains(&kind)
    };
    if !is_error {
        return None;
    }
    let inner = packet.get(ip.len + 8..)?;
    let about = header(inner, v6)
        .filter(|about| about.protocol == TCP_PROTOCOL && about.fragment & 0x1fff == 0)?;
    let (service, client) = ports(inner, about.len)?;
    let connection = Connection {
        client: SocketAddr::new(about.destination, client),
        service: SocketAddr::new(about.source, service),
    };
    let is_ours = services.contains(&connection.service);
    is_ours.then_some(Class::Icmp(connection))
}
