use super::*;
use crate::{expectations, tolerance::DEFAULT_FIELDS};
use proptest::prelude::*;

/// Compare `payload` at `seq` with `record` at `start`, up to `end`.
fn run(
    start: u32,
    record: &[u8],
    seq: u32,
    payload: &[u8],
    end: u32,
) -> (Flow, Result<(), Divergence>) {
    let chunks = expectations(&[(SeqNumber(start), record.to_vec())], &[], DEFAULT_FIELDS);
    let expected = chunks
        .into_iter()
        .map(|(chunk, expect)| ((FlowId(0), chunk), expect))
        .collect();
    let mut flow = Flow::default();
    flow.verify.end = SeqNumber(end);
    let result = verify_replayed(&expected, &mut flow, payload, SeqNumber(seq));
    (flow, result)
}

#[test]
fn what_lies_behind_the_end_is_not_compared() {
    let (flow, result) = run(0, b"abcdef", 0, b"abcXYZ", 3);
    assert_eq!((result, flow.verify.compared), (Ok(()), 3));
    assert_eq!(
        run(0, b"abcdef", 0, b"abcXYZ", 4).1,
        Err(Divergence(SeqNumber(3)))
    );
}

#[test]
fn a_chunk_without_record_is_unverified() {
    let (flow, result) = run(0, &[1; 10], 500, &[1; 30], 1000);
    assert_eq!(result, Ok(()));
    assert_eq!((flow.verify.compared, flow.verify.unverified), (12, 18));
}

proptest! {
    /// Wherever the record lies, also across 2^32, the first byte that differs is found.
    #[test]
    fn the_first_difference_is_found(
        start: u32,
        record in proptest::collection::vec(any::<u8>(), 1..1600),
        at: prop::sample::Index,
        flip in 0u8..,
    ) {
        let at = at.index(record.len());
        let mut replayed = record.clone();
        replayed[at] ^= flip;
        let end = start.wrapping_add(length32(record.len()));
        let (flow, result) = run(start, &record, start, &replayed, end);
        if flip == 0 {
            prop_assert_eq!(result, Ok(()));
            prop_assert_eq!(flow.verify.compared, length32(record.len()));
        } else {
            let first = SeqNumber(start) + length32(at);
            prop_assert_eq!(result, Err(Divergence(first)));
            prop_assert_eq!(flow.verify.diverged_at, first);
        }
    }
}
