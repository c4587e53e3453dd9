//! Bytes that a server has read, with stable determinants, need not be copied.

use std::time::{Duration, Instant};

use dataplane::{Settings, SplicePoint};
use north_abi::handover::Ends;
use south_model::{Restored, restored_flow};

use super::*;

mod exchange;

use exchange::*;

#[test]
fn read_and_answered_request_is_acknowledged_and_not_copied() {
    for (v6, link_v6) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut exchange = Exchange::settled_on(Linked::over(AckStrategy::Eager, v6, link_v6));
        for left in 1..=3 {
            assert_eq!(exchange.round(REQUEST), exchange.client);
            assert_eq!(exchange.left(), left);
        }
        assert_eq!(exchange.copies(), []);
        assert_eq!(exchange.linked.both.counted("link_acks"), 0);
        assert_eq!(exchange.linked.both.counted("acks_clamped"), 0);
        assert_eq!(exchange.linked.both.counted("mirrored"), 1);
        let at = exchange.client;
        assert_eq!(exchange.linked.logged(at, &[]).verdict, DROP, "no news");
    }
}

#[test]
fn read_cursor_is_found_at_next_segment() {
    let mut exchange = Exchange::open(Linked::new(AckStrategy::Eager));
    assert_eq!(
        exchange.round(REQUEST),
        1,
        "the request came before any read cursor"
    );
    assert_eq!(exchange.copies(), [(1, SegmentKind::Turn, None)]);
    let at = exchange.client;
    assert_eq!(exchange.round(REQUEST), exchange.client);
    assert_eq!(
        exchange.copies(),
        [noted(at, at)],
        "the first request is unknown to the logger"
    );
    exchange.assert_next_is_left_out();
}

#[test]
fn of_what_is_not_answered_one_is_left_out() {
    let mut exchange = Exchange::settled();
    let first = exchange.client;
    exchange.assert_next_is_left_out();
    let second = exchange.client;
    exchange.asks(b"and this");
    assert_eq!(exchange.copies(), [noted(second, first)]);
    // The read cursor moves, and the request is not answered.
    exchange.read_up_to(second - 2);
    let third = exchange.client;
    exchange.asks(b"and that");
    assert_eq!(exchange.copies(), [noted(third, second - 2)]);
    exchange.read_all();
    let fourth = exchange.client;
    exchange.asks(b"well?");
    assert_eq!(exchange.copies(), [noted(fourth, fourth)]);
    assert_eq!(exchange.left(), 1);
    exchange.read_all();
    assert_eq!(exchange.answers(), exchange.client);
    exchange.assert_next_is_left_out();
}

#[test]
fn an_answer_to_a_part_is_none_to_all() {
    let mut exchange = Exchange::settled();
    exchange.assert_next_is_left_out();
    exchange.read_all();
    let read_to = exchange.client;
    exchange.asks(b"more");
    assert_eq!(exchange.copies().len(), 1);
    assert_eq!(exchange.answers(), read_to);
    exchange.asks(REQUEST);
    assert_eq!(exchange.copies().len(), 1, "the client was not told of all");
}

#[test]
fn what_comes_again_is_copied() {
    let mut exchange = Exchange::settled();
    let at = exchange.client;
    let again = exchange.request(REQUEST);
    exchange.assert_next_is_left_out();
    exchange.linked.both.client(again.clone());
    assert_eq!(exchange.copies(), [noted(at, at)]);
    exchange.read_all();
    exchange.linked.both.client(again.clone());
    assert_eq!(exchange.copies(), [noted(at, at)], "below the read cursor");
    assert_eq!(exchange.answers(), exchange.client);
    assert_eq!(exchange.linked.both.client(again).verdict, Next);
    assert_eq!(exchange.copies(), [], "it was acknowledged");
    assert_eq!(exchange.left(), 1);
}

#[test]
fn what_is_no_short_request_is_copied() {
    let mut exchange = Exchange::settled();
    let at = exchange.client;
    assert_eq!(exchange.round(&[b'x'; LONGEST + 1]), exchange.client);
    assert_eq!(exchange.copies(), [noted(at, at)]);
    assert_eq!(exchange.left(), 0);
    assert_eq!(exchange.round(&[b'x'; LONGEST]), exchange.client);
    assert_eq!((exchange.copies(), exchange.left()), (vec![], 1));

    for last in [REQUEST, b""] {
        let mut exchange = Exchange::settled();
        let at = exchange.client;
        let request = exchange.request(last).flags(FIN_ACK);
        assert_eq!(exchange.linked.both.client(request).verdict, Next);
        assert_eq!(exchange.copies(), [noted(at, at)]);
        assert_eq!(exchange.left(), 0);
    }
}

#[test]
fn what_is_not_the_next_is_copied() {
    let mut exchange = Exchange::settled();
    let hole = exchange.request(b"lost");
    let at = exchange.client;
    exchange.client += 4;
    exchange.asks(b"not lost");
    assert_eq!(exchange.copies(), [noted(at + 4, at)]);
    exchange.linked.both.client(hole);
    assert_eq!(
        exchange.copies(),
        [noted(at, at)],
        "the next process, and not the newest"
    );
    assert_eq!(exchange.left(), 0);
}

#[test]
fn what_no_server_hears_is_copied() {
    let mut exchange = Exchange::settled();
    exchange.linked.both.gate();
    let at = exchange.client;
    assert_eq!(exchange.asks(REQUEST), DROP);
    assert_eq!(exchange.copies(), [noted(at, at)]);
    assert_eq!(exchange.left(), 0);
}

#[test]
fn connection_without_read_cursor_is_copied() {
    type Prepare = fn(&mut Both);
    let cases: [(Prepare, bool); 4] = [
        (|_| {}, false),
        (
            |both| both.advance_cursor(both.key, both.c + 1, both.c + 1),
            false,
        ),
        (
            |both| both.advance_cursor(other_key(false, 1), both.c, both.c + 1),
            false,
        ),
        (
            |both| both.advance_cursor(both.key, both.c, both.c + 1000),
            true,
        ),
    ];
    for (prepare, is_its) in cases {
        let mut exchange = Exchange::open(Linked::new(AckStrategy::Eager));
        prepare(&mut exchange.linked.both);
        for _ in 0..3 {
            let at = exchange.client;
            assert_eq!(exchange.asks(REQUEST), Next);
            // The logger has acknowledged all input before.
            let copy = match is_its {
                true => noted(at, at),
                false => (at, SegmentKind::Turn, None),
            };
            assert_eq!(exchange.copies(), [copy]);
            assert_eq!(exchange.answers(), at, "as much as the logger has");
            let (end, logged) = (exchange.client, exchange.linked.word(exchange.client, &[]));
            assert_eq!(told(&exchange.linked.hear(&logged)).0, end);
        }
        assert_eq!(exchange.left(), 0);
    }
}

#[test]
fn read_cursor_beyond_instream_counts_when_instream_reaches_it() {
    let mut exchange = Exchange::open(Linked::new(AckStrategy::Eager));
    exchange.read_up_to(1 + 2 * length(REQUEST));
    exchange.asks(REQUEST);
    assert_eq!(exchange.answers(), 1);
    let at = exchange.client;
    exchange.asks(REQUEST);
    let copies = exchange.copies();
    assert_eq!(copies[0], noted(1, 1), "nothing is believed");
    assert_eq!(copies[1], noted(at, at), "all before it is read");
    assert_eq!(exchange.answers(), exchange.client);
    exchange.assert_next_is_left_out();
}

#[test]
fn ack_before_read_cursor_is_withheld_and_next_segment_is_copied() {
    use AckStrategy::{Basic, Conditional, Eager, Lazy};
    for strategy in [Basic, Lazy, Eager, Conditional] {
        let mut exchange = Exchange::settled_on(Linked::new(strategy));
        exchange.assert_next_is_left_out();
        assert_eq!(exchange.says(b"").verdict, WITHHELD);
        assert_eq!(exchange.linked.both.counted("acks_withheld"), 1);
        exchange.read_all();
        assert_eq!(exchange.answers(), exchange.client);
        let at = exchange.client;
        assert_eq!(exchange.asks(REQUEST), Next);
        assert_eq!(
            exchange.copies(),
            [noted(at, at)],
            "the client may be waiting"
        );
    }
}

#[test]
fn ack_before_read_cursor_offers_window_and_acknowledges_nothing() {
    let mut exchange = Exchange::settled();
    let before = exchange.client;
    exchange.asks(&[b'x'; 1 << SERVER_SCALE]);
    assert_eq!(exchange.left(), 1);
    let out = exchange.says(b"");
    assert_eq!((out.verdict, told(&out).0), (Next, before));
    exchange.read_all();
    assert_eq!(exchange.answers(), exchange.client);
}

#[test]
fn answer_before_read_cursor_is_clamped() {
    let mut exchange = Exchange::settled();
    let before = exchange.client;
    exchange.assert_next_is_left_out();
    assert_eq!(exchange.answers(), before);
    exchange.read_all();
    let at = exchange.client;
    exchange.asks(REQUEST);
    assert_eq!(
        exchange.copies(),
        [noted(at, at)],
        "the client has no part of that answer"
    );
    assert_eq!(exchange.stable(), at);
}

#[test]
fn skipped_bytes_are_owed_until_read() {
    let mut exchange = Exchange::settled();
    let (key, c) = (exchange.linked.both.key, exchange.c());
    let cursors = exchange.linked.both.kernel.read_cursors();
    let ends = Ends::new(key.client(), key.server());
    let place = cursors.take(&ends, c.0, c.0).expect("it has one");
    assert!(!cursors.is_owed(place));
    exchange.assert_next_is_left_out();
    assert!(cursors.is_owed(place));
    exchange.read_up_to(exchange.client - 1);
    assert!(cursors.is_owed(place));
    exchange.read_all();
    assert!(!cursors.is_owed(place));
}

#[test]
fn connections_with_equal_hash_have_own_read_cursors() {
    let mut exchange = Exchange::settled();
    let (key, at) = (exchange.linked.both.key, (exchange.client, exchange.server));
    exchange.linked.both.key = other_key(true, 0);
    assert_eq!(
        key.client().port(),
        exchange.linked.both.key.client().port()
    );
    exchange.linked.both.client(exchange.linked.both.syn());
    let (open, _) = exchange.linked.answer();
    let word = Ack {
        flow: open.flow,
        ..exchange.linked.word(1, &[])
    };
    assert_eq!(exchange.linked.hear(&word).verdict, Verdict::Redirect);
    (exchange.client, exchange.server) = (1, 1);
    exchange.linked.both.client(exchange.request(b""));
    assert_eq!(exchange.copies().len(), 1);
    exchange.settle();
    exchange.assert_next_is_left_out();

    exchange.linked.both.key = key;
    (exchange.client, exchange.server) = at;
    exchange.assert_next_is_left_out();
    exchange.read_all();
    assert_eq!(exchange.answers(), exchange.client);
    exchange.linked.both.key = other_key(true, 0);
    assert_eq!(
        exchange.stable(),
        1 + length(REQUEST),
        "nothing was read of that"
    );
}

#[test]
fn read_cursor_of_earlier_incarnation_is_distrusted() {
    let mut exchange = Exchange::settled();
    let before = exchange.client;
    exchange.assert_next_is_left_out();
    exchange.read_all();
    exchange.linked.both.gate();
    exchange.linked.both.new_incarnation();
    let at = exchange.client;
    assert_eq!(exchange.asks(REQUEST), DROP);
    assert_eq!(exchange.copies(), [noted(at, before)]);
    assert_eq!(exchange.stable(), before);
}

#[test]
fn grafted_server_has_stable_reads() {
    let mut exchange = Exchange::settled();
    exchange.assert_next_is_left_out();
    exchange.linked.both.gate();
    exchange.linked.both.new_incarnation();
    exchange.graft();
    assert_eq!(exchange.stable(), exchange.client);
    assert_eq!(exchange.answers(), exchange.client);
    let at = exchange.client;
    assert_eq!(exchange.asks(REQUEST), Next);
    let copies = exchange.copies();
    assert_eq!(
        copies,
        [(at, SegmentKind::Turn, None)],
        "the connection has no read cursor yet"
    );
    exchange.read_all();
    assert_eq!(exchange.answers(), at);
    exchange.settle();
    exchange.assert_next_is_left_out();
    exchange.read_all();
    assert_eq!(exchange.answers(), exchange.client);
}

#[test]
fn spliced_server_advances_read_cursor_again() {
    let mut exchange = Exchange::settled();
    assert_eq!(exchange.round(REQUEST), exchange.client);
    exchange.linked.both.client(exchange.request(b""));
    exchange.theirs = SeqNumber(77_000);
    exchange.linked.both.splice(exchange.theirs);
    exchange.server = 1;
    let out = exchange.says(&[b'x'; 2 * ANSWER.len()]);
    assert_eq!(out.verdict, RedirectIngress, "its client has it");
    exchange.settle();
    exchange.assert_next_is_left_out();
    exchange.read_all();
    assert_eq!(exchange.answers(), exchange.client);
}

/// `snd_beyond_stable` stays until the client has retransmitted input that the dead host lacked, or
/// the server has read that input.
#[test]
fn a_client_is_not_ahead_of_a_server_that_has_read_all() {
    for (unread, ahead) in [(0, false), (1, true)] {
        let mut linked = Linked::new(AckStrategy::Eager);
        let (c, s) = (linked.both.c, linked.both.s);
        let (recorded, summary) = restored::record(linked.both.key, (c, s), FlowId(7));
        let mut flow = restored_flow(&recorded, &summary, 4096);
        flow.log.stateful = true;
        linked.both.restore(linked.both.key, &flow);
        let mut exchange = Exchange {
            linked,
            client: 111,
            server: 51,
            theirs: s,
        };
        let word = segment(c + 111, s + 51).timestamps(33, 977);
        assert_eq!(exchange.linked.both.client(word).verdict, DROP);
        let flow = exchange.linked.both.flow();
        assert_eq!(
            (flow.log.restored, flow.log.snd_beyond_stable),
            (Restored::Confirmed, true)
        );
        exchange.linked.both.new_incarnation();
        exchange.client -= unread;
        exchange.graft();
        assert_eq!(exchange.linked.both.flow().log.snd_beyond_stable, ahead);
        assert_eq!(exchange.stable(), exchange.client);
    }
}

#[test]
fn a_copy_is_made_every_32_kib_of_the_instream() {
    // A copy is also made every second: a slow machine sees some, and the count begins anew.
    const EVERY: Duration = Duration::from_secs(1);
    let mut exchange = Exchange::settled();
    let (mut end, mut copied) = (exchange.client, Instant::now() - EVERY);
    let (mut by_length, mut by_time) = (0, 0);
    while by_length < 2 {
        assert!(by_time < 100, "32 KiB take longer than a second each time");
        let at = exchange.client;
        let is_due = at - end >= INSTREAM;
        let request: &[u8] = if is_due { REQUEST } else { &[b'x'; LONGEST] };
        // Taken before the copy: the program's second is over no later than the test's.
        let asked = Instant::now();
        assert_eq!(exchange.round(request), exchange.client);
        let copies = exchange.copies();
        if copies.is_empty() {
            assert!(!is_due, "{} behind the last one", at - end);
            continue;
        }
        assert_eq!(copies, [noted(at, at)]);
        let behind = at - end;
        assert!(
            is_due || copied.elapsed() >= EVERY,
            "{behind} behind the last one"
        );
        by_length += u32::from(is_due);
        by_time += u32::from(!is_due);
        (end, copied) = (exchange.client, asked);
    }
}

#[test]
fn a_copy_is_made_when_the_client_has_heard_more() {
    const FULL: u16 = u16::MAX;
    let half = (u32::from(FULL) << CLIENT_SCALE) / 2;
    for (window, step) in [(1000, OUTSTREAM), (FULL, half)] {
        let mut exchange = Exchange::settled();
        let mut last = exchange.server - length(ANSWER);
        for _ in 0..2 {
            for (behind, copied) in [(step - 1, false), (step, true)] {
                exchange.server = last + behind - length(ANSWER);
                assert_eq!(exchange.answers(), exchange.client);
                let (request, at) = (exchange.request(REQUEST).window(window), exchange.client);
                exchange.client += length(REQUEST);
                assert_eq!(exchange.linked.both.client(request).verdict, Next);
                let wanted = copied.then_some(noted(at, at));
                assert_eq!(exchange.copies(), Vec::from_iter(wanted), "{behind}");
                exchange.read_all();
            }
            last = exchange.server;
        }
    }
}

#[test]
fn where_few_copies_are_made_none_is_left_out() {
    let tenth = Duration::from_millis(100);
    for spare in [1, 3, u32::MAX] {
        let settings = Settings {
            link: true,
            read_cursors: Some(spare),
            ..settings()
        };
        let linked = Linked::on(Both::with(&settings), AckStrategy::Eager, false, false);
        let mut exchange = Exchange::settled_on(linked);
        let begun = Instant::now();
        let mut made = 0;
        while exchange.left() == 0 && made < 100 {
            assert_eq!(exchange.round(REQUEST), exchange.client);
            made += u32::try_from(exchange.copies().len()).expect("few");
        }
        assert!(made >= spare.min(100));
        assert!(made == spare.min(100) || begun.elapsed() > tenth, "{made}");
    }
}
