//! Other balancers beside the pool: the same downloads, and the same power-off of the host of the first member.
//!
//! The servers are the narrowest part: each sends a download at a low rate. So all downloads are under way at the
//! power-off behind every balancer, and no proxy has the rest of a response in its buffers.

mod proxies;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use harness::direct_return::{DETECTION_TIME, DirectReturn};
use harness::pool::{PACED_RATE, Pool, PoolHosts, WebServer};

use self::proxies::{Proxied, Proxy};
use crate::Bench;
use crate::download::{Download, object};
use crate::figure::{Aim, Figure};

const CLIENT_COUNT: usize = 40;
/// A download takes three seconds.
const OBJECT_BYTES: usize = 6 << 20;
/// Time from the first connection to the power-off.
const TIME_BEFORE_DEATH: Duration = Duration::from_secs(1);
/// Number of members. The host of the first loses power.
const MEMBER_COUNT: usize = 2;
const DYING_MEMBER: usize = 0;

/// A way to share downloads among servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Balancer {
    Outlive,
    Nftables,
    Proxy(Proxy),
}

impl Balancer {
    const ALL: [Self; 4] = [
        Self::Outlive,
        Self::Nftables,
        Self::Proxy(Proxy::Haproxy),
        Self::Proxy(Proxy::Nginx),
    ];

    /// The set-up, in words.
    fn how(self) -> String {
        match self {
            Self::Outlive => "a pool of outlive with default options".to_owned(),
            Self::Nftables => format!(
                "nftables with jhash mod 2 and direct server return, the dead server is left out after {} ms",
                DETECTION_TIME.as_millis()
            ),
            Self::Proxy(proxy) => proxy.how().to_owned(),
        }
    }

    /// Downloads behind this balancer, with a power-off in the middle.
    fn run(self, bench: &Bench, hosts: &PoolHosts, object: &Arc<[u8]>) -> Result<Seen> {
        let dying = hosts.host(DYING_MEMBER);
        match self {
            Self::Outlive => {
                let pool = Pool::start(hosts, MEMBER_COUNT, &[])?;
                let power_off = || pool.power_off(DYING_MEMBER);
                let seen = downloads(bench, hosts, hosts.service(), object, power_off)?;
                pool.stop()?;
                Ok(seen)
            }
            Self::Nftables => {
                let mut servers = DirectReturn::start(hosts, &[&bench.stage.client], MEMBER_COUNT)?;
                let seen = downloads(bench, hosts, hosts.service(), object, || {
                    dying.power_off()?;
                    servers.leave_out(DYING_MEMBER)
                })?;
                servers.stop()?;
                Ok(seen)
            }
            Self::Proxy(proxy) => {
                let proxied = Proxied::start(bench, hosts, proxy)?;
                let power_off = || Ok(dying.power_off()?);
                let seen = downloads(bench, hosts, proxied.address(), object, power_off)?;
                proxied.stop()?;
                Ok(seen)
            }
        }
    }
}

impl fmt::Display for Balancer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Outlive => "outlive",
            Self::Nftables => "nftables",
            Self::Proxy(Proxy::Haproxy) => "haproxy",
            Self::Proxy(Proxy::Nginx) => "nginx",
        })
    }
}

pub(super) fn measure(bench: &Bench, hosts: &PoolHosts) -> Result<Vec<Figure>> {
    let hosts = paced(bench, hosts)?;
    let object: Arc<[u8]> = object(OBJECT_BYTES).into();
    std::fs::write(bench.stage.file("www/rivals"), &object)?;
    let mut seen = Balancer::ALL.map(|_| Vec::new());
    for _ in 0..bench.size(2, 1) {
        for (balancer, seen) in Balancer::ALL.into_iter().zip(&mut seen) {
            bench.interrupt.check()?;
            bench.say(format_args!(
                "{CLIENT_COUNT} downloads and a power-off, {balancer}"
            ));
            seen.push(balancer.run(bench, &hosts, &object)?);
        }
    }
    let all = Balancer::ALL.into_iter().zip(&seen);
    Ok(all
        .flat_map(|(balancer, seen)| of_balancer(bench, balancer, seen))
        .collect())
}

/// The same hosts, whose servers tell their names and keep a rate.
fn paced(bench: &Bench, hosts: &PoolHosts) -> Result<PoolHosts> {
    let testbed = &bench.stage.testbed;
    let members =
        (0..MEMBER_COUNT).map(|member| (hosts.host(member).clone(), WebServer::PacedNginx));
    PoolHosts::new(
        &testbed.programs.outlive,
        testbed.directory(),
        bench.interrupt.clone(),
        hosts.balancer().clone(),
        members.collect(),
    )
}

/// Time without a byte after which a client gives up.
fn patience(bench: &Bench) -> Duration {
    bench.size(Duration::from_secs(10), Duration::from_secs(5))
}

/// The observations of the clients in a run.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    /// Downloads under way from the dying host at the power-off.
    hit: u32,
    /// All downloads that broke.
    broken: u32,
    /// The longest silence of a download that was hit and was whole, in milliseconds; `None` if each of these broke.
    pause: Option<f64>,
}

impl Seen {
    fn of(downloads: &[Download], dying: &str, death: Instant) -> Self {
        let mut seen = Self::default();
        for download in downloads {
            let was_there = download.server.as_deref() == Some(dying);
            let is_hit = was_there && download.ended > death;
            seen.hit += u32::from(is_hit);
            if download.outcome.is_err() {
                seen.broken += 1;
            } else if is_hit {
                let silence = download.silence.as_secs_f64() * 1e3;
                seen.pause = Some(seen.pause.map_or(silence, |pause| pause.max(silence)));
            }
        }
        seen
    }
}

/// Starts the clients, takes the power from the first member's host, and waits for the clients.
fn downloads(
    bench: &Bench,
    hosts: &PoolHosts,
    address: SocketAddr,
    object: &Arc<[u8]>,
    power_off: impl FnOnce() -> Result<()>,
) -> Result<Seen> {
    let patience = patience(bench);
    let download = move |object: Arc<[u8]>| {
        let request = "GET /rivals HTTP/1.1\r\nHost: pool\r\n\r\n";
        Download::run(address, request, &object, patience)
    };
    // A thread stays in the network namespace of the thread that started it.
    let threads: Vec<_> = bench.stage.client.enter(|| {
        let objects = (0..CLIENT_COUNT).map(|_| Arc::clone(object));
        let threads = objects.map(|object| thread::spawn(move || download(object)));
        threads.collect()
    })?;
    thread::sleep(TIME_BEFORE_DEATH);
    let death = Instant::now();
    power_off()?;
    let downloads = threads
        .into_iter()
        .map(|thread| thread.join().map_err(|_| anyhow!("a client panicked")));
    let downloads = downloads.collect::<Result<Vec<_>>>()?;
    let why = downloads.iter().find_map(|one| one.outcome.as_ref().err());
    if let Some(why) = why {
        bench.say(format_args!("one that broke: {why:#}"));
    }
    let seen = Seen::of(&downloads, hosts.host(DYING_MEMBER).name(), death);
    ensure!(
        seen.hit > 0,
        "no download was under way from the host that died"
    );
    Ok(seen)
}

fn of_balancer(bench: &Bench, balancer: Balancer, seen: &[Seen]) -> Vec<Figure> {
    let hit: Vec<f64> = seen.iter().map(|seen| seen.hit.into()).collect();
    let broken: Vec<f64> = seen.iter().map(|seen| seen.broken.into()).collect();
    let pauses: Vec<f64> = seen.iter().filter_map(|seen| seen.pause).collect();
    let how = format!(
        "{}; the host of one of two nginx loses power while {CLIENT_COUNT} clients download {} MiB each, at {} MiB/s and \
         without a second try",
        balancer.how(),
        OBJECT_BYTES >> 20,
        PACED_RATE >> 20,
    );
    let figure = |what: &str, unit, values: &[f64], words: &str| {
        let name = format!("objects.rivals.{balancer}.{what}");
        Figure::of(name, unit, values, format!("{how}: {words}"))
    };
    let counts: Vec<String> = seen.iter().map(|seen| seen.hit.to_string()).collect();
    let words = format!(
        "downloads that ended early, had other bytes than they should, or were silent for {} s, of {} that were on the \
         dead host",
        patience(bench).as_secs(),
        counts.join(" and ")
    );
    let broken = figure("broken", "", &broken, &words);
    let broken = match balancer {
        Balancer::Outlive => broken
            .aim(Aim::AtMost(0.0), "connections were lost: a defect")
            .promise(),
        Balancer::Nftables | Balancer::Proxy(_) => broken,
    };
    let words = "downloads under way from the host that loses power";
    let mut figures = vec![broken, figure("hit", "", &hit, words)];
    if !pauses.is_empty() {
        let words = "the longest time without a byte of a download from the dead host that was whole in the end";
        figures.push(figure("pause", "ms", &pauses, words));
    }
    figures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hit_and_broken_downloads_are_counted() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let done = |server: Option<&str>, ended, silence, outcome: Result<()>| Download {
            server: server.map(str::to_owned),
            ended: at(ended),
            silence: Duration::from_millis(silence),
            outcome,
        };
        let downloads = [
            done(Some("web1"), 10, 1, Ok(())),
            done(Some("web1"), 30, 8, Ok(())),
            done(Some("web1"), 40, 90, Err(anyhow!("it broke"))),
            done(Some("web2"), 40, 20, Ok(())),
            done(None, 5, 5, Err(anyhow!("no response"))),
        ];
        let seen = Seen::of(&downloads, "web1", at(20));
        let expected = Seen {
            hit: 2,
            broken: 2,
            pause: Some(8.0),
        };
        assert_eq!(seen, expected);
        assert_eq!(Seen::of(&downloads, "web3", at(20)).pause, None);
    }
}
