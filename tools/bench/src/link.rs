//! The cost of a logger on a separate host: `serve --logger`, with the default `--ack`.

use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use lab::Direction;
use rustix::net::sockopt::set_socket_linger;

use super::Bench;
use super::figure::{Aim, Figure, column, compared, ratios};
use super::processors::{used_by, used_by_all};
use super::stage::{PORT, limit};
use super::subject::{Mode, Server, Subject, alternate, alternate_for};
use super::traffic::{IPERF_REST, curl, echoes, iperf, iperf_report, wrk};
use harness::quantile::quantile;

/// Without a limit of the rate.
const LINKED: Mode = Mode::Linked(None);
const BOTH: [Mode; 2] = [Mode::Plain, LINKED];
const GIGABIT_PER_SECOND: u64 = 1_000_000_000;

const NETWORK_BOUND: &str = "a segment is 28 bytes shorter, so that it fits the log link with its UDP and IP headers: \
     1420 of 1538 bytes of the equal log link are payload, not 1448, a ratio of 0.981; on a faster one 1420 of \
     1510, 0.999";
const DOWNLOAD_BOUND: &str = "each packet of the server is rewritten or looked at once at egress, and each ACK of \
     the client once at ingress and sent to the logger, which has nothing to record of it";
const ECHO_BOUND: &str = "each request is sent to the logger, too, and each acknowledgement of the logger becomes \
     one more packet for the client; all of it on the same two cores, where the answer is waiting to be sent";

/// Measurements with less noise than an upload need fewer pairs of runs.
fn rounds(bench: &Bench) -> usize {
    bench.rounds.min(5)
}

/// Throughput to the server, and where the time goes.
pub(super) fn upload(bench: &Bench) -> Result<Vec<Figure>> {
    // Below the record's limit per connection: beyond the limit the journal records no more bytes.
    let bytes = format!("{}M", bench.size(900, 128));
    bench.say("iperf3");
    let server = Server::iperf3(bench).pinned();
    let runs = alternate(bench, &server, &BOTH, |subject| {
        // The first upload waits for the kernel to clear the logger's memory.
        iperf(bench, &["-n", &bytes])?;
        one_upload(bench, subject, &bytes)
    })?;
    let how = format!(
        "iperf3 -n {bytes}, one connection, the second one; server, client and logger on three hosts of the lab that \
         share these processors"
    );
    let both = |which| [column(&runs[0], which), column(&runs[1], which)];
    let [plain, linked] = both(0);
    let [ratio, rest @ ..] = compared("link.upload", "linked", "Gbit/s", [&plain, &linked], &how);
    let mut parts = Vec::new();
    for (index, part) in PARTS.into_iter().enumerate() {
        let how = format!("{how}: {}", part.how);
        for (mode, values) in BOTH.into_iter().zip(both(index + 1)) {
            // Without outlive the parts are 0.
            if values.iter().all(|value| *value == 0.0) {
                continue;
            }
            let name = format!("link.upload.{}.{}", part.name, mode.name());
            parts.push(Figure::of(name, part.unit, &values, &how));
        }
    }
    let bound = upload_bound(&parts);
    let mut ratio = ratio.aim(Aim::AtLeast(0.60), &bound);
    ratio.how = format!("{}. What bounds it: {bound}", ratio.how);
    let figures = [ratio].into_iter().chain(rest).chain(parts);
    Ok(figures.collect())
}

/// A quantity that is measured besides the speed of an upload.
struct Part {
    name: &'static str,
    unit: &'static str,
    how: &'static str,
}

const PARTS: [Part; 6] = [
    Part {
        name: "client",
        unit: "ms/GB",
        how: "processor time of the client, as iperf3 says; a packet is received, and copied to the log link, in the \
              time of who sends it",
    },
    Part {
        name: "server",
        unit: "ms/GB",
        how: "processor time of the server, as iperf3 says",
    },
    Part {
        name: "logger",
        unit: "ms/GB",
        how: "processor time of the logger",
    },
    Part {
        name: "serve",
        unit: "ms/GB",
        how: "processor time of serve",
    },
    Part {
        name: "all",
        unit: "ms/GB",
        how: "what all processors worked during the run (/proc/stat), the kernel's own threads with it",
    },
    Part {
        name: "busy",
        unit: "%",
        how: "the same by the time of the run and the number of processors",
    },
];

/// The speed in Gbit/s, and the [`PARTS`].
fn one_upload(bench: &Bench, subject: &Subject<'_>, bytes: &str) -> Result<[f64; 7]> {
    let used = || -> Result<[f64; 3]> {
        let serve = subject.serve_pid().map_or(Ok(0.0), used_by)?;
        let logger = subject.logger_pid().map_or(Ok(0.0), used_by)?;
        Ok([logger, serve, used_by_all()?])
    };
    thread::sleep(IPERF_REST);
    let (before, began) = (used()?, Instant::now());
    let report = iperf_report(bench, &["-n", bytes])?;
    let (after, took) = (used()?, began.elapsed().as_secs_f64());
    let field = |path: &str| {
        let value = report.pointer(path).and_then(serde_json::Value::as_f64);
        value.with_context(|| format!("iperf3 did not say {path}"))
    };
    let received = field("/end/sum_received/bytes")?;
    let seconds = field("/end/sum_received/seconds")?;
    // A share of the transfer's time, in per cent of a processor.
    let of_transfer = |who: &str| {
        let percent = field(&format!("/end/cpu_utilization_percent/{who}_total"))?;
        anyhow::Ok(percent / 100.0 * seconds)
    };
    let per_gigabyte = |seconds: f64| seconds * 1e3 / (received * 1e-9);
    let [logger, serve, all] = [0, 1, 2].map(|which| after[which] - before[which]);
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let processors = f64::from(u32::try_from(processors)?);
    Ok([
        received * 8e-9 / seconds,
        per_gigabyte(of_transfer("host")?),
        per_gigabyte(of_transfer("remote")?),
        per_gigabyte(logger),
        per_gigabyte(serve),
        per_gigabyte(all),
        all / (took * processors) * 100.0,
    ])
}

/// The sentence about the bound, with figures.
fn upload_bound(parts: &[Figure]) -> String {
    let of = |name: &str| {
        let part = parts.iter().find(|part| part.name.ends_with(name));
        part.map_or(f64::NAN, |part| part.value)
    };
    format!(
        "a GB takes the processors {:.0} ms of work plainly (client {:.0}, server {:.0}) and {:.0} ms with the logger \
         (client {:.0}, server {:.0}, logger {:.0}, serve {:.0}), of which the programs and the copy to the log link \
         are in the client's; they are busy {:.0} % of the time. With all of them busy it cannot be more than {:.2}; \
         a logger on a machine of its own takes its part away from here",
        of("all.plain"),
        of("client.plain"),
        of("server.plain"),
        of("all.linked"),
        of("client.linked"),
        of("server.linked"),
        of("logger.linked"),
        of("serve.linked"),
        of("busy.linked"),
        of("all.plain") / of("all.linked"),
    )
}

/// Uploads over a network that has a rate.
pub(super) fn network(bench: &Bench) -> Result<Vec<Figure>> {
    let modes = [
        Mode::Plain,
        Mode::Linked(Some(GIGABIT_PER_SECOND)),
        Mode::Linked(Some(10 * GIGABIT_PER_SECOND)),
    ];
    let bytes = bench.size("192M", "96M");
    bench.say("iperf3, 1 Gbit/s");
    limit(&bench.stage.client, Some(GIGABIT_PER_SECOND))?;
    let server = Server::iperf3(bench).pinned();
    let runs = alternate_for(bench, rounds(bench), &server, &modes, |_| {
        Ok([iperf(bench, &["-n", bytes])?])
    });
    limit(&bench.stage.client, None)?;
    bench.stage.set_log_rate(None)?;
    let runs = runs?;
    let plain = column(&runs[0], 0);
    let mut figures = Vec::new();
    for (name, log, aim, runs) in [
        ("equal", "1 Gbit/s, too", 0.97, &runs[1]),
        ("faster", "10 Gbit/s", 0.99, &runs[2]),
    ] {
        let how = format!("iperf3 -n {bytes}; the client's link has 1 Gbit/s, the log link {log}");
        let name = format!("link.network.{name}");
        let [ratio, rest @ ..] =
            compared(&name, "linked", "Gbit/s", [&plain, &column(runs, 0)], &how);
        figures.push(ratio.aim(Aim::AtLeast(aim), NETWORK_BOUND));
        figures.extend(rest);
    }
    Ok(figures)
}

/// Small messages, each after the response before: on the bare lab, and with a delay on the client's link.
pub(super) fn echo(bench: &Bench) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (name, delay, trips) in [
        ("link.echo", Duration::ZERO, bench.size(20_000, 5_000)),
        (
            "link.echo.100us",
            Duration::from_micros(100),
            bench.size(3_000, 1_000),
        ),
    ] {
        let link = &bench.stage.client.links()[0];
        link.adjust(&Direction::BOTH, |link| link.delay(delay))?;
        let measured = echoes(
            bench,
            rounds(bench),
            name,
            BOTH,
            trips,
            Aim::AtMost(1.15),
            ECHO_BOUND,
        );
        link.adjust(&Direction::BOTH, |link| link.delay(Duration::ZERO))?;
        for mut figure in measured? {
            figure.how += &match delay.as_micros() {
                0 => "; the lab's links have no delay".to_owned(),
                delay => format!(
                    "; the client's link has {delay} µs each way, to which the lab's relay adds its own, \
                     the log link none"
                ),
            };
            figures.push(figure);
        }
    }
    Ok(figures)
}

/// New connections, each of which waits for the logger.
pub(super) fn connections(bench: &Bench) -> Result<Vec<Figure>> {
    let modes = [Mode::Plain, Mode::Protected("connection"), LINKED];
    let address = bench.stage.address(PORT);
    let url = format!("http://{address}/small");
    let duration = bench.size("-d2s", "-d1s");
    let connects = bench.size(2000, 500);
    bench.say("wrk with Connection: close");
    let server = Server::nginx(bench).pinned();
    let runs = alternate_for(bench, rounds(bench), &server, &modes, |_| {
        let header = "Connection: close";
        let a_second = wrk(bench, &["-t1", "-c16", duration, "-H", header, &url])?;
        let client = &bench.stage.client;
        let one = client.enter(|| connect_time(bench, address, connects))??;
        Ok([a_second, one])
    })?;
    let wrk = format!(
        "wrk -t1 -c16 {duration}, a new connection for each request, nginx with two workers"
    );
    let connect = format!(
        "from a SYN until the connection is there, the median of {connects} one after another, nginx"
    );
    let mut figures = Vec::new();
    for (index, (name, unit, how)) in [("connections", "1/s", &wrk), ("connect", "µs", &connect)]
        .into_iter()
        .enumerate()
    {
        let plain = column(&runs[0], index);
        figures.push(Figure::of(format!("{name}.plain"), unit, &plain, how));
        for (mode, runs) in modes.iter().zip(&runs).skip(1) {
            let values = column(runs, index);
            let other = mode.name();
            let ratio = format!("{name}.{other}.ratio");
            figures.push(Figure::of(ratio, "", &ratios(&plain, &values), how));
            figures.push(Figure::of(format!("{name}.{other}"), unit, &values, how));
        }
    }
    Ok(figures)
}

/// How long the client's TCP takes to open a connection, in microseconds.
fn connect_time(bench: &Bench, address: SocketAddr, times: usize) -> Result<f64> {
    let mut took = Vec::with_capacity(times);
    for _ in 0..times {
        bench.interrupt.check()?;
        let began = Instant::now();
        let stream = TcpStream::connect(address)?;
        took.push(began.elapsed().as_secs_f64() * 1e6);
        // A close by RST leaves no TIME_WAIT.
        set_socket_linger(&stream, Some(Duration::ZERO))?;
    }
    took.sort_by(f64::total_cmp);
    Ok(quantile(&took, 0.5))
}

/// Throughput from the server.
pub(super) fn download(bench: &Bench) -> Result<Vec<Figure>> {
    let size: u64 = bench.size(2 << 30, 256 << 20);
    bench.stage.sparse("www/large", size)?;
    let url = format!("http://{}/large", bench.stage.address(PORT));
    bench.say("nginx with sendfile, curl");
    let server = Server::nginx(bench).pinned();
    let runs = alternate_for(bench, rounds(bench), &server, &BOTH, |_| {
        curl(bench, &["-r", "0-33554431", &url])?;
        Ok([curl(bench, &[&url])?])
    })?;
    let how = format!(
        "curl of a sparse file of {} MiB in memory, one connection, nginx with sendfile",
        size >> 20
    );
    let [plain, linked] = [column(&runs[0], 0), column(&runs[1], 0)];
    let [ratio, rest @ ..] = compared("link.download", "linked", "Gbit/s", [&plain, &linked], &how);
    let ratio = ratio.aim(Aim::AtLeast(0.95), DOWNLOAD_BOUND);
    Ok([ratio].into_iter().chain(rest).collect())
}
