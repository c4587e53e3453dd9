//! Logs of version 5.

use std::collections::BTreeMap;

use journal::{Protected, State};
use wal::{Batch, Piece};

use super::*;

/// Where the body of an entry begins: behind its kind, the instance, and the connection.
const BODY: usize = 17;

/// An entry as version 5 wrote it; `None`: it had none like that.
fn former_entry(entry: &[u8]) -> Option<Vec<u8>> {
    let (head, body) = entry.split_at(BODY);
    let (kind, owner) = (head[0], &head[1..]);
    match kind {
        // What the server said, of the record and of a copy.
        17 | 33 => {
            let (seq, rest) = body.split_at(4);
            let (has, rest) = (rest[0], &rest[1..]);
            let (after, rest) = rest.split_at(if has & 1 == 0 { 0 } else { 8 });
            let rest = &rest[if has & 2 == 0 { 0 } else { 4 }..];
            let kind = kind + if after.is_empty() { 0 } else { 4 };
            Some([&[kind], owner, seq, after, rest].concat())
        }
        // The end of a copy.
        6 => Some(entry[..entry.len() - 8].to_vec()),
        // The key of digests, and digests.
        9 | 23 | 39 => None,
        _ => Some(entry.to_vec()),
    }
}

fn former_header(number: u64) -> [u8; 32] {
    let mut header = [0; 32];
    header[..8].copy_from_slice(b"OUTLSEGM");
    header[8] = 5;
    header[16..24].copy_from_slice(&number.to_le_bytes());
    let checksum = crc32fast::hash(&header[..28]);
    header[28..].copy_from_slice(&checksum.to_le_bytes());
    header
}

/// The log as version 5 would have written it.
fn as_version_5(mut log: Simulated) -> Simulated {
    log.restart();
    let mut all: BTreeMap<u64, Vec<Vec<u8>>> = BTreeMap::new();
    let read = Log::open(log, |piece| match piece {
        Piece::Record { segment, bytes, .. } => {
            all.entry(segment).or_default().extend(former_entry(bytes));
        }
        Piece::End { segment, .. } => {
            all.entry(segment).or_default();
        }
        Piece::Damaged { .. } | Piece::Removed { .. } => panic!("it is whole"),
    });
    read.expect("it is read");
    storage(all.into_iter().map(|(number, records)| {
        let mut batch = Batch::default();
        for record in records {
            assert!(batch.add(|out| out.extend_from_slice(&record)));
        }
        let mut own = Log::open(Simulated::default(), |_| ())
            .map_err(|_| ())
            .expect("empty");
        while own.current() < number {
            own.next_segment().expect("room");
        }
        own.append(&mut batch).expect("room");
        own.commit().expect("room");
        let bytes = own.storage().read(number).expect("it is there");
        (number, [&former_header(number)[..], &bytes[32..]].concat())
    }))
}

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

/// The records, with the places at which their clients began to speak.
fn records(world: &World) -> BTreeMap<FlowId, (Protected, Vec<journal::Position>)> {
    let session = world.sessions.get(INSTANCE).expect("attached");
    let flows = world.host.connections.keys();
    let record = |flow: &FlowId| match session.journal().summary(*flow)?.state {
        State::Protected(record) => {
            let beginnings = session.journal().beginnings(*flow).collect();
            Some((*flow, (record, beginnings)))
        }
        State::Unprotected(_) => None,
    };
    flows.filter_map(record).collect()
}

/// It is read as what it was; only how far servers had read is not known, so that more is in doubt.
#[test]
fn a_log_of_version_5_is_read_and_written_on() {
    let mut compared = 0;
    for seed in 0..6 {
        let mut world = World::new(seed, ReplayMode::Connection);
        let large = world.connect(40_000);
        for _ in 0..20 {
            let busy = world.connect(3000);
            while !world.host.connections[&busy].is_recorded() {
                world.traffic();
                world.answer();
                world.write_all();
            }
            world.close(busy);
            world.write_all();
        }
        let oldest = world.log.storage().list().expect("listed")[0];
        assert!(oldest > 0, "records were copied");
        let storage = as_version_5(world.log.storage().clone());
        world.die(false);
        let own = records(&world);
        world.begin_with(storage);
        let former = records(&world);
        assert!(own.keys().eq(former.keys()) && own.contains_key(&large));
        for (flow, (own, beginnings)) in own {
            let (former, begun) = &former[&flow];
            assert!(former.doubt.at_or_before(own.doubt), "flow {flow}");
            assert!(former.asked.at_or_before(own.asked), "flow {flow}");
            let as_own = Protected {
                asked: own.asked,
                doubt: own.doubt,
                held: own.held,
                ..*former
            };
            assert_eq!(as_own, own, "flow {flow}");
            assert_eq!(*begun, beginnings, "flow {flow}");
            compared += beginnings.len();
        }
        // What comes next stands behind that in the layout of now.
        while !world.host.is_recorded() {
            world.traffic();
            world.answer();
            world.write_all();
        }
        world.die(true);
        assert!(world.host.is_recorded());
    }
    assert!(compared > 20, "{compared} beginnings");
}

/// What a logger of version 5 wrote (of commit 7b476c15) of two clients of our test server, while they talked.
const WRITTEN: &[u8] = include_bytes!("version-5.segment");

#[test]
fn what_a_logger_of_version_5_wrote_is_read() {
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
        assert_eq!(record.doubt, record.stable_seq, "all that is not recorded");
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
