//! Pools with a key-value store: records of long responses.

use std::io::ErrorKind;
use std::net::SocketAddr;

use e2e::clients::{Http, read_some};
use e2e::pool::{Pool, pool_addresses};
use e2e::servers::BIG_FILE_BYTES;
use e2e::{Recording, arrange, pattern};
use lab::{Host, Output, Process, Signal};

use super::Download;

const STORE_PORT: u16 = 6379;
const STORE_HOST_NUMBER: u8 = 9;

/// A pool of two members, and a store on a host of its own.
pub(super) struct StoredPool {
    // Dropped in this order.
    pub(super) store: Process,
    host: Host,
    pub(super) pool: Pool,
}

impl StoredPool {
    /// With Redis.
    pub(super) fn of(label: &str) -> Self {
        Self::of_members(label, 2)
    }

    /// The same, with so many members.
    pub(super) fn of_members(label: &str, members: u8) -> Self {
        let port = STORE_PORT.to_string();
        let words = ["--port", &port, "--save", "", "--protected-mode", "no"];
        Self::with(label, members, ("redis", "redis-server"), &words)
    }

    fn with(label: &str, members: u8, (scheme, program): (&str, &str), words: &[&str]) -> Self {
        let url = format!("{scheme}://10.0.0.{STORE_HOST_NUMBER}:{STORE_PORT}");
        let pool = Pool::with(label, members, &["--store", &url]);
        let host = pool.scene.lab.add_host_at("kv", STORE_HOST_NUMBER);
        let host = host.expect("a host");
        let mut command = host.command(program);
        command.args(words);
        let said = Output::File(pool.scene.directory().join("store.said"));
        let store = host.spawn(&mut command, &said).expect("a store");
        for member in &pool.members {
            member.program.wait_for("store_connected", 1);
        }
        Self { store, host, pool }
    }

    /// Number of records of all members.
    pub(super) fn record_count(&self) -> usize {
        let names = arrange::run(&self.host, "redis-cli --raw keys o:*");
        let len = |name: &str| {
            let len = arrange::run_words(&self.host, &["redis-cli", "--raw", "hlen", name]);
            len.trim().parse::<usize>().expect("a number")
        };
        names.lines().filter(|line| !line.is_empty()).map(len).sum()
    }

    /// How often Redis has performed a command.
    fn command_count(&self, name: &str) -> u64 {
        let statistics = arrange::run(&self.host, "redis-cli info commandstats");
        let prefix = format!("cmdstat_{name}:calls=");
        let line = statistics
            .lines()
            .find_map(|line| line.strip_prefix(&prefix));
        let count = line.and_then(|line| line.split(',').next());
        count.map_or(0, |count| count.parse().expect("a number"))
    }

    pub(super) fn stop(self) {
        let _ = self.store.kill(Signal::KILL);
        let _ = self.store.wait_with_timeout(e2e::EVENT_TIMEOUT);
        self.pool.stop();
    }
}

/// Bytes of the client that nobody has acknowledged.
fn unacknowledged(pool: &Pool, client: SocketAddr) -> String {
    let sockets = arrange::run(&pool.scene.client, "ss -Htn state established");
    let text = client.to_string();
    let line = sockets.lines().find(|line| line.contains(&text));
    let line = line.unwrap_or_else(|| panic!("no {text}: {sockets}"));
    line.split_whitespace().nth(1).expect("a queue").to_owned()
}

impl Download {
    /// Reads on until the request is acknowledged: the client holds nothing any more.
    pub(super) fn read_until_released(&mut self, pool: &Pool) {
        while unacknowledged(pool, self.client()) != "0" {
            assert!(
                self.bytes.len() < BIG_FILE_BYTES / 2,
                "the client holds its request"
            );
            self.read_up_to(self.bytes.len() + (1 << 16));
        }
    }
}

#[test]
fn silent_client_of_a_stored_download_is_called_after_a_power_off() {
    let stored = StoredPool::of("objects-store");
    let pool = &stored.pool;
    let recording = Recording::start(&pool.scene.client, pool_addresses()[0].port());
    let mut download = Download::begin(pool, pool_addresses()[0]);
    download.read_until_released(pool);
    assert_eq!(stored.record_count(), 1);
    let dies = pool.server_of(download.client());
    pool.members[dies].program.host.power_off().expect("off");
    // The client reads nothing, and has nothing to repeat.
    let revived = pool.members[1 - dies].program.wait_for("revived", 1);
    assert_eq!(revived["object"], "/big.bin");
    download.finish();
    pool.assert_none_refused();
    let endings = recording.finish();
    assert!(endings.iter().all(|ending| !ending.rst), "{endings:?}");
    stored.stop();
}

#[test]
fn stored_download_survives_host_after_host() {
    let mut stored = StoredPool::of("objects-store-hosts");
    let mut download = Download::begin(&stored.pool, pool_addresses()[1]);
    download.read_until_released(&stored.pool);
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

#[test]
fn stored_download_survives_death_of_its_server() {
    let stored = StoredPool::of("objects-store-kill");
    let pool = &stored.pool;
    let mut download = Download::begin(pool, pool_addresses()[0]);
    download.read_until_released(pool);
    let member = &pool.members[pool.server_of(download.client())];
    e2e::servers::signal_all(&member.server_pids(), Signal::KILL);
    member.program.wait_for("revived", 1);
    download.finish();
    pool.assert_none_refused();
    stored.stop();
}

/// The second response on a connection goes on after a power-off.
pub(super) fn second_response_survives(stored: StoredPool) {
    let pool = &stored.pool;
    let mut http = Http::new(pool.connect(pool_addresses()[0]));
    let client = http.stream().local_addr().expect("an address");
    http.get("/small/3");
    http.ask("/big.bin");
    let mut dies = None;
    let body = http
        .response(|read| {
            if read >= 4 << 20 && dies.is_none() {
                let index = pool.server_of(client);
                pool.members[index].program.host.power_off().expect("off");
                dies = Some(index);
            }
        })
        .body;
    assert!(body == pattern(BIG_FILE_BYTES), "other bytes");
    pool.await_revived(1);
    // The connection lives on.
    assert_eq!(http.get("/small/3").body, pattern(500 + 3 * 700));
    pool.assert_none_refused();
    stored.stop();
}

#[test]
fn long_later_response_survives_a_power_off() {
    second_response_survives(StoredPool::of("objects-store-later"));
}

/// memcached has no list of the records: the client keeps and repeats its request.
#[test]
fn long_later_response_survives_a_power_off_with_memcached() {
    let port = STORE_PORT.to_string();
    let words = ["-u", "root", "-p", &port, "-U", "0", "-l", "0.0.0.0"];
    let label = "objects-memcached";
    second_response_survives(StoredPool::with(
        label,
        2,
        ("memcached", "memcached"),
        &words,
    ));
}

#[test]
fn download_is_reset_and_never_mixed_when_store_and_host_are_lost() {
    let stored = StoredPool::of("objects-store-lost");
    let mut download = Download::begin(&stored.pool, pool_addresses()[0]);
    download.read_until_released(&stored.pool);
    stored.store.kill(Signal::KILL).expect("a signal");
    let pool = &stored.pool;
    for member in &pool.members {
        member.program.wait_for("store_lost", 1);
    }
    let dies = pool.server_of(download.client());
    pool.members[dies].program.host.power_off().expect("off");
    // The client has no room until then: with room again, the client speaks to the other member.
    pool.await_members(1);
    let mut buffer = vec![0; 1 << 16];
    let error = loop {
        match read_some(&mut &download.http, &mut buffer) {
            Ok(0) => panic!("a proper end"),
            Ok(len) => download.bytes.extend_from_slice(&buffer[..len]),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let end = download
        .bytes
        .windows(4)
        .position(|four| four == b"\r\n\r\n");
    let body = &download.bytes[end.expect("a head") + 4..];
    assert!(pattern(BIG_FILE_BYTES).starts_with(body), "other bytes");
    let refused = pool.members[1 - dies].program.wait_for("refused", 1);
    let reason = refused["reason"].as_str().expect("a reason");
    assert!(reason.contains("store"), "{reason}");
    stored.stop();
}

#[test]
fn short_responses_cost_no_operation_at_the_store() {
    let stored = StoredPool::of("objects-store-short");
    let mut http = Http::new(stored.pool.scene.connect_to(pool_addresses()[0]));
    for _ in 0..50 {
        for number in 0..10 {
            assert_eq!(http.get(&format!("/small/{number}")).status, 200);
        }
    }
    let commands = ["hset", "hget", "hdel", "expire"];
    let counts = commands.map(|name| stored.command_count(name));
    assert!(counts.iter().sum::<u64>() <= 6, "{counts:?}");
    stored.stop();
}

#[test]
fn long_response_costs_one_record_that_is_deleted() {
    let stored = StoredPool::of("objects-store-cost");
    let download = Download::begin(&stored.pool, pool_addresses()[0]);
    download.finish();
    arrange::wait_until("the record is gone", || stored.record_count() == 0);
    let counts = ["hset", "hdel"].map(|name| stored.command_count(name));
    assert_eq!(counts, [1, 1]);
    stored.stop();
}

/// The record has the whole request, the length of the head, and the first byte of the part.
#[test]
fn requests_that_the_store_alone_can_repeat_are_continued() {
    // The head of the response is as long as the request.
    let long = format!("X-Pad: {}\r\n", "x".repeat(2500));
    let last = BIG_FILE_BYTES - 1000;
    for (fields, first) in [
        (long.as_str(), 0),
        (&format!("Range: bytes=-{last}\r\n"), BIG_FILE_BYTES - last),
    ] {
        let stored = StoredPool::of("objects-store-requests");
        let pool = &stored.pool;
        let mut download = Download::begin_with(pool, pool_addresses()[0], fields);
        download.read_until_released(pool);
        let dies = pool.server_of(download.client());
        pool.members[dies].program.host.power_off().expect("off");
        download.finish_with(&pattern(BIG_FILE_BYTES)[first..]);
        pool.await_revived(1);
        pool.assert_none_refused();
        stored.stop();
    }
}
