//! Logs of the version before.

use journal::State;
use wal::Storage;

use super::*;

#[cfg(feature = "next-version")]
mod next;

fn storage(files: impl IntoIterator<Item = (u64, Vec<u8>)>) -> Simulated {
    let mut storage = Simulated::default();
    for (number, bytes) in files {
        storage.create(number).expect("room");
        storage.append(&bytes).expect("room");
        storage.sync().expect("room");
    }
    storage.restart();
    storage
}

/// Written by a logger of version 6 while two clients talked to the test server.
const WRITTEN: &[u8] = include_bytes!("version-6.segment");

#[test]
fn segment_of_version_6_is_read() {
    let mut sessions = Sessions::new(AckPolicy::EachBatch, 1 << 30, KEEP);
    let log = storage([(0, WRITTEN.to_vec())]);
    let restored = restore(log, &mut sessions, SEGMENT).expect("it is read");
    let found = (restored.sessions, restored.connections, restored.damaged);
    assert_eq!(found, (1, 2, 0));
    let (_, session) = sessions.iter().next().expect("a session");
    let journal = session.journal();
    let mut all = Vec::new();
    for summary in journal.summaries() {
        let State::Protected(record) = summary.state else {
            panic!("{summary:?}");
        };
        let (mut asked, start) = (Vec::new(), record.start.instream);
        let read = journal.read(summary.flow, start, usize::MAX, &mut asked);
        read.expect("it begins there");
        let said: Vec<u8> = journal
            .outstream_ranges(summary.flow)
            .flat_map(|(_, bytes)| bytes.to_vec())
            .collect();
        all.push([asked, said].map(|bytes| String::from_utf8(bytes).expect("text")));
    }
    let echoed = ["echo\nhelloonetwothree", "helloonetwothree"];
    let talked = ["say one\nsay two\nsay three\n", "one\ntwo\nthree\n"];
    assert_eq!(all, [echoed, talked]);
}
