//! Packets to members in other network segments.

use std::os::fd::AsFd as _;

use south_model::Packet;

use super::*;
use crate::harness::{Frame, Outer, outer_of};

/// Members at IPv4 and IPv6 addresses, reached through the loopback, or through an interface that does not exist.
fn members(interface: u32) -> Vec<BalanceMember> {
    let of = |(number, name): (u8, &&str)| BalanceMember {
        address: match number {
            1 => "fd00:0:0:1::1".parse().expect("an address"),
            _ => IpAddr::from([10, 0, 1, number]),
        },
        source: Some(match number {
            1 => "fd00::2".parse().expect("an address"),
            _ => IpAddr::from([10, 0, 0, 2]),
        }),
        interface,
        ..member(number, name)
    };
    (0..).zip(&NAMES).map(of).collect()
}

/// The verdict on a packet, and the IP packet that leaves.
fn send(balancer: &Balancer, packet: &[u8]) -> (i32, Vec<u8>) {
    let mut frame = Frame::of(&Packet {
        bytes: packet.to_vec(),
        mark: 0,
        ifindex: 1,
        checksum: ChecksumMode::Full,
    });
    let program = balancer.balance.program_fd().expect("the program");
    let verdict = frame.run(program.as_fd()).expect("the packet is run");
    let verdict = match verdict {
        crate::harness::Verdict::Drop => TC_DROP,
        crate::harness::Verdict::Next => TC_NEXT,
        _ => TC_REDIRECT,
    };
    (verdict, frame.bytes.split_off(14))
}

/// The outer headers of a packet to the owner of the connection.
fn wrapped(balancer: &Balancer, packet: &[u8], connection: Connection) -> Outer {
    let (verdict, sent) = send(balancer, packet);
    assert_eq!(verdict, TC_REDIRECT);
    let (outer, inner) = outer_of(&sent);
    assert_eq!(inner, packet, "the packet of the client stays as it is");
    let owner = owner(TableKind::Maglev, connection);
    let members = members(1);
    let owner = members.iter().find(|member| member.name == owner);
    let owner = owner.expect("a member");
    assert_eq!(outer.destination, owner.address);
    assert_eq!(Some(outer.source), owner.source);
    assert!(!outer.is_forwarded);
    assert!(outer.source_port >= 49_152);
    outer
}

#[test]
fn segment_is_wrapped_for_owner_of_its_connection() {
    let balancer = Balancer::encapsulating(members(1));
    let mut ports = std::collections::BTreeSet::new();
    for port in 1..60 {
        for v6 in [false, true] {
            let (client, service) = (client(v6, port), service(v6));
            let connection = Connection { client, service };
            let first = wrapped(&balancer, &segment(client, service, b"GET"), connection);
            let next = wrapped(&balancer, &segment(client, service, &[7; 400]), connection);
            assert_eq!(first, next, "the packets of a connection take one path");
            let low = flow_hash(KEY, client, service);
            assert_eq!(
                first.tag[4..],
                low.to_be_bytes(),
                "the low half of the hash"
            );
            ports.insert(first.source_port);
        }
    }
    assert!(
        ports.len() > 100,
        "connections take several paths: {}",
        ports.len()
    );
    assert_eq!(balancer.counters().forwarded, 4 * 59);
    assert!(balancer.packets().iter().all(|(_, packets)| *packets > 20));
}

#[test]
fn error_about_connection_is_wrapped_for_its_owner() {
    let balancer = Balancer::encapsulating(members(1));
    for port in 1..30 {
        for (v6, kind) in [(false, 3), (true, 2)] {
            let (client, service) = (client(v6, port), service(v6));
            let sent = segment(service, client, &[7; 20]);
            let error = icmp_about(&sent, 60, service, kind);
            let connection = Connection { client, service };
            let of_error = wrapped(&balancer, &error, connection);
            let of_segment = wrapped(&balancer, &segment(client, service, &[]), connection);
            assert_eq!(of_error, of_segment);
        }
    }
    assert_eq!(balancer.counters().icmp, 2 * 29);
}

#[test]
fn packet_of_this_host_is_not_wrapped() {
    let balancer = Balancer::encapsulating(members(1));
    let (client, service) = (client(false, 9), service(false));
    let packet = segment(client, SocketAddr::new(service.ip(), 22), &[]);
    assert_eq!(send(&balancer, &packet), (TC_NEXT, packet));
}

/// No route leads to a member without an interface.
#[test]
fn segment_without_route_is_dropped_and_counted() {
    for interface in [0, 0x7fff_fff0] {
        let balancer = Balancer::encapsulating(members(interface));
        let packet = segment(client(false, 1), service(false), &[]);
        assert_eq!(send(&balancer, &packet).0, TC_DROP);
        let counters = balancer.counters();
        assert_eq!((counters.not_wrapped, counters.forwarded), (1, 0));
    }
}
