//! Waiting for the log, size of the log, and costs of damage.

use super::*;

#[test]
fn an_acknowledgement_waits_until_it_is_durable() {
    let mut world = World::new(1, ReplayMode::Connection);
    let flow = world.connect(1000);
    world.traffic();
    assert!(!world.host.connections[&flow].opened);
    world.write_all();
    assert!(world.host.connections[&flow].opened);
    // One commit for all segments that arrived during the last commit.
    let send = |world: &mut World, at| {
        let connection = &world.host.connections[&flow];
        let packet = connection.packet(at, 100, ChecksumMode::Full);
        let datagram = world.host.segment(connection, &packet, false);
        world.batch(&[datagram]);
    };
    for at in [0, 100, 200, 300] {
        send(&mut world, at);
    }
    let stable = |world: &World| world.host.connections[&flow].stable;
    assert_eq!(stable(&world), 0);
    world.write();
    assert_eq!(stable(&world), 100);
    world.write();
    assert_eq!(stable(&world), 400);
    assert!(world.writing.is_none());
    // A durable record needs no further commit.
    send(&mut world, 300);
    assert!(world.writing.is_none());
    assert!(world.out.datagrams().is_empty());
}

#[test]
fn barrier_is_answered_when_all_before_it_is_durable() {
    let mut world = World::new(1, ReplayMode::Connection);
    let flow = world.connect(100);
    world.traffic();
    world.write_all();
    let connection = &world.host.connections[&flow];
    let packet = connection.packet(0, 100, ChecksumMode::Full);
    let datagram = world.host.segment(connection, &packet, false);
    world.batch(&[datagram]);
    assert!(world.writing.is_some());
    let session = world.sessions.get_mut(INSTANCE).expect("attached");
    let barrier = Request::Barrier { token: 9 };
    assert_eq!(session.answer(PID, &barrier, &mut world.out), []);
    assert_eq!(world.out.drained(), None);
    world.write();
    assert_eq!(world.out.drained(), Some((INSTANCE, 9)));
    assert_eq!(world.out.drained(), None);
    // Neither a digest nor the barrier after the digest is urgent, unless a recovery waits.
    let digest = Digest {
        next: world.host.connections[&flow].server_isn + 1,
        ..Digest::default()
    };
    world.frame(flow, FrameKind::Digest, &digest.to_bytes());
    world.ask(&Request::Barrier { token: 10 });
    assert_eq!(world.out.drained(), None);
    world.now += Duration::from_secs(1);
    world.order();
    world.write();
    assert_eq!(world.out.drained(), Some((INSTANCE, 10)));
    world.ask(&Request::HoldTurns { hold: true });
    world.write();
    world.frame(flow, FrameKind::Digest, &digest.to_bytes());
    world.ask(&Request::Barrier { token: 11 });
    assert_eq!(world.out.drained(), Some((INSTANCE, 11)));
}

#[test]
fn a_log_does_not_grow_beyond_what_it_is_needed_for() {
    let mut world = World::new(1, ReplayMode::Connection);
    let idle = world.connect(500);
    let mut most = 0;
    for _ in 0..100 {
        let busy = world.connect(3000);
        while !world.host.is_recorded() {
            world.traffic();
            world.write_all();
        }
        world.close(busy);
        world.write_all();
        most = most.max(world.log.storage().len());
    }
    let recorded = world.sessions.get(INSTANCE).expect("attached");
    let recorded = usize::try_from(recorded.journal().statistics().held).expect("small");
    let segment = usize::try_from(SEGMENT).expect("small");
    assert!(most < 2 * (recorded + 3000) + 8 * segment, "{most} bytes");
    world.die(true);
    assert!(world.host.connections[&idle].is_recorded());
}

#[test]
fn a_record_larger_than_a_segment_is_copied_while_it_grows() {
    let mut world = World::new(1, ReplayMode::Connection);
    let large = world.connect(200_000);
    while world.host.connections[&large].stable < 60_000 {
        world.traffic();
        world.write_all();
    }
    for _ in 0..200 {
        let busy = world.connect(3000);
        while !world.host.connections[&busy].is_recorded() {
            world.traffic();
            world.write();
        }
        world.close(busy);
        if world.host.random.random_bool(0.3) {
            world.die(true);
        }
    }
    let oldest = world.log.storage().list().expect("listed")[0];
    assert!(oldest > 0, "its first segments are gone");
    world.die(true);
    while !world.host.is_recorded() {
        world.traffic();
        world.write_all();
    }
    world.die(true);
}

#[test]
fn a_commit_that_takes_too_long_is_not_waited_for() {
    let mut world = World::new(1, ReplayMode::Connection);
    let flow = world.connect(1000);
    world.traffic();
    assert!(world.writing.is_some());
    assert_eq!(world.out.due_at(), Some(SLOW));
    assert_eq!(world.out.check_log(SLOW / 2), None);
    world.now = SLOW;
    let slow = world.out.check_log(SLOW);
    assert!(matches!(slow, Some(Change::Volatile(_))));
    world.hear();
    assert!(world.host.connections[&flow].opened);
    // The writer has not reported, and gets no other order.
    world.now += 2 * RETRY;
    while !world.host.is_recorded() {
        world.traffic();
    }
    world.write();
    assert_eq!(world.told, [], "it was too late");
    world.write_all();
    world.traffic();
    world.write_all();
    assert_eq!(world.told, [Change::Durable]);
    world.die(true);
    assert!(world.host.is_recorded());
}

#[test]
fn damage_costs_the_connections_that_it_may_concern() {
    let mut world = World::new(1, ReplayMode::Connection);
    let damaged = world.connect(5000);
    while !world.host.is_recorded() {
        world.traffic();
        world.write_all();
    }
    let first = world.log.storage().list().expect("listed")[0];
    assert!(world.log.current() > first + 1, "it is sealed");
    let later = world.connect(5000);
    while !world.host.is_recorded() {
        world.traffic();
        world.write_all();
    }
    let mut storage = world.log.storage().clone();
    storage.restart();
    storage.damage(first, 1000);
    let mut sessions = Sessions::new(AckPolicy::EachBatch, 1 << 30, KEEP);
    let restored = restore(storage, &mut sessions, SEGMENT).expect("readable");
    assert_eq!(restored.damaged, 1);
    let journal = sessions.get(INSTANCE).expect("found").journal();
    assert_eq!(journal.stable_seq(damaged), None);
    let whole = &world.host.connections[&later];
    let end = whole.client_isn + 1 + u32::try_from(whole.whole()).expect("short");
    assert_eq!(journal.stable_seq(later), Some(end));
}

#[test]
fn a_service_that_is_forgotten_is_not_found_again() {
    let mut world = World::new(1, ReplayMode::Connection);
    world.connect(100);
    while !world.host.is_recorded() {
        world.traffic();
        world.write_all();
    }
    world.sessions.detach(INSTANCE, world.now);
    world.now += KEEP;
    assert_eq!(world.sessions.tidy(world.now, &mut world.out).len(), 1);
    world.order();
    world.write_all();
    let mut storage = world.log.storage().clone();
    storage.restart();
    let mut sessions = Sessions::new(AckPolicy::EachBatch, 1 << 30, KEEP);
    let restored = restore(storage, &mut sessions, SEGMENT).expect("readable");
    assert_eq!((restored.sessions, restored.connections), (0, 0));
}

/// A request that begins during the copying of the last request's record: the copying begins again.
#[test]
fn turns_go_on_while_they_are_copied() {
    let mut world = World::new(1, ReplayMode::Request);
    let flows: Vec<FlowId> = (0..3).map(|_| world.connect(300_000)).collect();
    world.traffic();
    world.write_all();
    let mut starts = std::collections::BTreeSet::new();
    let mut round = 0;
    while !world.host.is_recorded() {
        round += 1;
        // In order: the next unrecorded piece, of each connection in turn.
        let flow = flows[round % 3];
        let session = world.sessions.get(INSTANCE).expect("attached");
        let stable = session.journal().stable_seq(flow).expect("recorded");
        starts.extend(start(session.journal(), flow).map(|seq| seq.0));
        let connection = &world.host.connections[&flow];
        let at = stable.distance_from(connection.client_isn + 1);
        let at = usize::try_from(at.expect("after it")).expect("short");
        if at < connection.whole() {
            let packet = connection.packet(at, 700, ChecksumMode::Full);
            let datagram = world.host.segment(connection, &packet, false);
            world.batch(&[datagram]);
        }
        // A response that was not written before the logger's death is lost for good, and with the response the end
        // of the request: so mostly all entries are written before.
        match world.host.random.random_range(0..400) {
            0 => world.die(true),
            1..8 => {
                world.write_all();
                world.die(true);
            }
            8..80 => world.answer(),
            80..200 => world.write(),
            _ => {}
        }
    }
    assert!(starts.len() > 50, "{} turns", starts.len());
    world.write_all();
    world.die(true);
}

/// A restarted server gets input only after repeating the output that the client had received before that input:
/// the copy of a record keeps these places.
#[test]
fn where_clients_began_to_speak_is_copied() {
    let mut world = World::new(1, ReplayMode::Connection);
    let flow = world.connect(60_000);
    world.traffic();
    world.write_all();
    let places = |world: &World| -> Vec<_> {
        let session = world.sessions.get(INSTANCE).expect("attached");
        session.journal().beginnings(flow).collect()
    };
    let mut round = 0;
    while !world.host.is_recorded() {
        round += 1;
        let connection = &world.host.connections[&flow];
        let at = connection.stable;
        if at < connection.whole() {
            let packet = connection.packet(at, 100, ChecksumMode::Full);
            let datagram = world.host.segment(connection, &packet, false);
            world.batch(&[datagram]);
        }
        if round % 3 == 0 {
            world.answer();
        }
        // During the copying, and before new entries are written.
        if world.host.random.random_bool(0.5) {
            world.write_all();
        }
    }
    // Other connections come and go, so that the log begins again and again.
    for _ in 0..50 {
        let busy = world.connect(3000);
        while !world.host.connections[&busy].is_recorded() {
            world.traffic();
            world.write_all();
        }
        world.close(busy);
        world.write_all();
    }
    let oldest = world.log.storage().list().expect("listed")[0];
    assert!(oldest > 0, "its first segments are gone");
    let before = places(&world);
    assert!(before.len() > 100, "{}", before.len());
    world.die(true);
    assert!(
        places(&world) == before,
        "{} are left",
        places(&world).len()
    );
}

/// A later reading may have enough memory for a record that was given up.
#[test]
fn a_record_that_was_given_up_for_what_the_server_said_is_not_read_again() {
    for last in ["head", "digest"] {
        let mut world = World::with(1, |attach| attach.per_connection = 4096);
        let flow = world.connect(500);
        while !world.host.is_recorded() {
            world.traffic();
            world.write_all();
        }
        let is_protected = |world: &World| {
            let session = world.sessions.get(INSTANCE).expect("attached");
            session.journal().stable_seq(flow).is_some()
        };
        let mut next = world.host.connections[&flow].server_isn + 1;
        let mut digest = |world: &mut World| {
            next += 1;
            let digest = Digest {
                next,
                ..Digest::default()
            };
            world.frame(flow, FrameKind::Digest, &digest.to_bytes());
        };
        match last {
            "digest" => {
                while is_protected(&world) {
                    digest(&mut world);
                }
            }
            _ => {
                (0..50).for_each(|_| digest(&mut world));
                while is_protected(&world) {
                    world.answer();
                }
            }
        }
        world.write_all();
        world.host.connections.remove(&flow); // which is not acknowledged any more
        world.die(false);
        assert!(!is_protected(&world), "{last}");
    }
}
