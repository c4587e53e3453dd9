use super::*;
use protocol::mirror::FrameKind;

use crate::{Expect, Settings, expectations, testing::*, tolerance::DEFAULT_FIELDS};
use wire::FlowId;

mod replay;

const S2: SeqNumber = SeqNumber(7_000);

fn spliced() -> Lab {
    let mut lab = Lab::new().open();
    lab.crash();
    lab.splice(S2);
    lab
}

/// A connection with the outstream `sent`, of which the client has acknowledged `acked` bytes. The
/// replay is compared with `record` from the beginning.
fn replaying(sent: &[u8], acked: u32, record: &[u8]) -> Lab {
    let mut lab = Lab::new().open();
    lab.server(
        segment(lab.s + 1, lab.c + 1)
            .timestamps(950, 11)
            .payload(sent),
    );
    lab.client(segment(lab.c + 1, lab.s + 1 + acked).timestamps(12, 950));
    lab.crash();
    let end = lab.s + 1 + length(sent);
    let chunks = expectations(&[(lab.s + 1, record.to_vec())], &[], DEFAULT_FIELDS);
    lab.south.expect(FlowId(1), chunks);
    lab.splice_and_verify(S2, end);
    lab
}

fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap()
}

#[test]
fn our_own_packets_are_turned_round_or_pass() {
    let mut lab = Lab::new();
    for (mark, verdict) in [
        (MARK_CLIENT_SPACE, Verdict::RedirectIngress),
        (MARK_SERVER_SPACE, Verdict::RedirectIngress),
        (MARK_TO_CLIENT, Verdict::Next),
    ] {
        lab.crash();
        let packet = lab.server_packet(&segment(lab.s, lab.c).mark(MARK + mark));
        let out = lab.egress(packet.clone());
        assert_eq!((out.verdict, out.packet), (verdict, packet));
    }
    let spec = segment(lab.s, lab.c).mark(MARK + MARK_TO_NEIGHBOUR);
    let mut packet = lab.server_packet(&spec);
    let out = lab.egress(packet.clone());
    packet.mark = MARK + MARK_TO_CLIENT; // it passes when it leaves again
    assert_eq!((out.verdict, out.packet), (Verdict::Redirect, packet));
}

#[test]
fn what_is_not_from_us_passes() {
    let mut lab = Lab::new();
    lab.crash();
    let packet = segment(lab.s, lab.c).packet("10.0.0.10:81".parse().unwrap(), client_end(false));
    assert_eq!(lab.egress(packet).verdict, Verdict::Next);
}

#[test]
fn nothing_leaves_a_gated_service() {
    let mut lab = Lab::new().open();
    lab.crash();
    for flags in [FIN_ACK, RST, Flags::ACK] {
        let spec = segment(lab.s + 1, lab.c + 1).flags(flags);
        assert_eq!(lab.server(spec).verdict, Verdict::Drop);
    }
    lab.south.new_incarnation();
    let spec = segment(lab.s + 1, lab.c + 1).flags(RST);
    assert_eq!(
        lab.server(spec.clone()).verdict,
        Verdict::Drop,
        "an earlier life"
    );
    assert_eq!(lab.south.counters().gated_out, 4);
    lab.now += 11 * SECOND;
    // To a client that listens, at once: no retransmission would follow.
    assert_eq!(lab.server(spec).verdict, Verdict::Next, "nobody is there");
}

#[test]
fn who_is_not_there_says_so_twice_to_a_client_that_has_spoken() {
    let mut lab = Lab::new().open();
    lab.client(
        segment(lab.c + 1, lab.s + 1)
            .timestamps(12, 900)
            .payload(b"GET"),
    );
    let spec = segment(lab.s + 1, SeqNumber(0)).flags(RST);
    assert_eq!(lab.server(spec.clone()).verdict, Verdict::Drop);
    assert_eq!(lab.server(spec).verdict, Verdict::Next, "nobody is there");
}

#[test]
fn strays_are_answered_only_outside_of_a_recovery() {
    let mut lab = Lab::new();
    let reset = || segment(SeqNumber(1), SeqNumber(2)).flags(RST);
    assert_eq!(lab.server(reset()).verdict, Verdict::Next);
    lab.south.new_incarnation();
    assert_eq!(lab.server(reset()).verdict, Verdict::Drop);
    assert_eq!(
        lab.server(segment(lab.s, lab.c)).verdict,
        Verdict::Next,
        "no RST"
    );
    lab.crash();
    assert_eq!(lab.server(segment(lab.s, lab.c)).verdict, Verdict::Drop);
}

#[test]
fn a_handshake_of_an_earlier_life_is_not_answered() {
    let mut lab = Lab::new();
    lab.client(lab.syn());
    lab.server(lab.syn_ack());
    lab.south.new_incarnation();
    assert_eq!(lab.server(lab.syn_ack()).verdict, Verdict::Drop);
}

#[test]
fn the_first_server_is_observed() {
    let mut lab = Lab::new().open();
    lab.server(
        segment(lab.s + 1, lab.c + 1)
            .timestamps(950, 11)
            .window(100)
            .payload(b"hello"),
    );
    let server = lab.flow().server;
    assert_eq!(
        (server.nxt, server.ack, server.tsval),
        (lab.s + 6, lab.c + 1, 950)
    );
    assert_eq!(
        server.rcv_wnd_edge,
        lab.c + 1 + 60_000,
        "a right edge does not move back"
    );
    lab.server(segment(lab.s + 6, lab.c + 1).window(1000));
    assert_eq!(
        lab.flow().server.rcv_wnd_edge,
        lab.c + 1 + (1000 << SERVER_SCALE)
    );
    lab.server(segment(lab.s + 6, lab.c + 1).flags(FIN_ACK));
    assert_eq!(lab.flow().server.nxt, lab.s + 7);
    let before = lab.flow().clone();
    lab.server(segment(lab.s + 77, lab.c + 99).flags(RST));
    assert_eq!(lab.flow(), &before);
}

#[test]
fn the_window_of_a_repeated_syn_ack_is_not_scaled() {
    let mut lab = Lab::new().open();
    lab.server(lab.syn_ack());
    assert_eq!(lab.flow().server.rcv_wnd_edge, lab.c + 1 + 60_000);
}

#[test]
fn the_head_of_a_turn_is_recorded_as_the_client_sees_it() {
    let mut lab = Lab::with(
        Settings {
            verify_head: 10,
            ..settings()
        },
        1000,
        5000,
        false,
    )
    .open();
    lab.client(segment(lab.c + 1, lab.s + 1).payload(b"GET"));
    lab.mirrored();
    lab.server(segment(lab.s + 1, lab.c + 4).payload(b"abcdefg"));
    lab.server(segment(lab.s + 8, lab.c + 4).payload(b"hijklmn"));
    lab.server(segment(lab.s + 15, lab.c + 4).payload(b"opq"));
    let frames = lab.mirrored();
    let lengths: Vec<usize> = frames.iter().map(|frame| frame.packet.len()).collect();
    assert_eq!(lengths, [47, 43], "up to the tenth byte");
    assert_eq!(
        (frames[1].packet_len, frames[1].kind),
        (
            47,
            FrameKind::Outstream {
                from: lab.s + 8,
                asked: lab.c + 4
            }
        )
    );
    assert_eq!(lab.south.counters().heads, 2);
    // And of a later server.
    lab.client(segment(lab.c + 4, lab.s + 18));
    lab.crash();
    lab.splice(S2);
    lab.server(segment(S2 + 1, lab.c + 4).payload(&[0; 17]));
    lab.client(segment(lab.c + 4, lab.s + 18).payload(b"GET"));
    lab.mirrored();
    lab.server(segment(S2 + 18, lab.c + 7).payload(b"answer"));
    let frames = lab.mirrored();
    let packet = wire::IpPacket::parse(&frames[0].packet).unwrap();
    assert_eq!(wire::Segment::of(&packet).unwrap().seq(), lab.s + 18);
}

#[test]
fn a_head_without_room_is_a_gap() {
    let mut lab = Lab::with(
        Settings {
            mirror_capacity: 400,
            ..settings()
        },
        1,
        2,
        false,
    )
    .open();
    lab.client(segment(lab.c + 1, lab.s + 1).payload(b"GET"));
    assert_eq!(
        lab.server(segment(lab.s + 1, lab.c + 4).payload(b"ok"))
            .verdict,
        Verdict::Next
    );
    assert_eq!(
        (lab.south.counters().heads, lab.south.counters().heads_lost),
        (0, 1)
    );
}

#[test]
fn the_new_servers_syn_ack_becomes_the_third_ack() {
    for v6 in [false, true] {
        let mut lab = Lab::with(settings(), 1000, 5000, v6).open();
        lab.crash();
        let out = lab.splice(S2);
        assert_eq!(
            (out.verdict, out.packet.mark),
            (Verdict::RedirectIngress, MARK + MARK_SERVER_SPACE)
        );
        let third = out.segment();
        assert_eq!(
            (third.seq(), third.ack(), third.flags()),
            (lab.c + 1, S2 + 1, Flags::ACK)
        );
        assert_eq!(third.option_bytes(), timestamps(11, 70));
        assert_eq!(u32::from(third.window()), 65_536 >> CLIENT_SCALE);
        let packet = wire::IpPacket::parse(&out.packet.bytes).unwrap();
        assert_eq!(
            (packet.source(), packet.destination()),
            (lab.key.client().ip(), lab.key.server().ip())
        );
        if !v6 {
            assert_eq!(
                checksum::fold(checksum::sum(&out.packet.bytes[..20])),
                0xffff
            );
        }
        let again = lab.ingress(out.packet);
        assert_eq!((again.verdict, again.packet.mark), (Verdict::Next, 0));
        let splice = lab.flow().splice;
        assert_eq!(
            (splice.isn, splice.nxt, splice.ack),
            (S2, S2 + 1, lab.c + 1)
        );
        assert_eq!(splice.rcv_wnd_edge, lab.c + 1 + 50_000);
        assert_eq!(
            (splice.delta_seq, splice.window_scale),
            (5000u32.wrapping_sub(7000), LATER_SCALE)
        );
        assert_eq!((splice.first_tsval, splice.ts_delta), (70, 901 - 70));
        assert_eq!(lab.flow().mode, Mode::Spliced);
    }
}

#[test]
fn only_the_answer_to_our_syn_passes_while_splicing() {
    let mut lab = Lab::new().open();
    lab.crash();
    lab.south.new_incarnation();
    lab.south
        .splice(lab.key, FlowId(1), lab.c, lab.s + 1, lab.s + 1, lab.now)
        .unwrap();
    let others = [
        segment(S2, lab.c).flags(SYN_ACK),
        segment(SeqNumber(0), lab.c + 1).flags(Flags::RST | Flags::ACK),
        segment(S2, lab.c + 1),
    ];
    for other in others {
        assert_eq!(lab.server(other).verdict, Verdict::Drop);
        assert_eq!(lab.flow().mode, Mode::Splicing);
    }
}

#[test]
fn a_repeated_syn_ack_is_answered_again_and_changes_nothing() {
    let mut lab = spliced();
    let before = lab.flow().clone();
    let out = lab.server(segment(S2, lab.c + 1).flags(SYN_ACK));
    assert_eq!(
        (out.verdict, out.segment().ack()),
        (Verdict::RedirectIngress, S2 + 1)
    );
    assert_eq!(out.segment().option_bytes(), [] as [u8; 0]);
    assert_eq!(lab.flow(), &before);
}

#[test]
fn a_self_ack_offers_room_for_any_segment() {
    for scale in 0..=14 {
        let mut lab = Lab::new().open();
        let flow = lab.south.flows.get_mut(&lab.key).unwrap();
        flow.client.window_scale = scale;
        lab.crash();
        let offered = u32::from(lab.splice(S2).segment().window()) << scale;
        assert!((65_535..=65_536).contains(&offered), "{scale}: {offered}");
    }
}
