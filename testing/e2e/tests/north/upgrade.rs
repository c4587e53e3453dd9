//! `serve` is upgraded to a version with other determinants (feature `next-version`): a record replays only in the
//! version that made the record.

use e2e::{
    Protected, Scene,
    binaries::next_outlive,
    loggers::{Logger, key_file, protect, status},
    pair::{FailOver, Pair, addresses},
    servers::{Server, redis, redis_at},
};
use lab::Signal;

use super::{STATEFUL_REQUIRE, await_condition, power_off, redis::Client};

/// The next version adopts the server.
fn upgrade(scene: &Scene, server: &mut Protected, definition: &Server, flags: &[&str]) {
    server.kill_serve_itself();
    server.set_binary(next_outlive());
    server.succeed(scene, definition, flags);
    let told = server.wait_for("recording_stopped", 1);
    let reason = told["reason"].to_string();
    assert!(reason.contains("another version of outlive"), "{told}");
    let status = status(server);
    assert_eq!(status["unprotected_by"]["recording_stopped"], 1, "{status}");
}

/// The server dies: connections end, and what begins then is recorded by the new version.
fn begins_anew(scene: &Scene, server: &Protected, mut client: Client) {
    server.kill_main(Signal::KILL);
    let serving = server.wait_serving(1);
    assert_eq!(serving["reset"], 1, "{serving}");
    assert_eq!(client.answer_or_error(), None);
    let mut client = Client::new(scene);
    assert_eq!(client.ask(&["DBSIZE"]), ":0");
    assert_eq!(client.ask(&["SET", "new", "kept"]), "+OK");
    server.kill_main(Signal::KILL);
    let serving = server.wait_serving(2);
    assert_eq!(
        (&serving["recovered"], &serving["reset"]),
        (&1.into(), &0.into()),
        "{serving}"
    );
    assert_eq!(client.ask(&["GET", "new"]), "kept");
}

#[test]
fn adopted_server_runs_on_without_record() {
    let scene = Scene::new("north-upgrade");
    let definition = redis(&scene);
    let mut server = scene.protect_with(&definition, &STATEFUL_REQUIRE);
    let mut client = Client::new(&scene);
    assert_eq!(client.ask(&["SET", "old", "value"]), "+OK");
    upgrade(&scene, &mut server, &definition, &STATEFUL_REQUIRE);
    assert_eq!(client.ask(&["GET", "old"]), "value");
    begins_anew(&scene, &server, client);
    server.stop();
}

/// The logger has new keys, which the processes of the adopted server do not learn.
#[test]
fn adopted_server_does_not_wait_for_logger() {
    let scene = Scene::new("north-upgrade-link");
    let host = scene.lab.add_host_at("logger", 20).expect("a host");
    let keys = key_file(&scene, "keys");
    let mut logger = Logger::start(&scene, &host, &keys, &[]);
    let definition = redis(&scene);
    let mut server = protect(&scene, &definition, &logger, &STATEFUL_REQUIRE);
    let mut client = Client::new(&scene);
    assert_eq!(client.ask(&["SET", "old", "value"]), "+OK");
    let flags = logger.flags();
    let flags = flags.iter().map(String::as_str).chain(STATEFUL_REQUIRE);
    let flags: Vec<&str> = flags.collect();
    upgrade(&scene, &mut server, &definition, &flags);
    logger.kill();
    logger.replace_dead_by(&next_outlive(), &scene);
    await_condition("the service is back", || logger.log().contains("attached"));
    assert_eq!(client.ask(&["GET", "old"]), "value");
    begins_anew(&scene, &server, client);
    server.stop();
}

/// A standby of another version does not go on from the record of the dead host: connections end, and the service
/// begins anew.
#[test]
fn standby_of_next_version_begins_anew() {
    let [address, _] = addresses();
    let mut pair = Pair::with("north-upgrade-pair", &[], &STATEFUL_REQUIRE, |scene| {
        redis_at(scene, address)
    });
    pair.second.kill_serve(Signal::TERM);
    assert!(pair.second.ended(e2e::EVENT_TIMEOUT).is_some());
    pair.second.set_binary(next_outlive());
    pair.begin_standby();
    pair.second.wait_for("standby_started", 1);
    pair.await_leases();
    let mut client = power_off::client(&pair.scene);
    assert_eq!(client.ask(&["SET", "old", "value"]), "+OK");
    pair.fail_over(FailOver::PowerOff);
    assert_eq!(client.answer_or_error(), None);
    let log = pair.first.log();
    assert!(
        log.contains("another version of outlive made the record"),
        "{log}"
    );
    let mut client = power_off::client(&pair.scene);
    assert_eq!(client.ask(&["DBSIZE"]), ":0");
    pair.stop();
}
