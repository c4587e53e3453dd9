//! Small arrangements on hosts and servers.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use lab::Host;
use rustix::fs::{FlockOperation, flock};

use crate::servers::{Server, test_server};
use crate::{EVENT_TIMEOUT, Scene};

/// Runs a line, split at the spaces, as a command on a host, and returns the standard output.
///
/// # Panics
/// When the command fails.
#[track_caller]
pub fn run(host: &Host, line: &str) -> String {
    run_words(host, &line.split(' ').collect::<Vec<_>>())
}

/// [`run`] for words that contain spaces.
///
/// # Panics
/// When the command fails.
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

/// The door of a server: each start of the server waits in front of the door for as long as a test keeps the door
/// shut. The test decides how long the server is down, however busy the machine is.
///
/// The door is a lock on a file: the server takes the lock for a moment before starting, and the test holds the lock
/// while the door is shut. A test that ends opens the door.
#[derive(Debug)]
pub struct StartGate(File);

impl StartGate {
    /// Puts a door, which is open, before a server.
    ///
    /// # Panics
    /// When the door's file cannot be made.
    #[must_use]
    pub fn before(scene: &Scene, mut server: Server) -> (Server, Self) {
        let path = scene.write("start-gate", "");
        let script = "flock --shared \"$0\" true; exec \"$@\"";
        let wrap = ["sh", "-c", script, &path.to_string_lossy()].map(str::to_owned);
        server.command.splice(0..0, wrap);
        (
            server,
            Self(File::open(path).expect("the file of the door")),
        )
    }

    /// Shuts the door: from now on no start gets past.
    ///
    /// # Panics
    /// When the file cannot be locked.
    pub fn shut(&self) {
        flock(&self.0, FlockOperation::LockExclusive).expect("the lock of the door");
    }

    /// Opens the door, also for a start that waits.
    ///
    /// # Panics
    /// When the file cannot be unlocked.
    pub fn open(&self) {
        flock(&self.0, FlockOperation::Unlock).expect("the lock of the door");
    }
}

/// A counter of a host's TCP since the host was switched on, of `/proc/net/snmp`.
///
/// # Panics
/// When there is none of this name.
#[must_use]
pub fn tcp_counter(host: &Host, name: &str) -> u64 {
    // Of the thread that is on this host, not of our process.
    let read = || fs::read_to_string("/proc/thread-self/net/snmp");
    let text = host.enter(read).expect("it is on").expect("counters");
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let [names, values] = [(); 2].map(|()| lines.next().expect("names and values"));
    let mut both = names.split(' ').zip(values.split(' '));
    let found = both.find(|(known, _)| *known == name).expect("a counter");
    found.1.parse().expect("a number")
}

/// Waits until the client on this scene, which has a single connection, has no room: the server's host sends window
/// probes (or cannot fill the little room, or retransmits segments that the client discards), and no more arrives.
///
/// # Panics
/// When the window stays open.
#[track_caller]
pub fn await_closed_window(scene: &Scene) {
    let mut arrived = String::new();
    wait_until("the client's window is closed", || {
        let server = run(&scene.server, "ss -tnoiH");
        let asks = server.contains("timer:(persist") || server.contains("backoff:");
        let now = run(&scene.client, "ss -tnH state established");
        std::mem::replace(&mut arrived, now.clone()) == now && asks
    });
}

/// Waits until the condition holds.
///
/// # Panics
/// When the condition does not hold within [`EVENT_TIMEOUT`].
#[track_caller]
pub fn wait_until(what: &str, mut so: impl FnMut() -> bool) {
    let deadline = Instant::now() + EVENT_TIMEOUT;
    while !so() {
        assert!(Instant::now() < deadline, "never: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}
