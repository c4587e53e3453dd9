//! What a server has read and noted need not be copied.

use std::time::{Duration, Instant};

use dataplane::{Settings, SplicePoint};
use north_abi::handover::Ends;
use south_model::{Restored, restored_flow};

use super::*;

mod exchange;

use exchange::*;

#[test]
fn what_is_noted_and_answered_is_acknowledged_by_the_answer_and_not_copied() {
    for (v6, link_v6) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut talk = Talk::settled_on(Linked::over(AckStrategy::Eager, v6, link_v6));
        for left in 1..=3 {
            assert_eq!(talk.round(REQUEST), talk.client);
            assert_eq!(talk.left(), left);
        }
        assert_eq!(talk.copies(), []);
        assert_eq!(talk.linked.both.counted("link_acks"), 0);
        assert_eq!(talk.linked.both.counted("acks_clamped"), 0);
        assert_eq!(talk.linked.both.counted("mirrored"), 1);
        let at = talk.client;
        assert_eq!(talk.linked.logged(at, &[]).verdict, DROP, "no news");
    }
}

#[test]
fn a_note_is_found_when_the_client_speaks() {
    let mut talk = Talk::open(Linked::new(AckStrategy::Eager));
    assert_eq!(talk.round(REQUEST), 1, "none was there when it spoke");
    assert_eq!(talk.copies(), [(1, SegmentKind::Turn, None)]);
    let at = talk.client;
    assert_eq!(talk.round(REQUEST), talk.client);
    assert_eq!(
        talk.copies(),
        [noted(at, at)],
        "it was not told of the first"
    );
    talk.assert_next_is_left_out();
}

#[test]
fn of_what_is_not_answered_one_is_left_out() {
    let mut talk = Talk::settled();
    let first = talk.client;
    talk.assert_next_is_left_out();
    let second = talk.client;
    talk.asks(b"and this");
    assert_eq!(talk.copies(), [noted(second, first)]);
    // The note moves, and is not the answer.
    talk.note_up_to(second - 2);
    let third = talk.client;
    talk.asks(b"and that");
    assert_eq!(talk.copies(), [noted(third, second - 2)]);
    talk.note();
    let fourth = talk.client;
    talk.asks(b"well?");
    assert_eq!(talk.copies(), [noted(fourth, fourth)]);
    assert_eq!(talk.left(), 1);
    talk.note();
    assert_eq!(talk.answers(), talk.client);
    talk.assert_next_is_left_out();
}

#[test]
fn an_answer_to_a_part_is_none_to_all() {
    let mut talk = Talk::settled();
    talk.assert_next_is_left_out();
    talk.note();
    let noted_to = talk.client;
    talk.asks(b"more");
    assert_eq!(talk.copies().len(), 1);
    assert_eq!(talk.answers(), noted_to);
    talk.asks(REQUEST);
    assert_eq!(talk.copies().len(), 1, "the client was not told of all");
}

#[test]
fn what_comes_again_is_copied() {
    let mut talk = Talk::settled();
    let at = talk.client;
    let again = talk.request(REQUEST);
    talk.assert_next_is_left_out();
    talk.linked.both.client(again.clone());
    assert_eq!(talk.copies(), [noted(at, at)]);
    talk.note();
    talk.linked.both.client(again.clone());
    assert_eq!(talk.copies(), [noted(at, at)], "below the note");
    assert_eq!(talk.answers(), talk.client);
    assert_eq!(talk.linked.both.client(again).verdict, Next);
    assert_eq!(talk.copies(), [], "it was acknowledged");
    assert_eq!(talk.left(), 1);
}

#[test]
fn what_is_no_short_request_is_copied() {
    let mut talk = Talk::settled();
    let at = talk.client;
    assert_eq!(talk.round(&[b'x'; LONGEST + 1]), talk.client);
    assert_eq!(talk.copies(), [noted(at, at)]);
    assert_eq!(talk.left(), 0);
    assert_eq!(talk.round(&[b'x'; LONGEST]), talk.client);
    assert_eq!((talk.copies(), talk.left()), (vec![], 1));

    for last in [REQUEST, b""] {
        let mut talk = Talk::settled();
        let at = talk.client;
        let request = talk.request(last).flags(FIN_ACK);
        assert_eq!(talk.linked.both.client(request).verdict, Next);
        assert_eq!(talk.copies(), [noted(at, at)]);
        assert_eq!(talk.left(), 0);
    }
}

#[test]
fn what_is_not_the_next_is_copied() {
    let mut talk = Talk::settled();
    let hole = talk.request(b"lost");
    let at = talk.client;
    talk.client += 4;
    talk.asks(b"not lost");
    assert_eq!(talk.copies(), [noted(at + 4, at)]);
    talk.linked.both.client(hole);
    assert_eq!(
        talk.copies(),
        [noted(at, at)],
        "it is the next, and not the newest"
    );
    assert_eq!(talk.left(), 0);
}

#[test]
fn what_no_server_hears_is_copied() {
    let mut talk = Talk::settled();
    talk.linked.both.gate();
    let at = talk.client;
    assert_eq!(talk.asks(REQUEST), DROP);
    assert_eq!(talk.copies(), [noted(at, at)]);
    assert_eq!(talk.left(), 0);
}

#[test]
fn without_a_note_of_its_own_all_is_as_before() {
    type Prepare = fn(&mut Both);
    let cases: [(Prepare, bool); 4] = [
        (|_| {}, false),
        (|both| both.note(both.key, both.c + 1, both.c + 1), false),
        (
            |both| both.note(other_key(false, 1), both.c, both.c + 1),
            false,
        ),
        (|both| both.note(both.key, both.c, both.c + 1000), true),
    ];
    for (prepare, is_its) in cases {
        let mut talk = Talk::open(Linked::new(AckStrategy::Eager));
        prepare(&mut talk.linked.both);
        for _ in 0..3 {
            let at = talk.client;
            assert_eq!(talk.asks(REQUEST), Next);
            // All before it the logger has, as it has said itself.
            let copy = match is_its {
                true => noted(at, at),
                false => (at, SegmentKind::Turn, None),
            };
            assert_eq!(talk.copies(), [copy]);
            assert_eq!(talk.answers(), at, "as much as the logger has");
            let (end, logged) = (talk.client, talk.linked.word(talk.client, &[]));
            assert_eq!(told(&talk.linked.hear(&logged)).0, end);
        }
        assert_eq!(talk.left(), 0);
    }
}

#[test]
fn a_note_beyond_what_was_said_is_believed_when_so_much_is_said() {
    let mut talk = Talk::open(Linked::new(AckStrategy::Eager));
    talk.note_up_to(1 + 2 * length(REQUEST));
    talk.asks(REQUEST);
    assert_eq!(talk.answers(), 1);
    let at = talk.client;
    talk.asks(REQUEST);
    let copies = talk.copies();
    assert_eq!(copies[0], noted(1, 1), "nothing is believed");
    assert_eq!(copies[1], noted(at, at), "all before it is noted");
    assert_eq!(talk.answers(), talk.client);
    talk.assert_next_is_left_out();
}

#[test]
fn an_ack_before_the_note_says_nothing_and_has_what_follows_copied() {
    use AckStrategy::{Basic, Conditional, Eager, Lazy};
    for strategy in [Basic, Lazy, Eager, Conditional] {
        let mut talk = Talk::settled_on(Linked::new(strategy));
        talk.assert_next_is_left_out();
        assert_eq!(talk.says(b"").verdict, WITHHELD);
        assert_eq!(talk.linked.both.counted("acks_withheld"), 1);
        talk.note();
        assert_eq!(talk.answers(), talk.client);
        let at = talk.client;
        assert_eq!(talk.asks(REQUEST), Next);
        assert_eq!(talk.copies(), [noted(at, at)], "its client may be waiting");
    }
}

#[test]
fn an_ack_before_the_note_offers_room_and_acknowledges_nothing() {
    let mut talk = Talk::settled();
    let before = talk.client;
    talk.asks(&[b'x'; 1 << SERVER_SCALE]);
    assert_eq!(talk.left(), 1);
    let out = talk.says(b"");
    assert_eq!((out.verdict, told(&out).0), (Next, before));
    talk.note();
    assert_eq!(talk.answers(), talk.client);
}

#[test]
fn an_answer_before_the_note_is_clamped() {
    let mut talk = Talk::settled();
    let before = talk.client;
    talk.assert_next_is_left_out();
    assert_eq!(talk.answers(), before);
    talk.note();
    let at = talk.client;
    talk.asks(REQUEST);
    assert_eq!(
        talk.copies(),
        [noted(at, at)],
        "its client knows nothing of that"
    );
    assert_eq!(talk.stable(), at);
}

#[test]
fn what_was_left_out_is_owed_until_it_is_noted() {
    let mut talk = Talk::settled();
    let (key, c) = (talk.linked.both.key, talk.c());
    let notes = talk.linked.both.kernel.noted();
    let ends = Ends::new(key.client(), key.server());
    let place = notes.take(&ends, c.0, c.0).expect("it has one");
    assert!(!notes.is_owed(place));
    talk.assert_next_is_left_out();
    assert!(notes.is_owed(place));
    talk.note_up_to(talk.client - 1);
    assert!(notes.is_owed(place));
    talk.note();
    assert!(!notes.is_owed(place));
}

#[test]
fn connections_whose_notes_would_be_at_one_place_have_their_own() {
    let mut talk = Talk::settled();
    let (key, at) = (talk.linked.both.key, (talk.client, talk.server));
    talk.linked.both.key = other_key(true, 0);
    assert_eq!(key.client().port(), talk.linked.both.key.client().port());
    talk.linked.both.client(talk.linked.both.syn());
    let (open, _) = talk.linked.answer();
    let word = Ack {
        flow: open.flow,
        ..talk.linked.word(1, &[])
    };
    assert_eq!(talk.linked.hear(&word).verdict, Verdict::Redirect);
    (talk.client, talk.server) = (1, 1);
    talk.linked.both.client(talk.request(b""));
    assert_eq!(talk.copies().len(), 1);
    talk.settle();
    talk.assert_next_is_left_out();

    talk.linked.both.key = key;
    (talk.client, talk.server) = at;
    talk.assert_next_is_left_out();
    talk.note();
    assert_eq!(talk.answers(), talk.client);
    talk.linked.both.key = other_key(true, 0);
    assert_eq!(
        talk.stable(),
        1 + length(REQUEST),
        "nothing was noted of that"
    );
}

#[test]
fn what_an_earlier_life_has_noted_is_not_believed() {
    let mut talk = Talk::settled();
    let before = talk.client;
    talk.assert_next_is_left_out();
    talk.note();
    talk.linked.both.gate();
    talk.linked.both.new_incarnation();
    let at = talk.client;
    assert_eq!(talk.asks(REQUEST), DROP);
    assert_eq!(talk.copies(), [noted(at, before)]);
    assert_eq!(talk.stable(), before);
}

#[test]
fn a_grafted_server_has_noted_what_it_has_read() {
    let mut talk = Talk::settled();
    talk.assert_next_is_left_out();
    talk.linked.both.gate();
    talk.linked.both.new_incarnation();
    talk.graft();
    assert_eq!(talk.stable(), talk.client);
    assert_eq!(talk.answers(), talk.client);
    let at = talk.client;
    assert_eq!(talk.asks(REQUEST), Next);
    let copies = talk.copies();
    assert_eq!(
        copies,
        [(at, SegmentKind::Turn, None)],
        "it has no note yet"
    );
    talk.note();
    assert_eq!(talk.answers(), at);
    talk.settle();
    talk.assert_next_is_left_out();
    talk.note();
    assert_eq!(talk.answers(), talk.client);
}

#[test]
fn a_spliced_server_notes_what_it_has_read_again() {
    let mut talk = Talk::settled();
    assert_eq!(talk.round(REQUEST), talk.client);
    talk.linked.both.client(talk.request(b""));
    talk.theirs = SeqNumber(77_000);
    talk.linked.both.splice(talk.theirs);
    talk.server = 1;
    let out = talk.says(&[b'x'; 2 * ANSWER.len()]);
    assert_eq!(out.verdict, RedirectIngress, "its client has it");
    talk.settle();
    talk.assert_next_is_left_out();
    talk.note();
    assert_eq!(talk.answers(), talk.client);
}

/// It is known of it until it has sent again what the dead host did not hear, or that was noted.
#[test]
fn a_client_is_not_ahead_of_a_server_that_has_read_all() {
    for (unread, ahead) in [(0, false), (1, true)] {
        let mut linked = Linked::new(AckStrategy::Eager);
        let (c, s) = (linked.both.c, linked.both.s);
        let (recorded, summary) = restored::record(linked.both.key, (c, s), FlowId(7));
        let mut flow = restored_flow(&recorded, &summary, 4096);
        flow.log.stateful = true;
        linked.both.restore(linked.both.key, &flow);
        let mut talk = Talk {
            linked,
            client: 111,
            server: 51,
            theirs: s,
        };
        let word = segment(c + 111, s + 51).timestamps(33, 977);
        assert_eq!(talk.linked.both.client(word).verdict, DROP);
        let flow = talk.linked.both.flow();
        assert_eq!(
            (flow.log.restored, flow.log.snd_beyond_stable),
            (Restored::Confirmed, true)
        );
        talk.linked.both.new_incarnation();
        talk.client -= unread;
        talk.graft();
        assert_eq!(talk.linked.both.flow().log.snd_beyond_stable, ahead);
        assert_eq!(talk.stable(), talk.client);
    }
}

#[test]
fn a_copy_is_made_every_32_kib_of_the_instream() {
    // A copy is also made every second: a slow machine sees some, and the count begins anew.
    const EVERY: Duration = Duration::from_secs(1);
    let mut talk = Talk::settled();
    let (mut end, mut copied) = (talk.client, Instant::now() - EVERY);
    let (mut by_length, mut by_time) = (0, 0);
    while by_length < 2 {
        assert!(by_time < 100, "32 KiB take longer than a second each time");
        let at = talk.client;
        let is_due = at - end >= INSTREAM;
        let request: &[u8] = if is_due { REQUEST } else { &[b'x'; LONGEST] };
        // Taken before the copy: the program's second is over no later than the test's.
        let asked = Instant::now();
        assert_eq!(talk.round(request), talk.client);
        let copies = talk.copies();
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
        (end, copied) = (talk.client, asked);
    }
}

#[test]
fn a_copy_is_made_when_the_client_has_heard_more() {
    const FULL: u16 = u16::MAX;
    let half = (u32::from(FULL) << CLIENT_SCALE) / 2;
    for (window, step) in [(1000, OUTSTREAM), (FULL, half)] {
        let mut talk = Talk::settled();
        let mut last = talk.server - length(ANSWER);
        for _ in 0..2 {
            for (behind, copied) in [(step - 1, false), (step, true)] {
                talk.server = last + behind - length(ANSWER);
                assert_eq!(talk.answers(), talk.client);
                let (request, at) = (talk.request(REQUEST).window(window), talk.client);
                talk.client += length(REQUEST);
                assert_eq!(talk.linked.both.client(request).verdict, Next);
                let wanted = copied.then_some(noted(at, at));
                assert_eq!(talk.copies(), Vec::from_iter(wanted), "{behind}");
                talk.note();
            }
            last = talk.server;
        }
    }
}

#[test]
fn where_few_copies_are_made_none_is_left_out() {
    let tenth = Duration::from_millis(100);
    for spare in [1, 3, u32::MAX] {
        let settings = Settings {
            link: true,
            notes: Some(spare),
            ..settings()
        };
        let linked = Linked::on(Both::with(&settings), AckStrategy::Eager, false, false);
        let mut talk = Talk::settled_on(linked);
        let begun = Instant::now();
        let mut made = 0;
        while talk.left() == 0 && made < 100 {
            assert_eq!(talk.round(REQUEST), talk.client);
            made += u32::try_from(talk.copies().len()).expect("few");
        }
        assert!(made >= spare.min(100));
        assert!(made == spare.min(100) || begun.elapsed() > tenth, "{made}");
    }
}
