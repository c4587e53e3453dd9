//! What another record has.

use super::*;

#[test]
fn what_is_released_is_gone_and_the_rest_goes_on() {
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
    // Neither what was released before, nor what is not there.
    journal.release(A, ISN + 1 + 10);
    journal.release(A, ISN + 1 + 200_001);
    journal.release(B, ISN + 1);
    assert_eq!(protected(&journal, A).start.instream, ISN + 1 + 150_000);
    journal.release(A, ISN + 1 + 200_000);
    let recorded = journal.instream(A, &segment(ISN + 1 + 200_000, b"more"));
    assert_eq!(recorded.expect("protected").stable_seq, ISN + 1 + 200_004);
    assert_eq!(read(&journal, ISN + 1 + 200_000, 10), Ok(b"more".to_vec()));
    let mut turns = Journal::new(AMPLE, ReplayMode::Turn);
    turns.open(A, ISN, SERVER).expect("few");
    turns
        .instream(A, &segment(ISN + 1, b"turn"))
        .expect("protected");
    turns.release(A, ISN + 5);
    assert_eq!(read(&turns, ISN + 1, 10), Ok(b"turn".to_vec()));
}
