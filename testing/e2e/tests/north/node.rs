//! Node.js: counters survive, with timers, files, hashes by the thread pool, and garbage collection.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
};

use e2e::{
    Scene,
    clients::{Http, finish},
    exchange::{assert_all_recovered, assert_untouched},
    pair::{FailOver, Pair, addresses},
    servers::{SERVER_PORT, node, node_at},
};

use super::{STATEFUL_REQUIRE, await_condition, rare_calls::kill};

const CLIENT_COUNT: usize = 4;
const KILL_COUNT: usize = 4;
/// Requests between two kills.
const REQUESTS_PER_KILL: usize = 400;

/// Counts until `ends`, and receives each number once.
fn count(
    scene: &Scene,
    address: SocketAddr,
    number: usize,
    answers: &AtomicUsize,
    ends: &AtomicBool,
) {
    let mut http = Http::new(scene.connect_to(address));
    let mut count = 0;
    while !ends.load(Ordering::Relaxed) {
        count += 1;
        let response = http.get(&format!("/{number}"));
        let said = String::from_utf8_lossy(&response.body).into_owned();
        let heard = said.split(' ').next();
        assert_eq!(heard, Some(count.to_string().as_str()), "{said}");
        answers.fetch_add(1, Ordering::Relaxed);
    }
    finish(http.stream());
}

/// Clients count, and the server dies `deaths` times, by `die`, each time after some further answers.
fn count_and_die(
    scene: &Scene,
    address: SocketAddr,
    deaths: usize,
    mut die: impl FnMut(usize),
) -> usize {
    let (answers, ends) = (&AtomicUsize::new(0), &AtomicBool::new(false));
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENT_COUNT)
            .map(|number| scope.spawn(move || count(scene, address, number, answers, ends)))
            .collect();
        for death in 1..=deaths {
            let until = answers.load(Ordering::Relaxed) + REQUESTS_PER_KILL;
            await_condition("answers", || {
                answers.load(Ordering::Relaxed) >= until
                    || clients.iter().any(|client| client.is_finished())
            });
            die(death);
        }
        ends.store(true, Ordering::Relaxed);
    });
    answers.load(Ordering::Relaxed)
}

fn keeps_counting(label: &str, options: &[&str]) {
    let scene = &Scene::new(label);
    let server = scene.protect_with(&node(scene, options), &STATEFUL_REQUIRE);
    let recording = scene.record(SERVER_PORT);
    count_and_die(scene, scene.ipv4(SERVER_PORT), KILL_COUNT, |round| {
        kill(&server, round)
    });
    assert_all_recovered(&server);
    assert_untouched(recording, CLIENT_COUNT);
}

#[test]
fn node_keeps_counting() {
    keeps_counting("node", &[]);
}

/// Without threads of V8's own.
#[test]
fn single_threaded_node_keeps_counting() {
    keeps_counting("nodesingle", &["--single-threaded"]);
}

/// The host loses power; another host continues with the data at the logger.
#[test]
fn node_survives_power_off() {
    let [address, _] = addresses();
    let mut pair = Pair::with("nodehosts", &[], &STATEFUL_REQUIRE, |scene| {
        node_at(scene, address, &[])
    });
    let scene = pair.scene.clone();
    count_and_die(&scene, address, 3, |round| {
        let ways = [FailOver::PowerOff, FailOver::Switchover, FailOver::PowerOff];
        pair.fail_over(ways[round - 1]);
    });
    pair.stop();
}
