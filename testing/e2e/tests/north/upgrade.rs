//! `serve` is upgraded to a version with other determinants (feature `next-version`): a record replays only in the
//! version that made the record.

use std::path::Path;

use e2e::{
    Protected, Scene,
    binaries::next_outlive,
    loggers::{Logger, key_file, protect, status},
    pair::{FailOver, Pair, addresses},
    servers::{Server, redis, redis_at},
};
use lab::Signal;

use super::record_limits::assert_begins_anew;
use super::{STATEFUL_REQUIRE, await_condition, power_off, redis::Client};

/// The next version adopts the server.
pub(super) fn upgrade(scene: &Scene, server: &mut Protected, definition: &Server, flags: &[&str]) {
    server.kill_serve_itself();
    server.set_binary(next_outlive());
    server.succeed(scene, definition, flags);
    let told = server.wait_for("recording_stopped", 1);
    let reason = told["reason"].to_string();
    assert!(reason.contains("another version of outlive"), "{told}");
    let status = status(server);
    assert_eq!(status["unprotected_by"]["recording_stopped"], 1, "{status}");
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
    assert_begins_anew(&scene, &server, client);
    server.stop();
}

/// A server with state whose record is at a logger on another host.
struct Linked<'a> {
    scene: &'a Scene,
    logger: Logger,
    definition: Server,
    server: Protected,
}

impl<'a> Linked<'a> {
    fn new(scene: &'a Scene) -> Self {
        let host = scene.lab.add_host_at("logger", 20).expect("a host");
        let logger = Logger::start(scene, &host, &key_file(scene, "keys"), &[]);
        let definition = redis(scene);
        let server = protect(scene, &definition, &logger, &STATEFUL_REQUIRE);
        Self {
            scene,
            logger,
            definition,
            server,
        }
    }

    fn flags(&self) -> Vec<String> {
        let stateful = STATEFUL_REQUIRE.map(String::from);
        self.logger.flags().into_iter().chain(stateful).collect()
    }

    fn upgrade_serve(&mut self) {
        let flags = self.flags();
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        upgrade(self.scene, &mut self.server, &self.definition, &flags);
    }

    /// The logger has new keys then, which the processes of an adopted server of another version do not learn.
    fn replace_logger(&mut self, outlive: &Path) {
        let attached = |logger: &Logger| logger.log().matches("attached").count();
        let before = attached(&self.logger);
        self.logger.kill();
        self.logger.replace_dead_by(outlive, self.scene);
        await_condition("the service is back", || attached(&self.logger) > before);
    }
}

#[test]
fn upgraded_serve_then_upgraded_logger_does_not_stop_answers() {
    let scene = Scene::new("north-upgrade-link");
    let mut linked = Linked::new(&scene);
    let mut client = Client::new(&scene);
    assert_eq!(client.ask(&["SET", "old", "value"]), "+OK");
    linked.upgrade_serve();
    assert_eq!(client.ask(&["GET", "old"]), "value");
    for _ in 0..2 {
        linked.replace_logger(&next_outlive());
        assert_eq!(client.ask(&["GET", "old"]), "value");
    }
    assert_begins_anew(&scene, &linked.server, client);
    linked.server.stop();
}

#[test]
fn upgraded_logger_then_upgraded_serve_does_not_stop_answers() {
    let scene = Scene::new("north-upgrade-logger");
    let mut linked = Linked::new(&scene);
    let mut client = Client::new(&scene);
    assert_eq!(client.ask(&["SET", "old", "value"]), "+OK");
    linked.replace_logger(&next_outlive());
    assert_eq!(client.ask(&["GET", "old"]), "value");
    linked.upgrade_serve();
    assert_eq!(client.ask(&["GET", "old"]), "value");
    linked.replace_logger(&next_outlive());
    assert_eq!(client.ask(&["GET", "old"]), "value");
    assert_begins_anew(&scene, &linked.server, client);
    linked.server.stop();
}

/// The first `serve` of the next version dies before a logger has heard that the record is over. The second `serve`
/// still finds the record of the running server.
#[test]
fn record_of_other_version_ends_after_death_of_adopting_serve() {
    let scene = Scene::new("north-upgrade-twice");
    let mut linked = Linked::new(&scene);
    let mut client = Client::new(&scene);
    assert_eq!(client.ask(&["SET", "old", "value"]), "+OK");
    linked.logger.kill();
    linked.upgrade_serve();
    linked.upgrade_serve();
    linked.logger.replace_dead_by(&next_outlive(), &scene);
    assert_eq!(client.ask(&["GET", "old"]), "value");
    assert_begins_anew(&scene, &linked.server, client);
    linked.server.stop();
}

/// A standby of another version does not go on from the record of the dead host: connections end, and the service
/// begins anew.
#[test]
fn standby_of_next_version_warns_and_begins_anew() {
    let [address, _] = addresses();
    let mut pair = Pair::with("north-upgrade-pair", &[], &STATEFUL_REQUIRE, |scene| {
        redis_at(scene, address)
    });
    pair.second.kill_serve(Signal::TERM);
    assert!(pair.second.ended(e2e::EVENT_TIMEOUT).is_some());
    pair.second.set_binary(next_outlive());
    pair.begin_standby();
    pair.second.wait_for("standby_started", 1);
    let warning = pair.second.wait_for("warning", 1);
    assert_eq!(warning["code"], "standby_other_version", "{warning}");
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
