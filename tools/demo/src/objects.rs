//! The scene `objects`: downloads from a pool of different web servers, whose processes and hosts die; and the same
//! deaths behind an ordinary balancer.

mod clients;
mod plain;
mod report;
mod site;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use harness::direct_return::DirectReturn;
use harness::pool::{Pool, PoolHosts, WebServer};
use harness::task::Interrupt;
use lab::{Host, Impairment, Lab};
use serde_json::Value;

use crate::timeline::say;
use clients::{Client, Home};
use report::Report;
use site::{OBJECT_BYTES, SMALL_COUNT, Site};

/// Moments of the deaths, seconds from the start of the clients. Between the second and the third, the host of the
/// second is back.
const DEATH_TIMES: [f64; 3] = [0.9, 2.1, 3.7];
const RETURN_TIME: f64 = 2.7;
/// Time without a byte after which a client of the pool gives up, and a client behind nftables. There, no byte comes
/// after a death: a longer time would only lengthen the scene.
const POOL_GIVE_UP_SECONDS: u32 = 10;
const PLAIN_GIVE_UP_SECONDS: u32 = 2;
/// Servers of the members. Each death moves downloads to other kinds of servers.
const SERVERS: [WebServer; 4] = [
    WebServer::Nginx,
    WebServer::Apache,
    WebServer::Lighttpd,
    WebServer::Caddy,
];
/// Rate of the link of the clients without a limit of their own, in bits per second.
const SLOW_LINK_RATE: u64 = 80_000_000;

/// Shows the scene. `true` if no connection was broken.
pub(crate) fn show(outlive: &Path, interrupt: &Interrupt, seed: u64) -> Result<bool> {
    say(&format!(
        "A pool of four unmodified web servers with the same files: nginx, Apache, lighttpd, Caddy. Downloads of {} MB by curl, wget -c and aria2c -x8, a video in segments by ffmpeg, packages by apt and pip, and {SMALL_COUNT} small objects on a connection that stays; no client tries a second time. A server is killed, two hosts lose power, one comes back (seed {seed}).",
        OBJECT_BYTES / 1_000_000,
    ));
    let scene = Scene::build(outlive, interrupt, seed)?;
    let result = scene.show();
    scene
        .lab
        .remove()
        .context("not everything could be removed")?;
    result
}

struct Scene {
    hosts: PoolHosts,
    client: Host,
    /// The host of the clients without a limit of their own, behind a slow link.
    slow_client: Host,
    site: Site,
    directory: PathBuf,
    interrupt: Interrupt,
    lab: Lab,
}

impl Scene {
    fn build(outlive: &Path, interrupt: &Interrupt, seed: u64) -> Result<Self> {
        let lab = Lab::new("demo-objects")?;
        let client = lab.add_host_at("client", 1)?;
        client.sysctl("net.ipv4.tcp_rmem", "4096 131072 262144")?;
        let balancer = lab.add_host_at("balancer", 2)?;
        let slow_client = lab.add_host_at("slow-client", 3)?;
        let slow = Impairment::with_seed(seed).rate(SLOW_LINK_RATE);
        slow_client.impair(&slow)?;
        let mut members = Vec::new();
        for (number, server) in (11..).zip(SERVERS) {
            members.push((lab.add_host_at(server.name(), number)?, server));
        }
        let directory = lab.directory().to_owned();
        let site = Site::write(&directory, seed)?;
        let hosts = PoolHosts::new(outlive, &directory, interrupt.clone(), balancer, members)?;
        Ok(Self {
            hosts,
            client,
            slow_client,
            site,
            directory,
            interrupt: interrupt.clone(),
            lab,
        })
    }

    fn show(&self) -> Result<bool> {
        let mut pool = Pool::start(&self.hosts, SERVERS.len(), &["--version-check", "modified"])?;
        say("");
        say("outlive:");
        let mut hit = None;
        let report = self.under_fire("pool", POOL_GIVE_UP_SECONDS, |act| match act {
            Act::KillServer => {
                let member = pool.busiest(hit);
                hit = Some(member);
                pool.kill_server(member)?;
                Ok(format!("the server {} is killed", pool.name(member)))
            }
            // Each death moves the downloads of another member.
            Act::PowerOff => {
                let member = pool.busiest(hit);
                hit = Some(member);
                pool.power_off(member)?;
                Ok(format!("the host of {} loses power", pool.name(member)))
            }
            Act::PowerOn => {
                let back = pool.power_on()?;
                Ok(format!("the host of {back} is back"))
            }
        });
        let revived = pool.events_of("revived")?;
        let refused = pool.events_of("refused")?;
        pool.stop()?;
        let report = report?;
        say(&format!(
            "  connections that went on elsewhere: {} ({})",
            revived.len(),
            by_object(&revived)
        ));
        for event in &refused {
            say(&format!("  reset: {}", event["reason"]));
        }
        let is_whole = report.print("objects");
        say("");
        say(
            "The same deaths behind nftables (jhash mod 4, a dead server is left out after 0.1 s):",
        );
        let clients = [&self.client, &self.slow_client];
        let mut plain = DirectReturn::start(&self.hosts, &clients, SERVERS.len())?;
        let report = self.under_fire("plain", PLAIN_GIVE_UP_SECONDS, |act| {
            plain::act(&self.hosts, &mut plain, act)
        });
        plain.stop()?;
        report?.print_broken();
        Ok(is_whole)
    }

    /// Runs all clients, and carries the deaths out.
    fn under_fire(
        &self,
        name: &str,
        give_up_seconds: u32,
        act: impl FnMut(Act) -> Result<String>,
    ) -> Result<Report> {
        let given_up = AtomicBool::new(false);
        let url = format!("http://{}", self.hosts.service().ip());
        let kinds =
            { Client::ALL.iter() }.flat_map(|(client, count)| std::iter::repeat_n(*client, *count));
        let mut clients = Vec::new();
        for (number, client) in kinds.enumerate() {
            let home = Home {
                host: if client.is_fast() {
                    &self.slow_client
                } else {
                    &self.client
                },
                site: &self.site,
                url: &url,
                directory: self.directory.join(format!("{name}-client-{number}")),
                give_up_seconds,
                given_up: &given_up,
            };
            { client.prepare(&home) }.with_context(|| format!("{client:?} is not ready"))?;
            clients.push((client, home));
        }
        thread::scope(|scope| {
            let running: Vec<_> = { clients.iter() }
                .map(|(client, home)| scope.spawn(|| client.fetch(home)))
                .collect();
            let acted = self.act(act);
            if acted.is_err() {
                given_up.store(true, Ordering::Relaxed);
            }
            let outcomes = { running.into_iter().zip(&clients) }.map(|(running, (client, _))| {
                let outcome = running.join().expect("it does not panic");
                (*client, outcome.map_err(|error| format!("{error:#}")))
            });
            let outcomes = outcomes.collect();
            acted.map(|()| Report { outcomes })
        })
    }

    /// Carries the deaths out.
    fn act(&self, mut act: impl FnMut(Act) -> Result<String>) -> Result<()> {
        let began = Instant::now();
        let acts = [
            (DEATH_TIMES[0], Act::KillServer),
            (DEATH_TIMES[1], Act::PowerOff),
            (RETURN_TIME, Act::PowerOn),
            (DEATH_TIMES[2], Act::PowerOff),
        ];
        for (at, what) in acts {
            let at = began + Duration::from_secs_f64(at);
            thread::sleep(at.saturating_duration_since(Instant::now()));
            self.interrupt.check()?;
            let words = act(what)?;
            say(&format!("{:8.3} s  {words}", began.elapsed().as_secs_f64()));
        }
        Ok(())
    }
}

/// Number of connections for each object, or directory of objects.
fn by_object(events: &[Value]) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for event in events {
        let object = event["object"].as_str().unwrap_or_default();
        let name = object.split('/').nth(1).unwrap_or("idle");
        *counts.entry(name).or_default() += 1;
    }
    let counts = counts.iter().map(|(name, count)| format!("{name} {count}"));
    counts.collect::<Vec<_>>().join(", ")
}

/// What happens to the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    KillServer,
    PowerOff,
    PowerOn,
}
