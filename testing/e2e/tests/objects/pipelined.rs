//! Clients that send requests before they have the responses, and requests in several segments.

use std::net::TcpStream;

use e2e::arrange::run;
use e2e::assert_same_bytes;
use e2e::clients::{Http, read_some, write};
use e2e::pool::{Pool, pool_addresses};
use e2e::servers::BIG_FILE_BYTES;
use e2e::{Recording, pattern};

use super::Download;
use super::store::StoredPool;

/// Bytes that a client has read when the host of its member loses power.
const PART_BYTES: usize = 2 << 20;

fn get(target: &str, fields: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: pool\r\n{fields}\r\n")
}

/// Reads at least this many bytes.
fn read_up_to(stream: &TcpStream, bytes: &mut Vec<u8>, count: usize) {
    let mut buffer = vec![0; 1 << 16];
    while bytes.len() < count {
        let len = read_some(stream, &mut buffer).expect("more of the responses");
        assert_ne!(len, 0, "the end after {} bytes", bytes.len());
        bytes.extend_from_slice(&buffer[..len]);
    }
}

/// The bodies of the responses in these bytes.
fn bodies(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut bodies = Vec::new();
    while !bytes.is_empty() {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
        let (head, rest) = bytes.split_at(end.expect("a head") + 4);
        let head = String::from_utf8(head.to_vec()).expect("a head in ASCII");
        let len = head
            .lines()
            .find_map(|line| line.strip_prefix("Content-Length: "))
            .map(|len| len.parse().expect("a length"));
        let (body, behind) = rest.split_at(len.expect("a length"));
        bodies.push(body.to_vec());
        bytes = behind;
    }
    bodies
}

/// Asks for these files at once, on one connection. The host of the member loses power in the middle of the responses.
fn survive(pool: &Pool, targets: &[&str], is_joined: bool) {
    let address = pool_addresses()[0];
    let recording = Recording::start(&pool.scene.client, address.port());
    let references: Vec<Vec<u8>> = { targets.iter() }
        .map(|target| Http::new(pool.scene.connect_to(address)).get(target).body)
        .collect();
    let stream = pool.connect(address);
    stream.set_nodelay(true).expect("an option");
    let requests: Vec<String> = { targets.iter() }
        .enumerate()
        .map(|(at, target)| match at + 1 == targets.len() {
            true => get(target, "Connection: close\r\n"),
            false => get(target, ""),
        })
        .collect();
    match is_joined {
        true => write(&stream, requests.concat().as_bytes()),
        false => requests.iter().for_each(|it| write(&stream, it.as_bytes())),
    }
    let mut got = Vec::new();
    read_up_to(&stream, &mut got, PART_BYTES);
    let dies = pool.server_of(stream.local_addr().expect("an address"));
    pool.members[dies].program.host.power_off().expect("off");
    got.extend(e2e::clients::read_to_end(&stream));
    let bodies = bodies(&got);
    assert_eq!(bodies.len(), targets.len());
    for ((target, expected), body) in targets.iter().zip(&references).zip(&bodies) {
        assert_same_bytes(target, expected, body);
    }
    assert_eq!(pool.revived().len(), 1);
    pool.assert_none_refused();
    let endings = recording.finish();
    assert!(endings.iter().all(|ending| !ending.rst), "{endings:?}");
}

#[test]
fn joined_requests_survive_a_power_off() {
    let pool = Pool::of("objects-joined", 2);
    survive(&pool, &["/big.bin", "/small/3", "/small/4"], true);
    pool.stop();
}

/// The second response is longer than a timestamp tells.
#[test]
fn requests_in_a_row_survive_a_power_off_with_a_store() {
    let stored = StoredPool::of("objects-row");
    let targets = ["/small/3", "/big.bin", "/small/4", "/small/5"];
    survive(&stored.pool, &targets, false);
    stored.stop();
}

/// The client's host sends each segment on its own.
#[test]
fn request_in_two_segments_is_protected_with_a_store() {
    let stored = StoredPool::of("objects-halves");
    let pool = &stored.pool;
    run(&pool.scene.client, "ethtool -K eth0 tso off gso off");
    let long = format!("Cookie: {}\r\n", "c".repeat(2000));
    let mut download = Download::begin_with(pool, pool_addresses()[0], &long);
    download.read_until_released(pool);
    let dies = pool.server_of(download.client());
    assert_eq!(
        pool.members[dies].program.events_of("unprotected"),
        Vec::<serde_json::Value>::new()
    );
    pool.members[dies].program.host.power_off().expect("off");
    download.finish_with(&pattern(BIG_FILE_BYTES));
    assert_eq!(pool.revived().len(), 1);
    pool.assert_none_refused();
    stored.stop();
}
