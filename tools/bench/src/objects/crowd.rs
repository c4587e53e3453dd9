//! A thousand downloads at a time: on a host that loses power, and while the pool grows.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use harness::pool::{PoolHosts, WebServer};
use harness::quantile::quantile;
use rustix::net::sockopt::set_socket_recv_buffer_size;

use crate::Bench;
use crate::clients::{raise_limit, read_some};
use crate::download::{Response, connect, object};
use crate::figure::{Aim, Figure};

const DOWNLOAD_COUNT: usize = 1000;
const QUICK_COUNT: usize = 100;
/// A client reads so much, and pauses: so each download takes some seconds, and the servers have time.
const PIECE_BYTES: usize = 8192;
const READ_PAUSE: Duration = Duration::from_millis(100);
const OBJECT_BYTES: usize = 400 << 10;
/// Small, so that a client notices a silence of its server.
const RECEIVE_BUFFER_BYTES: usize = 16 << 10;
/// Bytes that each client has when the pool changes.
const PART_BYTES: usize = 64 << 10;
const PATIENCE_TIMEOUT: Duration = Duration::from_secs(20);
const STACK_BYTES: usize = 256 << 10;

const LOSS_BOUND: &str = "connections were lost: a defect";
const CROWD_BOUND: &str = "one thread of the member reads the records, calls the clients and judges the responses of all \
     revivals, on two cores with all clients and both servers; without a store, the clients' own timers";
const GROWTH_BOUND: &str =
    "each segment of a connection that the hash has moved goes to its member by way of another";

/// A change of the pool in the middle of all downloads.
#[derive(Clone, Copy)]
struct Change {
    name: &'static str,
    how: &'static str,
    /// Arguments of the balancer.
    more: &'static [&'static str],
    has_store: bool,
    members: usize,
    /// The first host loses power when another member has joined.
    power_off: bool,
    /// Aims for the longest time without a byte, of half and of 99 of 100 downloads; and the reason.
    aims: Option<[f64; 2]>,
    bound: &'static str,
}

const CHANGES: [Change; 3] = [
    Change {
        name: "power_off",
        how: "the only member's host loses power when a second member has joined",
        more: &[],
        has_store: false,
        members: 1,
        power_off: true,
        aims: None,
        bound: CROWD_BOUND,
    },
    Change {
        name: "power_off.stored",
        how: "the only member's host loses power when a second member has joined; with Redis on another host",
        more: &[],
        has_store: true,
        members: 1,
        power_off: true,
        aims: Some([300.0, 600.0]),
        bound: CROWD_BOUND,
    },
    Change {
        name: "growth",
        how: "a fourth member joins, with --hash mod",
        more: &["--hash", "mod"],
        has_store: false,
        members: 3,
        power_off: false,
        aims: None,
        bound: GROWTH_BOUND,
    },
];

/// The downloads of a change, in the end.
struct Seen {
    broken: u32,
    revived: usize,
    /// The longest time without a byte of each whole download, sorted, in milliseconds.
    pauses: Vec<f64>,
}

pub(super) fn measure(bench: &Bench, hosts: &PoolHosts, store: &str) -> Result<Vec<Figure>> {
    raise_limit(DOWNLOAD_COUNT)?;
    let hosts = enlarged(bench, hosts)?;
    let object: Arc<[u8]> = object(OBJECT_BYTES).into();
    std::fs::write(bench.stage.file("www/crowd"), &object)?;
    let mut figures = Vec::new();
    for change in CHANGES {
        let count = bench.size(DOWNLOAD_COUNT, QUICK_COUNT);
        bench.say(format_args!("{count} downloads: {}", change.how));
        let mut seen = Vec::new();
        for _ in 0..bench.size(2, 1) {
            bench.interrupt.check()?;
            seen.push(change.run(bench, &hosts, &object, (count, store))?);
        }
        figures.extend(change.figures(count, &seen));
    }
    Ok(figures)
}

/// The same pool with two more hosts.
fn enlarged(bench: &Bench, hosts: &PoolHosts) -> Result<PoolHosts> {
    let testbed = &bench.stage.testbed;
    let mut members = vec![hosts.host(0).clone(), hosts.host(1).clone()];
    for (name, number) in [("third", 12), ("fourth", 13)] {
        members.push(testbed.lab.add_host_at(name, number)?);
    }
    PoolHosts::new(
        &testbed.programs.outlive,
        testbed.directory(),
        bench.interrupt.clone(),
        hosts.balancer().clone(),
        { members.into_iter().map(|host| (host, WebServer::Nginx)) }.collect(),
    )
}

impl Change {
    fn run(
        &self,
        bench: &Bench,
        hosts: &PoolHosts,
        object: &Arc<[u8]>,
        (count, store): (usize, &str),
    ) -> Result<Seen> {
        let store: &[&str] = if self.has_store {
            &["--store", store]
        } else {
            &[]
        };
        let mut pool = super::start(hosts, self.members, &[self.more, store].concat())?;
        let ready = Arc::new(AtomicUsize::new(0));
        let ended = Arc::new(Mutex::new(Vec::new()));
        // A thread stays in the network namespace of the thread that started it.
        let threads: Vec<_> = bench.stage.client.enter(|| {
            let start = |_| {
                let (ready, ended) = (Arc::clone(&ready), Arc::clone(&ended));
                let (address, object) = (hosts.service(), Arc::clone(object));
                thread::Builder::new()
                    .stack_size(STACK_BYTES)
                    .spawn(move || {
                        let outcome = download(address, &object, &ready);
                        if let Ok(mut ended) = ended.lock() {
                            ended.push(outcome);
                        }
                    })
            };
            (0..count).map(start).collect::<std::io::Result<_>>()
        })??;
        await_parts(bench, &ready, &ended, count)?;
        pool.add_member()?;
        if self.power_off {
            pool.power_off(0)?;
        }
        for thread in threads {
            thread.join().map_err(|_| anyhow!("a client panicked"))?;
        }
        let revived = pool.events_of("revived")?.len();
        pool.stop()?;
        let ended = std::mem::take(&mut *ended.lock().map_err(|_| anyhow!("a client panicked"))?);
        Seen::of(bench, ended, revived)
    }

    fn figures(&self, count: usize, seen: &[Seen]) -> Vec<Figure> {
        let name = |what: &str| format!("objects.crowd.{}.{what}", self.name);
        let how = |what: &str| {
            let pace = PIECE_BYTES * 1000 / usize::try_from(READ_PAUSE.as_millis()).unwrap_or(1);
            format!(
                "{count} clients download {} KiB each, at most {} KiB/s, and {}: {what}",
                OBJECT_BYTES >> 10,
                pace >> 10,
                self.how
            )
        };
        let broken: Vec<f64> = seen.iter().map(|seen| seen.broken.into()).collect();
        let words = how("downloads that ended early, had other bytes, or were silent for 20 s");
        let broken = Figure::of(name("broken"), "", &broken, words);
        let mut figures = vec![broken.aim(Aim::AtMost(0.0), LOSS_BOUND).promise()];
        if !self.power_off {
            let revived: Vec<f64> = seen.iter().map(|seen| count_of(seen.revived)).collect();
            let words = how("connections that another server went on with");
            let revived = Figure::of(name("revived"), "", &revived, words);
            figures.push(revived.aim(Aim::AtMost(0.0), GROWTH_BOUND));
        }
        for (index, (what, part)) in [("p50", 0.5), ("p99", 0.99)].into_iter().enumerate() {
            let pauses: Vec<f64> = { seen.iter() }
                .map(|seen| quantile(&seen.pauses, part))
                .collect();
            let words = how("the longest time without a byte, less the pauses of the client");
            let figure = Figure::of(name(what), "ms", &pauses, words);
            figures.push(match self.aims {
                Some(aims) => figure.aim(Aim::AtMost(aims[index]), self.bound),
                None => figure,
            });
        }
        figures
    }
}

fn count_of(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::NAN, f64::from)
}

impl Seen {
    fn of(bench: &Bench, ended: Vec<Result<Duration>>, revived: usize) -> Result<Self> {
        let mut seen = Self {
            broken: 0,
            revived,
            pauses: Vec::new(),
        };
        for outcome in ended {
            match outcome {
                Ok(pause) => seen.pauses.push(pause.as_secs_f64() * 1e3),
                Err(error) => {
                    if seen.broken == 0 {
                        bench.say(format_args!("one that broke: {error:#}"));
                    }
                    seen.broken += 1;
                }
            }
        }
        ensure!(!seen.pauses.is_empty(), "no download was whole");
        seen.pauses.sort_by(f64::total_cmp);
        Ok(seen)
    }
}

/// Waits until each client has a part.
fn await_parts(
    bench: &Bench,
    ready: &AtomicUsize,
    ended: &Mutex<Vec<Result<Duration>>>,
    count: usize,
) -> Result<()> {
    while ready.load(Ordering::Relaxed) < count {
        bench.interrupt.check()?;
        let early = ended
            .lock()
            .map_err(|_| anyhow!("a client panicked"))?
            .pop();
        if let Some(outcome) = early {
            outcome?;
            anyhow::bail!("a download was over before all had begun");
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Reads the object slowly, and compares every byte. Returns the longest time without a byte.
fn download(address: SocketAddr, object: &[u8], ready: &AtomicUsize) -> Result<Duration> {
    use std::io::Write as _;
    let mut stream = connect(address, PATIENCE_TIMEOUT)?;
    set_socket_recv_buffer_size(&stream, RECEIVE_BUFFER_BYTES)?;
    stream.write_all(b"GET /crowd HTTP/1.1\r\nHost: pool\r\n\r\n")?;
    let (mut response, mut longest, mut have) = (Response::default(), Duration::ZERO, 0);
    let mut buffer = [0; PIECE_BYTES];
    while have < object.len() {
        let asked = Instant::now();
        let read = read_some(&mut stream, &mut buffer)?;
        ensure!(read > 0, "closed after {have} bytes");
        longest = longest.max(asked.elapsed());
        let body = response.body(&buffer[..read])?;
        let expected = object.get(have..have + body.len());
        ensure!(expected == Some(body), "other bytes after {have}");
        let had = have;
        have += body.len();
        if had < PART_BYTES && have >= PART_BYTES {
            ready.fetch_add(1, Ordering::Relaxed);
        }
        thread::sleep(READ_PAUSE);
    }
    Ok(longest)
}
