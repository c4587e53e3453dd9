//! Many downloads on a host that dies, and members under attack.

use std::io::Read as _;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use e2e::arrange::wait_until;
use e2e::forge::{Forged, Forger, flag};
use e2e::pool::{Member, Pool, pool_addresses};
use e2e::sockets::dial;
use e2e::{assert_same_bytes, pattern};
use lab::Host;
use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustix::process::{Resource, Rlimit, setrlimit};

use crate::moments::{MEDIUM_FILE_BYTES, add_medium_file};

/// Downloads on the host that dies.
const DOWNLOAD_COUNT: usize = 1000;
/// Bytes of a read, and the pause after a read.
const PIECE_BYTES: usize = 4096;
const READ_PAUSE: Duration = Duration::from_millis(50);
/// Receive buffer of a client: a pause of the server is seen.
const RECEIVE_BUFFER_BYTES: usize = 8192;
/// Bytes that each client has when the host dies.
const PART_BYTES: usize = 40_000;
/// A client reads no further until the host has died: a busy machine takes its time.
const HELD_BYTES: usize = 300_000;
/// Forged segments of an attack.
const FORGED_COUNT: u32 = 20_000;
/// An echo that tells of an unprotected connection has 2 bits of kind and 17 of tag: of 20,000 segments 0.04 guess it.
/// Four guesses have a probability of 10⁻⁷.
const GUESSES_MAX: usize = 3;

/// How far all downloads are.
#[derive(Default)]
struct Stage {
    /// Clients that have a part.
    has_part: AtomicUsize,
    /// The host has died, or what else was to happen.
    is_struck: AtomicBool,
}

/// Reads `/medium` slowly. Returns the longest time without a byte.
fn download(client: &Host, address: SocketAddr, stage: &Stage) -> Duration {
    let dialled = dial(client, address, None, |socket| {
        set_socket_recv_buffer_size(socket, RECEIVE_BUFFER_BYTES).expect("a buffer");
    });
    let mut stream = dialled.expect("a connection");
    let request = format!("GET /medium HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    e2e::clients::write(&stream, request.as_bytes());
    let (mut got, mut longest, mut last) = (Vec::new(), Duration::ZERO, Instant::now());
    let mut buffer = [0; PIECE_BYTES];
    loop {
        let had = got.len();
        let len = stream
            .read(&mut buffer)
            .unwrap_or_else(|error| panic!("after {had} bytes: {error}"));
        longest = longest.max(last.elapsed());
        last = Instant::now();
        if len == 0 {
            break;
        }
        got.extend_from_slice(&buffer[..len]);
        if had < PART_BYTES && got.len() >= PART_BYTES {
            stage.has_part.fetch_add(1, Ordering::Relaxed);
        }
        thread::sleep(READ_PAUSE);
        while got.len() >= HELD_BYTES && !stage.is_struck.load(Ordering::Relaxed) {
            thread::sleep(READ_PAUSE);
        }
        last = last.max(Instant::now());
    }
    let end = got.windows(4).position(|four| four == b"\r\n\r\n");
    let body = &got[end.expect("a head") + 4..];
    assert_same_bytes("download", &pattern(MEDIUM_FILE_BYTES), body);
    longest
}

/// All downloads, and `strike` when each has a part. Returns the longest time without a byte of each, in order.
fn downloads(pool: &mut Pool, count: usize, strike: impl FnOnce(&mut Pool)) -> Vec<Duration> {
    let limit = Some(8192);
    let limits = Rlimit {
        current: limit,
        maximum: limit,
    };
    setrlimit(Resource::Nofile, limits).expect("descriptors");
    add_medium_file(pool);
    let (client, stage) = (pool.scene.client.clone(), Stage::default());
    let mut pauses: Vec<Duration> = thread::scope(|scope| {
        // Also after a panic: the clients end.
        let end = EndOfStrike(&stage.is_struck);
        let threads: Vec<_> = (0..count)
            .map(|number| {
                let (client, stage) = (&client, &stage);
                let address = pool_addresses()[number % 2];
                scope.spawn(move || download(client, address, stage))
            })
            .collect();
        wait_until("each client has a part", || {
            let has_part = stage.has_part.load(Ordering::Relaxed);
            has_part == count || threads.iter().any(|it| it.is_finished())
        });
        strike(pool);
        drop(end);
        threads
            .into_iter()
            .map(|it| it.join().expect("a download"))
            .collect()
    });
    pauses.sort();
    pauses
}

/// The clients read on, whatever happens.
struct EndOfStrike<'a>(&'a AtomicBool);

impl Drop for EndOfStrike<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn thousand_downloads_survive_the_loss_of_their_host() {
    let mut pool = Pool::of("objects-thousand", 1);
    let pauses = downloads(&mut pool, DOWNLOAD_COUNT, |pool| {
        // A member that joins moves no connection: all downloads are on the first.
        pool.add_member(&[]);
        pool.members[0].program.host.power_off().expect("off");
    });
    let of = |percent: usize| pauses[(pauses.len() - 1) * percent / 100];
    let revived = pool.revived().len();
    eprintln!(
        "{revived} revived, without a byte: p50 {:?}, p99 {:?}, longest {:?}",
        of(50),
        of(99),
        of(100)
    );
    assert_eq!(revived, DOWNLOAD_COUNT);
    pool.assert_none_refused();
    pool.stop();
}

/// Forged segments to the pool, until the scope ends.
fn attack(forger: &Forger, mut make: impl FnMut(u32) -> Forged) {
    for number in 0..FORGED_COUNT {
        forger.send(&make(number).packet());
    }
}

/// Numbers without a pattern that a filter could know.
fn scrambled(number: u32) -> u32 {
    let mixed = number.wrapping_mul(0x9e37_79b1).rotate_left(13) ^ 0x5bd1_e995;
    mixed.wrapping_mul(0x85eb_ca6b)
}

fn spoofed(number: u32) -> SocketAddrV4 {
    let [_, _, host, port] = scrambled(number).to_be_bytes();
    let port = 1024 + u16::from(port) * 200 + u16::from(host);
    SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 120 + host % 80), port)
}

fn target() -> SocketAddrV4 {
    match pool_addresses()[0] {
        SocketAddr::V4(address) => address,
        SocketAddr::V6(_) => unreachable!("the first is IPv4"),
    }
}

/// Timestamps with any echo.
fn echo(number: u32) -> Vec<u8> {
    let (value, echo) = (scrambled(number ^ 7), scrambled(number ^ 99));
    [
        &[1, 1, 8, 10][..],
        &value.to_be_bytes(),
        &echo.to_be_bytes(),
    ]
    .concat()
}

#[test]
fn forged_acknowledgements_revive_no_connection() {
    let mut pool = Pool::of("objects-forged", 2);
    let attacker = pool.scene.lab.add_host_at("attacker", 201).expect("a host");
    let forger = Forger::on(&attacker);
    let pauses = downloads(&mut pool, 20, |_| {
        attack(&forger, |number| Forged {
            sequence: scrambled(number ^ 1),
            acknowledgment: scrambled(number ^ 2),
            options: echo(number),
            ..Forged::new(spoofed(number), target(), flag::ACK)
        });
    });
    eprintln!("longest without a byte: {:?}", pauses.last());
    assert_eq!(pool.revived(), Vec::<serde_json::Value>::new());
    let guessed: usize = { pool.members.iter() }
        .map(|member| refused_forgeries(member).len())
        .sum();
    assert!(guessed <= GUESSES_MAX, "{guessed}");
    pool.stop();
}

/// The events of segments that were reset: of the forger alone.
fn refused_forgeries(member: &Member) -> Vec<serde_json::Value> {
    let refused = member.program.events_of("refused");
    for event in &refused {
        let client = event["client"].as_str().expect("a client");
        let is_own = client.starts_with("10.0.0.1:") || client.starts_with("[fd00::1]:");
        assert!(!is_own, "{event}");
    }
    refused
}

/// After a death, echoes with a short tag count: an attacker guesses some. No guess harms a download.
#[test]
fn forged_requests_after_a_death_harm_no_download() {
    let mut pool = Pool::of("objects-guessed", 2);
    let attacker = pool.scene.lab.add_host_at("attacker", 201).expect("a host");
    let forger = Forger::on(&attacker);
    let pauses = downloads(&mut pool, 20, |pool| {
        pool.members[0].program.host.power_off().expect("off");
        attack(&forger, |number| Forged {
            sequence: scrambled(number ^ 1),
            acknowledgment: scrambled(number ^ 2),
            options: echo(number),
            payload: b"GET /medium HTTP/1.1\r\nHost: pool\r\n\r\n".to_vec(),
            ..Forged::new(spoofed(number), target(), flag::ACK | flag::PSH)
        });
    });
    eprintln!("longest without a byte: {:?}", pauses.last());
    let _ = refused_forgeries(&pool.members[1]);
    let stream = pool.scene.connect_to(pool_addresses()[0]);
    let mut http = e2e::clients::Http::new(stream);
    assert_eq!(http.get("/small/3").body, pattern(2600));
    pool.stop();
}

#[test]
fn flood_of_connections_harms_no_download() {
    let mut pool = Pool::of("objects-syn", 2);
    let attacker = pool.scene.lab.add_host_at("attacker", 201).expect("a host");
    let forger = Forger::on(&attacker);
    let pauses = downloads(&mut pool, 20, |pool| {
        let syn = |number| Forged {
            sequence: scrambled(number ^ 1),
            options: [
                &[2, 4, 5, 180, 4, 2, 8, 10][..],
                &[1; 4],
                &[0; 4],
                &[1, 3, 3, 7],
            ]
            .concat(),
            ..Forged::new(spoofed(number), target(), flag::SYN)
        };
        attack(&forger, syn);
        pool.members[0].program.host.power_off().expect("off");
        attack(&forger, syn);
    });
    eprintln!("longest without a byte: {:?}", pauses.last());
    pool.assert_none_refused();
    let stream = pool.scene.connect_to(pool_addresses()[1]);
    let mut http = e2e::clients::Http::new(stream);
    assert_eq!(http.get("/small/3").body, pattern(2600));
    pool.stop();
}

/// A member whose processes stand still for longer than its lease is silent, and joins again.
#[test]
fn member_that_stood_still_rejoins() {
    let mut pool = Pool::of("objects-still", 2);
    let pauses = downloads(&mut pool, 40, |pool| {
        for member in [0, 1] {
            let host = pool.members[member].program.host.clone();
            host.pause().expect("it stands still");
            let other = &pool.members[1 - member].program;
            wait_until("the pool is smaller", || {
                other
                    .events_of("pool_changed")
                    .last()
                    .is_some_and(|table| table["members"] == 1)
            });
            host.resume().expect("it runs");
            pool.members[member].program.wait_for("expelled", 1);
            pool.await_members(2);
        }
    });
    eprintln!("longest without a byte: {:?}", pauses.last());
    pool.assert_none_refused();
    pool.stop();
}
