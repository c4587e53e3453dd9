//! Servers whose answers come from others, or go where they connect to: in the middle of these they are killed, and go
//! on.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use e2e::{
    Scene, Seed, assert_same_bytes,
    clients::{Http, finish},
    exchange::{assert_all_kept, assert_untouched},
    pattern,
    servers::{BIG, PORT, Server, haproxy, nginx_at, nginx_proxy},
};

use super::{
    REQUIRE, kill_again_and_again, meanwhile, patiently,
    upstream::{assert_kept_to_others, behind},
};

#[test]
fn haproxy_continues_within_downloads() {
    goes_on_in_the_middle_of_downloads("haproxy", haproxy);
}

#[test]
fn nginx_proxy_continues_within_downloads() {
    goes_on_in_the_middle_of_downloads("nginxproxy", nginx_proxy);
}

/// Killed again and again, while what is behind it answers: neither end of it notices.
fn goes_on_in_the_middle_of_downloads(label: &str, make: fn(&Scene, SocketAddr) -> Server) {
    const CLIENTS: usize = 4;
    let scene = Scene::new(label);
    let behind = behind(&scene);
    let _plain = scene.plain(&nginx_at(&scene, vec![behind]));
    let server = scene.protect_with(&make(&scene, behind), &REQUIRE);
    let recording = scene.record(PORT);
    let seed = &mut Seed::choose(label);
    let big = pattern(BIG);
    let begun = AtomicUsize::new(0);
    let client = |which, ends: &AtomicBool| {
        let mut http = Http::new(scene.connect(PORT));
        let small = pattern(500 + which * 700);
        let mut is_first = true;
        while !ends.load(Ordering::Relaxed) {
            http.ask("/big.bin");
            let response = http.response(|_| {
                begun.fetch_add(usize::from(is_first), Ordering::Relaxed);
                is_first = false;
                thread::sleep(Duration::from_micros(300));
            });
            assert_eq!(response.status, 200);
            assert_same_bytes("big", &big, &response.body);
            assert_eq!(http.get(&format!("/small/{which}")).body, small);
        }
        finish(http.stream());
    };
    meanwhile(CLIENTS, client, || {
        patiently("all are in the middle", || {
            begun.load(Ordering::Relaxed) == CLIENTS
        });
        kill_again_and_again(&server, 6, seed);
    });
    assert_all_kept(&server);
    assert_eq!(assert_kept_to_others(&server), 6);
    assert_untouched(recording, CLIENTS);
}
