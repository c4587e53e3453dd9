//! Small arrangements on hosts and servers.

use std::net::SocketAddr;

use lab::Host;

use crate::Scene;
use crate::servers::{Server, test_server};

/// Runs a line, split at its spaces, as a command on a host, and returns what it printed.
///
/// # Panics
/// When it fails.
#[track_caller]
pub fn run(host: &Host, line: &str) -> String {
    run_words(host, &line.split(' ').collect::<Vec<_>>())
}

/// [`run`] for words that have spaces in them.
///
/// # Panics
/// As there.
#[track_caller]
pub fn run_words(host: &Host, words: &[&str]) -> String {
    let (program, arguments) = words.split_first().expect("a program");
    let output = host.command(program).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{words:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The test server at addresses of our choice.
#[must_use]
pub fn test_server_at(scene: &Scene, addresses: &[SocketAddr]) -> Server {
    let mut server = test_server(scene);
    // The addresses come last.
    let fixed = server.command.len() - server.addresses.len();
    server.command.truncate(fixed);
    server
        .command
        .extend(addresses.iter().map(ToString::to_string));
    server.addresses = addresses.to_vec();
    server
}

/// The test server, every start of which takes so many seconds longer.
#[must_use]
pub fn slow_test_server(scene: &Scene, seconds: f32) -> Server {
    slowly(test_server(scene), seconds)
}

/// A server every start of which takes so many seconds longer.
#[must_use]
pub fn slowly(mut server: Server, seconds: f32) -> Server {
    let script = format!("sleep {seconds}; exec \"$@\"");
    let wrap = ["sh", "-c", &script, "sh"].map(str::to_owned);
    server.command.splice(0..0, wrap);
    server
}
