//! Output of a spliced server, repeated or new.

use super::*;

#[test]
fn output_that_the_client_has_is_acknowledged_for_it() {
    let mut lab = replaying(b"hello, world", 5, b"hello, world");
    let out = lab.server(
        segment(S2 + 1, lab.c + 1)
            .timestamps(80, 11)
            .payload(b"hello"),
    );
    assert_eq!(out.verdict, Verdict::RedirectIngress);
    assert_eq!(
        (out.segment().ack(), out.segment().seq()),
        (S2 + 6, lab.c + 1)
    );
    assert_eq!(out.segment().option_bytes(), timestamps(12, 80));
    assert_eq!(out.segment().payload_len(), 0);
    // Output that the client has not acknowledged goes out, in the client's numbers.
    let out = lab.server(
        segment(S2 + 6, lab.c + 1)
            .timestamps(81, 11)
            .payload(b", world"),
    );
    assert_eq!(
        (out.verdict, out.segment().seq()),
        (Verdict::Next, lab.s + 6)
    );
    assert_eq!(out.segment().timestamps().unwrap().value, 81 + 951 - 70);
    assert_eq!(
        (lab.flow().verify.compared, lab.south.counters().self_acks),
        (12, 1)
    );
    assert_eq!(lab.flow().server.tsval, 81 + 951 - 70);
}

#[test]
fn an_offloaded_checksum_becomes_a_full_one_in_a_self_ack_only() {
    let mut lab = replaying(b"hello", 3, b"hello");
    let out = lab.server(segment(S2 + 1, lab.c + 1).payload(b"hel").partial());
    assert_eq!(
        (out.verdict, out.packet.checksum),
        (Verdict::RedirectIngress, ChecksumMode::Full)
    );
    let out = lab.server(segment(S2 + 4, lab.c + 1).payload(b"lo").partial());
    assert_eq!(
        (out.verdict, out.packet.checksum),
        (Verdict::Next, ChecksumMode::Partial)
    );
}

#[test]
fn a_contradiction_ends_the_flow() {
    let mut lab = replaying(b"hello", 5, b"hello");
    let out = lab.server(segment(S2 + 1, lab.c + 1).payload(b"heLlo"));
    assert_eq!(
        (out.verdict, lab.flow().mode),
        (Verdict::Drop, Mode::Diverged)
    );
    assert_eq!(lab.flow().verify.diverged_at, lab.s + 3);
    let (key, flow_id, at) = (lab.key, FlowId(1), lab.s + 3);
    assert_eq!(
        lab.events()[0].kind,
        EventKind::Diverged {
            key,
            flow: flow_id,
            at
        }
    );
    for later in [
        segment(S2 + 6, lab.c + 1),
        segment(S2, lab.c + 1).flags(SYN_ACK),
    ] {
        assert_eq!(lab.server(later).verdict, Verdict::Drop);
    }
}

#[test]
fn what_is_not_known_or_may_differ_passes_and_is_counted() {
    let head = b"HTTP/1.1 200 OK\r\nDate: 1\r\n\r\n";
    let mut lab = replaying(head, length(head), head);
    let other = b"HTTP/1.1 200 OK\r\nDate: 2\r\n\r\n";
    lab.server(segment(S2 + 1, lab.c + 1).payload(other));
    let verify = lab.flow().verify;
    assert_eq!(
        (verify.compared, verify.tolerated, verify.unverified),
        (length(head), 1, 0)
    );
    let mut lab = replaying(b"hello", 5, b"");
    lab.south.expect(FlowId(1), [(0, Expect::default())]);
    lab.server(segment(S2 + 1, lab.c + 1).payload(b"other"));
    assert_eq!(
        (lab.flow().verify.unverified, lab.flow().mode),
        (5, Mode::Spliced)
    );
}

#[test]
fn a_fin_in_the_middle_of_what_the_client_has_is_a_contradiction() {
    let mut lab = replaying(b"hello", 5, b"hello");
    lab.server(segment(S2 + 1, lab.c + 1).payload(b"hell").flags(FIN_ACK));
    assert_eq!(
        lab.flow().mode,
        Mode::Diverged,
        "the client has one byte more"
    );
    assert_eq!(lab.flow().verify.diverged_at, lab.s + 5);
    let mut lab = replaying(b"hello", 5, b"hello");
    let out = lab.server(segment(S2 + 1, lab.c + 1).payload(b"hello").flags(FIN_ACK));
    assert_eq!(
        (out.verdict, out.segment().seq()),
        (Verdict::Next, lab.s + 1)
    );
    assert_eq!(lab.flow().server.nxt, lab.s + 7);
}

#[test]
fn the_client_is_never_told_less() {
    let mut lab = Lab::new().open();
    lab.client(segment(lab.c + 1, lab.s + 1).payload(&[7; 100]));
    lab.server(segment(lab.s + 1, lab.c + 101).window(10));
    lab.crash();
    lab.splice(S2);
    assert_eq!(
        lab.server(segment(S2 + 1, lab.c + 51)).verdict,
        Verdict::Withheld
    );
    assert_eq!(lab.flow().splice.ack, lab.c + 51, "but we have heard it");
    let out = lab.server(segment(S2 + 1, lab.c + 51).window(100).payload(b"early"));
    assert_eq!(
        (out.verdict, out.segment().ack()),
        (Verdict::Next, lab.c + 101)
    );
    let edge = 51 + (100 << LATER_SCALE);
    assert_eq!(
        u32::from(out.segment().window()),
        (edge - 101) >> SERVER_SCALE
    );
    let out = lab.server(segment(S2 + 6, lab.c + 51).window(0).payload(b"full"));
    assert_eq!(
        out.segment().window(),
        0,
        "an edge before the acknowledgement is no window"
    );
    let out = lab.server(segment(S2 + 10, lab.c + 101).window(65_535));
    assert_eq!(out.verdict, Verdict::Next);
    assert_eq!(
        u32::from(out.segment().window()),
        (65_535 << LATER_SCALE) >> SERVER_SCALE
    );
}

#[test]
fn a_window_beyond_the_field_is_cut() {
    let mut lab = spliced();
    lab.south
        .flows
        .get_mut(&lab.key)
        .unwrap()
        .server
        .window_scale = 0;
    let out = lab.server(segment(S2 + 1, lab.c + 1).window(65_535));
    assert_eq!(out.segment().window(), 65_535);
    assert_eq!(lab.flow().server.rcv_wnd_edge, lab.c + 1 + 65_535);
}

#[test]
fn a_reset_reaches_the_client_in_its_window() {
    let mut lab = replaying(b"hello", 5, b"hello");
    let before = lab.flow().splice;
    let out = lab.server(segment(S2 + 1, lab.c + 1).flags(RST));
    assert_eq!(
        (out.verdict, out.segment().seq()),
        (Verdict::Next, lab.s + 6)
    );
    assert_eq!(lab.flow().splice, before);
    let mut lab = spliced();
    let out = lab.server(segment(S2 + 9, lab.c + 1).flags(RST));
    assert_eq!(out.segment().seq(), lab.s + 9);
}
