//! The durable log under a logger that dies at any step, on a storage that keeps any part of the unsynced data, or
//! fails.

mod crashes;
mod former;
mod log;
mod truncation;

use std::{net::SocketAddr, time::Duration};

use logger::{
    RpcHandler,
    durable::{Change, Job, Order, RETRY, SLOW, restore, write},
    link::{AckPolicy, Greeting, Outbox, Peer, Sessions},
};
use proptest::prelude::*;
use protocol::{
    Digest,
    control::{Attach, ReplayMode, Request, Response},
    link::LinkKey,
    mirror::{CloseReason, FrameKind},
};
use rand::{Rng, seq::SliceRandom};
use wal::{Log, Storage, simulated::Simulated};
use wire::{ChecksumMode, FlowId, SeqNumber};

use crate::host::{Host, attach, frame};

const INSTANCE: u64 = 5;
const KEEP: Duration = Duration::from_secs(600);
const PID: RpcHandler = RpcHandler::new(1);
/// A small size, to fill log files often.
const SEGMENT: u64 = 3000;

fn peer() -> Peer {
    Peer {
        via: 0,
        local: [192, 0, 2, 9].into(),
        address: SocketAddr::from(([192, 0, 2, 1], 1000)),
    }
}

/// A logger with a log, and a serving host that outlives the logger.
struct World {
    sessions: Sessions,
    out: Outbox,
    log: Log<Simulated>,
    /// The order of the writer.
    writing: Option<Job>,
    host: Host,
    /// Number of logger generations.
    lives: u64,
    now: Duration,
    /// The logger's reports about the log.
    told: Vec<Change>,
    /// All acknowledged records are durable.
    durable: bool,
    next_flow: u64,
    attach: Attach,
}

impl World {
    fn new(seed: u64, replay: ReplayMode) -> Self {
        Self::with(seed, |attach| attach.replay = replay)
    }

    fn with(seed: u64, wants: impl FnOnce(&mut Attach)) -> Self {
        let mut attach = attach(INSTANCE, 1000);
        wants(&mut attach);
        let mut sessions = Sessions::new(AckPolicy::EachBatch, 1 << 30, KEEP);
        let restored = restore(Simulated::default(), &mut sessions, SEGMENT);
        let restored = restored.expect("it is empty");
        let mut out = Outbox::with_log(restored.ledger);
        let (kept, keys) = sessions.attach(&attach, peer(), "key", &greeting(1), &mut out);
        assert!(!kept);
        Self {
            sessions,
            out,
            log: restored.log,
            writing: None,
            host: Host::new(keys, seed),
            lives: 1,
            now: Duration::ZERO,
            told: Vec::new(),
            durable: true,
            next_flow: 1,
            attach,
        }
    }

    /// Datagrams arrive, and the batch ends.
    fn batch(&mut self, datagrams: &[Vec<u8>]) {
        for datagram in datagrams {
            self.sessions
                .take(peer(), datagram, self.now, &mut self.out);
        }
        self.sessions.settle(self.now, &mut self.out);
        self.order();
    }

    fn order(&mut self) {
        match self.out.next_order(&self.sessions, self.now) {
            Some(Order::Write(job)) => {
                assert!(self.writing.is_none(), "it has something to do");
                self.writing = Some(job);
            }
            Some(Order::Restart) => match self.begin_anew() {
                Ok(()) => {
                    self.out.restarted(self.log.current(), &self.sessions);
                    self.order();
                }
                Err(why) => self.told.extend(self.out.failed(why, self.now)),
            },
            None => {}
        }
        self.hear();
    }

    fn begin_anew(&mut self) -> Result<(), String> {
        let mut storage = self.log.storage().clone();
        storage.restart();
        remove_all(&mut storage);
        self.log = Log::open(storage, |_| ()).map_err(|(_, error)| error.to_string())?;
        Ok(())
    }

    /// The ACKs that have left.
    fn hear(&mut self) {
        for datagram in self.out.datagrams() {
            self.host.hear(datagram.bytes());
        }
        self.out.clear();
    }

    /// The writer carries out the order, and may get another order.
    fn write(&mut self) {
        let Some(mut job) = self.writing.take() else {
            return;
        };
        let change = match write(&mut self.log, &mut job) {
            Ok(()) => self.out.written(job.batch),
            Err(failure) => {
                let mut storage = self.log.storage().clone();
                storage.restart();
                remove_all(&mut storage);
                self.durable = false;
                self.out.failed(failure.to_string(), self.now)
            }
        };
        self.durable |= change == Some(Change::Durable);
        self.told.extend(change);
        self.hear();
        self.order();
    }

    /// Writes all waiting entries.
    fn write_all(&mut self) {
        while self.writing.is_some() {
            self.write();
        }
    }

    /// The logger dies, with or without the host, and restarts.
    fn die(&mut self, with_host: bool) {
        let mut storage = self.log.storage().clone();
        let random = &mut self.host.random;
        if with_host {
            storage.crash(|below| random.random_range(0..below.max(1)));
        } else {
            storage.restart();
        }
        self.begin_with(storage);
    }

    /// A logger starts with that log.
    fn begin_with(&mut self, storage: Simulated) {
        self.lives += 1;
        self.sessions = Sessions::new(AckPolicy::EachBatch, 1 << 30, KEEP);
        let restored = restore(storage, &mut self.sessions, SEGMENT).expect("readable");
        assert_eq!(restored.damaged, 0);
        self.log = restored.log;
        self.out = Outbox::with_log(restored.ledger);
        self.writing = None;
        let greeting = greeting(self.lives);
        let (_, keys) = self
            .sessions
            .attach(&self.attach, peer(), "key", &greeting, &mut self.out);
        self.host.use_keys(keys);
        self.check();
    }

    /// All acknowledged bytes are recorded, and all recorded bytes are the clients' bytes.
    fn check(&mut self) {
        let session = self.sessions.get_mut(INSTANCE).expect("attached");
        for (flow, connection) in &self.host.connections {
            let Some(stable) = session.journal().stable_seq(*flow) else {
                assert!(
                    !connection.opened,
                    "flow {flow} was acknowledged and is unknown"
                );
                continue;
            };
            let told = connection.client_isn + 1 + u32::try_from(connection.stable).expect("short");
            assert!(stable.at_or_after(told), "flow {flow}: {stable} < {told}");
            let Some(logger_start) = start(session.journal(), *flow) else {
                continue;
            };
            let at = logger_start
                .distance_from(connection.client_isn + 1)
                .expect("after it");
            let at = usize::try_from(at).expect("short");
            let mut bytes = Vec::new();
            let read = session
                .journal()
                .read(*flow, logger_start, usize::MAX, &mut bytes);
            read.expect("it begins there");
            assert!(connection.data[at..].starts_with(&bytes), "flow {flow}");
            assert!(at + bytes.len() >= connection.stable.min(connection.data.len()));
        }
    }

    fn close(&mut self, flow: FlowId) {
        self.host.connections.remove(&flow);
        self.frame(flow, FrameKind::Closed(CloseReason::Finished), &[]);
    }

    /// The server responds to each client, and all clients receive the response.
    fn answer(&mut self) {
        let mut said = Vec::new();
        for (flow, connection) in &mut self.host.connections {
            let (from, packet) = connection.answer(b"an answer");
            said.push((*flow, from, packet));
        }
        for (flow, from, packet) in said {
            let asked = self.host.connections[&flow].client_isn + 1;
            self.frame(flow, FrameKind::Outstream { from, asked }, &packet);
        }
    }

    /// The server's read cursors advance, also ahead of the clients: segments before a cursor are not mirrored.
    fn note(&mut self) {
        let random = &mut self.host.random;
        for connection in self.host.connections.values_mut() {
            let stable = connection.stable.min(connection.data.len());
            let most = (stable + 2000).min(connection.data.len());
            connection.noted = connection.noted.max(random.random_range(stable..=most));
        }
    }

    fn frame(&mut self, flow: FlowId, kind: FrameKind, packet: &[u8]) {
        let bytes = frame(flow, kind, packet);
        self.ask(&Request::Frames { bytes });
    }

    fn ask(&mut self, request: &Request) -> Vec<Response> {
        let session = self.sessions.get_mut(INSTANCE).expect("attached");
        let answers = session.answer(PID, request, &mut self.out);
        self.order();
        answers
    }

    fn connect(&mut self, len: usize) -> FlowId {
        let flow = self.next_flow;
        self.next_flow += 1;
        self.host.connect(flow, len);
        FlowId(flow)
    }

    /// The datagrams of a serving host for a while, on arrival.
    fn traffic(&mut self) {
        let mut datagrams = Vec::new();
        for _ in 0..3 {
            datagrams.extend(self.host.datagrams(700, 3000));
        }
        datagrams.shuffle(&mut self.host.random);
        self.batch(&datagrams);
    }
}

fn greeting(life: u64) -> Greeting {
    let number = u8::try_from(life % 100).expect("small");
    Greeting {
        up: LinkKey([number; 16]),
        down: LinkKey([number + 100; 16]),
        counter: life * 1_000_000,
    }
}

fn start(journal: &journal::Journal, flow: FlowId) -> Option<SeqNumber> {
    match journal.summary(flow)?.state {
        journal::State::Protected(record) => Some(record.start.instream),
        journal::State::Unprotected(_) => None,
    }
}

fn remove_all(storage: &mut Simulated) {
    for number in storage.list().expect("it can be told") {
        storage.remove(number).expect("removed");
    }
}
