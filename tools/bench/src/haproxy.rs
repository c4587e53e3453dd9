//! The usual protection against dying servers, beside `outlive`: HAProxy in front of two nginx, and one nginx under
//! `outlive serve` with a logger on another host. The same clients, the same kills.
//!
//! HAProxy is configured to notice as fast as possible and to retry every request that may be retried ([`proxied`]); a
//! request may not be retried once the client has received a part of the response. A killed nginx is restarted at
//! once. [`users`] are the clients.

pub(super) mod proxied;
pub(super) mod users;

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use lab::{Host, Pid};

use super::figure::{Aim, Figure, column, ratios};
use super::stage::{PORT, limit};
use super::subject::{Mode, Server, Subject};
use super::traffic::{curl, wrk};
use super::{Bench, Measured};
use harness::quantile::quantile;
use proxied::Proxied;
use users::{Seen, Users};

const LINKED: Mode = Mode::Linked(None);
/// Time from a kill to the next: serve restarts a server of this age without a pause.
const KILL_INTERVAL: Duration = Duration::from_millis(1300);
/// Rate of the client's link while servers are killed, bit/s: low enough that downloads take a while.
pub(super) const LINK_RATE: u64 = 1_000_000_000;
const STEP_TIMEOUT: Duration = Duration::from_secs(20);
/// Option of wrk.
const WRK_DURATION: &str = "-d1s";

pub(super) fn measure(bench: &Bench) -> Result<Measured> {
    let hosts = proxied::hosts(bench)?;
    let mut figures = throughput(bench, &hosts)?;
    let kills = bench.size(10, 3);
    limit(&bench.stage.client, Some(LINK_RATE))?;
    bench.say(format_args!("{kills} kills behind HAProxy"));
    let behind = killed_behind_proxy(bench, &hosts, kills);
    bench.say(format_args!("{kills} kills under outlive"));
    let under = killed_under_outlive(bench, kills);
    limit(&bench.stage.client, None)?;
    let (behind, under) = (behind?, under?);
    let how = format!(
        "{kills} times SIGKILL of all processes of an nginx, {} ms apart; the client's link has 1 Gbit/s, {}",
        KILL_INTERVAL.as_millis(),
        users::WHAT
    );
    figures.extend(of_kills("haproxy", &behind, &how));
    figures.extend(promised(of_kills("outlive", &under, &how)));
    let notes = vec![summary(&figures, kills)];
    Ok(Measured {
        figures,
        notes,
        ..Measured::default()
    })
}

/// Without kills: a large object, and small ones, beside nginx alone.
fn throughput(bench: &Bench, hosts: &[Host; 3]) -> Result<Vec<Figure>> {
    let size: u64 = bench.size(2 << 30, 256 << 20);
    bench.stage.sparse("www/large", size)?;
    let server = Server::nginx(bench).pinned();
    bench.say("curl and wrk: nginx alone, behind HAProxy, under outlive");
    let mut runs = [const { Vec::new() }; 3];
    for _ in 0..bench.rounds.min(3) {
        for (which, runs) in runs.iter_mut().enumerate() {
            bench.interrupt.check()?;
            if which == 1 {
                let proxied = Proxied::start(bench, hosts)?;
                runs.push(speeds(bench, proxied.address())?);
                continue;
            }
            let mode = if which == 0 { Mode::Plain } else { LINKED };
            let subject = Subject::start(bench, &server, mode)?;
            runs.push(speeds(bench, bench.stage.address(PORT))?);
            subject.stop()?;
        }
    }
    let [direct, others @ ..] = &runs;
    let whos = ["haproxy", "outlive"];
    Ok(of_speeds(
        "compare.direct",
        direct,
        whos.into_iter().zip(others),
        size,
    ))
}

/// Throughput of a large object, in Gbit/s, and small objects a second.
pub(super) fn speeds(bench: &Bench, address: SocketAddr) -> Result<[f64; 2]> {
    let url = format!("http://{address}/large");
    curl(bench, &["-r", "0-33554431", &url])?;
    let large = curl(bench, &[&url])?;
    let url = format!("http://{address}/small");
    Ok([large, wrk(bench, &["-t1", "-c16", WRK_DURATION, &url])?])
}

/// [`speeds`] of nginx alone, and of the compared services.
pub(super) fn of_speeds<'a>(
    alone: &str,
    direct: &[[f64; 2]],
    others: impl Iterator<Item = (&'a str, &'a Vec<[f64; 2]>)> + Clone,
    size: u64,
) -> Vec<Figure> {
    let mut figures = Vec::new();
    for (index, (name, unit, how)) in [
        (
            "download",
            "Gbit/s",
            format!(
                "curl of a sparse file of {} MiB in memory, one connection, nginx with sendfile",
                size >> 20
            ),
        ),
        (
            "requests",
            "1/s",
            format!("wrk -t1 -c16 {WRK_DURATION} of an object of 128 bytes"),
        ),
    ]
    .into_iter()
    .enumerate()
    {
        let direct = column(direct, index);
        let plain = format!("{alone}.speed.{name}");
        figures.push(Figure::of(plain, unit, &direct, &how));
        for (who, runs) in others.clone() {
            let values = column(runs, index);
            let name = format!("compare.{who}.speed.{name}");
            let ratio = ratios(&direct, &values);
            figures.push(Figure::of(format!("{name}.ratio"), "", &ratio, &how));
            figures.push(Figure::of(name, unit, &values, &how));
        }
    }
    figures
}

/// Kills both nginx in turn.
fn killed_behind_proxy(bench: &Bench, hosts: &[Host; 3], kills: usize) -> Result<Seen> {
    let mut proxied = Proxied::start(bench, hosts)?;
    let users = Users::start(bench, proxied.address())?;
    let killed = (0..kills).map(|number| {
        pause(bench)?;
        proxied.kill(number % 2)
    });
    let killed = killed.collect::<Result<Vec<_>>>();
    users.finish(bench, KILL_INTERVAL, &killed?)
}

fn killed_under_outlive(bench: &Bench, kills: usize) -> Result<Seen> {
    let mut subject = Subject::start(bench, &Server::nginx(bench), LINKED)?;
    let users = Users::start(bench, bench.stage.address(PORT))?;
    let killed = (0..kills).map(|_| {
        pause(bench)?;
        let at = Instant::now();
        kill_nginx(&bench.stage.server)?;
        subject.wait_for("serving", STEP_TIMEOUT)?;
        Ok(at)
    });
    let killed = killed.collect::<Result<Vec<_>>>();
    let seen = users.finish(bench, KILL_INTERVAL, &killed?)?;
    if seen.why.is_some() {
        bench.say(format_args!(
            "serve says: {}",
            subject.complaints()?.join("; ")
        ));
        subject.end()?;
    } else {
        subject.stop()?;
    }
    Ok(seen)
}

fn pause(bench: &Bench) -> Result<()> {
    thread::sleep(KILL_INTERVAL);
    bench.interrupt.check()
}

/// Kills all nginx processes of a host at once.
fn kill_nginx(host: &Host) -> Result<()> {
    let is_nginx = |pid: &Pid| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
        name.is_ok_and(|name| name.trim() == "nginx")
    };
    let pids: Vec<Pid> = host.pids()?.into_iter().filter(is_nginx).collect();
    host.kill(&pids).context("nginx cannot be killed")
}

/// `outlive` must break no connection; the rivals promise as much or as little as their authors decide.
pub(super) fn promised(figures: Vec<Figure>) -> impl Iterator<Item = Figure> {
    figures.into_iter().map(|figure| {
        if figure.name.ends_with(".broken") {
            figure
                .aim(Aim::AtMost(0.0), "connections were lost: a defect")
                .promise()
        } else {
            figure
        }
    })
}

pub(super) fn of_kills(who: &str, seen: &Seen, how: &str) -> Vec<Figure> {
    let figure = |what: &str, unit, value: f64, words: &str| {
        let name = format!("compare.{who}.{what}");
        Figure::of(name, unit, &[value], format!("{how}: {words}"))
    };
    let whole = |count: usize| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
    let mut pauses = seen.pauses.clone();
    pauses.sort_by(f64::total_cmp);
    let mut figures = vec![
        figure("downloads", "", whole(seen.downloads), "downloads begun"),
        figure(
            "downloads.hit",
            "",
            whole(seen.hit),
            "downloads that were under way when a server was killed, the one that served them or the other",
        ),
        figure(
            "downloads.broken",
            "",
            whole(seen.broken_downloads),
            "downloads that failed, ended early, or had other bytes than they should",
        ),
        figure("requests", "", whole(seen.requests), "small requests"),
        figure(
            "requests.broken",
            "",
            whole(seen.broken_requests),
            "small requests that were not answered with what was asked for, or whose connection was closed",
        ),
        figure(
            "requests.wait.max",
            "ms",
            seen.longest_wait,
            "the longest wait for the answer to a small request",
        ),
    ];
    if !pauses.is_empty() {
        for (part, of) in [("p50", 0.5), ("max", 1.0)] {
            figures.push(figure(
                &format!("downloads.pause.{part}"),
                "ms",
                quantile(&pauses, of),
                "the longest time without a byte, of each download that was hit and was whole in the end",
            ));
        }
    }
    figures
}

/// The paragraph for the report.
fn summary(figures: &[Figure], kills: usize) -> String {
    format!(
        "**HAProxy and outlive under the same {kills} kills.** Behind HAProxy with two nginx, {}. Under outlive, with \
         one nginx and a logger on another host, {}. HAProxy masks a death for requests that may be asked again, and \
         the other nginx serves meanwhile; what was being answered by the dead one is lost.",
        side(figures, "haproxy"),
        side(figures, "outlive"),
    )
}

/// The result of a compared service, as a sentence.
pub(super) fn side(figures: &[Figure], who: &str) -> String {
    let of = |what: &str| {
        let name = format!("compare.{who}.{what}");
        let figure = figures.iter().find(|figure| figure.name == name);
        figure.map_or_else(|| "-".to_owned(), Figure::shown)
    };
    format!(
        "{} of {} downloads broke ({} were under way at a kill, on whichever server), and {} of {} small requests; \
         downloads that were under way and came whole paused for {} (median; at most {}), a small request waited at \
         most {}. Without kills it carries {} of what nginx alone does of a large object, and {} of small requests",
        of("downloads.broken"),
        of("downloads"),
        of("downloads.hit"),
        of("requests.broken"),
        of("requests"),
        of("downloads.pause.p50"),
        of("downloads.pause.max"),
        of("requests.wait.max"),
        of("speed.download.ratio"),
        of("speed.requests.ratio"),
    )
}
