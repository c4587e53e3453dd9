//! The hidden verb: our own binary as the logger process of a `serve`, which connects to the socket
//! that is our standard input.

use std::os::{fd::AsFd, unix::net::UnixListener};

use dataplane::PinDirectory;
use logger::LoggerConfig;

use crate::{
    arguments::{LoggerProcess, Replay},
    exit::Outcome,
};

pub(crate) fn run(arguments: &LoggerProcess) -> Outcome {
    let config = LoggerConfig {
        pins: PinDirectory::at(arguments.pins.clone()),
        lock: arguments.lock.clone(),
        limits: journal::Limits {
            per_connection: arguments.per_connection,
            total: arguments.total,
            connections: arguments.connections,
        },
        mode: match arguments.replay {
            Replay::Connection => journal::ReplayMode::Connection,
            Replay::Request => journal::ReplayMode::Request,
        },
    };
    let listener = match std::io::stdin().as_fd().try_clone_to_owned() {
        Ok(socket) => UnixListener::from(socket),
        Err(error) => {
            eprintln!("outlive: the logger process has no socket for its serve: {error}");
            return Outcome::Internal;
        }
    };
    match logger::run(&config, &listener) {
        Ok(()) => Outcome::Done,
        Err(error) => {
            eprintln!("outlive: logger: {error}");
            Outcome::Internal
        }
    }
}
