//! A log of the version before, and later segments of this version.

use std::collections::{BTreeMap, BTreeSet};

use journal::{Position, Protected};
use wal::{Batch, OLDEST, Piece, VERSION};

use super::*;

/// The kinds of an opening, and of the beginning of a copy.
const BEGINNINGS: [u8; 2] = [4, 5];

/// An entry as the version before wrote it.
fn former_entry(entry: &[u8]) -> &[u8] {
    let added = if BEGINNINGS.contains(&entry[0]) { 4 } else { 0 };
    &entry[..entry.len() - added]
}

fn former_header(number: u64) -> [u8; 32] {
    let mut header = [0; 32];
    header[..8].copy_from_slice(b"OUTLSEGM");
    header[8..12].copy_from_slice(&OLDEST.to_le_bytes());
    header[16..24].copy_from_slice(&number.to_le_bytes());
    let checksum = crc32fast::hash(&header[..28]);
    header[28..].copy_from_slice(&checksum.to_le_bytes());
    header
}

/// The log as the version before would have written it.
fn as_former(mut log: Simulated) -> Simulated {
    log.restart();
    let mut all: BTreeMap<u64, Vec<Vec<u8>>> = BTreeMap::new();
    let read = Log::open(log, |piece| match piece {
        Piece::Record { segment, bytes, .. } => {
            all.entry(segment)
                .or_default()
                .push(former_entry(bytes).to_vec());
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

/// The records, with the places at which the clients began to send.
fn records(world: &World) -> BTreeMap<FlowId, (Protected, Vec<Position>)> {
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

#[test]
fn log_of_version_before_is_read_and_written_on() {
    let mut mixed = 0;
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
        let storage = as_former(world.log.storage().clone());
        world.die(false);
        let own = records(&world);
        world.begin_with(storage);
        let former = records(&world);
        assert!(own.contains_key(&large) && own == former);
        // Later segments have the current version. Records that move there free old segments.
        world.connect(100);
        world.traffic();
        world.write();
        mixed += usize::from(versions(world.log.storage().clone()) == [OLDEST, VERSION].into());
        world.die(false);
        while !world.host.is_recorded() {
            world.traffic();
            world.answer();
            world.write_all();
        }
        world.die(true);
        assert!(world.host.is_recorded());
    }
    assert!(mixed > 0, "no log has segments of both versions");
}

/// The versions of all segments with a record.
fn versions(mut log: Simulated) -> BTreeSet<u32> {
    log.restart();
    let mut versions = BTreeSet::new();
    let read = Log::open(log, |piece| {
        if let Piece::Record { version, .. } = piece {
            versions.insert(version);
        }
    });
    read.expect("it is read");
    versions
}
