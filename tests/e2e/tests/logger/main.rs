//! The record is kept on another machine.

mod adoption;
mod durable;
mod keys;
mod loss;
mod recovery;

use std::net::TcpStream;

use e2e::clients::{read_exactly, write};
use e2e::loggers::{Logger, key_file};
use e2e::servers::{PORT, Server};
use e2e::{Protected, Scene, assert_same_bytes};

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

/// One line there and back.
#[track_caller]
fn talks(stream: &TcpStream, word: &str) {
    write(stream, format!("say {word}\n").as_bytes());
    let got = read_exactly(stream, word.len() + 1);
    assert_same_bytes("answer", format!("{word}\n").as_bytes(), &got);
}

/// A connection that echoes, after a first exchange.
#[track_caller]
fn echoing(scene: &Scene) -> TcpStream {
    let stream = scene.connect(PORT);
    write(&stream, b"echo\n");
    echoes(&stream, b"hello");
    stream
}

#[track_caller]
fn echoes(stream: &TcpStream, bytes: &[u8]) {
    write(stream, bytes);
    assert_same_bytes("echo", bytes, &read_exactly(stream, bytes.len()));
}

/// The status, as one JSON object.
#[track_caller]
fn status(protected: &Protected) -> serde_json::Value {
    let answer = protected.outlive("status", &["--json", "--connections", protected.name()]);
    answer.json().pop().unwrap_or_else(|| panic!("{answer:?}"))
}
