//! For any order of arrivals, the record is a prefix of the sent streams.

use proptest::prelude::*;

use super::*;
use crate::stream::CHUNK_BYTES;

const RECORD_NUMBER: u64 = 7;
const FREE_BYTES: u64 = u64::MAX;

fn said(process: u32, length: usize) -> Vec<u8> {
    let step = usize::try_from(process).unwrap() + 3;
    let byte = |at: usize| u8::try_from(at * step % 251).unwrap();
    (0..length).map(byte).collect()
}

proptest! {
    #[test]
    fn stored_bytes_are_a_prefix(
        pieces in prop::collection::vec((0u32..3, 0usize..200_000, 0usize..90_000), 0..40),
        (from, most) in (0usize..300_000, 0usize..200_000),
    ) {
        let mut kept = Determinants::default();
        kept.begin(RECORD_NUMBER);
        let mut lengths = [0usize; 3];
        for (process, at, length) in pieces {
            let bytes = &said(process, at + length)[at..];
            let index = usize::try_from(process).unwrap();
            if at <= lengths[index] {
                lengths[index] = lengths[index].max(at + length);
            }
            let stable = kept.append(RECORD_NUMBER, process, at as u64, bytes, FREE_BYTES);
            prop_assert_eq!(stable, Ok(Some(lengths[index] as u64)));
        }
        for (process, length) in (0..3).zip(lengths) {
            let all = said(process, length);
            prop_assert!(kept.read(process, 0, usize::MAX) == all);
            let part = &all[from.min(length)..(from + most).min(length)];
            prop_assert!(kept.read(process, from as u64, most) == part);
        }
        let held: usize = lengths.iter().map(|length| length.div_ceil(CHUNK_BYTES) * CHUNK_BYTES).sum();
        prop_assert_eq!(kept.held(), held as u64);
    }
}

proptest! {
    #[test]
    fn truncated_bytes_may_differ(
        length in 0usize..200_000, cut in 0usize..250_000, more in prop::collection::vec(any::<u8>(), 0..70_000),
    ) {
        let mut kept = Determinants::default();
        kept.begin(RECORD_NUMBER);
        let said = said(0, length);
        let _ = kept.append(RECORD_NUMBER, 0, 0, &said, FREE_BYTES);
        kept.cut(0, cut as u64);
        let left = &said[..cut.min(length)];
        prop_assert!(kept.read(0, 0, usize::MAX) == left);
        let stable = kept.append(RECORD_NUMBER, 0, left.len() as u64, &more, FREE_BYTES);
        prop_assert_eq!(stable, Ok(Some((left.len() + more.len()) as u64)));
        let all = [left, &more[..]].concat();
        prop_assert!(kept.read(0, 0, usize::MAX) == all);
        prop_assert_eq!(kept.held(), (all.len().div_ceil(CHUNK_BYTES) * CHUNK_BYTES) as u64);
    }
}

#[test]
fn other_record_is_separate() {
    let mut kept = Determinants::default();
    assert_eq!(kept.append(1, 0, 0, b"early", FREE_BYTES), Ok(None));
    kept.begin(1);
    assert_eq!(kept.append(1, 0, 0, b"hello", FREE_BYTES), Ok(Some(5)));
    kept.begin(1);
    assert_eq!(kept.append(2, 0, 0, b"other", FREE_BYTES), Ok(None));
    assert_eq!(kept.streams().collect::<Vec<_>>(), [(0, 5)]);
    kept.begin(2);
    assert_eq!(kept.streams().count(), 0);
    assert_eq!(kept.append(1, 0, 5, b"late", FREE_BYTES), Ok(None));
}

#[test]
fn full_memory_drops_record() {
    let mut kept = Determinants::default();
    kept.begin(1);
    let most = CHUNK_BYTES as u64;
    assert_eq!(
        kept.append(1, 0, 0, &[1; CHUNK_BYTES], most),
        Ok(Some(most))
    );
    assert_eq!(kept.append(1, 1, 0, &[1], most), Err(NoRoom));
    assert_eq!((kept.record(), kept.held()), (None, 0));
    // Bytes of the ended record are refused, too.
    kept.begin(1);
    assert!(kept.is_over(1));
    assert_eq!(kept.append(1, 0, 0, &[1], FREE_BYTES), Err(NoRoom));
    kept.begin(2);
    assert_eq!(kept.append(2, 0, 0, &[1], FREE_BYTES), Ok(Some(1)));
}

/// A step of a host that uploads, commits, dies meanwhile, and comes back.
#[derive(Debug, Clone)]
enum Step {
    /// Appends so many determinants.
    Note(usize),
    /// Begins the upload of an image of the whole stream up to here, and uploads this part, in thousandths.
    Upload(usize),
    /// Commits the upload, if the host believes that the upload is complete.
    Commit,
    /// The control stream has ended: an uncommitted upload is dropped.
    Break,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0..100_000usize).prop_map(Step::Note),
        2 => (0..=1000usize).prop_map(Step::Upload),
        2 => Just(Step::Upload(1000)),
        3 => Just(Step::Commit),
        1 => Just(Step::Break),
    ]
}

proptest! {
    /// For any interruption: the record is a complete image, and all determinants since that image.
    #[test]
    fn image_replaces_prefix_or_nothing(
        steps in prop::collection::vec(step(), 0..30),
    ) {
        let mut kept = Determinants::default();
        kept.begin(RECORD_NUMBER);
        let all = said(0, 3_000_000);
        let mut length = 0;
        // Number, end in the stream, and bytes of the image in use, and of the image in the upload.
        let mut used: Option<(u64, usize, Vec<u8>)> = None;
        let mut uploaded: Option<(u64, usize, Vec<u8>)> = None;
        let mut is_whole = false;
        for (step, number) in steps.into_iter().zip(1u64..) {
            match step {
                Step::Note(more) => {
                    let bytes = &all[length..length + more];
                    let stable = kept.append(RECORD_NUMBER, 0, length as u64, bytes, FREE_BYTES);
                    length += more;
                    prop_assert_eq!(stable, Ok(Some(length as u64)));
                }
                Step::Upload(part) => {
                    let image = said(u32::try_from(number).unwrap(), 150_000);
                    let until = (image.len() * part / 1000).max(1);
                    let of = (number, image.len() as u64);
                    let mut there = 0;
                    for piece in image[..until].chunks(60_000) {
                        let taken = kept.take_image(RECORD_NUMBER, of, there, piece, FREE_BYTES);
                        there += piece.len() as u64;
                        prop_assert_eq!(taken, Ok(there));
                    }
                    is_whole = until == image.len();
                    uploaded = Some((number, length, image));
                }
                Step::Commit => {
                    let Some((number, end, image)) = uploaded.clone() else {
                        continue;
                    };
                    let committed = kept.commit_image(RECORD_NUMBER, number, end as u64, 1);
                    prop_assert_eq!(committed.is_ok(), is_whole);
                    if committed.is_ok() {
                        used = Some((number, end, image));
                    }
                }
                Step::Break => {
                    kept.drop_upload();
                    if uploaded.as_ref().map(|one| one.0) != used.as_ref().map(|one| one.0) {
                        uploaded = None;
                    }
                }
            }
            let base = used.as_ref().map_or(0, |(_, end, _)| *end);
            prop_assert!(kept.read(0, base as u64, usize::MAX) == all[base..length]);
            match (&used, kept.image()) {
                (None, None) => {}
                (Some((number, end, image)), Some(known)) => {
                    prop_assert_eq!((known.number(), known.base()), (*number, *end as u64));
                    prop_assert!(known.read(0, usize::MAX) == *image);
                    prop_assert!(*end == 0 || kept.read(0, *end as u64 - 1, 1).is_empty());
                }
                (one, other) => prop_assert!(false, "{:?} and {:?}", one.is_some(), other.is_some()),
            }
        }
    }
}

#[test]
fn torn_or_foreign_image_is_rejected() {
    let mut kept = Determinants::default();
    kept.begin(RECORD_NUMBER);
    let _ = kept.append(RECORD_NUMBER, 0, 0, b"hello, world", FREE_BYTES);
    let image = (1, 10);
    let take = |kept: &mut Determinants, record, image, from, bytes: &[u8]| {
        kept.take_image(record, image, from, bytes, FREE_BYTES)
    };
    assert_eq!(
        take(&mut kept, 9, image, 0, b"01234"),
        Err(ImageError::OtherRecord)
    );
    assert_eq!(
        take(&mut kept, RECORD_NUMBER, image, 5, b"56789"),
        Err(ImageError::Torn)
    );
    assert_eq!(take(&mut kept, RECORD_NUMBER, image, 0, b"01234"), Ok(5));
    assert_eq!(
        kept.commit_image(RECORD_NUMBER, 1, 5, 1),
        Err(ImageError::Torn)
    );
    assert_eq!(
        take(&mut kept, RECORD_NUMBER, image, 6, b"6789"),
        Err(ImageError::Torn)
    );
    assert_eq!(
        take(&mut kept, RECORD_NUMBER, image, 5, b"56789"),
        Err(ImageError::Torn),
        "it is gone"
    );
    assert_eq!(
        take(&mut kept, RECORD_NUMBER, image, 0, b"0123456789!"),
        Err(ImageError::Torn)
    );
    assert_eq!(
        take(&mut kept, RECORD_NUMBER, image, 0, b"0123456789"),
        Ok(10)
    );
    assert_eq!(
        take(&mut kept, RECORD_NUMBER, (2, 10), 10, b""),
        Err(ImageError::Torn)
    );
    assert_eq!(kept.commit_image(9, 1, 5, 1), Err(ImageError::OtherRecord));
    assert_eq!(
        kept.commit_image(RECORD_NUMBER, 2, 5, 1),
        Err(ImageError::Torn)
    );
    assert_eq!(kept.image().map(Image::number), None);
    assert_eq!(kept.read(0, 0, 99), b"hello, world");
    assert_eq!(kept.commit_image(RECORD_NUMBER, 1, 7, 3), Ok(()));
    assert_eq!(
        kept.commit_image(RECORD_NUMBER, 1, 7, 3),
        Ok(()),
        "who has not heard the answer asks again"
    );
    assert_eq!(
        (kept.read(0, 0, 99), kept.read(0, 7, 99)),
        (Vec::new(), b"world".to_vec())
    );
    // The base never goes back.
    assert_eq!(take(&mut kept, RECORD_NUMBER, (3, 1), 0, b"0"), Ok(1));
    assert_eq!(
        kept.commit_image(RECORD_NUMBER, 3, 6, 3),
        Err(ImageError::Torn)
    );
    // Another record drops the image.
    kept.begin(2);
    assert_eq!((kept.image().map(Image::number), kept.held()), (None, 0));
}

/// A restarted logger has a whole record only after the image has arrived again, and all bytes behind the image.
#[test]
fn record_without_image_is_incomplete() {
    let mut kept = Determinants::default();
    kept.begin(RECORD_NUMBER);
    kept.was_said(RECORD_NUMBER, &[(0, 100)]);
    assert!(!kept.is_whole());
    assert_eq!(
        kept.append(RECORD_NUMBER, 0, 90, &[7; 10], FREE_BYTES),
        Ok(Some(0)),
        "a hole"
    );
    assert_eq!(
        kept.take_image(RECORD_NUMBER, (5, 4), 0, b"1234", FREE_BYTES),
        Ok(4)
    );
    assert!(!kept.is_whole());
    assert_eq!(kept.commit_image(RECORD_NUMBER, 5, 90, 1), Ok(()));
    assert!(!kept.is_whole());
    assert_eq!(
        kept.append(RECORD_NUMBER, 0, 90, &[7; 10], FREE_BYTES),
        Ok(Some(100))
    );
    assert!(kept.is_whole());
}

/// Without memory for both, an upload goes before the record.
#[test]
fn image_leaves_client_memory() {
    let mut kept = Determinants::default();
    kept.begin(RECORD_NUMBER);
    let chunk = CHUNK_BYTES as u64;
    let most = 32 * chunk;
    let large = (1, 30 * chunk);
    assert_eq!(
        kept.take_image(RECORD_NUMBER, large, 0, &[1], most),
        Err(ImageError::NoRoom)
    );
    let image = (2, 20 * chunk);
    let bytes = vec![1; 20 * CHUNK_BYTES];
    assert_eq!(
        kept.take_image(RECORD_NUMBER, image, 0, &bytes, most),
        Ok(20 * chunk)
    );
    assert_eq!(kept.held_by_images(), 20 * chunk);
    let notes = vec![2; 13 * CHUNK_BYTES];
    assert_eq!(
        kept.append(RECORD_NUMBER, 0, 0, &notes, most),
        Ok(Some(13 * chunk))
    );
    assert_eq!((kept.held(), kept.held_by_images()), (13 * chunk, 0));
    assert_eq!(
        kept.commit_image(RECORD_NUMBER, 2, chunk, 1),
        Err(ImageError::Torn)
    );
    assert_eq!(kept.read(0, 0, usize::MAX), notes);
}
