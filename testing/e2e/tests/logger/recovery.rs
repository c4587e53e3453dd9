//! Death of the server while the logger lives.

use e2e::clients::{Http, finish, write};
use e2e::exchange::Exchange;
use e2e::servers::{BIG_FILE_BYTES, Crash, SERVER_PORT, nginx, test_server};
use e2e::{Seed, assert_same_bytes, pattern};

use crate::{protect, status, with_logger};

#[test]
fn download_echo_and_upload_survive_two_kills() {
    let (scene, logger) = with_logger("link-exchange");
    for strategy in ["basic", "lazy", "eager", "conditional"] {
        let mut seed = Seed::choose(&format!("link-exchange-{strategy}"));
        let protected = protect(&scene, &test_server(&scene), &logger, &["--ack", strategy]);
        Exchange::default().survives(&scene, &protected, &mut seed, || scene.connect(SERVER_PORT));
        protected.stop();
    }
}

#[test]
fn download_echo_and_upload_survive_two_kills_over_ipv6() {
    let (scene, logger) = with_logger("link-v6");
    let mut seed = Seed::choose("link-v6");
    let protected = protect(&scene, &test_server(&scene), &logger, &[]);
    Exchange::default().survives(&scene, &protected, &mut seed, || {
        scene.connect_to(scene.ipv6(SERVER_PORT))
    });
    protected.stop();
}

#[test]
fn nginx_killed_in_download_and_upload() {
    let (scene, logger) = with_logger("link-nginx");
    let server = nginx(&scene);
    let protected = protect(&scene, &server, &logger, &[]);
    let recording = scene.record(SERVER_PORT);

    let mut http = Http::new(scene.connect(SERVER_PORT));
    http.ask("/big.bin");
    let mut killed = false;
    let got = http.response(|progress| {
        if progress > BIG_FILE_BYTES / 3 && !std::mem::replace(&mut killed, true) {
            server.crash(&protected, Crash::Kill);
        }
    });
    assert_same_bytes("download", &pattern(BIG_FILE_BYTES), &got.body);
    finish(http.stream());
    protected.wait_serving(1);

    let content = pattern(4 << 20);
    let mut http = Http::new(scene.connect(SERVER_PORT));
    let head = format!(
        "PUT /up/file HTTP/1.1\r\nHost: server\r\nContent-Length: {}\r\n\r\n",
        content.len()
    );
    write(http.stream(), head.as_bytes());
    let (begin, rest) = content.split_at(3 << 20);
    write(http.stream(), begin);
    server.crash(&protected, Crash::Kill);
    protected.wait_for("died", 2);
    write(http.stream(), rest);
    let answer = http.response(|_| ());
    assert!(answer.head[0].contains("201"), "{:?}", answer.head);
    finish(http.stream());
    let stored = std::fs::read(scene.directory().join("www/up/file")).expect("it was stored");
    assert_same_bytes("upload", &content, &stored);
    protected.wait_serving(2);
    protected.assert_none_of("connection_reset");
    let endings = recording.finish();
    assert!(endings.iter().all(|ending| !ending.rst), "{endings:?}");
    protected.stop();
}

#[test]
fn status_shows_logger_and_packet_size() {
    let (scene, logger) = with_logger("link-status");
    let protected = protect(&scene, &test_server(&scene), &logger, &[]);
    let _stream = crate::echoing(&scene);
    let said = status(&protected);
    let words = said["logger"].as_str().expect("a text");
    assert!(words.starts_with(&logger.address().to_string()), "{words}");
    assert!(words.contains("packets of 1500 bytes"), "{words}");
    assert_eq!(said["unprotected"], 0, "{said}");
    protected.stop();
}
