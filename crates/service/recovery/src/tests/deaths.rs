//! Deaths at awkward moments, and the connections to blame for these deaths.

use super::model::{Manner, Model, Peer, SEGFAULT, key, ms};
use crate::{Action, Cause, Config, Event, LostReason, Stage};

#[derive(Debug, Clone, Copy)]
enum Moment {
    Clearing,
    Starting,
    Listening,
    Drained,
    Splicing,
    Replaying,
    Settling,
    Settled,
}

const MOMENTS: [Moment; 8] = [
    Moment::Clearing,
    Moment::Starting,
    Moment::Listening,
    Moment::Drained,
    Moment::Splicing,
    Moment::Replaying,
    Moment::Settling,
    Moment::Settled,
];

fn bring_to(model: &mut Model, moment: Moment) {
    model.die();
    match moment {
        Moment::Clearing => {}
        Moment::Starting => model.clear(),
        Moment::Listening => {
            model.clear();
            model.start();
            model.listen();
        }
        Moment::Drained => {
            model.clear();
            model.drained();
        }
        Moment::Splicing => model.come_back(),
        Moment::Replaying => {
            model.come_back();
            model.pass_in_steps(ms(4), ms(1));
            assert_eq!(model.stage(), Stage::Recovering);
        }
        Moment::Settling | Moment::Settled => {
            model.come_back();
            model.until_serving(1_000);
            let time = if matches!(moment, Moment::Settled) {
                ms(300)
            } else {
                ms(1)
            };
            model.pass_in_steps(time, ms(1));
            assert_eq!(model.stage(), Stage::Serving);
        }
    }
}

fn three() -> [Peer; 3] {
    [1, 2, 3].map(|id| Peer::new(id, 1_000, 100).window(100))
}

#[test]
fn second_death_at_any_stage_resets_none() {
    for moment in MOMENTS {
        let mut model = Model::new(three());
        bring_to(&mut model, moment);
        model.die();
        assert_eq!(model.stage(), Stage::Clearing, "{moment:?}");
        model.until_serving(1_000);
        assert_eq!(model.serving(), (3, 0, 3_000), "{moment:?}");
        model.pass_in_steps(ms(300), ms(1));
        assert!(
            (1..=3).all(|id| model.peer(id).received() == 1_000),
            "{moment:?}"
        );
    }
}

#[test]
fn two_more_deaths_at_any_stage_reset_none() {
    for first in MOMENTS {
        for second in MOMENTS {
            let mut model = Model::new(three());
            bring_to(&mut model, first);
            bring_to(&mut model, second);
            model.die();
            model.until_serving(1_000);
            assert_eq!(model.serving(), (3, 0, 3_000), "{first:?} {second:?}");
        }
    }
}

/// No timer would repeat an indispensable action.
#[test]
fn failed_actions_are_repeated() {
    let mut model = Model::new(three());
    model.fails = true;
    model.peer(3).flow.unprotected = Some(types::UnprotectedReason::MirrorLost);
    model.die();
    model.until_serving(1_000);
    model.pass_in_steps(ms(300), ms(1));
    assert!(model.reset.contains_key(&key(3)));
    assert_eq!(model.serving().0, 2);
    let recovered = |action: &&Action| **action == Action::Recovered;
    assert_eq!(model.done.iter().filter(recovered).count(), 1);
}

/// Actions for the dead incarnation must reach neither that incarnation nor the next incarnation.
#[test]
fn death_cancels_pending_actions() {
    let mut model = Model::new(three());
    bring_to(&mut model, Moment::Replaying);
    model.recovery.poll(model.now + ms(500)); // would send again
    model.recovery.on_death(SEGFAULT, model.now, model.now);
    let actions: Vec<_> = std::iter::from_fn(|| model.recovery.next_action()).collect();
    let allowed = |action: &Action| {
        matches!(
            action,
            Action::ForgetExpected { .. } | Action::Gate | Action::KillService
        )
    };
    assert!(actions.iter().all(allowed), "{actions:?}");
    assert!(actions.ends_with(&[Action::Gate, Action::KillService]));

    model.recovery.service_empty(model.now);
    model.recovery.on_death(SEGFAULT, model.now, model.now);
    let actions: Vec<_> = std::iter::from_fn(|| model.recovery.next_action()).collect();
    assert_eq!(
        actions,
        [Action::Gate, Action::KillService],
        "and no server is started"
    );
}

#[test]
fn death_keeps_pending_resets() {
    let unknown = Peer::new(1, 10, 0).change(|peer| peer.record = None);
    let mut model = Model::new([unknown]);
    model.die();
    model.clear();
    model.recovery.listening(model.now);
    model.recovery.drained(model.drain.take().expect("a drain"));
    assert_eq!(model.recovery.next_action(), Some(Action::ListConnections));
    model.recovery.connections(model.candidates(), model.now);
    assert_eq!(model.stage(), Stage::Serving);
    model.die();
    assert_eq!(model.reset[&key(1)], LostReason::NoRecord);
    assert_eq!(model.reported_losses().len(), 1);
}

#[test]
fn another_death_gives_lost_connection_a_chance() {
    let mut model = Model::new([
        Peer::new(1, 10, 0).manner(Manner::Deaf),
        Peer::new(2, 10, 0).window(0),
    ]);
    model.die_and_return();
    model.pass_in_steps(ms(12_000), ms(10)); // given up, but the other connection is not yet
    assert_eq!(model.stage(), Stage::Recovering);
    model.peer(1).manner = Manner::Reads;
    model.peer(2).window = 100;
    model.die();
    model.until_serving(1_000);
    assert_eq!(model.serving(), (2, 0, 20));
    assert_eq!(
        model.reported_losses(),
        [],
        "nothing was told that did not happen"
    );
}

#[test]
fn fatal_request_is_quarantined_alone() {
    for poison in 1..=4 {
        let peer = |id| Peer::new(id, 1_000, 100);
        let mut model = Model::new((1..=4).map(peer));
        model.peer(poison).manner = Manner::Kills;
        model.die();
        model.until_serving(3_000);
        let reason = LostReason::Quarantined { deaths: 3 };
        assert_eq!(
            model.reset.iter().collect::<Vec<_>>(),
            [(&key(poison), &reason)]
        );
        assert_eq!(model.serving(), (3, 1, 3_000));
        let deaths = model
            .told
            .iter()
            .filter(|event| matches!(event, Event::Died { .. }));
        assert_eq!(deaths.count(), 1 + 3);
    }
}

#[test]
fn quarantine_follows_configured_deaths() {
    for after in [1, 2, 5] {
        let config = Config {
            quarantine_after: after,
            ..Config::default()
        };
        let mut model = Model::with(config, [Peer::new(1, 10, 0).manner(Manner::Kills)]);
        model.die();
        model.until_serving(3_000);
        assert_eq!(
            model.reset[&key(1)],
            LostReason::Quarantined { deaths: after }
        );
    }
}

/// Three kills by hand in a row are no fault of the connection that happened to be replayed; but a
/// request on which the kernel's out-of-memory killer acts again and again is.
#[test]
fn sigkill_counts_less_than_crash() {
    let mut model = Model::new([Peer::new(1, 10, 0).manner(Manner::Kills)]);
    model.cause = Cause::Signal { pid: 7, signal: 9 };
    model.die();
    model.until_serving(10_000);
    assert_eq!(model.reset[&key(1)], LostReason::Quarantined { deaths: 3 });
    let died = |event: &&Event| matches!(event, Event::Died { .. });
    assert_eq!(model.told.iter().filter(died).count(), 1 + 3 * 4);
}

#[test]
fn two_fatal_requests_are_quarantined() {
    let mut model = Model::new((1..=5).map(|id| Peer::new(id, 1_000, 100)));
    model.peer(2).manner = Manner::Kills;
    model.peer(4).manner = Manner::Kills;
    model.die();
    model.until_serving(5_000);
    assert_eq!(model.reset.keys().collect::<Vec<_>>(), [&key(2), &key(4)]);
    assert_eq!(model.serving().0, 3);
}

#[test]
fn suspects_are_replayed_last_and_alone() {
    let slow = |id| Peer::new(id, 1_000, 100).window(100);
    let mut model = Model::new([slow(1), slow(2)]);
    model.die_and_return();
    model.pass_in_steps(ms(4), ms(1)); // both are being replayed
    model.die();
    model.peers.insert(key(3), Peer::new(3, 1_000, 100));
    model.spliced.clear();
    model.come_back();
    let mut at = vec![model.now];
    for _ in 0..1_000 {
        model.pass(ms(1));
        if model.spliced.len() > at.len() {
            at.push(model.now);
        }
    }
    assert_eq!(model.stage(), Stage::Serving);
    assert_eq!(
        model.spliced,
        [3, 1, 2],
        "first the one that nobody suspects"
    );
    let settle = Config::default().settle;
    assert!(
        at[1] - at[0] >= settle && at[2] - at[1] >= settle,
        "each when the one before has settled: {at:?}"
    );
    assert_eq!(model.serving(), (3, 0, 3_000));
}

/// A client that does not read keeps the server from repeating all output: the verification takes as long as the
/// client.
#[test]
fn suspects_do_not_wait_for_verification() {
    let mute = |id| Peer::new(id, 1_000, 100).manner(Manner::Mute);
    let mut model = Model::new([mute(1), mute(2)]);
    for _ in 0..2 {
        model.die_and_return();
        model.until_serving(1_000);
        model.pass_in_steps(ms(1), ms(1));
    }
    model.die_and_return();
    model.until_serving(300);
    assert_eq!(model.serving(), (0, 0, 2_000));
    // The server survives the replay of both, so neither is a suspect any more.
    model.pass_in_steps(ms(150), ms(1));
    model.spliced.clear();
    model.die_and_return();
    assert_eq!(model.spliced, [1, 2], "both at once");
}

/// The server was given no input of the connection, so the connection cannot be the cause of the death.
#[test]
fn connection_without_replay_is_no_suspect() {
    let idle = [1, 2].map(|id| Peer::new(id, 0, 100));
    let deaf = [3, 4].map(|id| Peer::new(id, 10, 100).manner(Manner::Deaf));
    let mut model = Model::new(idle.into_iter().chain(deaf));
    for _ in 0..5 {
        model.die_and_return();
        model.pass_in_steps(ms(10), ms(1));
    }
    model.peer(3).manner = Manner::Reads;
    model.peer(4).manner = Manner::Reads;
    model.spliced.clear();
    model.die_and_return();
    assert_eq!(model.spliced, [1, 2, 3, 4], "all at once");
    model.until_serving(100);
    assert_eq!(model.serving(), (4, 0, 20));
}

#[test]
fn survived_replay_clears_suspect() {
    let mut model = Model::new([Peer::new(1, 1_000, 0).window(100)]);
    for _ in 0..5 {
        model.die_and_return();
        model.pass_in_steps(ms(4), ms(1));
        model.die(); // during the replay: an accusation
        model.until_serving(1_000);
        model.pass_in_steps(ms(200), ms(1)); // settled
    }
    assert!(model.reset.is_empty());
}

#[test]
fn death_soon_after_replay_counts() {
    let config = Config {
        quarantine_after: 1,
        ..Config::default()
    };
    for (time, kept) in [(ms(50), 0), (ms(150), 1)] {
        let mut model = Model::with(config.clone(), [Peer::new(1, 10, 0)]);
        model.die_and_return();
        model.until_serving(10);
        model.pass_in_steps(time, ms(1));
        model.die();
        model.until_serving(500);
        assert_eq!(model.serving().0, kept, "{time:?}");
    }
}
