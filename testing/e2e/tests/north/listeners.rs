//! Clients that connect while a server replays the close of a listener.

use std::io::{ErrorKind, Read as _};

use e2e::{
    Protected, Scene,
    servers::{SERVER_PORT, redis},
};
use lab::Signal;

use super::{STATEFUL_REQUIRE, redis::Client};

/// A replay takes as long again.
const BUSY_COMMAND: [&str; 3] = ["EVAL", "for i = 1, 250000000 do end return 1", "0"];

/// redis is busy, then listens at these addresses instead. redis dies, and replays that: clients connect while redis
/// is busy again.
fn early(scene: &Scene, addresses: &str) -> (Protected, [Client; 2]) {
    let server = scene.protect_with(&redis(scene), &STATEFUL_REQUIRE);
    let mut client = Client::new(scene);
    assert_eq!(client.ask(&BUSY_COMMAND), ":1");
    assert_eq!(client.ask(&["CONFIG", "SET", "bind", addresses]), "+OK");
    server.kill_main(Signal::KILL);
    server.wait_for("listening", 1);
    // The kernel takes a connection also of a server that stands still, however long that takes.
    server.kill_main(Signal::STOP);
    let mut early = Client::new(scene);
    early.send(&["INCR", "counter"]);
    assert!(
        server.events_of("serving").is_empty(),
        "it was not early enough"
    );
    server.kill_main(Signal::CONT);
    (server, [client, early])
}

#[test]
fn client_before_listener_replacement_is_served() {
    let scene = &Scene::new("relisten");
    let own = scene.ipv4(SERVER_PORT).ip();
    let (server, [mut client, mut early]) = early(scene, &format!("{own} 127.0.0.1"));
    assert_eq!(early.answer(), ":1");
    assert_eq!(client.ask(&["INCR", "counter"]), ":2");
    server.wait_serving(1);
    // The next life's, too.
    server.kill_main(Signal::KILL);
    server.wait_serving(2);
    for (client, count) in [&mut client, &mut early].into_iter().zip([":3", ":4"]) {
        assert_eq!(client.ask(&["INCR", "counter"]), count);
    }
    assert_eq!(Client::new(scene).ask(&["INCR", "counter"]), ":5");
    server.assert_none_of("connection_reset");
}

/// No process will accept the connection.
#[test]
fn client_before_listener_close_is_reset() {
    let scene = &Scene::new("unlisten");
    let (server, [mut client, early]) = early(scene, "127.0.0.1");
    let outcome = early.stream().read(&mut [0]);
    let kind = outcome.expect_err("an answer").kind();
    assert_eq!(kind, ErrorKind::ConnectionReset);
    server.wait_serving(1);
    assert_eq!(client.ask(&["INCR", "counter"]), ":1");
    server.assert_none_of("connection_reset");
}
