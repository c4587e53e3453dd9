//! The kill matrix: servers times scenarios, each with a kill at a random place.
//!
//! Each row runs twice with the same random choices: first with the server unprotected and left alone, then under
//! `outlive serve` with the crash. All bytes at the clients must be equal, and no connection may see a RST or FIN that
//! the run without a crash does not have.

mod echo;
mod http;
mod requests;

use std::net::TcpStream;

use e2e::clients::{read_exactly, write};
use e2e::servers::{self, Crash, SERVER_PORT, Server, signal_all};
use e2e::{Scene, Seed, assert_same_bytes, assert_same_endings};
use lab::{Pid, Signal};

/// The server of a run, and the crash if the run has a crash.
struct Run<'a> {
    scene: &'a Scene,
    seed: Seed,
    /// The server's processes that accept connections.
    acceptors: &'a dyn Fn() -> Vec<Pid>,
    crash: &'a (dyn Fn() + Sync),
    /// Returns when the death has been noticed.
    dead: &'a dyn Fn(),
}

/// The bytes for each client, in the order of connections.
type Outcome = Vec<Vec<u8>>;

/// A client's deeds.
type Scenario = fn(&mut Run<'_>) -> Outcome;

/// A row of the matrix.
fn row(name: &str, server: fn(&Scene) -> Server, scenario: Scenario, crash: Crash) {
    let seed = Seed::choose(name);
    let scene = Scene::new(name);
    let (expected, endings) = {
        let server = server(&scene);
        let plain = scene.plain(&server);
        let recording = scene.record(SERVER_PORT);
        let outcome = scenario(&mut Run {
            scene: &scene,
            seed: seed.clone(),
            acceptors: &|| family(plain.main_pid()),
            // Continues processes that a scenario stopped; they die there.
            crash: &|| signal_all(&family(plain.main_pid()), Signal::CONT),
            dead: &|| (),
        });
        drop(plain);
        (outcome, recording.finish())
    };
    let server = server(&scene);
    let protected = scene.protect(&server);
    let recording = scene.record(SERVER_PORT);
    let outcome = scenario(&mut Run {
        scene: &scene,
        seed,
        acceptors: &|| family(protected.main_pid()),
        crash: &|| server.crash(&protected, crash),
        dead: &|| drop(protected.wait_for("died", 1)),
    });
    let serving = protected.wait_serving(1);
    assert_eq!(serving["reset"], 0, "{serving}");
    assert_eq!(protected.events_of("died").len(), 1, "{}", protected.log());
    assert_eq!(expected.len(), outcome.len(), "clients");
    for (number, (expected, got)) in expected.iter().zip(&outcome).enumerate() {
        assert_same_bytes(&format!("client {number}"), expected, got);
    }
    let lost = protected.events_of("connection_reset");
    assert!(lost.is_empty(), "{lost:?}");
    // Every client has finished and has all answers: any later segment is wrong.
    protected.stop();
    assert_same_endings(&endings, &recording.finish());
}

/// A process and its children.
fn family(main: Pid) -> Vec<Pid> {
    let children = std::fs::read_to_string(format!("/proc/{main}/task/{main}/children"));
    let children = children.expect("the server runs");
    let pids = children.split_whitespace();
    let pids = pids.filter_map(|pid| Pid::from_raw(pid.parse().ok()?));
    pids.chain([main]).collect()
}

/// Calls the crash when `progress` reaches a place.
fn at<'a>(place: usize, crash: &'a (dyn Fn() + Sync)) -> impl FnMut(usize) + 'a {
    let mut done = false;
    move |progress| {
        if progress >= place && !std::mem::replace(&mut done, true) {
            crash();
        }
    }
}

/// Reads `length` bytes, and reports the number of bytes so far.
fn read_watched(stream: &TcpStream, length: usize, mut progress: impl FnMut(usize)) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < length {
        progress(bytes.len());
        let step = 8192.min(length - bytes.len());
        bytes.extend(read_exactly(stream, step));
    }
    progress(length);
    bytes
}

/// Writes in pieces, telling how many bytes are out.
fn write_watched(stream: &TcpStream, bytes: &[u8], mut progress: impl FnMut(usize)) {
    for (number, piece) in bytes.chunks(8192).enumerate() {
        progress(number * 8192);
        write(stream, piece);
    }
    progress(bytes.len());
}

/// A test for each row, so that a failure names it.
macro_rules! matrix {
    ($($name:ident: $server:ident, $scenario:path, $crash:ident;)*) => {
        $(#[test]
        fn $name() {
            row(stringify!($name), servers::$server, $scenario, Crash::$crash);
        })*
    };
}

matrix! {
    nginx_download: nginx, http::download, Kill;
    nginx_download_worker_killed: nginx, http::download, KillWorker;
    nginx_upload: nginx, http::upload, Kill;
    nginx_keep_alive: nginx, http::keep_alive, Kill;
    nginx_idle: nginx, http::idle, Kill;
    nginx_accept_queue: nginx, http::accept_queue, Kill;
    nginx_window_closed: nginx, http::window_closed, Kill;

    lighttpd_download: lighttpd, http::download, Kill;
    lighttpd_download_segv: lighttpd, http::download, Segv;
    lighttpd_keep_alive: lighttpd, http::keep_alive, Kill;
    lighttpd_idle: lighttpd, http::idle, Kill;
    lighttpd_accept_queue: lighttpd, http::accept_queue, Kill;
    lighttpd_window_closed: lighttpd, http::window_closed, Kill;

    forking_echo: socat, echo::socat_echo, Kill;
    forking_echo_child_killed: socat, echo::socat_echo, KillWorker;
    forking_idle: socat, echo::socat_idle, Kill;
    forking_accept_queue: socat, echo::socat_accept_queue, Kill;
    forking_window_closed: socat, echo::socat_window_closed, Kill;

    threaded_download: python, http::download, Kill;
    threaded_upload: python, http::upload, Kill;
    threaded_keep_alive: python, http::keep_alive, Kill;
    threaded_idle: python, http::idle, Kill;
    threaded_accept_queue: python, http::accept_queue, Kill;
    threaded_window_closed: python, http::window_closed, Kill;

    killed_accept_queue: test_server, echo::our_accept_queue, Kill;
    killed_unread: test_server, requests::unread, Kill;
    killed_window_closed: test_server, echo::our_window_closed, Kill;
    killed_half_closed_client: test_server, requests::half_closed_client, Kill;
    killed_crowd: test_server, requests::crowd, Kill;

    status_1_download: test_server, requests::download, Exit1;
    status_1_upload: test_server, requests::upload, Exit1;
    status_1_echo: test_server, echo::our_echo, Exit1;
    status_1_keep_alive: test_server, requests::keep_alive, Exit1;
    status_1_idle: test_server, echo::our_idle, Exit1;
    status_1_unread: test_server, requests::unread, Exit1;
    status_1_half_closed_client: test_server, requests::half_closed_client, Exit1;

    panic_in_main_download: test_server, requests::download, PanicMain;
    panic_in_main_echo: test_server, echo::our_echo, PanicMain;
    panic_in_main_unread: test_server, requests::unread, PanicMain;
    panic_in_main_crowd: test_server, requests::crowd, PanicMain;
    panic_that_aborts_upload: test_server, requests::upload, PanicAbort;
    panic_that_aborts_window_closed: test_server, echo::our_window_closed, PanicAbort;
    abort_echo: test_server, echo::our_echo, Abort;
    abort_crowd: test_server, requests::crowd, Abort;
}
