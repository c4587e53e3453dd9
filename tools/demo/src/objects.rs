//! The scene `objects`: downloads from a pool of different web servers, whose processes and hosts die; and the same
//! deaths behind an ordinary balancer.

mod plain;
mod report;

use std::fs::{self, File};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use harness::direct_return::DirectReturn;
use harness::pool::{Pool, PoolHosts, WebServer};
use harness::task::Interrupt;
use lab::{Host, Lab};
use rand::SeedableRng as _;
use rand::rngs::SmallRng;

use crate::compare::{Pauses, same};
use crate::program::Program;
use crate::stage::write_random;
use crate::timeline::say;
use report::{Outcome, Report};

/// Size of the object that most clients download.
const OBJECT_LEN: usize = 40_000_000;
const OBJECT: &str = "object";
/// Number of small objects, which a client fetches on one connection.
const SMALL_COUNT: usize = 60;
/// Moments of the deaths, seconds from the start of the clients. Between the second and the third, the host of the
/// second is back.
const DEATH_TIMES: [f64; 3] = [1.5, 3.5, 7.5];
const RETURN_TIME: f64 = 5.0;
/// Time without a byte after which a client gives up.
const GIVE_UP_SECONDS: &str = "6";
/// Servers of the members. The deaths move downloads from one kind of server to the other.
const SERVERS: [WebServer; 3] = [WebServer::Nginx, WebServer::Lighttpd, WebServer::Nginx];

/// An unmodified client, with one connection, that never tries again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Client {
    Curl,
    Wget,
    KeepAlive,
}

impl Client {
    /// Each kind, and how many.
    const ALL: [(Self, usize); 3] = [(Self::Curl, 12), (Self::Wget, 6), (Self::KeepAlive, 2)];

    fn words(self, url: &str) -> Vec<String> {
        let words: &[&str] = match self {
            Self::Curl => &[
                "curl",
                "-sS",
                "--no-buffer",
                "--limit-rate",
                "4M",
                "--speed-time",
                GIVE_UP_SECONDS,
                "--speed-limit",
                "1",
            ],
            Self::Wget => &[
                "wget",
                "-q",
                "--tries=1",
                "--limit-rate=4m",
                "--read-timeout",
                GIVE_UP_SECONDS,
                "-O",
                "-",
            ],
            Self::KeepAlive => &[
                "curl",
                "-sS",
                "--no-buffer",
                "--rate",
                "6/s",
                "--fail-early",
                "--max-time",
                GIVE_UP_SECONDS,
            ],
        };
        let mut words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        match self {
            Self::Curl | Self::Wget => words.push(format!("{url}/{OBJECT}")),
            Self::KeepAlive => words.push(format!("{url}/small-[1-{SMALL_COUNT}]")),
        }
        words
    }
}

/// Shows the scene. `true` if no connection was broken.
pub(crate) fn show(outlive: &Path, interrupt: &Interrupt, seed: u64) -> Result<bool> {
    say(&format!(
        "A pool of three unmodified web servers with the same files: nginx, lighttpd, nginx. 18 downloads of {} MB, curl and wget without a second try, and {} small objects on a connection that stays. A server is killed, two hosts lose power, one comes back (seed {seed}).",
        OBJECT_LEN / 1_000_000,
        SMALL_COUNT
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
        let mut members = Vec::new();
        for (number, server) in (11..).zip(SERVERS) {
            let name = format!("web{}", number - 10);
            members.push((lab.add_host_at(&name, number)?, server));
        }
        let directory = lab.directory().to_owned();
        fs::create_dir(directory.join("www"))?;
        let mut random = SmallRng::seed_from_u64(seed);
        let file = |name: &str| directory.join("www").join(name);
        write_random(&file(OBJECT), OBJECT_LEN, &mut random)?;
        for number in 1..=SMALL_COUNT {
            write_random(&file(&format!("small-{number}")), 3_000, &mut random)?;
        }
        let hosts = PoolHosts::new(outlive, &directory, interrupt.clone(), balancer, members)?;
        Ok(Self {
            hosts,
            client,
            directory,
            interrupt: interrupt.clone(),
            lab,
        })
    }

    fn show(&self) -> Result<bool> {
        let mut pool = Pool::start(&self.hosts, SERVERS.len(), &["--version-check", "modified"])?;
        say("");
        say("outlive:");
        let report = self.under_fire(|act| match act {
            Act::KillServer => {
                let member = pool.busiest();
                pool.kill_server(member)?;
                Ok(format!("the server of {} is killed", pool.name(member)))
            }
            Act::PowerOff => {
                let member = pool.busiest();
                pool.power_off(member)?;
                Ok(format!("{} loses power", pool.name(member)))
            }
            Act::PowerOn => {
                let back = pool.power_on()?;
                Ok(format!("{back} is back"))
            }
        });
        let revived = pool.events_of("revived").map(|events| events.len());
        let refused = pool.events_of("refused")?;
        pool.stop()?;
        let report = report?;
        say(&format!(
            "  connections that went on elsewhere: {}",
            revived?
        ));
        for event in &refused {
            say(&format!("  reset: {}", event["reason"]));
        }
        let is_whole = report.print("objects");
        say("");
        say(
            "The same deaths behind nftables (jhash mod 3, a dead server is left out after 0.1 s):",
        );
        let mut plain = DirectReturn::start(&self.hosts, &self.client, SERVERS.len())?;
        let report = self.under_fire(|act| plain::act(&self.hosts, &mut plain, act));
        plain.stop()?;
        report?.print_broken();
        Ok(is_whole)
    }

    /// Runs all clients, and carries the deaths out.
    fn under_fire(&self, mut act: impl FnMut(Act) -> Result<String>) -> Result<Report> {
        let given_up = Arc::new(AtomicBool::new(false));
        let began = Instant::now();
        let clients: Vec<Client> = { Client::ALL.iter() }
            .flat_map(|(client, count)| std::iter::repeat_n(*client, *count))
            .collect();
        thread::scope(|scope| {
            let running: Vec<_> = { clients.iter() }
                .map(|client| {
                    let given_up = &given_up;
                    scope.spawn(move || self.fetch(*client, given_up))
                })
                .collect();
            let acts = [
                (DEATH_TIMES[0], Act::KillServer),
                (DEATH_TIMES[1], Act::PowerOff),
                (RETURN_TIME, Act::PowerOn),
                (DEATH_TIMES[2], Act::PowerOff),
            ];
            let acted = acts.into_iter().try_for_each(|(at, what)| {
                let at = began + Duration::from_secs_f64(at);
                thread::sleep(at.saturating_duration_since(Instant::now()));
                self.interrupt.check()?;
                let words = act(what)?;
                say(&format!("{:8.3} s  {words}", began.elapsed().as_secs_f64()));
                Ok(())
            });
            if acted.is_err() {
                given_up.store(true, Ordering::Relaxed);
            }
            let outcomes = running.into_iter().map(|client| {
                let outcome = client.join().expect("it does not panic");
                outcome.map_err(|error| format!("{error:#}"))
            });
            let outcomes = outcomes.collect();
            acted.map(|()| Report { outcomes })
        })
    }

    /// Runs a client to the end, and compares all bytes.
    fn fetch(&self, client: Client, given_up: &AtomicBool) -> Result<Outcome> {
        let url = format!("http://{}", self.hosts.service());
        let words = client.words(&url);
        let arguments: Vec<&str> = words[1..].iter().map(String::as_str).collect();
        let mut program = Program::on(&self.client, given_up, &words[0], &arguments)?;
        let mut pauses = Pauses::default();
        let output = program.output()?;
        let bytes = match client {
            Client::Curl | Client::Wget => {
                let expected = BufReader::new(File::open(self.file(OBJECT))?);
                same(output, expected, || pauses.progress())?
            }
            Client::KeepAlive => {
                let mut expected = Vec::new();
                for number in 1..=SMALL_COUNT {
                    expected.extend(fs::read(self.file(&format!("small-{number}")))?);
                }
                same(output, &expected[..], || {})?
            }
        };
        program.finish()?;
        ensure!(bytes > 0, "no byte came");
        Ok(Outcome {
            bytes,
            pause: pauses.longest(),
        })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.join("www").join(name)
    }
}

/// What happens to the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    KillServer,
    PowerOff,
    PowerOn,
}
