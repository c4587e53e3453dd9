//! Packets that go to the logger: handshakes and mirrored segments.

use super::*;

#[test]
fn a_syn_ack_waits_for_the_logger() {
    for (v6, link_v6) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut linked = Linked::over(AckStrategy::Eager, v6, link_v6);
        // The rest of a longer header must not get into the next checksum.
        let long = segment(linked.both.s, linked.both.c).options(&[1; 40]);
        linked.both.server(long);
        linked.both.client(linked.both.syn());
        let (open, waiting) = linked.answer();
        assert_eq!(open.key, linked.both.key);
        assert_eq!(open.client_isn, linked.both.c);
        assert_eq!(open.server_isn, linked.both.s);
        let overhead = if link_v6 { 48 } else { 28 };
        let most = MTU - overhead - if v6 { 60 } else { 40 };
        let packet = IpPacket::parse(&waiting).unwrap();
        let segment = Segment::of(&packet).unwrap();
        let mss = |segment: &Segment<'_>| {
            segment.options().find_map(|option| match option {
                Ok(wire::TcpOption::MaxSegmentSize(mss)) => Some(mss),
                _ => None,
            })
        };
        assert_eq!(mss(&segment), Some(most), "v6 {v6}, link {link_v6}");

        let out = linked.logged(1, &[]);
        assert_eq!(out.verdict, Verdict::Redirect);
        let sent = out.segment();
        assert_eq!(sent.flags(), SYN_ACK);
        assert_eq!((sent.seq(), sent.ack()), (linked.both.s, linked.both.c + 1));
        assert_eq!(mss(&sent), Some(most));
    }
}

#[test]
fn a_syn_ack_that_nobody_records_stays() {
    let mut linked = Linked::new(AckStrategy::Eager);
    linked.both.client(linked.both.syn());
    linked.answer();
    let mut word = linked.word(1, &[]);
    word.flow = FlowId(2);
    assert_eq!(
        linked.hear(&word).verdict,
        Verdict::Drop,
        "another's number"
    );
    let word = linked.word(0, &[]);
    assert_eq!(linked.hear(&word).verdict, Verdict::Drop, "another's ISN");
    linked.answer(); // sent again
    assert_eq!(linked.logged(1, &[]).verdict, Verdict::Redirect);
}

#[test]
fn without_a_logger_a_connection_is_not_protected() {
    let mut linked = Linked::new(AckStrategy::Eager);
    linked.both.link_up(false);
    linked.both.client(linked.both.syn());
    let out = linked.both.server(linked.both.syn_ack());
    assert_eq!(out.verdict, Verdict::Next);
    let third = segment(linked.both.c + 1, linked.both.s + 1).timestamps(11, 900);
    linked.both.client(third);
    let lost = Some(UnprotectedReason::LoggerLost);
    assert_eq!(linked.both.flow().unprotected, lost);
    assert_eq!(linked.says(1, b"hello"), Verdict::Next);
    assert!(linked.both.copies().is_empty());
    assert_eq!(told(&linked.server_acks(6)).0, 6);
}

#[test]
fn handshake_that_the_logger_refuses_goes_on_without_a_record() {
    let too_many = UnprotectedReason::TooManyConnections;
    let mut linked = Linked::new(AckStrategy::Eager);
    linked.both.client(linked.both.syn());
    assert!(!linked.both.refuse(FlowId(1), too_many), "no number yet");
    assert!(!linked.both.refuse(FlowId(0), too_many));
    linked.answer();
    assert!(linked.both.refuse(FlowId(1), too_many));
    let out = linked.both.server(linked.both.syn_ack());
    assert_eq!(out.verdict, Verdict::Next, "to the client at once");
    let third = segment(linked.both.c + 1, linked.both.s + 1).timestamps(11, 900);
    assert_eq!(linked.both.client(third).verdict, Verdict::Next);
    assert_eq!(linked.both.flow().unprotected, Some(too_many));
    assert_eq!(linked.says(1, b"hello"), Verdict::Next);
    assert!(linked.both.copies().is_empty());
    assert_eq!(told(&linked.server_acks(6)).0, 6);
    assert!(!linked.both.refuse(FlowId(1), too_many), "it has begun");
}

#[test]
fn another_handshake_than_the_refused_one_is_recorded() {
    let mut linked = Linked::new(AckStrategy::Eager);
    linked.both.client(linked.both.syn());
    linked.answer();
    let refused = linked
        .both
        .refuse(FlowId(1), UnprotectedReason::TooManyConnections);
    assert!(refused);
    linked.both.s = SeqNumber(9000); // the server has forgotten the first, and answers anew
    linked.answer();
    assert!(
        !linked
            .both
            .refuse(FlowId(1), UnprotectedReason::TooManyConnections)
    );
}

#[test]
fn the_logger_gets_a_copy_of_what_the_server_gets() {
    for (v6, link_v6) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut linked = Linked::over(AckStrategy::Eager, v6, link_v6).open();
        assert_eq!(linked.says(1, b"hello"), Verdict::Next);
        let copies = linked.both.copies();
        let [copy] = &copies[..] else {
            panic!("{} copies", copies.len());
        };
        let payload = linked.payload(copy);
        let view = SegmentView::parse(&payload).expect("a segment");
        assert!(view.verify(&keys(UP), FlowId(1)));
        assert!(!view.verify(&keys(UP), FlowId(2)));
        assert_eq!(view.flags().kind, SegmentKind::Turn);
        assert_eq!(view.base_seq(), linked.both.c + 1);
        assert_eq!(view.segment().payload(), b"hello");
        assert!(view.is_undamaged(&linked.both.key));
    }
}

#[test]
fn without_a_way_to_the_logger_a_connection_is_not_protected() {
    let mut settings = settings();
    settings.link = true;
    let mut both = Both::with(&settings);
    both.set_link(link(AckStrategy::Eager, false));
    both.link_up(true);
    both.client(both.syn());
    let out = both.server(both.syn_ack());
    assert_eq!(out.verdict, Verdict::Next, "its probes leave unseen");
    let third = segment(both.c + 1, both.s + 1).timestamps(11, 900);
    assert_eq!(both.client(third).verdict, Verdict::Next);
    assert_eq!(both.flow().unprotected, Some(UnprotectedReason::LoggerLost));
}

#[test]
fn what_does_not_fit_the_link_costs_the_record_and_not_the_upload() {
    // A client whose handshake no program could change to shorter segments, or a link with a
    // smaller MTU by now.
    let overhead = 28 + 20 + 32;
    let mut linked = Linked::new(AckStrategy::Eager).open();
    let most = usize::from(MTU) - overhead;
    assert_eq!(linked.says(1, &vec![b'x'; most]), Verdict::Next);
    assert_eq!(linked.both.flow().unprotected, None);
    assert_eq!(linked.both.copies().len(), 1);
    let at = 1 + u32::try_from(most).unwrap();
    assert_eq!(linked.says(at, &vec![b'y'; most + 1]), Verdict::Next);
    let lost = Some(UnprotectedReason::MirrorLost);
    assert_eq!(linked.both.flow().unprotected, lost);
    assert!(linked.both.copies().is_empty());
    let all = at + u32::try_from(most).unwrap() + 1;
    assert_eq!(told(&linked.server_acks(all)).0, all);
}

#[test]
fn the_mark_of_others_stays() {
    let mut linked = Linked::new(AckStrategy::Eager).open();
    let marked = segment(linked.both.c + 1, linked.both.s + 1)
        .timestamps(21, 901)
        .payload(b"hello")
        .mark(7);
    assert_eq!(linked.both.client(marked).packet.mark, 7);
}

#[test]
fn a_handshake_that_is_answered_anew_is_another_connection_for_the_logger() {
    // A request socket that expired while the logger was away, or a SYN cookie of another minute.
    let mut linked = Linked::new(AckStrategy::Eager);
    linked.both.client(linked.both.syn());
    assert_eq!(linked.answer().0.flow, FlowId(1));
    assert_eq!(linked.answer().0.flow, FlowId(1), "the same one again");
    linked.both.client(linked.both.syn());
    linked.both.s += 777;
    let (open, _) = linked.answer();
    assert_eq!(open.server_isn, linked.both.s);
    assert_eq!(open.flow, FlowId(2), "the first has another number");
}
