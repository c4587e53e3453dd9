//! The snapshot tail has exactly the output that clients lack.

use std::net::SocketAddr;

use north_abi::{
    Which,
    handover::{ClientPosition, Position, UpstreamPosition},
};
use proptest::prelude::*;

use super::*;

fn ends(client: u16) -> Ends {
    let at = |port| SocketAddr::from(([10, 0, 0, 1], port));
    Ends::new(at(client), at(80))
}

fn said(connection: u32, offset: u64, bytes: &[u8]) -> Vec<u8> {
    let entry = Entry::Output {
        connection,
        offset,
        bytes,
    };
    [&entry.header()[..], bytes].concat()
}

fn stands(connection: u32, client: u16, outstream: u64, is_closed: bool) -> Vec<u8> {
    let position = ClientPosition {
        ends: ends(client),
        instream: 0,
        outstream,
        is_shut: false,
        is_closed,
        which: Which::Unknown,
    };
    let entry = Entry::ClientPosition {
        connection,
        process: 0,
        position,
    };
    entry.header().to_vec()
}

fn open(connection: u32, client: u16) -> Vec<u8> {
    let entry = Entry::Open {
        connection,
        fd: 100 + connection,
        ends: ends(client),
    };
    entry.header().to_vec()
}

fn report_all(report: &mut HandoverReport, entries: &[Vec<u8>]) -> Result<(), HandoverError> {
    let bytes = entries.concat();
    assert_eq!(report.read(&bytes), bytes.len());
    Ok(())
}

proptest! {
    /// One connection through several images: the output that the client lacks at the end is complete.
    #[test]
    fn unacknowledged_output_is_retained(
        pieces in prop::collection::vec((0usize..50, 0u64..100), 1..8),
        at_last in 0u64..100,
    ) {
        let byte = |at: u64| at.to_le_bytes()[0];
        let (mut written, mut received, mut known) = (0u64, 0u64, 0u64);
        let mut kept = SnapshotTail::default();
        for (length, more) in pieces {
            let end = written + length as u64;
            // Acknowledged bytes at the start of the shadow replay: may be more than the output up to the image.
            received = (received + more).min(end + 20);
            // The restored process receives the client's present position.
            known = known.max(received);
            let from = written.max(known.min(end));
            let new: Vec<u8> = (from..end).map(byte).collect();
            let mut report = kept.report.clone();
            if !new.is_empty() {
                report_all(&mut report, &[said(1, from, &new)])?;
            }
            report_all(&mut report, &[open(1, 7)])?;
            let positions = [Position { ends: ends(7), received }];
            kept = report.snapshot_tail(&positions)?;
            prop_assert_eq!(&kept.open, &vec![(101, ends(7))]);
            prop_assert_eq!(&SnapshotTail::from_bytes(&kept.to_bytes()).unwrap(), &kept);
            written = end;
        }
        let lacks_from = (received + at_last).min(written);
        let mut report = kept.report;
        report_all(&mut report, &[stands(1, 7, written, false)])?;
        let passed = report.finish(1)?.clients;
        prop_assert_eq!(passed.len(), 1);
        prop_assert_eq!(passed[0].offset + passed[0].output.len() as u64, written);
        prop_assert!(passed[0].offset <= lacks_from || lacks_from == written);
        let all: Vec<u8> = (passed[0].offset..written).map(byte).collect();
        prop_assert_eq!(&passed[0].output, &all);
    }

    #[test]
    fn malformed_file_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = SnapshotTail::from_bytes(&bytes);
    }
}

#[test]
fn output_of_gone_client_is_dropped() {
    let entries = [
        said(1, 0, b"closed, and its client is gone"),
        stands(1, 1, 30, true),
        said(2, 10, b"closed"),
        stands(2, 2, 16, true),
        said(3, 0, b"of a connection with the same ends as an open one"),
        stands(3, 3, 49, true),
        said(4, 5, b"open"),
        open(4, 3),
        open(5, 5),
    ];
    let position = |client, received| Position {
        ends: ends(client),
        received,
    };
    let positions = [position(2, 13), position(3, 6), position(5, 0)];
    let mut report = HandoverReport::default();
    report_all(&mut report, &entries).expect("it makes sense");
    let kept = report.snapshot_tail(&positions).expect("no others");
    let expected = [
        said(2, 13, b"sed"),
        said(4, 6, b"pen"),
        stands(2, 2, 16, true),
    ]
    .concat();
    assert_eq!(kept.report.to_bytes(), expected);
    assert_eq!(kept.open, [(104, ends(3)), (105, ends(5))]);
}

/// Only the first output after an image may leave a gap, and only on a client's connection.
#[test]
fn output_gap_is_refused() {
    let image = || {
        let file = [said(1, 0, b"said"), open(1, 1)].concat();
        SnapshotTail::from_bytes(&file).expect("kept").report
    };
    let reaches = |outstream| {
        let position = UpstreamPosition {
            serial: 1,
            is_local: false,
            instream: 0,
            outstream,
            is_shut: false,
            is_closed: false,
        };
        let entry = Entry::UpstreamPosition {
            connection: 1,
            process: 0,
            position,
        };
        entry.header().to_vec()
    };
    let fine = [
        vec![said(1, 9, b"more"), stands(1, 1, 13, false)],
        vec![stands(1, 1, 9, false)],
        vec![said(2, 9, b"another"), stands(2, 2, 16, false)],
    ];
    let finish = |entries: &[Vec<u8>], open| {
        let mut report = image();
        report_all(&mut report, entries)?;
        report.finish(open)
    };
    for entries in fine {
        finish(&entries, 1).expect("what is left out, clients have");
    }
    let refused = [
        vec![said(1, 3, b"twice")],
        vec![stands(1, 1, 3, false)],
        vec![said(1, 9, b"more"), said(1, 20, b"and more")],
        vec![said(1, 9, b"more"), stands(1, 1, 20, false)],
        vec![said(2, 0, b"another"), said(2, 9, b"and more")],
        vec![reaches(9)],
    ];
    for entries in refused {
        let finished = finish(&entries, 1);
        assert!(
            matches!(finished, Err(HandoverError::Gap)),
            "{entries:?}: {finished:?}"
        );
    }
}
