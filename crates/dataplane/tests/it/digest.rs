//! `digest.h`: what is said again is compared with what was said, whole or by samples, however both were cut.

use ssw::{EventKind, Mode};
use wire::SeqNumber;

use crate::harness::*;

const LENGTH: usize = 150_000;

fn said() -> Vec<u8> {
    let byte = |i: u32| i.wrapping_mul(2_654_435_761).to_be_bytes()[0];
    (0..u32::try_from(LENGTH).unwrap()).map(byte).collect()
}

/// From the first of the server's numbers on, in pieces of lengths from 1 to 3000, some of them said again.
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
        // And what is new leaves.
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

/// The socket takes what is withheld for sent, and only the hole comes again.
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
