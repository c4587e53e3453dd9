//! A standby with a replica that replays the log while the other host serves.

use std::{
    fs,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use e2e::{
    Protected, Scene, Seed,
    clients::finish,
    exchange::assert_untouched,
    loggers::{protect, status, with_logger_that},
    pair::{ADDRESS_DEVICE_FLAGS, FailOver, Pair, addresses, lease, stop_all},
    servers::{SERVER_PORT, Server, interpreter_at, redis_at},
};
use lab::Signal;
use rustix::process::Pid;
use serde_json::json;

use super::{
    STATEFUL_REQUIRE, await_condition,
    checkpoint_upload::{METRICS_ADDRESS, held},
    command_server,
    power_off::{client, count, counting_while},
    redis::Client,
};

/// A service with a standby that replicates. A server without output has sent the logger no determinants, and the
/// standby has no record to replicate.
pub(super) fn with_follower(label: &str, server: impl FnOnce(&Scene) -> Server) -> Pair {
    let flags = [&STATEFUL_REQUIRE[..], &["--hot"]].concat();
    Pair::with(label, &[], &flags, server)
}

/// A pair whose standby has replicated the request of a first client.
fn hot_pair(label: &str, server: impl FnOnce(&Scene) -> Server) -> Pair {
    let pair = with_follower(label, server);
    let mut first = client(&pair.scene);
    assert_eq!(first.ask(&["SET", "first", "client"]), "+OK");
    finish(first.stream());
    await_replica(&pair, 1);
    pair
}

fn redis(scene: &Scene) -> Server {
    redis_at(scene, addresses()[0])
}

fn replica_pid(host: &Protected) -> Option<i32> {
    let pid = status(host)["replica"]["pid"].as_i64()?;
    i32::try_from(pid).ok()
}

/// The replica goes on with a client that has counted to 1.
fn takes_over_hot(mut pair: Pair, mut open: Client) {
    pair.fail_over(FailOver::PowerOff);
    assert_went_on(&pair.first, 1);
    assert_eq!(open.ask(&["INCR", "counter"]), ":2");
    drop(open);
    pair.stop();
}

fn kill_replica(pair: &Pair) {
    let pid = replica_pid(&pair.second).expect("it follows");
    let pid = Pid::from_raw(pid).expect("a process");
    lab::signal(pid, Signal::KILL).expect("killed");
}

/// Whether the process runs. A process that has ended stays, without a command line, until the parent reaps the
/// zombie.
fn runs(pid: Pid) -> bool {
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
}

/// Waits until the standby has replicated the whole record, for the `nth` time.
pub(super) fn await_replica(pair: &Pair, nth: usize) {
    pair.second.wait_for("caught_up", nth);
}

#[track_caller]
fn assert_went_on(host: &Protected, times: usize) {
    let went_on = host.events_of("replica_promoted").len();
    assert_eq!(went_on, times, "{}", host.log());
}

/// Promotes the replica of the standby; the other host replicates afterwards.
pub(super) fn fail_over_hot(pair: &mut Pair, way: FailOver) {
    let went_on = pair.second.events_of("replica_promoted").len();
    let caught_up = pair.first.events_of("caught_up").len();
    let pid = replica_pid(&pair.second).expect("it follows");
    let off = way == FailOver::PowerOff;
    pair.fail_over(way);
    assert_went_on(&pair.first, went_on + 1);
    let serves = status(&pair.first)["server_pid"].as_i64();
    assert_eq!(serves, Some(pid.into()), "it is the same process");
    // A host that was powered off has lost its earlier events.
    await_replica(pair, if off { 1 } else { caught_up + 1 });
}

/// Counting clients, while roles are changed again and again: no server is started for that.
#[test]
fn redis_replica_is_promoted() {
    let mut pair = hot_pair("north-hot", redis);
    let recording = pair.scene.record(SERVER_PORT);
    let seed = &mut Seed::choose("north-hot");
    let open = counting_while(&mut pair, 8, |pair| {
        for way in [
            FailOver::PowerOff,
            FailOver::Switchover,
            FailOver::PowerOff,
            FailOver::Stop,
            FailOver::PowerOff,
        ] {
            thread::sleep(Duration::from_millis(seed.between(300, 1500) as u64));
            fail_over_hot(pair, way);
        }
        // Who went on is recorded, and comes back from that by itself.
        let before = pair.first.events_of("serving").len();
        pair.first.kill_main(Signal::KILL);
        pair.first.wait_serving(before + 1);
    });
    drop(open);
    assert_untouched(recording, 10);
    pair.stop();
}

/// A host without power sends no FIN: the replica's connection to the logger stays silent.
#[test]
fn replica_continues_after_logger_power_loss() {
    let mut pair = hot_pair("north-hot-mute", redis);
    let host = pair.logger.host().clone();
    host.power_off().expect("power off");
    host.power_on().expect("power on");
    pair.logger.replace_dead(&pair.scene);
    await_replica(&pair, 2);
    let mut open = client(&pair.scene);
    let recorded = recorded(&pair);
    // The server sends earlier determinants to the logger with its next output.
    assert_eq!(open.ask(&["INCR", "counter"]), ":1");
    await_followed(&pair, recorded);
    takes_over_hot(pair, open);
}

/// A client retransmits bytes that the dead host had not received, at growing intervals: the server does not wait for
/// the retransmission.
#[test]
fn long_silent_replica_is_promoted() {
    let mut pair = hot_pair("north-hot-unheard", redis);
    let mut open = client(&pair.scene);
    assert_eq!(open.ask(&["INCR", "counter"]), ":1");
    pair.second.kill_serve(Signal::STOP);
    pair.first.power_off();
    open.send(&["INCR", "counter"]);
    // After that, Linux retransmits in 3 s only.
    await_condition("it was sent again four times", || {
        backoff(&pair, &open) >= 4
    });
    pair.second.kill_serve(Signal::CONT);
    pair.second.wait_serving(1);
    assert_went_on(&pair.second, 1);
    let mut other = client(&pair.scene);
    // Recovery is over before this, except on a slow machine.
    assert!(["1", "2"].contains(&other.ask(&["GET", "counter"]).as_str()));
    assert_eq!(open.answer(), ":2");
    pair.second.assert_none_of("connection_reset");
    drop((open, other));
    pair.change_places();
    pair.stop();
}

/// How often in a row the client's kernel has sent the same again.
fn backoff(pair: &Pair, client: &Client) -> u32 {
    let port = client.stream().local_addr().expect("an address").port();
    let port = format!("sport = :{port}");
    let said = pair.scene.on_client("ss", &["-tniH", &port]);
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let mut words = said.split_whitespace();
    let backoff = words.find_map(|word| word.strip_prefix("backoff:"));
    backoff.map_or(0, |times| times.parse().expect("a number"))
}

/// Bytes recorded by now. A silent server keeps the last determinants to itself.
fn recorded(pair: &Pair) -> u64 {
    let recorded = status(&pair.first)["determinant_log_bytes"].as_u64();
    recorded.expect("a record")
}

/// Waits until the standby's server has replayed this many bytes, which the logger has received since.
fn await_followed(pair: &Pair, recorded: u64) {
    await_condition("it has followed", || {
        let replica = &status(&pair.second)["replica"];
        let bytes = |name: &str| replica[name].as_u64();
        let followed = bytes("record_bytes").zip(bytes("lag_bytes"));
        followed.is_some_and(|(here, behind)| here.saturating_sub(behind) >= recorded)
    });
}

/// The death of a replica does not concern clients, and another replica starts.
#[test]
fn replica_death_then_server_death_is_masked() {
    let mut pair = hot_pair("north-hot-dies", redis);
    let ends = &AtomicBool::new(false);
    let counting = client(&pair.scene);
    thread::scope(|scope| {
        let counting = scope.spawn(move || count(counting, 0, ends));
        kill_replica(&pair);
        pair.second.wait_for("replica_dropped", 1);
        await_replica(&pair, 2);
        for death in 1..=2 {
            pair.first.kill_main(Signal::KILL);
            pair.first.wait_serving(death);
            await_followed(&pair, recorded(&pair)); // the clients go on
        }
        // The replica has replayed all of that, without a restart.
        assert_eq!(pair.second.events_of("replica_started").len(), 2);
        pair.first.power_off();
        pair.second.wait_for("replica_promoted", 1);
        pair.second.wait_serving(1);
        ends.store(true, Ordering::Relaxed);
        let counted = counting.join().expect("a client").to_string();
        let mut after = client(&pair.scene);
        assert_eq!(after.ask(&["GET", "counter-0"]), counted);
    });
    pair.second.assert_none_of("connection_reset");
    pair.change_places();
    pair.stop();
}

/// A replica with other files contradicts the record: an event reports the drop, and clients see nothing.
#[test]
fn diverging_replica_is_dropped() {
    let mut pair = hot_pair("north-hot-differs", |scene| {
        let mut server = redis(scene);
        // The server reads this file at the start, and its later output depends on the content.
        let config = scene.directory().join("differs.conf");
        fs::write(&config, "proc-title-template \"redis\"\n").expect("written");
        server
            .command
            .insert(1, config.to_string_lossy().into_owned());
        server
    });
    let config = pair.scene.directory().join("differs.conf");
    let mut open = client(&pair.scene);
    assert_eq!(open.ask(&["SET", "key", "value"]), "+OK");
    // From now on a new replica starts differently: redis opens an additional file.
    fs::write(&config, "port 8080\nrequirepass other\n").expect("written");
    kill_replica(&pair);
    for _ in 0..200 {
        assert_eq!(open.ask(&["INCR", "counter"]).as_bytes()[0], b':');
    }
    let reason = pair.second.wait_for("replica_dropped", 2)["reason"].to_string();
    println!("{reason}");
    // With the old file again, the host takes over cold, whatever the state of the last replica.
    fs::write(&config, "proc-title-template \"redis\"\n").expect("written");
    assert_eq!(open.ask(&["GET", "counter"]), "200");
    pair.fail_over(FailOver::PowerOff);
    assert_eq!(open.ask(&["GET", "counter"]), "200");
    assert_eq!(open.ask(&["GET", "key"]), "value");
    pair.first.assert_none_of("connection_reset");
    drop(open);
    pair.stop();
}

/// The next start of a killed standby removes the leftovers and replicates again.
#[test]
fn killed_standby_replicates_again() {
    let mut pair = hot_pair("north-hot-killed", redis);
    let mut open = client(&pair.scene);
    assert_eq!(open.ask(&["INCR", "counter"]), ":1");
    let left = replica_pid(&pair.second).expect("it follows");
    let left = Pid::from_raw(left).expect("a process");
    pair.second.kill_serve(Signal::KILL);
    assert!(pair.second.ended(e2e::EVENT_TIMEOUT).is_some());
    assert!(runs(left), "it is there still");
    pair.begin_standby();
    pair.await_standby();
    await_replica(&pair, 1);
    assert!(!runs(left), "it was ended");
    // The kernel's data about a process differ in each incarnation, and need no warning.
    let said = pair.second.log();
    assert!(!said.contains("not as it was"), "{said}");
    takes_over_hot(pair, open);
}

/// The host stands by between the attempts.
#[test]
fn unstartable_replica_is_retried() {
    let pair = hot_pair("north-hot-gone", |scene| {
        let mut server = redis(scene);
        let program = scene.directory().join("redis");
        fs::copy("/usr/bin/redis-server", &program).expect("a copy");
        server.command[0] = program.to_string_lossy().into_owned();
        server
    });
    let directory = pair.scene.directory().to_owned();
    let rename = |from: &str, to: &str| {
        fs::rename(directory.join(from), directory.join(to)).expect("renamed");
    };
    let mut open = client(&pair.scene);
    assert_eq!(open.ask(&["INCR", "counter"]), ":1");
    rename("redis", "hidden");
    kill_replica(&pair);
    let reason = pair.second.wait_for("replica_dropped", 2)["reason"].to_string();
    assert!(reason.contains("could not be started"), "{reason}");
    rename("hidden", "redis");
    await_replica(&pair, 2);
    takes_over_hot(pair, open);
}

/// A logger without records gets all records again, although the server is silent, and the standby replicates again.
#[test]
fn replica_reattaches_to_restarted_logger() {
    let mut pair = hot_pair("north-hot-logger", redis);
    let mut open = client(&pair.scene);
    let large = "x".repeat(300_000);
    for number in 1..=20 {
        assert_eq!(
            open.ask(&["APPEND", "key", &large]),
            format!(":{}", number * large.len())
        );
    }
    finish(open.stream());
    pair.restart_logger();
    await_replica(&pair, 2);
    await_condition("it has followed", || {
        let replica = &status(&pair.second)["replica"];
        replica["record_bytes"]
            .as_u64()
            .is_some_and(|bytes| bytes > 20 * 300_000)
            && replica["lag_bytes"] == 0
    });
    pair.fail_over(FailOver::PowerOff);
    assert_went_on(&pair.first, 1);
    let mut after = client(&pair.scene);
    assert_eq!(after.ask(&["STRLEN", "key"]), ":6000000");
    drop(after);
    pair.stop();
}

/// The same without a replica.
#[test]
fn restarted_logger_serves_cold_standby() {
    let [address, _] = addresses();
    let metrics = ["--metrics", METRICS_ADDRESS];
    let mut pair = Pair::with("north-logger-cold", &metrics, &STATEFUL_REQUIRE, |scene| {
        redis_at(scene, address)
    });
    let mut open = client(&pair.scene);
    assert_eq!(open.ask(&["SET", "key", "value"]), "+OK");
    finish(open.stream());
    let recorded = held(&pair.logger, "notes");
    pair.restart_logger();
    await_condition("the logger has all of it again", || {
        held(&pair.logger, "notes") >= recorded
    });
    pair.fail_over(FailOver::PowerOff);
    let mut after = client(&pair.scene);
    assert_eq!(after.ask(&["GET", "key"]), "value");
    drop(after);
    pair.stop();
}

/// Runs the script given as the first argument, at another port if the environment has `ELSEWHERE`.
const OTHER_PORT_SCRIPT: &str = r#"
import os, runpy, sys
sys.argv = sys.argv[1:]
sys.argv[2] = os.environ.get("ELSEWHERE", sys.argv[2])
runpy.run_path(sys.argv[0], run_name="__main__")
"#;

/// A server that is configured otherwise on the host that stands by. Before anybody takes over, this is told there.
#[test]
fn replica_listening_elsewhere_is_reported() {
    let lease = format!("{}ms", lease().as_millis());
    let (scene, logger) = with_logger_that("north-hot-elsewhere", &["--lease", &lease]);
    let address = addresses()[0];
    let mut server = interpreter_at(&scene, address);
    let script = scene.write("elsewhere.py", OTHER_PORT_SCRIPT);
    let script = script.to_string_lossy().into_owned();
    server.command.insert(2, script);
    let other = scene.lab.add_host_at("other", 30).expect("a host");
    let hot = [&STATEFUL_REQUIRE[..], &["--hot"], &ADDRESS_DEVICE_FLAGS].concat();
    let first = protect(&scene, &server, &logger, &hot);
    server.environment = vec![("ELSEWHERE", "8999")];
    let flags = logger.flags();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let second = first.standby(&scene, &other, &server, &[&flags[..], &hot].concat());
    second.wait_for("standby_started", 1);
    let mut open = command_server::Client::at(scene.connect_to(address));
    assert_eq!(open.ask("6 * 7"), "42");
    second.wait_for("caught_up", 1);
    let told = second.wait_for("not_listening", 1);
    let message = format!(
        "the replica on this host does not listen on {address}, but on {}:8999. \
         Change --address or the server's configuration on this host.",
        address.ip()
    );
    assert_eq!(told["message"], message, "{told}");
    assert_eq!(told["standby"], true, "{told}");
    let missing = &status(&second)["replica"]["not_listening"];
    assert_eq!(*missing, json!([address.to_string()]));
    // The host that serves prints no warning.
    first.assert_none_of("not_listening");
    assert_eq!(open.ask("7 * 7"), "49");
    drop(open);
    stop_all([second, first]);
    drop(logger);
}
