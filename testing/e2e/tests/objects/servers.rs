//! Servers that do not come back, or never come, and settings that members do not have.

use std::fs;
use std::net::TcpListener;

use e2e::arrange::wait_until;
use e2e::pool::{Pool, pool_addresses};
use e2e::servers::{SERVER_PORT, signal_all};
use lab::Signal;

use crate::Download;

/// A server dies, and its configuration has become unreadable: the host lives, and the other member has the clients.
#[test]
fn member_without_its_server_leaves_the_pool() {
    let pool = Pool::of("objects-absent", 2);
    let download = Download::begin(&pool, pool_addresses()[0]);
    let dies = pool.server_of(download.client());
    let member = &pool.members[dies];
    let configuration = { pool.scene.directory() }.join(format!("{}.conf", member.name));
    let away = configuration.with_extension("away");
    fs::rename(&configuration, &away).expect("a file");
    signal_all(&member.server_pids(), Signal::KILL);
    member.program.wait_for("withdrawn", 1);
    // A client whose window is shut is revived when the window opens.
    download.finish();
    pool.members[1 - dies].program.wait_for("revived", 1);
    for _ in 0..3 {
        Download::begin(&pool, pool_addresses()[0]).finish();
    }
    fs::rename(&away, &configuration).expect("a file");
    member.program.wait_for("joined", 2);
    pool.await_members(2);
    pool.assert_none_refused();
    pool.stop();
}

#[test]
fn foreign_listener_on_the_pools_port_is_an_error() {
    let pool = Pool::of("objects-taken", 1);
    let at = pool.next_host();
    let foreign = at.0.enter(|| TcpListener::bind(("0.0.0.0", SERVER_PORT)));
    let _foreign = foreign.expect("it is on").expect("the port is free");
    let late = pool.begin_member(&at, &["true"]);
    wait_until("the member tells of the other process", || {
        let said = late.program.log();
        said.contains("another process listens on 10.0.0.110:8080")
    });
    drop(late);
    pool.stop();
}

#[test]
fn server_that_does_not_listen_is_reported() {
    let pool = Pool::of("objects-deaf", 1);
    let deaf = pool.begin_member(&pool.next_host(), &["sleep", "1000"]);
    let told = deaf.program.wait_for("not_listening", 1);
    let missing = pool_addresses().map(|address| address.to_string());
    assert_eq!(told["addresses"], serde_json::json!(missing));
    deaf.program.stop();
    pool.stop();
}

#[test]
fn other_settings_of_a_balancer_are_reported() {
    let mut pool = Pool::of("objects-settings", 1);
    let download = Download::begin(&pool, pool_addresses()[0]);
    pool.balancer.restart_with(&["--version-check", "modified"]);
    pool.members[0].program.wait_for("other_settings", 1);
    download.finish();
    pool.assert_none_refused();
    pool.stop();
}

#[test]
fn balancer_is_reported_when_lost_and_when_found() {
    let mut pool = Pool::of("objects-found", 1);
    pool.balancer.kill();
    let member = &pool.members[0].program;
    let lost = member.wait_for("balancer_lost", 1);
    assert!(lost["reason"].is_string(), "{lost}");
    pool.balancer.restart();
    pool.members[0].program.wait_for("balancer_found", 1);
    pool.stop();
}
