//! lighttpd and nginx with a single process: files by `sendfile`.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use e2e::{
    Scene, Seed, assert_same_bytes,
    clients::{Http, curl, finish, write},
    exchange::{assert_all_recovered, assert_untouched},
    pattern,
    servers::{BIG_FILE_BYTES, SERVER_PORT, Server, lighttpd, nginx_alone},
};
use lab::Signal;

use super::{STATEFUL_REQUIRE, kill_repeatedly, with_clients};

fn small(number: usize) -> Vec<u8> {
    pattern(500 + number * 700)
}

/// Consecutive downloads on a single connection, slow enough for a kill in the middle.
fn download(scene: &Scene, big: &[u8], ends: &AtomicBool) {
    let mut http = Http::new(scene.connect(SERVER_PORT));
    while !ends.load(Ordering::Relaxed) {
        http.ask("/big.bin");
        let response = http.response(|_| thread::sleep(Duration::from_micros(300)));
        assert_eq!(response.status, 200);
        assert_same_bytes("big", big, &response.body);
    }
    finish(http.stream());
}

/// Pipelined requests, and the answers in order.
fn pipeline(scene: &Scene, ends: &AtomicBool) {
    const REQUESTS_PER_ROUND: usize = 25;
    let mut http = Http::new(scene.connect(SERVER_PORT));
    while !ends.load(Ordering::Relaxed) {
        let requests: String = (0..REQUESTS_PER_ROUND)
            .map(|number| {
                format!(
                    "GET /small/{} HTTP/1.1\r\nHost: server\r\n\r\n",
                    number % 10
                )
            })
            .collect();
        write(http.stream(), requests.as_bytes());
        for number in 0..REQUESTS_PER_ROUND {
            let response = http.response(|_| ());
            assert_eq!(response.status, 200, "answer {number}");
            assert_same_bytes("small", &small(number % 10), &response.body);
        }
        // lighttpd counts the requests of a connection in 16 bits, and closes the connection at the limit modulo
        // 65,536.
        thread::sleep(Duration::from_millis(20));
    }
    finish(http.stream());
}

#[test]
fn lighttpd_answers_all_requests_in_order() {
    answers_all_requests_in_order("lightstate", lighttpd);
}

/// nginx with a single process: edge-triggered descriptors.
#[test]
fn nginx_answers_all_requests_in_order() {
    answers_all_requests_in_order("nginxstate", nginx_alone);
}

fn answers_all_requests_in_order(label: &str, make: fn(&Scene) -> Server) {
    let scene = Scene::new(label);
    let server = scene.protect_with(&make(&scene), &STATEFUL_REQUIRE);
    let recording = scene.record(SERVER_PORT);
    let seed = &mut Seed::choose(label);
    let big = pattern(BIG_FILE_BYTES);
    let client = |which, ends: &AtomicBool| match which % 2 {
        0 => download(&scene, &big, ends),
        _ => pipeline(&scene, ends),
    };
    with_clients(6, client, || kill_repeatedly(&server, 5, seed));
    assert_all_recovered(&server);
    assert_untouched(recording, 6);
}

#[test]
fn lighttpd_continues_within_file() {
    continues_within_file("lightmiddle", lighttpd);
}

#[test]
fn nginx_continues_within_file() {
    continues_within_file("nginxmiddle", nginx_alone);
}

/// Kills the server once in each part of a download, and before and after the download.
fn continues_within_file(label: &str, make: fn(&Scene) -> Server) {
    let scene = Scene::new(label);
    let server = scene.protect_with(&make(&scene), &STATEFUL_REQUIRE);
    let recording = scene.record(SERVER_PORT);
    let mut http = Http::new(scene.connect(SERVER_PORT));
    let mut kills = 0;
    let mut kill = || {
        server.kill_main(Signal::KILL);
        kills += 1;
        server.wait_serving(kills);
    };
    assert_same_bytes("small", &small(1), &http.get("/small/1").body);
    kill();
    http.ask("/big.bin");
    let mut moments = [
        0,
        BIG_FILE_BYTES / 3,
        BIG_FILE_BYTES / 2,
        BIG_FILE_BYTES * 9 / 10,
        BIG_FILE_BYTES,
    ]
    .into_iter()
    .peekable();
    let response = http.response(|got| {
        if moments.next_if(|moment| got >= *moment).is_some() {
            kill();
        }
    });
    assert_same_bytes("big", &pattern(BIG_FILE_BYTES), &response.body);
    assert_same_bytes("small", &small(2), &http.get("/small/2").body);
    finish(http.stream());
    assert_all_recovered(&server);
    assert_untouched(recording, 1);
}

/// A new client for each download, whose connection the server closes.
#[test]
fn lighttpd_closes_connections_after_response() {
    let scene = Scene::new("lightclose");
    let server = scene.protect_with(&lighttpd(&scene), &STATEFUL_REQUIRE);
    let seed = &mut Seed::choose("lightclose");
    let (url, big) = (
        format!("http://{}/big.bin", scene.ipv4(SERVER_PORT)),
        pattern(BIG_FILE_BYTES),
    );
    let client = |_, ends: &AtomicBool| {
        while !ends.load(Ordering::Relaxed) {
            let got = curl(&scene, &["--http1.0", "--limit-rate", "40M", &url]);
            assert!(got.status.success(), "{:?}", got.stderr);
            assert_same_bytes("curl", &big, &got.stdout);
        }
    };
    with_clients(2, client, || kill_repeatedly(&server, 5, seed));
    assert_all_recovered(&server);
}
