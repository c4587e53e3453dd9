//! Each row of the table of `bpf/objects/egress.h`.

use objects::{
    flow::Mode,
    plane::{CopyKind, Counter, MARK_SERVER_SPACE, MARK_TO_CLIENT, MARK_TO_NEIGHBOUR, Verdict},
};

use super::lab::*;
use crate::harness::*;

#[test]
fn packet_of_user_space_goes_by_its_mark() {
    alone(|mut lab| {
        let marked = |lab: &mut Lab, mark| {
            let out = lab.server(segment(lab.s, lab.c).mark(MARK + mark));
            (out.verdict, out.packet.mark.wrapping_sub(MARK))
        };
        let expected = (Verdict::RedirectIngress, MARK_SERVER_SPACE);
        assert_eq!(marked(&mut lab, MARK_SERVER_SPACE), expected);
        assert_eq!(
            marked(&mut lab, MARK_TO_CLIENT),
            (Verdict::Next, MARK_TO_CLIENT)
        );
        let expected = (Verdict::RedirectNeighbour, MARK_TO_CLIENT);
        assert_eq!(marked(&mut lab, MARK_TO_NEIGHBOUR), expected);
        lab.lease(false);
        for mark in [MARK_TO_CLIENT, MARK_TO_NEIGHBOUR] {
            assert_eq!(marked(&mut lab, mark), (Verdict::Drop, mark));
        }
        let expected = (Verdict::RedirectIngress, MARK_SERVER_SPACE);
        assert_eq!(marked(&mut lab, MARK_SERVER_SPACE), expected);
    });
}

fn arp(operation: u8, sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    let start = [0, 1, 8, 0, 6, 4, 0, operation];
    [&start[..], &[2; 6], &sender, &[0; 6], &target].concat()
}

#[test]
fn arp_of_the_pools_address_leaves_in_another_name_or_not() {
    alone(|mut lab| {
        let (pool, own, other) = ([10, 0, 0, 10], [10, 0, 0, 5], [10, 0, 0, 1]);
        for own in [[0; 4], own] {
            if own != [0; 4] {
                lab.own_address(own.into());
            }
            let packet = other_packet(&lab, arp(1, pool, other));
            let out = lab.egress(packet);
            assert_eq!(
                (out.verdict, &out.packet.bytes[14..18]),
                (Verdict::Next, &own[..])
            );
        }
        let cases = [
            (arp(1, own, other), Verdict::Next),
            (arp(1, pool, pool), Verdict::Drop),
            (arp(2, pool, other), Verdict::Drop),
        ];
        for (bytes, verdict) in cases {
            let packet = other_packet(&lab, bytes);
            assert_eq!(lab.egress(packet).verdict, verdict);
        }
    });
}

#[test]
fn advertisement_of_the_pools_address_is_dropped() {
    alone(|mut lab| {
        let spec = segment(lab.s, lab.c);
        let mut packet = spec.packet("[fd00::5]:9".parse().unwrap(), client_end(true, 0));
        packet.bytes[6] = 58;
        packet.bytes[40..44].copy_from_slice(&[136, 0, 0, 0]);
        let std::net::IpAddr::V6(pool) = server_end(true).ip() else {
            unreachable!("an IPv6 address")
        };
        packet.bytes.resize(64, 0);
        packet.bytes[48..64].copy_from_slice(&pool.octets());
        assert_eq!(lab.egress_raw(packet.clone()), Verdict::Drop);
        packet.bytes[63] ^= 1;
        assert_eq!(lab.egress_raw(packet), Verdict::Next);
    });
}

#[test]
fn other_packet_of_the_pools_address_is_fenced_with_the_lease() {
    alone(|mut lab| {
        let other = "10.0.0.10:81".parse().unwrap();
        let packet = segment(lab.s, lab.c).packet(other, client_end(false, 0));
        assert_eq!(lab.egress_raw(packet.clone()), Verdict::Next);
        lab.lease(false);
        assert_eq!(lab.egress_raw(packet), Verdict::Drop);
    });
}

#[test]
fn segment_after_the_lease_is_withheld_and_behind_the_gate_dropped() {
    alone(|lab| {
        let mut lab = lab.open();
        lab.lease(false);
        let spec = lab.next_of_server(901).payload(b"x");
        assert_eq!(lab.server(spec.clone()).verdict, Verdict::Withheld);
        lab.lease(true);
        lab.gate();
        assert_eq!(lab.server(spec.clone()).verdict, Verdict::Drop);
        lab.new_incarnation(2);
        for flags in [FIN_ACK, RST] {
            assert_eq!(lab.server(spec.clone().flags(flags)).verdict, Verdict::Drop);
        }
        assert_eq!(lab.counted(Counter::Gated), 3);
    });
}

#[test]
fn segment_of_a_flow_being_revived_waits() {
    alone(|lab| {
        let mut lab = lab.open();
        let mut flow = lab.flow().clone();
        flow.mode = Mode::Reviving;
        assert!(lab.write_flow(&flow, true));
        lab.lease(false);
        let spec = lab.next_of_server(901).payload(&head(5));
        assert_eq!(lab.server(spec).verdict, Verdict::Withheld);
        assert_eq!(lab.copies()[0].kind, CopyKind::Parked);
        lab.lease(true);
        assert_eq!(lab.client(lab.next_of_client(12)).verdict, Verdict::Drop);
        assert_eq!(lab.copies()[0].kind, CopyKind::Client);
    });
}

/// A flow whose client has 100 bytes more than the server's socket has sent.
pub(super) fn spliced(lab: Lab) -> Lab {
    let mut lab = lab.open();
    let mut flow = lab.flow().clone();
    flow.server.floor = flow.server.nxt + 100;
    flow.server.nxt = flow.server.floor;
    flow.client.ack = flow.server.floor;
    assert!(lab.write_flow(&flow, true));
    lab
}

#[test]
fn payload_before_the_floor_is_acknowledged_in_the_clients_name() {
    for v6 in [false, true] {
        alone(|lab| {
            let mut lab = spliced(lab.numbered(1000, 5000, v6));
            for (at, len, acked) in [(0, 60, 60), (60, 100, 100), (99, 1, 100)] {
                let spec = segment(lab.s + 1 + at, lab.c + 1).timestamps(950, 11);
                let out = lab.server(spec.payload(&vec![b'x'; len]));
                assert_eq!(out.verdict, Verdict::RedirectIngress);
                let seen = out.segment();
                assert_eq!(seen.ack(), lab.s + 1 + acked);
                assert_eq!(seen.seq(), lab.c + 1);
                let window = usize::from(seen.window()) << CLIENT_SCALE;
                let room = usize::from(lab.flow().client.window) << CLIENT_SCALE;
                let missing = usize::try_from(100 - acked).unwrap();
                assert_eq!(window, room + missing.next_multiple_of(1 << CLIENT_SCALE));
                assert_eq!(seen.timestamps().unwrap().echo, 950);
                assert_eq!(seen.destination_port(), 80);
            }
            let spec = segment(lab.s + 101, lab.c + 1).timestamps(951, 11);
            let out = lab.server(spec.payload(b"news"));
            assert_eq!(out.verdict, Verdict::Next);
            assert_eq!(out.segment().seq(), lab.first() + 100);
        });
    }
}

#[test]
fn closed_window_is_open_for_the_bytes_before_the_floor() {
    alone(|lab| {
        let mut lab = spliced(lab);
        lab.client(lab.next_of_client(12).window(0));
        let spec = segment(lab.s + 1, lab.c + 1).timestamps(950, 11);
        let out = lab.server(spec.payload(&[b'x'; 60]));
        assert_eq!(out.verdict, Verdict::RedirectIngress);
        assert_eq!(out.segment().window(), 40 >> CLIENT_SCALE);
        let spec = segment(lab.s + 61, lab.c + 1).timestamps(950, 11);
        let out = lab.server(spec.payload(&[b'x'; 40]));
        assert_eq!(out.segment().window(), 0);
    });
}

#[test]
fn reset_of_a_living_server_passes_at_the_clients_number() {
    alone(|lab| {
        let mut lab = lab.open();
        let out = lab.server(lab.next_of_server(901).flags(RST));
        assert_eq!(out.verdict, Verdict::Next);
        assert_eq!(out.segment().seq(), lab.first());
    });
}

#[test]
fn segment_of_no_flow_is_dropped_and_its_reset_passes() {
    alone(|mut lab| {
        let spec = segment(lab.s, lab.c);
        assert_eq!(lab.server(spec.clone()).verdict, Verdict::Drop);
        assert_eq!(lab.server(spec.flags(RST)).verdict, Verdict::Next);
    });
}

#[test]
fn malformed_segment_of_the_pool_is_dropped() {
    alone(|mut lab| {
        let mut packet = segment(lab.s, lab.c).packet(lab.key.server(), lab.key.client());
        packet.bytes[32] = 0x40; // a header of 16 bytes
        assert_eq!(lab.egress_raw(packet), Verdict::Drop);
    });
}
