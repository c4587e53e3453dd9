//! Ends without a crash: by the server, and by the operator.

use std::fs;
use std::net::{Shutdown, TcpStream};

use e2e::clients::{Http, curl, read_to_end, write};
use e2e::servers::{self, Crash, SERVER_PORT};
use e2e::{EVENT_TIMEOUT, Scene, assert_same_bytes, assert_same_endings, pattern};
use lab::Signal;
use rustix::process::Pid;

use crate::{echoes, echoing, is_reset, needy, talks};

/// The end of a connection that the server closes by itself, as seen by the client, with and without protection.
fn ends_by_itself(words: &str, end: fn(&TcpStream)) {
    let scene = Scene::new("own-end");
    let server = servers::test_server(&scene);
    let run = || {
        let recording = scene.record(SERVER_PORT);
        let stream = scene.connect(SERVER_PORT);
        talks(&stream, "hello");
        write(&stream, words.as_bytes());
        end(&stream);
        // While the client's end is open: no further segment may come.
        let endings = recording.finish();
        drop(stream);
        endings
    };
    let plain = {
        let _running = scene.plain(&server);
        run()
    };
    let protected = scene.protect(&server);
    assert_eq!(plain, run());
    protected.assert_none_of("died");
    protected.stop();
}

#[test]
fn server_close() {
    ends_by_itself("close\n", |stream| {
        assert!(read_to_end(stream).is_empty());
    });
}

#[test]
fn server_half_close() {
    ends_by_itself("half-close\nsink 1000\n", |stream| {
        assert!(read_to_end(stream).is_empty());
        write(stream, &pattern(1000));
    });
}

#[test]
fn server_reset() {
    ends_by_itself("reset\n", is_reset);
}

/// A panic of a thread closes that thread's connection like a return from a function: the server lives, and the close
/// is voluntary.
#[test]
fn panicking_thread_unwinds() {
    ends_by_itself("panic\n", |stream| {
        assert!(read_to_end(stream).is_empty());
    });
}

/// A connection that the living server had closed is not brought back by a later crash.
#[test]
fn connection_closed_before_crash() {
    let scene = Scene::new("closed-before");
    let server = servers::test_server(&scene);
    let protected = scene.protect(&server);
    let (closed, half, open) = (
        scene.connect(SERVER_PORT),
        scene.connect(SERVER_PORT),
        echoing(&scene),
    );
    write(&closed, b"close\n");
    assert!(read_to_end(&closed).is_empty());
    write(&half, b"pattern 1000\nhalf-close\n");
    assert_same_bytes("half", &pattern(1000), &read_to_end(&half));
    server.crash(&protected, Crash::Exit1);
    protected.wait_serving(1);
    echoes(&open, b"still here");
    protected.assert_none_of("connection_reset");
    protected.stop();
}

#[test]
fn server_exit_ends_serve() {
    let scene = Scene::new("ended");
    let mut protected = scene.protect(&servers::test_server(&scene));
    let stream = scene.connect(SERVER_PORT);
    write(&stream, b"exit 0\n");
    assert!(read_to_end(&stream).is_empty());
    let ended = protected.ended(EVENT_TIMEOUT);
    assert_eq!(
        ended.and_then(|status| status.code()),
        Some(0),
        "{}",
        protected.log()
    );
    assert_eq!(
        protected.events_of("server_exited").len(),
        1,
        "{}",
        protected.log()
    );
    protected.assert_nothing_left();
}

/// SIGHUP reaches the whole group of processes that the terminal has started.
#[test]
fn closed_terminal_keeps_protection() {
    let scene = Scene::new("hangup");
    let protected = scene.protect(&servers::test_server(&scene));
    let stream = echoing(&scene);
    protected.kill_serve_group(Signal::HUP);
    protected.kill_main(Signal::KILL);
    let serving = protected.wait_serving(1);
    assert_eq!(serving["recovered"], 1, "{serving}");
    echoes(&stream, b"afterwards");
    protected.assert_none_of("logger_restarted");
    protected.assert_none_of("unprotected");
    protected.stop();
}

#[test]
fn sigterm_with_open_connections() {
    let scene = Scene::new("sigterm");
    let protected = scene.protect(&servers::nginx(&scene));
    let mut used = Http::new(scene.connect(SERVER_PORT));
    assert_eq!(used.get("/small/2").status, 200);
    let silent = Http::new(scene.connect(SERVER_PORT));
    protected.stop();
    // nginx closes idle connections properly at a stop.
    assert!(used.rest().is_empty());
    assert!(silent.rest().is_empty());
}

#[test]
fn sigterm_with_spliced_connection() {
    let scene = Scene::new("sigterm-spliced");
    let protected = scene.protect(&servers::nginx(&scene));
    let mut http = Http::new(scene.connect(SERVER_PORT));
    assert_eq!(http.get("/small/2").status, 200);
    protected.kill_main(Signal::KILL);
    protected.wait_serving(1);
    assert_same_bytes("spliced", &pattern(2600), &http.get("/small/3").body);
    let recording = scene.record(SERVER_PORT);
    protected.stop();
    assert!(http.rest().is_empty(), "a proper end and nothing else");
    let endings = recording.finish();
    assert!(endings.iter().all(|e| e.fin && !e.rst), "{endings:?}");
}

#[test]
fn sigterm_during_outage() {
    let scene = Scene::new("sigterm-down");
    let (server, file) = needy(&scene);
    let protected = scene.protect(&server);
    let stream = echoing(&scene);
    fs::remove_file(&file).expect("remove the needed file");
    protected.kill_main(Signal::KILL);
    protected.wait_for("died", 2);
    protected.stop();
    is_reset(&stream);
}

/// Protection does not change a run without a crash: the same segments end the connections.
#[test]
fn protection_is_transparent() {
    let scene = Scene::new("alone");
    let server = servers::nginx(&scene);
    let run = || {
        let recording = scene.record(SERVER_PORT);
        let url = format!("http://{}/big.bin", scene.ipv4(SERVER_PORT));
        let output = curl(&scene, &[&url]);
        assert!(output.status.success(), "{:?}", output.status);
        assert_same_bytes("curl", &pattern(servers::BIG_FILE_BYTES), &output.stdout);
        let mut http = Http::new(scene.connect_to(scene.ipv6(SERVER_PORT)));
        http.get("/small/1");
        http.stream().shutdown(Shutdown::Write).expect("a FIN");
        assert!(http.rest().is_empty());
        recording.await_ended(2);
        recording.finish()
    };
    let plain = {
        let _running = scene.plain(&server);
        run()
    };
    let protected = scene.protect(&server);
    assert_same_endings(&plain, &run());
    protected.stop();
}

/// The logger process is told to end, and cannot hear that.
#[test]
fn stopped_logger_process_does_not_block_exit() {
    let scene = Scene::new("logger-stopped");
    let protected = scene.protect(&servers::test_server(&scene));
    let status = protected.outlive("status", &["--json"]);
    let pid = status.json()[0]["logger_pid"].as_i64();
    let pid = pid.and_then(|pid| i32::try_from(pid).ok());
    // A logger on another machine has none here.
    if let Some(logger) = pid.and_then(Pid::from_raw) {
        lab::signal(logger, Signal::STOP).expect("it runs");
    }
    protected.stop();
}
