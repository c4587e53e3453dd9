//! Properties that hold for every byte string. The tests of this crate and the fuzz targets run the same functions;
//! each function panics if the property does not hold.

use std::{net::SocketAddr, time::Duration};

use journal::{Limits, State};
use protocol::{
    control::{Agreed, Attach, Decoder, ReplayMode, Request, Response, encode},
    link::LinkKey,
};
use wal::{Batch, Log, simulated::Simulated};

use crate::{
    Ingest, RpcHandler,
    durable::{Order, entry::Entry, restore, write},
    link::{AckPolicy, Greeting, Outbox, Peer, Sessions},
    rpc::record_summary,
};

/// Bytes of a segment of a log: small, to force several segments.
const SEGMENT: u64 = 1000;
const KEEP: Duration = Duration::from_secs(600);
/// The instance that asks.
const INSTANCE: u64 = 5;

fn no_sessions() -> Sessions {
    Sessions::new(AckPolicy::EachBatch, 1 << 30, KEEP)
}

/// Reads any bytes as an entry of the log: a parsed entry encodes to the original bytes. An entry of the version
/// before encodes to this version, and decodes to an equal entry.
///
/// # Panics
///
/// If the property does not hold.
pub fn log_entry(bytes: &[u8]) {
    let write = |(instance, entry): (u64, Entry<'_>)| {
        let mut again = Vec::new();
        entry.write(instance, &mut again);
        again
    };
    for version in wal::OLDEST..=wal::VERSION {
        if let Some(entry) = Entry::read(version, bytes) {
            let again = write(entry.clone());
            assert!(again == bytes || version < wal::VERSION);
            assert_eq!(Entry::read(wal::VERSION, &again), Some(entry));
        }
    }
}

/// Reads any records, each after a length byte, as a log: the logger restores the log and appends to the log. A
/// second restore finds the same connections with the same records. All records are in a single segment: the logger
/// would begin each further segment with the sessions, unlike any input.
///
/// # Panics
///
/// If the property does not hold.
pub fn log_entries(mut bytes: &[u8]) {
    let Ok(mut log) = Log::open(Simulated::default(), |_| ()) else {
        panic!("nothing is there that could be wrong");
    };
    let mut batch = Batch::default();
    while let Some((length, rest)) = bytes.split_first() {
        let (record, rest) = rest.split_at(rest.len().min((*length).into()));
        bytes = rest;
        batch.clear(0);
        assert!(batch.add(|out| out.extend_from_slice(record)));
        log.append(&mut batch).expect("room");
    }
    let mut sessions = no_sessions();
    let restored = restore(at_rest(log), &mut sessions, SEGMENT);
    let restored = restored.unwrap_or_else(|error| panic!("{error}"));
    goes_on(restored.log, Outbox::with_log(restored.ledger), &sessions);
}

/// Reads any bytes as the requests of a service to two loggers, on a ring and on a log link. Each answer survives
/// encoding and decoding. The log of the second logger, restored again, has the same connections.
///
/// # Panics
///
/// If the property does not hold.
pub fn requests(bytes: &[u8]) {
    let limits = Limits {
        per_connection: 4096,
        total: 1 << 14,
        connections: 4,
    };
    let mut ingest = Ingest::new(limits, ReplayMode::Request);
    let mut sessions = no_sessions();
    let restored = restore(Simulated::default(), &mut sessions, SEGMENT);
    let restored = restored.unwrap_or_else(|error| panic!("{error}"));
    let mut out = Outbox::with_log(restored.ledger);
    let rpc = RpcHandler::new(1);
    let _ = sessions.attach(&attach(), peer(), "key", &greeting(), &mut out);
    let mut requests = Decoder::<Request>::new(Agreed::OWN);
    requests.feed(bytes);
    while let Ok(Some(request)) = requests.pull() {
        if let Request::Frames { bytes } = &request {
            ingest.take(bytes);
        }
        can_be_sent(&rpc.answer(&mut ingest, &request));
        let session = sessions.get_mut(INSTANCE).expect("it has attached");
        can_be_sent(&session.answer(rpc, &request, &mut out));
    }
    goes_on(restored.log, out, &sessions);
}

fn can_be_sent(answers: &[Response]) {
    for answer in answers {
        let mut bytes = Vec::new();
        encode(answer, Agreed::OWN, &mut bytes).expect("an answer can be written");
        let mut decoder = Decoder::<Response>::new(Agreed::OWN);
        decoder.feed(&bytes);
        let heard = decoder.pull().expect("an answer can be read");
        let heard = heard.expect("the answer is whole");
        assert_eq!(&heard, answer);
        let mut again = Vec::new();
        encode(&heard, Agreed::OWN, &mut again).expect("an answer can be written");
        assert_eq!(again, bytes);
        assert_eq!(decoder.pull(), Ok(None));
    }
}

/// Writes every pending order to the log; then another logger restores the log.
fn goes_on(mut log: Log<Simulated>, mut out: Outbox, sessions: &Sessions) {
    // The clock advances, since some orders wait for a later time.
    for now in 1..20 {
        let now = Duration::from_secs(now);
        while let Some(order) = out.next_order(sessions, now) {
            let Order::Write(mut job) = order else {
                panic!("the storage does not fail");
            };
            write(&mut log, &mut job).expect("room");
            let _ = out.written(job.batch);
        }
    }
    assert!(!out.is_writing());
    let mut again = no_sessions();
    let restored = restore(at_rest(log), &mut again, SEGMENT);
    restored.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(told(&again), told(sessions));
}

/// The storage of a logger that has ended.
fn at_rest(log: Log<Simulated>) -> Simulated {
    let mut storage = log.into_storage();
    storage.restart();
    storage
}

/// All connections that have a record, with the recorded state.
fn told(sessions: &Sessions) -> Vec<String> {
    let mut told = Vec::new();
    for (attach, session) in sessions.iter() {
        let journal = session.journal();
        told.push(format!("{attach:?} {}", journal.turns_are_held()));
        for connections in session.connections() {
            told.push(format!("{connections:?}"));
        }
        for summary in journal.summaries() {
            if let State::Protected(_) = summary.state {
                let heads: Vec<_> = journal.outstream_ranges(summary.flow).collect();
                let beginnings: Vec<_> = journal.beginnings(summary.flow).collect();
                let summary = record_summary(journal, &summary);
                told.push(format!("{summary:?} {heads:?} {beginnings:?}"));
            }
        }
    }
    told
}

fn attach() -> Attach {
    Attach {
        instance: INSTANCE,
        replay: ReplayMode::Request,
        per_connection: 4096,
        total: 1 << 14,
        connections: 4,
        udp_port: 1000,
        inherit: false,
        service: "fuzz".into(),
        ..Attach::PLAIN
    }
}

fn peer() -> Peer {
    Peer {
        via: 0,
        local: [192, 0, 2, 9].into(),
        address: SocketAddr::from(([192, 0, 2, 1], 1000)),
    }
}

fn greeting() -> Greeting {
    Greeting {
        up: LinkKey([1; 16]),
        down: LinkKey([2; 16]),
        counter: 1,
    }
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
    fn the_seeds_of_the_fuzz_targets_hold() {
        seeds("log_entry").iter().for_each(|seed| log_entry(seed));
        seeds("log_entries")
            .iter()
            .for_each(|seed| log_entries(seed));
        seeds("control_socket")
            .iter()
            .for_each(|seed| requests(seed));
    }

    proptest! {
        #[test]
        fn an_entry_is_written_as_it_is_read(kind in 0u8..48, rest in prop::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 16..120)) {
            log_entry(&[&[kind], &rest[..]].concat());
        }
    }
}
