//! Segments of connections, known and unknown.

use super::*;

#[test]
fn strays_pass_in_peace_and_are_dropped_in_recovery() {
    let mut lab = Lab::new();
    let stray = || segment(SeqNumber(1), SeqNumber(2));
    assert_eq!(lab.client(stray()).verdict, Verdict::Next);
    lab.south.new_incarnation();
    assert_eq!(lab.client(stray()).verdict, Verdict::Drop);
    lab.south.recovered();
    assert_eq!(lab.client(stray()).verdict, Verdict::Next);
    lab.crash();
    assert_eq!(lab.client(stray()).verdict, Verdict::Drop);
    lab.now += 11 * SECOND;
    assert_eq!(
        lab.client(stray()).verdict,
        Verdict::Next,
        "nobody is there"
    );
}

#[test]
fn data_and_fin_are_recorded_before_they_are_delivered() {
    let mut lab = Lab::new().open();
    lab.mirrored();
    let data = segment(lab.c + 1, lab.s + 1).payload(b"GET");
    let out = lab.client(data);
    lab.client(segment(lab.c + 4, lab.s + 1).flags(FIN_ACK));
    lab.client(segment(lab.c + 5, lab.s + 1));
    let frames = lab.mirrored();
    assert_eq!(kinds(&frames), [FrameKind::Instream; 2]);
    assert_eq!(frames[0].packet, out.packet.bytes);
    assert_eq!(
        usize::try_from(frames[0].packet_len).unwrap(),
        out.packet.bytes.len()
    );
    assert_eq!(
        (frames[0].server_nxt, frames[0].server_ack),
        (lab.s + 1, lab.c + 1)
    );
    assert_eq!(lab.flow().client.nxt, lab.c + 5);
}

#[test]
fn what_was_acknowledged_before_is_not_recorded_again() {
    let mut lab = Lab::new().open();
    let data = || segment(SeqNumber(1001), SeqNumber(5001)).payload(b"GET");
    lab.client(data());
    lab.server(segment(lab.s + 1, lab.c + 4));
    lab.mirrored();
    assert_eq!(lab.client(data()).verdict, Verdict::Next);
    assert_eq!(lab.mirrored(), []);
}

#[test]
fn a_full_ring_stops_delivery_until_nobody_is_there() {
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
    let data = || segment(SeqNumber(2), SeqNumber(3)).payload(b"GET");
    assert_eq!(lab.client(data()).verdict, Verdict::Next);
    assert_eq!(lab.client(data()).verdict, Verdict::Drop);
    assert_eq!(lab.flow().unprotected, None);
    lab.now += 11 * SECOND;
    assert_eq!(lab.client(data()).verdict, Verdict::Next);
    assert_eq!(lab.flow().unprotected, Some(UnprotectedReason::MirrorLost));
    assert_eq!(
        (
            lab.south.counters().mirrored,
            lab.south.counters().mirror_full
        ),
        (1, 2)
    );
}

#[test]
fn a_turn_begins_when_the_client_speaks_after_having_heard_everything() {
    let mut lab = Lab::new().open();
    assert_eq!(
        lab.flow().verify.head_left,
        4096,
        "a server may speak first"
    );
    lab.server(segment(lab.s + 1, lab.c + 1).payload(b"banner"));
    assert_eq!(lab.flow().verify.head_left, 4090);
    lab.client(segment(lab.c + 1, lab.s + 3).payload(b"a"));
    assert_eq!(
        lab.flow().verify.head_left,
        4090,
        "it has not heard everything"
    );
    lab.client(segment(lab.c + 2, lab.s + 7).payload(b"b"));
    assert_eq!(lab.flow().verify.head_left, 4096);
}

#[test]
fn what_the_server_would_not_believe_is_neither_believed_nor_recorded() {
    let mut lab = Lab::new().open();
    let before = lab.flow().clone();
    lab.mirrored();
    let (c, s) = (lab.c, lab.s);
    for stranger in [
        segment(c - 100, s + 1).payload(b"old"),
        segment(c + 1 + 60_001, s + 1).payload(b"beyond the window"),
        segment(c + 1, s + 2).payload(b"acknowledges what was not sent"),
        segment(c + 1, s + 1).payload(b"no ACK").flags(Flags::PSH),
        segment(c + 1, s + 1).flags(SYN_ACK),
    ] {
        lab.client(stranger.clone());
        assert_eq!(lab.flow(), &before, "{stranger:?}");
        assert_eq!(lab.mirrored(), [], "{stranger:?}");
    }
}

#[test]
fn an_older_timestamp_tells_nothing_but_its_data_is_recorded() {
    let mut lab = Lab::new().open();
    lab.mirrored();
    let late = segment(lab.c + 1, lab.s + 1)
        .timestamps(5, 900)
        .payload(b"reordered");
    lab.client(late);
    assert_eq!(
        (lab.flow().client.tsval, lab.flow().client.nxt),
        (11, lab.c + 1)
    );
    assert_eq!(lab.mirrored().len(), 1);
}

#[test]
fn an_older_acknowledgement_does_not_take_back() {
    let mut lab = Lab::new().open();
    lab.server(segment(lab.s + 1, lab.c + 1).payload(&[0; 100]));
    lab.client(segment(lab.c + 1, lab.s + 101).window(7));
    lab.client(segment(lab.c + 1, lab.s + 51).window(9));
    assert_eq!(
        (lab.flow().client.ack, lab.flow().client.window),
        (lab.s + 101, 7)
    );
}

#[test]
fn a_gated_flow_learns_and_records_and_delivers_nothing() {
    let mut lab = Lab::new().open();
    lab.server(segment(lab.s + 1, lab.c + 1).payload(&[0; 100]));
    lab.crash();
    lab.mirrored();
    let ack = segment(lab.c + 1, lab.s + 101).window(3).payload(b"more");
    assert_eq!(lab.client(ack).verdict, Verdict::Drop);
    assert_eq!(
        (lab.flow().client.ack, lab.flow().client.window),
        (lab.s + 101, 3)
    );
    assert_eq!(lab.mirrored().len(), 1, "the replay brings it along");
    lab.south.new_incarnation();
    assert_eq!(
        lab.client(segment(lab.c + 1, lab.s + 101)).verdict,
        Verdict::Drop,
        "not spliced"
    );
    assert_eq!(lab.south.counters().gated_in, 2);
}

#[test]
fn a_reset_counts_only_while_nobody_serves_and_only_if_it_is_exact() {
    let mut lab = Lab::new().open();
    let (c, s) = (lab.c, lab.s);
    assert_eq!(
        lab.client(segment(c + 1, s).flags(RST)).verdict,
        Verdict::Next
    );
    assert!(!lab.flow().client.reset, "the server's TCP decides");
    lab.client(segment(c + 1, s + 1).payload(b"request"));
    lab.crash();
    for (seq, exact) in [(c, false), (c + 2, false), (c + 9, false), (c + 8, true)] {
        lab.client(segment(seq, s).flags(RST));
        assert_eq!(lab.flow().client.reset, exact, "{seq}");
    }
    let mut lab = Lab::new().open();
    lab.crash();
    lab.client(segment(c + 1, s).flags(RST));
    assert!(lab.flow().client.reset);
}

#[test]
fn nothing_is_delivered_while_splicing_or_diverged() {
    for mode in [Mode::Splicing, Mode::Diverged] {
        let mut lab = Lab::new().open();
        lab.south.flows.get_mut(&lab.key).unwrap().mode = mode;
        assert_eq!(
            lab.client(segment(lab.c + 1, lab.s + 1)).verdict,
            Verdict::Drop
        );
    }
}

#[test]
fn translation_maps_acknowledgement_echo_and_sack_blocks() {
    let mut lab = Lab::new().open();
    lab.server(
        segment(lab.s + 1, lab.c + 1)
            .timestamps(950, 11)
            .payload(&[0; 100]),
    );
    lab.crash();
    let s2 = SeqNumber(7_000);
    lab.splice(s2);
    // The new server repeats 40 of the 100 bytes; 881 on the new server's clock is 951 for the
    // client.
    lab.server(
        segment(s2 + 1, lab.c + 1)
            .timestamps(75, 11)
            .payload(&[0; 40]),
    );
    let mut options = timestamps(20, 955);
    options.extend([1, 1, 5, 10]);
    options.extend((lab.s.0 + 31).to_be_bytes());
    options.extend((lab.s.0 + 41).to_be_bytes());
    let out = lab.client(segment(lab.c + 1, lab.s + 21).options(&options));
    assert_eq!(out.verdict, Verdict::Next);
    let segment_out = out.segment();
    assert_eq!(segment_out.ack(), s2 + 21);
    assert_eq!(segment_out.timestamps().unwrap().echo, 955 - (951 - 70));
    assert_eq!(
        &segment_out.option_bytes()[16..],
        [7031u32.to_be_bytes(), 7041u32.to_be_bytes()].concat()
    );
    // The acknowledgement from before the splice is beyond the new server's output.
    let out = lab.client(segment(lab.c + 1, lab.s + 101).timestamps(20, 900));
    assert_eq!(out.segment().ack(), s2 + 41);
    assert_eq!(
        out.segment().timestamps().unwrap().echo,
        70,
        "nothing older than the SYN-ACK"
    );
    assert_eq!(lab.south.counters().translated_in, 2);
    // An acknowledgement of output that no server has sent stays invalid.
    let out = lab.client(segment(lab.c + 1, lab.s + 102).timestamps(20, 960));
    assert_eq!(out.segment().ack(), s2 + 102);
}

#[test]
fn translation_leaves_an_offloaded_checksum_alone() {
    let mut lab = Lab::new().open();
    lab.crash();
    lab.splice(SeqNumber(7_000));
    let out = lab.client(segment(lab.c + 1, lab.s + 1).partial());
    assert_eq!(
        (out.verdict, out.segment().ack()),
        (Verdict::Next, SeqNumber(7_001))
    );
}

#[test]
fn our_own_packets_lose_their_mark() {
    let mut lab = Lab::new().open();
    lab.crash();
    let s2 = SeqNumber(7_000);
    let replayed = || {
        segment(SeqNumber(1001), SeqNumber(5001))
            .mark(MARK + MARK_CLIENT_SPACE)
            .payload(b"x")
    };
    assert_eq!(lab.client(replayed()).verdict, Verdict::Drop, "not spliced");
    lab.splice(s2);
    lab.mirrored();
    let out = lab.client(replayed());
    assert_eq!(
        (out.verdict, out.packet.mark, out.segment().ack()),
        (Verdict::Next, 0, s2 + 1)
    );
    assert_eq!(lab.mirrored(), [], "it comes from the record");
    let plain = segment(lab.c, lab.s).mark(MARK + MARK_SERVER_SPACE);
    let out = lab.client(plain);
    assert_eq!(
        (out.verdict, out.packet.mark, out.segment().ack()),
        (Verdict::Next, 0, lab.s)
    );
    let foreign = lab.client(segment(lab.c + 1, lab.s + 1).mark(77));
    assert_eq!(foreign.packet.mark, 77);
    lab.crash();
    assert_eq!(lab.client(replayed()).verdict, Verdict::Drop, "gated again");
}

#[test]
fn the_ports_of_a_closed_flow_may_be_used_again() {
    let mut lab = Lab::new().open();
    lab.crash();
    lab.splice(SeqNumber(7_000));
    lab.mirrored();
    lab.client(lab.syn());
    assert_eq!(lab.south.half_open(), 0, "it lives");
    lab.south.flows.get_mut(&lab.key).unwrap().closed_ns = 1;
    lab.client(lab.syn());
    let reason = CloseReason::Evicted;
    assert_eq!(kinds(&lab.mirrored()), [FrameKind::Closed(reason)]);
    assert_eq!((lab.south.flow(&lab.key), lab.south.half_open()), (None, 1));
}
