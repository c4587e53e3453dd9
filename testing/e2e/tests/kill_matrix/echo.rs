//! Clients of echo servers: socat, and the test server.

use std::thread;

use e2e::arrange::await_closed_window;
use e2e::clients::{finish, read_exactly, write};
use e2e::servers::{SERVER_PORT, signal_all};
use e2e::{assert_same_bytes, pattern};
use lab::Signal;

use crate::{Outcome, Run, at, read_watched};

/// Both directions at once: at the crash both have unacknowledged bytes.
fn echo_both_ways(run: &mut Run<'_>, hello: &[u8]) -> Outcome {
    let content = pattern(3 << 20);
    // From the first byte: the answer shows that the echo process runs.
    let place = run.seed.between(1, content.len());
    let stream = run.scene.connect(SERVER_PORT);
    write(&stream, hello);
    let got = thread::scope(|scope| {
        scope.spawn(|| write(&stream, &content));
        read_watched(&stream, content.len(), at(place, run.crash))
    });
    finish(&stream);
    assert_same_bytes("echo", &content, &got);
    vec![got]
}

pub(crate) fn socat_echo(run: &mut Run<'_>) -> Outcome {
    echo_both_ways(run, b"")
}

pub(crate) fn our_echo(run: &mut Run<'_>) -> Outcome {
    echo_both_ways(run, b"echo\n")
}

/// Small exchanges on a connection with idle times, and a connection that is silent before the crash.
fn echo_idle(run: &mut Run<'_>, hello: &[u8]) -> Outcome {
    let (used, silent) = (
        run.scene.connect(SERVER_PORT),
        run.scene.connect(SERVER_PORT),
    );
    write(&used, hello);
    let rounds = 20;
    let place = run.seed.between(0, rounds - 1);
    let mut got = Vec::new();
    for round in 0..rounds {
        let word = format!("round {round}\n");
        write(&used, word.as_bytes());
        got.extend(read_exactly(&used, word.len()));
        if round == place {
            (run.crash)();
        }
    }
    write(&silent, hello);
    write(&silent, b"at last\n");
    let last = read_exactly(&silent, 8);
    finish(&used);
    finish(&silent);
    vec![got, last]
}

pub(crate) fn socat_idle(run: &mut Run<'_>) -> Outcome {
    echo_idle(run, b"")
}

pub(crate) fn our_idle(run: &mut Run<'_>) -> Outcome {
    echo_idle(run, b"echo\n")
}

/// Echo on a connection that was not accepted yet.
fn echo_accept_queue(run: &mut Run<'_>, hello: &[u8]) -> Outcome {
    let length = run.seed.between(1, 60_000);
    let acceptors = (run.acceptors)();
    signal_all(&acceptors, Signal::STOP);
    let stream = run.scene.connect(SERVER_PORT);
    write(&stream, hello);
    write(&stream, &pattern(length));
    (run.crash)();
    let got = read_exactly(&stream, length);
    finish(&stream);
    vec![got]
}

pub(crate) fn socat_accept_queue(run: &mut Run<'_>) -> Outcome {
    echo_accept_queue(run, b"")
}

pub(crate) fn our_accept_queue(run: &mut Run<'_>) -> Outcome {
    echo_accept_queue(run, b"echo\n")
}

/// Echo to a client that does not read until after the crash: the client's window is closed. With many bytes to echo
/// the server cannot write, stops reading, and has unread data: the server's window is closed too.
fn echo_window_closed(run: &mut Run<'_>, hello: &[u8], length: usize) -> Outcome {
    let content = pattern(length);
    let stream = run.scene.connect(SERVER_PORT);
    write(&stream, hello);
    let got = thread::scope(|scope| {
        scope.spawn(|| write(&stream, &content));
        await_closed_window(run.scene);
        (run.crash)();
        read_exactly(&stream, length)
    });
    finish(&stream);
    vec![got]
}

pub(crate) fn socat_window_closed(run: &mut Run<'_>) -> Outcome {
    echo_window_closed(run, b"", 1 << 20)
}

pub(crate) fn our_window_closed(run: &mut Run<'_>) -> Outcome {
    echo_window_closed(run, b"echo\n", 24 << 20)
}
