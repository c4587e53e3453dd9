//! A server that executes commands of the test: calls that other servers make rarely, or should not make.

use std::{
    fs,
    io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _},
    net::TcpStream,
};

use e2e::{
    Scene, Seed,
    clients::finish,
    exchange::{assert_all_recovered, assert_untouched},
    servers::{SERVER_PORT, command_server},
};
use lab::Signal;
use rustix::io::Errno;

use super::STATEFUL_REQUIRE;

const PYTHON_PATH: &str = "/usr/bin/python3";

pub(super) struct Client(BufReader<TcpStream>);

impl Client {
    pub(super) fn new(scene: &Scene) -> Self {
        Self::at(scene.connect(SERVER_PORT))
    }

    pub(super) fn at(stream: TcpStream) -> Self {
        Self(BufReader::new(stream))
    }

    pub(super) fn say(&mut self, line: &str) {
        self.write(&format!("{line}\n"));
    }

    pub(super) fn write(&mut self, text: &str) {
        self.0.get_mut().write_all(text.as_bytes()).expect("sent");
    }

    #[track_caller]
    pub(super) fn ask(&mut self, line: &str) -> String {
        self.say(line);
        self.receive()
    }

    /// All received bytes, and the error that ended the stream, if any.
    pub(super) fn rest(&mut self) -> (Vec<u8>, Option<ErrorKind>) {
        let mut all = Vec::new();
        let read = self.0.read_to_end(&mut all);
        (all, read.err().map(|error| error.kind()))
    }

    #[track_caller]
    pub(super) fn receive(&mut self) -> String {
        let mut answer = String::new();
        self.0.read_line(&mut answer).expect("an answer");
        assert!(answer.ends_with('\n'), "the connection has ended");
        answer.trim_end().to_owned()
    }
}

/// After any kind of close the client gets all output and then the end. No close happens twice.
#[test]
fn closed_connections_stay_closed() {
    const RESPONSE_BYTES: usize = 3 << 20;
    let scene = Scene::new("closed");
    let server = scene.protect_with(&command_server(&scene, PYTHON_PATH), &STATEFUL_REQUIRE);
    let mut other = Client::new(&scene);
    let ways = ["close", "dup2", "dup3", "range"];
    let clients = ways.map(|way| {
        let mut client = Client::new(&scene);
        client.say(&format!("{way} {RESPONSE_BYTES}"));
        client
    });
    let mut answered = 1;
    while other.ask("count") != (answered + ways.len()).to_string() {
        answered += 1;
    }
    answered += ways.len();
    server.kill_main(Signal::KILL);
    server.wait_serving(1);
    for (way, mut client) in ways.iter().zip(clients) {
        let mut all = Vec::new();
        client.0.read_to_end(&mut all).expect(way);
        assert_eq!(all.len(), RESPONSE_BYTES, "{way}");
        assert!(all.iter().all(|byte| *byte == b'x'), "{way}");
    }
    assert_eq!(other.ask("count"), (answered + 1).to_string());
    assert_all_recovered(&server);
}

/// The addresses of objects can decide the order of a program's work.
#[test]
fn peer_addresses_are_equal_in_replay() {
    let scene = Scene::new("addresses");
    let server = scene.protect_with(&command_server(&scene, PYTHON_PATH), &STATEFUL_REQUIRE);
    let recording = scene.record(SERVER_PORT);
    let seed = &mut Seed::choose("addresses");
    let mut client = Client::new(&scene);
    let mut known = 0;
    for kill in 1..=3 {
        for _ in 0..40 {
            // Long lines: the record grows beyond the part that is mapped at once.
            let line = format!(
                "thing {} {}",
                seed.between(1, 400_000),
                "-".repeat(seed.between(1, 200_000))
            );
            let said = client.ask(&line);
            known += 2;
            assert_eq!(said.split(' ').count(), known);
        }
        server.kill_main(Signal::KILL);
        server.wait_serving(kill);
    }
    assert_eq!(client.ask("count"), (known / 2 + 1).to_string());
    finish(client.0.get_ref());
    assert_all_recovered(&server);
    assert_untouched(recording, 1);
}

/// A connection that the kernel encrypts cannot be recovered: the program's request for kernel TLS fails.
#[test]
fn kernel_tls_is_refused() {
    let scene = Scene::new("ulp");
    let server = scene.protect_with(&command_server(&scene, PYTHON_PATH), &STATEFUL_REQUIRE);
    let mut client = Client::new(&scene);
    let expected = Errno::NOPROTOOPT.raw_os_error().to_string();
    assert_eq!(client.ask("ulp"), expected);
    server.kill_main(Signal::KILL);
    server.wait_serving(1);
    assert_eq!(client.ask("ulp"), expected);
    assert_all_recovered(&server);
}

/// Another program cannot use the record: a warning says so, and the server starts without the record.
#[test]
fn changed_program_does_not_get_record() {
    let scene = Scene::new("program");
    let python = scene.directory().join("python");
    // A copy is the same program; a longer copy is another program.
    let replace = |more: &[u8]| {
        let new = scene.directory().join("new");
        fs::copy(PYTHON_PATH, &new).expect("a copy");
        let mut file = fs::File::options().append(true).open(&new).expect("open");
        file.write_all(more).expect("written");
        drop(file);
        fs::rename(&new, &python).expect("replaced");
    };
    replace(b"");
    let server = scene.protect_with(
        &command_server(&scene, &python.to_string_lossy()),
        &STATEFUL_REQUIRE,
    );
    let mut client = Client::new(&scene);
    assert_eq!(client.ask("count"), "1");
    server.kill_main(Signal::KILL);
    server.wait_serving(1);
    assert_eq!(client.ask("count"), "2");
    replace(b"");
    server.kill_main(Signal::KILL);
    server.wait_serving(2);
    assert_eq!(client.ask("count"), "3");
    server.assert_none_of("warning");
    replace(b"another");
    server.kill_main(Signal::KILL);
    let trouble = server.wait_for("warning", 1)["message"].to_string();
    assert!(
        trouble.contains("the server runs another program"),
        "{trouble}"
    );
    server.wait_serving(3);
    let mut rest = Vec::new();
    assert!(client.0.read_to_end(&mut rest).is_err(), "reset");
    assert_eq!(Client::new(&scene).ask("count"), "1");
}

/// A server that exits by itself exits again in the replay, and an event reports that.
#[test]
fn exit_during_replay_is_reported() {
    let scene = Scene::new("exits");
    let server = scene.protect_with(&command_server(&scene, PYTHON_PATH), &STATEFUL_REQUIRE);
    let mut client = Client::new(&scene);
    assert_eq!(client.ask("count"), "1");
    client.say("exit");
    let trouble = server.wait_for("warning", 1)["message"].to_string();
    assert!(
        trouble.contains("exited during the replay of the record") && trouble.contains("status 3"),
        "{trouble}"
    );
}

/// The next `serve` restarts the recovery.
#[test]
fn serve_killed_in_recovery_leaves_recovery_to_next() {
    let scene = Scene::new("midway");
    let definition = command_server(&scene, PYTHON_PATH);
    let mut server = scene.protect_with(&definition, &STATEFUL_REQUIRE);
    let seed = &mut Seed::choose("midway");
    let mut client = Client::new(&scene);
    for round in 1..=6 {
        assert_eq!(client.ask("count"), round.to_string());
        server.kill_main(Signal::KILL);
        let moment = seed.between(0, 120) as u64;
        std::thread::sleep(std::time::Duration::from_millis(moment));
        server.kill_serve_itself();
        server.succeed(&scene, &definition, &STATEFUL_REQUIRE);
    }
    assert_eq!(client.ask("count"), "7");
}
