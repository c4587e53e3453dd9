//! Requests that run again after a restart, and the report of these requests.

use std::fs;
use std::net::TcpStream;

use e2e::clients::{read_exactly, read_some, write};
use e2e::servers::{self, SERVER_PORT};
use e2e::{Protected, Scene};
use lab::Signal;

use crate::{is_reset, lost_only};

const COMMAND_COUNT: usize = 25;
/// More than is recorded of an answer.
const DIFFERENCE_OFFSET: usize = 100_000;
const COMMAND_REPLY: &[u8] = b"250 OK\r\n";

/// A client that has received the greeting, and has sent [`COMMAND_COUNT`] commands, in sequence.
fn served(scene: &Scene) -> TcpStream {
    let stream = greeted(scene);
    (0..COMMAND_COUNT).for_each(|number| command(&stream, &format!("command {number}")));
    stream
}

fn greeted(scene: &Scene) -> TcpStream {
    let stream = scene.connect(SERVER_PORT);
    let mut said = [0; 4096];
    loop {
        let more = read_some(&stream, &mut said).expect("a greeting");
        assert_ne!(more, 0, "no greeting");
        if said[..more].ends_with(b"\n") {
            return stream;
        }
    }
}

fn command(stream: &TcpStream, command: &str) {
    write(stream, format!("{command}\r\n").as_bytes());
    assert_eq!(read_exactly(stream, COMMAND_REPLY.len()), COMMAND_REPLY);
}

/// How often each command of [`served`] was executed, counted after the end of the server.
fn executions(scene: &Scene, protected: Protected) -> Vec<usize> {
    // A later client is served, too.
    command(&greeted(scene), "another");
    protected.stop();
    let executed = fs::read_to_string(scene.directory().join("executed")).expect("text");
    let times = |command: String| executed.lines().filter(|line| *line == command).count();
    (0..COMMAND_COUNT)
        .map(|number| times(format!("command {number}")))
        .collect()
}

/// The greeting differs: the connection is reset, and a replay of the commands would be useless.
#[test]
fn doomed_connection_is_not_replayed() {
    let scene = Scene::new("greeted");
    reset_without_replay(&scene, 0, "the output of the restarted server differs");
}

/// Also for a difference beyond the recorded prefix.
#[test]
fn hash_mismatch_stops_replay() {
    let scene = Scene::new("late");
    reset_without_replay(&scene, DIFFERENCE_OFFSET, "(by the hash)");
}

fn reset_without_replay(scene: &Scene, behind: usize, why: &str) {
    let protected = scene.protect(&servers::greeter_behind(scene, "", behind));
    let stream = served(scene);
    protected.kill_main(Signal::KILL);
    lost_only(&protected, &stream, why);
    is_reset(&stream);
    let serving = protected.wait_for("serving", 1);
    assert_eq!(
        (&serving["recovered"], &serving["reset"]),
        (&0.into(), &1.into()),
        "{serving}"
    );
    let lost = protected.wait_for("connection_reset", 1);
    assert_eq!(lost["replayed_requests"], 0, "{lost}");
    assert_eq!(executions(scene, protected), [1; COMMAND_COUNT]);
}

#[test]
fn repeated_execution_is_reported() {
    let scene = Scene::new("again");
    reports_repeated_execution(&scene, 0);
}

#[test]
fn repeated_execution_after_long_response_is_reported() {
    let scene = Scene::new("longer");
    reports_repeated_execution(&scene, DIFFERENCE_OFFSET);
}

fn reports_repeated_execution(scene: &Scene, behind: usize) {
    let protected = scene.protect(&servers::greeter_behind(scene, "0815", behind));
    let stream = served(scene);
    protected.kill_main(Signal::KILL);
    let serving = protected.wait_serving(1);
    assert_eq!(
        (&serving["recovered"], &serving["reset"]),
        (&1.into(), &0.into()),
        "{serving}"
    );
    assert_eq!(serving["replayed_requests"], COMMAND_COUNT, "{serving}");
    let connection = serving["replayed"][0]["connection"].to_string();
    let client = stream.local_addr().expect("an address").to_string();
    assert!(connection.contains(&client), "{serving}");
    assert_eq!(
        serving["replayed"][0]["requests"], COMMAND_COUNT,
        "{serving}"
    );
    command(&stream, "on");
    protected.assert_none_of("connection_reset");
    assert_eq!(executions(scene, protected), [2; COMMAND_COUNT]);
}
