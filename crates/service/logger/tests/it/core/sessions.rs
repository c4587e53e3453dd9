//! Retention and identity: handshakes, keys, services.

use super::*;

#[test]
fn an_open_is_answered_again_and_another_one_refused() {
    let mut link = Link::new(AckPolicy::EachBatch, 1);
    link.connect(1, 100);
    let open = link.host.open(&link.host.connections[&FlowId(1)]);
    link.take(&open);
    assert_eq!(link.settle(NOW).len(), 1);
    let first = &link.host.connections[&FlowId(1)];
    let other = Open {
        version: protocol::link::VERSION,
        slot: KeySlot::Zero,
        flow: first.flow,
        key: first.key,
        client_isn: first.client_isn + 1,
        server_isn: first.server_isn,
        handshake: protocol::link::Handshake::PLAIN,
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
    assert_eq!(link.session().statistics().evicted_half_open, 2);
    // Now all connections are in use.
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

/// A flood of SYNs at the limit of connections: fabricated handshakes must cost the service no more than unknown
/// numbers do.
#[test]
fn handshakes_that_are_refused_are_told_as_seldom_as_unknown_numbers() {
    const MANY: u64 = 3000;
    let few = Attach {
        connections: 1,
        ..attach(INSTANCE, 1000)
    };
    let mut link = Link::with(AckPolicy::EachBatch, 1, &few);
    link.connect(1, 1000);
    link.send(1, 0, 10);
    let mut told = |flows: &mut dyn Iterator<Item = u64>| {
        for flow in flows {
            link.host.connect(flow, 10);
            let open = link.host.open(&link.host.connections[&FlowId(flow)]);
            link.take(&open);
        }
        std::iter::from_fn(|| link.session().notice()).count()
    };
    assert_eq!(told(&mut [2, 2, 3].into_iter()), 2, "each once a second");
    let many = told(&mut (4..MANY));
    assert!((1000..1100).contains(&many), "{many}");
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
    // Datagrams in flight are accepted, and do not bring the old keys back.
    link.host.use_keys(old);
    link.send(1, 2000, 1000);
    assert_eq!(link.settle(NOW)[0].slot, KeySlot::One);
    // New keys never go into the slot in use.
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
        version: protocol::link::VERSION,
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
        .attach(&again, elsewhere, "key", &greeting(2), &mut link.out);
    assert!(kept);
    assert_eq!(link.sessions.tidy(NOW + 2 * KEEP, &mut link.out), []);
    assert_eq!(link.read(FlowId(1)).len(), 1000);
    // The old address has no session, but the old keys are still valid.
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
        .attach(&again, elsewhere, "key", &greeting(3), &mut link.out);
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
        let (_, keys) = sessions.attach(&attach, peer, "key", &greeting(number), &mut out);
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

/// The first notice may have been lost with the control stream.
#[test]
fn a_service_that_goes_on_with_a_connection_without_a_record_is_told_again() {
    let few = Attach {
        per_connection: 1,
        ..attach(INSTANCE, 1000)
    };
    let mut link = Link::with(AckPolicy::EachBatch, 1, &few);
    link.connect(3, 1000);
    link.send(3, 0, 1000);
    let unprotected = Response::Unprotected {
        flow: FlowId(3),
        reason: UnprotectedReason::ConnectionLimit,
    };
    assert_eq!(link.session().notice(), Some(unprotected));
    // This segment was in flight when the service got the notice.
    link.send(3, 0, 10);
    assert_eq!(link.session().notice(), None);
    let connection = &link.host.connections[&FlowId(3)];
    let packet = connection.packet(0, 10, ChecksumMode::Full);
    let again = link.host.segment(connection, &packet, false);
    for (milliseconds, told) in [(500, false), (1000, true), (1500, false), (2000, true)] {
        let now = NOW + Duration::from_millis(milliseconds);
        link.sessions.take(peer(), &again, now, &mut link.out);
        let unknown = told.then_some(Response::Unknown { flow_low: 3 });
        assert_eq!(link.session().notice(), unknown, "{milliseconds} ms");
    }
    assert!(link.settle(NOW).is_empty());
}
