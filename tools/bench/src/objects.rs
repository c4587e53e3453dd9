//! A pool of web servers: what the programs of a member cost, and the pause of a download after a power-off.
//!
//! The cost is measured on a member alone, because a balancer takes time of the same processors: the client's
//! neighbour table sends the packets to the member directly. The figures of the whole pool contain the balancer's hop.
//!
//! | module | |
//! |---|---|
//! | `speed` | of one download, from near and far, and after a revival |
//! | `crowd` | a thousand downloads under a power-off, and in a growing pool |
//! | `flood` | forged acknowledgements |
//! | `rivals` | other balancers |
//! | `store_alone` | what a store takes of the processors |

mod crowd;
mod flood;
mod rivals;
mod speed;
mod store_alone;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lab::{Direction, Impairment};

use super::Bench;
use super::figure::{Aim, Figure, column, compared, ratios};
use super::traffic::wrk;
use harness::pool::{Pool, PoolHosts, WebServer};
use harness::redis::Redis;

/// Rate of the client's link in a power-off.
const LINK_RATE: u64 = 200_000_000;
/// Time from the first byte to the power-off, and from there to the end.
const TIME_BEFORE_DEATH: Duration = Duration::from_millis(1500);
const TIME_AFTER_DEATH: Duration = Duration::from_millis(2500);
const READ_TIMEOUT: Duration = Duration::from_secs(20);
/// The object of one byte, the object of the paper's larger requests, and the large object.
const SMALL: &str = "one";
const MEDIUM: &str = "16k";
const MEDIUM_BYTES: usize = 16 << 10;
const LARGE: &str = "large";
/// Number of the store's host.
const STORE_NUMBER: u8 = 9;

const REQUESTS_BOUND: &str = "each packet of the server is looked at once at egress and each packet of the client once \
     at ingress, and each head of a request and of a response is scanned";
const PAUSE_BOUND: &str = "the lease must be over before another member may speak, and then the client's own timer \
     brings its request: 0.2 s at least on Linux";
const STORED_PAUSE_BOUND: &str = "the lease must be over before another member may speak; the record is read, the client is \
     called, and the local server is asked";
const DEFERRED_BOUND: &str = "the first segments of each response wait for an operation of the store, and go through user \
     space; the store shares the two cores with clients and servers, which alone leaves the figure of the same name with \
     bound (the paper had a machine for each); a store on another machine, or clients with timestamps, would lift it";
const OPERATIONS_BOUND: &str = "a response that lasts longer than --store-after, 5 ms, is written: when other programs have \
     the processors for that long, the responses of all connections are";
/// A number of operations would depend on the number of runs.
const OPERATIONS_AIM: f64 = 0.001;

pub(super) fn measure(bench: &Bench) -> Result<Vec<Figure>> {
    let hosts = hosts(bench)?;
    PoolHosts::forget_closed_connections(&bench.stage.client)?;
    let (mut figures, _) = requests(bench, &hosts, &TIMESTAMPS, &[])?;
    figures.extend(speed::measure(bench, &hosts)?);
    figures.extend(flood::measure(bench, &hosts)?);
    for (name, lease) in [("default", None), ("short", Some("25ms"))] {
        figures.extend(pause(bench, &hosts, name, lease, None)?);
    }
    let store = bench.stage.testbed.lab.add_host_at("kv", STORE_NUMBER)?;
    let redis = Redis::start(store, bench.stage.file("redis.log"), &bench.interrupt)?;
    figures.extend(with_store(bench, &hosts, &redis)?);
    redis.stop()?;
    figures.extend(rivals::measure(bench, &hosts)?);
    Ok(figures)
}

/// What records cost, and the pause of a client that is called.
fn with_store(bench: &Bench, hosts: &PoolHosts, redis: &Redis) -> Result<Vec<Figure>> {
    let url = redis.url();
    let before = redis.operations()?;
    let (mut figures, asked) = requests(bench, hosts, &LAZY, &["--store", &url])?;
    let operations = redis.operations()? - before;
    let figure = Figure::of(
        "objects.lazy.operations_per_request",
        "",
        &[operations / asked],
        format!(
            "{operations:.0} operations for records in all runs of objects.lazy, with {asked:.0} requests of members"
        ),
    );
    figures.push(figure.aim(Aim::AtMost(OPERATIONS_AIM), OPERATIONS_BOUND));
    let client = &bench.stage.client;
    client.sysctl("net.ipv4.tcp_timestamps", "0")?;
    let deferred = requests(bench, hosts, &DEFERRED, &["--store", &url]);
    client.sysctl("net.ipv4.tcp_timestamps", "1")?;
    let (deferred, _) = deferred?;
    figures.extend(store_alone::bounds(bench, hosts, &url, &deferred)?);
    figures.extend(deferred);
    for (name, lease) in [("stored", None), ("stored.short", Some("25ms"))] {
        figures.extend(pause(bench, hosts, name, lease, Some(&url))?);
    }
    figures.push(speed::revived(bench, hosts, &url)?);
    figures.extend(crowd::measure(bench, hosts, &url)?);
    Ok(figures)
}

/// How the state of small responses is kept, and the aims for objects of 1 byte and of 16 KiB.
struct Subject {
    prefix: &'static str,
    how: &'static str,
    aims: [f64; 2],
    bound: &'static str,
}

const TIMESTAMPS: Subject = Subject {
    prefix: "",
    how: "",
    aims: [0.93, 0.93],
    bound: REQUESTS_BOUND,
};
const LAZY: Subject = Subject {
    prefix: "lazy.",
    how: "; with Redis on another host",
    aims: [0.92, 0.93],
    bound: REQUESTS_BOUND,
};
const DEFERRED: Subject = Subject {
    prefix: "deferred.",
    how: "; with Redis on another host, and a client without timestamps",
    aims: [0.75, 0.85],
    bound: DEFERRED_BOUND,
};

/// A balancer, and two members; the first of these is the stage's server.
fn hosts(bench: &Bench) -> Result<PoolHosts> {
    let (stage, testbed) = (&bench.stage, &bench.stage.testbed);
    std::fs::write(stage.file(&format!("www/{SMALL}")), "1")?;
    std::fs::write(
        stage.file(&format!("www/{MEDIUM}")),
        vec![b'x'; MEDIUM_BYTES],
    )?;
    let balancer = testbed.lab.add_host_at("balancer", 2)?;
    let second = testbed.lab.add_host_at("second", 11)?;
    let members = [stage.server.clone(), second].map(|host| (host, WebServer::Nginx));
    let outlive = &testbed.programs.outlive;
    let interrupt = bench.interrupt.clone();
    PoolHosts::new(
        outlive,
        testbed.directory(),
        interrupt,
        balancer,
        members.into(),
    )
}

/// Small objects a second: on connections that stay, and on a connection for each. Also the number of requests to the
/// members, of all runs.
fn requests(
    bench: &Bench,
    hosts: &PoolHosts,
    subject: &Subject,
    more: &[&str],
) -> Result<(Vec<Figure>, f64)> {
    let seconds: u8 = bench.size(2, 1);
    let duration = format!("-d{seconds}s");
    bench.say(format_args!(
        "wrk with 16 connections: a plain server, a member, a pool of one{}",
        subject.how
    ));
    let kept: &[&str] = &["-t1", "-c16", &duration];
    let closed: &[&str] = &["-t1", "-c16", "-H", "Connection: close", &duration];
    let run = |address: SocketAddr| -> Result<[f64; 3]> {
        let [small, medium] = [SMALL, MEDIUM].map(|name| format!("http://{address}/{name}"));
        Ok([
            wrk(bench, &[kept, &[&small]].concat())?,
            wrk(bench, &[closed, &[&small]].concat())?,
            wrk(bench, &[closed, &[&medium]].concat())?,
        ])
    };
    let runs = compare(bench, hosts, more, run)?;
    let [_, members @ ..] = &runs;
    let a_second: f64 = members.iter().flatten().flatten().sum();
    let figures = of_requests(subject, &runs, &duration);
    Ok((figures, a_second * f64::from(seconds)))
}

fn of_requests(subject: &Subject, runs: &[Vec<[f64; 3]>; 3], duration: &str) -> Vec<Figure> {
    let Subject {
        prefix,
        how: with,
        aims,
        bound,
    } = *subject;
    let mut figures = Vec::new();
    for (index, (name, how, aim)) in [
        (
            "requests",
            "an object of one byte, connections that stay",
            aims[0],
        ),
        (
            "connections",
            "an object of one byte, a connection for each request",
            aims[0],
        ),
        (
            "connections.16k",
            "an object of 16 KiB, a connection for each request",
            aims[1],
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let how = format!("wrk -t1 -c16 {duration} of {how}, nginx with two workers{with}");
        let all = [0, 1, 2].map(|which| column(&runs[which], index));
        let name = format!("{prefix}{name}");
        figures.extend(of_member(&name, "1/s", &all, &how, aim, bound));
    }
    figures
}

/// Runs at a plain server, at a member, and at a pool of one member, in turns.
fn compare<const N: usize>(
    bench: &Bench,
    hosts: &PoolHosts,
    more: &[&str],
    run: impl Fn(SocketAddr) -> Result<[f64; N]>,
) -> Result<[Vec<[f64; N]>; 3]> {
    let mut runs = [const { Vec::new() }; 3];
    for _ in 0..bench.rounds {
        bench.interrupt.check()?;
        let plain = hosts.start_plain(0, hosts.plain(0))?;
        runs[0].push(run(hosts.plain(0))?);
        hosts.stop_plain(0, &plain)?;
        let pool = start(hosts, 1, more)?;
        hosts.bypass_balancer(&bench.stage.client, Some(0))?;
        let member = run(hosts.service());
        hosts.bypass_balancer(&bench.stage.client, None)?;
        runs[1].push(member?);
        runs[2].push(run(hosts.service())?);
        pool.stop()?;
    }
    Ok(runs)
}

/// A pool whose members have found their store, if the pool has a store.
fn start<'h>(hosts: &'h PoolHosts, count: usize, more: &[&str]) -> Result<Pool<'h>> {
    let pool = Pool::start(hosts, count, more)?;
    if more.contains(&"--store") {
        pool.await_each("store_connected")?;
    }
    Ok(pool)
}

/// The ratio of the member with its aim, both figures, and the figures of the pool.
fn of_member(
    name: &str,
    unit: &'static str,
    [plain, member, pool]: &[Vec<f64>; 3],
    how: &str,
    aim: f64,
    bound: &'static str,
) -> Vec<Figure> {
    let name = format!("objects.{name}");
    let [ratio, rest @ ..] = compared(&name, "member", unit, [plain, member], how);
    let of_pool = ratios(plain, pool);
    let pool_how = format!("{how}; through the balancer");
    let mut figures = vec![ratio.aim(Aim::AtLeast(aim), bound)];
    figures.extend(rest);
    figures.push(Figure::of(
        format!("{name}.pool.ratio"),
        "",
        &of_pool,
        &pool_how,
    ));
    figures
}

/// The longest time without a byte, of a download whose member's host loses power.
fn pause(
    bench: &Bench,
    hosts: &PoolHosts,
    name: &str,
    lease: Option<&str>,
    store: Option<&str>,
) -> Result<Vec<Figure>> {
    let rounds = bench.size(7, 1);
    bench.say(format_args!("{rounds} power-offs, {name} lease"));
    bench.stage.sparse(&format!("www/{LARGE}"), 4 << 30)?;
    let lease_words = lease.into_iter().flat_map(|lease| ["--lease", lease]);
    let store_words = store.into_iter().flat_map(|store| ["--store", store]);
    let more: Vec<&str> = lease_words.chain(store_words).collect();
    let link = &bench.stage.client.links()[0];
    link.adjust(&Direction::BOTH, |link: Impairment| link.rate(LINK_RATE))?;
    let mut pauses = Vec::new();
    for _ in 0..rounds {
        let pool = start(hosts, 2, &more)?;
        let pause = power_off(bench, hosts, &pool);
        pool.stop()?;
        pauses.push(pause?.as_secs_f64() * 1e3);
    }
    link.adjust(&Direction::BOTH, Impairment::unlimited)?;
    let how = format!(
        "longest time without a byte of a download whose member's host loses power, one of two; lease of {}, client's link \
         of {} Mbit/s{}",
        lease.unwrap_or("25 to 250 ms (default)"),
        LINK_RATE / 1_000_000,
        store.map_or("", |_| "; with Redis on another host")
    );
    let aim = if lease.is_some() { 80.0 } else { 300.0 };
    let figure = Figure::of(format!("objects.pause.{name}"), "ms", &pauses, how);
    let bound = store.map_or(PAUSE_BOUND, |_| STORED_PAUSE_BOUND);
    Ok(vec![figure.aim(Aim::AtMost(aim), bound)])
}

/// A download of the large object that has begun.
fn ask_for_large(bench: &Bench, hosts: &PoolHosts) -> Result<TcpStream> {
    let address = hosts.service();
    let mut stream = bench.stage.client.enter(|| TcpStream::connect(address))??;
    stream.set_read_timeout(Some(READ_TIMEOUT))?;
    // In one segment, as clients send it.
    let request = format!("GET /{LARGE} HTTP/1.1\r\nHost: pool\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    Ok(stream)
}

fn power_off(bench: &Bench, hosts: &PoolHosts, pool: &Pool<'_>) -> Result<Duration> {
    let stream = ask_for_large(bench, hosts)?;
    let member = pool.server_of(stream.local_addr()?)?;
    thread::scope(|scope| {
        let reader = scope.spawn(move || longest_silence(stream));
        thread::sleep(TIME_BEFORE_DEATH);
        pool.power_off(member)?;
        reader.join().expect("it does not panic")
    })
}

fn longest_silence(mut stream: TcpStream) -> Result<Duration> {
    let mut buffer = vec![0; 1 << 20];
    let end = Instant::now() + TIME_BEFORE_DEATH + TIME_AFTER_DEATH;
    let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
    while Instant::now() < end {
        let count = stream.read(&mut buffer)?;
        ensure!(count > 0, "the download has ended");
        let now = Instant::now();
        longest = longest.max(now - last);
        last = now;
    }
    Ok(longest)
}
