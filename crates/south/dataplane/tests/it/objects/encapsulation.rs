//! Packets in UDP: from the balancer to a member, and from member to member.

use std::net::IpAddr;
use std::os::fd::AsFd as _;

use objects::plane::{Counter, Verdict};
use proptest::prelude::*;
use wire::Flags;

use super::lab::*;
use crate::harness::{self, *};

const MEMBER_ADDRESSES: [&str; 2] = ["10.0.1.11", "fd00:0:0:1::11"];
/// Of the TCP option in a SYN-ACK, on a link with 1500 bytes.
const SEGMENT_SIZE_KIND: u8 = 2;

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// Runs the test with a member at an IPv4 address, and at an IPv6 address.
fn wrapped(test: impl Fn(Lab) + Send + Copy) {
    for text in MEMBER_ADDRESSES {
        let settings = dataplane::MemberSettings {
            encapsulated_at: Some(address(text)),
            ..member_settings()
        };
        alone_with(&settings, test);
    }
}

fn counted(lab: &Lab, name: &str) -> u64 {
    let counters = lab.plane.counters().expect("readable");
    let counter = counters.iter().find(|(other, _)| *other == name);
    counter.expect("a counter").1
}

fn options_of(out: &super::lab::Out) -> &[u8] {
    let bytes = &out.packet.bytes;
    &bytes[if bytes[0] >> 4 == 6 { 60 } else { 40 }..]
}

/// The packet of the client, wrapped by the balancer.
fn wrap(lab: &Lab, spec: &Spec) -> Frame {
    let mut frame = Frame::of(&spec.packet(lab.key.client(), lab.key.server()));
    frame.ifindex = lab.interface;
    lab.wrapping().wrap(&mut frame);
    frame
}

/// The member's verdict on a frame, without the model.
fn receive(lab: &Lab, mut frame: Frame) -> (harness::Verdict, Frame) {
    let verdict = frame.run(lab.ingress_program().as_fd()).expect("it runs");
    (verdict, frame)
}

/// All steps are compared with the model, which sees the packets without their outer headers.
#[test]
fn download_in_udp_is_as_on_the_link() {
    wrapped(|mut lab| {
        for v6 in [false, true] {
            lab.connect(v6, 1, 1000, 5000);
            lab.shake_hands();
            lab.client(lab.next_of_client(12).payload(REQUEST_BYTES));
            lab.server(lab.next_of_server(901).payload(&head(100)));
            lab.server(lab.next_of_server(902).payload(&[b'x'; 100]));
            lab.client(lab.next_of_client(13));
            lab.client(lab.next_of_client(14).payload(REQUEST_BYTES));
            lab.client(lab.next_of_client(15).flags(FIN_ACK));
        }
        assert!(lab.counted(Counter::TranslatedIn) > 4);
        assert_eq!(counted(&lab, "unwrapped"), 12);
        assert_eq!(counted(&lab, "miswrapped"), 0);
    });
}

#[test]
fn client_learns_segment_size_less_outer_headers() {
    wrapped(|mut lab| {
        for (v6, offered, told) in [
            (false, 1460, 1400),
            (false, 8960, 1400),
            (false, 1000, 940),
            (true, 1440, 1380),
            (true, 100, 100),
        ] {
            lab.clear();
            lab.connect(v6, 1, 1000, 5000);
            lab.client(lab.syn());
            let mut options = syn_options(900, 10, SERVER_SCALE);
            assert_eq!(options[..2], [SEGMENT_SIZE_KIND, 4]);
            options[2..4].copy_from_slice(&u16::to_be_bytes(offered));
            let answer = lab.server(lab.syn_ack().options(&options));
            assert_eq!(
                options_of(&answer)[2..4],
                u16::to_be_bytes(told),
                "{offered}"
            );
        }
    });
}

#[test]
fn segment_size_stays_without_encapsulation() {
    alone(|mut lab| {
        lab.client(lab.syn());
        let options = syn_options(900, 10, SERVER_SCALE);
        let answer = lab.server(lab.syn_ack());
        assert_eq!(options_of(&answer)[..4], options[..4]);
    });
}

#[test]
fn segment_of_other_members_connection_is_wrapped_once_more() {
    wrapped(|mut lab| {
        for v6 in [false, true] {
            // A step below is not one of the model.
            lab.clear();
            lab.connect(v6, 1, 1000, 5000);
            lab.forward();
            let spec = segment(lab.c, lab.s).timestamps(12, 13).payload(b"GET");
            // The lab takes the outer headers off again, and compares the packet with the model.
            let out = lab.client(spec.clone());
            assert_eq!(out.verdict, Verdict::RedirectNeighbour);
            let first = wrap(&lab, &spec);
            let (_, forwarded) = receive(&lab, wrap(&lab, &spec));
            let (before, _) = outer_of(&first.bytes[14..]);
            let (outer, _) = outer_of(&forwarded.bytes[14..]);
            assert!(outer.is_forwarded && !before.is_forwarded);
            assert_eq!(outer.destination, address("10.0.0.12"));
            assert_eq!(outer.source, address("10.0.1.11"));
            assert_eq!(
                (outer.tag, outer.source_port),
                (before.tag, before.source_port)
            );
        }
    });
}

/// Two members that take each other for the server.
#[test]
fn segment_forwarded_once_is_dropped_by_next_member() {
    wrapped(|mut lab| {
        lab.forward();
        let spec = segment(lab.c, lab.s).timestamps(12, 13).payload(b"GET");
        let mut frame = wrap(&lab, &spec);
        let flags_at = 14 + if frame.bytes[14] >> 4 == 6 { 40 } else { 20 } + 8 + 3;
        assert_eq!(frame.bytes[flags_at], 0);
        frame.bytes[flags_at] = 1;
        let (verdict, _) = receive(&lab, frame);
        assert_eq!(verdict, harness::Verdict::Drop);
        assert_eq!(counted(&lab, "not_wrapped"), 1);
        assert_eq!(counted(&lab, "forwarded"), 0);
    });
}

#[test]
fn forwarded_segment_of_own_connection_is_served() {
    wrapped(|mut lab| {
        lab.shake_hands();
        let spec = lab.next_of_client(12).payload(REQUEST_BYTES);
        let mut frame = wrap(&lab, &spec);
        let flags_at = 14 + if frame.bytes[14] >> 4 == 6 { 40 } else { 20 } + 8 + 3;
        frame.bytes[flags_at] = 1;
        let (verdict, frame) = receive(&lab, frame);
        assert_eq!(verdict, harness::Verdict::Next);
        let plain = spec.packet(lab.key.client(), lab.key.server()).bytes;
        assert_eq!(frame.bytes.len(), 14 + plain.len());
    });
}

#[test]
fn wrapped_error_about_connection_is_unwrapped() {
    wrapped(|lab| {
        let (client, server) = client_of(&lab);
        let about = segment(lab.s, lab.c)
            .payload(&[7; 20])
            .packet(server, client);
        let mut packet = segment(lab.c, lab.s).packet(client, server).bytes;
        packet.truncate(20);
        packet[9] = 1;
        packet.extend([3, 4, 0, 0, 0, 0, 5, 0]);
        packet.extend(&about.bytes[..40]);
        packet[2..4].copy_from_slice(&68_u16.to_be_bytes());
        let mut frame = Frame::of(&other_packet(&lab, packet.clone()));
        frame.ifindex = lab.interface;
        lab.wrapping().wrap(&mut frame);
        assert_ne!(frame.bytes[14..], packet);
        let (verdict, frame) = receive(&lab, frame);
        assert_eq!(verdict, harness::Verdict::Next);
        assert_eq!(frame.bytes[14..], packet);
    });
}

/// A stranger does not know the hash of a connection, and nothing else is there to be told.
#[test]
fn datagram_of_stranger_is_dropped_and_counted() {
    wrapped(|mut lab| {
        lab.shake_hands();
        let spec = lab.next_of_client(12).payload(REQUEST_BYTES);
        let good = wrap(&lab, &spec).bytes;
        let own = 14 + if good[14] >> 4 == 6 { 40 } else { 20 } + 8;
        let changed = |at: usize, to: u8| {
            let mut bytes = good.clone();
            assert_ne!(bytes[at], to);
            bytes[at] = to;
            bytes
        };
        let ports_at = own + 12 + usize::from(good[own + 12] & 15) * 4;
        let bad = [
            changed(own, 0),
            changed(own + 2, 9),
            changed(own + 3, 2),
            changed(own + 4, !good[own + 4]),
            changed(own + 11, !good[own + 11]),
            changed(own + 12, 0x55),
            // Of another client.
            changed(ports_at, !good[ports_at]),
            good[..own + 6].to_vec(),
            good[..own].to_vec(),
            good[..own + 12].to_vec(),
            good[..own + 20].to_vec(),
        ];
        for (number, bytes) in (1..).zip(bad) {
            let frame = Frame {
                bytes,
                mark: 0,
                ifindex: lab.interface,
                cb: [0; 5],
            };
            let (verdict, _) = receive(&lab, frame);
            assert_eq!(verdict, harness::Verdict::Drop, "{number}");
            assert_eq!(counted(&lab, "miswrapped"), number);
        }
        assert_eq!(lab.flow().client.nxt, lab.c + 1, "no flow has changed");
    });
}

#[test]
fn datagram_to_other_port_or_host_passes() {
    wrapped(|lab| {
        let spec = segment(lab.c, lab.s).flags(Flags::SYN);
        let good = wrap(&lab, &spec).bytes;
        let v6 = good[14] >> 4 == 6;
        let (destination, ports) = if v6 {
            (14 + 39, 14 + 40)
        } else {
            (14 + 19, 14 + 20)
        };
        for at in [destination, ports + 3] {
            let mut bytes = good.clone();
            bytes[at] ^= 1;
            let frame = Frame {
                bytes: bytes.clone(),
                mark: 0,
                ifindex: lab.interface,
                cb: [0; 5],
            };
            let (verdict, frame) = receive(&lab, frame);
            assert_eq!(verdict, harness::Verdict::Next);
            assert_eq!(frame.bytes, bytes);
        }
        assert_eq!(counted(&lab, "unwrapped") + counted(&lab, "miswrapped"), 0);
    });
}

/// Without encapsulation in the pool, the port is a port as any other.
#[test]
fn wrapped_packet_passes_a_member_without_encapsulation() {
    alone(|lab| {
        let spec = segment(lab.c, lab.s).flags(Flags::SYN);
        let mut frame = Frame::of(&spec.packet(lab.key.client(), lab.key.server()));
        Wrapping::to(address(MEMBER_ADDRESSES[0])).wrap(&mut frame);
        let bytes = frame.bytes.clone();
        let (verdict, frame) = receive(&lab, frame);
        assert_eq!((verdict, frame.bytes), (harness::Verdict::Next, bytes));
    });
}

/// The cable of the lab carries 1500 bytes.
#[test]
fn segment_that_is_too_long_in_udp_is_dropped() {
    for (text, most) in MEMBER_ADDRESSES.into_iter().zip([1460, 1440]) {
        alone(|lab| {
            let wrapping = Wrapping::through(address(text), lab.interface);
            for (len, verdict) in [
                (most, harness::Verdict::Withheld),
                (most + 1, harness::Verdict::Drop),
            ] {
                let spec = segment(lab.c, lab.s).payload(&vec![7; len - 40]);
                let packet = spec.packet(lab.key.client(), lab.key.server());
                assert_eq!(packet.bytes.len(), len);
                let mut frame = Frame::of(&packet);
                frame.ifindex = lab.interface;
                let program = wrapping.balance().program_fd().expect("the program");
                assert_eq!(frame.run(program.as_fd()).expect("it runs"), verdict);
            }
            let counters = wrapping.balance().counters().expect("counters");
            assert_eq!((counters.forwarded, counters.not_wrapped), (1, 1));
        });
    }
}

#[test]
fn damaged_packet_in_udp_changes_no_connection() {
    wrapped(|mut lab| {
        lab.shake_hands();
        let good = wrap(&lab, &lab.next_of_client(12).payload(REQUEST_BYTES)).bytes;
        let own = 14 + if good[14] >> 4 == 6 { 40 } else { 20 } + 8;
        let flow = lab.flow().clone();
        let damage = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4);
        let cut = any::<Option<prop::sample::Index>>();
        let cases = ProptestConfig {
            failure_persistence: None,
            cases: 300,
            ..ProptestConfig::default()
        };
        // In the header of ours, without the flags, or in the client's addresses: the tag does not cover the rest.
        let places: Vec<usize> = (0..3).chain(4..12).chain(12 + 12..12 + 20).collect();
        proptest!(cases, |(damage in damage, cut in cut)| {
            let mut bytes = good.clone();
            for (at, byte) in damage {
                let at = own + places[at.index(places.len())];
                bytes[at] = good[at] ^ (byte | 1);
            }
            if let Some(cut) = cut {
                bytes.truncate(own + cut.index(bytes.len() - own));
            }
            let frame = Frame { bytes, mark: 0, ifindex: lab.interface, cb: [0; 5] };
            let (verdict, _) = receive(&lab, frame);
            prop_assert_eq!(verdict, harness::Verdict::Drop);
            let found = lab.plane.flow(lab.key).expect("readable").expect("the flow");
            prop_assert_eq!(found.client.nxt, flow.client.nxt);
        });
    });
}
