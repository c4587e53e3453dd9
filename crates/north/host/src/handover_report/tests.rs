//! Reports of several processes make one report, in any order.

use north_abi::Which;
use proptest::prelude::*;

use super::*;

fn ends(number: u8) -> Ends {
    let mut ends = Ends::default();
    ends.0[0] = number;
    ends
}

fn position(number: u8, outstream: u64, is_closed: bool) -> ClientPosition {
    ClientPosition {
        ends: ends(number),
        instream: 0,
        outstream,
        is_shut: false,
        is_closed,
        which: Which::Unknown,
    }
}

#[derive(Debug, Clone)]
enum Step {
    Say(u8, Vec<u8>),
    Close(u8),
    /// Acknowledged part of the output, in thousandths.
    Forget(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = prop::collection::vec(any::<u8>(), 0..50);
    prop_oneof![
        4 => (0..4u8, bytes).prop_map(|(one, bytes)| Step::Say(one, bytes)),
        1 => (0..4u8).prop_map(Step::Close),
        1 => (0..=1000u64).prop_map(Step::Forget),
    ]
}

proptest! {
    /// The output that clients lack is complete after any number of `forget`, and other output is absent.
    #[test]
    fn tail_has_unacknowledged_output(steps in prop::collection::vec(step(), 0..60)) {
        let mut report = HandoverReport::default();
        // By ends: the output of the latest connection, the acknowledged bytes, and whether the connection is closed.
        let mut all: BTreeMap<u8, (Vec<u8>, u64, bool)> = BTreeMap::new();
        // By ends: the number of the latest connection.
        let mut numbers = [0; 4];
        let mut last = 0;
        for step in steps {
            match step {
                Step::Say(one, bytes) => {
                    if all.get(&one).is_none_or(|(_, _, closed)| *closed) {
                        last += 1;
                        numbers[usize::from(one)] = last;
                        report.take(&Entry::Began { connection: last, ends: ends(one) });
                        all.insert(one, (Vec::new(), 0, false));
                    }
                    let (said, _, _) = all.get_mut(&one).expect("begun");
                    let offset = said.len() as u64;
                    said.extend_from_slice(&bytes);
                    let connection = numbers[usize::from(one)];
                    report.take(&Entry::Output { connection, offset, bytes: &bytes });
                }
                Step::Close(one) => {
                    let Some((said, _, closed)) = all.get_mut(&one).filter(|one| !one.2) else {
                        continue;
                    };
                    *closed = true;
                    let position = position(one, said.len() as u64, true);
                    let connection = numbers[usize::from(one)];
                    report.take(&Entry::ClientPosition { connection, process: 0, position });
                }
                Step::Forget(part) => {
                    for (said, received, _) in all.values_mut() {
                        *received = (*received).max(said.len() as u64 * part / 1000);
                    }
                    let received = all.iter().map(|(one, (_, received, _))| (ends(*one), *received));
                    report.forget(&received.collect());
                }
            }
        }
        let open = all.iter().filter(|(_, (_, _, closed))| !closed);
        let mut count = 0;
        for (one, (said, _, _)) in open {
            let position = position(*one, said.len() as u64, false);
            let connection = numbers[usize::from(*one)];
            report.take(&Entry::ClientPosition { connection, process: 0, position });
            count += 1;
        }
        let passed = report.finish(count).expect("all of them").clients;
        for (one, (said, received, _)) in &all {
            // The latest connection with these ends continues.
            let its = passed.iter().rfind(|passed| passed.position.ends == ends(*one));
            let its = its.expect("its client was never gone");
            prop_assert!(its.offset <= *received);
            let from = usize::try_from(its.offset).expect("short");
            prop_assert_eq!(&its.output, &said[from..]);
        }
    }
}

#[test]
fn gone_client_takes_no_memory() {
    let mut report = HandoverReport::default();
    for connection in [1, 2] {
        report.take(&Entry::Began {
            connection,
            ends: ends(1),
        });
        let bytes = &[0; 100];
        let said = Entry::Output {
            connection,
            offset: 0,
            bytes,
        };
        report.take(&said);
    }
    let position = position(1, 100, true);
    report.take(&Entry::ClientPosition {
        connection: 1,
        process: 0,
        position,
    });
    assert_eq!(report.size(), 2 * (100 + CONNECTION_OVERHEAD_BYTES));
    report.forget(&HashMap::new());
    assert_eq!(report.size(), CONNECTION_OVERHEAD_BYTES, "the open one");
    let more = Entry::Output {
        connection: 2,
        offset: 100,
        bytes: b"more",
    };
    report.take(&more);
}

#[test]
fn closed_upstream_connections_take_no_memory() {
    let reaches = |connection, is_closed| Entry::UpstreamPosition {
        connection,
        process: 0,
        position: UpstreamPosition {
            serial: connection.into(),
            is_local: false,
            instream: 5,
            outstream: 7,
            is_shut: false,
            is_closed,
        },
    };
    let mut report = HandoverReport::default();
    for connection in 0..10 {
        report.take(&reaches(connection, true));
    }
    assert_eq!(
        report.size(),
        10 * CONNECTION_OVERHEAD_BYTES,
        "it is counted"
    );
    report.forget(&HashMap::new());
    assert_eq!(report.size(), 0);
    report.take(&reaches(10, false));
    assert_eq!(report.finish(1).expect("one").opened.len(), 1);
}

/// Three processes serve a connection one after another, and replay at once.
#[test]
fn next_owner_continues_connection() {
    let place = |instream, outstream| StreamOffsets {
        instream,
        outstream,
    };
    let served = |from: [u64; 2], to: [u64; 2]| Entry::Served {
        connection: 5,
        from: place(from[0], from[1]),
        to: place(to[0], to[1]),
    };
    let said = |offset, bytes| Entry::Output {
        connection: 5,
        offset,
        bytes,
    };
    let stands = |process, outstream, instream, is_closed| Entry::ClientPosition {
        connection: 5,
        process,
        position: ClientPosition {
            instream,
            ..position(1, outstream, is_closed)
        },
    };
    let all = [
        said(7, b"third"),
        served([4, 4], [4, 7]),
        said(2, b"fi"),
        stands(3, 12, 9, false),
        said(4, b"sec"),
        served([0, 0], [4, 4]),
        stands(1, 4, 4, true),
        stands(2, 7, 4, true),
        served([4, 7], [9, 12]),
        served([0, 0], [0, 0]),
    ];
    let hear = |entries: &[Entry<'_>]| {
        let mut report = HandoverReport::default();
        for entry in entries {
            report.take(entry);
        }
        report.finish(1)
    };
    let [one] = &hear(&all).expect("one row").clients[..] else {
        panic!("one connection");
    };
    assert_eq!((one.offset, &one.output[..]), (2, &b"fisecthird"[..]));
    assert_eq!((one.position.instream, &one.holders[..]), (9, &[3][..]));
    // Each entry is needed, except the output of the process that has served no part.
    for missing in [0, 1, 2, 4, 5, 8] {
        let mut some = all.to_vec();
        some.remove(missing);
        let is_refused = hear(&some).is_err();
        assert_eq!(is_refused, missing != 2, "without {missing}");
    }
    let both = [&all[..], &[served([4, 4], [5, 7])]].concat();
    assert!(matches!(hear(&both), Err(HandoverError::Row)));
}
