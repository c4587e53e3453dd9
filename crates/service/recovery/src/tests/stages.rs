//! The way of a failure, stage by stage.

use super::model::{Manner, Model, Peer, SEGFAULT, ms};
use crate::{Action, Cause, Event, Stage};

#[test]
fn new_service_has_no_actions() {
    let mut model = Model::new([]);
    model.pass(ms(100_000));
    assert_eq!(model.stage(), Stage::Serving);
    assert_eq!((model.done, model.told), (vec![], vec![]));
    assert_eq!(model.recovery.deadline(), None);
}

#[test]
fn recovery_stages_are_ordered() {
    let mut model = Model::new([Peer::new(1, 100, 50)]);
    model.die();
    assert_eq!(model.done, [Action::Gate, Action::KillService]);
    assert_eq!(model.stage(), Stage::Clearing);
    model.turn_page();

    model.clear();
    let token = model.drain.expect("a drain");
    let started = [
        Action::RemoveOrphans,
        Action::Drain { token },
        Action::NewIncarnation,
        Action::StartServer,
    ];
    assert_eq!(model.done, started);
    assert_eq!(model.stage(), Stage::Starting);
    model.turn_page();

    model.start();
    model.listen();
    assert_eq!(model.done, []);
    model.drained();
    assert!(matches!(
        model.done[..],
        [
            Action::ListConnections,
            Action::Expect { .. },
            Action::Splice { .. }
        ]
    ));
    assert_eq!(model.stage(), Stage::Recovering);
    model.turn_page();

    model.until_serving(10);
    let last: Vec<_> = model.done.iter().rev().take(2).collect();
    assert!(
        matches!(last[..], [Action::Recovered, Action::OpenWindow { .. }]),
        "{last:?}"
    );
}

#[test]
fn listening_and_drain_have_any_order() {
    for listens_first in [true, false] {
        let mut model = Model::new([]);
        model.die();
        model.clear();
        if listens_first {
            model.listen();
            assert_eq!(model.stage(), Stage::Starting);
            model.drained();
        } else {
            model.drained();
            assert_eq!(model.stage(), Stage::Starting);
            model.listen();
        }
        assert_eq!(model.stage(), Stage::Serving, "nothing to be recovered");
    }
}

#[test]
fn only_newest_drain_counts() {
    let mut model = Model::new([Peer::new(1, 100, 0)]);
    model.die();
    model.clear();
    let token = model.drain.expect("a drain");
    model.listen();
    model.recovery.drained(token + 1);
    model.recovery.drained(token.wrapping_sub(1));
    assert_eq!(model.stage(), Stage::Starting);
    model.drained();
    assert_eq!(model.stage(), Stage::Recovering);
}

/// Input of the second incarnation was recorded after the first drain.
#[test]
fn drain_of_earlier_incarnation_is_ignored() {
    let mut model = Model::new([Peer::new(1, 100, 0)]);
    model.die();
    model.clear();
    let old = model.drain.expect("a drain");
    model.die();
    model.recovery.drained(old); // while the service is being cleared
    model.clear();
    model.listen();
    assert_eq!(model.stage(), Stage::Starting);
    model.recovery.drained(old);
    assert_eq!(model.stage(), Stage::Starting);
    model.drained();
    assert_eq!(model.stage(), Stage::Recovering);
}

#[test]
fn restarted_logger_is_drained_again() {
    let mut model = Model::new([]);
    model.recovery.logger_restarted();
    model.act();
    assert_eq!(model.done, [], "nothing is being drained");
    model.die();
    model.clear();
    let old = model.drain.expect("a drain");
    model.turn_page();
    model.recovery.logger_restarted();
    model.act();
    assert!(matches!(model.done[..], [Action::Drain { token }] if token != old));
    model.listen();
    model.recovery.drained(old);
    assert_eq!(
        model.stage(),
        Stage::Starting,
        "the old one's answer is void"
    );
    model.drained();
    assert_eq!(model.stage(), Stage::Serving);
}

#[test]
fn restart_after_drain_needs_no_drain() {
    let mut model = Model::new([]);
    model.die();
    model.clear();
    model.drained();
    model.turn_page();
    model.recovery.logger_restarted();
    model.act();
    assert_eq!(model.done, []);
}

#[test]
fn reports_at_wrong_stage_are_ignored() {
    let mut model = Model::new([Peer::new(1, 10, 0)]);
    model.clear();
    model.start();
    model.listen();
    model.recovery.connections(model.candidates(), model.now);
    assert_eq!(model.stage(), Stage::Serving);
    model.die();
    model.listen();
    model.start();
    model.recovery.connections(model.candidates(), model.now);
    assert_eq!(model.stage(), Stage::Clearing);
    model.act();
    assert_eq!(model.done, [Action::Gate, Action::KillService]);
    assert_eq!(model.told.len(), 1);
}

#[test]
fn death_is_counted_once() {
    let mut model = Model::new([]);
    model.die();
    model.die();
    assert_eq!(model.done, [Action::Gate, Action::KillService]);
    assert_eq!(
        model.told,
        [Event::Died {
            cause: SEGFAULT,
            detected_ms: 0.0
        }]
    );
}

#[test]
fn stage_events_have_time_since_death() {
    let mut model = Model::new([Peer::new(1, 100, 50), Peer::new(2, 100, 50)]);
    model
        .recovery
        .on_death(SEGFAULT, model.now - ms(2), model.now);
    model.now += ms(3);
    model.clear();
    model.now += ms(5);
    model.start();
    model.now += ms(7);
    model.listen();
    model.listen();
    model.drained();
    model.until_serving(10);
    assert_eq!(
        model.told[0],
        Event::Died {
            cause: SEGFAULT,
            detected_ms: 2.0
        }
    );
    assert_eq!(
        model.told[1],
        Event::Restarted {
            pid: 42,
            after_ms: 10.0
        }
    );
    assert_eq!(model.told[2], Event::Listening { after_ms: 17.0 });
    let [
        Event::Spliced {
            connections: 2,
            after_ms,
        },
        Event::Serving { timings, .. },
    ] = model.told[3..]
    else {
        panic!("{:?}", model.told)
    };
    assert_eq!((timings.detected_ms, timings.cleared_ms), (2.0, 5.0));
    assert_eq!((timings.restarted_ms, timings.listening_ms), (10.0, 17.0));
    assert_eq!(
        (timings.first_spliced_ms, timings.spliced_ms),
        (18.0, after_ms)
    );
    assert!(timings.live_ms >= timings.spliced_ms);
}

#[test]
fn serving_event_counts_connections_and_bytes() {
    let unknown = Peer::new(3, 30, 0).change(|peer| peer.record = None);
    let deaf = Peer::new(4, 30, 0).manner(Manner::Deaf);
    let mut model = Model::new([
        Peer::new(1, 1_000, 50),
        Peer::new(2, 2_000, 50).with_fin(),
        unknown,
        deaf,
    ]);
    model.die_and_return();
    model.until_serving(20_000);
    assert_eq!(model.serving(), (2, 2, 3_000));
    assert_eq!(model.reset.len(), 2);
}

/// The lost are told that the connection is gone only when strangers are, too.
#[test]
fn resets_follow_end_of_recovery() {
    let unknown = Peer::new(1, 30, 0).change(|peer| peer.record = None);
    let mut model = Model::new([unknown, Peer::new(2, 30, 0)]);
    model.die_and_return();
    assert!(model.reset.is_empty());
    model.until_serving(10);
    let recovered = model
        .done
        .iter()
        .position(|action| *action == Action::Recovered);
    let reset = model
        .done
        .iter()
        .position(|action| matches!(action, Action::ResetClient { .. }));
    assert!(recovered.is_some() && recovered < reset);
    assert_eq!(model.reported_losses().len(), 1);
}

#[test]
fn failed_start_is_a_death() {
    let mut model = Model::new([Peer::new(1, 10, 0)]);
    model.die();
    model.clear();
    model.turn_page();
    model
        .recovery
        .on_death(Cause::NotServing, model.now, model.now);
    model.act();
    assert_eq!(model.stage(), Stage::Clearing);
    assert_eq!(model.done, [Action::Gate, Action::KillService]);
    model.come_back();
    model.until_serving(10);
    assert_eq!(model.serving(), (1, 0, 10));
}
