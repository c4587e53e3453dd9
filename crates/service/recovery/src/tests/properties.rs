//! Random histories. The model checks each action; the tests here check the end of each connection.

use std::time::Duration;

use proptest::{collection::vec, prelude::*};
use south_model::{Mode, UnprotectedReason};
use wire::{FlowId, SeqNumber};

use super::model::{Manner, Model, Peer, SEGFAULT, key, ms};
use crate::{Action, Candidate, Config, GaveUp, Recovery, ReplayMode, Stage};

#[derive(Debug, Clone, Copy)]
enum Input {
    Die,
    Clear,
    Start,
    Listen,
    Drained,
    OldDrain(u64),
    LoggerRestarted,
    Pass(u64),
    ClientResets(u64),
    Diverge(u64),
    LosePieces(u64, u32),
    Late,
    GiveUp,
}

fn input() -> impl Strategy<Value = Input> {
    prop_oneof![
        3 => Just(Input::Die),
        4 => Just(Input::Clear),
        4 => Just(Input::Start),
        4 => Just(Input::Listen),
        4 => Just(Input::Drained),
        1 => (0u64..8).prop_map(Input::OldDrain),
        1 => Just(Input::LoggerRestarted),
        12 => (1u64..60).prop_map(Input::Pass),
        1 => (1u64..8).prop_map(Input::ClientResets),
        1 => (1u64..8).prop_map(Input::Diverge),
        2 => (1u64..8, 1u32..4).prop_map(|(id, count)| Input::LosePieces(id, count)),
        1 => Just(Input::Late),
    ]
}

/// An ordinary connection, with any sequence numbers.
fn good_peer(id: u64) -> impl Strategy<Value = Peer> {
    let near_wrap = prop_oneof![
        any::<u32>(),
        (0u32..100_000).prop_map(|back| 0u32.wrapping_sub(back))
    ];
    (
        near_wrap,
        any::<u32>(),
        0u32..100_000,
        0u32..9_000,
        2u32..70_000,
        any::<bool>(),
        0u32..3,
    )
        .prop_map(
            move |(client, server, instream, outstream, window, fin, syns_lost)| {
                let peer = Peer::at(
                    id,
                    SeqNumber(client),
                    SeqNumber(server),
                    instream,
                    outstream,
                )
                .window(window.max(instream / 50 + 2))
                .change(|peer| peer.syns_lost = syns_lost);
                if fin { peer.with_fin() } else { peer }
            },
        )
}

/// A connection in any condition.
fn any_peer(id: u64) -> impl Strategy<Value = Peer> {
    let manner = prop_oneof![
        6 => Just(Manner::Reads),
        1 => Just(Manner::Deaf),
        1 => Just(Manner::Stuck),
        1 => Just(Manner::Mute),
        1 => (0u32..500).prop_map(Manner::ClosesAfter),
        1 => (0u32..500).prop_map(Manner::SaysElse),
        1 => Just(Manner::Kills),
    ];
    (good_peer(id), manner, 0u32..12).prop_map(|(peer, manner, flaw)| {
        peer.manner(manner).change(|peer| match flaw {
            0 => peer.flow.server_closing = true,
            1 => peer.flow.client.reset = true,
            2 => peer.flow.unprotected = Some(UnprotectedReason::MirrorLost),
            3 => peer.record = None,
            4 => peer.flow.server.ack += 1,
            _ => {}
        })
    })
}

fn peers(any: bool) -> impl Strategy<Value = Vec<Peer>> {
    let one = move |id| {
        if any {
            any_peer(id).boxed()
        } else {
            good_peer(id).boxed()
        }
    };
    (0usize..7).prop_flat_map(move |count| (1..=count as u64).map(one).collect::<Vec<_>>())
}

fn config() -> impl Strategy<Value = Config> {
    (any::<bool>(), 1usize..5, 1u32..4, 1u32..70_000).prop_map(
        |(turn, splice_window, quarantine_after, max)| Config {
            replay: if turn {
                ReplayMode::Request
            } else {
                ReplayMode::Connection
            },
            splice_window,
            quarantine_after,
            max_segment: max.max(2_000),
            accept_timeout: ms(400),
            replay_timeout: ms(400),
            give_up_after: ms(3_000),
            ..Config::default()
        },
    )
}

/// Applies possible inputs only: a server listens after a start, and no server dies twice.
fn apply(model: &mut Model, input: Input, latecomers: &mut Vec<Peer>) {
    match input {
        Input::Die => model.die(),
        Input::Clear => model.clear(),
        Input::Start if model.start_wanted => model.start(),
        Input::Listen if model.stage() == Stage::Starting && !model.start_wanted => model.listen(),
        Input::Start | Input::Listen => {}
        Input::Drained => model.drained(),
        Input::OldDrain(back) => {
            if let Some(token) = model.drain.and_then(|token| token.checked_sub(back + 1)) {
                model.recovery.drained(token);
            }
        }
        Input::LoggerRestarted => model.recovery.logger_restarted(),
        Input::Pass(time) => model.pass_in_steps(ms(time), ms(3)),
        Input::ClientResets(id) => {
            let incarnation = model.incarnation;
            if let Some(peer) = model.peers.get_mut(&key(id)) {
                // The data plane notes the reset while no server has the connection.
                let gated =
                    peer.flow.incarnation != incarnation || peer.flow.mode == Mode::Splicing;
                peer.flow.client.reset |= gated;
            }
        }
        Input::Diverge(id) => {
            let incarnation = model.incarnation;
            if let Some(peer) = model.peers.get_mut(&key(id))
                && peer.flow.incarnation == incarnation
                && peer.flow.mode == Mode::Spliced
                && peer.manner == Manner::Mute
            {
                let at = peer.flow.server.isn + 1;
                model.diverge(id, at);
            }
        }
        Input::LosePieces(id, count) => {
            if let Some(peer) = model.peers.get_mut(&key(id)) {
                peer.pieces_lost = count;
            }
        }
        Input::Late => {
            if let Some(peer) = latecomers.pop() {
                model.late(peer);
            }
        }
        Input::GiveUp => model.recovery.give_up(GaveUp::Stopped),
    }
    model.act();
}

/// Between a death and the next incarnation no segment is delivered.
fn nothing_for_the_dead(done: &[Action]) {
    let mut dead = false;
    for action in done {
        match action {
            Action::Gate => dead = true,
            Action::NewIncarnation => dead = false,
            Action::Splice { .. }
            | Action::RepeatSyn { .. }
            | Action::Replay { .. }
            | Action::OpenWindow { .. } => {
                assert!(!dead, "{action:?} for a dead server");
            }
            _ => {}
        }
    }
}

/// Each connection had exactly a single end.
fn each_has_one_fate(model: &Model, all: &[(u64, bool)]) {
    for &(id, client_was_gone) in all {
        let (reset, forgotten) = (
            model.reset.contains_key(&key(id)),
            model.forgotten.contains(&key(id)),
        );
        let left = model.peers.get(&key(id));
        let ended = left.is_some_and(|peer| peer.flow.server_closing);
        let kept = left.is_some_and(|peer| !ended && peer.flow.incarnation == model.incarnation);
        let fates = [reset, forgotten, ended, kept];
        assert_eq!(
            fates.iter().filter(|fate| **fate).count(),
            1,
            "connection {id}: {fates:?}"
        );
        if client_was_gone {
            assert!(
                !reset && !kept && model.pieces(id).is_empty(),
                "connection {id}"
            );
            assert!(!model.spliced.contains(&id), "connection {id}");
        }
    }
    let told = model.reported_losses();
    assert_eq!(told.len(), model.reset.len(), "each reset is told once");
}

fn run(config: Config, mut peers: Vec<Peer>, inputs: Vec<Input>) -> Model {
    let all: Vec<_> = peers
        .iter()
        .map(|peer| {
            (
                peer.flow.id.0,
                peer.flow.client.reset && !peer.flow.server_closing,
            )
        })
        .collect();
    let latecomers = peers.len() / 3;
    let mut latecomers = peers.split_off(peers.len() - latecomers);
    let mut model = Model::with(config, peers);
    model.die();
    for input in inputs {
        apply(&mut model, input, &mut latecomers);
    }
    model.peers.extend(
        latecomers
            .into_iter()
            .map(|peer| (key(peer.flow.id.0), peer)),
    );
    model.die(); // late connections are in the next list
    model.until_serving(20_000);
    nothing_for_the_dead(&model.done);
    each_has_one_fate(&model, &all);
    model
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn any_input_ends_in_serving(config in config(), peers in peers(true), inputs in vec(input(), 0..60)) {
        run(config, peers, inputs);
    }

    /// If only deaths and packet losses happen, no connection is reset.
    #[test]
    fn deaths_alone_reset_none(
        turn: bool,
        peers in peers(false),
        deaths in vec((0u64..80, 1u64..8, 0u32..4), 0..12),
    ) {
        let config = Config {
            replay: if turn { ReplayMode::Request } else { ReplayMode::Connection },
            quarantine_after: 100,
            ..Config::default()
        };
        let inputs = deaths.into_iter().flat_map(|(time, id, count)| {
            use Input::{Clear, Die, Drained, Listen, LosePieces, Pass, Start};
            [Die, Clear, Start, Drained, Listen, LosePieces(id, count), Pass(time + 1)]
        });
        let count = peers.len();
        let mut model = run(config, peers, inputs.collect());
        prop_assert!(model.reset.is_empty());
        prop_assert_eq!(model.serving().0, count);
        for (key, peer) in &model.peers {
            prop_assert_eq!(peer.received(), peer.owed(), "the whole record of {}", key);
        }
        model.pass_in_steps(ms(1_500), ms(5));
        prop_assert_eq!(model.recovery.deadline(), None, "all settled");
    }

    /// A give-up at any time resets no connection twice, and leaves served connections alone.
    #[test]
    fn give_up_at_any_time_ends_in_serving(peers in peers(true), before in vec(input(), 0..30), after in vec(input(), 0..30)) {
        let inputs = before.into_iter().chain([Input::GiveUp]).chain(after).collect();
        run(Config { accept_timeout: ms(400), replay_timeout: ms(400), ..Config::default() }, peers, inputs);
    }

    /// Senseless inputs from a broken data plane do no harm here: no panic, no piece outside of the record or beyond
    /// any window that was ever offered, no busy loop.
    #[test]
    fn arbitrary_flows_are_survived(
        peers in peers(true),
        nonsense in vec((0u8..12, any::<u32>(), any::<u32>(), 0u64..9, 0u64..2_000), 0..200),
    ) {
        let list = |peers: &[Peer]| -> Vec<Candidate> {
            peers.iter().map(|peer| super::model::candidate(key(peer.flow.id.0), peer)).collect()
        };
        let mut recovery = Recovery::new(Config::default());
        let mut now = Duration::ZERO;
        for (what, a, b, id, time) in nonsense {
            now += ms(time);
            let peer = peers.iter().find(|peer| peer.flow.id.0 == id);
            match what {
                0 => recovery.on_death(SEGFAULT, ms(u64::from(a)), now),
                1 => recovery.service_empty(now),
                2 => recovery.started(a, now),
                3 => recovery.listening(now),
                4 => recovery.drained(u64::from(a % 8)),
                5 => recovery.logger_restarted(),
                6 => recovery.connections(list(&peers), now),
                7 => if let Some(peer) = peer {
                    let mut flow = peer.flow.clone();
                    flow.verify.diverged_at = SeqNumber(a);
                    flow.verify.ended_early = b % 2 == 0;
                    recovery.diverged(key(id), &flow);
                },
                8 => recovery.observe(FlowId(id), None, now),
                9 => recovery.poll(now),
                10 => if let Some(peer) = peer {
                    recovery.late_connection(&super::model::candidate(key(id), peer), now);
                },
                _ => if let Some(peer) = peer {
                    let mut flow = peer.flow.clone();
                    flow.incarnation += a % 2;
                    flow.mode = [Mode::Splicing, Mode::Spliced, Mode::Spliced, Mode::Observed][b as usize % 4];
                    (flow.splice.ack, flow.splice.rcv_wnd_edge) = (flow.client.isn + a % 200_000, flow.client.isn + b % 400_000);
                    recovery.observe(FlowId(id), Some(&flow), now);
                    recovery.poll(now);
                },
            }
            let mut actions = 0;
            while let Some(action) = recovery.next_action() {
                actions += 1;
                prop_assert!(actions < 10_000);
                let Action::Replay { flow, segment, .. } = action else { continue };
                let peer = peers.iter().find(|peer| peer.flow.id == flow).expect("one of ours");
                let record = peer.record.expect("with a record");
                let end = record.stable_seq + u32::from(record.client_fin.is_some());
                let from = segment.from.distance_from(record.start).expect("in the record");
                let to = from + segment.len + u32::from(segment.fin);
                prop_assert!(to <= end.distance_from(record.start).expect("a record"));
                prop_assert!(to <= 400_000, "the widest window");
            }
            while recovery.next_event().is_some() {}
            let _ = recovery.deadline();
        }
    }
}
