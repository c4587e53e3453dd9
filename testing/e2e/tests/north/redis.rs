//! redis: acknowledged writes survive.

use std::{
    fs,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use e2e::{
    Scene, Seed,
    arrange::wait_until,
    clients::finish,
    exchange::{assert_all_recovered, assert_untouched},
    loggers::status,
    servers::{SERVER_PORT, redis, redis_in},
};
use lab::Signal;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

pub(super) use super::redis_client::Client;
use super::{STATEFUL_REQUIRE, await_condition, kill_repeatedly};

/// Counts until `ends`, and asserts that the server counts each request exactly once.
fn count(scene: &Scene, number: usize, ends: &AtomicBool) -> u64 {
    let mut client = Client::new(scene);
    let id = client.ask(&["CLIENT", "ID"]);
    let key = format!("counter-{number}");
    let (mut counted, mut last) = (0, String::new());
    while !ends.load(Ordering::Relaxed) {
        counted += 1;
        assert_eq!(client.ask(&["INCR", &key]), format!(":{counted}"));
        let entry = client.ask(&["XADD", "stream", "*", "by", &key]);
        assert!(is_later(&entry, &last), "{entry} after {last}");
        last = entry;
        if counted % 7 == 0 {
            assert_eq!(client.ask(&["MULTI"]), "+OK");
            assert_eq!(client.ask(&["INCR", &key]), "+QUEUED");
            counted += 1;
            assert_eq!(client.ask(&["EXEC"]), format!(":{counted}"));
            assert_eq!(client.ask(&["CLIENT", "ID"]), id);
        }
    }
    counted
}

fn is_later(entry: &str, last: &str) -> bool {
    let parts = |id: &str| {
        let (time, number) = id.split_once('-').unwrap_or(("0", "0"));
        (
            time.parse::<u64>().unwrap_or(0),
            number.parse::<u64>().unwrap_or(0),
        )
    };
    parts(entry) > parts(last)
}

#[test]
fn redis_keeps_acknowledged_writes() {
    keeps_acknowledged_writes("redis", &[]);
}

/// A helper thread flushes the log each second. The thread's activity decides the time of the next write.
#[test]
fn redis_with_everysec_keeps_acknowledged_writes() {
    let every_second = ["--appendonly", "yes", "--appendfsync", "everysec"];
    keeps_acknowledged_writes("rediseverysec", &every_second);
}

fn keeps_acknowledged_writes(label: &str, logs: &[&str]) {
    let scene = Scene::new(label);
    let saves = [&["--save", ""], logs].concat();
    let redis = redis_in(scene.directory(), scene.ipv4(SERVER_PORT), &saves);
    let server = scene.protect_with(&redis, &STATEFUL_REQUIRE);
    let recording = scene.record(SERVER_PORT);
    let ends = AtomicBool::new(false);
    let seed = &mut Seed::choose(label);
    let (scene, ends) = (&scene, &ends);
    thread::scope(|scope| {
        let clients: Vec<_> = (0..8)
            .map(|number| scope.spawn(move || count(scene, number, ends)))
            .collect();
        kill_repeatedly(&server, 5, seed);
        if !logs.is_empty() {
            // Long enough for a few flushes.
            thread::sleep(Duration::from_secs(3));
            server.kill_main(Signal::KILL);
            server.wait_serving(6);
        }
        ends.store(true, Ordering::Relaxed);
        let counted: Vec<u64> = clients
            .into_iter()
            .map(|client| client.join().expect("a client"))
            .collect();
        let mut client = Client::new(scene);
        for (number, counted) in counted.iter().enumerate() {
            assert_eq!(
                client.ask(&["GET", &format!("counter-{number}")]),
                counted.to_string()
            );
        }
    });
    assert_all_recovered(&server);
    assert_untouched(recording, 9);
}

/// Sets keys until `ends`. redis evicts some keys by itself: an evicted key stays away, and the other keys keep their
/// values.
fn overfill(scene: &Scene, number: usize, ends: &AtomicBool) {
    let mut client = Client::new(scene);
    let mut seed = Seed::from(number as u64);
    let value = |key: usize| format!("{number}-{key} ").repeat(60);
    let mut forgotten = Vec::new();
    while !ends.load(Ordering::Relaxed) {
        let (new, name) = (forgotten.len(), |key: usize| format!("key-{number}-{key}"));
        let expires = (3_000_000 + new).to_string();
        let set = client.ask(&["SET", &name(new), &value(new), "PX", &expires]);
        assert_eq!(set, "+OK");
        forgotten.push(false);
        for _ in 0..3 {
            let key = new - seed.between(0, new.min(400));
            let known = client.ask(&["GET", &name(key)]);
            if known == "$-1" {
                forgotten[key] = true;
            } else {
                assert!(!forgotten[key], "{key} has come back");
                assert_eq!(known, value(key));
            }
        }
    }
}

/// How many keys have gone because memory was short.
fn evicted(client: &mut Client) -> u64 {
    let about = client.ask(&["INFO", "stats"]);
    let evicted = about.lines().find(|line| line.starts_with("evicted_keys"));
    let (_, evicted) = evicted.and_then(|line| line.split_once(':')).expect("both");
    evicted.parse().expect("a number")
}

/// Clocks, random numbers and used memory decide the eviction.
#[test]
fn redis_evicts_same_keys_in_replay() {
    for policy in ["allkeys-random", "allkeys-lru", "volatile-ttl"] {
        let scene = Scene::new("redisevict");
        let more = ["--save", "", "--maxmemory", "2mb", "--maxmemory-policy"];
        let more = [&more[..], &[policy]].concat();
        let redis = redis_in(scene.directory(), scene.ipv4(SERVER_PORT), &more);
        let server = scene.protect_with(&redis, &STATEFUL_REQUIRE);
        let (ends, seed) = (AtomicBool::new(false), &mut Seed::choose(policy));
        let (scene, ends) = (&scene, &ends);
        thread::scope(|scope| {
            let clients: Vec<_> = (0..3)
                .map(|number| scope.spawn(move || overfill(scene, number, ends)))
                .collect();
            // However long that takes.
            let mut client = Client::new(scene);
            await_condition("keys go", || evicted(&mut client) > 0);
            drop(client);
            kill_repeatedly(&server, 3, seed);
            ends.store(true, Ordering::Relaxed);
            for client in clients {
                client.join().expect("a client");
            }
        });
        let mut client = Client::new(scene);
        let mut state = || (client.ask(&["DEBUG", "DIGEST"]), evicted(&mut client));
        // redis evicts the excess gradually.
        let mut then = state();
        await_condition("nothing more goes", || {
            let before = std::mem::replace(&mut then, state());
            before == then
        });
        server.kill_main(Signal::KILL);
        server.wait_serving(4);
        // A response takes memory, too: another key may be evicted for a response, as without a death.
        let now = state();
        assert!(
            now.1 > then.1 || now == then,
            "{policy}: {now:?}, not {then:?}"
        );
        assert_all_recovered(&server);
    }
}

/// The answers depend on all earlier commands, on clocks and on random numbers.
const NONDETERMINISTIC_COMMANDS: [&[&str]; 22] = [
    &["SET", "s%", "value %"],
    &["SET", "s%", "x", "PX", "2000000"],
    &["GET", "s%"],
    &["EXPIRE", "s%", "100"],
    &["PTTL", "s%"],
    &["SADD", "set", "a%", "b%", "c%"],
    &["SPOP", "set"],
    &["SRANDMEMBER", "set", "3"],
    &["RANDOMKEY"],
    &["TIME"],
    &["HSET", "hash", "f%", "%"],
    &["HRANDFIELD", "hash", "2"],
    &["ZADD", "z", "%", "m%"],
    &["ZRANDMEMBER", "z"],
    &["LPUSH", "list", "%"],
    &["RPOP", "list"],
    &["XADD", "stream", "*", "f", "%"],
    &[
        "EVAL",
        "local t=redis.call('TIME'); redis.call('SET','e',t[1]..':'..t[2]..':'..math.random(1000)); return t",
        "0",
    ],
    &["ACL", "GENPASS"],
    &["CLIENT", "ID"],
    &["OBJECT", "IDLETIME", "s%"],
    &["INCR", "counter"],
];

fn play(clients: &mut [Client], seed: &mut Seed, commands: usize) {
    for _ in 0..commands {
        let number = seed.between(0, 49).to_string();
        let words: Vec<String> = NONDETERMINISTIC_COMMANDS
            [seed.between(0, NONDETERMINISTIC_COMMANDS.len() - 1)]
        .iter()
        .map(|word| word.replace('%', &number))
        .collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let client = seed.between(0, clients.len() - 1);
        clients[client].ask(&words);
    }
}

/// After all kinds of commands the whole state is unchanged, and an open transaction continues.
#[test]
fn redis_state_equals_state_at_death() {
    let scene = Scene::new("redisstate");
    let server = scene.protect_with(&redis(&scene), &STATEFUL_REQUIRE);
    let recording = scene.record(SERVER_PORT);
    let seed = &mut Seed::choose("redisstate");
    let mut clients: Vec<Client> = (0..4).map(|_| Client::new(&scene)).collect();
    for kill in 1..=3 {
        play(&mut clients, seed, 2000);
        let state = |client: &mut Client| {
            [
                &["DEBUG", "DIGEST"][..],
                &["CLIENT", "ID"],
                &["GET", "counter"],
                &["LASTSAVE"],
            ]
            .map(|words| client.ask(words))
        };
        let then = state(&mut clients[1]);
        assert_eq!(clients[2].ask(&["MULTI"]), "+OK");
        assert_eq!(clients[2].ask(&["INCR", "counter"]), "+QUEUED");
        server.kill_main(Signal::KILL);
        server.wait_serving(kill);
        assert_eq!(state(&mut clients[1]), then);
        let counter: u64 = then[2].parse().expect("a number");
        assert_eq!(clients[2].ask(&["EXEC"]), format!(":{}", counter + 1));
    }
    for client in &clients {
        finish(client.stream());
    }
    assert_all_recovered(&server);
    assert_untouched(recording, 4);
}

/// Waiting clients get their events from the next incarnation.
#[test]
fn redis_subscribers_and_blocked_clients_keep_waiting() {
    let scene = Scene::new("redissub");
    let server = scene.protect_with(&redis(&scene), &STATEFUL_REQUIRE);
    let (mut subscriber, mut blocked, mut other) = (
        Client::new(&scene),
        Client::new(&scene),
        Client::new(&scene),
    );
    assert_eq!(subscriber.ask(&["SUBSCRIBE", "news"]), "subscribe news :1");
    blocked.send(&["BLPOP", "list", "0"]);
    assert_eq!(other.ask(&["SET", "short", "lived", "PX", "100000"]), "+OK");
    for kill in 1..=3 {
        server.kill_main(Signal::KILL);
        server.wait_serving(kill);
        assert_eq!(
            other.ask(&["PUBLISH", "news", &format!("number {kill}")]),
            ":1"
        );
        assert_eq!(subscriber.answer(), format!("message news number {kill}"));
    }
    assert_eq!(other.ask(&["RPUSH", "list", "at last"]), ":1");
    assert_eq!(blocked.answer(), "list at last");
    let left: u64 = other.ask(&["PTTL", "short"])[1..]
        .parse()
        .expect("milliseconds");
    assert!((1..100_000).contains(&left), "{left} ms");
    assert_all_recovered(&server);
}

/// redis' own benchmark program, without knowledge of `outlive`.
#[test]
fn redis_benchmark_sees_no_crash() {
    let scene = Scene::new("redisbench");
    let server = scene.protect_with(&redis(&scene), &STATEFUL_REQUIRE);
    let seed = &mut Seed::choose("redisbench");
    let host = scene.ipv4(SERVER_PORT).ip().to_string();
    let port = SERVER_PORT.to_string();
    thread::scope(|scope| {
        let arguments = [
            "-h",
            &host,
            "-p",
            &port,
            "-t",
            "set,get,lpush,lpop,sadd",
            "-n",
            "20000",
            "-c",
            "20",
            "-q",
        ];
        let scene = &scene;
        let benchmark = scope.spawn(move || scene.on_client("redis-benchmark", &arguments));
        kill_repeatedly(&server, 3, seed);
        let finished = benchmark.join().expect("it ends");
        assert!(finished.status.success(), "{finished:?}");
    });
    assert_all_recovered(&server);
}

/// `serve` is killed, then the server; or both at once. The next `serve` finds the record.
#[test]
fn redis_survives_kill_of_serve() {
    let scene = Scene::new("redisadopt");
    let definition = redis(&scene);
    let mut server = scene.protect_with(&definition, &STATEFUL_REQUIRE);
    let mut client = Client::new(&scene);
    for round in 1..=3 {
        assert_eq!(
            client.ask(&["INCR", "counter"]),
            format!(":{}", 2 * round - 1)
        );
        server.kill_serve_itself();
        let both = round == 3;
        if both {
            server.kill_main(Signal::KILL);
        } else {
            assert_eq!(client.ask(&["INCR", "counter"]), format!(":{}", 2 * round));
        }
        server.succeed(&scene, &definition, &STATEFUL_REQUIRE);
        if !both {
            server.kill_main(Signal::KILL);
        }
        server.wait_serving(1);
        assert_all_recovered(&server);
    }
    assert_eq!(client.ask(&["INCR", "counter"]), ":6");
    drop(client);
    server.stop();
}

/// A request kills the server, also in each replay: only the sender is reset.
#[test]
fn redis_continues_without_fatal_client() {
    let scene = Scene::new("redispoison");
    let mut definition = redis(&scene);
    // The crash report of redis takes a while: a life that served for a second does not count as a life that died at
    // once.
    let quiet = ["--crash-log-enabled", "no"].map(str::to_owned);
    definition.command.extend(quiet);
    let server = scene.protect_with(&definition, &STATEFUL_REQUIRE);
    let mut others: Vec<Client> = (0..3).map(|_| Client::new(&scene)).collect();
    for (number, other) in (1..).zip(&mut others) {
        assert_eq!(other.ask(&["INCR", "counter"]), format!(":{number}"));
    }
    let mut poison = Client::new(&scene);
    assert_eq!(poison.ask(&["INCR", "counter"]), ":4");
    poison.send(&["DEBUG", "SEGFAULT"]);
    assert_eq!(poison.answer_or_error(), None);
    // An incarnation may serve for a moment before the fatal request kills the server.
    let kinds = |event: &serde_json::Value| event["event"].as_str().unwrap_or("").to_owned();
    await_condition("it serves without that client", || {
        let said: Vec<String> = server.events().iter().map(kinds).collect();
        let lost = said.iter().position(|kind| kind == "connection_reset");
        lost.is_some_and(|lost| said[lost..].iter().any(|kind| kind == "serving"))
    });
    let served = server.events_of("serving").len();
    for (number, other) in (5..).zip(&mut others) {
        assert_eq!(other.ask(&["INCR", "counter"]), format!(":{number}"));
    }
    // More, where the machine has let a life last a second.
    let deaths = server.events_of("died").len();
    assert!(deaths >= 4, "{deaths}: {}", server.log());
    assert_eq!(
        server.events_of("connection_reset").len(),
        1,
        "{}",
        server.log()
    );
    // Later connections and writes outlive a kill.
    server.kill_main(Signal::KILL);
    server.wait_serving(served + 1);
    assert_eq!(others[0].ask(&["GET", "counter"]), "7");
}

/// Input of redis is in the determinant log, and is not stored twice.
#[test]
fn redis_input_is_stored_once() {
    let scene = Scene::new("redisonce");
    let server = scene.protect_with(&redis(&scene), &STATEFUL_REQUIRE);
    let mut client = Client::new(&scene);
    let large = "x".repeat(1 << 20);
    for number in 0..40 {
        assert_eq!(client.ask(&["SET", &number.to_string(), &large]), "+OK");
    }
    await_condition("the instream is released", || {
        let status = status(&server);
        let kept = status["held_bytes"].as_u64();
        kept.is_some_and(|bytes| bytes < 4 << 20)
            && status["determinant_log_bytes"]
                .as_u64()
                .is_some_and(|bytes| bytes > 40 << 20)
    });
    server.kill_main(Signal::KILL);
    server.wait_serving(1);
    assert_eq!(client.ask(&["DBSIZE"]), ":40");
    assert_all_recovered(&server);
}

/// Each connection takes a descriptor of `serve` until the server has all connections. A lost connection takes more
/// descriptors, and comes last: server and other clients do not wait for ever.
#[test]
fn redis_gets_connections_within_descriptor_limit() {
    const CLIENT_COUNT: usize = 500;
    const SPARE_DESCRIPTORS: usize = 60; // for a few of them, and for the start of a server
    let scene = Scene::new("redis-descriptors");
    let server = scene.protect_with(&redis(&scene), &STATEFUL_REQUIRE);
    let mut clients: Vec<_> = (0..CLIENT_COUNT).map(|_| Client::new(&scene)).collect();
    for client in &mut clients {
        assert_eq!(client.ask(&["SET", "key", "value"]), "+OK");
    }
    let serve = server.serve_pid();
    let open = fs::read_dir(format!("/proc/{}/fd", serve.as_raw_nonzero())).expect("it runs");
    let limits = getrlimit(Resource::Nofile);
    let few = Rlimit {
        current: u64::try_from(open.count() + SPARE_DESCRIPTORS).ok(),
        maximum: limits.maximum,
    };
    prlimit(Some(serve), Resource::Nofile, few).expect("it runs");
    server.kill_main(Signal::KILL);
    server.wait_serving(1);
    let kept = clients
        .iter_mut()
        .map(|client| usize::from(client.is_alive()));
    let kept: usize = kept.sum();
    assert!(kept > 0 && kept < CLIENT_COUNT, "{kept}");
    assert_eq!(Client::new(&scene).ask(&["GET", "key"]), "value");
    server.stop();
}

/// Whether a process waits for descriptors on a socket (`true`) or for any event (`false`); `None` for a process at
/// work.
fn waits_to_be_given(pid: Pid) -> Option<bool> {
    let waits = fs::read_to_string(format!("/proc/{}/wchan", pid.as_raw_nonzero())).ok()?;
    match () {
        () if waits.contains("skb_wait") => Some(true),
        () if waits.contains("ep_poll") || waits.contains("epoll") => Some(false),
        () => None,
    }
}

/// A server that has replayed the record and reads no more cannot get the connections.
#[test]
fn redis_restarts_when_connections_are_not_accepted() {
    const CLIENT_COUNT: usize = 500; // more than its socket has room for
    let scene = Scene::new("redis-takes-none");
    let server = scene.protect_with(&redis(&scene), &STATEFUL_REQUIRE);
    let mut clients: Vec<_> = (0..CLIENT_COUNT).map(|_| Client::new(&scene)).collect();
    for client in &mut clients {
        for _ in 0..10 {
            assert_eq!(client.ask(&["SET", "key", "value"]), "+OK");
        }
    }
    for recoveries in 1.. {
        server.kill_main(Signal::KILL);
        let restarted = server.wait_for("restarted", recoveries);
        let pid = restarted["pid"]
            .as_i64()
            .and_then(|pid| pid.try_into().ok());
        let pid = pid.and_then(Pid::from_raw).expect("a process");
        server.kill_serve(Signal::STOP);
        let mut waits = None;
        wait_until("it has replayed its record, or serves", || {
            waits = waits_to_be_given(pid);
            waits.is_some()
        });
        if waits == Some(true) {
            lab::signal(pid, Signal::STOP).expect("it waits");
            server.kill_serve(Signal::CONT);
            break;
        }
        server.kill_serve(Signal::CONT);
        server.wait_serving(recoveries);
    }
    wait_until("it is told", || {
        let mut told = server.events_of("warning").into_iter();
        told.any(|one| one["reason"].to_string().contains("is started again"))
    });
    let recoveries = server.events_of("restarted").len();
    server.wait_for("restarted", recoveries.max(2));
    for client in &mut clients {
        assert_eq!(client.ask(&["GET", "key"]), "value");
    }
    server.stop();
}
