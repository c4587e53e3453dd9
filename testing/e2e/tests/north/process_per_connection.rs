//! A process for each connection: all processes continue.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use e2e::{
    Protected, Scene, Seed,
    exchange::{assert_all_recovered, assert_untouched},
    pair::{FailOver, Pair, addresses},
    servers::{SERVER_PORT, forking, forking_at},
};
use lab::{Pid, Signal};
use serde_json::Value;

use super::{
    STATEFUL_REQUIRE, await_condition, kill_repeatedly, power_off::fail_over_and_die, with_clients,
};

/// A client, and the identity of its server process.
struct Client {
    stream: BufReader<TcpStream>,
    answered: u64,
    /// The number of the connection, the process, and its parent.
    known: Option<[String; 3]>,
    last: (u64, String),
}

impl Client {
    fn new(scene: &Scene) -> Self {
        Self::to(scene, scene.ipv4(SERVER_PORT))
    }

    fn to(scene: &Scene, address: SocketAddr) -> Self {
        Self {
            stream: BufReader::new(scene.connect_to(address)),
            answered: 0,
            known: None,
            last: (0, String::new()),
        }
    }

    fn say(&mut self, size: usize) {
        writeln!(self.stream.get_mut(), "{size}").expect("sent");
    }

    /// Asserts that the process is the same process, and remembers all earlier answers.
    fn receive(&mut self, size: usize) {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("an answer");
        let words: Vec<&str> = line.split_whitespace().collect();
        let [number, answered, pid, parent, time, _, sum] = words[..] else {
            panic!("{line:?}");
        };
        self.answered += 1;
        assert_eq!(answered, self.answered.to_string());
        let now = [number, pid, parent].map(str::to_owned);
        assert_eq!(*self.known.get_or_insert_with(|| now.clone()), now);
        let time = time.parse().expect("nanoseconds");
        assert!(time > self.last.0, "{time} after {}", self.last.0);
        if self.answered > 1 {
            assert_ne!(sum, self.last.1, "it has forgotten what it said");
        }
        self.last = (time, sum.to_owned());
        let mut rest = vec![0; size];
        self.stream.read_exact(&mut rest).expect("all of it");
        assert!(rest.iter().all(|byte| *byte == b'x'));
    }

    fn ask(&mut self, size: usize) {
        self.say(size);
        self.receive(size);
    }

    fn number(&self) -> u64 {
        let known = self.known.as_ref().expect("it has answered");
        known[0].parse().expect("a number")
    }

    fn end(&mut self) {
        let stream = self.stream.get_ref();
        stream.shutdown(std::net::Shutdown::Write).expect("shut");
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).expect("the end");
        assert_eq!(rest, b"");
    }
}

/// Kills a child at work. A SIGSTOP comes first: a child that was about to exit would not die of a signal.
pub(super) fn kill_a_child(server: &Protected) {
    let kill = |pid: Pid| {
        lab::signal(pid, Signal::STOP).ok()?;
        let is_stopped = || {
            let about = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?;
            match about.rsplit(") ").next()?.as_bytes()[0] {
                b'T' => Some(true),
                b'Z' | b'X' => None,
                _ => Some(false),
            }
        };
        while !is_stopped()? {
            thread::yield_now();
        }
        lab::signal(pid, Signal::KILL).ok()
    };
    await_condition("it has a child", || {
        server.worker_pids().into_iter().find_map(kill).is_some()
    });
}

/// Kills the main process, with all others, `kills` times, and then a child three times.
pub(super) fn kill_all_and_then_children(server: &Protected, kills: usize, seed: &mut Seed) {
    kill_repeatedly(server, kills, seed);
    for kill in kills + 1..=kills + 3 {
        thread::sleep(Duration::from_millis(seed.between(100, 500) as u64));
        kill_a_child(server);
        server.wait_serving(kill);
    }
}

/// Kills the main process `kills` times, then a child, then two grandchildren in turn. A SIGSTOP is left out for
/// grandchildren, because parents would notice. If a grandchild exits by itself just then, another grandchild is
/// killed.
pub(super) fn kill_main_then_children(server: &Protected, kills: usize, seed: &mut Seed) {
    kill_repeatedly(server, kills, seed);
    for kill in kills + 1..=kills + 3 {
        thread::sleep(Duration::from_millis(seed.between(100, 500) as u64));
        if kill == kills + 1 {
            kill_a_child(server);
        }
        while server.events_of("died").len() < kill {
            let all = server.grandchild_pids();
            if let Some(pid) = all.get(seed.between(0, all.len().saturating_sub(1))) {
                let _ = lab::signal(*pid, Signal::KILL); // it may be gone
            }
            thread::sleep(Duration::from_millis(200));
        }
        server.wait_serving(kill);
    }
}

#[test]
fn process_per_connection_survives_kill() {
    let scene = Scene::new("forking");
    let server = scene.protect_with(&forking(&scene, "nothing"), &STATEFUL_REQUIRE);
    let recording = scene.record(SERVER_PORT);
    let seed = &mut Seed::choose("forking");
    let numbers = Mutex::new(BTreeSet::new());
    let client = |own, ends: &AtomicBool| {
        let mut connections = 0;
        while !ends.load(Ordering::Relaxed) {
            let mut client = Client::new(&scene);
            for turn in 0..20 * own + 3 {
                client.ask(if turn % 7 == 0 { 300_000 } else { turn * 10 });
            }
            client.end();
            connections += 1;
            let is_new = numbers.lock().expect("a set").insert(client.number());
            assert!(is_new, "two connections have number {}", client.number());
        }
        connections
    };
    let connections = with_clients(6, client, || kill_all_and_then_children(&server, 5, seed));
    assert_all_recovered(&server);
    assert_untouched(recording, connections.iter().sum());
}

/// Fatal requests of a client, repeated, do not concern other clients.
#[test]
fn client_killing_its_process_is_reset_alone() {
    let scene = Scene::new("forkpoison");
    let server = scene.protect_with(&forking(&scene, "nothing"), &STATEFUL_REQUIRE);
    let mut others: Vec<Client> = (0..3).map(|_| Client::new(&scene)).collect();
    let mut poison: Vec<Client> = (0..2).map(|_| Client::new(&scene)).collect();
    for client in others.iter_mut().chain(&mut poison) {
        client.ask(10);
    }
    for client in &mut poison {
        client.stream.get_mut().write_all(b"abort\n").expect("sent");
    }
    for client in &mut poison {
        let mut rest = Vec::new();
        let ended = client.stream.read_to_end(&mut rest);
        let ended = ended.map_err(|error| error.kind());
        assert_eq!(
            (ended, &rest[..]),
            (Err(ErrorKind::ConnectionReset), &b""[..])
        );
    }
    await_condition("it serves without those clients", || {
        let said = server.events();
        let is = |kind: &'static str| move |event: &&Value| event["event"] == kind;
        let mut after = said
            .iter()
            .skip_while(|event| !is("connection_reset")(event))
            .skip(1);
        after.by_ref().any(|event| is("connection_reset")(&event))
            && after.any(|event| is("serving")(&event))
    });
    let served = server.events_of("serving").len();
    others.iter_mut().for_each(|other| other.ask(1000));
    assert_eq!(
        server.events_of("connection_reset").len(),
        2,
        "{}",
        server.log()
    );
    // The fatal request does not come back, either.
    server.kill_main(Signal::KILL);
    server.wait_serving(served + 1);
    others.iter_mut().for_each(|other| other.ask(1000));
    others.iter_mut().for_each(Client::end);
    assert_eq!(
        server.events_of("connection_reset").len(),
        2,
        "{}",
        server.log()
    );
}

/// A silent client keeps the connection, and no response is sent twice.
#[test]
fn idle_clients_are_served_on_first_byte() {
    let scene = Scene::new("forkwait");
    let server = scene.protect_with(&forking(&scene, "nothing"), &STATEFUL_REQUIRE);
    let mut silent = Client::new(&scene);
    let mut others: Vec<Client> = (0..4).map(|_| Client::new(&scene)).collect();
    for (size, other) in (1..).zip(&mut others) {
        other.ask(size);
    }
    others[0].end();
    for kill in 1..=3 {
        server.kill_main(Signal::KILL);
        server.wait_serving(kill);
        for other in &mut others[1..] {
            other.ask(10);
        }
    }
    silent.ask(5);
    let mut new = Client::new(&scene);
    new.ask(7);
    assert!(others[1..].iter().all(|one| one.number() < new.number()));
    assert_all_recovered(&server);
}

/// The determinants of all processes are at the logger before a client gets a response: another host starts all
/// processes again.
#[test]
fn process_per_connection_survives_power_off() {
    let [address, _] = addresses();
    let mut pair = Pair::with("forkhosts", &[], &STATEFUL_REQUIRE, |scene| {
        forking_at(scene, address, "nothing")
    });
    let seed = &mut Seed::choose("forkhosts");
    let ends = &AtomicBool::new(false);
    let clients: Vec<Client> = (0..4).map(|_| Client::to(&pair.scene, address)).collect();
    thread::scope(|scope| {
        let clients: Vec<_> = clients
            .into_iter()
            .map(|mut client| {
                scope.spawn(move || {
                    while !ends.load(Ordering::Relaxed) {
                        client.ask(usize::try_from(client.answered % 5000).expect("small"));
                    }
                    client
                })
            })
            .collect();
        fail_over_and_die(&mut pair, seed);
        ends.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().expect("a client").end();
        }
    });
    let mut new = Client::to(&pair.scene, address);
    new.ask(7);
    assert_eq!(new.number(), 4);
    pair.stop();
}

/// Only the main process is replicated: a standby reports a child with a client, and takes over with a replay.
#[test]
fn child_processes_with_clients_are_not_replicated() {
    let [address, _] = addresses();
    let flags = [&STATEFUL_REQUIRE[..], &["--hot"]].concat();
    let mut pair = Pair::with("forkhot", &[], &flags, |scene| {
        forking_at(scene, address, "nothing")
    });
    let mut client = Client::to(&pair.scene, address);
    client.ask(10);
    let dropped = pair.second.wait_for("replica_dropped", 1);
    assert!(dropped["retry_ms"].is_null(), "{dropped}");
    let reason = dropped["reason"].to_string();
    assert!(reason.contains("have clients"), "{reason}");
    client.ask(20);
    pair.fail_over(FailOver::PowerOff);
    client.ask(30);
    assert_eq!(
        pair.first.events_of("replica_started").len(),
        1,
        "not once more"
    );
    assert_eq!(
        pair.first.events_of("replica_promoted").len(),
        0,
        "it is cold"
    );
    client.end();
    pair.stop();
}

/// Decisions that depend on two processes are refused, with the reason, before a client gets a wrong response.
#[test]
fn processes_with_shared_state_are_refused() {
    for (refused, why) in [
        ("pipe", "a pipe"),
        ("memory", "shares memory"),
        ("both", "one connection"),
    ] {
        let scene = Scene::new("forkref");
        let mut server = scene.protect_with(&forking(&scene, refused), &STATEFUL_REQUIRE);
        let mut client = Client::new(&scene);
        // A server that shares memory is stopped at the fork: the reset may have come before this write.
        let _ = client.stream.get_mut().write_all(b"1\n");
        let status = server.ended(e2e::EVENT_TIMEOUT).expect("it ends");
        assert_eq!(status.code(), Some(78), "{}", server.log());
        assert!(server.log().contains(why), "{}", server.log());
        server.assert_nothing_left();
    }
}
