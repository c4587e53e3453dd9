//! The bound of the determinant log: beyond the bound the server continues unprotected, with a warning. The log of a
//! stateless server is reset when no client is connected.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use e2e::{
    Protected, Scene, Seed,
    clients::finish,
    loggers::{protect, status, with_logger_that},
    pair::{FailOver, Pair, addresses},
    servers::{SERVER_PORT, redis, redis_at},
};
use lab::Signal;

use super::{
    STATEFUL_REQUIRE, await_condition, power_off, redis::Client, refusals::serve, upgrade::upgrade,
};

/// A record that is soon full.
const SMALL_LIMITS: [&str; 4] = ["--limit-total", "8MiB", "--limit-per-connection", "4MiB"];

/// Sets keys of redis until something has happened. How many there are.
fn fill_until(client: &mut Client, is_so: impl Fn() -> bool) -> usize {
    const MAX_REQUESTS: usize = 1_000_000;
    for first in (0..MAX_REQUESTS).step_by(1000) {
        for number in first..first + 1000 {
            client.send(&["SET", &format!("key-{number}"), &format!("value {number}")]);
        }
        for _ in 0..1000 {
            assert_eq!(client.answer(), "+OK");
        }
        if is_so() {
            return first + 1000;
        }
    }
    panic!("nothing has happened");
}

/// Fills the record. After the end of the record the server goes on, and `serve` reports the connection as
/// unprotected: a crash loses the connection and the state. The next incarnation is recorded again.
fn ends_loudly(scene: &Scene, server: &Protected, why: &str) {
    let mut client = Client::new(scene);
    let keys = fill_until(&mut client, || {
        !server.events_of("recording_stopped").is_empty()
    });
    let told = server.wait_for("recording_stopped", 1);
    assert!(told["reason"].to_string().contains(why), "{told}");
    assert!(told["record_bytes"].as_u64() > Some(1 << 20), "{told}");
    assert_eq!(client.ask(&["DBSIZE"]), format!(":{keys}"));
    let status = status(server);
    assert_eq!(status["unprotected_by"]["recording_stopped"], 1, "{status}");
    let shown = server.outlive("status", &["--connections"]).stdout;
    assert!(shown.contains("1 open, all UNPROTECTED"), "{shown}");

    assert_begins_anew(scene, server, client);
    assert_eq!(server.events_of("recording_stopped").len(), 1);
    assert_eq!(
        server.events_of("connection_reset").len(),
        1,
        "{}",
        server.log()
    );
}

/// The server dies without a whole record: connections end, and the next incarnation is recorded.
pub(super) fn assert_begins_anew(scene: &Scene, server: &Protected, mut client: Client) {
    server.kill_main(Signal::KILL);
    let serving = server.wait_serving(1);
    assert_eq!(serving["reset"], 1, "{serving}");
    assert_eq!(client.answer_or_error(), None);
    let mut client = Client::new(scene);
    assert_eq!(client.ask(&["DBSIZE"]), ":0");
    assert_protection_resumed(server, client);
}

/// After the first recovery there is a record again.
fn assert_protection_resumed(server: &Protected, mut client: Client) {
    assert_eq!(client.ask(&["SET", "new", "kept"]), "+OK");
    assert_eq!(status(server)["unprotected"], 0);
    server.kill_main(Signal::KILL);
    let serving = server.wait_serving(2);
    let counts = (&serving["recovered"], &serving["reset"]);
    assert_eq!(counts, (&1.into(), &0.into()), "{serving}");
    assert_eq!(client.ask(&["GET", "new"]), "kept");
}

#[test]
fn full_record_ends_with_warning() {
    let scene = Scene::new("nfull");
    let flags = [&STATEFUL_REQUIRE[..], &SMALL_LIMITS].concat();
    let server = scene.protect_with(&redis(&scene), &flags);
    ends_loudly(&scene, &server, "--limit-total");
}

/// The next `serve` knows of the end, too.
#[test]
fn next_serve_knows_ended_record() {
    let scene = Scene::new("nfullnext");
    let (definition, flags) = (
        redis(&scene),
        [&STATEFUL_REQUIRE[..], &SMALL_LIMITS].concat(),
    );
    let mut server = scene.protect_with(&definition, &flags);
    let mut client = Client::to(&scene, scene.ipv4(SERVER_PORT));
    let keys = fill_until(&mut client, || {
        !server.events_of("recording_stopped").is_empty()
    });
    server.kill_serve_itself();
    server.succeed(&scene, &definition, &flags);
    server.wait_for("recording_stopped", 1);
    assert_eq!(client.ask(&["DBSIZE"]), format!(":{keys}"));
    server.kill_main(Signal::KILL);
    let serving = server.wait_serving(1);
    assert_eq!(serving["reset"], 1, "{serving}");
    assert_eq!(client.answer_or_error(), None);
}

/// A full record leaves no room for another record: the server continues.
#[test]
fn full_record_of_other_version_is_ignored() {
    let scene = Scene::new("nversionfull");
    let flags = [&STATEFUL_REQUIRE[..], &SMALL_LIMITS].concat();
    let definition = redis(&scene);
    let mut server = scene.protect_with(&definition, &flags);
    let mut client = Client::new(&scene);
    fill_until(&mut client, || {
        !server.events_of("recording_stopped").is_empty()
    });
    finish(client.stream());
    drop(client);
    await_condition("nobody is connected", || {
        status(&server)["connections"] == 0
    });
    let mut client = Client::new(&scene);
    assert_eq!(client.ask(&["SET", "key", "value"]), "+OK");
    upgrade(&scene, &mut server, &definition, &flags);
    assert_eq!(client.ask(&["GET", "key"]), "value");
    assert_begins_anew(&scene, &server, client);
}

#[test]
fn record_over_logger_limit_ends_with_warning() {
    let (scene, logger) = with_logger_that("nfulllog", &["--limit-total", "8MiB"]);
    let server = protect(&scene, &redis(&scene), &logger, &STATEFUL_REQUIRE);
    ends_loudly(&scene, &server, "the logger has no room");
}

/// A restarted logger does not take an ended record for a whole record: no other host continues from the old state.
#[test]
fn ended_record_is_not_taken_over() {
    let [address, _] = addresses();
    let flags = [&STATEFUL_REQUIRE[..], &SMALL_LIMITS].concat();
    let mut pair = Pair::with("nfullhost", &[], &flags, |scene| redis_at(scene, address));
    let mut client = power_off::client(&pair.scene);
    let ended = || !pair.first.events_of("recording_stopped").is_empty();
    fill_until(&mut client, ended);
    pair.restart_logger();
    assert_eq!(client.ask(&["PING"]), "+PONG");
    pair.first.power_off();
    pair.second.wait_for("warning", 1);
    pair.second.wait_for("protecting", 1);
    client.is_reset_when_it_speaks();
    let mut client = power_off::client(&pair.scene);
    assert_eq!(client.ask(&["DBSIZE"]), ":0");
    drop(client);
    pair.change_places();
    pair.stop();
}

/// As if redis had no state: lost keys show a restart without a record.
const STATELESS_FLAGS: [&str; 3] = ["--stateless", "--stateless-reset-at", "1MiB"];

/// Adds more than a megabyte to the record.
fn fill(client: &mut Client) {
    let value = "x".repeat(100_000);
    for _ in 0..12 {
        assert_eq!(client.ask(&["SET", "key", &value]), "+OK");
    }
}

fn record_bytes(server: &Protected) -> u64 {
    status(server)["determinant_log_bytes"]
        .as_u64()
        .expect("a record")
}

#[test]
fn record_resets_without_connections() {
    let scene = Scene::new("nanew");
    let flags = [&STATEFUL_REQUIRE[..], &STATELESS_FLAGS].concat();
    let server = scene.protect_with(&redis(&scene), &flags);
    let mut client = Client::new(&scene);
    fill(&mut client);
    // A client is connected, and needs the record.
    thread::sleep(Duration::from_secs(3));
    server.assert_none_of("record_reset");
    server.kill_main(Signal::KILL);
    assert_eq!(server.wait_serving(1)["recovered"], 1);
    assert_eq!(client.ask(&["DBSIZE"]), ":1");
    assert!(record_bytes(&server) > 1 << 20);
    finish(client.stream());
    drop(client);

    let told = server.wait_for("record_reset", 1);
    assert!(told["record_bytes"].as_u64() > Some(1 << 20), "{told}");
    server.wait_serving(2);
    assert!(record_bytes(&server) < 1 << 20);
    assert_eq!(server.events_of("died")[1]["cause"]["kind"], "record_reset");
    let mut client = Client::new(&scene);
    assert_eq!(client.ask(&["DBSIZE"]), ":0");
    // Who comes then is protected as ever.
    assert_eq!(client.ask(&["SET", "new", "kept"]), "+OK");
    server.kill_main(Signal::KILL);
    server.wait_serving(3);
    assert_eq!(client.ask(&["GET", "new"]), "kept");
    drop(client);

    // A death without a connected client needs no replay, also of a small record.
    await_condition("nobody is connected", || {
        status(&server)["connections"] == 0
    });
    server.kill_main(Signal::KILL);
    server.wait_serving(4);
    assert_eq!(Client::new(&scene).ask(&["DBSIZE"]), ":0");
    server.assert_none_of("connection_reset");
    assert_eq!(server.events_of("record_reset").len(), 1);
}

/// A service beyond the bound becomes protected again.
#[test]
fn ended_record_resets_without_connections() {
    let scene = Scene::new("nanewfull");
    let flags = [&STATEFUL_REQUIRE[..], &SMALL_LIMITS, &["--stateless"]].concat();
    let server = scene.protect_with(&redis(&scene), &flags);
    let mut client = Client::new(&scene);
    fill_until(&mut client, || {
        !server.events_of("recording_stopped").is_empty()
    });
    drop(client);
    server.wait_for("record_reset", 1);
    server.wait_serving(1);
    assert_protection_resumed(&server, Client::new(&scene));
    server.assert_none_of("connection_reset");
}

/// Consecutive short connections: each finds its own key and its own random number, across resets of the record and
/// crashes. For half of the time, counted from `began`, no client is connected.
fn come_and_go(scene: &Scene, number: usize, began: Instant, ends: &AtomicBool) -> usize {
    const PERIOD_MS: u128 = 400;
    let mut connections = 0;
    let value = "x".repeat(30_000);
    while !ends.load(Ordering::Relaxed) {
        let mut client = Client::new(scene);
        let key = format!("key-{number}-{connections}");
        assert_eq!(client.ask(&["SET", &key, &value]), "+OK");
        let drawn = client.ask(&["ACL", "GENPASS"]);
        assert_eq!(client.ask(&["APPEND", &key, &drawn]), ":30064");
        assert_eq!(client.ask(&["GETRANGE", &key, "30000", "-1"]), drawn);
        finish(client.stream());
        drop(client);
        connections += 1;
        thread::sleep(Duration::from_millis(20));
        while began.elapsed().as_millis() % PERIOD_MS > PERIOD_MS / 2 {
            thread::sleep(Duration::from_millis(5));
        }
    }
    connections
}

#[test]
fn client_during_record_reset_is_served() {
    let scene = Scene::new("nanewbusy");
    let flags = [&STATEFUL_REQUIRE[..], &STATELESS_FLAGS].concat();
    let server = scene.protect_with(&redis(&scene), &flags);
    let (scene, ends) = (&scene, &AtomicBool::new(false));
    let seed = &mut Seed::choose("nanewbusy");
    let began = Instant::now();
    thread::scope(|scope| {
        let clients: Vec<_> = (0..2)
            .map(|number| scope.spawn(move || come_and_go(scene, number, began, ends)))
            .collect();
        for kill in 1..=3 {
            server.wait_for("record_reset", 2 * kill);
            thread::sleep(Duration::from_millis(seed.between(0, 400) as u64));
            let served = server.events_of("serving").len();
            // The server may just be restarting.
            let _ = lab::signal(server.main_pid(), Signal::KILL);
            server.wait_serving(served + 1);
        }
        ends.store(true, Ordering::Relaxed);
        let all = clients.into_iter();
        let connections: usize = all.map(|client| client.join().expect("a client")).sum();
        // A record was full six times, of 30 kB for each connection.
        assert!(connections > 100, "{connections}");
    });
    server.assert_none_of("connection_reset");
    server.assert_none_of("warning");
}

/// The logger's record is reset, too, and the next host finds the record of the running server.
#[test]
fn record_at_logger_resets() {
    let [address, _] = addresses();
    let flags = [&STATEFUL_REQUIRE[..], &STATELESS_FLAGS].concat();
    let mut pair = Pair::with("nanewlog", &[], &flags, |scene| redis_at(scene, address));
    let mut client = power_off::client(&pair.scene);
    fill(&mut client);
    drop(client);
    pair.first.wait_for("record_reset", 1);
    pair.first.wait_serving(1);
    let mut client = power_off::client(&pair.scene);
    assert_eq!(client.ask(&["DBSIZE"]), ":0");
    assert_eq!(client.ask(&["SET", "new", "kept"]), "+OK");
    pair.fail_over(FailOver::PowerOff);
    assert_eq!(client.ask(&["GET", "new"]), "kept");
    finish(client.stream());
    drop(client);
    pair.stop();
}

#[test]
fn options_contradicting_stateless_are_refused() {
    let scene = Scene::new("nanewbad");
    let wrong: [(&[&str], &str); 3] = [
        (&["--stateless", "--checkpoint-at", "1MiB"], "checkpoints"),
        (
            &["--stateless", "--stateless-reset-at", "1KiB"],
            "at least 1MiB",
        ),
        (&["--stateless-reset-at", "2MiB"], "--stateless"),
    ];
    for (flags, why) in wrong {
        let output = serve(&scene, flags, &["redis-server"]);
        assert_eq!(output.status.code(), Some(64), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(why), "{said}");
    }
}
