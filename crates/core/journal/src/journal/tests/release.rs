//! Release of a prefix that another record has.

use super::*;

#[test]
fn released_prefix_is_dropped() {
    let mut journal = journal(AMPLE, &[A]);
    let bytes: Vec<u8> = (0..=255).cycle().take(200_000).collect();
    for (at, piece) in (0..).step_by(1000).zip(bytes.chunks(1000)) {
        let recorded = journal.instream(A, &segment(ISN + 1 + at, piece));
        assert!(recorded.expect("protected").new);
    }
    let held = protected(&journal, A).held;
    journal.release(A, ISN + 1 + 150_000);
    assert!(protected(&journal, A).held < held / 2);
    assert_eq!(protected(&journal, A).start.instream, ISN + 1 + 150_000);
    assert_eq!(
        read(&journal, ISN + 1 + 150_000, 100_000),
        Ok(bytes[150_000..].to_vec())
    );
    assert!(read(&journal, ISN + 1 + 149_999, 1).is_err());
    // A released prefix does not come back.
    journal.release(A, ISN + 1 + 10);
    journal.release(B, ISN + 1);
    assert_eq!(protected(&journal, A).start.instream, ISN + 1 + 150_000);
    journal.release(A, ISN + 1 + 200_000);
    let recorded = journal.instream(A, &segment(ISN + 1 + 200_000, b"more"));
    assert_eq!(recorded.expect("protected").stable_seq, ISN + 1 + 200_004);
    assert_eq!(read(&journal, ISN + 1 + 200_000, 10), Ok(b"more".to_vec()));
    let mut turns = Journal::new(AMPLE, ReplayMode::Request);
    turns.open(A, ISN, SERVER).expect("few");
    turns
        .instream(A, &segment(ISN + 1, b"turn"))
        .expect("protected");
    turns.release(A, ISN + 5);
    assert_eq!(read(&turns, ISN + 1, 10), Ok(b"turn".to_vec()));
}

#[test]
fn bytes_of_other_record_are_not_awaited() {
    let mut journal = journal(AMPLE, &[A]);
    let mut comes = |at, payload: &[u8]| {
        let recorded = journal.instream(A, &segment(ISN + 1 + at, payload));
        let recorded = recorded.expect("protected");
        (recorded.stable_seq, recorded.hole)
    };
    assert_eq!(comes(0, b"here"), (ISN + 5, false));
    assert_eq!(comes(10, b"abc"), (ISN + 5, true));
    assert_eq!(comes(20, b"0123456789"), (ISN + 5, true));
    assert_eq!(comes(40, b"xyz"), (ISN + 5, true));
    // In a gap: the bytes behind are still missing.
    journal.release(A, ISN + 1 + 15);
    assert_eq!(protected(&journal, A).start.instream, ISN + 16);
    assert_eq!(journal.stable_seq(A), Some(ISN + 16));
    assert_eq!(protected(&journal, A).ahead, 13);
    // In a recorded range: the range becomes stable.
    journal.release(A, ISN + 1 + 25);
    assert_eq!(journal.stable_seq(A), Some(ISN + 31));
    assert_eq!(read(&journal, ISN + 26, 100), Ok(b"56789".to_vec()));
    assert!(read(&journal, ISN + 25, 1).is_err());
    // At the beginning of a recorded range.
    journal.release(A, ISN + 1 + 40);
    assert_eq!(read(&journal, ISN + 41, 100), Ok(b"xyz".to_vec()));
    assert_eq!(protected(&journal, A).ahead, 0);
    // Behind everything; retransmissions are not recorded, new bytes are.
    journal.release(A, ISN + 1 + 100_000);
    assert_eq!(protected(&journal, A).held, 0);
    let recorded = journal.instream(A, &segment(ISN + 1, b"here"));
    let nothing = Recorded {
        stable_seq: ISN + 100_001,
        hole: false,
        new: false,
    };
    assert_eq!(recorded, Ok(nothing));
    let recorded = journal.instream(A, &segment(ISN + 100_001, b"more"));
    assert_eq!(recorded.expect("protected").stable_seq, ISN + 100_005);
    assert_eq!(read(&journal, ISN + 100_001, 10), Ok(b"more".to_vec()));
}

#[test]
fn implausible_release_is_ignored() {
    let mut journal = journal(AMPLE, &[A]);
    let start = |journal: &Journal| protected(journal, A).start.instream;
    for not_meant in [0, 1, PLAUSIBLE_DISTANCE + 2, 1 << 31, u32::MAX] {
        journal.release(A, ISN + not_meant);
        assert_eq!(start(&journal), ISN + 1, "{not_meant}");
    }
    journal.release(A, ISN + 1 + PLAUSIBLE_DISTANCE);
    assert_eq!(start(&journal), ISN + 1 + PLAUSIBLE_DISTANCE);
    // And from there on.
    let first = ISN + 1 + PLAUSIBLE_DISTANCE;
    journal.release(A, first + PLAUSIBLE_DISTANCE);
    let first = first + PLAUSIBLE_DISTANCE;
    assert_eq!(start(&journal), first);
    // A release stops at the FIN; bytes before the FIN may be missing.
    let ended = journal.instream(A, &fin(first + 10, b""));
    assert_eq!(ended.expect("protected").stable_seq, first);
    journal.release(A, first + 11);
    assert_eq!(start(&journal), first);
    journal.release(A, first + 10);
    assert_eq!(start(&journal), first + 10);
    assert_eq!(journal.stable_seq(A), Some(first + 11));
}

#[test]
fn release_without_memory_is_refused() {
    let limits = Limits {
        per_connection: 20_000,
        ..AMPLE
    };
    let mut journal = journal(limits, &[A]);
    for at in [0, 6000] {
        let recorded = journal.instream(A, &segment(ISN + 1 + at, &[7; 4000]));
        recorded.expect("room");
    }
    let before = protected(&journal, A);
    journal.release(A, ISN + 1 + 5000);
    assert_eq!(protected(&journal, A), before);
    // A release of the whole record needs no memory.
    journal.release(A, ISN + 1 + 10_000);
    assert_eq!(journal.stable_seq(A), Some(ISN + 1 + 10_000));
    assert_eq!(protected(&journal, A).held, 0);
}
