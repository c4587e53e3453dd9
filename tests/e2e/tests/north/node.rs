//! Node.js: what it counts it goes on counting, with timers, files and hashes by its pool of threads, and garbage.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
};

use e2e::{
    Scene,
    clients::{Http, finish},
    exchange::{assert_all_kept, assert_untouched},
    servers::{PORT, node},
};

use super::{REQUIRE, patiently, seldom::kill};

const CLIENTS: usize = 4;
const KILLS: usize = 4;
/// Requests between two kills.
const BETWEEN: usize = 400;

/// Asks until it is to end, and hears each number once.
fn count(scene: &Scene, number: usize, answers: &AtomicUsize, ends: &AtomicBool) {
    let mut http = Http::new(scene.connect(PORT));
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

fn goes_on_counting(label: &str, options: &[&str]) {
    let scene = &Scene::new(label);
    let server = scene.protect_with(&node(scene, options), &REQUIRE);
    let recording = scene.record(PORT);
    let (answers, ends) = (&AtomicUsize::new(0), &AtomicBool::new(false));
    thread::scope(|scope| {
        let clients =
            (0..CLIENTS).map(|number| scope.spawn(move || count(scene, number, answers, ends)));
        let clients: Vec<_> = clients.collect();
        for round in 1..=KILLS {
            let until = answers.load(Ordering::Relaxed) + BETWEEN;
            patiently("answers", || {
                answers.load(Ordering::Relaxed) >= until
                    || clients.iter().any(|client| client.is_finished())
            });
            kill(&server, round);
        }
        ends.store(true, Ordering::Relaxed);
    });
    assert_all_kept(&server);
    assert_untouched(recording, CLIENTS);
}

#[test]
fn node_goes_on_counting() {
    goes_on_counting("node", &[]);
}

/// Without threads of V8's own.
#[test]
fn node_with_a_single_thread_goes_on_counting() {
    goes_on_counting("nodesingle", &["--single-threaded"]);
}
