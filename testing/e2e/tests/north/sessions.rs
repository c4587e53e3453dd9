//! Sessions of several processes that exchange messages and serve a client in turn.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use e2e::{
    Protected, Scene, Seed,
    exchange::{assert_all_recovered, assert_untouched},
    pair::{Pair, addresses},
    servers::{SERVER_PORT, passing, sessions_at, working},
};

use lab::{Pid, Signal};

use super::{
    STATEFUL_REQUIRE, await_condition, power_off::fail_over_and_die,
    process_per_connection::kill_main_then_children, with_clients,
};

struct Client {
    stream: BufReader<TcpStream>,
    name: String,
    answered: u64,
    /// The process, and the last hash.
    known: Option<String>,
    last: String,
}

impl Client {
    fn to(scene: &Scene, address: SocketAddr, name: String) -> Self {
        let mut client = Self::unnamed(scene, address, name);
        client.send_name();
        client
    }

    fn unnamed(scene: &Scene, address: SocketAddr, name: String) -> Self {
        let mut client = Self {
            stream: BufReader::new(scene.connect_to(address)),
            name,
            answered: 0,
            known: None,
            last: String::new(),
        };
        assert_eq!(client.receive(), "who?");
        client
    }

    fn send_name(&mut self) {
        let name = self.name.clone();
        self.say(&name);
        assert_eq!(self.receive(), format!("hello {name}"));
    }

    fn say(&mut self, line: &str) {
        writeln!(self.stream.get_mut(), "{line}").expect("sent");
    }

    #[track_caller]
    fn receive(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("an answer");
        assert!(line.ends_with('\n'), "the connection has ended");
        line.trim_end().to_owned()
    }

    /// Asserts that both processes of the session are the same processes, and have forgotten no request.
    #[track_caller]
    fn ask(&mut self, size: usize) {
        self.say(&size.to_string());
        let line = self.receive();
        let words: Vec<&str> = line.split(' ').collect();
        let [name, process, count, _, sum] = words[..] else {
            panic!("{line:?}");
        };
        self.answered += 1;
        assert_eq!((name, count), (&*self.name, &*self.answered.to_string()));
        let known = self.known.get_or_insert_with(|| process.to_owned());
        assert_eq!(known, process);
        assert_ne!(sum, self.last);
        sum.clone_into(&mut self.last);
    }

    fn end(&mut self) {
        let stream = self.stream.get_ref();
        stream.shutdown(std::net::Shutdown::Write).expect("shut");
        let mut rest = String::new();
        self.stream.read_line(&mut rest).expect("the end");
        assert_eq!(rest, "");
    }
}

/// More than a pipe takes, now and then.
fn size(turn: u64) -> usize {
    match turn % 9 {
        8 => 300_000,
        turn => usize::try_from(100 * turn).expect("small"),
    }
}

#[test]
fn multi_process_sessions_survive_kill() {
    let scene = Scene::new("sessions");
    let definition = sessions_at(&scene, scene.ipv4(SERVER_PORT), "nothing");
    let server = scene.protect_with(&definition, &STATEFUL_REQUIRE);
    let recording = scene.record(SERVER_PORT);
    let seed = &mut Seed::choose("sessions");
    let client = |own, ends: &AtomicBool| {
        let mut connections = 0;
        while !ends.load(Ordering::Relaxed) {
            let name = format!("client-{own}-{connections}");
            let mut client = Client::to(&scene, scene.ipv4(SERVER_PORT), name);
            for turn in (0..).take(20 * own + 2) {
                client.ask(size(turn));
            }
            client.end();
            connections += 1;
        }
        connections
    };
    let connections = with_clients(4, client, || kill_main_then_children(&server, 2, seed));
    assert_all_recovered(&server);
    assert_untouched(recording, connections.iter().sum());
}

#[test]
fn multi_process_sessions_survive_power_off() {
    let [address, _] = addresses();
    let mut pair = Pair::with("sesshosts", &[], &STATEFUL_REQUIRE, |scene| {
        sessions_at(scene, address, "nothing")
    });
    let seed = &mut Seed::choose("sesshosts");
    let ends = &AtomicBool::new(false);
    let clients: Vec<Client> = (0..3)
        .map(|own| Client::to(&pair.scene, address, format!("client-{own}")))
        .collect();
    thread::scope(|scope| {
        let clients: Vec<_> = clients
            .into_iter()
            .map(|mut client| {
                scope.spawn(move || {
                    while !ends.load(Ordering::Relaxed) {
                        client.ask(size(client.answered));
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
    pair.stop();
}

/// The death of a session's process before its first work, and of all other processes a moment later.
#[test]
fn session_killed_at_start_is_restarted() {
    let scene = Scene::new("sessborn");
    let kills = scene.directory().join("kills");
    let definition = sessions_at(&scene, scene.ipv4(SERVER_PORT), &kills.to_string_lossy());
    let server = scene.protect_with(&definition, &STATEFUL_REQUIRE);
    let mut client = Client::unnamed(&scene, scene.ipv4(SERVER_PORT), "client".to_owned());
    fs::write(&kills, "").expect("written");
    client.send_name();
    await_condition("somebody is begun", || !kills.exists());
    server.wait_serving(1);
    for turn in 0..5 {
        client.ask(size(turn));
    }
    server.kill_main(Signal::KILL);
    server.wait_serving(2);
    client.ask(size(5));
    client.end();
    assert_all_recovered(&server);
}

/// Two at once are refused, as ever.
#[test]
fn concurrent_session_processes_are_refused() {
    let scene = Scene::new("sessref");
    let definition = sessions_at(&scene, scene.ipv4(SERVER_PORT), "both");
    let mut server = scene.protect_with(&definition, &STATEFUL_REQUIRE);
    let mut client = Client::unnamed(&scene, scene.ipv4(SERVER_PORT), "both".to_owned());
    // The server is refused at the name already, or later.
    let _ = write!(client.stream.get_mut(), "both\n1\n");
    let status = server.ended(e2e::EVENT_TIMEOUT).expect("it ends");
    assert_eq!(status.code(), Some(78), "{}", server.log());
    let said = server.log();
    assert!(
        said.contains("two processes of the server serve one connection"),
        "{said}"
    );
    server.assert_nothing_left();
}

/// A line, said and heard.
#[track_caller]
fn exchange(stream: &mut BufReader<TcpStream>, said: &str, heard: &str) {
    write!(stream.get_mut(), "{said}").expect("sent");
    let mut line = String::new();
    stream.read_line(&mut line).expect("an answer");
    assert_eq!(line, heard, "after {said:?}");
}

/// The service dies while a connection is passed on: before, during and after the transfer.
#[test]
fn passed_connection_survives_kill() {
    let scene = Scene::new("sesspass");
    let addresses = [SERVER_PORT, SERVER_PORT + 1].map(|port| scene.ipv4(port));
    let second = addresses[1].to_string();
    let flags = [&STATEFUL_REQUIRE[..], &["--address", &second]].concat();
    let server = scene.protect_with(&passing(&scene, addresses[0]), &flags);
    let mut kills = 0;
    let mut kill = || {
        kills += 1;
        server.kill_main(Signal::KILL);
        server.wait_serving(kills);
    };
    let mut client = BufReader::new(scene.connect_to(addresses[0]));
    for turn in 0..2 {
        exchange(&mut client, "open\n", "listens\n");
        kill();
        let mut data = BufReader::new(scene.connect_to(addresses[1]));
        exchange(&mut client, "", "sent\n");
        for _ in 0..=turn {
            kill();
        }
        writeln!(client.get_mut(), "take").expect("sent");
        exchange(&mut data, "", "hello\n");
        kill();
        for word in ["one\n", "two\n"] {
            write!(client.get_mut(), "{word}").expect("sent");
            exchange(&mut data, word, word);
            exchange(&mut client, "", word);
        }
        writeln!(client.get_mut(), "close").expect("sent");
        exchange(&mut data, "", "");
    }
    // The process that passed the connection on ends before the connection arrives.
    exchange(&mut client, "last\n", "listens\n");
    let mut data = BufReader::new(scene.connect_to(addresses[1]));
    exchange(&mut client, "", "sent\n");
    kill();
    writeln!(client.get_mut(), "take").expect("sent");
    exchange(&mut data, "", "hello\n");
    kill();
    writeln!(client.get_mut(), "one").expect("sent");
    exchange(&mut data, "one\n", "one\n");
    exchange(&mut client, "", "one\n");
    assert_all_recovered(&server);
}

/// Waits until this many processes are at work beside the first: these sleep most of the time.
fn await_workers(server: &Protected, count: usize) {
    let sleeps = |pid: &Pid| {
        let waits = fs::read_to_string(format!("/proc/{pid}/wchan"));
        waits.is_ok_and(|at| at.contains("nanosleep"))
    };
    await_condition("the others are at work", || {
        let mut all = server.worker_pids();
        all.extend(server.grandchild_pids());
        all.len() == count && all.iter().all(sleeps)
    });
}

/// Working processes without clients do not block clients: children of a parent with clients, and readers of a
/// program's output.
#[test]
fn clients_survive_beside_nested_children() {
    let scene = Scene::new("sesswork");
    let definition = working(&scene, scene.ipv4(SERVER_PORT));
    let server = scene.protect_with(&definition, &STATEFUL_REQUIRE);
    let mut client = BufReader::new(scene.connect_to(scene.ipv4(SERVER_PORT)));
    for (kill, word) in (1..).zip(["fork\n", "run\n", "nothing\n"]) {
        exchange(&mut client, word, word);
        await_workers(&server, if word == "fork\n" { 2 } else { 3 });
        server.kill_main(Signal::KILL);
        server.wait_serving(kill);
        exchange(&mut client, "again\n", "again\n");
    }
    assert_all_recovered(&server);
}
