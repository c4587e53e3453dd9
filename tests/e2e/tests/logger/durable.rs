//! The logger writes what is recorded to files, and is killed.

use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use e2e::clients::{read_exactly, write};
use e2e::loggers::{Logger, key_file};
use e2e::servers::{PORT, test_server};
use e2e::{Checksum, PATIENCE, Scene, assert_same_bytes, pattern};
use lab::Signal;

use crate::{echoes, echoing, protect, status, talks};

const UPLOAD: usize = 8 << 20;
/// Deaths of the logger in one upload.
const DEATHS: usize = 3;

#[test]
fn a_logger_with_a_log_is_killed_and_nothing_is_lost() {
    let scene = Scene::new("link-durable");
    let host = scene.lab.add_host_at("logger", 20).expect("a host");
    let keys = key_file(&scene, "keys");
    let log = scene.directory().join("log");
    let log = log.to_string_lossy();
    let mut logger = Logger::start(&scene, &host, &keys, &["--dir", &log]);
    let server = test_server(&scene);
    let protected = protect(&scene, &server, &logger, &["--on-logger-loss", "hold"]);
    let talk = scene.connect(PORT);
    talks(&talk, "before");
    let echo = echoing(&scene);

    let content = pattern(UPLOAD);
    let stream = scene.connect(PORT);
    write(&stream, format!("sink {UPLOAD}\n").as_bytes());
    thread::scope(|scope| {
        scope.spawn(|| in_pieces(&stream, &content));
        for death in 1..=DEATHS {
            logger.kill();
            logger.replace_dead(&scene);
            await_found(&logger, death);
        }
    });
    let expected = format!("{UPLOAD} {:016x}\n", Checksum::of(&content));
    let got = read_exactly(&stream, expected.len());
    assert_same_bytes("answer to the upload", expected.as_bytes(), &got);
    assert_eq!(status(&protected)["unprotected"], 0);

    // The records of before, between and after are whole: the server can die.
    echoes(&echo, b"between");
    protected.kill_main(Signal::KILL);
    protected.wait_serving(1);
    echoes(&echo, b"afterwards");
    talks(&talk, "afterwards");
    protected.assert_none_of("lost");
    protected.stop();
}

/// Waits until the service has found its records so often.
fn await_found(logger: &Logger, times: usize) {
    let deadline = Instant::now() + PATIENCE;
    while logger.said().matches("and finds its records").count() < times {
        assert!(Instant::now() < deadline, "{}", logger.said());
        thread::sleep(Duration::from_millis(5));
    }
}

/// So slowly that there is something to be sent all the while.
fn in_pieces(stream: &TcpStream, content: &[u8]) {
    for piece in content.chunks(content.len() / 64) {
        write(stream, piece);
        thread::sleep(Duration::from_millis(50));
    }
}
