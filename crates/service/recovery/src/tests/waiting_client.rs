//! Clients that wait for long: each client gets zero-window ACKs, and a window update at the end.

use south_model::Restored;

use super::model::{Model, Peer, key, ms};
use crate::{Action, GaveUp, Stage};

fn words(model: &Model, id: u64) -> (usize, usize) {
    let count = |wanted: fn(&Action) -> bool| {
        let ours = |action: &&Action| match action {
            Action::ZeroWindow { key: k, .. } | Action::UpdateWindow { key: k, .. } => {
                *k == key(id)
            }
            _ => false,
        };
        let all = model.done.iter().filter(ours);
        all.filter(|action| wanted(action)).count()
    };
    let closed = count(|action| matches!(action, Action::ZeroWindow { .. }));
    let opened = count(|action| matches!(action, Action::UpdateWindow { .. }));
    (closed, opened)
}

#[test]
fn short_recovery_sends_no_acks() {
    let mut model = Model::new([Peer::new(1, 10, 5)]);
    model.die();
    model.pass_in_steps(ms(900), ms(10));
    model.come_back();
    model.until_serving(50);
    model.pass_in_steps(ms(3_000), ms(10));
    assert_eq!(words(&model, 1), (0, 0));
}

#[test]
fn slow_server_sends_zero_window_then_update() {
    // The second connection is idle.
    let mut model = Model::new([Peer::new(1, 10, 5), Peer::new(2, 0, 0)]);
    model.die();
    model.clear();
    assert_eq!(model.recovery.deadline(), Some(model.now + ms(1_000)));
    model.pass_in_steps(ms(990), ms(10));
    assert_eq!(words(&model, 1), (0, 0));
    model.pass_in_steps(ms(3_000), ms(10));
    assert_eq!((words(&model, 1), words(&model, 2)), ((1, 0), (1, 0)));
    model.pass_in_steps(ms(4_000), ms(10));
    assert_eq!((words(&model, 1), words(&model, 2)), ((2, 0), (2, 0)));
    model.start();
    model.listen();
    model.drained();
    model.until_serving(50);
    assert_eq!((words(&model, 1), words(&model, 2)), ((2, 1), (2, 1)));
    assert!(model.closed.is_empty());
    model.pass_in_steps(ms(10_000), ms(10));
    assert_eq!((words(&model, 1), words(&model, 2)), ((2, 1), (2, 1)));
    assert_eq!(model.recovery.deadline(), None);
}

/// The server takes long for a connection; a death in between changes no schedule.
#[test]
fn queued_client_gets_zero_window() {
    let slow = Peer::new(1, 10, 5).change(|peer| peer.syns_lost = 1_000);
    let mut model = Model::new([slow, Peer::new(2, 10, 5)]);
    model.die_and_return();
    model.pass_in_steps(ms(2_000), ms(10));
    assert_eq!(model.stage(), Stage::Recovering);
    assert_eq!((words(&model, 1), words(&model, 2)), ((1, 0), (0, 0)));
    // The second connection is served, and waits again.
    model.die();
    model.pass_in_steps(ms(100), ms(10));
    assert_eq!((words(&model, 1), words(&model, 2)), ((1, 0), (1, 0)));
    model.peer(1).syns_lost = 0;
    model.come_back();
    model.until_serving(100);
    assert_eq!((words(&model, 1), words(&model, 2)), ((1, 1), (1, 1)));
}

/// A client of another host is probed first, and gets zero-window ACKs only after an answer.
#[test]
fn client_of_other_host_is_probed_first() {
    let silent = Peer::new(1, 10, 5).change(|peer| peer.flow.log.restored = Restored::Unconfirmed);
    let mut model = Model::new([silent]);
    model.die();
    model.pass_in_steps(ms(2_000), ms(10));
    let asked = |action: &&Action| matches!(action, Action::ProbeClient { .. });
    assert_eq!(model.done.iter().filter(asked).count(), 1);
    model.peer(1).flow.log.restored = Restored::Confirmed;
    model.pass_in_steps(ms(5_000), ms(10));
    assert_eq!(model.done.iter().filter(asked).count(), 1);
    assert_eq!(words(&model, 1), (1, 0));
    model.come_back();
    model.until_serving(100);
    assert_eq!(words(&model, 1), (1, 1));
}

#[test]
fn zero_windows_are_batched() {
    let mut model = Model::new((1..=200).map(|id| Peer::new(id, 10, 5)));
    model.die();
    model.pass_in_steps(ms(1_000), ms(1_000));
    assert_eq!(model.closed.len(), 0, "they are being listed");
    for told in [64, 128, 192, 200] {
        assert_eq!(model.recovery.deadline(), Some(model.now.min(ms(11_000))));
        model.look();
        assert_eq!(model.closed.len(), told);
    }
    model.recovery.give_up(GaveUp::Stopped);
    model.act();
    assert_eq!(model.reset.len(), 200);
    model.turn_page();
    model.pass_in_steps(ms(10_000), ms(100));
    assert!(model.done.is_empty(), "{:?}", model.done);
}
