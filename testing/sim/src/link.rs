//! A logger on another machine: the real `logger::link`, and the packets in both directions.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use journal::{Journal, State};
use logger::{
    RpcHandler,
    link::{AckPolicy, Greeting, Outbox, Peer, Session, Sessions},
};
use protocol::{
    DigestSeed,
    control::{Attach, RecordSummary, Recorded, Request, Response},
    link::{Ack, KeySet, KeySlot, LinkKey, LinkKeys, Probe, ProbeKind, SegmentView},
    mirror::{self, FrameKind},
};
use rand::rngs::SmallRng;
use south_model::{LinkSettings, SouthSide, newest_records};
use wire::FlowId;

use crate::{
    crashable_logger::{CrashableLogger, Transition},
    record::Notice,
    scenario::{LinkSetup, ServiceSetup},
    trace,
};

/// Instance of the first life of the server's host.
const INSTANCE_NUMBER: u64 = 7;
const KEY_NAME: &str = "key";
const SERVER_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 9, 1)), 9000);
const LOGGER_ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 9, 2)), 7600);
/// Length of the headers of IPv4 and UDP.
const IP_AND_UDP_BYTES: usize = 28;

/// The settings of the link for the programs of the server's host, in this instance of the host.
pub(crate) fn settings(setup: &LinkSetup, instance: u8) -> LinkSettings {
    LinkSettings {
        local: SERVER_ADDRESS,
        remote: LOGGER_ADDRESS,
        keys: LinkKeys {
            version: protocol::link::VERSION,
            slot: KeySlot::Zero,
            up: up(instance),
            down: down(instance),
        },
        mtu: u16::MAX,
        strategy: setup.strategy,
        digests: true,
    }
}

const fn up(instance: u8) -> LinkKey {
    LinkKey([2 * instance + 1; 16])
}

const fn down(instance: u8) -> LinkKey {
    LinkKey([2 * instance + 2; 16])
}

/// A packet that shows the programs the way.
pub(crate) fn probe(instance: u8) -> Vec<u8> {
    let probe = Probe {
        version: protocol::link::VERSION,
        kind: ProbeKind::Probe,
        slot: KeySlot::Zero,
        counter: 1,
    };
    packet(SERVER_ADDRESS, LOGGER_ADDRESS, &probe.encode(&up(instance)))
}

/// The logger, with a single service.
#[derive(Debug)]
pub(crate) struct Remote {
    sessions: Sessions,
    attach: Attach,
    /// The seed of the hash key for the records of the logger.
    digests: Option<DigestSeed>,
    /// Of the server's host, from 0.
    instance: u8,
    policy: AckPolicy,
    peer: Peer,
    out: Outbox,
    /// The logger keeps a log, and dies.
    crashable: Option<CrashableLogger>,
    /// The logger has returned, and the service has not attached yet.
    ungreeted: bool,
    /// Connections that had lost their records when the logger died.
    given_up: BTreeSet<FlowId>,
}

impl Remote {
    pub(crate) fn new(
        setup: &LinkSetup,
        (service, digests): (&ServiceSetup, Option<DigestSeed>),
        total: u64,
    ) -> Self {
        let peer = Peer {
            via: 0,
            local: LOGGER_ADDRESS.ip(),
            address: SERVER_ADDRESS,
        };
        let attach = Attach {
            instance: INSTANCE_NUMBER,
            replay: service.mode,
            per_connection: service.record_limit,
            total,
            connections: 64,
            udp_port: SERVER_ADDRESS.port(),
            inherit: false,
            service: "simulated".to_owned(),
            ..Attach::PLAIN
        };
        let mut remote = Self {
            sessions: sessions(setup.policy, total),
            attach,
            digests,
            instance: 0,
            policy: setup.policy,
            peer,
            out: Outbox::default(),
            crashable: setup.durable.map(CrashableLogger::new),
            ungreeted: false,
            given_up: BTreeSet::new(),
        };
        if let Some(crashable) = &mut remote.crashable {
            remote.out = crashable.begin(&mut remote.sessions);
        }
        remote.greet(1);
        remote
    }

    /// The service attaches. `counter` is above all that an earlier life has used.
    fn greet(&mut self, counter: u64) {
        let greeting = Greeting {
            up: up(self.instance),
            down: down(self.instance),
            counter,
        };
        self.sessions
            .attach(&self.attach, self.peer, KEY_NAME, &greeting, &mut self.out);
        let Some(told) = self.digests.map(Request::DigestSeed) else {
            return;
        };
        if let [Response::DigestSeed(known)] = self.ask(&told)[..] {
            self.digests = Some(known);
        }
    }

    /// The server's host has rebooted: the service attaches and reads the connections of the earlier instance. Returns
    /// these, and a number that none of them has. `None`: the service has to ask again.
    pub(crate) fn inherited(
        &mut self,
        digests: Option<DigestSeed>,
        now: Duration,
    ) -> Option<(FlowId, Vec<(Recorded, RecordSummary)>)> {
        if self.is_away() {
            return None;
        }
        let attach = Attach {
            instance: self.attach.instance + 1,
            inherit: true,
            ..self.attach.clone()
        };
        let inherited =
            self.sessions
                .inherit(&attach, self.peer, KEY_NAME, false, now, &mut self.out);
        inherited.ok()?;
        self.instance += 1;
        self.digests = digests;
        self.attach = Attach {
            inherit: false,
            ..attach
        };
        self.greet(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX));
        let connections = self.ask(&Request::Connections).into_iter();
        let connections = connections.flat_map(|answer| match answer {
            Response::Connections { connections, .. } => connections,
            _ => Vec::new(),
        });
        let (connections, others) = newest_records(connections.collect());
        for flow in others {
            self.unprotect(flow);
        }
        let summaries = self.ask(&Request::Summaries).into_iter();
        let summaries = summaries.flat_map(|answer| match answer {
            Response::Summaries { summaries, .. } => summaries,
            _ => Vec::new(),
        });
        let mut summaries: BTreeMap<FlowId, RecordSummary> =
            summaries.map(|summary| (summary.flow, summary)).collect();
        let last = summaries.keys().next_back();
        let next = FlowId(last.map_or(0, |last| last.0 + 1));
        let both = |recorded: Recorded| {
            let summary = summaries.remove(&recorded.beginning.flow)?;
            Some((recorded, summary))
        };
        Some((next, connections.into_iter().filter_map(both).collect()))
    }

    /// The seed of the hash key for the records of the logger.
    pub(crate) const fn digests(&self) -> Option<DigestSeed> {
        self.digests
    }

    fn ask(&mut self, request: &Request) -> Vec<Response> {
        let session = self.sessions.get_mut(self.attach.instance);
        session.map_or_else(Vec::new, |session| {
            session.answer(RpcHandler::new(1), request, &mut self.out)
        })
    }

    /// Whether the logger is dead at present.
    pub(crate) fn is_away(&self) -> bool {
        self.ungreeted
            || self
                .crashable
                .as_ref()
                .is_some_and(CrashableLogger::is_dead)
    }

    /// The logger dies or returns, if due. Returns whether the logger has returned.
    pub(crate) fn live(&mut self, rng: &mut SmallRng, now: u64) -> bool {
        let Some(crashable) = &mut self.crashable else {
            return false;
        };
        let Some(transition) = crashable.advance(rng, now) else {
            return self.greet_if_due(now);
        };
        trace::note(now, || format!("the logger {transition:?}"));
        let session = self.sessions.get(self.attach.instance);
        let summaries = session.map(Session::journal);
        let summaries = summaries.into_iter().flat_map(Journal::summaries);
        let lost = summaries.filter(|summary| matches!(summary.state, State::Unprotected(_)));
        self.given_up.extend(lost.map(|summary| summary.flow));
        self.sessions = sessions(self.policy, self.attach.total);
        self.out = Outbox::default();
        self.ungreeted = false;
        if transition == Transition::Returns {
            self.out = crashable.begin(&mut self.sessions);
            self.ungreeted = true;
        }
        self.greet_if_due(now)
    }

    /// The service attaches to a returned logger. The inheritance of the records may not have been written before the
    /// death: then the logger inherits again. Returns whether the service has attached.
    fn greet_if_due(&mut self, now: u64) -> bool {
        let again = Attach {
            inherit: self.instance > 0,
            ..self.attach.clone()
        };
        let at = Duration::from_nanos(now);
        let ready = self.ungreeted
            && self
                .sessions
                .inherit(&again, self.peer, KEY_NAME, false, at, &mut self.out)
                .is_ok();
        if ready {
            self.ungreeted = false;
            self.greet(now);
        }
        ready
    }

    /// Whether the logger had given up the record of this connection before dying.
    pub(crate) fn has_given_up(&self, flow: FlowId) -> bool {
        self.given_up.contains(&flow)
    }

    /// The number of deaths of the logger.
    pub(crate) fn deaths(&self) -> u32 {
        self.crashable
            .as_ref()
            .map_or(0, |crashable| crashable.deaths)
    }

    fn session(&self) -> Option<&Session> {
        self.sessions.get(self.attach.instance)
    }

    pub(crate) fn journal(&self) -> Option<&Journal> {
        self.session().map(Session::journal)
    }

    /// A packet has come over the link.
    pub(crate) fn receive(&mut self, packet: &[u8], now: Duration) {
        if self.is_away() {
            return;
        }
        let datagram = packet.get(IP_AND_UDP_BYTES..).unwrap_or_default();
        let at = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        trace::note(at, || {
            format!("to the logger: {:?}", SegmentView::parse(datagram))
        });
        self.sessions.take(self.peer, datagram, now, &mut self.out);
    }

    /// The logger's packets for the server's host.
    pub(crate) fn say(&mut self, rng: &mut SmallRng, now: Duration) -> Vec<Vec<u8>> {
        self.sessions.settle(now, &mut self.out);
        if let Some(crashable) = &mut self.crashable {
            crashable.write(&mut self.out, &self.sessions, rng, now);
        }
        let at = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        let mut keys = KeySet::EMPTY;
        keys.put(KeySlot::Zero, down(self.instance));
        for datagram in self.out.datagrams() {
            let ack = || Ack::decode(datagram.bytes(), &keys);
            trace::note(at, || format!("the logger says: {:?}", ack()));
        }
        let mut packets = Vec::new();
        let mut send =
            |_, datagram: &[u8]| packets.push(packet(LOGGER_ADDRESS, SERVER_ADDRESS, datagram));
        self.out.drain(&mut send);
        packets
    }

    /// The time of the logger's next packet without a request.
    pub(crate) fn due(&self) -> Option<Duration> {
        let crashable = self.crashable.as_ref().and_then(CrashableLogger::due);
        let due = [self.sessions.due_at(), crashable.map(Duration::from_nanos)];
        due.into_iter().flatten().min()
    }

    /// The notices for `serve`.
    pub(crate) fn notices(&mut self) -> Vec<Notice> {
        let Some(session) = self.sessions.get_mut(self.attach.instance) else {
            return Vec::new();
        };
        std::iter::from_fn(|| session.notice())
            .filter_map(|notice| match notice {
                Response::Unknown { flow_low } => Some(Notice::Unknown(flow_low)),
                Response::Unprotected { flow, reason } => Some(Notice::Unprotected(
                    flow,
                    types::UnprotectedReason::from_code(reason.code())?,
                )),
                _ => None,
            })
            .collect()
    }

    /// `serve` asks, or tells, something that is not answered.
    pub(crate) fn tell(&mut self, request: &Request) {
        let answers = self.ask(request);
        debug_assert!(answers.is_empty(), "{answers:?}");
    }

    pub(crate) fn unprotect(&mut self, flow: FlowId) {
        self.tell(&Request::Unprotect { flow });
    }

    /// `serve` forwards the frames of the ring.
    pub(crate) fn forward(&mut self, south: &mut SouthSide) {
        if self.is_away() {
            return; // the frames are safe in the ring
        }
        while let Some(frame) = south.take_mirror() {
            let is_of_the_stream = !matches!(
                frame.kind,
                FrameKind::Instream | FrameKind::Barrier { .. } | FrameKind::Opened { .. }
            );
            let mut bytes = Vec::new();
            // The link itself has the other kinds.
            if is_of_the_stream && frame.encode(mirror::VERSION, &mut bytes).is_ok() {
                self.tell(&Request::Frames { bytes });
            }
        }
    }
}

fn sessions(policy: AckPolicy, total: u64) -> Sessions {
    Sessions::new(policy, total, Duration::from_secs(600))
}

/// A UDP packet without checksums, which no part of the simulation checks.
fn packet(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let len = payload.len() + IP_AND_UDP_BYTES;
    let [high, low] = u16::try_from(len).unwrap_or(u16::MAX).to_be_bytes();
    let mut packet = vec![0x45, 0, high, low, 0, 0, 0, 0, 64, 17, 0, 0];
    for end in [from, to] {
        if let IpAddr::V4(ip) = end.ip() {
            packet.extend(ip.octets());
        }
    }
    let udp = u16::try_from(payload.len() + 8).unwrap_or(u16::MAX);
    for field in [from.port(), to.port(), udp, 0] {
        packet.extend(field.to_be_bytes());
    }
    packet.extend(payload);
    packet
}
