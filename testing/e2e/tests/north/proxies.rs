//! Proxies, killed in the middle of downloads from their upstream servers.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use e2e::{
    Scene, Seed, assert_same_bytes,
    clients::{Http, finish},
    exchange::{assert_all_recovered, assert_untouched},
    pattern,
    servers::{BIG_FILE_BYTES, SERVER_PORT, Server, haproxy, nginx_at, nginx_proxy},
};

use super::{
    STATEFUL_REQUIRE, await_condition, kill_repeatedly,
    upstream::{assert_upstream_recovered, behind},
    with_clients,
};

#[test]
fn haproxy_continues_within_downloads() {
    continues_within_downloads("haproxy", haproxy);
}

#[test]
fn nginx_proxy_continues_within_downloads() {
    continues_within_downloads("nginxproxy", nginx_proxy);
}

/// Kills a proxy again and again while the upstream server answers: neither client nor upstream server notices.
fn continues_within_downloads(label: &str, make: fn(&Scene, SocketAddr) -> Server) {
    const CLIENT_COUNT: usize = 4;
    let scene = Scene::new(label);
    let behind = behind(&scene);
    let _plain = scene.plain(&nginx_at(&scene, vec![behind]));
    let server = scene.protect_with(&make(&scene, behind), &STATEFUL_REQUIRE);
    let recording = scene.record(SERVER_PORT);
    let seed = &mut Seed::choose(label);
    let big = pattern(BIG_FILE_BYTES);
    let begun = AtomicUsize::new(0);
    let client = |which, ends: &AtomicBool| {
        let mut http = Http::new(scene.connect(SERVER_PORT));
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
    with_clients(CLIENT_COUNT, client, || {
        await_condition("all are in the middle", || {
            begun.load(Ordering::Relaxed) == CLIENT_COUNT
        });
        kill_repeatedly(&server, 6, seed);
    });
    assert_all_recovered(&server);
    assert_eq!(assert_upstream_recovered(&server), 6);
    assert_untouched(recording, CLIENT_COUNT);
}
