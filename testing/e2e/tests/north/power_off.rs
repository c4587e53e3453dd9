//! A server with state on a host that loses power: another host continues with all acknowledged state.

use std::{
    fs,
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use e2e::{
    Scene, Seed, assert_same_bytes,
    clients::finish,
    exchange::assert_untouched,
    loggers::{Logger, SHORT_LOGGER_TIMEOUT, protect, status, with_logger},
    pair::{FailOver, Pair, addresses, at_addresses},
    pattern,
    servers::{
        Authority, BIG_FILE_BYTES, SERVER_PORT, Server, command_server, nginx_tls, redis, redis_at,
    },
};
use lab::{Direction, Signal};

use super::{
    STATEFUL_REQUIRE, await_condition, command_server::Client as Talker, read_by_server,
    redis::Client,
};

fn pair(label: &str) -> Pair {
    let [address, _] = addresses();
    Pair::with(label, &[], &STATEFUL_REQUIRE, |scene| {
        redis_at(scene, address)
    })
}

pub(super) fn client(scene: &Scene) -> Client {
    Client::to(scene, addresses()[0])
}

/// Counts until `ends`, and asserts that the server counts each request exactly once.
pub(super) fn count(mut client: Client, number: usize, ends: &AtomicBool) -> u64 {
    let id = client.ask(&["CLIENT", "ID"]);
    let key = format!("counter-{number}");
    let mut counted = 0;
    while !ends.load(Ordering::Relaxed) {
        counted += 1;
        assert_eq!(client.ask(&["INCR", &key]), format!(":{counted}"));
        if counted % 97 == 0 {
            assert_eq!(client.ask(&["CLIENT", "ID"]), id);
            // More than a datagram to the logger.
            let large = counted.to_string().repeat(1 << (counted % 14));
            assert_eq!(client.ask(&["SET", "large", &large]), "+OK");
        }
    }
    counted
}

#[test]
fn redis_survives_power_off() {
    survives_power_off("north-hosts", Duration::ZERO);
}

/// The server does not wait for the logger; the responses wait.
#[test]
fn redis_continues_with_distant_logger() {
    survives_power_off("north-far", Duration::from_millis(1));
}

/// The service moves between the hosts in both ways, and the server dies on the host that serves afterwards.
pub(super) fn fail_over_and_die(pair: &mut Pair, seed: &mut Seed) {
    for way in [FailOver::PowerOff, FailOver::Switchover, FailOver::PowerOff] {
        thread::sleep(Duration::from_millis(seed.between(300, 1500) as u64));
        pair.fail_over(way);
    }
    let before = pair.first.events_of("serving").len();
    pair.first.kill_main(Signal::KILL);
    pair.first.wait_serving(before + 1);
}

/// Clients count, and another client has a transaction open, during `happens`. Asserts the state of the server
/// afterwards, and returns the client of the transaction. Uses two more connections than `clients`.
pub(super) fn counting_while(
    pair: &mut Pair,
    clients: usize,
    happens: impl FnOnce(&mut Pair),
) -> Client {
    let ends = &AtomicBool::new(false);
    let mut open = client(&pair.scene);
    assert_eq!(open.ask(&["MULTI"]), "+OK");
    assert_eq!(open.ask(&["SET", "open", "kept"]), "+QUEUED");
    let clients: Vec<Client> = (0..clients).map(|_| client(&pair.scene)).collect();
    thread::scope(|scope| {
        let clients: Vec<_> = (0..)
            .zip(clients)
            .map(|(number, client)| scope.spawn(move || count(client, number, ends)))
            .collect();
        happens(pair);
        ends.store(true, Ordering::Relaxed);
        let mut after = client(&pair.scene);
        for (number, client) in clients.into_iter().enumerate() {
            let counted = client.join().expect("a client").to_string();
            let key = format!("counter-{number}");
            assert_eq!(after.ask(&["GET", &key]), counted);
        }
    });
    assert_eq!(open.ask(&["EXEC"]), "+OK");
    assert_eq!(open.ask(&["GET", "open"]), "kept");
    open
}

/// `delay` is that of the logger's link, each way.
fn survives_power_off(label: &str, delay: Duration) {
    let mut pair = pair(label);
    put_away(&pair.logger, delay);
    let recording = pair.scene.record(SERVER_PORT);
    let seed = &mut Seed::choose(label);
    let open = counting_while(&mut pair, 8, |pair| fail_over_and_die(pair, seed));
    finish(open.stream());
    assert_untouched(recording, 10);
    pair.stop();
}

/// A restarted logger gets the missing part of the determinant log again.
#[test]
fn restarted_logger_gets_whole_determinant_log() {
    let mut pair = pair("north-logger");
    let mut client = client(&pair.scene);
    for number in 1..=1000 {
        assert_eq!(client.ask(&["INCR", "counter"]), format!(":{number}"));
    }
    pair.restart_logger();
    // The connection has no record: the connection began before the logger.
    for number in 1001..=1100 {
        assert_eq!(client.ask(&["INCR", "counter"]), format!(":{number}"));
    }
    pair.fail_over(FailOver::PowerOff);
    let mut after = self::client(&pair.scene);
    assert_eq!(after.ask(&["GET", "counter"]), "1100");
    drop((client, after));
    pair.stop();
}

fn put_away(logger: &Logger, delay: Duration) {
    let link = &logger.host().links()[0];
    let adjusted = link.adjust(&Direction::BOTH, |link| link.delay(delay));
    adjusted.expect("a link");
}

/// A client waits for a distant logger, while the server continues with requests of other clients.
#[test]
fn distant_logger_delays_output_not_server() {
    let (scene, logger) = with_logger("north-later");
    let server = protect(&scene, &redis(&scene), &logger, &STATEFUL_REQUIRE);
    put_away(&logger, Duration::from_millis(2));
    let mut clients: Vec<Client> = (0..5)
        .map(|_| Client::to(&scene, scene.ipv4(SERVER_PORT)))
        .collect();
    for number in 1..=20 {
        assert_eq!(clients[0].ask(&["INCR", "counter"]), format!(":{number}"));
    }
    let link = &logger.host().links()[0];
    link.cut().expect("a cut");
    for client in &mut clients {
        send_and_see(client, &scene);
    }
    for client in &mut clients {
        assert_eq!(client.answer_within(Duration::from_millis(100)), None);
    }
    link.heal().expect("a link");
    for (client, number) in clients.iter_mut().zip(21..) {
        assert_eq!(client.answer(), format!(":{number}"));
    }
    // The next incarnation sends the answers that the dead server did not send.
    link.cut().expect("a cut");
    for client in &mut clients[..2] {
        send_and_see(client, &scene);
    }
    server.kill_main(Signal::KILL);
    link.heal().expect("a link");
    server.wait_serving(1);
    let mut answers: Vec<_> = clients[..2].iter_mut().map(Client::answer).collect();
    answers.sort();
    assert_eq!(answers, [":26", ":27"]);
    assert_eq!(clients[2].ask(&["INCR", "counter"]), ":28");
    server.assert_none_of("connection_reset");
}

/// For all responses of a loop iteration the server waits for the logger once, before the next poll (and once more at
/// the first response, if the previous iteration had at most one response).
#[test]
fn loop_iteration_waits_once_for_logger() {
    let (scene, logger) = with_logger("north-turns");
    let server = protect(&scene, &redis(&scene), &logger, &STATEFUL_REQUIRE);
    let mut clients: Vec<Client> = (0..16)
        .map(|_| Client::to(&scene, scene.ipv4(SERVER_PORT)))
        .collect();
    let commits = |name: &str| {
        status(&server)["output_commit"][name]
            .as_u64()
            .expect("a number")
    };
    // All these requests are ready when the server polls.
    let mut blocked = Client::to(&scene, scene.ipv4(SERVER_PORT));
    let rounds = 20;
    let before = ["waits", "iterations"].map(commits);
    for round in 1..=rounds {
        blocked.send(&["EVAL", "for i = 1, 3000000 do end return 1", "0"]);
        thread::sleep(Duration::from_millis(5));
        for client in &mut clients {
            client.send(&["INCR", "counter"]);
        }
        assert_eq!(blocked.answer(), ":1");
        let mut counted: Vec<u32> = clients
            .iter_mut()
            .map(|client| {
                client
                    .answer()
                    .trim_start_matches(':')
                    .parse()
                    .expect("a number")
            })
            .collect();
        counted.sort_unstable();
        assert!(counted.into_iter().eq((round - 1) * 16 + 1..=round * 16));
    }
    let after = ["waits", "iterations"].map(commits);
    // On a slow machine the server stops waiting at some point: the output leaves later.
    assert!(after[0] > 0, "nothing was ever waited for");
    let [waits, turns] = [0, 1].map(|which| after[which] - before[which]);
    assert!(
        waits <= 2 * turns,
        "{waits} waits in {turns} turns, for {rounds} times 17 answers"
    );
}

/// Sends a request, and waits until the server has read the request: then the record holds the request.
fn send_and_see(client: &mut Client, scene: &Scene) {
    let before = read_by_server(scene, client.stream());
    let long = "x".repeat(1200); // one segment
    client.send(&["EVAL", "return redis.call('INCR', 'counter')", "0", &long]);
    await_condition("it goes on", || {
        read_by_server(scene, client.stream()) > before + long.len() as u64
    });
}

#[test]
fn output_waits_for_determinants() {
    let (scene, logger) = with_logger("north-hold");
    let flags = [&STATEFUL_REQUIRE[..], &[SHORT_LOGGER_TIMEOUT]].concat();
    let server = protect(&scene, &redis(&scene), &logger, &flags);
    let mut waits = Client::to(&scene, scene.ipv4(SERVER_PORT));
    assert_eq!(waits.ask(&["INCR", "counter"]), ":1");
    let link = &logger.host().links()[0];
    link.cut().expect("a cut");
    waits.send(&["INCR", "counter"]);
    assert_eq!(waits.answer_within(Duration::from_millis(700)), None);
    link.heal().expect("a link");
    assert_eq!(waits.answer(), ":2");
    // The same during an outage so long that the logger is lost.
    link.cut().expect("a cut");
    waits.send(&["INCR", "counter"]);
    server.wait_for("logger_lost", 1);
    assert_eq!(waits.answer_within(Duration::from_millis(500)), None);
    link.heal().expect("a link");
    assert_eq!(waits.answer(), ":3");
    server.kill_main(Signal::KILL);
    server.wait_serving(1);
    assert_eq!(waits.ask(&["INCR", "counter"]), ":4");
    server.assert_none_of("connection_reset");
}

/// nginx with TLS at the address that goes from host to host.
fn nginx_tls_on_both(scene: &Scene) -> Server {
    let server = nginx_tls(scene, &Authority::new(scene));
    at_addresses(scene, server, Some("nginx.conf"))
}

/// The other host knows the client's session keys, and no other process does.
#[test]
fn tls_download_survives_power_off() {
    let mut pair = Pair::with("north-tls", &[], &STATEFUL_REQUIRE, nginx_tls_on_both);
    let recording = pair.scene.record(SERVER_PORT);
    let url = format!("https://{}/big.bin", addresses()[0]);
    let host = pair.scene.client.clone();
    let rates = ["2M", "3M", "4M"];
    let files = rates.map(|rate| pair.scene.directory().join(rate));
    thread::scope(|scope| {
        let clients: Vec<_> = rates
            .into_iter()
            .zip(&files)
            .map(|(rate, file)| {
                let mut curl = host.command("curl");
                // The identity of the server is not under test.
                curl.args(["--insecure", "--silent", "--show-error"]);
                curl.args(["--limit-rate", rate, &url, "--output"]);
                scope.spawn(move || curl.arg(file).output().expect("curl"))
            })
            .collect();
        let has_begun = |file: &PathBuf| fs::metadata(file).is_ok_and(|file| file.len() > 0);
        await_condition("all are in the middle", || files.iter().all(has_begun));
        pair.fail_over(FailOver::PowerOff);
        for (client, file) in clients.into_iter().zip(&files) {
            let got = client.join().expect("a client");
            assert!(got.status.success(), "{got:?}");
            let got = fs::read(file).expect("a file");
            assert_same_bytes("curl", &pattern(BIG_FILE_BYTES), &got);
        }
    });
    assert_untouched(recording, 3);
    pair.stop();
}

/// A host without the record does not guess the server's state.
#[test]
fn standby_without_record_resets_old_clients() {
    let pair = pair("north-options");
    let mut client = client(&pair.scene);
    assert_eq!(client.ask(&["INCR", "counter"]), ":1");
    cannot_take_over(pair, &[], client, "--stateful=require");
}

/// The standby starts again with other options and lacks `what`; then takes over, and resets the client.
pub(super) fn cannot_take_over(mut pair: Pair, options: &[&str], mut client: Client, what: &str) {
    pair.second.kill_serve(Signal::TERM);
    assert!(pair.second.ended(e2e::EVENT_TIMEOUT).is_some());
    pair.set_extra_flags(options);
    pair.begin_standby();
    pair.await_standby();
    pair.first.power_off();
    let trouble = pair.second.wait_for("warning", 1)["message"].to_string();
    assert!(trouble.contains(what), "{trouble}");
    pair.second.wait_for("connection_reset", 1);
    assert_eq!(client.answer_or_error(), None, "reset");
    pair.change_places();
    pair.stop();
}

/// State without a connected client is taken over, too.
#[test]
fn redis_takeover_without_connections() {
    let mut pair = pair("north-nobody");
    let mut before = client(&pair.scene);
    assert_eq!(before.ask(&["SET", "key", "value"]), "+OK");
    finish(before.stream());
    pair.fail_over(FailOver::PowerOff);
    let mut after = client(&pair.scene);
    assert_eq!(after.ask(&["GET", "key"]), "value");
    drop(after);
    pair.stop();
}

/// A program that closes all unknown descriptors keeps the shim's connection to the logger.
#[test]
fn server_closing_all_descriptors_continues() {
    let (scene, logger) = with_logger("north-closes");
    let server = protect(
        &scene,
        &command_server(&scene, "/usr/bin/python3"),
        &logger,
        &STATEFUL_REQUIRE,
    );
    let mut talker = Talker::new(&scene);
    assert_eq!(talker.ask("forget"), "forgotten");
    assert_eq!(talker.ask("count"), "2");
    server.kill_main(Signal::KILL);
    server.wait_serving(1);
    assert_eq!(talker.ask("count"), "3");
    server.assert_none_of("warning");
}

/// With `--output-commit=all` that holds for files, too.
#[test]
fn file_write_waits_for_determinants() {
    let (scene, logger) = with_logger("north-effects");
    let flags = [&STATEFUL_REQUIRE[..], &["--output-commit=all"]].concat();
    let server = protect(
        &scene,
        &command_server(&scene, "/usr/bin/python3"),
        &logger,
        &flags,
    );
    let mut talker = Talker::new(&scene);
    assert_eq!(talker.ask("count"), "1");
    let notes = scene.directory().join("notes");
    let noted = || fs::read_to_string(&notes).expect("it was made at the start");
    let link = &logger.host().links()[0];
    link.cut().expect("a cut");
    talker.say("note");
    thread::sleep(Duration::from_millis(700));
    assert_eq!(noted(), "");
    link.heal().expect("a link");
    await_condition("it is written", || noted() == "noted\n");
    // A replay does not write the line again.
    server.kill_main(Signal::KILL);
    server.wait_serving(1);
    assert_eq!(talker.ask("count"), "3");
    assert_eq!(noted(), "noted\n");
}
