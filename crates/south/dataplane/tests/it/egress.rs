//! The rows of the table in `egress.h` that need no splice.

use south_model::{MARK_CLIENT_SPACE, MARK_SERVER_SPACE, MARK_TO_CLIENT, MARK_TO_NEIGHBOUR};
use wire::{Flags, SeqNumber};

use crate::harness::*;

#[test]
fn our_own_packets_are_turned_round_or_let_pass() {
    for v6 in [false, true] {
        let mut both = Both::numbered(1000, 5000, v6).open();
        both.gate();
        let spec = |space| {
            segment(SeqNumber(1), SeqNumber(2))
                .payload(b"x")
                .mark(MARK + space)
        };
        for space in [MARK_CLIENT_SPACE, MARK_SERVER_SPACE] {
            let out = both.server(spec(space));
            assert_eq!(
                (out.verdict, out.packet.mark),
                (RedirectIngress, MARK + space),
                "kept for ingress"
            );
        }
        assert_eq!(
            both.server(spec(MARK_TO_CLIENT)).verdict,
            Next,
            "through the gate"
        );
        let out = both.server(spec(MARK_TO_NEIGHBOUR));
        assert_eq!(
            (out.verdict, out.packet.mark),
            (Verdict::Redirect, MARK + MARK_TO_CLIENT),
            "it leaves this device again"
        );
        assert_eq!(both.server(spec(6)).verdict, DROP, "not ours");
    }
}

#[test]
fn what_others_send_passes() {
    let mut both = Both::new().open();
    both.gate();
    let (client, server) = (both.key.client(), both.key.server());
    let other = std::net::SocketAddr::new(server.ip(), 81);
    let plain = segment(both.s + 1, both.c + 1).payload(b"x");
    assert_eq!(both.egress(plain.packet(other, client)).verdict, Next);
    let mut malformed = plain.packet(server, client);
    malformed.bytes[20 + 12] = 0x10;
    assert_eq!(both.egress(malformed).verdict, Next);
    assert_eq!(both.egress(plain.packet(server, client)).verdict, DROP);
}

#[test]
fn nothing_of_the_dying_leaves() {
    for v6 in [false, true] {
        let mut both = Both::numbered(1000, 5000, v6).open();
        let (c, s) = (both.c + 1, both.s + 1);
        let before = both.flow().clone();
        both.gate();
        for flags in [FIN_ACK, RST, RST.union(ACK), ACK, SYN_ACK] {
            let out = both.server(segment(s, c).flags(flags).payload(b"dying"));
            assert_eq!(out.verdict, DROP, "{flags:?}");
        }
        both.new_incarnation();
        assert_eq!(
            both.server(segment(s, c).flags(RST)).verdict,
            DROP,
            "an earlier life's"
        );
        assert_eq!(both.flow(), &before);
        assert_eq!(both.counted("gated_out"), 6);
        both.fall_silent();
        assert_eq!(both.server(segment(s, c).flags(FIN_ACK)).verdict, Next);
    }
}

#[test]
fn without_a_flow_only_a_gate_or_a_recovery_stops_a_packet() {
    let mut both = Both::new();
    let (reset, data) = (
        segment(both.s, both.c).flags(RST),
        segment(both.s, both.c).payload(b"x"),
    );
    for spec in [&reset, &data] {
        assert_eq!(both.server(spec.clone()).verdict, Next);
    }
    both.gate();
    for spec in [&reset, &data] {
        assert_eq!(both.server(spec.clone()).verdict, DROP, "gated");
    }
    both.new_incarnation();
    assert_eq!(
        both.server(reset.clone()).verdict,
        DROP,
        "may belong to a connection to recover"
    );
    assert_eq!(both.server(data).verdict, Next);
    both.fall_silent();
    assert_eq!(both.server(reset.clone()).verdict, Next);
    both.heartbeat();
    both.recovered();
    assert_eq!(both.server(reset).verdict, Next);
}

#[test]
fn half_open_connection_of_dead_server_is_silent() {
    let mut both = Both::new();
    both.client(both.syn());
    both.server(both.syn_ack());
    both.gate();
    both.new_incarnation();
    assert_eq!(both.server(both.syn_ack()).verdict, DROP);
    // The new server may answer an unanswered SYN.
    let mut both = Both::new();
    both.client(both.syn());
    both.gate();
    both.new_incarnation();
    assert_eq!(both.server(both.syn_ack()).verdict, Next);
}

#[test]
fn first_server_is_observed() {
    for (c, s) in [(1000, 5000), (u32::MAX - 2, u32::MAX - 2)] {
        let mut both = Both::numbered(c, s, false).open();
        let (c, s) = (both.c + 1, both.s + 1);
        both.server(
            segment(s, c + 5)
                .timestamps(905, 11)
                .window(10)
                .payload(b"hello"),
        );
        let server = both.flow().server;
        assert_eq!((server.nxt, server.ack, server.tsval), (s + 5, c + 5, 905));
        assert_eq!(
            server.rcv_wnd_edge,
            c + 60_000,
            "the offer of the SYN-ACK was larger"
        );
        both.server(segment(s, c + 5).timestamps(905, 11).window(2000));
        assert_eq!(both.flow().server.rcv_wnd_edge, c + 5 + 2000 * 128);
        both.server(segment(s, c).timestamps(906, 11).window(1).payload(b"hel"));
        let server = both.flow().server;
        assert_eq!(
            (server.nxt, server.ack),
            (s + 5, c + 5),
            "nothing is taken back"
        );
        both.server(segment(s + 5, c + 5).flags(FIN_ACK));
        assert_eq!(both.flow().server.nxt, s + 6);
        both.server(segment(s + 99, c + 99).flags(RST).payload(b"why"));
        assert_eq!(both.flow().server.nxt, s + 6, "a RST tells nothing");
        both.server(segment(s + 6, c + 50).flags(Flags::PSH).window(60_000));
        assert_eq!(both.flow().server.ack, c + 5, "no ACK flag");
    }
}

#[test]
fn a_syn_ack_sent_again_has_no_scaled_window() {
    let mut both = Both::new().open();
    let edge = both.flow().server.rcv_wnd_edge;
    assert_eq!(both.server(both.syn_ack()).verdict, Next);
    assert_eq!(both.flow().server.rcv_wnd_edge, edge, "RFC 7323 2.2");
}

/// As the kernel does for a moment, see `is_lookup_race`.
#[test]
fn who_is_there_and_was_not_found_is_not_reset() {
    for v6 in [false, true] {
        let mut both = Both::numbered(1000, 5000, v6).open();
        let (c, s) = (both.c + 1, both.s + 1);
        both.client(segment(c, s).timestamps(12, 900).payload(b"GET"));
        let reset = segment(s, SeqNumber(0)).flags(Flags::RST);
        assert_eq!(both.server(reset.clone()).verdict, DROP);
        assert_eq!(both.server(reset.clone()).verdict, Next, "it is not there");
        // A server that has sent data has a socket.
        let mut both = Both::numbered(1000, 5000, v6).open();
        both.client(segment(c, s).timestamps(12, 900).payload(b"GET"));
        both.server(segment(s, c + 3).timestamps(905, 12).payload(b"hello"));
        let reset = segment(s + 5, SeqNumber(0)).flags(Flags::RST);
        assert_eq!(both.server(reset).verdict, Next);
    }
}

/// The socket's request was dropped, or the listener is new. A client that waits for the server's
/// first output sends no segment that would bring a second RST.
#[test]
fn client_that_listens_is_told_at_once_that_nobody_is_there() {
    for v6 in [false, true] {
        let mut both = Both::numbered(1000, 5000, v6).open();
        let reset = segment(both.s + 1, SeqNumber(0)).flags(Flags::RST);
        assert_eq!(both.server(reset).verdict, Next);
    }
}
