//! SYN, SYN-ACK, and the segment that completes the handshake.

use objects::{
    flow::Unprotected,
    isn,
    plane::{Event, Verdict},
};

use super::lab::*;
use crate::harness::*;
use wire::SeqNumber;

#[test]
fn handshake_has_keyed_isn_and_window_scale_of_the_pool() {
    alone(|mut lab| {
        lab.slot(3);
        lab.client(lab.syn());
        let out = lab.server(lab.syn_ack());
        let expected = isn::initial(&POOL_KEY, &lab.key, isn::Slot::new(3));
        assert_eq!(out.segment().seq(), expected);
        let options = wire::SynOptions::parse(out.segment().option_bytes());
        assert_eq!(options.window_scale, Some(7));
    });
}

#[test]
fn handshake_over_ipv6_makes_a_flow() {
    alone(|lab| {
        let lab = lab.numbered(u32::MAX, u32::MAX - 3, true).open();
        assert_eq!(lab.flow().unprotected, None);
    });
}

#[test]
fn retransmitted_syn_keeps_the_slot() {
    alone(|mut lab| {
        lab.slot(3);
        lab.client(lab.syn());
        let first = lab.server(lab.syn_ack()).segment().seq();
        lab.slot(4);
        lab.client(lab.syn());
        assert_eq!(lab.server(lab.syn_ack()).segment().seq(), first);
    });
}

#[test]
fn client_without_timestamps_or_sack_is_served_without_protection() {
    for options in [&[2, 4, 5, 0xb4, 4, 2][..], &syn_options(10, 0, 2)[6..], &[]] {
        alone(|mut lab| {
            lab.client(lab.syn().options(options));
            let isn = lab.server(lab.syn_ack().options(options)).segment().seq();
            lab.client(segment(lab.c + 1, isn + 1));
            let (key, reason) = (lab.key, Unprotected::NoTimestamps);
            assert_eq!(lab.flow().unprotected, Some(reason));
            assert_eq!(lab.events(), [Event::Unprotected { key, reason }]);
            let out = lab.client(segment(lab.c + 1, isn + 1).payload(REQUEST_BYTES));
            assert_eq!(out.segment().ack(), lab.s + 1);
            let out = lab.server(segment(lab.s + 1, lab.c + 1 + length(REQUEST_BYTES)));
            assert_eq!(out.verdict, Verdict::Next);
        });
    }
}

#[test]
fn options_of_another_host_are_removed_from_a_syn() {
    alone(|mut lab| {
        let mptcp = [30, 4, 0, 1, 34, 2, 1, 1];
        let options = [&mptcp[..], &syn_options(10, 0, CLIENT_SCALE)].concat();
        let out = lab.client(lab.syn().options(&options));
        assert_eq!(out.segment().option_bytes()[..8], [1; 8]);
        lab.server(lab.syn_ack());
        assert_eq!(lab.model.half_open_count(), 1);
    });
}

#[test]
fn authenticated_connection_passes_untouched() {
    alone(|mut lab| {
        let md5 = [&[19, 18][..], &[7; 16], &[1, 1]].concat();
        lab.client(lab.syn().options(&md5));
        let out = lab.server(lab.syn_ack().options(&md5));
        assert_eq!(out.segment().seq(), lab.s);
        lab.client(segment(lab.c + 1, lab.s + 1).options(&md5));
        let out = lab.server(segment(lab.s + 1, lab.c + 1).options(&md5).payload(b"x"));
        assert_eq!(out.segment().seq(), lab.s + 1);
        lab.gate();
        lab.new_incarnation(2);
        let out = lab.client(segment(lab.c + 1, lab.s + 2).options(&md5));
        assert_eq!(out.verdict, Verdict::Next);
    });
}

#[test]
fn third_segment_of_another_number_makes_no_flow() {
    alone(|mut lab| {
        lab.client(lab.syn());
        let isn = lab.server(lab.syn_ack()).segment().seq();
        for (seq, ack) in [
            (lab.c, isn + 1),
            (lab.c + 70_000, isn + 1),
            (lab.c + 1, isn + 2),
        ] {
            lab.client(segment(seq, ack).timestamps(11, 0));
            assert!(lab.model.flow(&lab.key).is_none());
        }
    });
}

/// A window that is not scaled is offered as the server's TCP offers it.
#[test]
fn connection_without_window_scale_has_whole_windows() {
    alone(|mut lab| {
        let options = &syn_options(10, 0, 2)[..16];
        lab.client(lab.syn().options(options));
        let answer = lab.server(lab.syn_ack().options(&syn_options(900, 10, 0)[..16]));
        let value = answer.segment().timestamps().unwrap().value;
        let third = segment(lab.c + 1, answer.segment().seq() + 1).timestamps(11, value);
        lab.client(third);
        assert_eq!(lab.flow().server.window_scale, None);
        let out = lab.server(lab.next_of_server(901).window(65_000).payload(b"x"));
        assert_eq!(out.segment().window(), 65_000);
    });
}

#[test]
fn syn_is_dropped_until_other_members_know_this_member() {
    alone(|mut lab| {
        lab.accept(false);
        let syn = lab.syn();
        assert_eq!(lab.client(syn).verdict, Verdict::Drop);
        lab.accept(true);
        lab.open();
    });
}

/// A stranger sends a SYN in the client's name.
#[test]
fn answered_handshake_survives_another_syn() {
    alone(|mut lab| {
        lab.slot(3);
        lab.client(lab.syn());
        let answer = lab.server(lab.syn_ack());
        lab.slot(4);
        let other = segment(lab.c + 5000, SeqNumber(0)).flags(SYN);
        assert_eq!(lab.client(other).verdict, Verdict::Next);
        let isn = answer.segment().seq();
        let value = answer.segment().timestamps().unwrap().value;
        let reset = segment(lab.c + 5001, SeqNumber(0)).flags(RST);
        assert_eq!(lab.client(reset).verdict, Verdict::Drop);
        lab.client(segment(lab.c + 1, isn + 1).timestamps(11, value));
        assert_eq!(lab.flow().unprotected, None);
    });
}

/// The client's host was booted anew in the middle of a handshake: its TCP resets the SYN-ACK, and then connects.
#[test]
fn reset_of_the_handshake_makes_way_for_another() {
    alone(|mut lab| {
        lab.client(lab.syn());
        lab.server(lab.syn_ack());
        let reset = segment(lab.c + 1, SeqNumber(0)).flags(RST);
        assert_eq!(lab.client(reset).verdict, Verdict::Next);
        lab.c += 5000;
        lab.s += 9000;
        lab.shake_hands();
        assert_eq!(lab.flow().client.isn, lab.c);
    });
}

/// The server's TCP has forgotten the handshake that the programs remember.
#[test]
fn answer_to_an_unknown_syn_waits_for_the_syn() {
    alone(|mut lab| {
        lab.client(lab.syn());
        lab.server(lab.syn_ack());
        lab.c += 5000;
        lab.client(lab.syn());
        assert_eq!(lab.server(lab.syn_ack()).verdict, Verdict::Drop);
        lab.shake_hands();
        assert_eq!(lab.flow().client.isn, lab.c);
    });
}

/// Of a server that accepts a connection with the first request (TCP_DEFER_ACCEPT), the kernel forgets a connection
/// without a request, and no tracepoint tells.
#[test]
fn ports_of_a_forgotten_connection_are_reusable() {
    alone(|lab| {
        let mut lab = lab.open();
        lab.slot(9);
        lab.c += 5000;
        lab.s += 9000;
        lab.shake_hands();
        let flow = lab.flow();
        assert_eq!((flow.client.isn, flow.slot), (lab.c, isn::Slot::new(9)));
        lab.client(lab.next_of_client(12).payload(REQUEST_BYTES));
        let out = lab.server(lab.next_of_server(901).payload(&head(0)));
        assert_eq!(out.segment().seq(), lab.first());
    });
}

/// With the same ISN, a late segment of the connection before would be a segment of the new one.
#[test]
fn isn_of_a_reused_port_differs() {
    for is_closed in [true, false] {
        alone(|lab| {
            let mut lab = lab.open();
            let mut last = lab.flow().slot;
            for _ in 0..5 {
                if is_closed {
                    lab.close();
                }
                lab.c += 5000;
                lab.s += 9000;
                lab.shake_hands();
                let flow = lab.flow();
                assert_ne!(flow.slot, last);
                assert_eq!(
                    flow.server.isn,
                    isn::initial(&POOL_KEY, &lab.key, flow.slot)
                );
                last = flow.slot;
            }
        });
    }
}

/// Another member may have served a connection of this port, and may still send.
#[test]
fn isn_in_quiescence_is_of_another_slot() {
    alone(|mut lab| {
        lab.slot(5);
        lab.quiescence(true);
        lab.shake_hands();
        assert_eq!(lab.flow().slot, isn::Slot::new(7));
    });
}

/// The server has closed first: its TCP answers the SYN from TIME_WAIT with an acknowledgement (RFC 9293, 3.10.7.4).
#[test]
fn reset_of_a_client_whose_syn_met_time_wait_passes() {
    alone(|lab| {
        let mut lab = lab.open();
        lab.close();
        let old = lab.c + 1;
        lab.c += 5000;
        lab.client(lab.syn());
        let reset = segment(old, SeqNumber(0)).flags(RST);
        assert_eq!(lab.client(reset).verdict, Verdict::Next);
        lab.s += 9000;
        lab.shake_hands();
        assert_eq!(lab.flow().client.isn, lab.c);
    });
}

#[test]
fn syn_on_a_flow_leaves_the_flow_alone() {
    alone(|lab| {
        let mut lab = lab.open();
        let before = lab.flow().clone();
        let other = segment(lab.c + 5000, SeqNumber(0)).flags(SYN);
        lab.client(other);
        let retransmitted = lab.server(lab.syn_ack());
        assert_eq!(retransmitted.segment().seq(), before.server.isn);
        assert_eq!(lab.flow().client, before.client);
    });
}

/// The pool has changed twice: between the changes, another member may have served the connection.
#[test]
fn handshake_before_two_changes_of_the_pool_is_forgotten() {
    for (change_count, is_kept) in [(1, true), (2, false)] {
        alone(|mut lab| {
            lab.client(lab.syn());
            let answer = lab.server(lab.syn_ack());
            let value = answer.segment().timestamps().expect("always").value;
            let first = answer.segment().seq() + 1;
            for _ in 0..change_count {
                lab.quiescence(false);
            }
            lab.client(segment(lab.c + 1, first).timestamps(11, value));
            assert_eq!(lab.model.flow(&lab.key).is_some(), is_kept);
        });
    }
}
