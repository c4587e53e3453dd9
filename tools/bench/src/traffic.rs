//! The cost of an undisturbed connection: throughput both ways, round trips, requests.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::thread::{CpuSet, sched_setaffinity};
use serde_json::Value;

use super::Bench;
use super::figure::{Aim, Figure, column, compared, ratios};
use super::stage::PORT;
use super::subject::{Mode, Server, alternate, alternate_for, several_cpus};
use harness::quantile::quantile;

/// Longest time of a transfer.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(60);
/// An iperf3 that was just started, or just left by another client, refuses for a moment.
pub(super) const IPERF_REST: Duration = Duration::from_millis(300);
const BOTH: [Mode; 2] = [Mode::Plain, Mode::Protected("connection")];

const DOWNLOAD_BOUND: &str = "each packet of the server is rewritten or looked at once at egress, and each \
     ACK of the client once at ingress (some 0.3 µs each); fewer, larger GSO packets would lift it";
const UPLOAD_BOUND: &str = "every byte of the client is copied twice more: into the ring, and by the logger out of \
     it into its record. On a machine with two cores the logger takes this time from client and server; a core of \
     its own for the logger would lift it, and so would a record made of the ring's own pages";
const ECHO_BOUND: &str = "two programs per packet and a copy of each request into the ring, on round trips that \
     have no network in them";

/// Throughput from the server.
pub(super) fn download(bench: &Bench) -> Result<Vec<Figure>> {
    let size: u64 = bench.size(3 << 30, 256 << 20);
    bench.stage.sparse("www/large", size)?;
    let url = format!("http://{}/large", bench.stage.address(PORT));
    bench.say("nginx with sendfile, curl");
    let nginx = alternate(bench, &Server::nginx(bench).pinned(), &BOTH, |_| {
        curl(bench, &["-r", "0-33554431", &url])?;
        Ok([curl(bench, &[&url])?])
    })?;
    bench.say("iperf3 -R");
    let seconds = bench.size("2", "1");
    let iperf3 = alternate(bench, &Server::iperf3(bench).pinned(), &BOTH, |_| {
        Ok([iperf(bench, &["-R", "-t", seconds])?])
    })?;
    let how = format!(
        "curl of a sparse file of {} MiB in memory, one connection, nginx with sendfile",
        size >> 20
    );
    let mut figures = throughput("download.nginx", &nginx, 0.95, &how, DOWNLOAD_BOUND);
    let how = format!("iperf3 -R for {seconds} s, one connection");
    figures.extend(throughput(
        "download.iperf3",
        &iperf3,
        0.95,
        &how,
        DOWNLOAD_BOUND,
    ));
    Ok(figures)
}

/// Throughput to the server.
pub(super) fn upload(bench: &Bench) -> Result<Vec<Figure>> {
    // Below the record's limit per connection: beyond the limit the journal records no more bytes.
    let mib: u64 = bench.size(900, 128);
    let bytes = format!("{mib}M");
    bench.say("iperf3");
    // The first upload after the start of a logger waits for the kernel to clear memory. The logger keeps that memory
    // for the next uploads, as between the uploads of a busy service.
    let upload = || iperf(bench, &["-n", &bytes]);
    let iperf3 = alternate(bench, &Server::iperf3(bench).pinned(), &BOTH, |_| {
        let first = upload()?;
        Ok([upload()?, first])
    })?;
    bench.say("iperf3, 1 Gbit/s");
    let paced = alternate(bench, &Server::iperf3(bench).pinned(), &BOTH, |_| {
        Ok([iperf(bench, &["-n", "256M", "-b", "1G"])?])
    })?;
    bench.say("curl -T, nginx");
    let file = bench.stage.sparse("upload", mib << 20)?;
    let file = file.to_string_lossy().into_owned();
    let url = format!("http://{}/put", bench.stage.address(PORT));
    let nginx = alternate(bench, &Server::nginx(bench).pinned(), &BOTH, |_| {
        let mut speed = 0.0;
        for _warm in [false, true] {
            speed = curl(bench, &["-T", &file, &url])?;
            std::fs::remove_file(bench.stage.file("www/put"))?;
        }
        Ok([speed])
    })?;
    let how = format!("iperf3 -n {bytes}, one connection, the second one");
    let mut figures = throughput("upload.iperf3", &iperf3, 0.80, &how, UPLOAD_BOUND);
    let first = column(&iperf3[1], 1);
    let how = "the same, the first upload after the start of outlive";
    figures.push(Figure::of("upload.iperf3.first", "Gbit/s", &first, how));
    let how = "iperf3 -n 256M -b 1G: a client behind a link of 1 Gbit/s";
    figures.extend(throughput("upload.paced", &paced, 0.80, how, UPLOAD_BOUND));
    let how = format!(
        "curl -T of {mib} MiB of zeros to nginx, which keeps them in a file in memory, the second one"
    );
    figures.extend(throughput("upload.nginx", &nginx, 0.80, &how, UPLOAD_BOUND));
    Ok(figures)
}

/// A ratio with an aim, and both figures of the ratio.
fn throughput<const N: usize>(
    name: &str,
    runs: &[Vec<[f64; N]>],
    aim: f64,
    how: &str,
    bound: &'static str,
) -> Vec<Figure> {
    let (plain, protected) = (column(&runs[0], 0), column(&runs[1], 0));
    let [ratio, figures @ ..] = compared(name, "protected", "Gbit/s", [&plain, &protected], how);
    let ratio = ratio.aim(Aim::AtLeast(aim), bound);
    [ratio].into_iter().chain(figures).collect()
}

/// Runs a client on another CPU than the server's.
pub(super) fn on_client(bench: &Bench, program: &str, arguments: &[&str]) -> Result<String> {
    let mut all = vec!["-c", if several_cpus() { "1" } else { "0" }, program];
    all.extend(arguments);
    bench
        .stage
        .run("taskset", &all, TRANSFER_TIMEOUT, &bench.interrupt)
}

/// Runs curl, and returns the speed in Gbit/s.
pub(super) fn curl(bench: &Bench, arguments: &[&str]) -> Result<f64> {
    let format = "%{speed_download} %{speed_upload}";
    let mut all = vec!["-sS", "--fail", "-o", "/dev/null", "-w", format];
    all.extend(arguments);
    let said = on_client(bench, "curl", &all)?;
    let speeds: Vec<f64> = said
        .split(' ')
        .filter_map(|word| word.parse().ok())
        .collect();
    let bytes_per_second = speeds.iter().copied().fold(0.0, f64::max);
    ensure!(
        bytes_per_second > 0.0,
        "curl has transferred nothing: {said}"
    );
    Ok(bytes_per_second * 8e-9)
}

/// Runs iperf3, and returns the received rate, in Gbit/s.
pub(super) fn iperf(bench: &Bench, arguments: &[&str]) -> Result<f64> {
    std::thread::sleep(IPERF_REST);
    let report = iperf_report(bench, arguments)?;
    let bits = report["end"]["sum_received"]["bits_per_second"].as_f64();
    Ok(bits.context("iperf3 did not say how fast it was")? * 1e-9)
}

/// Runs iperf3, and returns the report.
pub(super) fn iperf_report(bench: &Bench, arguments: &[&str]) -> Result<Value> {
    let server = bench.stage.address(0).ip().to_string();
    let mut all = vec!["-J", "-c", &server];
    all.extend(arguments);
    let said = on_client(bench, "iperf3", &all)?;
    serde_json::from_str(&said).context("iperf3 did not print JSON")
}

/// Round trips of 64 bytes over a connection.
pub(super) fn echo(bench: &Bench) -> Result<Vec<Figure>> {
    let trips = bench.size(20_000, 5_000);
    echoes(
        bench,
        bench.rounds,
        "echo",
        BOTH,
        trips,
        Aim::AtMost(1.10),
        ECHO_BOUND,
    )
}

/// The same, plainly and in another mode, with an aim for the median.
pub(super) fn echoes(
    bench: &Bench,
    rounds: usize,
    name: &str,
    modes: [Mode; 2],
    trips: usize,
    aim: Aim,
    bound: &'static str,
) -> Result<Vec<Figure>> {
    bench.say(format_args!("{trips} round trips a run"));
    let server = Server::own(bench, "echo").pinned();
    let runs = alternate_for(bench, rounds, &server, &modes, |_| {
        let address = bench.stage.address(PORT);
        let client = &bench.stage.client;
        client.enter(|| round_trips(bench, address, trips))?
    })?;
    let how = format!(
        "{trips} round trips of 64 bytes a run over one connection, TCP_NODELAY, an echo server of our own"
    );
    let mut figures = Vec::new();
    for (index, part) in ["p50", "p99"].into_iter().enumerate() {
        let (plain, protected) = (column(&runs[0], index), column(&runs[1], index));
        let name = format!("{name}.{part}");
        let [ratio, rest @ ..] = compared(&name, modes[1].name(), "µs", [&plain, &protected], &how);
        figures.push(if index == 0 {
            ratio.aim(aim, bound)
        } else {
            ratio
        });
        figures.extend(rest);
    }
    Ok(figures)
}

/// Median and 99th percentile, in microseconds. Pins the calling thread to the client's CPU.
fn round_trips(bench: &Bench, address: SocketAddr, trips: usize) -> Result<[f64; 2]> {
    if several_cpus() {
        let mut cpus = CpuSet::new();
        cpus.set(1);
        sched_setaffinity(None, &cpus)?;
    }
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TRANSFER_TIMEOUT))?;
    let (sent, mut received) = ([0x5a; 64], [0; 64]);
    let mut took = Vec::with_capacity(trips);
    for trip in 0..trips + trips / 10 {
        if trip % 1000 == 0 {
            bench.interrupt.check()?;
        }
        let began = Instant::now();
        stream.write_all(&sent)?;
        stream.read_exact(&mut received)?;
        // The first tenth is to get warm.
        if trip >= trips / 10 {
            took.push(began.elapsed().as_secs_f64() * 1e6);
        }
    }
    ensure!(sent == received, "the echo is not what was sent");
    took.sort_by(f64::total_cmp);
    Ok([quantile(&took, 0.5), quantile(&took, 0.99)])
}

/// Small objects over 16 connections that stay.
pub(super) fn requests(bench: &Bench) -> Result<Vec<Figure>> {
    let modes = [
        Mode::Plain,
        Mode::Protected("connection"),
        Mode::Protected("request"),
    ];
    let url = format!("http://{}/small", bench.stage.address(PORT));
    let duration = bench.size("-d2s", "-d1s");
    bench.say("wrk with 16 connections");
    let runs = alternate(bench, &Server::nginx(bench).pinned(), &modes, |_| {
        Ok([wrk(bench, &["-t1", "-c16", duration, &url])?])
    })?;
    let how = format!("wrk -t1 -c16 {duration} of an object of 128 bytes, nginx with two workers");
    let plain = column(&runs[0], 0);
    let mut figures = vec![Figure::of("requests.plain", "1/s", &plain, &how)];
    let names = [("connection", "connection"), ("request", "turn")];
    for ((mode, name), runs) in names.into_iter().zip(&runs[1..]) {
        let how = format!("{how}; --replay {mode}");
        let protected = column(runs, 0);
        let ratio = ratios(&plain, &protected);
        figures.push(Figure::of(
            format!("requests.{name}.ratio"),
            "",
            &ratio,
            &how,
        ));
        figures.push(Figure::of(
            format!("requests.{mode}"),
            "1/s",
            &protected,
            &how,
        ));
    }
    Ok(figures)
}

/// Runs wrk, and returns the requests a second.
pub(super) fn wrk(bench: &Bench, arguments: &[&str]) -> Result<f64> {
    harness::wrk::requests_per_second(&on_client(bench, "wrk", arguments)?)
}
