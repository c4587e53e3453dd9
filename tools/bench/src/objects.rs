//! A pool of web servers: what the programs of a member cost, and the pause of a download after a power-off.
//!
//! The cost is measured on a member alone, because a balancer takes time of the same processors: the client's
//! neighbour table sends the packets to the member directly. The figures of the whole pool contain the balancer's hop.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use lab::{Direction, Impairment};

use super::Bench;
use super::figure::{Aim, Figure, column, compared, ratios};
use super::traffic::{curl, wrk};
use harness::pool::{Pool, PoolHosts, WebServer};
use lab::Signal;

/// Delay of the client's link in each direction, for one download.
const ONE_WAY_DELAY: Duration = Duration::from_millis(25);
/// Rate of the client's link in a power-off.
const LINK_RATE: u64 = 200_000_000;
/// Time from the first byte to the power-off, and from there to the end.
const TIME_BEFORE_DEATH: Duration = Duration::from_millis(1500);
const TIME_AFTER_DEATH: Duration = Duration::from_millis(2500);
const READ_TIMEOUT: Duration = Duration::from_secs(20);
/// The object of one byte, and the large object.
const SMALL: &str = "one";
const LARGE: &str = "large";

const REQUESTS_BOUND: &str = "each packet of the server is looked at once at egress and each packet of the client once \
     at ingress, and each head of a request and of a response is scanned";
const PAUSE_BOUND: &str = "the lease must be over before another member may speak, and then the client's own timer \
     brings its request: 0.2 s at least on Linux";

pub(super) fn measure(bench: &Bench) -> Result<Vec<Figure>> {
    let hosts = hosts(bench)?;
    let mut figures = requests(bench, &hosts)?;
    figures.extend(download(bench, &hosts)?);
    for (name, lease) in [("default", None), ("short", Some("25ms"))] {
        figures.extend(pause(bench, &hosts, name, lease)?);
    }
    Ok(figures)
}

/// A balancer, and two members; the first of these is the stage's server.
fn hosts(bench: &Bench) -> Result<PoolHosts> {
    let (stage, testbed) = (&bench.stage, &bench.stage.testbed);
    std::fs::write(stage.file(&format!("www/{SMALL}")), "1")?;
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

/// Small objects a second: on connections that stay, and on a connection for each.
fn requests(bench: &Bench, hosts: &PoolHosts) -> Result<Vec<Figure>> {
    let duration = bench.size("-d2s", "-d1s");
    bench.say("wrk with 16 connections: a plain server, a member, a pool of one");
    let kept: &[&str] = &["-t1", "-c16", duration];
    let closed: &[&str] = &["-t1", "-c16", "-H", "Connection: close", duration];
    let run = |address: SocketAddr| -> Result<[f64; 2]> {
        let url = format!("http://{address}/{SMALL}");
        Ok([
            wrk(bench, &[kept, &[&url]].concat())?,
            wrk(bench, &[closed, &[&url]].concat())?,
        ])
    };
    let runs = compare(bench, hosts, run)?;
    let mut figures = Vec::new();
    for (index, (name, how)) in [
        ("requests", "an object of one byte, connections that stay"),
        (
            "connections",
            "an object of one byte, a connection for each request",
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let how = format!("wrk -t1 -c16 {duration} of {how}, nginx with two workers");
        let all = [0, 1, 2].map(|which| column(&runs[which], index));
        figures.extend(of_member(name, "1/s", &all, &how, 0.93, REQUESTS_BOUND));
    }
    Ok(figures)
}

/// One download from afar.
fn download(bench: &Bench, hosts: &PoolHosts) -> Result<Vec<Figure>> {
    let mib: u64 = bench.size(256, 64);
    bench.stage.sparse(&format!("www/{LARGE}"), mib << 20)?;
    bench.say(format_args!("curl of {mib} MiB, 50 ms of round trip"));
    let link = &bench.stage.client.links()[0];
    link.adjust(&Direction::BOTH, |link: Impairment| {
        link.delay(ONE_WAY_DELAY)
    })?;
    let runs = compare(bench, hosts, |address| {
        Ok([curl(bench, &[&format!("http://{address}/{LARGE}")])?])
    });
    link.adjust(&Direction::BOTH, |link: Impairment| {
        link.delay(Duration::ZERO)
    })?;
    let runs = runs?;
    let how = format!("curl of a sparse file of {mib} MiB in memory, 25 ms of delay each way");
    let all = [0, 1, 2].map(|which| column(&runs[which], 0));
    Ok(of_member(
        "download.far",
        "Gbit/s",
        &all,
        &how,
        0.98,
        REQUESTS_BOUND,
    ))
}

/// Runs at a plain server, at a member, and at a pool of one member, in turns.
fn compare<const N: usize>(
    bench: &Bench,
    hosts: &PoolHosts,
    run: impl Fn(SocketAddr) -> Result<[f64; N]>,
) -> Result<[Vec<[f64; N]>; 3]> {
    let mut runs = [const { Vec::new() }; 3];
    for _ in 0..bench.rounds {
        bench.interrupt.check()?;
        let plain = hosts.start_plain(0, hosts.plain(0))?;
        runs[0].push(run(hosts.plain(0))?);
        plain.kill(Signal::TERM)?;
        ensure!(
            plain.wait_with_timeout(READ_TIMEOUT)?.is_some(),
            "nginx does not end"
        );
        let pool = Pool::start(hosts, 1, &[])?;
        hosts.bypass_balancer(&bench.stage.client, Some(0))?;
        let member = run(hosts.service());
        hosts.bypass_balancer(&bench.stage.client, None)?;
        runs[1].push(member?);
        runs[2].push(run(hosts.service())?);
        pool.stop()?;
    }
    Ok(runs)
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
fn pause(bench: &Bench, hosts: &PoolHosts, name: &str, lease: Option<&str>) -> Result<Vec<Figure>> {
    let rounds = bench.size(7, 1);
    bench.say(format_args!("{rounds} power-offs, {name} lease"));
    bench.stage.sparse(&format!("www/{LARGE}"), 4 << 30)?;
    let more: Vec<&str> = lease
        .into_iter()
        .flat_map(|lease| ["--lease", lease])
        .collect();
    let link = &bench.stage.client.links()[0];
    link.adjust(&Direction::BOTH, |link: Impairment| link.rate(LINK_RATE))?;
    let mut pauses = Vec::new();
    for _ in 0..rounds {
        let pool = Pool::start(hosts, 2, &more)?;
        let pause = power_off(bench, hosts, &pool);
        pool.stop()?;
        pauses.push(pause?.as_secs_f64() * 1e3);
    }
    link.adjust(&Direction::BOTH, Impairment::unlimited)?;
    let how = format!(
        "longest time without a byte of a download whose member's host loses power, one of two; lease of {}, client's link \
         of {} Mbit/s",
        lease.unwrap_or("25 to 250 ms (default)"),
        LINK_RATE / 1_000_000
    );
    let aim = if lease.is_some() { 80.0 } else { 300.0 };
    let figure = Figure::of(format!("objects.pause.{name}"), "ms", &pauses, how);
    Ok(vec![figure.aim(Aim::AtMost(aim), PAUSE_BOUND)])
}

fn power_off(bench: &Bench, hosts: &PoolHosts, pool: &Pool<'_>) -> Result<Duration> {
    let address = hosts.service();
    let mut stream = bench.stage.client.enter(|| TcpStream::connect(address))??;
    stream.set_read_timeout(Some(READ_TIMEOUT))?;
    // In one segment, as clients send it.
    let request = format!("GET /{LARGE} HTTP/1.1\r\nHost: pool\r\n\r\n");
    stream.write_all(request.as_bytes())?;
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
