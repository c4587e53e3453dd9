//! Frames that tell the neighbours on a link where an address is now.
//!
//! When an address comes up on another host, or on a host with another network card, the neighbours continue to send
//! to the old link-layer address until their neighbour caches notice, and switches flood the frames for the new
//! address. So the new holder announces the address, unasked.
//!
//! **IPv4**: an ARP packet whose sender and target are the same address, as a broadcast. There are two forms, and some
//! stacks heed only one of them. The request ([`ArpForm::Request`], RFC 5227 3) is an ordinary packet for every host:
//! RFC 826 has the receiver update a known entry of the sender before the receiver looks at the operation. Linux does
//! the same for an existing entry, with any `arp_accept` (that setting is about new entries). The reply
//! ([`ArpForm::Reply`]) is for stacks in which only a reply changes an entry; Linux takes a reply for an announcement
//! only if the target hardware address is the sender's, too. A host that wants to reach all stacks sends both.
//!
//! **IPv6**: an unsolicited neighbor advertisement to all nodes with the Override flag (RFC 4861
//! 7.2.6), sent from the address itself, as Linux does.
//!
//! The frames have no padding: a packet socket leaves that to the driver.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{checksum, ip::V6_HEADER};

/// A link-layer address of an Ethernet device (EUI-48).
pub type MacAddress = [u8; 6];

const BROADCAST: MacAddress = [0xff; 6];
/// All nodes on the link (RFC 4291 2.7.1) ...
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// The link-layer destination of frames for all nodes (RFC 2464 7).
const ALL_NODES_MAC: MacAddress = [0x33, 0x33, 0, 0, 0, 1];

/// Numbers of protocols in the header of an Ethernet frame.
pub mod ether_type {
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// ARP.
    pub const ARP: u16 = 0x0806;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
}

const ETHERNET_HEADER: usize = 14;
const ARP_PACKET: usize = 28;
/// A neighbor advertisement with the option that holds the link-layer address (RFC 4861 4.4, 4.6.1).
const ADVERTISEMENT: u16 = 24 + 8;

/// Offset of the sender's protocol address in an ARP packet.
const ARP_SENDER: usize = 14;
/// A neighbor solicitation without options (RFC 4861 4.3).
const SOLICITATION: u16 = 24;

/// Bytes of a frame with a gratuitous ARP packet.
pub const ARP_FRAME: usize = ETHERNET_HEADER + ARP_PACKET;
/// Bytes of a frame with a neighbor advertisement.
pub const ADVERTISEMENT_FRAME: usize = ETHERNET_HEADER + V6_HEADER + ADVERTISEMENT as usize;

/// Bytes of a frame with a neighbor solicitation.
pub const SOLICITATION_FRAME: usize = ETHERNET_HEADER + V6_HEADER + SOLICITATION as usize;

const HARDWARE_ETHERNET: u16 = 1;

const PROTOCOL_ICMPV6: u8 = 58;
const NEIGHBOR_SOLICITATION: u8 = 135;
const NEIGHBOR_ADVERTISEMENT: u8 = 136;
const ROUTER: u8 = 0x80;
const OVERRIDE: u8 = 0x20;
const TARGET_LINK_LAYER_ADDRESS: u8 = 2;
/// Any other hop limit shows that a router has forwarded the packet, and the receiver drops the packet (RFC 4861
/// 7.1.2).
const NOT_FORWARDED: u8 = 255;

/// The operation of a gratuitous ARP packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArpForm {
    /// "Who has `ip`? Tell `ip`": the announcement of RFC 5227.
    Request = 1,
    /// "`ip` is at `mac`", unasked.
    Reply = 2,
}

/// A frame that tells everybody on the link that `ip` is at `mac`.
#[must_use]
pub fn gratuitous_arp(mac: MacAddress, ip: Ipv4Addr, form: ArpForm) -> [u8; ARP_FRAME] {
    let target_mac = match form {
        ArpForm::Request => [0; 6], // RFC 5227 1.1
        ArpForm::Reply => mac,
    };
    let mut frame = [0; ARP_FRAME];
    let packet = ethernet(&mut frame, BROADCAST, mac, ether_type::ARP);
    packet[..2].copy_from_slice(&HARDWARE_ETHERNET.to_be_bytes());
    packet[2..4].copy_from_slice(&ether_type::IPV4.to_be_bytes());
    packet[4..6].copy_from_slice(&[6, 4]); // lengths of the addresses
    packet[6..8].copy_from_slice(&(form as u16).to_be_bytes());
    packet[8..14].copy_from_slice(&mac);
    packet[14..18].copy_from_slice(&ip.octets());
    packet[18..24].copy_from_slice(&target_mac);
    packet[24..].copy_from_slice(&ip.octets());
    frame
}

/// A frame that tells all hosts on the link that `ip` is at `mac`. `router`: this host forwards packets; hosts that
/// use this host as a router would forget a router that denies this (RFC 4861 7.2.5).
#[must_use]
pub fn neighbor_advertisement(
    mac: MacAddress,
    ip: Ipv6Addr,
    router: bool,
) -> [u8; ADVERTISEMENT_FRAME] {
    let mut frame = [0; ADVERTISEMENT_FRAME];
    let packet = ethernet(&mut frame, ALL_NODES_MAC, mac, ether_type::IPV6);
    let (header, message) = packet.split_at_mut(V6_HEADER);
    header[0] = 0x60;
    header[4..6].copy_from_slice(&ADVERTISEMENT.to_be_bytes());
    header[6] = PROTOCOL_ICMPV6;
    header[7] = NOT_FORWARDED;
    header[8..24].copy_from_slice(&ip.octets());
    header[24..].copy_from_slice(&ALL_NODES.octets());

    message[0] = NEIGHBOR_ADVERTISEMENT;
    message[4] = OVERRIDE | if router { ROUTER } else { 0 };
    message[8..24].copy_from_slice(&ip.octets());
    message[24..26].copy_from_slice(&[TARGET_LINK_LAYER_ADDRESS, 1]); // in units of 8 bytes
    message[26..].copy_from_slice(&mac);
    let sum = !icmp_sum(ip, ALL_NODES, message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// A frame that asks all hosts on the link for the holder of `ip`, without a claim to `ip` (RFC 5227 1.1): each host
/// with the address answers, and no host changes an entry.
#[must_use]
pub fn arp_probe(mac: MacAddress, ip: Ipv4Addr) -> [u8; ARP_FRAME] {
    let mut frame = gratuitous_arp(mac, ip, ArpForm::Request);
    frame[ETHERNET_HEADER + ARP_SENDER..][..4].fill(0);
    frame
}

/// The same for IPv6 (RFC 4862 5.4.2): a neighbor solicitation from the unspecified address.
#[must_use]
pub fn neighbor_probe(mac: MacAddress, ip: Ipv6Addr) -> [u8; SOLICITATION_FRAME] {
    let [.., a, b, c] = ip.octets();
    // RFC 4291 2.7.1, RFC 2464 7
    let group = Ipv6Addr::new(
        0xff02,
        0,
        0,
        0,
        0,
        1,
        u16::from_be_bytes([0xff, a]),
        u16::from_be_bytes([b, c]),
    );
    let mut frame = [0; SOLICITATION_FRAME];
    let packet = ethernet(
        &mut frame,
        [0x33, 0x33, 0xff, a, b, c],
        mac,
        ether_type::IPV6,
    );
    let (header, message) = packet.split_at_mut(V6_HEADER);
    header[0] = 0x60;
    header[4..6].copy_from_slice(&SOLICITATION.to_be_bytes());
    header[6] = PROTOCOL_ICMPV6;
    header[7] = NOT_FORWARDED;
    header[24..].copy_from_slice(&group.octets());
    message[0] = NEIGHBOR_SOLICITATION;
    message[8..24].copy_from_slice(&ip.octets());
    let sum = !icmp_sum(Ipv6Addr::UNSPECIFIED, group, message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// The link-layer address that a frame gives as that of `ip`: an ARP packet whose sender has `ip`, or a neighbor
/// advertisement for `ip`. `None` for any other frame.
#[must_use]
pub fn holder(frame: &[u8], ip: IpAddr) -> Option<MacAddress> {
    let (header, packet) = frame.split_at_checked(ETHERNET_HEADER)?;
    let kind = u16::from_be_bytes([header[12], header[13]]);
    match ip {
        IpAddr::V4(ip) if kind == ether_type::ARP => {
            let packet = packet.get(..ARP_PACKET)?;
            let is_arp = packet[..2] == HARDWARE_ETHERNET.to_be_bytes()
                && packet[2..4] == ether_type::IPV4.to_be_bytes()
                && packet[4..6] == [6, 4];
            let sender = packet[ARP_SENDER..][..4] == ip.octets();
            (is_arp && sender).then(|| mac_at(packet, 8))?
        }
        IpAddr::V6(ip) if kind == ether_type::IPV6 => advertised(header, packet, ip),
        _ => None,
    }
}

fn advertised(header: &[u8], packet: &[u8], ip: Ipv6Addr) -> Option<MacAddress> {
    let (v6, rest) = packet.split_at_checked(V6_HEADER)?;
    let length = u16::from_be_bytes([v6[4], v6[5]]);
    let message = rest.get(..usize::from(length))?;
    let is_advertisement = v6[6] == PROTOCOL_ICMPV6
        && v6[7] == NOT_FORWARDED
        && message.len() >= usize::from(SOLICITATION)
        && message[0] == NEIGHBOR_ADVERTISEMENT
        && message[8..24] == ip.octets();
    let address = |at: usize| {
        let octets: Option<[u8; 16]> = v6.get(at..at + 16)?.try_into().ok();
        octets.map(Ipv6Addr::from)
    };
    if !is_advertisement || icmp_sum(address(8)?, address(24)?, message) != 0xffff {
        return None;
    }
    let option = message.get(24..26);
    if option == Some(&[TARGET_LINK_LAYER_ADDRESS, 1]) {
        mac_at(message, 26)
    } else {
        mac_at(header, 6)
    }
}

fn mac_at(bytes: &[u8], at: usize) -> Option<MacAddress> {
    bytes.get(at..at + 6)?.try_into().ok()
}

/// The checksum of an `ICMPv6` message and the pseudo-header, not inverted.
fn icmp_sum(source: Ipv6Addr, destination: Ipv6Addr, message: &[u8]) -> u16 {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    let pseudo =
        checksum::pseudo_header(source.into(), destination.into(), PROTOCOL_ICMPV6, length);
    checksum::fold(pseudo + checksum::sum(message))
}

/// Writes the header, and returns the bytes behind.
fn ethernet<const N: usize>(
    frame: &mut [u8; N],
    destination: MacAddress,
    source: MacAddress,
    protocol: u16,
) -> &mut [u8] {
    frame[..6].copy_from_slice(&destination);
    frame[6..12].copy_from_slice(&source);
    frame[12..ETHERNET_HEADER].copy_from_slice(&protocol.to_be_bytes());
    &mut frame[ETHERNET_HEADER..]
}

#[cfg(test)]
mod tests;
