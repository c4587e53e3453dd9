//! Failures times phases: the outcome for the service, and no visible failure for clients.
//!
//! Each failure has its own pair of hosts and logger. The failure happens while clients are in all phases. With
//! `OUTLIVE_PHASES=alone` (`make soak`) the failure happens once in each phase, on the host that serves then. Clients
//! get the same bytes as without the failure; no connection sees an end that the run without the failure does not
//! have; and in each epoch a single host speaks.
//!
//! Not simulated: a machine whose boot clock stops while the machine runs. The lease of that machine would be too
//! long; docs/internals/leases.md does not promise that case. Hosts of a lab share the kernel's clocks. Changes of the
//! wall clock are in `clock.rs`.

use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use e2e::exchange::{assert_untouched, echoes, end};
use e2e::loggers::await_recorded;
use e2e::pair::{Counts, Pair, addresses};
use e2e::servers::SERVER_PORT;
use e2e::speakers::{Speakers, now};
use e2e::{Protected, clients};
use lab::{Direction, Host, Mac, Signal};

use crate::phases::{Moment, PHASES, Phase, Stage, over};

/// The outcome for the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The standby serves. The former host stands by, if possible.
    TakenOver,
    /// The host that serves continues, without a request for the epoch.
    Stays,
    /// No host may send during the failure: clients wait. Then either host continues.
    Waits,
    /// Either host continues.
    Either,
}

/// A failure, and the expected outcome.
struct Failure {
    strike: fn(&Pair),
    /// Ends the failure; no action for a host that is off.
    mend: fn(&Pair),
    outcome: Outcome,
}

/// Duration of a failure without a takeover: longer than the tolerated silence of a logger, and than a lease.
const FAILURE_DURATION: Duration = Duration::from_millis(1300);

/// A pair of hosts during a row.
struct Case {
    pair: Pair,
    /// Connections that live through all failures.
    witness: [TcpStream; 2],
    /// The hosts that should serve, in order.
    holders: Vec<Mac>,
}

fn mac(one: &Protected) -> Mac {
    one.host().mac("eth0").expect("it has one")
}

/// Whether each phase has a failure of its own.
fn alone() -> bool {
    std::env::var_os("OUTLIVE_PHASES").is_some_and(|value| value == "alone")
}

/// A row of the matrix.
fn row(name: &str, failure: &Failure) {
    let pair = Pair::with_test_server(name);
    let speakers = Speakers::listen(&pair.scene.client, &addresses());
    let witness = addresses().map(|to| pair.scene.connect_to(to));
    for stream in &witness {
        clients::write(stream, b"echo\n");
        echoes(stream, b"hello");
    }
    let holders = vec![mac(&pair.first)];
    let mut case = Case {
        pair,
        witness,
        holders,
    };
    let mut silences = Vec::new();
    // A phase alone takes its time.
    let at_once = if alone() { 1 } else { PHASES.len() };
    for phases in PHASES.chunks(at_once) {
        let names: Vec<&str> = phases.iter().map(|phase| phase.name).collect();
        eprintln!("--- {name}, {names:?}");
        silences.extend(case.strike(failure, phases));
        case.testify();
        for one in [&case.pair.first, &case.pair.second] {
            one.assert_none_of("connection_reset");
            one.assert_none_of("unprotected");
        }
    }
    for stream in &case.witness {
        end(stream);
    }
    let heard = speakers.finish();
    heard.assert_one_at_a_time(&case.holders);
    for (from, to) in silences {
        heard.assert_silence(from, to);
    }
    case.pair.stop();
}

impl Case {
    /// The answer proves that the host which serves has a lease.
    fn testify(&self) {
        for stream in &self.witness {
            echoes(stream, b"I am here");
        }
    }

    /// Strikes the host that serves, once. Returns the time of required silence, if any.
    fn strike(&mut self, failure: &Failure, phases: &[Phase]) -> Option<(Duration, Duration)> {
        let pair = &self.pair;
        let before = Counts::of(pair);
        let recording = pair.scene.record(SERVER_PORT);
        let moment = Moment::new(phases.len());
        let (taken_over, silence) = thread::scope(|scope| {
            let spawn = |phase: &Phase| {
                let (clients, scene, moment) = (phase.clients, &pair.scene, &moment);
                scope.spawn(move || clients(scene, moment))
            };
            let clients: Vec<_> = phases.iter().map(spawn).collect();
            moment.wait(Stage::Ready);
            // An answer of which the logger does not have the beginning could not be compared.
            await_recorded(&pair.first);
            (failure.strike)(pair);
            let struck = now();
            moment.reach(Stage::Struck);
            let mut taken_over = failure.outcome == Outcome::TakenOver;
            let mut silence = None;
            if !taken_over {
                thread::sleep(FAILURE_DURATION.max(over()));
                if failure.outcome == Outcome::Waits {
                    silence = Some((struck + over(), now()));
                }
                (failure.mend)(pair);
                self.testify();
                taken_over = Counts::of(pair).granted > before.granted;
            }
            if taken_over {
                pair.second.wait_serving(before.serving + 1);
            }
            moment.reach(Stage::Over);
            for (clients, phase) in clients.into_iter().zip(phases) {
                assert!(clients.join().is_ok(), "clients noticed it: {}", phase.name);
            }
            (taken_over, silence)
        });
        let connections = phases.iter().map(|phase| phase.connections).sum();
        assert_untouched(recording, connections);
        if taken_over {
            assert_ne!(failure.outcome, Outcome::Stays, "{}", pair.second.log());
            self.change_places(failure, &before);
        } else {
            let superseded = Counts::of(pair).superseded;
            assert_eq!(superseded, before.superseded, "{}", pair.first.log());
        }
        silence
    }

    /// Who served stands by.
    fn change_places(&mut self, failure: &Failure, before: &Counts) {
        let pair = &mut self.pair;
        if pair.first.host().is_on() {
            if failure.outcome == Outcome::TakenOver {
                (failure.mend)(pair);
            }
            pair.first.wait_for("superseded", before.superseded + 1);
            pair.change_roles(before);
        } else {
            pair.change_places();
        }
        self.holders.push(mac(&pair.first));
    }
}

/// Off and on faster than a lease, for longer than several.
fn flap(pair: &Pair) {
    for _ in 0..6 {
        pair.first.host().cut().expect("cut");
        thread::sleep(Duration::from_millis(90));
        pair.first.host().heal().expect("heal");
        thread::sleep(Duration::from_millis(60));
    }
}

/// A test for each row: the test's name tells the failure.
macro_rules! matrix {
    ($($name:ident: $outcome:ident, $strike:expr, $mend:expr;)*) => {
        $(#[test]
        fn $name() {
            row(stringify!($name), &Failure {
                strike: $strike,
                mend: $mend,
                outcome: Outcome::$outcome,
            });
        })*
    };
}

matrix! {
    power_off: TakenOver, |pair| pair.first.power_off(), |_| ();
    host_cut_off: TakenOver,
        |pair| pair.first.host().cut().expect("cut"),
        |pair| pair.first.host().heal().expect("heal");
    host_not_heard: TakenOver,
        |pair| pair.first.host().cut_one_way(Direction::FromHost).expect("cut"),
        |pair| pair.first.host().heal().expect("heal");
    host_hears_nothing: TakenOver,
        |pair| pair.first.host().cut_one_way(Direction::ToHost).expect("cut"),
        |pair| pair.first.host().heal().expect("heal");
    host_flaps: Either, flap, |_| ();
    supervisor_stopped: TakenOver,
        |pair| pair.first.kill_serve(Signal::STOP),
        |pair| pair.first.kill_serve(Signal::CONT);
    all_processes_stopped: TakenOver,
        |pair| pair.first.host().pause().expect("pause"),
        |pair| pair.first.host().resume().expect("resume");
    host_stands_still: TakenOver,
        |pair| {
            pair.first.host().cut().expect("cut");
            pair.first.host().pause().expect("pause");
        },
        |pair| {
            pair.first.host().resume().expect("resume");
            pair.first.host().heal().expect("heal");
        };

    client_parted_from_host: Stays,
        |pair| part(pair, &pair.scene.client, pair.first.host()),
        |pair| rejoin(pair, &pair.scene.client, pair.first.host());
    client_parted_from_standby: Stays,
        |pair| part(pair, &pair.scene.client, pair.second.host()),
        |pair| rejoin(pair, &pair.scene.client, pair.second.host());
    client_parted_from_logger: Stays,
        |pair| part(pair, &pair.scene.client, pair.logger.host()),
        |pair| rejoin(pair, &pair.scene.client, pair.logger.host());
    host_parted_from_standby: Stays,
        |pair| part(pair, pair.first.host(), pair.second.host()),
        |pair| rejoin(pair, pair.first.host(), pair.second.host());
    host_parted_from_logger: TakenOver,
        |pair| part(pair, pair.first.host(), pair.logger.host()),
        |pair| rejoin(pair, pair.first.host(), pair.logger.host());
    standby_parted_from_logger: Stays,
        |pair| part(pair, pair.second.host(), pair.logger.host()),
        |pair| rejoin(pair, pair.second.host(), pair.logger.host());

    standby_stands_still: Stays,
        |pair| pair.second.host().pause().expect("pause"),
        |pair| pair.second.host().resume().expect("resume");
    logger_cut_off: Waits,
        |pair| pair.logger.host().cut().expect("cut"),
        |pair| pair.logger.host().heal().expect("heal");
    logger_stands_still: Waits,
        |pair| pair.logger.host().pause().expect("pause"),
        |pair| pair.logger.host().resume().expect("resume");
}

fn part(pair: &Pair, one: &Host, other: &Host) {
    pair.scene.lab.part(one, other).expect("part");
}

fn rejoin(pair: &Pair, one: &Host, other: &Host) {
    pair.scene.lab.rejoin(one, other).expect("rejoin");
}
