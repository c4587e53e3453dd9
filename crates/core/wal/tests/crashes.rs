//! Reading a log after a crash of the storage, at any step, in any way.

use proptest::prelude::*;
use wal::{
    Batch, Log, MAX_RECORD, OpenError, Piece, Storage,
    simulated::{Failure, Simulated},
};

#[derive(Debug, Clone, Copy)]
enum Operation {
    /// Append this number of records of about this length.
    Append(u8, u16),
    Commit,
    NextSegment,
    /// Remove the segments before the current segment.
    Remove,
    /// The host crashes and restarts.
    Crash,
    /// The process ends and restarts.
    Restart,
    /// The storage fails after this number of operations.
    Fail(u8),
}

fn step() -> impl Strategy<Value = Operation> {
    prop_oneof![
        4 => (1u8..5, 0u16..3000).prop_map(|(count, len)| Operation::Append(count, len)),
        4 => Just(Operation::Commit),
        2 => Just(Operation::NextSegment),
        1 => Just(Operation::Remove),
        2 => Just(Operation::Crash),
        1 => Just(Operation::Restart),
        1 => (0u8..10).prop_map(Operation::Fail),
    ]
}

/// A record that contains a number.
fn record(number: u32, len: u16) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.resize(4 + usize::from(len), number.to_le_bytes()[0]);
    bytes
}

/// Opens a log. Returns the log and the records.
fn open(storage: Simulated) -> (Log<Simulated>, Vec<Vec<u8>>) {
    let mut read = Vec::new();
    let log = Log::open(storage, |piece| match piece {
        Piece::Record { bytes, .. } => read.push(bytes.to_vec()),
        Piece::End { .. } | Piece::Removed { .. } => {}
        Piece::Damaged { segment } => panic!("no crash damages segment {segment}"),
    });
    (log.expect("the storage does not fail now"), read)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn committed_records_survive_in_order(
        steps in prop::collection::vec(step(), 0..60),
        draws in prop::collection::vec(any::<prop::sample::Index>(), 1..50),
    ) {
        let mut drawn = 0;
        let mut draw = |below: usize| {
            drawn += 1;
            draws[drawn % draws.len()].index(below.max(1))
        };
        let (mut log, _) = open(Simulated::default());
        // Expected records, number of the committed records, and whether the log has failed.
        let mut written: Vec<Vec<u8>> = Vec::new();
        let (mut committed, mut failed, mut next) = (0, false, 0u32);
        // Number of records before the current segment, and number of removed records.
        let (mut before, mut removed) = (0, 0);
        for step in steps.into_iter().chain([Operation::Crash]) {
            match step {
                Operation::Append(count, len) if !failed => {
                    let mut batch = Batch::default();
                    for _ in 0..count {
                        let record = record(next, len);
                        next += 1;
                        batch.add(|bytes| bytes.extend_from_slice(&record));
                        written.push(record);
                    }
                    failed = log.append(&mut batch).is_err();
                }
                Operation::Commit if !failed => match log.commit() {
                    Ok(()) => committed = written.len(),
                    Err(_) => failed = true,
                },
                Operation::NextSegment if !failed => match log.next_segment() {
                    Ok(()) => {
                        committed = written.len();
                        before = committed;
                    }
                    Err(_) => failed = true,
                },
                Operation::Remove if !failed && log.commit().is_ok() => {
                    committed = written.len();
                    removed = before; // or fewer
                    failed = log.remove_before(log.current()).is_err();
                }
                Operation::Remove => failed = true,
                Operation::Fail(after) => {
                    log.storage().fail_after(Some(u64::from(after)));
                }
                Operation::Crash | Operation::Restart => {
                    let mut storage = log.storage().clone();
                    match step {
                        Operation::Crash => storage.crash(&mut draw),
                        _ => storage.restart(),
                    }
                    let (again, read) = open(storage);
                    let is_first = |record: &Vec<u8>| read.first() == Some(record);
                    let first = written.iter().position(is_first).unwrap_or(removed);
                    prop_assert!(first <= removed, "{first} > {removed}");
                    let end = first + read.len();
                    prop_assert!(end >= committed, "{end} < {committed}");
                    prop_assert!(written[first..].starts_with(&read), "not what was written");
                    // Records that were read are durable, even without a commit before.
                    written = read;
                    committed = written.len();
                    (before, removed, failed) = (committed, 0, false);
                    log = again;
                }
                Operation::Append(..) | Operation::Commit | Operation::NextSegment => {}
            }
        }
    }

    #[test]
    fn arbitrary_content_does_not_panic(bytes: Vec<u8>) {
        let mut storage = Simulated::default();
        storage.create(3).unwrap();
        storage.append(&bytes).unwrap();
        let mut records = 0;
        let log = Log::open(storage, |piece| {
            records += u32::from(matches!(piece, Piece::Record { .. }));
        });
        prop_assert!(log.is_ok());
        prop_assert_eq!(records, 0);
    }
}

/// A log of three segments with two records each.
fn three_segments() -> Simulated {
    let (mut log, _) = open(Simulated::default());
    for segment in 0..3 {
        let mut batch = Batch::default();
        for index in 0..2 {
            let bytes = record(2 * segment + index, 100);
            assert!(batch.add(|out| out.extend_from_slice(&bytes)));
        }
        log.append(&mut batch).expect("appended");
        if segment < 2 {
            log.next_segment().expect("begun");
        }
    }
    log.commit().expect("durable");
    log.storage().clone()
}

/// All pieces of a log at the opening.
fn report(mut storage: Simulated) -> Vec<String> {
    storage.restart();
    let mut told = Vec::new();
    let log = Log::open(storage, |piece| {
        told.push(match piece {
            Piece::Record { segment, bytes, .. } => format!("{segment}: {}", bytes[0]),
            Piece::Damaged { segment } => format!("{segment} damaged"),
            Piece::End { segment, .. } => format!("{segment} ends"),
            Piece::Removed { segments } => format!("{segments:?} removed"),
        });
    });
    log.expect("readable");
    told
}

#[test]
fn damage_to_sealed_segment_is_reported() {
    let whole = report(three_segments());
    let all = [
        "0: 0", "0: 1", "0 ends", "1: 2", "1: 3", "1 ends", "2: 4", "2: 5", "2 ends",
    ];
    assert_eq!(whole, all);
    let mut storage = three_segments();
    storage.damage(1, 32 + 8 + 104 + 20);
    let damaged = [
        "0: 0",
        "0: 1",
        "0 ends",
        "1: 2",
        "1 damaged",
        "1 ends",
        "2: 4",
        "2: 5",
        "2 ends",
    ];
    assert_eq!(report(storage), damaged);
    let mut storage = three_segments();
    storage.damage(1, 3);
    assert_eq!(report(storage)[3..5], ["1 damaged", "1 ends"]);
    // In the last segment damage looks like a torn tail.
    let mut storage = three_segments();
    storage.damage(2, 32 + 8 + 104 + 20);
    assert_eq!(report(storage)[6..], ["2: 4", "2 ends"]);
}

#[test]
fn segments_are_removed_whole() {
    let (mut log, read) = open(three_segments());
    assert_eq!(read.len(), 6);
    assert_eq!(log.current(), 3);
    log.remove_before(2).expect("removed");
    assert_eq!(
        report(log.storage().clone()),
        ["2: 4", "2: 5", "2 ends", "3 ends"]
    );
    log.remove_before(u64::MAX).expect("removed");
    assert_eq!(report(log.storage().clone()), ["3 ends"]);
}

/// Segments that came back after a removal, and segments before a segment that was deleted by hand.
#[test]
fn segments_before_gap_are_removed_and_reported() {
    for (missing, said) in [
        (0, &["1: 2", "1: 3", "1 ends", "2: 4", "2: 5", "2 ends"][..]),
        (1, &["[0] removed", "2: 4", "2: 5", "2 ends"]),
        (2, &["0: 0", "0: 1", "0 ends", "1: 2", "1: 3", "1 ends"]),
    ] {
        let mut storage = three_segments();
        storage.remove(missing).expect("it is there");
        assert_eq!(report(storage), said, "without {missing}");
    }
    let mut storage = three_segments();
    storage.create(7).expect("it is new");
    storage.restart();
    let (mut log, read) = open(storage);
    assert_eq!(read.len(), 0);
    assert_eq!(log.storage().list(), Ok(vec![7, 8]));
}

#[test]
fn unknown_version_is_refused() {
    let mut storage = Simulated::default();
    storage.create(0).expect("new");
    let mut header = *b"OUTLSEGM\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    let checksum = crc32fast::hash(&header[..28]);
    header[28..].copy_from_slice(&checksum.to_le_bytes());
    storage.append(&header).expect("room");
    let opened = Log::open(storage, |_| panic!("nothing can be read"));
    assert!(matches!(
        opened,
        Err((
            _,
            OpenError::Version {
                segment: 0,
                version: 1
            }
        ))
    ));
}

#[test]
fn overlong_record_is_left_out() {
    let mut batch = Batch::default();
    assert!(!batch.add(|bytes| bytes.resize(bytes.len() + MAX_RECORD + 1, 0)));
    assert!(batch.is_empty());
    assert_eq!(batch.len(), 0);
    assert!(batch.add(|bytes| bytes.resize(bytes.len() + MAX_RECORD, 7)));
    let (mut log, _) = open(Simulated::default());
    log.append(&mut batch).expect("room");
    log.commit().expect("durable");
    let (_, read) = open(log.storage().clone());
    assert_eq!(read, [vec![7; MAX_RECORD]]);
}

#[test]
fn full_storage_is_reported() {
    let (mut log, _) = open(Simulated::default());
    log.storage().limit(Some(2000));
    let mut batch = Batch::default();
    batch.add(|bytes| bytes.resize(bytes.len() + 1500, 1));
    assert_eq!(log.append(&mut batch), Ok(()));
    assert_eq!(log.append(&mut batch), Err(Failure::Full));
    assert!(!log.storage().is_empty());
}
