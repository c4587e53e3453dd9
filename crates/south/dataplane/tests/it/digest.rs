//! `digest.h`: repeated output is compared with the former output, whole or by samples, for any
//! segmentation of both.

use protocol::mirror::FrameKind;
use south_model::{Digest, EventKind, Mode};
use wire::SeqNumber;

use crate::harness::*;

const LENGTH: usize = 150_000;

fn said() -> Vec<u8> {
    let byte = |i: u32| i.wrapping_mul(2_654_435_761).to_be_bytes()[0];
    (0..u32::try_from(LENGTH).unwrap()).map(byte).collect()
}

/// Output from the server's first number on, in pieces of 1 to 3000 bytes, with some
/// retransmissions.
fn say(both: &mut Both, first: SeqNumber, bytes: &[u8], seed: usize) {
    let (mut from, mut turn) = (0, seed);
    while from < bytes.len() && both.flow().mode != Mode::Diverged {
        turn = (turn * 7919 + 13) % 104_729;
        let back = if turn.is_multiple_of(5) {
            turn % 1000
        } else {
            0
        };
        let begin = from.saturating_sub(back);
        let end = bytes
            .len()
            .min(from + 1 + turn % 3000)
            .min(begin + 3000)
            .max(from);
        let seq = first + u32::try_from(begin).unwrap();
        let spec = segment(seq, both.c + 1).timestamps(901, 11);
        both.server(spec.payload(&bytes[begin..end]));
        from = end;
    }
}

fn everywhere(test: impl Fn(Both, bool)) {
    for rate in [u32::MAX, 0] {
        for (c, s) in [(1000, 5000), (u32::MAX - 3, u32::MAX - 70_001)] {
            let mut both = Both::on(Leased::digesting(rate), &digesting_settings(rate));
            (both.c, both.s) = (SeqNumber(c), SeqNumber(s));
            let mut both = both.open();
            let (first, end) = (both.s + 1, both.s + 1 + u32::try_from(LENGTH).unwrap());
            say(&mut both, first, &said(), 1);
            both.client(segment(both.c + 1, end).timestamps(12, 901));
            test(both, rate == 0);
        }
    }
}

#[test]
fn what_is_said_again_goes_on() {
    everywhere(|mut both, sampled| {
        let sent = both.flow().digest.now;
        assert_eq!(both.flow().digest.sampled_from.is_some(), sampled);
        let mut later = SeqNumber(0);
        for (seed, number) in [(2, 7000), (3, u32::MAX - 20_000)] {
            later = SeqNumber(number);
            both.splice(later);
            say(&mut both, later + 1, &said(), seed);
            assert_eq!(both.flow().mode, Mode::Spliced);
            assert_eq!(both.flow().digest.now, sent);
        }
        // And new output leaves.
        let end = later + 1 + u32::try_from(LENGTH).unwrap();
        let out = both.server(segment(end, both.c + 1).timestamps(902, 11).payload(b"x"));
        assert_eq!((out.verdict, out.segment().seq()), (Next, sent.next));
        assert_eq!(both.flow().digest.now.next, sent.next + 1);
        assert_eq!(both.counted("sampled"), u64::from(sampled));
    });
}

#[test]
fn what_differs_is_found_before_anything_new_leaves() {
    everywhere(|mut both, _| {
        let mut other = said();
        other.insert(4321, 0);
        let later = SeqNumber(7000);
        both.splice(later);
        both.events();
        say(&mut both, later + 1, &other, 4);
        assert_eq!(both.flow().mode, Mode::Diverged);
        assert!(both.flow().verify.by_digest);
        let at = both.flow().verify.diverged_at;
        assert!(!at.after(both.s + 1 + u32::try_from(LENGTH).unwrap()));
        let events = both.events();
        assert!(
            matches!(events[..], [EventKind::Diverged { at: told, .. }] if told == at),
            "{events:?}"
        );
    });
}

/// The socket takes withheld segments for sent, and retransmits only the gap.
#[test]
fn what_the_fence_keeps_is_digested_and_a_hole_that_stays_ends_the_digest() {
    everywhere(|mut both, _| {
        let end = both.flow().digest.now.next;
        let say = |both: &mut Both, from: u32| {
            let spec = segment(end + from, both.c + 1).timestamps(902, 11);
            both.server(spec.payload(&[7; 1000])).verdict
        };
        both.lease(Some(false));
        assert_eq!(say(&mut both, 0), WITHHELD);
        both.lease(Some(true));
        for from in [1000, 0, 2000] {
            assert_eq!(say(&mut both, from), Next);
        }
        assert_eq!(both.flow().digest.now.next, end + 3000);
        for (far, taken) in [(3000 + (1 << 30), true), (3001 + (1 << 30), false)] {
            assert_eq!(say(&mut both, far), Next);
            assert_eq!(both.flow().digest.taken, taken);
        }
    });
}

/// Two responses, the second to a request after `first` bytes; the client has received both.
fn asks_twice(both: &mut Both, first: usize) {
    let (begin, length) = (both.s + 1, |bytes| u32::try_from(bytes).unwrap());
    say(both, begin, &said()[..first], 1);
    let ask = segment(both.c + 1, begin + length(first)).timestamps(12, 901);
    both.client(ask.payload(b"more"));
    let (bytes, asked) = (said(), both.c + 5);
    let answer = |seq| segment(seq, asked).timestamps(901, 12);
    let (one, two) = bytes[first..first + 4000].split_at(1500);
    both.server(answer(begin + length(first)).payload(one));
    both.server(answer(begin + length(first + 1500)).payload(two));
    let heard = begin + length(first + 4000);
    both.client(segment(both.c + 5, heard).timestamps(13, 901));
}

fn told(both: &mut Both) -> Vec<Digest> {
    let frames = both.frames();
    let digests = frames
        .iter()
        .filter(|frame| frame.kind == FrameKind::Digest);
    let read =
        |frame: &RingFrame| Digest::from_bytes(frame.packet[..].try_into().expect("a digest"));
    digests.map(read).collect()
}

/// A response that is recorded as a whole needs no digest.
#[test]
fn the_logger_is_told_what_lies_before_a_request_if_not_all_is_recorded() {
    for (rate, first, is_told) in [
        (u32::MAX, 10_000, true),
        (u32::MAX, 4097, true),
        (u32::MAX, 4096, false),
        (0, 100_000, false),
    ] {
        let mut both = Both::on(Leased::digesting(rate), &digesting_settings(rate));
        (both.c, both.s) = (SeqNumber(1000), SeqNumber(5000));
        let mut both = both.open();
        asks_twice(&mut both, first);
        let turn = both.flow().digest.turn;
        assert_eq!(turn.next, both.s + 1 + u32::try_from(first).unwrap());
        let wanted = if is_told { vec![turn] } else { Vec::new() };
        assert_eq!(told(&mut both), wanted, "{first} bytes, at the rate {rate}");
    }
}

/// Before the response to the waiting request, and although the client has acknowledged more.
#[test]
fn what_lies_before_a_request_is_compared_there() {
    let at = [None, Some(3), Some(9999), Some(10_001)];
    for (spoilt, early) in at
        .iter()
        .flat_map(|spoilt| [(*spoilt, true), (*spoilt, false)])
    {
        let mut both = Both::on(Leased::digesting(u32::MAX), &digesting_settings(u32::MAX));
        (both.c, both.s) = (SeqNumber(1000), SeqNumber(u32::MAX - 7000));
        let mut both = both.open();
        asks_twice(&mut both, 10_000);
        let turn = told(&mut both)[0];
        let later = SeqNumber(7000);
        both.splice(later);
        let key = both.key;
        if early {
            assert!(both.want(key, turn));
            assert_eq!(both.flow().digest.wanted, Some(turn));
        }
        let mut bytes = said()[..14_000].to_vec();
        if let Some(at) = spoilt {
            bytes[at] ^= 1;
        }
        say(&mut both, later + 1, &bytes[..10_000], 2);
        if !early {
            // The server has sent as much by then: the comparison finds equal output.
            assert!(both.want(key, turn));
            let differs = spoilt.is_some_and(|at| at < 10_000);
            assert_eq!(both.flow().digest.wanted, differs.then_some(turn));
        }
        let is_found = both.flow().mode == Mode::Diverged;
        assert_eq!(is_found, early && spoilt.is_some_and(|at| at < 10_000));
        let next = later + 10_001;
        both.server(
            segment(next, both.c + 1)
                .timestamps(901, 11)
                .payload(&bytes[10_000..10_001]),
        );
        let is_found = both.flow().mode == Mode::Diverged;
        assert_eq!(is_found, spoilt.is_some_and(|at| at < 10_000), "{spoilt:?}");
        assert!(is_found || both.flow().digest.wanted.is_none());
        if is_found {
            assert_eq!(both.flow().verify.diverged_at, turn.next);
        }
    }
}

#[test]
fn what_cannot_be_compared_is_not_waited_for() {
    let mut both = Both::on(Leased::digesting(u32::MAX), &digesting_settings(u32::MAX));
    (both.c, both.s) = (SeqNumber(1000), SeqNumber(5000));
    let mut both = both.open();
    asks_twice(&mut both, 10_000);
    let (key, turn) = (both.key, told(&mut both)[0]);
    both.want(key, turn);
    assert_eq!(both.flow().digest.wanted, None, "it says nothing again");
    let later = SeqNumber(7000);
    both.splice(later);
    for (base, next) in [(1, 0), (0, 4001)] {
        let other = Digest {
            base: turn.base + base,
            next: turn.next + next,
            ..turn
        };
        both.want(key, turn);
        both.want(key, other);
        assert_eq!(both.flow().digest.wanted, None, "{other:?}");
    }
    say(&mut both, later + 1, &said()[..10_001], 2);
    both.want(key, turn);
    assert_eq!(both.flow().digest.wanted, None, "it has said more");
}

/// The logger knows an earlier request than the programs, which have sampled a later request. The
/// server dies once more in that replay.
#[test]
fn an_earlier_turn_than_the_last_is_not_sampled_because_the_last_was() {
    let mut both = Both::on(Leased::digesting(0), &digesting_settings(0));
    (both.c, both.s) = (SeqNumber(1000), SeqNumber(5000));
    let mut both = both.open();
    asks_twice(&mut both, 100_000);
    assert!(both.flow().digest.is_turn_sampled);
    let (key, c, turn) = (both.key, both.c, both.s + 1001);
    for later in [7000, 200_000].map(SeqNumber) {
        both.new_incarnation();
        let point = dataplane::SplicePoint {
            instream: c,
            outstream: turn,
            verify_end: turn,
        };
        assert!(both.splice_at(key, point));
        both.server(both.second_syn_ack(later));
        say(&mut both, later + 1, &said()[1000..4000], 2);
        assert_eq!(both.flow().mode, Mode::Spliced);
    }
    assert_eq!(both.flow().digest.comparison, south_model::Comparison::Done);
}
