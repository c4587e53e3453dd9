//! Packets that a member never sends (`fence.h`): the address of the pool is on each member, and the balancer alone
//! answers for the address.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::time::Duration;

use super::packet::{Packet, V6_HEADER_LEN, array, overwrite};
use super::{Counter, Shared, Verdict};

const ARP_OPERATION: usize = 6;
/// Protocol address of the sender in an ARP packet for Ethernet (RFC 826).
const ARP_SENDER: usize = 14;
const ARP_TARGET: usize = 24;
const ARP_REQUEST: [u8; 2] = [0, 1];
const PROTOCOL_ICMP_V6: u8 = 58;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;

/// Verdict on a packet that is no segment from an address:port of the pool.
pub(super) fn egress_other(shared: &mut Shared, packet: &mut Packet, now: Duration) -> Verdict {
    let source = match packet.bytes.first().map(|first| first >> 4) {
        Some(0) => return egress_arp(shared, packet),
        Some(4) => v4(&packet.bytes, 12),
        Some(6) if is_advertisement(shared, &packet.bytes) => return Verdict::Drop,
        Some(6) => v6(&packet.bytes, 8),
        _ => None,
    };
    if !shared.is_fenced(now) || !source.is_some_and(|source| shared.is_address(source)) {
        return Verdict::Next;
    }
    shared.count(Counter::Fenced);
    Verdict::Drop
}

/// The kernel asks for the address of a neighbour in the name of the packet that waits: of a segment of the pool's
/// address. Without an address of its own the interface asks as for a probe (RFC 5227, 1.1).
fn egress_arp(shared: &Shared, packet: &mut Packet) -> Verdict {
    let (sender, target) = (v4(&packet.bytes, ARP_SENDER), v4(&packet.bytes, ARP_TARGET));
    if !sender.is_some_and(|sender| shared.is_address(sender)) {
        return Verdict::Next;
    }
    if array(&packet.bytes, ARP_OPERATION) != Some(ARP_REQUEST) || sender == target {
        return Verdict::Drop;
    }
    let own = shared.own_addresses.get(&packet.interface);
    let own = own.copied().unwrap_or(Ipv4Addr::UNSPECIFIED);
    overwrite(&mut packet.bytes, ARP_SENDER, &own.octets());
    Verdict::Next
}

fn is_advertisement(shared: &Shared, bytes: &[u8]) -> bool {
    let is_one = bytes.get(6) == Some(&PROTOCOL_ICMP_V6)
        && bytes.get(V6_HEADER_LEN) == Some(&NEIGHBOUR_ADVERTISEMENT);
    let target = v6(bytes, V6_HEADER_LEN + 8);
    is_one && target.is_some_and(|target| shared.is_address(target))
}

fn v4(bytes: &[u8], at: usize) -> Option<IpAddr> {
    Some(Ipv4Addr::from(array::<4>(bytes, at)?).into())
}

fn v6(bytes: &[u8], at: usize) -> Option<IpAddr> {
    Some(Ipv6Addr::from(array::<16>(bytes, at)?).into())
}
