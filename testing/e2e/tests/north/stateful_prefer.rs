//! `--stateful=prefer` with a standby: after a takeover the output of a server without a record is verified, as with
//! `--stateful=off`.

use std::{
    io::{ErrorKind, Read as _},
    net::TcpStream,
};

use e2e::{
    EVENT_TIMEOUT, Protected, Scene,
    loggers::{protect, with_logger},
    pair::{ADDRESS_DEVICE_FLAGS, FailOver, Pair, addresses, at_addresses, stop_all},
    servers::{Server, interpreter_at, memcached, redis_at},
};
use lab::Signal;

use super::{
    STATEFUL_REQUIRE,
    command_server::Client,
    power_off::client,
    rare_calls::run,
    refusals::{
        DESCRIPTOR_SCAN_SCRIPT, STATEFUL_PREFER, assert_no_client_notices, is_answered, unknown,
    },
};

/// A server with an unknown name, and with threads that serve: the first client reveals the threads.
fn with_threads(scene: &Scene) -> Server {
    unknown(scene, at_addresses(scene, memcached(scene), None))
}

fn connect(scene: &Scene) -> TcpStream {
    scene.connect_to(addresses()[0])
}

fn await_not_rebuilt(server: &Protected, nth: usize) {
    let trouble = server.wait_for("warning", nth);
    assert_eq!(trouble["code"], "not_rebuilt", "{trouble}");
    let message = trouble["message"].to_string();
    assert!(message.contains("--stateful=prefer"), "{message}");
}

/// A pair of hosts after the first host has found that the server cannot be rebuilt, and a client that has got an
/// answer since.
fn without_record(label: &str, hosts: &[&str]) -> (Pair, TcpStream) {
    let pair = Pair::with(label, &[], hosts, with_threads);
    let mut client = connect(&pair.scene);
    is_answered(&mut client);
    await_not_rebuilt(&pair.first, 1);
    pair.first.wait_serving(1);
    is_answered(&mut client);
    assert_no_client_notices(&pair.first);
    (pair, client)
}

/// No client sees that the server cannot be rebuilt, that its host ends, or that the service moves. Each serving host
/// works without a record.
#[test]
fn clients_of_unrecorded_server_survive_power_off() {
    let (mut pair, mut client) = without_record("preferred-hosts", &STATEFUL_PREFER);
    for way in [FailOver::PowerOff, FailOver::Switchover, FailOver::Stop] {
        pair.fail_over(way);
        is_answered(&mut client);
        is_answered(&mut connect(&pair.scene));
        assert_no_client_notices(&pair.first);
    }
    let before = pair.first.events_of("serving").len();
    pair.first.kill_main(Signal::KILL);
    pair.first.wait_serving(before + 1);
    is_answered(&mut client);
    assert_no_client_notices(&pair.first);
    pair.stop();
}

/// The same where the standby has a server already that would follow.
#[test]
fn hot_standby_does_not_replicate_unrecorded_server() {
    let hosts = [&STATEFUL_PREFER[..], &["--hot"]].concat();
    let (mut pair, mut client) = without_record("preferred-hot", &hosts);
    pair.fail_over(FailOver::PowerOff);
    is_answered(&mut client);
    assert_no_client_notices(&pair.first);
    pair.stop();
}

/// The output of clients with earlier responses is verified.
#[test]
fn late_refused_server_survives_power_off() {
    let mut pair = Pair::with("preferred-late", &[], &STATEFUL_PREFER, |scene| {
        interpreter_at(scene, addresses()[0])
    });
    let mut clients = [(); 2].map(|()| Client::at(connect(&pair.scene)));
    let [first, second] = &mut clients;
    assert_eq!(first.ask("6 * 7"), "42");
    run(second, DESCRIPTOR_SCAN_SCRIPT);
    pair.first.wait_serving(1);
    await_not_rebuilt(&pair.first, 1);
    assert_eq!([first.ask("7 * 7"), second.ask("8 * 8")], ["49", "64"]);
    pair.fail_over(FailOver::PowerOff);
    assert_eq!([first.ask("9 * 9"), second.ask("0 * 7")], ["81", "0"]);
    assert_no_client_notices(&pair.first);
    drop(clients);
    pair.stop();
}

/// A restarted logger learns that no record exists: a host that takes over does not assume a lost record.
#[test]
fn restarted_logger_learns_of_missing_record() {
    let (mut pair, first) = without_record("preferred-logger", &STATEFUL_PREFER);
    drop(first);
    pair.restart_logger();
    let mut client = connect(&pair.scene);
    is_answered(&mut client);
    pair.fail_over(FailOver::PowerOff);
    is_answered(&mut client);
    assert_no_client_notices(&pair.first);
    pair.stop();
}

/// A host with `--stateful=require` has no record: a warning reports that, and no server without state serves the
/// clients.
#[test]
fn missing_required_record_resets_clients() {
    let (mut pair, mut client) = without_record("preferred-required", &STATEFUL_PREFER);
    pair.second.kill_serve(Signal::TERM);
    assert!(pair.second.ended(EVENT_TIMEOUT).is_some());
    pair.set_extra_flags(&STATEFUL_REQUIRE);
    pair.begin_standby();
    pair.await_standby();
    pair.first.power_off();
    let trouble = pair.second.wait_for("warning", 1);
    assert_eq!(trouble["code"], "state_lost", "{trouble}");
    pair.second.wait_for("connection_reset", 1);
    let heard = client.read(&mut [0]).map_err(|error| error.kind());
    assert_eq!(heard, Err(ErrorKind::ConnectionReset));
    pair.change_places();
    pair.stop();
}

/// A server that can be rebuilt has a record on each host.
#[test]
fn preferred_record_survives_power_off() {
    let mut pair = Pair::with("preferred-kept", &[], &STATEFUL_PREFER, |scene| {
        redis_at(scene, addresses()[0])
    });
    let mut open = client(&pair.scene);
    for number in 1..=30 {
        assert_eq!(open.ask(&["INCR", "counter"]), format!(":{number}"));
    }
    for (way, next) in [(FailOver::PowerOff, 31), (FailOver::Switchover, 32)] {
        pair.fail_over(way);
        assert_eq!(open.ask(&["INCR", "counter"]), format!(":{next}"));
        assert_no_client_notices(&pair.first);
        pair.first.assert_none_of("warning");
    }
    drop(open);
    pair.stop();
}

/// The same for a single host after a reboot.
#[test]
fn clients_of_unrecorded_server_survive_reboot() {
    let (scene, logger) = with_logger("preferred-again");
    let definition = with_threads(&scene);
    let flags = [&STATEFUL_PREFER[..], &ADDRESS_DEVICE_FLAGS].concat();
    let mut server = protect(&scene, &definition, &logger, &flags);
    let mut client = connect(&scene);
    is_answered(&mut client);
    await_not_rebuilt(&server, 1);
    server.wait_serving(1);
    server.lose_power();
    let more = logger.flags();
    let more = more.iter().map(String::as_str);
    let flags: Vec<&str> = more.chain(flags).collect();
    server.begin_anew(&definition, &flags);
    server.wait_serving(1);
    is_answered(&mut client);
    assert_no_client_notices(&server);
    stop_all([server]);
}
