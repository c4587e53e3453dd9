//! Properties that hold for every byte string. The tests of this crate and the fuzz targets run the same functions;
//! each function panics if the property does not hold.

use crate::{
    Batch, Log, OpenError, Piece, Storage,
    format::{HEADER, RECORD_HEADER, SEAL, header_of, record_header, seal},
    simulated::{Failure, Simulated},
};

/// The number of the segment that is read.
const NUMBER: u64 = 7;

/// The parts of a segment that were read.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Read {
    number: u64,
    /// The version of the records.
    version: Option<u32>,
    records: Vec<Vec<u8>>,
    is_damaged: bool,
    /// The number of bytes that were read.
    len: usize,
}

/// The content of a log, segment by segment.
fn read(storage: Simulated) -> Result<Vec<Read>, OpenError<Failure>> {
    let (mut all, mut current) = (Vec::new(), Read::default());
    let log = Log::open(storage, |piece| match piece {
        Piece::Removed { segments } => assert!(!segments.is_empty()),
        Piece::Record {
            segment,
            version,
            bytes,
        } => {
            assert!(!current.is_damaged, "a record behind the damage");
            current.version = Some(version);
            current.number = segment;
            current.records.push(bytes.to_vec());
        }
        Piece::Damaged { .. } => current.is_damaged = true,
        Piece::End { segment, len } => {
            current.number = segment;
            current.len = usize::try_from(len).expect("it was in memory");
            all.push(std::mem::take(&mut current));
        }
    });
    log.map(|_| all).map_err(|(_, error)| error)
}

/// A storage with these files.
fn storage(files: impl IntoIterator<Item = (u64, Vec<u8>)>) -> Simulated {
    let mut storage = Simulated::default();
    for (number, bytes) in files {
        let made = storage.create(number);
        made.and_then(|()| storage.append(&bytes)).expect("room");
    }
    storage.restart();
    storage
}

/// Reads any bytes as a segment, both unchanged and with correct checksums. The accepted records are at the beginning
/// of the segment, and encode to the original bytes. The reader reports a sealed segment that was not read to the end.
///
/// # Panics
///
/// If the property does not hold.
pub fn segment(bytes: &[u8]) {
    written_as_read(bytes);
    written_as_read(&with_checksums(bytes));
}

fn written_as_read(bytes: &[u8]) {
    let mut all = match read(storage([(NUMBER, bytes.to_vec())])) {
        Ok(all) => all,
        Err(OpenError::Version { segment, .. }) => return assert_eq!(segment, NUMBER),
        Err(error) => panic!("{error}"),
    };
    let read = all.pop().expect("a segment");
    assert!(all.is_empty() && read.number == NUMBER && read.len <= bytes.len());
    let mut again = Vec::new();
    if read.len > 0 {
        // A segment without records reports no version.
        let version = u32::from_le_bytes(bytes[8..12].try_into().expect("four bytes"));
        assert!(read.version.is_none_or(|read| read == version));
        again.extend_from_slice(&header_of(version, NUMBER));
    }
    let mut batch = Batch::default();
    for record in &read.records {
        assert!(batch.add(|out| out.extend_from_slice(record)));
    }
    again.extend_from_slice(batch.seal(NUMBER, HEADER as u64));
    assert_eq!(again, bytes[..read.len]);
    let sealed_at = bytes.len().checked_sub(SEAL);
    let sealed_at = sealed_at.filter(|at| bytes[*at..] == seal(NUMBER, *at as u64));
    assert_eq!(read.is_damaged, sealed_at.is_some_and(|at| at != read.len));
}

/// Makes all headers and checksums correct, and keeps the lengths. A length beyond the end becomes a seal if exactly a
/// seal's bytes are left.
fn with_checksums(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    if bytes.len() < HEADER {
        return bytes;
    }
    let version = u32::from(bytes[8]).clamp(crate::OLDEST, crate::VERSION);
    bytes[..HEADER].copy_from_slice(&header_of(version, NUMBER));
    let mut at = HEADER;
    while let Some(Some(length)) = bytes.get(at..).map(<[u8]>::first_chunk::<4>) {
        let left = bytes.len() - at;
        let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
        if length <= left.saturating_sub(RECORD_HEADER) {
            let (begin, end) = (at + RECORD_HEADER, at + RECORD_HEADER + length);
            if end > bytes.len() {
                break;
            }
            let header = record_header(NUMBER, at as u64, &bytes[begin..end]);
            bytes[at..begin].copy_from_slice(&header);
            at = end;
            continue;
        }
        if left == SEAL {
            bytes[at..].copy_from_slice(&seal(NUMBER, at as u64));
        }
        break;
    }
    bytes
}

/// A log of some segments, of which a single segment is damaged: four adjacent bytes change, and the rest may be cut
/// off. Every record that is read was written there, in the same order and without a gap. If a record of a sealed
/// segment is missing, the reader reports the damage.
///
/// The input: a byte for the segment, two bytes for the place of the damage, four bytes for the damage, and a byte for
/// the cut; then the records, each after a length byte, where 255 ends a segment.
///
/// # Panics
///
/// If the property does not hold.
pub fn damaged_log(bytes: &[u8]) {
    let Some((damage, records)) = bytes.split_first_chunk::<8>() else {
        return;
    };
    let (written, mut files) = written_log(records);
    let [which, low, high, mask @ .., cut] = *damage;
    let which = usize::from(which) % files.len();
    let file = &mut files[which].1;
    let at = usize::from(u16::from_le_bytes([low, high])) % file.len();
    let before = file.clone();
    for (byte, mask) in file[at..].iter_mut().zip(mask) {
        *byte ^= mask;
    }
    if cut % 2 == 1 {
        file.truncate(at + mask.len());
    }
    let has_seal = which + 1 < written.len() && file.ends_with(&before[before.len() - SEAL..]);
    let (is_whole, at_end) = (*file == before, before.len() - at);
    let all = match read(storage(files)) {
        Ok(all) => all,
        Err(error) => panic!("{error}"),
    };
    assert_eq!(all.len(), written.len());
    for (number, (read, written)) in all.iter().zip(&written).enumerate() {
        assert!(written.starts_with(&read.records), "what was not written");
        let length = |record: &Vec<u8>| RECORD_HEADER + record.len();
        let len: usize = read.records.iter().map(length).sum();
        assert!(read.len == HEADER + len || read.len == 0 && len == 0);
        let is_missing = read.records.len() < written.len() || read.len == 0;
        if number != which || is_whole {
            assert!(!is_missing && !read.is_damaged);
        } else if has_seal {
            assert_eq!(read.is_damaged, is_missing, "{at_end} bytes before the end");
        }
    }
}

type Records = Vec<Vec<u8>>;

/// A log with these records: the records and the file of each segment.
fn written_log(mut bytes: &[u8]) -> (Vec<Records>, Vec<(u64, Vec<u8>)>) {
    let Ok(mut log) = Log::open(Simulated::default(), |_| ()) else {
        panic!("nothing is there that could be wrong");
    };
    let (mut written, mut batch) = (vec![Records::new()], Batch::default());
    while let Some((length, rest)) = bytes.split_first() {
        if *length == u8::MAX {
            log.next_segment().expect("room");
            written.push(Records::new());
            bytes = rest;
            continue;
        }
        let (record, rest) = rest.split_at(rest.len().min((*length).into()));
        batch.clear(0);
        assert!(batch.add(|out| out.extend_from_slice(record)));
        log.append(&mut batch).expect("room");
        written.last_mut().expect("a segment").push(record.to_vec());
        bytes = rest;
    }
    log.commit().expect("room");
    let mut storage = log.into_storage();
    let numbers = storage.list().expect("it can be told");
    let file = |number: u64| (number, storage.read(number).expect("it is there"));
    (written, numbers.into_iter().map(file).collect())
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use proptest::prelude::*;

    use super::*;

    /// The seeds of a fuzz target.
    fn seeds(target: &str) -> Vec<Vec<u8>> {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/seeds");
        let found = fs::read_dir(directory.join(target)).expect("seeds");
        found
            .map(|seed| fs::read(seed.expect("a seed").path()).expect("a seed"))
            .collect()
    }

    #[test]
    fn fuzz_seeds_hold() {
        seeds("segment").iter().for_each(|seed| segment(seed));
        seeds("damaged_log")
            .iter()
            .for_each(|seed| damaged_log(seed));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_segment_or_prefix(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            segment(&bytes);
        }

        #[test]
        fn damaged_log_reports_its_end(bytes in prop::collection::vec(prop_oneof![any::<u8>(), 0..5u8, Just(255)], 8..200)) {
            damaged_log(&bytes);
        }
    }
}
