//! The hidden verb: our own binary as the logger process of a `serve`, which is on its standard
//! input.

use std::os::{fd::AsFd, unix::net::UnixStream};

use dataplane::PinDirectory;
use logger::LoggerConfig;

use crate::{
    arguments::{LoggerProcess, Replay},
    exit::Outcome,
};

pub(crate) fn run(arguments: &LoggerProcess) -> Outcome {
    let config = LoggerConfig {
        pins: PinDirectory::at(arguments.pins.clone()),
        limits: journal::Limits {
            per_connection: arguments.per_connection,
            total: arguments.total,
            connections: arguments.connections,
        },
        mode: match arguments.replay {
            Replay::Connection => journal::ReplayMode::Connection,
            Replay::Turn => journal::ReplayMode::Turn,
        },
    };
    let socket = match std::io::stdin().as_fd().try_clone_to_owned() {
        Ok(socket) => UnixStream::from(socket),
        Err(error) => {
            eprintln!("outlive: the logger process has no socket to its serve: {error}");
            return Outcome::Internal;
        }
    };
    match logger::run(&config, socket) {
        Ok(()) => Outcome::Done,
        Err(error) => {
            eprintln!("outlive: logger: {error}");
            Outcome::Internal
        }
    }
}
