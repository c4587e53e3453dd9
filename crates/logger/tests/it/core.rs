use std::{net::SocketAddr, time::Duration};

use logger::{
    Desk,
    link::{AckPolicy, Greeting, Outbox, Peer, Session, Sessions},
};
use proptest::prelude::*;
use protocol::{
    UnprotectedReason,
    control::{Attach, Request, Response, Resume},
    link::{Ack, Handshake, KeySlot, LinkKey, Open, Probe, ProbeKind},
    mirror::{CloseReason, FrameKind, MirrorFrame},
};
use rand::{Rng, seq::SliceRandom};
use wire::{ChecksumMode, FlowId, SeqNumber};

use crate::host::{Connection, Host, attach, cut};

const INSTANCE: u64 = 5;
const NOW: Duration = Duration::from_secs(10);
const KEEP: Duration = Duration::from_secs(600);
const PID: Desk = Desk::new(1);

fn peer() -> Peer {
    Peer {
        via: 0,
        local: [192, 0, 2, 9].into(),
        address: SocketAddr::from(([192, 0, 2, 1], 1000)),
    }
}

fn greeting(number: u8) -> Greeting {
    Greeting {
        up: LinkKey([number; 16]),
        down: LinkKey([number + 100; 16]),
        counter: 1000,
    }
}

/// A logger, and the serving host at the other end of its link.
struct Link {
    sessions: Sessions,
    host: Host,
    out: Outbox,
}

impl Link {
    fn new(policy: AckPolicy, seed: u64) -> Self {
        Self::with(policy, seed, &attach(INSTANCE, 1000))
    }

    fn with(policy: AckPolicy, seed: u64, attach: &Attach) -> Self {
        let mut sessions = Sessions::new(policy, 1 << 30, KEEP);
        let mut out = Outbox::default();
        let (kept, keys) = sessions.attach(attach, peer(), &greeting(1), &mut out);
        assert!(!kept);
        Self {
            sessions,
            host: Host::new(keys, seed),
            out,
        }
    }

    fn session(&mut self) -> &mut Session {
        self.sessions.get_mut(INSTANCE).expect("attached")
    }

    fn ask(&mut self, request: &Request) -> Vec<Response> {
        let session = self.sessions.get_mut(INSTANCE).expect("attached");
        session.answer(PID, request, &mut self.out)
    }

    fn take(&mut self, datagram: &[u8]) {
        self.sessions.take(peer(), datagram, NOW, &mut self.out);
    }

    /// The end of a batch: the ACKs that were sent.
    fn settle(&mut self, now: Duration) -> Vec<Ack> {
        self.sessions.settle(now, &mut self.out);
        let sent = self.out.datagrams().iter();
        let acks = sent.map(|datagram| {
            assert_eq!(datagram.to, peer());
            self.host.hear(datagram.bytes())
        });
        let acks = acks.collect();
        self.out.clear();
        acks
    }

    fn connect(&mut self, flow: u64, len: usize) {
        self.host.connect(flow, len);
        let open = self.host.open(&self.host.connections[&FlowId(flow)]);
        self.take(&open);
        self.settle(NOW);
        assert!(self.host.connections[&FlowId(flow)].opened);
    }

    fn send(&mut self, flow: u64, at: usize, len: usize) {
        let connection = &self.host.connections[&FlowId(flow)];
        let packet = connection.packet(at, len, ChecksumMode::Full);
        let datagram = self.host.segment(connection, &packet, false);
        self.take(&datagram);
    }

    /// What the record says that a client sent.
    fn read(&mut self, flow: FlowId) -> Vec<u8> {
        let first = self.host.connections[&flow].client_isn + 1;
        let mut all = Vec::new();
        loop {
            let request = Request::Read {
                flow,
                from: first + u32::try_from(all.len()).expect("short"),
                max_len: 10_000,
            };
            match &self.ask(&request)[..] {
                [Response::Data { bytes, .. }] if bytes.is_empty() => return all,
                [Response::Data { bytes, .. }] => all.extend_from_slice(bytes),
                other => panic!("{other:?}"),
            }
        }
    }

    /// No ACK has run ahead of the record, and the record holds what was sent.
    fn check(&mut self) {
        let flows: Vec<FlowId> = self.host.connections.keys().copied().collect();
        for flow in flows {
            if !self.host.connections[&flow].opened {
                continue;
            }
            let recorded = self.read(flow);
            let connection = &self.host.connections[&flow];
            assert!(connection.data.starts_with(&recorded));
            let told = connection.stable.min(connection.data.len());
            assert!(told <= recorded.len(), "an ACK ran ahead of the record");
        }
    }
}

/// What a network does to datagrams.
#[derive(Debug, Clone, Copy)]
struct Weather {
    lost: f64,
    doubled: f64,
    reordered: f64,
    garbled: f64,
    /// Segmentation offload cuts to this.
    cut: usize,
}

fn weather() -> impl Strategy<Value = Weather> {
    (0.0..0.6, 0.0..0.3, 0.0..1.0, 0.0..0.3, 100usize..2000).prop_map(
        |(lost, doubled, reordered, garbled, cut)| Weather {
            lost,
            doubled,
            reordered,
            garbled,
            cut,
        },
    )
}

/// What arrives of what was sent.
fn blow(link: &mut Link, weather: Weather, sent: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let keys: Vec<_> = link.host.connections.values().map(|c| c.key).collect();
    let random = &mut link.host.random;
    let mut arrived = Vec::new();
    for datagram in sent {
        // Only the tests know of which connection it is; to cut one that is not of this leaves a
        // wrong checksum, and is one more damage.
        let key = &keys[random.random_range(0..keys.len())];
        let pieces = match keys.len() {
            1 => cut(&datagram, key, weather.cut),
            _ => vec![datagram],
        };
        for mut piece in pieces {
            if random.random_bool(weather.lost) {
                continue;
            }
            if random.random_bool(weather.doubled) {
                arrived.push(piece.clone());
            }
            if random.random_bool(weather.garbled) && has_checksum(&piece) {
                let at = random.random_range(0..piece.len());
                piece[at] ^= 1 << random.random_range(0..8);
            }
            arrived.push(piece);
        }
    }
    if random.random_bool(weather.reordered) {
        arrived.shuffle(random);
    }
    arrived
}

/// A segment whose checksum the kernel has left for later has no protection of its payload.
fn has_checksum(datagram: &[u8]) -> bool {
    protocol::link::SegmentView::parse(datagram).map_or(true, |view| !view.flags().unfinished)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the network does: nothing is acknowledged that is not recorded, and what the clients
    /// send again often enough is recorded byte for byte.
    #[test]
    fn a_record_is_exact_in_any_weather(
        seed: u64,
        weather in weather(),
        lengths in prop::collection::vec(0usize..20_000, 1..5),
        policy in prop::sample::select(vec![AckPolicy::EachFrame, AckPolicy::EachBatch]),
    ) {
        let mut link = Link::new(policy, seed);
        for (flow, length) in (1..).zip(&lengths) {
            // Two and two share the low half of their numbers.
            link.host.connect((flow / 2) << 32 | (flow % 2), *length);
        }
        let mut rounds = 0;
        while !link.host.is_recorded() {
            rounds += 1;
            prop_assert!(rounds < 5000, "it does not end");
            let sent = (0..4).flat_map(|_| link.host.datagrams(3000, 10_000)).collect();
            for datagram in blow(&mut link, weather, sent) {
                link.take(&datagram);
            }
            // ACKs are lost, too.
            if link.host.random.random_bool(weather.lost) {
                link.sessions.settle(NOW, &mut link.out);
                link.out.clear();
            } else {
                link.settle(NOW);
            }
            if rounds % 8 == 0 {
                link.check();
            }
        }
        for flow in link.host.connections.keys().copied().collect::<Vec<_>>() {
            prop_assert!(link.read(flow) == link.host.connections[&flow].data);
        }
        let statistics = link.session().journal().statistics();
        prop_assert_eq!(statistics.instream.conflicting, 0);
    }

    /// Datagrams of who does not have the keys, however close to the right ones.
    #[test]
    fn a_forgery_changes_nothing(
        seed: u64,
        key: [u8; 16],
        forged in prop::collection::vec((0usize..3, any::<u16>(), 1usize..2000), 1..20),
    ) {
        let mut link = Link::new(AckPolicy::EachBatch, seed);
        link.connect(1, 5000);
        link.send(1, 0, 100);
        link.settle(NOW);
        let before = link.ask(&Request::Summaries);
        let forger = Host::new(protocol::link::LinkKeys {
            slot: KeySlot::Zero,
            up: LinkKey(key),
            down: LinkKey(key),
        }, seed);
        for (kind, number, len) in forged {
            let connection = &link.host.connections[&FlowId(1)];
            let at = usize::from(number) % connection.data.len();
            let mut stranger = Connection::new(
                FlowId(if kind == 1 { u64::from(number) } else { 1 }),
                false, vec![9; 5000], connection.client_isn,
            );
            stranger.key = connection.key;
            let datagram = match kind {
                0 => forger.open(&stranger),
                1 => forger.segment(&stranger, &stranger.packet(at, len, ChecksumMode::Full), false),
                _ => forger.segment(&stranger, &stranger.packet(at, len, ChecksumMode::Partial), true),
            };
            link.take(&datagram);
        }
        prop_assert!(link.settle(NOW).is_empty());
        prop_assert_eq!(link.ask(&Request::Summaries), before);
        prop_assert_eq!(link.session().journal().statistics().instream.duplicate, 0);
    }

    #[test]
    fn any_datagrams(datagrams: Vec<Vec<u8>>) {
        let mut link = Link::new(AckPolicy::EachBatch, 1);
        for datagram in datagrams {
            link.take(&datagram);
        }
        prop_assert!(link.settle(NOW).is_empty());
    }
}

#[test]
fn a_batch_is_acknowledged_once_for_each_flow() {
    let mut link = Link::new(AckPolicy::EachBatch, 1);
    link.connect(1, 5000);
    link.connect(2, 5000);
    for at in [0, 1000, 2000] {
        link.send(1, at, 1000);
        link.send(2, at, 1000);
    }
    let acks = link.settle(NOW);
    let told: Vec<_> = acks.iter().map(|ack| ack.flow.0).collect();
    assert_eq!(told, [1, 2]);
    assert_eq!(link.host.connections[&FlowId(1)].stable, 3000);
    assert!(link.settle(NOW).is_empty());
}

#[test]
fn each_frame_is_acknowledged_if_asked_for() {
    let mut link = Link::new(AckPolicy::EachFrame, 1);
    link.connect(1, 5000);
    for at in [0, 1000, 2000] {
        link.send(1, at, 1000);
    }
    assert_eq!(link.settle(NOW).len(), 3);
}

#[test]
fn acknowledgements_can_be_put_off() {
    let mut link = Link::new(AckPolicy::After(Duration::from_millis(5)), 1);
    link.connect(1, 5000);
    assert_eq!(link.sessions.due_at(), None);
    link.send(1, 0, 1000);
    let due = NOW + Duration::from_millis(5);
    assert_eq!(link.sessions.due_at(), Some(due));
    assert!(link.settle(due - Duration::from_nanos(1)).is_empty());
    assert_eq!(link.settle(due).len(), 1);
    assert_eq!(link.sessions.due_at(), None);
}

/// RFC 5681, 4.2: a duplicate acknowledgement for each segment beyond a hole, and one at once for
/// what fills it. RFC 2018, 4: the block of the newest arrival first.
#[test]
fn holes_are_told_at_once() {
    let mut link = Link::new(AckPolicy::EachBatch, 1);
    link.connect(1, 20_000);
    let tell = |link: &mut Link, at| {
        link.send(1, at, 1000);
        // Before the batch is at its end.
        let acks = link.out.datagrams().iter();
        let acks = acks.map(|ack| link.host.hear(ack.bytes()));
        assert_eq!(acks.count(), 1);
        link.out.clear();
        let connection = &link.host.connections[&FlowId(1)];
        (connection.stable, connection.ranges.clone())
    };
    assert_eq!(tell(&mut link, 2000), (0, vec![(2000, 3000)]));
    assert_eq!(tell(&mut link, 3000), (0, vec![(2000, 4000)]));
    let two = vec![(6000, 7000), (2000, 4000)];
    assert_eq!(tell(&mut link, 6000), (0, two));
    let three = vec![(9000, 10_000), (6000, 7000), (2000, 4000)];
    assert_eq!(tell(&mut link, 9000), (0, three));
    let three = vec![(4000 - 2000, 5000), (9000, 10_000), (6000, 7000)];
    assert_eq!(tell(&mut link, 4000), (0, three));
    let newest = vec![(12_000, 13_000), (2000, 5000), (9000, 10_000)];
    assert_eq!(tell(&mut link, 12_000), (0, newest));
    assert_eq!(tell(&mut link, 0).0, 1000);
    let filled = tell(&mut link, 1000);
    assert_eq!(filled.0, 5000);
    assert!(filled.1.contains(&(12_000, 13_000)));
    assert!(link.settle(NOW).is_empty(), "nothing is left to be told");
}

#[test]
fn an_open_is_answered_again_and_another_one_refused() {
    let mut link = Link::new(AckPolicy::EachBatch, 1);
    link.connect(1, 100);
    let open = link.host.open(&link.host.connections[&FlowId(1)]);
    link.take(&open);
    assert_eq!(link.settle(NOW).len(), 1);
    let first = &link.host.connections[&FlowId(1)];
    let other = Open {
        slot: KeySlot::Zero,
        flow: first.flow,
        key: first.key,
        client_isn: first.client_isn + 1,
        server_isn: first.server_isn,
        handshake: Handshake::PLAIN,
    };
    let datagram = other.encode(&link.host.keys.up);
    link.take(&datagram);
    assert!(link.settle(NOW).is_empty());
    assert_eq!(link.session().statistics().conflicting_opens, 1);
}

#[test]
fn flows_whose_numbers_end_alike_are_told_apart() {
    let mut link = Link::new(AckPolicy::EachBatch, 1);
    for flow in [7, 1 << 32 | 7, 2 << 32 | 7] {
        link.connect(flow, 1000);
        link.send(flow, 0, 1000);
    }
    link.settle(NOW);
    assert!(link.host.is_recorded());
    link.check();
    link.host.connect(3 << 32 | 7, 1000);
    link.send(3 << 32 | 7, 0, 1000);
    assert!(link.settle(NOW).is_empty());
    assert_eq!(link.session().statistics().bad_tags, 1);
}

#[test]
fn who_only_knocks_is_forgotten_before_others_are_kept_out() {
    let few = Attach {
        connections: 3,
        ..attach(INSTANCE, 1000)
    };
    let mut link = Link::with(AckPolicy::EachBatch, 1, &few);
    for flow in 1..=3 {
        link.connect(flow, 1000);
    }
    link.send(1, 0, 10);
    link.connect(4, 1000);
    link.connect(5, 1000);
    link.send(2, 0, 10);
    let unknown = link.session().notice();
    assert_eq!(unknown, Some(Response::Unknown { flow_low: 2 }));
    link.send(2, 10, 10);
    assert_eq!(link.session().notice(), None, "once a second");
    for flow in [4, 5] {
        link.send(flow, 0, 10);
    }
    link.settle(NOW);
    assert_eq!(link.session().statistics().forgotten_embryos, 2);
    // Now all are in use.
    link.host.connect(6, 10);
    let open = link.host.open(&link.host.connections[&FlowId(6)]);
    link.take(&open);
    assert!(link.settle(NOW).is_empty());
    let refused = Response::Unprotected {
        flow: FlowId(6),
        reason: UnprotectedReason::TooManyConnections,
    };
    assert_eq!(link.session().notice(), Some(refused));
}

#[test]
fn new_keys_are_used_when_the_other_end_has_them() {
    let mut link = Link::new(AckPolicy::EachBatch, 1);
    link.connect(1, 5000);
    let keys = link.session().rekey(LinkKey([50; 16]), LinkKey([60; 16]));
    assert_eq!(keys.slot, KeySlot::One);
    link.send(1, 0, 1000);
    assert_eq!(link.settle(NOW)[0].slot, KeySlot::Zero);
    let old = link.host.keys;
    link.host.use_keys(keys);
    link.send(1, 1000, 1000);
    assert_eq!(link.settle(NOW)[0].slot, KeySlot::One);
    // What was under way is taken, and does not lead back.
    link.host.use_keys(old);
    link.send(1, 2000, 1000);
    assert_eq!(link.settle(NOW)[0].slot, KeySlot::One);
    // The slot that is in use is never the one that is given away.
    let newer = link.session().rekey(LinkKey([51; 16]), LinkKey([61; 16]));
    let newest = link.session().rekey(LinkKey([52; 16]), LinkKey([62; 16]));
    assert_eq!((newer.slot, newest.slot), (KeySlot::Zero, KeySlot::Zero));
    link.host.use_keys(keys);
    link.send(1, 3000, 1000);
    assert_eq!(link.settle(NOW).len(), 1);
    link.host.use_keys(old);
    link.send(1, 4000, 1000);
    assert!(link.settle(NOW).is_empty(), "replaced");
}

#[test]
fn a_probe_is_answered() {
    let mut link = Link::new(AckPolicy::EachBatch, 1);
    let probe = Probe {
        kind: ProbeKind::Probe,
        slot: KeySlot::Zero,
        counter: 17,
    };
    let mut datagram = probe.encode(&link.host.keys.up).to_vec();
    datagram.resize(1400, 0);
    link.take(&datagram);
    let probed = Probe {
        kind: ProbeKind::Probed,
        ..probe
    };
    let [answer] = link.out.datagrams() else {
        panic!("one answer");
    };
    let answer = Probe::decode(ProbeKind::Probed, answer.bytes(), &link.host.down);
    assert_eq!(answer, Ok(probed));
}

#[test]
fn a_service_that_attaches_again_finds_its_records() {
    let mut link = Link::new(AckPolicy::EachBatch, 1);
    link.connect(1, 5000);
    link.send(1, 0, 1000);
    link.settle(NOW);
    link.sessions.detach(INSTANCE, NOW);
    assert_eq!(link.sessions.tidy(NOW + KEEP / 2, &mut link.out), []);
    let elsewhere = Peer {
        address: SocketAddr::from(([192, 0, 2, 1], 2000)),
        ..peer()
    };
    let again = attach(INSTANCE, 2000);
    let (kept, keys) = link
        .sessions
        .attach(&again, elsewhere, &greeting(2), &mut link.out);
    assert!(kept);
    assert_eq!(link.sessions.tidy(NOW + 2 * KEEP, &mut link.out), []);
    assert_eq!(link.read(FlowId(1)).len(), 1000);
    // The old address is nobody's, the old keys are still good.
    link.send(1, 1000, 1000);
    assert_eq!(link.sessions.strangers(), 1);
    assert_eq!(keys.slot, KeySlot::One);
    for keys in [link.host.keys, keys] {
        link.host.use_keys(keys);
        let connection = &link.host.connections[&FlowId(1)];
        let packet = connection.packet(1000, 1000, ChecksumMode::Full);
        let datagram = link.host.segment(connection, &packet, false);
        link.sessions.take(elsewhere, &datagram, NOW, &mut link.out);
    }
    assert_eq!(link.session().statistics().segments, 3);
    link.sessions.detach(INSTANCE, NOW);
    assert_eq!(
        link.sessions.tidy(NOW + KEEP, &mut link.out)[0].instance,
        INSTANCE
    );
    let (kept, _) = link
        .sessions
        .attach(&again, elsewhere, &greeting(3), &mut link.out);
    assert!(!kept);
}

#[test]
fn services_share_what_all_may_hold() {
    let mut sessions = Sessions::new(AckPolicy::EachBatch, 1 << 20, KEEP);
    let mut hosts = Vec::new();
    let mut out = Outbox::default();
    for number in [1, 2] {
        let peer = Peer {
            address: SocketAddr::from(([192, 0, 2, number], 1000)),
            ..peer()
        };
        let attach = attach(u64::from(number), 1000);
        let (_, keys) = sessions.attach(&attach, peer, &greeting(number), &mut out);
        let mut host = Host::new(keys, 1);
        host.connect(1, 900 << 10);
        hosts.push((peer, host));
    }
    for (peer, host) in &mut hosts {
        let connection = &host.connections[&FlowId(1)];
        sessions.take(*peer, &host.open(connection), NOW, &mut out);
        for at in (0..connection.data.len()).step_by(10_000) {
            let packet = connection.packet(at, 10_000, ChecksumMode::Full);
            let datagram = host.segment(connection, &packet, false);
            sessions.take(*peer, &datagram, NOW, &mut out);
            sessions.settle(NOW, &mut out);
        }
    }
    assert_eq!(sessions.get_mut(1).expect("there").notice(), None);
    let unprotected = Response::Unprotected {
        flow: FlowId(1),
        reason: UnprotectedReason::TotalLimit,
    };
    let notice = sessions.get_mut(2).expect("there").notice();
    assert_eq!(notice, Some(unprotected));
}

fn frame(kind: FrameKind, flow: u64, packet: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    MirrorFrame {
        kind,
        flow_id: FlowId(flow),
        timestamp_ns: 0,
        server_nxt: SeqNumber(0),
        server_ack: SeqNumber(0),
        packet_len: u32::try_from(packet.len()).expect("short"),
        unfinished: false,
        packet,
    }
    .encode(&mut bytes)
    .expect("a frame");
    bytes
}

#[test]
fn frames_come_by_the_control_stream() {
    let mut link = Link::new(AckPolicy::EachBatch, 1);
    for flow in [1, 2] {
        link.connect(flow, 100);
        link.send(flow, 0, 50);
    }
    link.settle(NOW);
    let connection = &link.host.connections[&FlowId(1)];
    let mut said = Vec::new();
    let from = connection.server_isn + 1;
    wire::SegmentSpec {
        source: connection.key.server(),
        destination: connection.key.client(),
        seq: from,
        ack: SeqNumber(0),
        flags: wire::Flags::ACK,
        window: 1,
        options: &[],
        payload: b"answer",
    }
    .emit(&mut said, ChecksumMode::Full)
    .expect("a packet");
    let mut bytes = frame(FrameKind::Outstream { from }, 1, &said);
    bytes.extend(frame(FrameKind::Closed(CloseReason::Finished), 2, &[]));
    assert_eq!(link.ask(&Request::Frames { bytes }), []);
    let heads = Response::OutstreamHeads {
        flow: FlowId(1),
        ranges: vec![(from, b"answer".to_vec())],
        last: true,
    };
    let request = Request::OutstreamHeads { flow: FlowId(1) };
    assert_eq!(link.ask(&request), [heads]);
    link.send(2, 50, 50);
    assert!(link.settle(NOW).is_empty());
    let unknown = Some(Response::Unknown { flow_low: 2 });
    assert_eq!(link.session().notice(), unknown);
    // What comes by the link does not come this way: it would take the place of a record.
    let opened = FrameKind::Opened {
        client_isn: SeqNumber(0),
        server_isn: SeqNumber(0),
    };
    let bytes = frame(opened, 1, &[]);
    assert_eq!(link.ask(&Request::Frames { bytes }), []);
    assert_eq!(link.read(FlowId(1)).len(), 50);
    assert_eq!(link.session().statistics().malformed, 1);
    let barrier = link.ask(&Request::Barrier { token: 9 });
    assert_eq!(barrier, [Response::Drained { token: 9 }]);
}

#[test]
fn a_record_can_begin_in_the_middle() {
    let mut link = Link::new(AckPolicy::EachBatch, 1);
    link.host.connect(1, 1000);
    link.send(1, 600, 400);
    assert!(link.settle(NOW).is_empty());
    let connection = &link.host.connections[&FlowId(1)];
    let resume = Resume {
        flow: connection.flow,
        key: connection.key,
        client_isn: connection.client_isn,
        server_isn: connection.server_isn,
        instream: connection.client_isn + 601,
        outstream: connection.server_isn + 1,
        handshake: Handshake::PLAIN,
    };
    assert_eq!(link.ask(&Request::Resume(resume)), []);
    link.send(1, 600, 400);
    link.settle(NOW);
    assert!(link.host.is_recorded());
    let read = Request::Read {
        flow: FlowId(1),
        from: resume.instream,
        max_len: 1000,
    };
    let [Response::Data { bytes, .. }] = &link.ask(&read)[..] else {
        panic!("recorded");
    };
    assert_eq!(*bytes, link.host.connections[&FlowId(1)].data[600..]);
}

#[test]
fn what_makes_no_sense_on_a_link_is_refused() {
    let mut link = Link::new(AckPolicy::EachBatch, 1);
    for request in [Request::Shutdown, Request::Attach(attach(1, 1))] {
        let answer = link.ask(&request);
        assert!(
            matches!(answer[..], [Response::Error { .. }]),
            "{request:?}"
        );
    }
}
