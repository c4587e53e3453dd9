//! Acknowledgements to the client, and their time.

use super::*;

#[test]
fn the_client_is_told_of_no_more_than_is_logged() {
    let mut linked = Linked::new(AckStrategy::Basic).open();
    let handshake = linked.both.flow().server.rcv_wnd_edge;
    linked.says(1, &[b'x'; 100]);
    let out = linked.server_acks(101);
    // 1000 << 7 bytes from 101 on: the right edge is kept.
    let edge = 101 + (1000 << SERVER_SCALE);
    assert!(linked.both.c + edge != handshake);
    assert_eq!(told(&out), (1, (edge - 1) & !127, vec![]));
    assert_eq!(
        linked.logged(101, &[]).verdict,
        Verdict::Drop,
        "basic makes no ACK"
    );
    let answer = segment(linked.both.s + 1, linked.both.c + 101)
        .timestamps(903, 21)
        .payload(b"answer");
    assert_eq!(told(&linked.both.server(answer)).0, 101);
}

#[test]
fn a_pure_ack_that_brings_nothing_stays() {
    let mut linked = Linked::new(AckStrategy::Basic).open();
    linked.says(1, &[b'x'; 100]);
    assert_eq!(
        linked.server_acks(101).verdict,
        Verdict::Next,
        "a larger window"
    );
    linked.says(101, b"y");
    let narrow = segment(linked.both.s + 1, linked.both.c + 102)
        .window(900)
        .timestamps(904, 21);
    assert_eq!(linked.both.server(narrow).verdict, Verdict::Withheld);
    assert_eq!(linked.both.counted("acks_withheld"), 1);
    let again = segment(linked.both.s + 1, linked.both.c + 102)
        .window(900)
        .timestamps(905, 21);
    let out = linked.both.server(again);
    assert_eq!(
        out.verdict,
        Verdict::Next,
        "it repeats itself, for a reason"
    );
    assert_eq!(told(&out).0, 1);
}

#[test]
fn eager_makes_an_ack_of_the_loggers_word() {
    for (v6, link_v6) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut linked = Linked::over(AckStrategy::Eager, v6, link_v6).open();
        linked.says(1, &[b'x'; 100]);
        assert_eq!(
            linked.logged(51, &[]).verdict,
            Verdict::Drop,
            "the server has nothing yet"
        );
        linked.server_acks(101);
        let out = linked.logged(101, &[]);
        assert_eq!(out.verdict, Verdict::Redirect);
        let edge = 101 + (1000 << SERVER_SCALE);
        assert_eq!(told(&out), (101, edge - 101, vec![]));
        let segment = out.segment();
        assert_eq!(segment.seq(), linked.both.s + 1);
        let stamps = segment.timestamps().expect("agreed");
        assert_eq!(
            (stamps.value, stamps.echo),
            (902, 21),
            "the server's own, and the echo of what is acknowledged"
        );
        assert_eq!(linked.logged(101, &[]).verdict, Verdict::Drop, "no news");
    }
}

#[test]
fn a_gap_at_the_logger_is_told_at_once() {
    let mut linked = Linked::new(AckStrategy::Eager).open();
    for at in [1, 101, 201, 301] {
        linked.says(at, &[b'x'; 100]);
    }
    linked.server_acks(401);
    let out = linked.logged(101, &[(201, 301)]);
    assert_eq!(told(&out).0, 101);
    assert_eq!(told(&out).2, [(201, 301)]);
    let out = linked.logged(101, &[(301, 401), (201, 301)]);
    assert_eq!(told(&out).2, [(301, 401), (201, 301)]);
    let out = linked.logged(401, &[]);
    assert_eq!((told(&out).0, told(&out).2.len()), (401, 0));
}

#[test]
fn a_block_is_told_when_both_have_it() {
    let sack = |blocks: &[(SeqNumber, SeqNumber)]| {
        let mut option = vec![1, 1, 5, u8::try_from(2 + 8 * blocks.len()).unwrap()];
        for (left, right) in blocks {
            option.extend(left.0.to_be_bytes());
            option.extend(right.0.to_be_bytes());
        }
        [timestamps(903, 21), option].concat()
    };
    let mut linked = Linked::new(AckStrategy::Eager).open();
    linked.says(101, &[b'x'; 200]);
    let c = linked.both.c;
    let acks = segment(linked.both.s + 1, c + 1).options(&sack(&[(c + 101, c + 301)]));
    let out = linked.both.server(acks.clone());
    assert_eq!(told(&out).2, [], "the logger has nothing yet");
    let out = linked.logged(1, &[(101, 201), (401, 501)]);
    assert_eq!(told(&out).2, [(101, 201)], "the server has not the other");
    let out = linked.both.server(acks);
    assert_eq!(told(&out).2, [(101, 201)]);
}

#[test]
fn lazy_holds_pure_acks_until_they_are_logged() {
    let mut linked = Linked::new(AckStrategy::Lazy).open();
    for at in [1, 101, 201] {
        linked.says(at, &[b'x'; 100]);
        assert_eq!(linked.server_acks(at + 100).verdict, Verdict::Withheld);
    }
    assert_eq!(linked.both.flow().log.deferred.len(), 3);
    assert_eq!(
        linked.logged(100, &[]).verdict,
        Verdict::Drop,
        "one byte is missing"
    );
    let out = linked.logged(250, &[]);
    assert_eq!(told(&out).0, 201, "the second, not more");
    let out = linked.logged(301, &[]);
    assert_eq!(told(&out).0, 301);
    // A segment with data is not withheld.
    linked.says(301, b"more");
    let answer = segment(linked.both.s + 1, linked.both.c + 305)
        .timestamps(903, 21)
        .payload(b"answer");
    assert_eq!(told(&linked.both.server(answer)).0, 301);
}

#[test]
fn of_many_held_acks_the_newest_take_each_others_place() {
    let mut linked = Linked::new(AckStrategy::Lazy).open();
    for n in 0..12 {
        linked.says(1 + n * 10, &[b'x'; 10]);
        linked.server_acks(11 + n * 10);
    }
    assert_eq!(linked.both.flow().log.deferred.len(), 8);
    let out = linked.logged(105, &[]);
    assert_eq!(told(&out).0, 71);
    let out = linked.logged(121, &[]);
    assert_eq!(told(&out).0, 121);
}

#[test]
fn conditional_waits_for_the_newest() {
    let mut linked = Linked::new(AckStrategy::Conditional).open();
    linked.says(1, &[b'x'; 100]);
    linked.says(101, &[b'x'; 100]);
    linked.server_acks(201);
    assert_eq!(
        linked.logged(101, &[]).verdict,
        Verdict::Drop,
        "another has come since"
    );
    assert_eq!(told(&linked.logged(201, &[])).0, 201);
}

#[test]
fn at_the_gate_the_loggers_word_is_noted_and_not_told() {
    let mut linked = Linked::new(AckStrategy::Eager).open();
    linked.says(1, b"hello");
    linked.server_acks(6);
    linked.both.gate();
    assert_eq!(linked.logged(6, &[]).verdict, Verdict::Drop);
    assert_eq!(linked.both.flow().log.stable, linked.both.c + 6);
    assert_eq!(linked.both.flow().server.ack, linked.both.c + 1);
    assert_eq!(
        linked.says(6, b"more"),
        Verdict::Drop,
        "recorded, not delivered"
    );
    linked.both.copies();
    assert_eq!(linked.logged(10, &[]).verdict, Verdict::Drop);
}

#[test]
fn a_later_server_tells_no_more_than_is_logged() {
    let mut linked = Linked::new(AckStrategy::Eager).open();
    linked.says(1, b"hello");
    linked.server_acks(6);
    linked.logged(6, &[]);
    let second = SeqNumber(77_000);
    linked.both.splice(second);
    // The next input has not been logged: the input is delivered, and not acknowledged.
    let more = segment(linked.both.c + 6, linked.both.s + 1)
        .timestamps(40, 902)
        .payload(b"more");
    assert_eq!(linked.both.client(more).verdict, Verdict::Next);
    let acks = segment(second + 1, linked.both.c + 10).timestamps(80, 40);
    assert_eq!(
        linked.both.server(acks).verdict,
        WITHHELD,
        "nothing new is logged"
    );
    let out = linked.logged(10, &[]);
    assert_eq!(out.segment().ack(), linked.both.c + 10);
    assert_eq!(out.segment().flags(), Flags::ACK);
    assert_eq!(
        out.segment().seq(),
        linked.both.s + 1,
        "as the client knows it"
    );
}

#[test]
fn what_comes_again_is_echoed_as_it_came_again() {
    let mut linked = Linked::new(AckStrategy::Eager).open();
    let (c, s) = (linked.both.c, linked.both.s);
    linked.says(1, b"hello"); // with 21; the logger does not get it
    linked.server_acks(6);
    let again = segment(c + 1, s + 1).timestamps(500, 901).payload(b"hello");
    linked.both.client(again);
    // The segment is not new for the server, and the server echoes the same value as before.
    let repeats = segment(s + 1, c + 6).timestamps(903, 21);
    linked.both.server(repeats.clone());
    let echo = |out: &Out| out.segment().timestamps().expect("agreed").echo;
    let out = linked.logged(6, &[]);
    assert_eq!((told(&out).0, echo(&out)), (6, 500));
    let says = linked.both.server(repeats.payload(b"yes"));
    assert_eq!((told(&says).0, echo(&says)), (6, 500));
}

#[test]
fn words_that_come_together_are_each_heard() {
    for (v6, link_v6) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut linked = Linked::over(AckStrategy::Eager, v6, link_v6).open();
        let first = linked.both.key;
        linked.says(1, &[b'x'; 100]);
        linked.server_acks(101);
        let one = linked.word(101, &[]);
        linked.both.key = other_key(v6, 1);
        assert_eq!(linked.both.client(linked.both.syn()).verdict, Verdict::Next);
        let (open, _) = linked.answer();
        let other = Ack {
            flow: open.flow,
            ..linked.word(1, &[])
        };
        let together = [&one, &other].map(|word| word.encode(&DOWN)).concat();
        let out = linked
            .both
            .ingress(datagram(&linked.link, false, &together));
        assert_eq!(out.verdict, Verdict::Redirect);
        assert!(out.segment().flags().contains(Flags::SYN), "the last one");
        let said = linked.both.model.take_sent().expect("the one before it");
        let said = Out {
            verdict: Verdict::Redirect,
            packet: said,
        };
        assert_eq!(linked.both.counted("acks_made"), 1);
        linked.both.key = first;
        assert_eq!(said.segment().ack(), linked.both.c + 101);
        assert_eq!(linked.both.flow().server.ack, linked.both.c + 101);
    }
}

#[test]
fn what_follows_a_word_that_is_none_is_not_heard() {
    let mut linked = Linked::new(AckStrategy::Eager).open();
    linked.says(1, &[b'x'; 100]);
    linked.server_acks(101);
    let words = [
        linked.word(51, &[]),
        linked.word(71, &[]),
        linked.word(101, &[]),
    ];
    let mut together = words.map(|word| word.encode(&DOWN)).concat();
    let second = protocol::link::ACK_LEN;
    together[second + 60] ^= 1; // what it says to be stable
    let out = linked
        .both
        .ingress(datagram(&linked.link, false, &together));
    assert_eq!(told(&out).0, 51);
    assert_eq!(linked.both.counted("link_forged"), 1);
    let long = vec![linked.word(101, &[]).encode(&DOWN); protocol::link::MAX_ACKS].concat();
    let more = [long, linked.word(111, &[]).encode(&DOWN).to_vec()].concat();
    let out = linked.both.ingress(datagram(&linked.link, false, &more));
    assert_eq!(told(&out).0, 101);
    assert_eq!(linked.both.flow().log.stable, linked.both.c + 101);
}
