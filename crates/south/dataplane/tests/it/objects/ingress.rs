//! Each row of the table of `bpf/objects/ingress.h`.

use objects::plane::{CopyKind, Counter, Verdict};
use wire::{Flags, SeqNumber};

use super::lab::*;
use crate::harness::*;

#[test]
fn packet_for_another_port_or_protocol_passes() {
    alone(|mut lab| {
        lab.gate();
        let (client, _) = client_of(&lab);
        let other = "10.0.0.10:81".parse().unwrap();
        let packet = segment(lab.c, lab.s).packet(client, other);
        assert_eq!(lab.ingress(packet).verdict, Verdict::Next);
        let mut udp = segment(lab.c, lab.s).packet(client, lab.key.server());
        udp.bytes[9] = 17;
        let packet = other_packet(&lab, udp.bytes);
        assert_eq!(lab.ingress(packet).verdict, Verdict::Next);
    });
}

#[test]
fn packet_of_user_space_passes_without_its_mark() {
    alone(|mut lab| {
        lab.gate();
        let spec = segment(lab.c, lab.s).mark(MARK + objects::plane::MARK_SERVER_SPACE);
        let out = lab.client(spec);
        assert_eq!((out.verdict, out.packet.mark), (Verdict::Next, 0));
    });
}

#[test]
fn packet_before_the_gate_or_after_the_lease_is_dropped() {
    alone(|lab| {
        let mut lab = lab.open();
        lab.gate();
        assert_eq!(lab.client(lab.next_of_client(12)).verdict, Verdict::Drop);
        lab.new_incarnation(1);
        lab.lease(false);
        assert_eq!(lab.client(lab.next_of_client(12)).verdict, Verdict::Drop);
        assert_eq!(lab.counted(Counter::Gated), 2);
    });
}

#[test]
fn segment_of_a_flow_has_numbers_of_the_socket() {
    for v6 in [false, true] {
        alone(|lab| {
            let mut lab = lab.numbered(1000, 5000, v6).open();
            let sack = lab.first() + 100;
            let blocks = [
                &[1, 1, 5, 10][..],
                &sack.0.to_be_bytes(),
                &(sack.0 + 8).to_be_bytes(),
            ];
            let options = [timestamps(12, lab.value()), blocks.concat()].concat();
            let out = lab.client(lab.next_of_client(12).options(&options));
            let seen = out.segment();
            assert_eq!(seen.ack(), lab.s + 1);
            assert_eq!(seen.timestamps().unwrap().echo, 900);
            let edges = &seen.option_bytes()[16..];
            assert_eq!(edges[..4], (lab.s + 101).0.to_be_bytes());
            assert_eq!(edges[4..], (lab.s + 109).0.to_be_bytes());
        });
    }
}

/// Options behind each other in any order, with other options between.
#[test]
fn options_in_odd_order_are_found() {
    alone(|lab| {
        let mut lab = lab.open();
        let (sack, stamps) = (lab.first(), timestamps(12, lab.value()));
        let block = [sack.0.to_be_bytes(), (sack + 9).0.to_be_bytes()].concat();
        let options = [&[5, 10][..], &block, &[77, 3, 9], &stamps[2..], &[1]].concat();
        let out = lab.client(lab.next_of_client(12).options(&options));
        assert_eq!(out.segment().timestamps().unwrap().echo, 900);
        let cut = [&[77, 40][..], &stamps].concat();
        let out = lab.client(lab.next_of_client(12).options(&cut));
        assert_eq!(out.segment().option_bytes()[..2], [77, 40]);
    });
}

#[test]
fn segment_of_a_dead_servers_flow_goes_to_user_space() {
    alone(|lab| {
        let mut lab = lab.open();
        lab.gate();
        lab.new_incarnation(2);
        let request = lab.next_of_client(12).payload(REQUEST_BYTES);
        assert_eq!(lab.client(request).verdict, Verdict::Drop);
        let copies = lab.copies();
        assert_eq!(copies.len(), 1);
        assert_eq!(copies[0].kind, CopyKind::Client);
        let reset = lab.next_of_client(12).flags(RST);
        assert_eq!(lab.client(reset).verdict, Verdict::Drop);
        assert!(lab.copies().is_empty());
    });
}

#[test]
fn long_segment_is_copied_whole() {
    alone(|lab| {
        let mut lab = lab.open();
        lab.gate();
        lab.new_incarnation(2);
        for (payload, copied) in [(1700, 1752), (1740, 1792), (1741, 1793), (3000, 3052)] {
            lab.client(lab.next_of_client(12).payload(&vec![b'x'; payload]));
            let copies = lab.copies();
            assert_eq!(copies[0].packet.len(), copied);
            assert_eq!(copies[0].packet_len, payload + 52);
        }
    });
}

/// A segment that another member's echo brings.
fn strange(lab: &Lab, echo: u32) -> Spec {
    segment(lab.c + 1, SeqNumber(77))
        .timestamps(12, echo)
        .payload(REQUEST_BYTES)
}

#[test]
fn unknown_segment_with_an_echo_of_the_pool_goes_to_user_space() {
    alone(|mut lab| {
        for key in [POOL_KEY, POOL_KEY_BEFORE] {
            let echo = 9 << 26 | agreed_value(&lab, key);
            assert_eq!(lab.client(strange(&lab, echo)).verdict, Verdict::Drop);
            assert_eq!(lab.copies()[0].kind, CopyKind::Unknown);
        }
        assert_eq!(lab.counted(Counter::Unknown), 2);
    });
}

#[test]
fn unknown_segment_with_another_echo_is_reset_or_dropped() {
    alone(|mut lab| {
        let forged = [
            agreed_value(&lab, objects::PoolKey([1; 16])),
            agreed_value(&lab, POOL_KEY) ^ 1,
            agreed_value(&lab, POOL_KEY) ^ 1 << 20,
            3 << 24,
        ];
        for echo in forged {
            assert_eq!(lab.client(strange(&lab, echo)).verdict, Verdict::Next);
        }
        assert_eq!(lab.counted(Counter::Forged), 4);
        assert_eq!(lab.counted(Counter::Stray), 4);
        lab.quiescence(true);
        assert_eq!(lab.client(strange(&lab, forged[0])).verdict, Verdict::Drop);
        assert!(lab.copies().is_empty());
    });
}

/// A flood is not answered. A segment of the pool is looked at all the same, and a client that repeats its segment
/// later is reset.
#[test]
fn segments_of_no_connection_are_limited_in_a_round() {
    alone(|mut lab| {
        let forged = 3 << 24;
        for _ in 0..64 {
            assert_eq!(lab.client(strange(&lab, forged)).verdict, Verdict::Next);
        }
        assert_eq!(lab.client(strange(&lab, forged)).verdict, Verdict::Drop);
        assert_eq!(lab.counted(Counter::StraysDropped), 1);
        let echo = 9 << 26 | agreed_value(&lab, POOL_KEY);
        assert_eq!(lab.client(strange(&lab, echo)).verdict, Verdict::Drop);
        assert_eq!(lab.copies().len(), 1);
        lab.next_stray_round();
        assert_eq!(lab.client(strange(&lab, forged)).verdict, Verdict::Next);
        assert_eq!(lab.counted(Counter::Stray), 65);
    });
}

/// The bits of a download prove too little.
#[test]
fn unproven_segments_leave_half_of_the_ring() {
    alone(|mut lab| {
        lab.quiescence(true);
        let weak = strange(&lab, 1 << 24);
        let copied = lab.copied_of(&weak, 4000);
        assert_eq!(lab.copied_of(&weak, 1), 0);
        assert!((1000..3000).contains(&copied), "{copied} of 4000");
        let known = strange(&lab, 9 << 26 | agreed_value(&lab, POOL_KEY));
        assert_eq!(lab.copied_of(&known, 10), 10);
    });
}

/// The echo is of the number at which the next request begins: a keep-alive, the request, and the rest of the request
/// fit. A later request does not.
#[test]
fn unknown_segment_at_another_number_is_not_of_the_pool() {
    alone(|mut lab| {
        let echo = agreed_value(&lab, POOL_KEY);
        let first = lab.c + 1;
        for (seq, fits) in [
            (first - 1, true),
            (first, true),
            (first + 4, true),
            (first + 5, false),
            (first + 30, false),
            (first - 2, false),
        ] {
            let spec = segment(seq, SeqNumber(77)).timestamps(12, echo);
            let verdict = lab.client(spec.payload(REQUEST_BYTES)).verdict;
            assert_eq!(verdict == Verdict::Drop, fits, "{seq:?}");
        }
    });
}

/// Kinds with few bits of tag: only while connections of other members may come.
#[test]
fn unknown_segment_with_a_weak_echo_counts_in_quiescence_alone() {
    alone(|mut lab| {
        for echo in [1 << 24, 2 << 24] {
            lab.quiescence(false);
            assert_eq!(lab.client(strange(&lab, echo)).verdict, Verdict::Next);
            lab.quiescence(true);
            assert_eq!(lab.client(strange(&lab, echo)).verdict, Verdict::Drop);
        }
        assert_eq!(lab.copies().len(), 2);
    });
}

#[test]
fn reset_of_an_unknown_connection_is_dropped() {
    alone(|mut lab| {
        for flags in [RST, RST.union(Flags::ACK)] {
            let spec = segment(lab.c, lab.s).flags(flags);
            assert_eq!(lab.client(spec).verdict, Verdict::Drop);
        }
    });
}

#[test]
fn late_segments_of_a_connection_that_is_over_are_translated() {
    alone(|lab| {
        let mut lab = lab.open();
        let (first, bare) = (lab.first(), lab.flow().states.bare.bits());
        lab.close();
        let fin = segment(lab.c + 1, first + 1)
            .flags(FIN_ACK)
            .timestamps(14, 77 << 20);
        let out = lab.client(fin);
        assert_eq!(out.segment().ack(), lab.s + 2);
        assert_eq!(out.segment().timestamps().unwrap().echo, 900);
        let out = lab.server(segment(lab.s + 2, lab.c + 2).timestamps(990, 14));
        let seen = out.segment();
        assert_eq!(seen.seq(), first + 1);
        assert_eq!(seen.timestamps().unwrap().value, 1 << 26 | bare);
    });
}
