//! The usual protection against dying hosts, beside `outlive`: two hosts with HAProxy, with an address that keepalived
//! moves between both, and two nginx behind; and one nginx under `outlive serve` with a standby and a logger. The same
//! clients; the host with the address loses power, again and again.

mod proxies;

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::figure::Figure;
use super::haproxy::users::{self, Seen, Users};
use super::haproxy::{LINK_RATE, of_kills, of_speeds, promised, side, speeds};
use super::stage::{PORT, limit};
use super::subject::{Mode, Server, Subject};
use super::takeover::{DEFAULT_LEASE_MS, Hosts, Pair, Served, address};
use super::{Bench, Measured};
use proxies::{ADVERT_MS, Proxies};

/// Time from the moment that all is well to the next power-off.
const POWER_OFF_INTERVAL: Duration = Duration::from_millis(1300);
/// Time without power.
const POWER_OFF_TIME: Duration = Duration::from_millis(1500);

pub(super) fn measure(bench: &Bench) -> Result<Measured> {
    let proxies = Proxies::add(bench)?;
    let hosts = Hosts::of(bench)?;
    let mut figures = throughput(bench, &proxies, &hosts)?;
    let kills = bench.size(10, 2);
    limit(&bench.stage.client, Some(LINK_RATE))?;
    bench.say(format_args!("{kills} power-offs, HAProxy and keepalived"));
    let behind = power_offs_of_proxies(bench, &proxies, kills);
    bench.say(format_args!("{kills} power-offs, outlive"));
    let under = power_offs_of_pair(bench, &hosts, kills);
    limit(&bench.stage.client, None)?;
    let (behind, under) = (behind?, under?);
    let how = format!(
        "{kills} times a power-off of the host that has the address, which has its power again {} ms later; the client's \
         link has 1 Gbit/s, {}",
        POWER_OFF_TIME.as_millis(),
        users::WHAT
    );
    let set_up = format!(
        "{how}; keepalived 2.2 with VRRP version 3, advert_int {} s, nopreempt: three advertisements may be missing",
        f64::from(ADVERT_MS) / 1e3
    );
    figures.extend(of_kills("keepalived", &behind, &set_up));
    let how = format!("{how}; a lease of {DEFAULT_LEASE_MS} ms");
    figures.extend(promised(of_kills("standby", &under, &how)));
    let notes = vec![summary(&figures, kills)];
    Ok(Measured {
        figures,
        notes,
        ..Measured::default()
    })
}

/// Without power-offs: a large object, and small ones, beside nginx alone.
fn throughput(bench: &Bench, proxies: &Proxies, hosts: &Hosts) -> Result<Vec<Figure>> {
    let size: u64 = bench.size(2 << 30, 256 << 20);
    bench.stage.sparse("www/large", size)?;
    bench.say("curl and wrk: nginx alone, HAProxy and keepalived, outlive");
    let mut runs = [const { Vec::new() }; 3];
    for _ in 0..bench.rounds.min(3) {
        bench.interrupt.check()?;
        let subject = Subject::start(bench, &Server::nginx(bench), Mode::Plain)?;
        runs[0].push(speeds(bench, bench.stage.address(PORT))?);
        subject.stop()?;
        let running = proxies.start(bench)?;
        runs[1].push(speeds(bench, running.address())?);
        drop(running);
        let mut pair = Pair::start(bench, hosts, &Served::Nginx, Some(DEFAULT_LEASE_MS))?;
        pair.stand_by()?;
        runs[2].push(speeds(bench, address()?)?);
        pair.stop()?;
    }
    let [direct, others @ ..] = &runs;
    let whos = ["keepalived", "standby"];
    Ok(of_speeds(
        "compare.one_host",
        direct,
        whos.into_iter().zip(others),
        size,
    ))
}

fn power_offs_of_proxies(bench: &Bench, proxies: &Proxies, kills: usize) -> Result<Seen> {
    let mut running = proxies.start(bench)?;
    let users = Users::start(bench, running.address())?;
    let killed = (0..kills).map(|_| {
        pause(bench, POWER_OFF_INTERVAL)?;
        let at = Instant::now();
        running.power_off()?;
        pause(bench, POWER_OFF_TIME)?;
        running.come_back()?;
        Ok(at)
    });
    let killed = killed.collect::<Result<Vec<_>>>();
    users.finish(bench, POWER_OFF_INTERVAL, &killed?)
}

fn power_offs_of_pair(bench: &Bench, hosts: &Hosts, kills: usize) -> Result<Seen> {
    let mut pair = Pair::start(bench, hosts, &Served::Nginx, Some(DEFAULT_LEASE_MS))?;
    pair.stand_by()?;
    let users = Users::start(bench, address()?)?;
    let killed = (0..kills).map(|_| {
        pause(bench, POWER_OFF_INTERVAL)?;
        let at = Instant::now();
        pair.power_off()?;
        pair.wait_for(0, "serving")?;
        pause(bench, POWER_OFF_TIME)?;
        for complaint in pair.complaints()? {
            bench.say(complaint);
        }
        pair.come_back()?;
        Ok(at)
    });
    let killed = killed.collect::<Result<Vec<_>>>();
    let seen = users.finish(bench, POWER_OFF_INTERVAL, &killed?)?;
    pair.stop().context("after the power-offs")?;
    Ok(seen)
}

fn pause(bench: &Bench, long: Duration) -> Result<()> {
    thread::sleep(long);
    bench.interrupt.check()
}

/// The paragraph for the report.
fn summary(figures: &[Figure], kills: usize) -> String {
    format!(
        "**HAProxy with keepalived, and outlive with a standby, under the same {kills} power-offs.** With two HAProxy \
         hosts, two nginx behind them and keepalived (advertisements every {ADVERT_MS} ms), {}. With outlive on two \
         hosts, a logger on a third, and leases of {DEFAULT_LEASE_MS} ms, {}. keepalived moves the address and nothing \
         else: every connection through the dead proxy is reset when its client speaks to the other one.",
        side(figures, "keepalived"),
        side(figures, "standby"),
    )
}
