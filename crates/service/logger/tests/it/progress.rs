//! The progress of clients at a logger, and the reports of the progress.

use logger::link::SILENCE;
use protocol::{
    control::{Attach, Recorded, Request},
    link::{Handshake, LinkKey, LinkKeys, Open, SynOptions},
};
use wal::Storage;
use wire::{ChecksumMode, FlowId, SeqNumber};

use crate::{
    host::{self, Connection, Host},
    lives::{Logger, OLD, listens, peer, served, upload},
};

#[test]
fn a_client_that_only_listens_changes_only_what_is_known_of_it() {
    let mut logger = Logger::new();
    let from = peer(1, 1000);
    let mut host = served(&mut logger, OLD, from, &[100]);
    let flow = FlowId(1);
    let known = |logger: &mut Logger| {
        let [recorded] = logger.connections(OLD)[..] else {
            panic!("one connection");
        };
        (recorded.acknowledged, recorded.tsval, recorded.tsecr)
    };
    assert_eq!(known(&mut logger), (0, 0, 0));
    let summaries = logger.ask(OLD, &Request::Summaries);
    // The client's clock is in the upper half of the range; the server's clock wraps.
    let first = listens(&host, flow, 50_000, 0xf000_0000, 0xffff_ffff);
    let second = listens(&host, flow, 100_000, 0xf000_0001, 3);
    logger.take(from, &[first.clone(), second, first]);
    assert_eq!(known(&mut logger), (100_000, 0xf000_0001, 3));
    assert!(logger.out.datagrams().is_empty(), "nothing to acknowledge");
    assert_eq!(logger.ask(OLD, &Request::Summaries), summaries);
    let statistics = logger.sessions.get(OLD).expect("there").statistics();
    assert_eq!((statistics.segments, statistics.progress), (0, 3));
    // Damaged or forged datagrams change no progress.
    let mut damaged = listens(&host, flow, 200_000, 0xf000_0002, 4);
    let at = damaged.len() - 1;
    damaged[at] ^= 1;
    let keys = host.keys;
    host.use_keys(LinkKeys {
        up: LinkKey([77; 16]),
        ..keys
    });
    let forged = listens(&host, flow, 200_000, 0xf000_0002, 4);
    logger.take(from, &[damaged, forged]);
    assert_eq!(known(&mut logger), (100_000, 0xf000_0001, 3));
    // Segments with payload report progress, too; these come a wrap of the client's clock later.
    host.use_keys(keys);
    host.connections.get_mut(&flow).expect("there").said = 150_000;
    upload(&mut logger, &mut host, from);
    assert_eq!(known(&mut logger), (150_000, 1, 3));
}

#[test]
fn who_listens_is_not_a_stranger_who_knocks() {
    let mut logger = Logger::new();
    let from = peer(1, 1000);
    let few = Attach {
        connections: 1,
        ..host::attach(OLD, 1000)
    };
    let (_, keys) = logger.attach(&few, from);
    let mut host = Host::new(keys, 1);
    host.connect(1, 100);
    host.connect(2, 100);
    let open = |host: &Host, flow| host.open(&host.connections[&FlowId(flow)]);
    let listening = listens(&host, FlowId(1), 0, 1, 1);
    logger.take(from, &[open(&host, 1), listening, open(&host, 2)]);
    assert_eq!(logger.connections(OLD)[0].beginning.flow, FlowId(1));
}

#[test]
fn all_connections_with_a_record_are_listed_with_what_they_agreed_on() {
    let mut logger = Logger::with(1 << 20);
    let from = peer(1, 1000);
    let count = u32::try_from(Recorded::PER_MESSAGE + 2).expect("not many");
    let attach = Attach {
        connections: count,
        ..host::attach(OLD, 1000)
    };
    let (_, keys) = logger.attach(&attach, from);
    assert_eq!(logger.connections(OLD), []);
    let handshake = |flow: u32| Handshake {
        tsval: flow,
        syn_options: SynOptions::new(&[2, 4, 5, 180]).expect("short"),
        timestamps: true,
        ..Handshake::PLAIN
    };
    let opens: Vec<Vec<u8>> = (1..=count)
        .map(|flow| {
            let connection = Connection::new(
                FlowId(u64::from(flow)),
                false,
                Vec::new(),
                SeqNumber(flow << 16),
            );
            let open = Open {
                version: protocol::link::VERSION,
                slot: keys.slot,
                flow: connection.flow,
                key: connection.key,
                client_isn: connection.client_isn,
                server_isn: connection.server_isn,
                handshake: handshake(flow),
            };
            open.encode(&keys.up).to_vec()
        })
        .collect();
    logger.take(from, &opens);
    let unprotected = FlowId(7);
    logger.ask(OLD, &Request::Unprotect { flow: unprotected });
    for _ in 0..2 {
        let all = logger.connections(OLD);
        assert_eq!(all.len(), opens.len() - 1);
        assert_eq!(logger.ask(OLD, &Request::Connections).len(), 2);
        for recorded in all {
            let beginning = recorded.beginning;
            let flow = u32::try_from(beginning.flow.0).expect("small");
            assert_ne!(beginning.flow, unprotected);
            assert_eq!(beginning.handshake, handshake(flow));
            assert_eq!(beginning.client_isn, SeqNumber(flow << 16));
            assert_eq!(beginning.instream, beginning.client_isn + 1);
            assert_eq!(beginning.outstream, beginning.server_isn + 1);
        }
        logger.restart();
    }
}

#[test]
fn how_far_a_client_was_outlives_the_logger() {
    let mut logger = Logger::new();
    let from = peer(1, 1000);
    let mut host = served(&mut logger, OLD, from, &[3000]);
    let flow = FlowId(1);
    let heard = |logger: &mut Logger| logger.connections(OLD)[0].acknowledged;
    // Five wraps of the sequence space, and a quarter.
    let quarter = 1u32 << 30;
    for round in 1..=21 {
        let listening = listens(&host, flow, quarter.wrapping_mul(round), round, round + 7);
        logger.take(from, &[listening]);
        logger.now += SILENCE;
        logger.write_all();
    }
    assert_eq!(heard(&mut logger), 21 << 30);
    logger.restart();
    let recorded = logger.connections(OLD)[0];
    assert_eq!(recorded.acknowledged, 21 << 30);
    assert_eq!((recorded.tsval, recorded.tsecr), (21, 28));
    // The log may lack less than 64 KiB of progress.
    let (_, keys) = logger.attach(&host::attach(OLD, 1000), from);
    host.use_keys(keys);
    let listening = listens(&host, flow, quarter + 65_535, 30, 37);
    logger.take(from, &[listening]);
    assert_eq!(heard(&mut logger), (21 << 30) + 65_535);
    logger.now += SILENCE;
    logger.restart();
    assert_eq!(heard(&mut logger), 21 << 30);
    // Segments with payload log the progress, too.
    let (_, keys) = logger.attach(&host::attach(OLD, 1000), from);
    host.use_keys(keys);
    host.connections.get_mut(&flow).expect("there").said = quarter + 65_535;
    upload(&mut logger, &mut host, from);
    logger.restart();
    assert_eq!(heard(&mut logger), (21 << 30) + 65_535);
}

#[test]
fn a_download_does_not_keep_the_disk_busy() {
    let mut logger = Logger::new();
    let from = peer(1, 1000);
    let host = served(&mut logger, OLD, from, &[100]);
    let ordered = logger.now;
    logger.now += SILENCE / 2;
    for round in 1..10 {
        let listening = listens(&host, FlowId(1), round << 20, round, round);
        logger.take(from, &[listening]);
        assert!(logger.writing.is_none());
    }
    assert!(!logger.out.is_writing());
    assert_eq!(logger.out.due_at(), Some(ordered + SILENCE));
    logger.now = ordered + SILENCE;
    logger.order();
    assert!(logger.writing.is_some());
    logger.write_all();
    assert_eq!(logger.out.due_at(), None);
    // An urgent entry does not wait, and takes waiting progress along.
    logger.now += SILENCE / 2;
    let mut datagrams = vec![listens(&host, FlowId(1), 50 << 20, 50, 50)];
    let connection = &host.connections[&FlowId(1)];
    let packet = connection.packet(0, 100, ChecksumMode::Full);
    datagrams.push(host.segment(connection, &packet, false));
    logger.take(from, &datagrams);
    assert!(logger.writing.is_some());
}

#[test]
fn a_copy_takes_along_how_far_the_client_was() {
    let mut logger = Logger::new();
    let from = peer(1, 1000);
    let mut host = served(&mut logger, OLD, from, &[500]);
    upload(&mut logger, &mut host, from);
    for round in 1..=5u32 {
        let listening = listens(&host, FlowId(1), (1u32 << 30).wrapping_mul(round), 5, 6);
        logger.take(from, &[listening]);
    }
    for busy in 2..40 {
        host.connect(busy, 3000);
        upload(&mut logger, &mut host, from);
        host.connections.remove(&FlowId(busy));
        logger.close(OLD, FlowId(busy));
        logger.write_all();
    }
    let oldest = logger.log.storage().list().expect("listed")[0];
    assert!(oldest > 2, "its first segments are gone");
    logger.restart();
    let [recorded] = logger.connections(OLD)[..] else {
        panic!("one connection");
    };
    assert_eq!(recorded.acknowledged, 5 << 30);
    assert_eq!((recorded.tsval, recorded.tsecr), (5, 6));
}
