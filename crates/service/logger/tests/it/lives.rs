//! A logger with a log, for tests with several instances of services and several generations of the logger.

use std::{net::SocketAddr, time::Duration};

use logger::{
    RpcHandler,
    durable::{Job, Order, restore, write},
    link::{AckPolicy, Greeting, Inherited, NotYet, Outbox, Peer, Sessions},
};
use protocol::{
    control::{Attach, Recorded, Request, Response},
    link::{Ack, LinkKey, LinkKeys},
    mirror::{self, CloseReason, FrameKind, MirrorFrame},
};
use wal::{Log, Storage, simulated::Simulated};
use wire::{ChecksumMode, Flags, FlowId, SegmentSpec};

use crate::host::{self, Connection, Host};

pub(crate) const KEEP: Duration = Duration::from_secs(600);
/// A small size, to fill log files often.
pub(crate) const SEGMENT: u64 = 3000;
pub(crate) const OLD: u64 = 9;
pub(crate) const NEW: u64 = 5;

pub(crate) fn peer(host: u8, port: u16) -> Peer {
    Peer {
        via: 0,
        local: [192, 0, 2, 9].into(),
        address: SocketAddr::from(([192, 0, 2, host], port)),
    }
}

/// The first `serve` of a new instance.
pub(crate) fn newborn(instance: u64) -> Attach {
    Attach {
        inherit: true,
        ..host::attach(instance, 1000)
    }
}

pub(crate) fn greeting(life: u64) -> Greeting {
    let number = u8::try_from(life % 100).expect("small");
    Greeting {
        up: LinkKey([number; 16]),
        down: LinkKey([number + 100; 16]),
        counter: life * 1_000_000,
    }
}

/// A logger with a log.
pub(crate) struct Logger {
    pub(crate) sessions: Sessions,
    pub(crate) out: Outbox,
    pub(crate) log: Log<Simulated>,
    /// The order of the writer.
    pub(crate) writing: Option<Job>,
    pub(crate) now: Duration,
    /// The key of services that attach and inherit.
    pub(crate) key: String,
    /// Number of services that have attached.
    greeted: u64,
    segment: u64,
}

impl Logger {
    pub(crate) fn new() -> Self {
        Self::with(SEGMENT)
    }

    /// A log file ends at `segment` bytes.
    pub(crate) fn with(segment: u64) -> Self {
        let mut sessions = Sessions::new(AckPolicy::EachBatch, 1 << 30, KEEP);
        let restored = restore(Simulated::default(), &mut sessions, segment);
        let restored = restored.expect("it is empty");
        Self {
            sessions,
            out: Outbox::with_log(restored.ledger),
            log: restored.log,
            writing: None,
            now: Duration::from_secs(10),
            key: "ours".into(),
            greeted: 0,
            segment,
        }
    }

    /// Inherits after all entries are written.
    pub(crate) fn inherit(
        &mut self,
        attach: &Attach,
        from: Peer,
    ) -> Result<Option<Inherited>, NotYet> {
        let inherited = self.inherit_now(attach, from);
        if !matches!(inherited, Err(NotYet::StillWritten { .. })) {
            return inherited;
        }
        self.now += Duration::from_secs(1); // nothing waits longer to be written
        self.write_all();
        self.inherit_now(attach, from)
    }

    pub(crate) fn inherit_now(
        &mut self,
        attach: &Attach,
        from: Peer,
    ) -> Result<Option<Inherited>, NotYet> {
        self.sessions
            .inherit(attach, from, &self.key, false, self.now, &mut self.out)
    }

    pub(crate) fn attach(&mut self, attach: &Attach, from: Peer) -> (bool, LinkKeys) {
        self.greeted += 1;
        let greeting = greeting(self.greeted);
        self.sessions
            .attach(attach, from, &self.key, &greeting, &mut self.out)
    }

    /// Datagrams arrive, and the batch ends.
    pub(crate) fn take(&mut self, from: Peer, datagrams: &[Vec<u8>]) {
        for datagram in datagrams {
            self.sessions.take(from, datagram, self.now, &mut self.out);
        }
        self.sessions.settle(self.now, &mut self.out);
        self.order();
    }

    pub(crate) fn order(&mut self) {
        match self.out.next_order(&self.sessions, self.now) {
            Some(Order::Write(job)) => self.writing = Some(job),
            Some(Order::Restart) => {
                self.begin_anew();
                self.out.restarted(self.log.current(), &self.sessions);
            }
            None => {}
        }
    }

    pub(crate) fn begin_anew(&mut self) {
        let mut storage = self.log.storage().clone();
        storage.restart();
        for number in storage.list().expect("it can be told") {
            storage.remove(number).expect("removed");
        }
        self.log = Log::open(storage, |_| ()).map_err(|_| ()).expect("empty");
    }

    /// The writer carries out the order.
    pub(crate) fn write(&mut self) {
        if let Some(mut job) = self.writing.take() {
            match write(&mut self.log, &mut job) {
                Ok(()) => drop(self.out.written(job.batch)),
                Err(failure) => {
                    self.begin_anew();
                    drop(self.out.failed(failure.to_string(), self.now));
                }
            }
            self.order();
        }
    }

    pub(crate) fn write_all(&mut self) {
        self.order();
        while self.writing.is_some() {
            self.write();
        }
    }

    /// The ACKs that have left. ACKs for an earlier instance do not concern this instance.
    pub(crate) fn tell(&mut self, host: &mut Host) {
        for datagram in self.out.datagrams() {
            if Ack::decode(datagram.bytes(), &host.down).is_ok() {
                host.hear(datagram.bytes());
            }
        }
        self.out.clear();
    }

    /// The logger dies, and the storage keeps any part of the unsynced data.
    pub(crate) fn die(&mut self, mut below: impl FnMut(usize) -> usize) {
        let mut storage = self.log.storage().clone();
        storage.crash(|most| below(most.max(1)));
        self.sessions = Sessions::new(AckPolicy::EachBatch, 1 << 30, KEEP);
        let restored = restore(storage, &mut self.sessions, self.segment).expect("readable");
        assert_eq!(restored.damaged, 0);
        self.out = Outbox::with_log(restored.ledger);
        self.log = restored.log;
        self.writing = None;
    }

    /// The logger stops and restarts.
    pub(crate) fn restart(&mut self) {
        self.write_all();
        self.die(|_| 0);
    }

    pub(crate) fn ask(&mut self, instance: u64, request: &Request) -> Vec<Response> {
        let session = self.sessions.get_mut(instance).expect("there");
        session.answer(RpcHandler::new(1), request, &mut self.out)
    }

    pub(crate) fn connections(&mut self, instance: u64) -> Vec<Recorded> {
        let mut all = Vec::new();
        let mut complete = false;
        for answer in self.ask(instance, &Request::Connections) {
            assert!(!complete, "nothing comes behind the last");
            let Response::Connections { connections, last } = answer else {
                panic!("{answer:?}");
            };
            assert!(connections.len() <= Recorded::PER_MESSAGE);
            all.extend(connections);
            complete = last;
        }
        assert!(complete);
        all
    }

    pub(crate) fn read(&mut self, instance: u64, connection: &Connection) -> Vec<u8> {
        let mut bytes = Vec::new();
        let journal = self.sessions.get(instance).expect("there").journal();
        let from = connection.client_isn + 1;
        let read = journal.read(connection.flow, from, usize::MAX, &mut bytes);
        read.expect("a record");
        bytes
    }

    pub(crate) fn close(&mut self, instance: u64, flow: FlowId) {
        let mut bytes = Vec::new();
        let frame = MirrorFrame::<&[u8]>::of(FrameKind::Closed(CloseReason::Finished), flow);
        frame.encode(mirror::VERSION, &mut bytes).expect("a frame");
        self.ask(instance, &Request::Frames { bytes });
    }
}

/// A service that has attached, and its clients.
pub(crate) fn served(logger: &mut Logger, instance: u64, from: Peer, lengths: &[usize]) -> Host {
    let (kept, keys) = logger.attach(&host::attach(instance, from.address.port()), from);
    assert!(!kept);
    let mut host = Host::new(keys, instance);
    for (flow, len) in (1..).zip(lengths) {
        host.connect(flow, *len);
    }
    let opens: Vec<_> = host.connections.values().map(|c| host.open(c)).collect();
    logger.take(from, &opens);
    logger.write_all();
    logger.tell(&mut host);
    assert!(host.connections.values().all(|c| c.opened));
    host
}

/// Sends until all input is recorded.
pub(crate) fn upload(logger: &mut Logger, host: &mut Host, from: Peer) {
    let mut rounds = 0;
    while !host.is_recorded() {
        rounds += 1;
        assert!(rounds < 3000, "it does not end");
        let datagrams = host.datagrams(700, 3000);
        logger.take(from, &datagrams);
        logger.write_all();
        logger.tell(host);
    }
}

/// A segment of a client that only receives, and has received `heard` bytes.
pub(crate) fn listens(host: &Host, flow: FlowId, heard: u32, tsval: u32, tsecr: u32) -> Vec<u8> {
    let connection = &host.connections[&flow];
    let mut options = vec![1, 1, 8, 10];
    options.extend(tsval.to_be_bytes());
    options.extend(tsecr.to_be_bytes());
    let mut packet = Vec::new();
    SegmentSpec {
        source: connection.key.client(),
        destination: connection.key.server(),
        seq: connection.client_isn + 1,
        ack: connection.server_isn + 1 + heard,
        flags: Flags::ACK,
        window: 1000,
        options: &options,
        payload: &[],
    }
    .emit(&mut packet, ChecksumMode::Full)
    .expect("a packet");
    host.segment(connection, &packet, false)
}
