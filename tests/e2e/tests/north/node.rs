//! node: what it counts it goes on counting.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use e2e::{
    Scene, Seed,
    clients::{Http, finish},
    exchange::{assert_all_kept, assert_untouched},
    servers::{PORT, node},
};

use super::{REQUIRE, kill_again_and_again};

fn count(scene: &Scene, number: usize, ends: &AtomicBool) {
    let mut http = Http::new(scene.connect(PORT));
    let mut count = 0;
    while !ends.load(Ordering::Relaxed) {
        count += 1;
        let response = http.get(&format!("/{number}"));
        let said = String::from_utf8_lossy(&response.body).into_owned();
        assert_eq!(
            said.split(' ').next(),
            Some(count.to_string().as_str()),
            "{said}"
        );
    }
    finish(http.stream());
}

#[test]
#[ignore = "node cannot be replayed each time: its helper threads have a say (docs/north.md)"]
fn node_goes_on_counting() {
    const CLIENTS: usize = 4;
    let scene = Scene::new("node");
    let server = scene.protect_with(&node(&scene), &REQUIRE);
    let recording = scene.record(PORT);
    let seed = &mut Seed::choose("node");
    let ends = &AtomicBool::new(false);
    let scene = &scene;
    thread::scope(|scope| {
        for number in 0..CLIENTS {
            scope.spawn(move || count(scene, number, ends));
        }
        kill_again_and_again(&server, 5, seed);
        ends.store(true, Ordering::Relaxed);
    });
    assert_all_kept(&server);
    assert_untouched(recording, CLIENTS);
}
