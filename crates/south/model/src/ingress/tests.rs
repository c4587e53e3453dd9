use super::*;
use crate::{Settings, mirror::MirrorFrame, testing::*};
mod segments;

fn kinds(frames: &[MirrorFrame]) -> Vec<FrameKind> {
    frames.iter().map(|frame| frame.kind).collect()
}

#[test]
fn what_is_not_for_us_passes_untouched() {
    let mut lab = Lab::new();
    let spec = segment(SeqNumber(1), SeqNumber(2)).mark(MARK + MARK_CLIENT_SPACE);
    let packet = spec.packet(client_end(false), "10.0.0.10:81".parse().unwrap());
    let out = lab.ingress(packet.clone());
    assert_eq!((out.verdict, out.packet), (Verdict::Next, packet));
    assert_eq!(lab.south.counters(), &crate::Counters::default());
}

#[test]
fn a_handshake_makes_a_flow_and_is_recorded() {
    for v6 in [false, true] {
        let mut lab = Lab::with(settings(), u32::MAX, u32::MAX, v6).open();
        let flow = lab.flow();
        assert_eq!(flow.id, FlowId(1));
        assert_eq!(
            (flow.client.nxt, flow.client.ack, flow.client.tsval),
            (SeqNumber(0), SeqNumber(0), 11)
        );
        assert_eq!(
            (flow.client.window_scale, flow.server.window_scale),
            (CLIENT_SCALE, SERVER_SCALE)
        );
        assert_eq!(
            (flow.server.nxt, flow.server.ack),
            (SeqNumber(0), SeqNumber(0))
        );
        assert_eq!(flow.server.rcv_wnd_edge, SeqNumber(60_000));
        assert_eq!(flow.syn_options, syn_options(10, 0, CLIENT_SCALE));
        assert_eq!(
            (flow.syn_flags, flow.syn_window, flow.ifindex),
            (SYN.bits(), 64_000, 3)
        );
        let isn = SeqNumber(u32::MAX);
        let opened = FrameKind::Opened {
            client_isn: isn,
            server_isn: isn,
        };
        assert_eq!(kinds(&lab.mirrored()), [opened]);
        assert_eq!(lab.south.half_open(), 0);
    }
}

#[test]
fn a_syn_is_dropped_while_gated() {
    let mut lab = Lab::new();
    lab.crash();
    assert_eq!(lab.client(lab.syn()).verdict, Verdict::Drop);
    assert_eq!(
        (lab.south.half_open(), lab.south.counters().gated_in),
        (0, 1)
    );
}

#[test]
fn options_that_cannot_be_carried_are_blanked() {
    let mut lab = Lab::new();
    let options = [2, 4, 5, 0xb4, 34, 2, 30, 4, 9, 9, 254, 4, 0xf9, 0x89];
    let out = lab.client(lab.syn().options(&options));
    let blank = [2, 4, 5, 0xb4, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0];
    assert_eq!(out.segment().option_bytes(), blank);
    assert_eq!(lab.south.counters().stripped, 1);
    lab.server(lab.syn_ack());
    lab.client(segment(lab.c + 1, lab.s + 1));
    assert_eq!(lab.flow().syn_options, blank);
}

#[test]
fn an_authenticated_connection_is_let_be() {
    for option in [[19, 2], [29, 2]] {
        let mut lab = Lab::new();
        let options = [&option[..], &[34, 2]].concat();
        let out = lab.client(lab.syn().options(&options));
        assert_eq!(
            (out.verdict, out.segment().option_bytes()),
            (Verdict::Next, &options[..])
        );
        assert_eq!(
            (lab.south.half_open(), lab.south.counters().untracked),
            (0, 1)
        );
    }
}

#[test]
fn a_window_scale_above_14_counts_as_14_and_one_sides_silence_turns_it_off() {
    let mut lab = Lab::new();
    lab.client(lab.syn().options(&[3, 3, 15, 0]));
    lab.server(lab.syn_ack().options(&[3, 3, 7, 0]));
    lab.client(segment(lab.c + 1, lab.s + 1));
    assert_eq!(
        (lab.flow().client.window_scale, lab.flow().server.timestamps),
        (14, false)
    );
    let mut lab = Lab::new();
    lab.client(lab.syn());
    lab.server(lab.syn_ack().options(&[]));
    lab.client(segment(lab.c + 1, lab.s + 1));
    assert_eq!(
        (
            lab.flow().client.window_scale,
            lab.flow().server.window_scale
        ),
        (0, 0)
    );
}

#[test]
fn a_repeated_syn_does_not_forget_the_answer() {
    let mut lab = Lab::new();
    lab.client(lab.syn());
    lab.server(lab.syn_ack());
    lab.client(lab.syn());
    lab.client(segment(lab.c + 1, lab.s + 1));
    assert_eq!(lab.flow().server.isn, lab.s);
}

#[test]
fn another_syn_begins_anew() {
    let mut lab = Lab::new();
    lab.client(lab.syn());
    lab.server(lab.syn_ack());
    lab.c += 77;
    lab.client(lab.syn());
    lab.client(segment(lab.c + 1, lab.s + 1));
    assert_eq!(lab.south.flow(&lab.key), None);
    lab.server(lab.syn_ack());
    lab.client(segment(lab.c + 1, lab.s + 1));
    assert_eq!(lab.flow().client.isn, lab.c);
}

#[test]
fn a_syn_may_come_before_we_are_told_that_the_last_socket_is_gone() {
    for spliced in [false, true] {
        let mut lab = Lab::new().open();
        if spliced {
            lab.crash();
            lab.splice(lab.s + 77_000);
        }
        let earlier = lab.flow().clone();
        (lab.c, lab.s) = (lab.c + 12_345, lab.s + 54_321);
        assert_eq!(lab.client(lab.syn()).verdict, Verdict::Next);
        assert_eq!(lab.flow(), &earlier, "the server may know it still");
        // The server may send a challenge, too (RFC 5961 4.2).
        let challenge = segment(earlier.splice.nxt, earlier.client.isn + 1);
        lab.server(challenge);
        assert_eq!(lab.flow().id, earlier.id);
        assert_eq!(lab.server(lab.syn_ack()).verdict, Verdict::Next);
        assert_eq!(
            lab.south.flow(&lab.key),
            None,
            "no two sockets have the same ends"
        );
        lab.client(segment(lab.c + 1, lab.s + 1));
        let flow = lab.flow();
        assert_eq!(
            (flow.mode, flow.client.isn, flow.server.isn),
            (Mode::Observed, lab.c, lab.s)
        );
    }
}

#[test]
fn a_syn_ack_that_nobody_asked_for_ends_no_connection() {
    let mut lab = Lab::new().open();
    let (c, s) = (lab.c, lab.s);
    let answer = lab.syn_ack();
    lab.server(answer.clone());
    (lab.c, lab.s) = (c + 12_345, s + 54_321);
    lab.server(lab.syn_ack());
    lab.client(lab.syn());
    lab.server(answer);
    assert_eq!(lab.flow().client.isn, c);
}

#[test]
fn a_handshake_may_end_with_data_out_of_order() {
    let mut lab = Lab::new();
    lab.client(lab.syn());
    lab.server(lab.syn_ack());
    let second = segment(lab.c + 101, lab.s + 1).payload(&[2; 100]);
    assert_eq!(lab.client(second).verdict, Verdict::Next);
    let frames = lab.mirrored();
    assert_eq!(frames.len(), 2, "opened, and the segment");
    assert_eq!(frames[1].kind, FrameKind::Instream);
}

#[test]
fn what_does_not_end_a_handshake_is_a_stray() {
    let mut lab = Lab::new();
    let (c, s) = (lab.c, lab.s);
    lab.client(lab.syn());
    lab.client(segment(c + 1, s + 1)); // not answered yet
    lab.server(lab.syn_ack());
    lab.client(segment(c + 1, s + 2));
    lab.client(segment(c + 1 + 60_001, s + 1));
    lab.client(segment(c, s + 1).flags(Flags::RST | Flags::ACK));
    lab.client(segment(c + 1, s + 1).flags(Flags::PSH));
    assert_eq!(
        (lab.south.flow(&lab.key), lab.south.counters().untracked),
        (None, 5)
    );
}

#[test]
fn a_full_table_leaves_the_connection_unprotected() {
    let mut lab = Lab::with(
        Settings {
            max_flows: 0,
            ..settings()
        },
        1,
        2,
        false,
    );
    lab.client(lab.syn());
    lab.server(lab.syn_ack());
    assert_eq!(
        lab.client(segment(lab.c + 1, lab.s + 1)).verdict,
        Verdict::Next
    );
    let (key, reason) = (lab.key, UnprotectedReason::TooManyConnections);
    assert_eq!(
        lab.events()[0].kind,
        EventKind::Unprotected {
            key,
            flow: FlowId(1),
            reason
        }
    );
    let counters = lab.south.counters();
    assert_eq!(
        (
            counters.table_full,
            counters.untracked,
            lab.south.half_open()
        ),
        (1, 1, 0)
    );
}

/// A connection that is answered, and a ring without room.
fn answered_without_room() -> (Lab, Spec) {
    let mirror_capacity = protocol::mirror::HEADER_LEN + 16;
    let settings = Settings {
        mirror_capacity,
        ..settings()
    };
    let mut lab = Lab::with(settings, 1, 2, false);
    lab.south.barrier(1, lab.now).unwrap();
    lab.client(lab.syn());
    lab.server(lab.syn_ack());
    let third = segment(lab.c + 1, lab.s + 1).timestamps(11, 900);
    (lab, third)
}

#[test]
fn a_handshake_whose_opening_finds_no_room_is_completed_later() {
    let (mut lab, third) = answered_without_room();
    assert_eq!(lab.client(third.clone()).verdict, Verdict::Drop);
    assert_eq!((lab.south.flow(&lab.key), lab.south.half_open()), (None, 1));
    assert_eq!(lab.south.counters().mirror_full, 1);
    assert_eq!(lab.mirrored().len(), 1, "the barrier");
    assert_eq!(lab.client(third).verdict, Verdict::Next);
    assert_eq!((lab.flow().unprotected, lab.south.half_open()), (None, 0));
    assert!(matches!(lab.mirrored()[0].kind, FrameKind::Opened { .. }));
}

#[test]
fn when_nobody_is_there_a_connection_whose_opening_is_not_recorded_is_unprotected() {
    let (mut lab, third) = answered_without_room();
    lab.now += 11 * SECOND;
    assert_eq!(lab.client(third).verdict, Verdict::Next);
    assert_eq!(lab.flow().unprotected, Some(UnprotectedReason::MirrorLost));
    let data = segment(lab.c + 1, lab.s + 1).payload(b"x");
    assert_eq!(lab.client(data).verdict, Verdict::Next);
}

/// The client may have the first SYN-ACK already, and the client's ACK may be on the way.
#[test]
fn what_an_earlier_life_has_answered_is_not_answered_again_while_that_is_recovered() {
    let recovering = || {
        let mut lab = Lab::new();
        lab.client(lab.syn());
        lab.server(lab.syn_ack());
        lab.crash();
        lab.south.new_incarnation();
        lab
    };
    let mut lab = recovering();
    assert_eq!(lab.client(lab.syn()).verdict, Verdict::Drop);
    let third = segment(lab.c + 1, lab.s + 1).timestamps(11, 900);
    assert_eq!(lab.client(third).verdict, Verdict::Drop);
    assert_eq!(lab.flow().server.isn, lab.s, "the first answer holds");
    // Another connection is another matter.
    let mut lab = recovering();
    let mut other = lab.syn();
    other.seq = lab.c + 9;
    assert_eq!(lab.client(other).verdict, Verdict::Next);
    // The same SYN is answered after the recovery, when no duplicate of the network is possible any
    // more.
    let mut lab = recovering();
    lab.south.recovered();
    assert_eq!(lab.client(lab.syn()).verdict, Verdict::Drop);
    lab.now += SECOND;
    assert_eq!(lab.client(lab.syn()).verdict, Verdict::Next);
}

#[test]
fn a_handshake_of_an_earlier_life_is_late_and_gated() {
    let mut lab = Lab::new();
    lab.client(lab.syn());
    lab.server(lab.syn_ack());
    lab.crash();
    lab.south.new_incarnation();
    assert_eq!(
        lab.client(segment(lab.c + 1, lab.s + 1)).verdict,
        Verdict::Drop
    );
    let (key, flow_id) = (lab.key, FlowId(1));
    assert_eq!(lab.events()[0].kind, EventKind::Late { key, flow: flow_id });
}
