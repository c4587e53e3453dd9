use proptest::prelude::*;

use super::*;
use crate::{
    DEFAULT_FIELDS, MARK_SERVER_SPACE, Settings, Verdict, expectations, south::EventKind,
    testing::*,
};
use protocol::mirror::FrameKind;

const WHOLE: u32 = u32::MAX;
const SAMPLES: u32 = 0;

fn digests(rate: u32) -> Digests {
    let mut state = 7_u64;
    let random = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        state ^ (state >> 32)
    };
    Digests {
        key: DigestKey::of(random),
        rate,
    }
}

fn lab(rate: u32, s: u32) -> Lab {
    let settings = Settings {
        digests: Some(digests(rate)),
        ..settings()
    };
    Lab::with(settings, 1000, s, false).open()
}

/// The answer of the first server.
fn said(len: usize) -> Vec<u8> {
    let byte = |i: u32| i.wrapping_mul(2_654_435_761).to_be_bytes()[0];
    (0..length32(len)).map(byte).collect()
}

/// The server sends this piece of the outstream, from the first number on.
fn say(lab: &mut Lab, first: SeqNumber, bytes: &[u8], from: usize, len: usize) -> Out {
    let ack = lab.c + 1;
    let piece = &bytes[from..bytes.len().min(from + len)];
    lab.server(
        segment(first + length32(from), ack)
            .timestamps(901, 11)
            .payload(piece),
    )
}

fn say_all(lab: &mut Lab, first: SeqNumber, bytes: &[u8], step: usize) {
    for from in (0..bytes.len()).step_by(step) {
        say(lab, first, bytes, from, step);
    }
}

fn hears(lab: &mut Lab, len: usize) {
    let (seq, ack) = (lab.c + 1, lab.s + 1 + length32(len));
    lab.client(segment(seq, ack).timestamps(12, 901));
}

/// Where the next server's own numbers begin.
const LATER: SeqNumber = SeqNumber(7000);

fn dies(lab: &mut Lab) {
    lab.crash();
    lab.splice(LATER);
}

fn diverged(lab: &mut Lab) -> Option<SeqNumber> {
    lab.events().iter().find_map(|event| match event.kind {
        EventKind::Diverged { at, .. } => Some(at),
        _ => None,
    })
}

proptest! {
    /// Any segmentation, and any retransmission.
    #[test]
    fn cuts_and_repetitions_change_nothing(
        s: u32,
        len in 1_usize..100_000,
        cuts in proptest::collection::vec((1_usize..5000, 0_usize..3000), 1..40),
        rate in prop::sample::select(vec![WHOLE, SAMPLES]),
    ) {
        let bytes = said(len);
        let (mut one, mut other) = (lab(rate, s), lab(rate, s));
        let first = one.s + 1;
        say_all(&mut one, first, &bytes, 1448);
        let mut from = 0;
        for (len, back) in cuts.into_iter().cycle() {
            if from >= bytes.len() {
                break;
            }
            let begin = from.saturating_sub(back);
            say(&mut other, first, &bytes, begin, from - begin + len);
            from += len;
        }
        prop_assert_eq!(one.flow().digest.now, other.flow().digest.now);
        prop_assert_eq!(one.flow().digest.now.next, first + length32(len));
    }

    /// One byte that differs, in output that was digested as a whole.
    #[test]
    fn any_other_byte_is_found(s: u32, len in 1_usize..30_000, at: prop::sample::Index, flip in 1_u8..) {
        let mut bytes = said(len);
        let mut lab = lab(WHOLE, s);
        let first = lab.s + 1;
        say_all(&mut lab, first, &bytes, 1448);
        hears(&mut lab, len);
        dies(&mut lab);
        bytes[at.index(len)] ^= flip;
        bytes.push(0);
        say_all(&mut lab, LATER + 1, &bytes, 1448);
        prop_assert_eq!(lab.flow().mode, Mode::Diverged);
        prop_assert!(lab.flow().verify.by_digest);
        prop_assert!(diverged(&mut lab).is_some());
    }

    /// A byte too many, which moves all that follows, where only samples are taken.
    #[test]
    fn samples_find_what_is_moved(s: u32, at in 0_usize..100_000) {
        let mut bytes = said(200_000);
        let mut lab = lab(SAMPLES, s);
        let first = lab.s + 1;
        say_all(&mut lab, first, &bytes, 30_000);
        hears(&mut lab, bytes.len());
        dies(&mut lab);
        bytes.insert(at, bytes[at] ^ 1);
        say_all(&mut lab, LATER + 1, &bytes, 30_000);
        prop_assert_eq!(lab.flow().mode, Mode::Diverged);
    }
}

#[test]
fn the_same_again_goes_on() {
    for rate in [WHOLE, SAMPLES] {
        for s in [5000, u32::MAX - 70_000] {
            let mut lab = lab(rate, s);
            let bytes = said(150_000);
            let first = lab.s + 1;
            say_all(&mut lab, first, &bytes[..100_000], 1448);
            hears(&mut lab, 100_000);
            let sent = lab.flow().digest.now;
            for _ in 0..2 {
                dies(&mut lab);
                assert!(lab.flow().digest.is_repeating());
                say_all(&mut lab, LATER + 1, &bytes[..100_000], 999);
                assert_eq!(lab.flow().digest.now, sent);
                assert!(!lab.flow().digest.is_repeating());
            }
            let out = say(&mut lab, LATER + 1, &bytes, 100_000, 1000);
            assert_eq!(
                (out.verdict, out.segment().seq()),
                (Verdict::Next, first + 100_000)
            );
            assert_eq!(lab.flow().digest.sampled_from.is_some(), rate == SAMPLES);
            assert_eq!(lab.south.counters().sampled, u64::from(rate == SAMPLES));
        }
    }
}

/// Output that the client has not acknowledged waits until the server has repeated the whole
/// outstream.
#[test]
fn what_the_client_lacks_waits_for_the_end() {
    let mut lab = lab(WHOLE, 5000);
    let bytes = said(20_000);
    let first = lab.s + 1;
    say_all(&mut lab, first, &bytes[..10_000], 1000);
    hears(&mut lab, 4500);
    dies(&mut lab);
    for from in (0..4000).step_by(1000) {
        let out = say(&mut lab, LATER + 1, &bytes, from, 1000);
        assert_eq!(
            out.packet.mark,
            MARK + MARK_SERVER_SPACE,
            "the client has that"
        );
    }
    // The part that the client has is acknowledged, the rest is lost.
    let out = say(&mut lab, LATER + 1, &bytes, 4000, 1000);
    assert_eq!(
        (out.verdict, out.segment().ack()),
        (Verdict::RedirectIngress, LATER + 4501)
    );
    for from in (5000..9000).step_by(1000) {
        let out = say(&mut lab, LATER + 1, &bytes, from, 1000);
        assert_eq!(out.verdict, Verdict::Withheld);
    }
    assert_eq!(lab.south.counters().replay_held, 5);
    let out = say(&mut lab, LATER + 1, &bytes, 9000, 1000);
    assert_eq!(out.verdict, Verdict::Next, "all is said again");
    let out = say(&mut lab, LATER + 1, &bytes, 4500, 1000);
    assert_eq!(
        (out.verdict, out.segment().seq()),
        (Verdict::Next, first + 4500)
    );
}

#[test]
fn of_another_end_nothing_leaves() {
    let mut lab = lab(WHOLE, 5000);
    let mut bytes = said(20_000);
    let first = lab.s + 1;
    say_all(&mut lab, first, &bytes[..10_000], 1000);
    hears(&mut lab, 4500);
    dies(&mut lab);
    bytes[9_500] ^= 1;
    for from in (0..9000).step_by(1000) {
        let out = say(&mut lab, LATER + 1, &bytes, from, 1000);
        assert_ne!(out.verdict, Verdict::Next);
    }
    let out = say(&mut lab, LATER + 1, &bytes, 9000, 1000);
    assert_eq!(
        (out.verdict, lab.flow().mode),
        (Verdict::Drop, Mode::Diverged)
    );
    assert_eq!(diverged(&mut lab), Some(first + 10_000));
}

/// A server that cannot send more without an ACK: the comparison covers the output that the client
/// has acknowledged.
#[test]
fn a_server_that_repeats_what_waits_is_let_go_on() {
    let mut lab = lab(WHOLE, 5000);
    let bytes = said(20_000);
    let first = lab.s + 1;
    say_all(&mut lab, first, &bytes[..10_000], 1000);
    hears(&mut lab, 4000);
    dies(&mut lab);
    say_all(&mut lab, LATER + 1, &bytes[..6000], 1000);
    assert_eq!(
        say(&mut lab, LATER + 1, &bytes, 4000, 1000).verdict,
        Verdict::Withheld
    );
    let out = say(&mut lab, LATER + 1, &bytes, 4000, 1000);
    assert_eq!(
        (out.verdict, out.segment().seq()),
        (Verdict::Next, first + 4000)
    );
    assert!(lab.flow().digest.is_repeating());
    // The rest is compared later.
    let mut other = bytes.clone();
    other[9000] ^= 1;
    say_all(&mut lab, LATER + 1, &other[..10_000], 1000);
    assert_eq!(lab.flow().mode, Mode::Diverged);
}

#[test]
fn what_differs_before_the_client_s_place_is_found_there() {
    let mut lab = lab(WHOLE, 5000);
    let mut bytes = said(10_000);
    let first = lab.s + 1;
    say_all(&mut lab, first, &bytes[..4000], 1000);
    hears(&mut lab, 4000);
    say_all(&mut lab, first, &bytes[..8000], 1000);
    dies(&mut lab);
    bytes[10] ^= 1;
    say_all(&mut lab, LATER + 1, &bytes[..4000], 1000);
    assert_eq!(lab.flow().mode, Mode::Spliced);
    assert_eq!(
        say(&mut lab, LATER + 1, &bytes, 4000, 1000).verdict,
        Verdict::Drop
    );
    assert_eq!(diverged(&mut lab), Some(first + 4000));
}

/// The `Date` of a recorded head may differ; the digest covers the client's outstream.
#[test]
fn recorded_bytes_take_the_place_of_others() {
    for (tolerated, mode) in [(true, Mode::Spliced), (false, Mode::Diverged)] {
        let mut lab = lab(WHOLE, 5000);
        let answer = |date: &str| {
            let head = format!("HTTP/1.1 200 OK\r\nDate: {date}\r\nContent-Length: 3000\r\n\r\n");
            [head.as_bytes(), &said(3000)].concat()
        };
        let first = lab.s + 1;
        let bytes = answer("Mon");
        say_all(&mut lab, first, &bytes, 1000);
        hears(&mut lab, bytes.len());
        lab.crash();
        if tolerated {
            let record = [(first, bytes[..700].to_vec())];
            let chunks = expectations(&record, &[], DEFAULT_FIELDS);
            let chunks: Vec<_> = chunks.into_iter().collect();
            lab.south.expect(FlowId(1), chunks);
        }
        lab.splice_and_verify(LATER, first + 700);
        say_all(&mut lab, LATER + 1, &answer("Tue"), 1000);
        assert_eq!(lab.flow().mode, mode);
    }
}

#[test]
fn an_end_before_all_is_said_again_is_another_one() {
    let mut lab = lab(WHOLE, 5000);
    let bytes = said(5000);
    let first = lab.s + 1;
    say_all(&mut lab, first, &bytes, 1000);
    hears(&mut lab, 5000);
    dies(&mut lab);
    let fin = segment(LATER + 4001, lab.c + 1)
        .timestamps(80, 11)
        .flags(FIN_ACK);
    say_all(&mut lab, LATER + 1, &bytes[..4000], 1000);
    assert_eq!(lab.server(fin).verdict, Verdict::Drop);
    assert!(lab.flow().verify.ended_early);
}

/// A replay from the beginning of the last turn.
#[test]
fn a_turn_is_compared_from_its_beginning() {
    for spoilt in [false, true] {
        let mut lab = lab(WHOLE, 5000);
        let bytes = said(9000);
        let first = lab.s + 1;
        say_all(&mut lab, first, &bytes[..3000], 1000);
        // The next question, when all is heard.
        let ask = segment(lab.c + 1, first + 3000)
            .timestamps(12, 901)
            .payload(b"more");
        lab.client(ask);
        for from in (3000..9000).step_by(1000) {
            say(&mut lab, first, &bytes, from, 1000);
        }
        lab.client(segment(lab.c + 5, first + 9000).timestamps(13, 901));
        lab.crash();
        lab.south.new_incarnation();
        let (key, c) = (lab.key, lab.c);
        let splice = lab
            .south
            .splice(key, FlowId(1), c, first + 3000, first + 3000, lab.now);
        splice.unwrap();
        let options = syn_options(70, 11, LATER_SCALE);
        lab.server(segment(LATER, lab.c + 1).flags(SYN_ACK).options(&options));
        assert!(lab.flow().digest.is_repeating());
        let mut again = bytes[3000..].to_vec();
        again[5000] ^= u8::from(spoilt);
        say_all(&mut lab, LATER + 1, &again, 700);
        assert_eq!(lab.flow().mode == Mode::Diverged, spoilt);
        assert_eq!(lab.flow().digest.is_repeating(), spoilt);
    }
}

/// For a connection that another host has served, earlier output is unknown.
#[test]
fn a_connection_of_another_host_is_digested_from_its_replay_on() {
    let mut lab = lab(WHOLE, 5000);
    lab.south.restore(
        lab.key,
        Flow {
            digest: DigestHalf::default(),
            ..lab.flow().clone()
        },
    );
    let bytes = said(3000);
    let first = lab.s + 1;
    dies(&mut lab);
    assert!(lab.flow().digest.taken && lab.flow().digest.comparison == Comparison::None);
    say_all(&mut lab, LATER + 1, &bytes, 1000);
    hears(&mut lab, 3000);
    assert_eq!(lab.flow().digest.now.next, first + 3000);
    dies(&mut lab);
    assert!(lab.flow().digest.is_repeating());
}

#[test]
fn the_polynomial_is_that_of_its_chunks() {
    let Digests { key, .. } = digests(WHOLE);
    assert_eq!(key.fold(0, PRIME), 0);
    assert_eq!(key.fold(1, 0), key.point);
    assert_eq!(key.fold(PRIME - 1, u64::MAX), {
        let value = u128::from(PRIME - 1) * u128::from(key.point) + u128::from(u64::MAX);
        u64::try_from(value % u128::from(PRIME)).unwrap()
    });
    assert_eq!(key.sum(4, &[1]), key.factors[1]);
    assert_eq!(key.sum(5, &[1]), key.factors[1].wrapping_mul(256));
}

/// Numbers come round, and compared output is not repeated.
#[test]
fn two_gib_behind_a_recovery_all_leaves() {
    let mut lab = lab(SAMPLES, 5000);
    let bytes = said(100_000);
    let first = lab.s + 1;
    say_all(&mut lab, first, &bytes, 1448);
    hears(&mut lab, 100_000);
    dies(&mut lab);
    say_all(&mut lab, LATER + 1, &bytes, 1448);
    let (mut at, end) = (100_000, (1 << 31) + 3_000_000);
    while at < end {
        let seq = LATER + 1 + at;
        let spec = segment(seq, lab.c + 1).timestamps(901, 11).partial();
        let out = lab.server(spec.payload(&[7; 60_000]));
        assert_eq!(out.verdict, Verdict::Next, "at {at}");
        at += 60_000;
        let (seq, ack) = (lab.c + 1, lab.s + 1 + at);
        lab.client(segment(seq, ack).timestamps(12, 901));
    }
    let fin = segment(LATER + 1 + at, lab.c + 1).timestamps(980, 11);
    assert_eq!(lab.server(fin.flags(FIN_ACK)).verdict, Verdict::Next);
    assert_eq!(lab.flow().mode, Mode::Spliced);
}

/// The socket takes withheld segments for sent, and retransmits only the gap.
#[test]
fn what_follows_what_the_fence_has_kept_is_compared() {
    let mut lab = lab(WHOLE, 5000);
    let bytes = said(20_000);
    let first = lab.s + 1;
    say(&mut lab, first, &bytes, 0, 1000);
    hears(&mut lab, 1000);
    lab.south.set_lease(Some(lab.now));
    let out = say(&mut lab, first, &bytes, 1000, 1000);
    assert_eq!(out.verdict, Verdict::Withheld);
    lab.south.set_lease(Some(lab.now + 100 * SECOND));
    say(&mut lab, first, &bytes, 2000, 1000);
    say(&mut lab, first, &bytes, 1000, 1000);
    for from in (3000..20_000).step_by(1000) {
        say(&mut lab, first, &bytes, from, 1000);
    }
    hears(&mut lab, 20_000);
    assert_eq!(lab.flow().digest.now.next, first + 20_000);
    dies(&mut lab);
    let mut other = bytes.clone();
    other[15_000] ^= 1;
    say_all(&mut lab, LATER + 1, &other, 1000);
    assert_eq!(lab.flow().mode, Mode::Diverged);
}

/// Behind a gap that is never filled, no output is digested, however far the numbers come round.
#[test]
fn a_hole_that_stays_ends_the_digest() {
    let mut lab = lab(SAMPLES, 5000);
    let first = lab.s + 1;
    say(&mut lab, first, &said(1000), 0, 1000);
    hears(&mut lab, 1000);
    let far = 1000 + (1 << 30);
    for at in [2000, far, far + 2000] {
        let seq = first + at;
        let spec = segment(seq, lab.c + 1).timestamps(901, 11);
        lab.server(spec.payload(&[7; 1000]));
        assert_eq!(lab.flow().digest.taken, at <= far, "{at}");
    }
}

/// Responses to a client that pipelines requests: only the beginning of the first response is
/// recorded.
#[test]
fn a_date_behind_the_recorded_beginning_is_another_byte() {
    let mut lab = lab(WHOLE, 5000);
    let answers = |date: &str| {
        let head = format!("HTTP/1.1 200 OK\r\nDate: {date}\r\nContent-Length: 6000\r\n\r\n");
        [head.as_bytes(), &said(6000), head.as_bytes(), &said(6000)].concat()
    };
    let first = lab.s + 1;
    let bytes = answers("Mon");
    say_all(&mut lab, first, &bytes, 1000);
    hears(&mut lab, bytes.len());
    lab.crash();
    let record = [(first, bytes[..4096].to_vec())];
    let chunks: Vec<_> = expectations(&record, &[], DEFAULT_FIELDS)
        .into_iter()
        .collect();
    lab.south.expect(FlowId(1), chunks);
    lab.splice_and_verify(LATER, first + 4096);
    say_all(&mut lab, LATER + 1, &answers("Tue"), 1000);
    assert_eq!(lab.flow().mode, Mode::Diverged);
}

/// The beginning of sampling comes round, too: the place moves along with the requests.
#[test]
fn turns_two_gib_behind_the_first_sample_are_compared() {
    let mut lab = lab(SAMPLES, 5000);
    let first = lab.s + 1;
    let (mut at, mut asked) = (0, lab.c + 1);
    let mut ask = |lab: &mut Lab, at: u32| {
        lab.client(
            segment(asked, first + at)
                .timestamps(12, 901)
                .payload(b"more"),
        );
        asked += 4;
        asked
    };
    let mut heard = lab.c + 1;
    while at < (1 << 31) - 200_000 {
        let spec = segment(first + at, heard).timestamps(901, 11).partial();
        lab.server(spec.payload(&[7; 60_000]));
        at += 60_000;
        if at % 60_000_000 == 0 {
            heard = ask(&mut lab, at);
        } else {
            lab.client(segment(heard, first + at).timestamps(12, 901));
        }
    }
    heard = ask(&mut lab, at);
    let start = first + at;
    let bytes = said(600_000);
    let say_turn = |lab: &mut Lab, first: SeqNumber, step: usize| {
        for from in (0..bytes.len()).step_by(step) {
            let piece = &bytes[from..bytes.len().min(from + step)];
            let spec = segment(first + length32(from), heard).timestamps(901, 11);
            lab.server(spec.payload(piece));
        }
    };
    say_turn(&mut lab, start, 1448);
    lab.client(segment(heard, start + 600_000).timestamps(13, 901));
    lab.crash();
    lab.south.new_incarnation();
    let (key, now) = (lab.key, lab.now);
    let splice = lab
        .south
        .splice(key, FlowId(1), heard - 5, start, start, now);
    splice.unwrap();
    let options = syn_options(70, 11, LATER_SCALE);
    lab.server(segment(LATER, heard - 4).flags(SYN_ACK).options(&options));
    assert!(lab.flow().digest.is_repeating());
    say_turn(&mut lab, LATER + 1, 999);
    assert_eq!(lab.flow().mode, Mode::Spliced);
    assert_eq!(lab.flow().digest.comparison, Comparison::Done);
}

/// A replay from the beginning of the connection takes the samples of all requests.
#[test]
fn turns_of_a_sampled_connection_are_compared_from_its_beginning() {
    let mut lab = lab(SAMPLES, 5000);
    let bytes = said(300_000);
    let first = lab.s + 1;
    for turn in 0..3 {
        let begin = turn * 100_000;
        for from in (begin..begin + 100_000).step_by(1448) {
            let heard = lab.c + 1 + length32(turn) * 4;
            let end = (from + 1448).min(begin + 100_000);
            let spec = segment(first + length32(from), heard).timestamps(901, 11);
            lab.server(spec.payload(&bytes[from..end]));
        }
        let asks = segment(
            lab.c + 1 + length32(turn) * 4,
            first + length32(begin) + 100_000,
        );
        lab.client(asks.timestamps(12, 901).payload(b"more"));
    }
    dies(&mut lab);
    say_all(&mut lab, LATER + 1, &bytes, 999);
    assert_eq!(lab.flow().mode, Mode::Spliced);
    assert_eq!(lab.flow().digest.comparison, Comparison::Done);
}

/// Output before a request is compared at the request, even if the client has acknowledged more.
#[test]
fn what_was_said_before_a_request_is_compared_there() {
    for spoilt in [false, true] {
        let mut lab = lab(WHOLE, 5000);
        let mut bytes = said(12_000);
        let first = lab.s + 1;
        say_all(&mut lab, first, &bytes[..10_000], 1000);
        let ask = segment(lab.c + 1, first + 10_000).timestamps(12, 901);
        lab.client(ask.payload(b"more"));
        lab.mirrored();
        for from in [10_000, 11_000] {
            say(&mut lab, first, &bytes, from, 1000);
        }
        lab.client(segment(lab.c + 5, first + 12_000).timestamps(13, 901));
        let frames = lab.mirrored();
        let told = frames.iter().find(|frame| frame.kind == FrameKind::Digest);
        let told = told.map(|frame| Digest::from_bytes(frame.packet[..].try_into().unwrap()));
        let turn = lab.flow().digest.turn;
        assert_eq!((told, turn.next), (Some(turn), first + 10_000));
        dies(&mut lab);
        let key = lab.key;
        lab.south.want(key, FlowId(1), turn).unwrap();
        bytes[9000] ^= u8::from(spoilt);
        say_all(&mut lab, LATER + 1, &bytes[..10_000], 700);
        assert_eq!(lab.flow().mode == Mode::Diverged, spoilt);
        assert_eq!(lab.flow().digest.wanted, None);
        assert_eq!(diverged(&mut lab), spoilt.then_some(first + 10_000));
    }
}

/// The logger knows an earlier request than the data plane, which has sampled a later request. The
/// server dies once more in that replay.
#[test]
fn an_earlier_turn_than_the_last_is_not_sampled_because_the_last_was() {
    let mut lab = lab(SAMPLES, 5000);
    let bytes = said(100_000);
    let (first, heard) = (lab.s + 1, length32(bytes.len()));
    say_all(&mut lab, first, &bytes, 1448);
    let ask = segment(lab.c + 1, first + heard).timestamps(12, 901);
    lab.client(ask.payload(b"more"));
    lab.server(
        segment(first + heard, lab.c + 5)
            .timestamps(901, 12)
            .payload(b"no"),
    );
    assert!(lab.flow().digest.is_turn_sampled);
    for later in [LATER, LATER + 100_000] {
        lab.crash();
        lab.south.new_incarnation();
        let (key, c, now) = (lab.key, lab.c, lab.now);
        let turn = first + 1000;
        lab.south
            .splice(key, FlowId(1), c, turn, turn, now)
            .unwrap();
        let options = syn_options(70, 11, LATER_SCALE);
        lab.server(segment(later, lab.c + 1).flags(SYN_ACK).options(&options));
        say_all(&mut lab, later + 1, &bytes[1000..4000], 700);
        assert_eq!(lab.flow().mode, Mode::Spliced);
    }
    assert_eq!(lab.flow().digest.comparison, Comparison::Done);
}
