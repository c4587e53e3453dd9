//! A server that does not come back.

use super::model::{Manner, Model, Peer, SEGFAULT, key, ms};
use crate::{Action, Config, GaveUp, LostReason, Stage};

fn patient_for(count: u64) -> Config {
    Config {
        give_up_after: ms(count),
        ..Config::default()
    }
}

#[test]
fn timeout_resets_waiting_connections() {
    for started in [false, true] {
        let mut model = Model::with(
            patient_for(1_000),
            [Peer::new(1, 10, 0), Peer::new(2, 10, 0)],
        );
        model.die();
        if started {
            model.clear();
            model.start();
        }
        model.pass(ms(999));
        assert!(model.reset.is_empty());
        model.pass(ms(1));
        let reason = LostReason::ServerDown;
        assert_eq!(model.reset.values().collect::<Vec<_>>(), [&reason, &reason]);
        assert_eq!(model.reported_losses().len(), 2);
        model.pass(ms(1_000));
        assert_eq!(
            model.recovery.deadline(),
            None,
            "nothing more is due by itself"
        );
        assert_eq!(model.reported_losses().len(), 2, "told once");
    }
}

#[test]
fn timeout_counts_from_first_death() {
    let mut model = Model::with(patient_for(1_000), [Peer::new(1, 10, 0)]);
    for _ in 0..9 {
        model.die();
        model.clear();
        model.start();
        model.pass(ms(100));
        assert!(model.reset.is_empty());
    }
    model.die();
    model.pass(ms(100));
    assert_eq!(model.reset.len(), 1);
}

#[test]
fn closing_and_reset_connections_are_not_reset() {
    let closing = Peer::new(1, 10, 0).change(|peer| peer.flow.server_closing = true);
    let closed = Peer::new(2, 10, 0).change(|peer| peer.flow.closed_ns = 5);
    let gone = Peer::new(3, 10, 0).change(|peer| peer.flow.client.reset = true);
    let mut model = Model::with(
        patient_for(10),
        [closing, closed, gone, Peer::new(4, 10, 0)],
    );
    model.die();
    model.pass(ms(10));
    assert_eq!(model.reset.keys().collect::<Vec<_>>(), [&key(4)]);
    assert_eq!(model.forgotten.iter().collect::<Vec<_>>(), [&key(3)]);
}

#[test]
fn late_server_serves_new_connections() {
    let mut model = Model::with(patient_for(100), [Peer::new(1, 10, 0), Peer::new(2, 10, 0)]);
    model.die();
    model.pass(ms(100));
    model.until_serving(10);
    assert_eq!(model.serving(), (0, 2, 0));

    // The next outage has a new limit and a new count.
    model.peers.insert(key(3), Peer::new(3, 10, 0));
    model.die();
    model.pass(ms(90));
    model.until_serving(8);
    assert_eq!(model.serving(), (1, 0, 10));
}

#[test]
fn stop_during_recovery_resets_clients() {
    for started in [false, true] {
        let mut model = Model::new([Peer::new(1, 10, 0)]);
        model.die();
        if started {
            model.clear();
        }
        model.recovery.give_up(GaveUp::Stopped);
        model.recovery.give_up(GaveUp::Stopped);
        model.act();
        assert_eq!(model.reset[&key(1)], LostReason::Stopped);
    }
}

#[test]
fn give_up_during_listing_resets_once() {
    for performed_late in [false, true] {
        let mut model = Model::new([Peer::new(1, 10, 0)]);
        model.die();
        model.clear();
        if performed_late {
            model.recovery.give_up(GaveUp::Stopped); // asks for a list, as does the next step
        }
        model.recovery.listening(model.now);
        model.recovery.drained(model.drain.take().expect("a drain"));
        assert_eq!(model.stage(), Stage::Listing);
        model.recovery.give_up(GaveUp::Stopped);
        model.act();
        assert_eq!(model.reset[&key(1)], LostReason::Stopped);
        assert_eq!(model.reported_losses().len(), 1);
        assert_eq!(model.serving(), (0, 1, 0));
    }
}

#[test]
fn give_up_resets_unfinished_connections() {
    let served = Peer::new(1, 10, 0);
    let deaf = Peer::new(2, 10, 0).manner(Manner::Deaf);
    let replaying = Peer::new(3, 1_000, 0).window(1);
    let unknown = Peer::new(4, 10, 0).change(|peer| peer.record = None);
    let mut model = Model::new([served, deaf, replaying, unknown]);
    model.die_and_return();
    model.pass_in_steps(ms(5), ms(1));
    model.recovery.give_up(GaveUp::Stopped);
    model.act();
    let reasons: Vec<_> = model.reset.values().copied().collect();
    assert_eq!(
        reasons,
        [
            LostReason::Stopped,
            LostReason::Stopped,
            LostReason::NoRecord
        ]
    );
    model.turn_page();
    model.until_serving(5);
    assert_eq!(model.serving(), (1, 3, 15));
    let harmless =
        |action: &Action| matches!(action, Action::Recovered | Action::ForgetExpected { .. });
    assert!(model.done.iter().all(harmless), "{:?}", model.done);
}

#[test]
fn give_up_while_serving_is_ignored() {
    let mut model = Model::new([Peer::new(1, 10, 0)]);
    model.recovery.give_up(GaveUp::Stopped);
    model.act();
    assert_eq!(model.done, []);
    model.die();
    model.until_serving(10);
    assert_eq!(model.serving(), (1, 0, 10));
}

/// A death may come between the decision and the list.
#[test]
fn give_up_survives_another_death() {
    let mut model = Model::with(patient_for(1_000), [Peer::new(1, 10, 0)]);
    model.die();
    model.clear();
    model.now += ms(1_000);
    model.recovery.poll(model.now);
    model.recovery.on_death(SEGFAULT, model.now, model.now);
    model.act();
    assert_eq!(model.reset[&key(1)], LostReason::ServerDown);
}
