//! Seeds from a logger's log.

use std::{net::SocketAddr, time::Duration};

use logger::{
    RpcHandler,
    durable::{Order, restore, write},
    link::{AckPolicy, Greeting, Outbox, Peer, Sessions},
};
use protocol::{
    control::Request,
    link::{SegmentFlags, SegmentKind, seal},
    mirror::{CloseReason, FrameKind},
};
use wal::{Batch, Log, Piece, Storage as _, simulated::Simulated};
use wire::{Flags, FlowId, SeqNumber};

use crate::messages::{KEY, TIMES, answer_frame, attach, frame, packet, resume};

/// The records of a logger with three connections: the first is closed, the second is given up, and the third continues
/// until the record is copied forward.
pub(crate) fn log_of_a_logger() -> Vec<Vec<u8>> {
    let mut sessions = Sessions::new(AckPolicy::EachBatch, 1 << 30, Duration::from_secs(600));
    let restored = restore(Simulated::default(), &mut sessions, 1000).expect("it is empty");
    let (mut log, mut out) = (restored.log, Outbox::with_log(restored.ledger));
    let peer = Peer {
        via: 0,
        local: [192, 0, 2, 9].into(),
        address: SocketAddr::from(([192, 0, 2, 1], 1000)),
    };
    let greeting = Greeting {
        up: KEY,
        down: KEY,
        counter: 1,
    };
    let (_, keys) = sessions.attach(&attach(), peer, "key", &greeting, &mut out);
    let mut told = vec![Request::HoldTurns { hold: true }];
    told.extend((1..=3).map(|flow| Request::Resume(resume(flow))));
    told.push(Request::Frames {
        bytes: answer_frame(),
    });
    told.push(Request::Unprotect { flow: FlowId(2) });
    told.push(Request::Frames {
        bytes: frame(FrameKind::Closed(CloseReason::Finished), b""),
    });
    let (mut all, mut now) = (Vec::new(), Duration::ZERO);
    let mut rounds = 0u32;
    while rounds < 40 {
        for request in told.drain(..) {
            let session = sessions.get_mut(5).expect("attached");
            let _ = session.answer(RpcHandler::new(1), &request, &mut out);
        }
        let mut datagram = Vec::new();
        let seq = 1001 + 20 * rounds;
        let data = packet(
            false,
            true,
            seq,
            Flags::ACK | Flags::PSH,
            &TIMES,
            b"GET /12345 HTTP/1.1\n",
        );
        let flags = SegmentFlags {
            version: protocol::link::VERSION,
            kind: SegmentKind::Plain,
            unfinished: false,
            slot: keys.slot,
        };
        seal(
            &data,
            FlowId(3),
            (flags, SeqNumber(5001)),
            &keys.up,
            &mut datagram,
        )
        .expect("a packet");
        sessions.take(peer, &datagram, now, &mut out);
        sessions.settle(now, &mut out);
        now += Duration::from_secs(1);
        while let Some(Order::Write(mut job)) = out.next_order(&sessions, now) {
            write(&mut log, &mut job).expect("room");
            let _ = out.written(job.batch);
        }
        rounds += 1;
        let mut storage = log.storage().clone();
        storage.restart();
        let read = Log::open(storage, |piece| {
            if let Piece::Record { bytes, .. } = piece
                && !all.iter().any(|known| known == bytes)
            {
                all.push(bytes.to_vec());
            }
        });
        assert!(read.is_ok());
    }
    all
}

pub(crate) fn one_of_each_kind(log: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = Vec::new();
    for record in log {
        if all.iter().all(|known| known[0] != record[0]) {
            all.push(record.clone());
        }
    }
    // Records that a logger writes seldom.
    let head =
        |kind: u8, flow: u64| [&[kind][..], &5u64.to_le_bytes(), &flow.to_le_bytes()].concat();
    for (kind, flow, body) in [
        (3, 0, 0),
        (7, 0, 8),
        (9, 0, 16),
        (20, 3, 9),
        (22, 3, 4),
        (23, 3, 28),
    ] {
        all.push([head(kind, flow), vec![0; body]].concat());
    }
    all
}

/// Encodes records, each after a length byte: the first eight records, and every `step + 1`th of the rest.
pub(crate) fn entries(log: &[Vec<u8>], step: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let short = log.iter().filter(|record| record.len() < 255);
    for (number, record) in short.enumerate() {
        if number < 8 || number % (step + 1) == 0 {
            bytes.push(u8::try_from(record.len()).expect("short"));
            bytes.extend(record);
        }
    }
    bytes
}

pub(crate) fn segments_of(log: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for count in [0, 1, 3, 8] {
        // The property reads the segment with number 7.
        let mut storage = Simulated::default();
        storage.create(6).expect("room");
        storage.restart();
        let Ok(mut written) = Log::open(storage, |_| ()) else {
            panic!("nothing is there that could be wrong");
        };
        let mut batch = Batch::default();
        for record in &log[..count] {
            assert!(batch.add(|out| out.extend_from_slice(record)));
        }
        written.append(&mut batch).expect("room");
        all.push(written.storage().read(7).expect("it is there"));
        written.next_segment().expect("room");
        all.push(written.storage().read(7).expect("it is there"));
    }
    all
}

pub(crate) fn damaged_logs(log: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let log = entries(&log[..20], 0);
    let short = [&[3][..], b"abc", &[0, 255, 2], b"de", &[255, 1, b'f']].concat();
    let mut all = Vec::new();
    for damage in [
        [0, 0, 0, 0, 0, 0, 0, 0],
        [0, 3, 0, 1, 0, 0, 0, 0],
        [0, 40, 0, 0, 16, 0, 0, 0],
        [0, 33, 0, 255, 255, 255, 255, 0],
        [1, 45, 0, 1, 0, 0, 0, 1],
    ] {
        all.push([&damage[..], &short].concat());
    }
    all.push([&[0, 100, 1, 1, 2, 3, 4, 0][..], &log].concat());
    all
}
