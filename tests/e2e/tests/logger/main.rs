//! The record is kept on another machine.

mod adoption;
mod closed;
mod durable;
mod keys;
mod loss;
mod metrics;
mod power;
mod recovery;
mod takeover;

use e2e::exchange::{echoes, echoing, talks};
use e2e::loggers::{Logger, key_file};
use e2e::servers::Server;
use e2e::{Protected, Scene};

/// A scene with a logger on a host of its own.
fn with_logger(label: &str) -> (Scene, Logger) {
    let scene = Scene::new(label);
    let host = scene.lab.add_host_at("logger", 20).expect("a host");
    let keys = key_file(&scene, "keys");
    let logger = Logger::start(&scene, &host, &keys, &[]);
    (scene, logger)
}

/// Starts a server whose record this logger keeps.
fn protect(scene: &Scene, server: &Server, logger: &Logger, more: &[&str]) -> Protected {
    let flags = logger.flags();
    let flags: Vec<&str> = flags
        .iter()
        .map(String::as_str)
        .chain(more.iter().copied())
        .collect();
    let protected = scene.protect_with(server, &flags);
    protected.wait_for("logger_in_use", 1);
    protected
}

/// The status, as one JSON object.
#[track_caller]
fn status(protected: &Protected) -> serde_json::Value {
    let answer = protected.outlive("status", &["--json", "--connections", protected.name()]);
    answer.json().pop().unwrap_or_else(|| panic!("{answer:?}"))
}
