//! Clients without timestamps: the record alone tells another member the client's position.

use std::io::ErrorKind;

use e2e::clients::{Http, read_some, write};
use e2e::pool::{Pool, pool_addresses};
use e2e::{Recording, arrange, pattern};
use lab::Signal;

use super::Download;
use super::store::{StoredPool, second_response_survives};

/// A pool with a store, and a client host without these features of TCP.
fn pool_without(label: &str, settings: &[&str]) -> StoredPool {
    let stored = StoredPool::of(label);
    switch_off(&stored.pool, settings);
    stored
}

fn switch_off(pool: &Pool, settings: &[&str]) {
    for setting in settings {
        let word = format!("net.ipv4.{setting}=0");
        arrange::run_words(&pool.scene.client, &["sysctl", "-qw", &word]);
    }
}

#[test]
fn no_timestamps_download_survives_power_off_of_its_member() {
    let settings: [&[&str]; 3] = [
        &["tcp_timestamps"],
        &["tcp_timestamps", "tcp_sack"],
        &["tcp_timestamps", "tcp_sack", "tcp_window_scaling"],
    ];
    for (settings, address) in settings
        .into_iter()
        .zip(pool_addresses().into_iter().cycle())
    {
        let stored = pool_without("objects-nots", settings);
        let pool = &stored.pool;
        let recording = Recording::start(&pool.scene.client, address.port());
        let download = Download::begin(pool, address);
        assert_eq!(stored.record_count(), 1);
        let dies = pool.server_of(download.client());
        pool.members[dies].program.host.power_off().expect("off");
        download.finish();
        let revived = pool.revived();
        assert_eq!(revived.len(), 1, "{revived:?}");
        assert_eq!(revived[0]["object"], "/big.bin");
        pool.assert_none_refused();
        let endings = recording.finish();
        assert!(endings.iter().all(|ending| !ending.rst), "{endings:?}");
        stored.stop();
    }
}

#[test]
fn no_timestamps_download_survives_host_after_host() {
    let mut stored = pool_without("objects-nots-hosts", &["tcp_timestamps"]);
    let mut download = Download::begin(&stored.pool, pool_addresses()[0]);
    for round in 1..=2 {
        let pool = &mut stored.pool;
        let dies = pool.server_of(download.client());
        pool.members[dies].program.host.power_off().expect("off");
        pool.await_members(1);
        arrange::wait_until("the download is revived", || pool.revived().len() == round);
        download.read_up_to(download.bytes.len() + (1 << 20));
        pool.members[dies].program.host.power_on().expect("on");
        pool.restart_member(dies, 2);
    }
    download.finish();
    stored.pool.assert_none_refused();
    stored.stop();
}

/// The new member has not heard of the dead member: the store has the name.
#[test]
fn no_timestamps_download_survives_at_a_member_that_boots_after_the_death() {
    let mut stored = StoredPool::of_members("objects-nots-boot", 1);
    let pool = &mut stored.pool;
    switch_off(pool, &["tcp_timestamps"]);
    let download = Download::begin(pool, pool_addresses()[0]);
    pool.members[0].program.host.power_off().expect("off");
    pool.add_member(&[]);
    download.finish();
    pool.members[1].program.wait_for("revived", 1);
    pool.assert_none_refused();
    stored.stop();
}

#[test]
fn no_timestamps_download_survives_death_of_its_server() {
    let stored = pool_without("objects-nots-kill", &["tcp_timestamps"]);
    let pool = &stored.pool;
    let download = Download::begin(pool, pool_addresses()[1]);
    let member = &pool.members[pool.server_of(download.client())];
    e2e::servers::signal_all(&member.server_pids(), Signal::KILL);
    download.finish();
    member.program.wait_for("revived", 1);
    pool.assert_none_refused();
    stored.stop();
}

#[test]
fn no_timestamps_later_response_survives_a_power_off() {
    second_response_survives(pool_without("objects-nots-later", &["tcp_timestamps"]));
}

#[test]
fn no_timestamps_idle_connection_is_served_by_another_member() {
    let stored = pool_without("objects-nots-idle", &["tcp_timestamps"]);
    let pool = &stored.pool;
    let stream = pool.scene.connect_to(pool_addresses()[0]);
    let client = stream.local_addr().expect("an address");
    let mut http = Http::new(stream);
    let first = http.get("/small/3").body;
    let dies = pool.server_of(client);
    pool.members[dies].program.host.power_off().expect("off");
    pool.await_members(1);
    for _ in 0..2 {
        assert_eq!(http.get("/small/3").body, first);
        assert_ne!(http.get("/small/4").body, first);
    }
    pool.assert_none_refused();
    stored.stop();
}

/// A store that does not answer delays a response, and stops none: the response goes on without protection.
#[test]
fn no_timestamps_response_continues_while_the_store_is_silent() {
    let stored = pool_without("objects-nots-silent", &["tcp_timestamps"]);
    let pool = &stored.pool;
    let mut http = Http::new(pool.scene.connect_to(pool_addresses()[0]));
    let client = http.stream().local_addr().expect("an address");
    stored.store.kill(Signal::STOP).expect("a signal");
    assert_eq!(http.get("/small/3").body, pattern(500 + 3 * 700));
    let mut buffer = vec![0; 1 << 16];
    write(
        http.stream(),
        b"GET /big.bin HTTP/1.1\r\nHost: pool\r\n\r\n",
    );
    let begun = read_some(http.stream(), &mut buffer).expect("a response");
    assert!(begun > 0);
    let dies = pool.server_of(client);
    pool.members[dies].program.host.power_off().expect("off");
    stored.store.kill(Signal::CONT).expect("a signal");
    let error = loop {
        match read_some(http.stream(), &mut buffer) {
            Ok(0) => panic!("a proper end"),
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    stored.stop();
}
