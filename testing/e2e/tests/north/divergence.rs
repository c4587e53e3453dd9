//! Output by unusual calls, and output that differs in the replay.

use std::{fs, io::ErrorKind, path::PathBuf, time::Duration};

use e2e::{
    Protected, Scene, arrange,
    exchange::assert_all_recovered,
    loggers::{protect, with_logger},
    pair::{Pair, addresses},
    servers::{SERVER_PORT, interpreter, interpreter_at},
};
use lab::{Direction, Signal};

use super::{
    STATEFUL_REQUIRE,
    command_server::Client,
    rare_calls::{kill, run},
};

/// Sends the client's line, and then, in the same turn, bytes from the server's memory that no record has.
const MEMORY_SCRIPT: &str = r#"
import mmap
with open(os.path.dirname(os.path.dirname(sys.argv[0])) + "/secret", "rb") as file:
    secret = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
def answer(connection, line):
    connection.send(line + b" ", socket.MSG_DONTWAIT)
    connection.send(secret[:secret.find(b"\n") + 1], socket.MSG_DONTWAIT)
"#;

/// Sets the output of the server from now on, also the output during a replay.
fn set_output(scene: &Scene, what: &str) -> PathBuf {
    let path = scene.directory().join("secret");
    if path.exists() {
        // The same file: the server has mapped the file.
        let file = fs::File::options().write(true).open(&path).expect("it");
        std::os::unix::fs::FileExt::write_all_at(&file, what.as_bytes(), 0).expect("written");
        return path;
    }
    scene.write("secret", format!("{what}{}", " ".repeat(4000)))
}

/// Has heard a first answer.
fn talks(scene: &Scene, mut client: Client) -> Client {
    set_output(scene, "the truth\n");
    run(&mut client, MEMORY_SCRIPT);
    assert_eq!(client.ask("hear"), "hear the truth");
    assert_eq!(client.ask("hear"), "hear the truth");
    set_output(scene, "the truth, and more than that\n");
    client
}

/// Asserts that the client is reset without any output; the next client is served.
fn assert_divergence_detected(
    serves: &Protected,
    mut client: Client,
    mut next: impl FnMut() -> Client,
) {
    let trouble = serves.wait_for("warning", 1)["message"].to_string();
    assert!(
        trouble.contains("other output than in the record"),
        "{trouble}"
    );
    let (rest, error) = client.rest();
    assert_eq!(rest, b"", "what nobody had said");
    assert_eq!(error, Some(ErrorKind::ConnectionReset));
    let mut next = next();
    assert_eq!(next.ask("1 + 1"), "2");
}

#[test]
fn extra_replay_output_is_dropped() {
    let scene = Scene::new("otherwise");
    let server = scene.protect_with(&interpreter(&scene), &STATEFUL_REQUIRE);
    let client = talks(&scene, Client::new(&scene));
    server.kill_main(Signal::KILL);
    assert_divergence_detected(&server, client, || Client::at(scene.connect(SERVER_PORT)));
}

/// The other host has only the data of the logger, also of the last output.
fn extra_output_is_dropped_on_standby(label: &str, delay: Duration) {
    let [address, _] = addresses();
    let mut pair = Pair::with(label, &[], &STATEFUL_REQUIRE, |scene| {
        interpreter_at(scene, address)
    });
    let link = &pair.logger.host().links()[0];
    let adjusted = link.adjust(&Direction::BOTH, |link| link.delay(delay));
    adjusted.expect("a link");
    let client = Client::at(pair.scene.connect_to(address));
    let client = talks(&pair.scene, client);
    pair.first.power_off();
    assert_divergence_detected(&pair.second, client, || {
        Client::at(pair.scene.connect_to(address))
    });
    pair.change_places();
    pair.stop();
}

#[test]
fn extra_replay_output_on_standby_is_dropped() {
    extra_output_is_dropped_on_standby("otherhost", Duration::ZERO);
}

/// Output is deferred while the program continues.
#[test]
fn extra_replay_output_with_distant_logger_is_dropped() {
    extra_output_is_dropped_on_standby("otherfar", Duration::from_millis(1));
}

/// Sends two lines, and then polls for input without ever waiting.
const SPINNING_SCRIPT: &str = r#"
def answer(connection, line):
    connection.send(b"one\n", socket.MSG_DONTWAIT)
    connection.send(b"two\n", socket.MSG_DONTWAIT)
    while True:
        try:
            more = connection.recv(1, socket.MSG_DONTWAIT)
            break
        except BlockingIOError:
            pass
    connection.send(more + b"\n", socket.MSG_DONTWAIT)
"#;

#[test]
fn deferred_output_leaves_without_blocking_call() {
    let (scene, logger) = with_logger("spins");
    let server = protect(&scene, &interpreter(&scene), &logger, &STATEFUL_REQUIRE);
    let mut client = Client::new(&scene);
    run(&mut client, SPINNING_SCRIPT);
    for kill in 1..=2 {
        for _ in 0..20 {
            assert_eq!(client.ask("speak"), "one");
            assert_eq!(client.receive(), "two");
            client.write("x");
            assert_eq!(client.receive(), "x");
        }
        server.kill_main(Signal::KILL);
        server.wait_serving(kill);
    }
    assert_all_recovered(&server);
}

/// Sends all output by a stream of the C library.
const STDIO_SCRIPT: &str = r#"
said, streams = 0, {}
def answer(connection, line):
    global said
    said += 1
    fd = connection.fileno()
    if fd not in streams:
        streams[fd] = ctypes.c_void_p(libc.fdopen(fd, b"w"))
    libc.fprintf(streams[fd], b"%d %s\n", said, line)
    libc.fflush(streams[fd])
"#;

#[test]
fn stdio_output_is_sent_once() {
    let scene = Scene::new("prints");
    let server = scene.protect_with(&interpreter(&scene), &STATEFUL_REQUIRE);
    let mut client = Client::new(&scene);
    run(&mut client, STDIO_SCRIPT);
    let mut said = 0;
    for kill in 1..=3 {
        for _ in 0..20 {
            said += 1;
            let word = "word ".repeat(said * 100) + "x";
            assert_eq!(client.ask(&word), format!("{said} {word}"));
        }
        server.kill_main(Signal::KILL);
        server.wait_serving(kill);
    }
    assert_all_recovered(&server);
}

/// The sockets that go on were made with the smallest ones, and kept these until the kernel looked at the route again.
#[test]
fn segment_sizes_survive_recovery() {
    let scene = Scene::new("segments");
    let server = scene.protect_with(&interpreter(&scene), &STATEFUL_REQUIRE);
    let mut client = Client::new(&scene);
    let segment = || {
        let said = arrange::run_words(&scene.server, &["ss", "-tniH", "sport = :8080"]);
        let mut words = said.split_whitespace();
        let size = words.find_map(|word| word.strip_prefix("mss:").map(str::to_owned));
        size.unwrap_or_else(|| panic!("no connection: {said}"))
    };
    assert_eq!(client.ask("6 * 7"), "42");
    let before = segment();
    for round in 1..=2 {
        kill(&server, round);
        assert_eq!(segment(), before);
        assert_eq!(client.ask("6 * 7"), "42");
    }
    assert_all_recovered(&server);
}
