//! The record has its bound. Behind that the server goes on, unprotected, which is told.

use e2e::{
    Protected, Scene,
    loggers::{protect, status, with_logger_that},
    servers::{PORT, redis},
};
use lab::Signal;

use super::{REQUIRE, redis::Client};

/// A record that is soon full.
const SMALL: [&str; 4] = ["--limit-total", "8MiB", "--limit-per-connection", "4MiB"];

/// Sets keys of redis until something has happened. How many there are.
fn fill_until(client: &mut Client, is_so: impl Fn() -> bool) -> usize {
    const MOST: usize = 1_000_000;
    for first in (0..MOST).step_by(1000) {
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

/// Fills the record; what is done behind its end is done, and told to be lost; what begins then is recorded again.
fn ends_loudly(scene: &Scene, server: &Protected, why: &str) {
    let mut client = Client::new(scene);
    let keys = fill_until(&mut client, || !server.events_of("record_ended").is_empty());
    let told = server.wait_for("record_ended", 1);
    assert!(told["reason"].to_string().contains(why), "{told}");
    assert!(told["record_bytes"].as_u64() > Some(1 << 20), "{told}");
    assert_eq!(client.ask(&["DBSIZE"]), format!(":{keys}"));
    let status = status(server);
    assert_eq!(status["unprotected_by"]["record_ended"], 1, "{status}");
    let shown = server.outlive("status", &["--connections"]).stdout;
    assert!(shown.contains("0 protected, 1 unprotected"), "{shown}");

    server.kill_main(Signal::KILL);
    let serving = server.wait_serving(1);
    assert_eq!(serving["lost"], 1, "{serving}");
    assert_eq!(client.answer_or_error(), None);
    let mut client = Client::new(scene);
    assert_eq!(client.ask(&["DBSIZE"]), ":0");
    assert_eq!(client.ask(&["SET", "new", "kept"]), "+OK");

    server.kill_main(Signal::KILL);
    let serving = server.wait_serving(2);
    assert_eq!(serving["kept"], 1, "{serving}");
    assert_eq!(client.ask(&["GET", "new"]), "kept");
    assert_eq!(server.events_of("record_ended").len(), 1);
    assert_eq!(server.events_of("lost").len(), 1, "{}", server.said());
}

#[test]
fn a_record_that_is_full_ends_loudly() {
    let scene = Scene::new("nfull");
    let flags = [&REQUIRE[..], &SMALL].concat();
    let server = scene.protect_with(&redis(&scene), &flags);
    ends_loudly(&scene, &server, "--limit-total");
}

/// It is known to whoever comes next, too.
#[test]
fn that_a_record_has_ended_is_known_to_the_next_serve() {
    let scene = Scene::new("nfullnext");
    let (definition, flags) = (redis(&scene), [&REQUIRE[..], &SMALL].concat());
    let mut server = scene.protect_with(&definition, &flags);
    let mut client = Client::to(&scene, scene.ipv4(PORT));
    let keys = fill_until(&mut client, || !server.events_of("record_ended").is_empty());
    server.kill_serve_itself();
    server.succeed(&scene, &definition, &flags);
    server.wait_for("record_ended", 1);
    assert_eq!(client.ask(&["DBSIZE"]), format!(":{keys}"));
    server.kill_main(Signal::KILL);
    let serving = server.wait_serving(1);
    assert_eq!(serving["lost"], 1, "{serving}");
    assert_eq!(client.answer_or_error(), None);
}

#[test]
fn a_record_for_which_the_logger_has_no_room_ends_loudly() {
    let (scene, logger) = with_logger_that("nfulllog", &["--limit-total", "8MiB"]);
    let server = protect(&scene, &redis(&scene), &logger, &REQUIRE);
    ends_loudly(&scene, &server, "the logger has no room");
}
