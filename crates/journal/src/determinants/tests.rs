//! Whatever comes in whatever order: what is kept is the beginning of what was said.

use proptest::prelude::*;

use super::*;

const RECORD: u64 = 7;
const ROOM: u64 = u64::MAX;

fn said(process: u32, length: usize) -> Vec<u8> {
    let step = usize::try_from(process).unwrap() + 3;
    let byte = |at: usize| u8::try_from(at * step % 251).unwrap();
    (0..length).map(byte).collect()
}

proptest! {
    #[test]
    fn what_is_kept_is_the_beginning_of_what_was_said(
        pieces in prop::collection::vec((0u32..3, 0usize..200_000, 0usize..90_000), 0..40),
        (from, most) in (0usize..300_000, 0usize..200_000),
    ) {
        let mut kept = Determinants::default();
        kept.begin(RECORD);
        let mut lengths = [0usize; 3];
        for (process, at, length) in pieces {
            let bytes = &said(process, at + length)[at..];
            let index = usize::try_from(process).unwrap();
            if at <= lengths[index] {
                lengths[index] = lengths[index].max(at + length);
            }
            let stable = kept.append(RECORD, process, at as u64, bytes, ROOM);
            prop_assert_eq!(stable, Ok(Some(lengths[index] as u64)));
        }
        for (process, length) in (0..3).zip(lengths) {
            let all = said(process, length);
            prop_assert!(kept.read(process, 0, usize::MAX) == all);
            let part = &all[from.min(length)..(from + most).min(length)];
            prop_assert!(kept.read(process, from as u64, most) == part);
        }
        let held: usize = lengths.iter().map(|length| length.div_ceil(CHUNK) * CHUNK).sum();
        prop_assert_eq!(kept.held(), held as u64);
    }
}

proptest! {
    #[test]
    fn what_was_cut_off_can_be_said_otherwise(
        length in 0usize..200_000, cut in 0usize..250_000, more in prop::collection::vec(any::<u8>(), 0..70_000),
    ) {
        let mut kept = Determinants::default();
        kept.begin(RECORD);
        let said = said(0, length);
        let _ = kept.append(RECORD, 0, 0, &said, ROOM);
        kept.cut(0, cut as u64);
        let left = &said[..cut.min(length)];
        prop_assert!(kept.read(0, 0, usize::MAX) == left);
        let stable = kept.append(RECORD, 0, left.len() as u64, &more, ROOM);
        prop_assert_eq!(stable, Ok(Some((left.len() + more.len()) as u64)));
        let all = [left, &more[..]].concat();
        prop_assert!(kept.read(0, 0, usize::MAX) == all);
        prop_assert_eq!(kept.held(), (all.len().div_ceil(CHUNK) * CHUNK) as u64);
    }
}

#[test]
fn another_record_has_nothing_to_do_with_it() {
    let mut kept = Determinants::default();
    assert_eq!(kept.append(1, 0, 0, b"early", ROOM), Ok(None));
    kept.begin(1);
    assert_eq!(kept.append(1, 0, 0, b"hello", ROOM), Ok(Some(5)));
    kept.begin(1);
    assert_eq!(kept.append(2, 0, 0, b"other", ROOM), Ok(None));
    assert_eq!(kept.streams().collect::<Vec<_>>(), [(0, 5)]);
    kept.begin(2);
    assert_eq!(kept.streams().count(), 0);
    assert_eq!(kept.append(1, 0, 5, b"late", ROOM), Ok(None));
}

#[test]
fn where_there_is_no_room_nothing_is_left() {
    let mut kept = Determinants::default();
    kept.begin(1);
    let most = CHUNK as u64;
    assert_eq!(kept.append(1, 0, 0, &[1; CHUNK], most), Ok(Some(most)));
    assert_eq!(kept.append(1, 1, 0, &[1], most), Err(NoRoom));
    assert_eq!((kept.record(), kept.held()), (None, 0));
    // Nor does anything of it come back.
    kept.begin(1);
    assert!(kept.is_over(1));
    assert_eq!(kept.append(1, 0, 0, &[1], ROOM), Err(NoRoom));
    kept.begin(2);
    assert_eq!(kept.append(2, 0, 0, &[1], ROOM), Ok(Some(1)));
}
