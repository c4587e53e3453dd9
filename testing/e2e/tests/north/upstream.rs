//! Servers with upstream connections: the next incarnation knows all upstream responses, and repeats no request.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use e2e::{
    Protected, Scene, Seed,
    clients::finish,
    exchange::{assert_all_recovered, assert_untouched},
    loggers::{protect, status, with_logger},
    pair::{FailOver, Pair, addresses},
    servers::{SERVER_PORT, Server, asker, asker_at, counter, redis_at, replica},
};
use lab::Signal;

use super::{STATEFUL_REQUIRE, await_condition, kill_repeatedly, read_by_server, redis::Client};

/// Port of the upstream server.
const UPSTREAM_PORT: u16 = 8081;

pub(super) fn behind(scene: &Scene) -> SocketAddr {
    scene.ipv4(UPSTREAM_PORT)
}

/// A client of the server that counts in a redis.
struct Asks(BufReader<TcpStream>);

impl Asks {
    fn new(scene: &Scene) -> Self {
        Self(BufReader::new(scene.connect(SERVER_PORT)))
    }

    fn say(&mut self) {
        writeln!(self.0.get_mut(), "count").expect("sent");
    }

    /// The count, and the hash of all answers to the server.
    #[track_caller]
    fn ask(&mut self) -> (u64, String) {
        self.say();
        self.receive()
    }

    #[track_caller]
    fn receive(&mut self) -> (u64, String) {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("an answer");
        let (count, told) = line.trim_end().split_once(' ').expect("two words");
        (count.parse().expect("a number"), told.to_owned())
    }
}

/// The server asks a redis for each request: after a kill in between, all upstream responses are known.
#[test]
fn upstream_responses_are_replayed() {
    let scene = Scene::new("asker");
    let _redis = scene.plain(&redis_at(&scene, behind(&scene)));
    let port = UPSTREAM_PORT.to_string();
    let server = asker(&scene, &["tcp", &behind(&scene).ip().to_string(), &port]);
    let server = replays_upstream_responses(&scene, &server);
    assert_eq!(outgoing(&server), [(1, 0); 4]);
}

/// By a socket of the host.
#[test]
fn local_upstream_responses_are_replayed() {
    let scene = Scene::new("askerlocal");
    let socket = scene.directory().join("redis.socket");
    let socket = socket.to_string_lossy();
    let mut redis = redis_at(&scene, behind(&scene));
    redis
        .command
        .extend(["--unixsocket".to_owned(), socket.to_string()]);
    let _redis = scene.plain(&redis);
    let server = replays_upstream_responses(&scene, &asker(&scene, &["unix", &socket]));
    assert_eq!(outgoing(&server), [(0, 1); 4]);
}

/// By datagrams, each from a new socket.
#[test]
fn datagrams_are_replayed() {
    let scene = Scene::new("askerudp");
    let _counter = scene.plain(&counter(&scene, behind(&scene)));
    let port = UPSTREAM_PORT.to_string();
    let server = asker(&scene, &["udp", &behind(&scene).ip().to_string(), &port]);
    replays_upstream_responses(&scene, &server).assert_none_of("upstream_connections");
}

/// How many of the connections that the server had opened were kept, and how many were reset, in each recovery.
pub(super) fn outgoing(server: &Protected) -> Vec<(u64, u64)> {
    let told = server.events_of("upstream_connections");
    let count = |event: &serde_json::Value, what: &str| event[what].as_u64().expect("a count");
    told.iter()
        .map(|event| (count(event, "recovered"), count(event, "reset")))
        .collect()
}

/// In each recovery in which there were any, all were kept. In how many that was.
#[track_caller]
pub(super) fn assert_upstream_recovered(server: &Protected) -> usize {
    let all = outgoing(server);
    let were_kept = |(kept, reset): &(u64, u64)| *kept > 0 && *reset == 0;
    assert!(all.iter().all(were_kept), "{all:?}");
    all.len()
}

fn replays_upstream_responses(scene: &Scene, server: &Server) -> Protected {
    let server = scene.protect_with(server, &STATEFUL_REQUIRE);
    let recording = scene.record(SERVER_PORT);
    let (mut one, mut two) = (Asks::new(scene), Asks::new(scene));
    let mut told = Vec::new();
    for kill in 1..=4 {
        for _ in 0..50 {
            told.extend([one.ask(), two.ask()]);
        }
        server.kill_main(Signal::KILL);
        server.wait_serving(kill);
    }
    told.extend([one.ask(), two.ask()]);
    let counts: Vec<u64> = told.iter().map(|(count, _)| *count).collect();
    assert_eq!(
        counts,
        (1..=402).collect::<Vec<u64>>(),
        "each was asked once"
    );
    let chain: Vec<&str> = told.iter().map(|(_, told)| told.as_str()).collect();
    assert_eq!(
        chain,
        hashes(scene, told.len()),
        "what it was told it knows"
    );
    for client in [one, two] {
        finish(client.0.get_ref());
    }
    assert_all_recovered(&server);
    assert_untouched(recording, 2);
    server
}

/// The server's hash of all answers, after each count.
fn hashes(scene: &Scene, counts: usize) -> Vec<String> {
    const HASH_SCRIPT: &str = "import hashlib, sys
told = hashlib.sha256()
for count in range(int(sys.argv[1])):
    told.update(f':{count + 1}'.encode())
    print(told.hexdigest())
";
    let said = scene.on_client(
        "/usr/bin/python3",
        &["-c", HASH_SCRIPT, &counts.to_string()],
    );
    assert!(said.status.success(), "{said:?}");
    let said = String::from_utf8_lossy(&said.stdout);
    said.lines().map(str::to_owned).collect()
}

/// A replica keeps clients and data, and gets the later writes of the master.
#[test]
fn redis_replica_catches_up() {
    let scene = Scene::new("replica");
    let _master = scene.plain(&redis_at(&scene, behind(&scene)));
    let mut master = Client::to(&scene, behind(&scene));
    for number in 0..200 {
        master.ask(&["set", &format!("before:{number}"), &number.to_string()]);
    }
    let server = scene.protect_with(&replica(&scene, behind(&scene)), &STATEFUL_REQUIRE);
    let recording = scene.record(SERVER_PORT);
    let mut reader = Client::to(&scene, scene.ipv4(SERVER_PORT));
    await_value(&mut reader, "before:199", "199");
    for kill in 1..=4 {
        let key = format!("then:{kill}");
        master.ask(&["set", &key, "at once"]);
        await_value(&mut reader, &key, "at once");
        server.kill_main(Signal::KILL);
        let key = format!("meanwhile:{kill}");
        master.ask(&["set", &key, "later"]);
        server.wait_serving(kill);
        await_value(&mut reader, &key, "later");
    }
    for client in [&mut master, &mut reader] {
        assert_eq!(client.ask(&["dbsize"]), ":208");
    }
    let digest = master.ask(&["debug", "digest"]);
    assert_eq!(reader.ask(&["debug", "digest"]), digest);
    finish(reader.stream());
    assert_all_recovered(&server);
    assert_eq!(outgoing(&server), [(1, 0); 4]);
    assert_untouched(recording, 1);
}

fn await_value(reader: &mut Client, key: &str, value: &str) {
    let reader = std::cell::RefCell::new(reader);
    await_condition(key, || reader.borrow_mut().ask(&["get", key]) == value);
}

/// The host that takes over has the predecessor's upstream responses, and connects again.
#[test]
fn upstream_responses_survive_power_off() {
    let (mut redis, [address, _]) = (None, addresses());
    let mut pair = Pair::with("askerhosts", &[], &STATEFUL_REQUIRE, |scene| {
        let there: SocketAddr = (scene.client.address().ipv4(), UPSTREAM_PORT).into();
        redis = Some(scene.plain_on(&scene.client, &redis_at(scene, there)));
        let port = UPSTREAM_PORT.to_string();
        asker_at(scene, address, &["tcp", &there.ip().to_string(), &port])
    });
    let mut client = Asks(BufReader::new(pair.scene.connect_to(address)));
    let mut told: Vec<(u64, String)> = (0..50).map(|_| client.ask()).collect();
    pair.fail_over(FailOver::PowerOff);
    told.extend((0..50).map(|_| client.ask()));
    let expected: Vec<(u64, String)> = (1..).zip(hashes(&pair.scene, 100)).collect();
    assert_eq!(told, expected);
    assert_eq!(outgoing(&pair.first), [(0, 1)]);
    drop(client);
    pair.stop();
    drop(redis);
}

/// Output to other servers waits for the logger, too: the connect, and each request.
#[test]
fn upstream_request_waits_for_determinants() {
    let (scene, logger) = with_logger("north-asks");
    let there: SocketAddr = (scene.client.address().ipv4(), UPSTREAM_PORT).into();
    let _redis = scene.plain_on(&scene.client, &redis_at(&scene, there));
    let mut beside = Client::to(&scene, there);
    let port = UPSTREAM_PORT.to_string();
    let definition = asker(&scene, &["tcp", &there.ip().to_string(), &port]);
    let server = protect(&scene, &definition, &logger, &STATEFUL_REQUIRE);
    let recorded = || {
        status(&server)["determinant_log_bytes"]
            .as_u64()
            .expect("a number")
    };
    let link = &logger.host().links()[0];
    // The incarnation that has read the last request does not send the request upstream.
    for count in 1..=3 {
        // Data of the client before may still be unacknowledged.
        let mut client = Asks::new(&scene);
        await_condition("it is accepted", || {
            let before = recorded();
            thread::sleep(Duration::from_millis(50));
            recorded() == before
        });
        link.cut().expect("a cut");
        client.say();
        await_condition("it has read that", || {
            read_by_server(&scene, client.0.get_ref()) > 0
        });
        thread::sleep(Duration::from_millis(500));
        let clients = beside.ask(&["INFO", "clients"]);
        let (connected, known) = match count {
            1 => (1, "$-1".to_owned()),
            _ => (2, (count - 1).to_string()),
        };
        let connected = format!("connected_clients:{connected}");
        assert!(clients.lines().any(|line| line == connected), "{clients}");
        assert_eq!(beside.ask(&["GET", "count"]), known, "it has been asked");
        if count == 3 {
            server.kill_main(Signal::KILL);
        }
        link.heal().expect("a link");
        assert_eq!(client.receive().0, count);
        assert_eq!(beside.ask(&["GET", "count"]), count.to_string());
        finish(client.0.get_ref());
    }
    server.assert_none_of("connection_reset");
}

/// The `serve` after a killed `serve` holds no connection that the server had opened before.
#[test]
fn upstream_connections_are_reset_without_their_serve() {
    let scene = Scene::new("askerserve");
    let _redis = scene.plain(&redis_at(&scene, behind(&scene)));
    let port = UPSTREAM_PORT.to_string();
    let definition = asker(&scene, &["tcp", &behind(&scene).ip().to_string(), &port]);
    let mut server = scene.protect_with(&definition, &STATEFUL_REQUIRE);
    let mut client = Asks::new(&scene);
    assert_eq!(client.ask().0, 1);
    server.kill_serve_itself();
    assert_eq!(client.ask().0, 2);
    server.succeed(&scene, &definition, &STATEFUL_REQUIRE);
    assert_eq!(client.ask().0, 3);
    for (kill, expected) in [(1, (0, 1)), (2, (1, 0))] {
        server.kill_main(Signal::KILL);
        server.wait_serving(kill);
        assert_eq!(client.ask().0, 3 + kill as u64);
        assert_eq!(outgoing(&server)[kill - 1], expected);
    }
    assert_all_recovered(&server);
}

/// After a kill at any moment no request is sent twice, and no response is lost.
#[test]
fn upstream_requests_are_sent_once() {
    const CLIENT_COUNT: usize = 3;
    let scene = Scene::new("askeronce");
    let _redis = scene.plain(&redis_at(&scene, behind(&scene)));
    let port = UPSTREAM_PORT.to_string();
    let server = asker(&scene, &["tcp", &behind(&scene).ip().to_string(), &port]);
    let server = scene.protect_with(&server, &STATEFUL_REQUIRE);
    let seed = &mut Seed::choose("askeronce");
    let ends = AtomicBool::new(false);
    let (scene, ends) = (&scene, &ends);
    let mut told: Vec<(u64, String)> = thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENT_COUNT)
            .map(|_| {
                scope.spawn(move || {
                    let (mut client, mut told) = (Asks::new(scene), Vec::new());
                    while !ends.load(Ordering::Relaxed) {
                        told.push(client.ask());
                    }
                    finish(client.0.get_ref());
                    told
                })
            })
            .collect();
        kill_repeatedly(&server, 8, seed);
        ends.store(true, Ordering::Relaxed);
        let told = clients
            .into_iter()
            .map(|client| client.join().expect("a client"));
        told.flatten().collect()
    });
    told.sort();
    let hashes = hashes(scene, told.len());
    let expected: Vec<(u64, String)> = (1..).zip(hashes).collect();
    assert_eq!(told.len(), expected.len());
    assert!(told == expected, "each was asked once, and is known");
    assert_all_recovered(&server);
    assert_eq!(outgoing(&server), [(1, 0); 8]);
}
