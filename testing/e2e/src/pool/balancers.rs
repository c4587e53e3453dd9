//! A pool with two balancers, which keep the table in etcd.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use lab::{Host, Output, Process, Signal};

use super::{POOL_PORT, Pool, PoolProgram, age, pool_addresses};
use crate::loggers::key_file;
use crate::servers::site;
use crate::{EVENT_TIMEOUT, Scene, arrange};

const ETCD_PORT: u16 = 2379;

/// An etcd server on a host of its own.
#[derive(Debug)]
pub struct Etcd {
    host: Host,
    data: PathBuf,
    process: Option<Process>,
}

impl Etcd {
    fn start(scene: &Scene) -> Self {
        let mut etcd = Self {
            host: scene.lab.add_host_at("etcd", 4).expect("a host"),
            data: scene.directory().join("etcd"),
            process: None,
        };
        etcd.run();
        etcd
    }

    /// Starts the server, with the data of the server before.
    ///
    /// # Panics
    /// When etcd does not run.
    pub fn run(&mut self) {
        let (client, peer) = (
            format!("http://{}", self.address()),
            "http://127.0.0.1:2380",
        );
        let mut command = self.host.command("etcd");
        command.arg("--data-dir").arg(&self.data);
        command.args([
            "--listen-client-urls",
            &client,
            "--advertise-client-urls",
            &client,
        ]);
        command.args([
            "--listen-peer-urls",
            peer,
            "--initial-advertise-peer-urls",
            peer,
        ]);
        command.args(["--initial-cluster", &format!("default={peer}")]);
        let said = Output::File(self.data.with_extension("said"));
        let process = self.host.spawn(&mut command, &said);
        self.process = Some(process.expect("etcd starts"));
    }

    /// Kills the server.
    ///
    /// # Panics
    /// When it does not run.
    pub fn kill(&mut self) {
        let process = self.process.take().expect("it runs");
        process.kill(Signal::KILL).expect("a signal");
        let ended = process.wait_with_timeout(EVENT_TIMEOUT);
        assert!(ended.expect("a status").is_some(), "it lives");
    }

    pub(super) fn stop(mut self) {
        if self.process.is_some() {
            self.kill();
        }
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::from((self.host.address().ipv4(), ETCD_PORT))
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            let _ = process.kill(Signal::KILL);
        }
    }
}

impl PoolProgram {
    /// Waits until the newest table of this balancer has this many balancers and members.
    ///
    /// # Panics
    /// When that does not happen.
    #[track_caller]
    pub fn await_table(&self, balancers: usize, members: usize) {
        arrange::wait_until("the table is complete", || {
            let tables = self.events_of("table");
            tables.last().is_some_and(|table| {
                let names = table["members"].as_array().map_or(0, Vec::len);
                table["balancers"] == balancers && names == members
            })
        });
    }

    /// Asks the program to stop.
    ///
    /// # Panics
    /// When it does not run.
    pub fn ask_to_stop(&self) {
        self.process.kill(Signal::TERM).expect("a signal");
    }

    pub(super) fn stop_unless_off(self) {
        if self.host.is_on() && !self.is_killed {
            self.stop();
        }
    }
}

impl Pool {
    /// A pool with two balancers (10.0.0.2 and 10.0.0.3), etcd (10.0.0.4) and this many members. Packets of the client
    /// go to the first balancer.
    ///
    /// # Panics
    /// When a member or a balancer does not join.
    #[must_use]
    pub fn with_two_balancers(label: &str, members: u8) -> Self {
        let scene = Scene::new(label);
        age(&site(&scene));
        let keys = key_file(&scene, "pool.keys");
        let etcd = Etcd::start(&scene);
        let hosts = [("balancer", 2), ("balancer2", 3)];
        let balancers = hosts.map(|(name, number)| {
            let host = scene.lab.add_host_at(name, number).expect("a host");
            start_balancer(&scene, &host, name, &etcd)
        });
        let [balancer, second] = balancers;
        let mut this = Self {
            members: Vec::new(),
            balancer,
            second: Some((second, etcd)),
            scene,
            keys,
            is_routed: false,
        };
        this.route_to_balancers(&[this.balancer.host.clone()]);
        for _ in 0..members {
            this.add_member(&[]);
        }
        for balancer in this.balancers() {
            balancer.await_table(2, members.into());
        }
        this
    }

    /// A pool whose packets nftables balances, as the script of the package sets up. The balancer's host has the
    /// address.
    ///
    /// # Panics
    /// When a member does not join.
    #[must_use]
    pub fn behind_nftables(label: &str, members: u8) -> Self {
        Self::behind(label, members, "nftables.sh", |_, host| {
            for address in pool_addresses() {
                arrange::run(host, &format!("ip addr add {} dev eth0", address.ip()));
            }
        })
    }

    /// A pool behind a router (10.0.0.2) that has a path to each member, as the script of the package sets up.
    ///
    /// # Panics
    /// When a member does not join.
    #[must_use]
    pub fn behind_ecmp(label: &str, members: u8) -> Self {
        Self::behind(label, members, "ecmp.sh", |scene, router| {
            let sysctl = |host: &Host, key: &str, value: &str| {
                host.sysctl(key, value).expect("a kernel parameter");
            };
            for (key, value) in [
                ("net.ipv4.ip_forward", "1"),
                ("net.ipv6.conf.all.forwarding", "1"),
                ("net.ipv4.fib_multipath_hash_policy", "1"),
                ("net.ipv6.fib_multipath_hash_policy", "1"),
                // Client and members are in one segment here, and the client must not learn the way to a member.
                ("net.ipv4.conf.all.send_redirects", "0"),
                ("net.ipv4.conf.eth0.send_redirects", "0"),
            ] {
                sysctl(router, key, value);
            }
            sysctl(&scene.client, "net.ipv6.conf.eth0.accept_redirects", "0");
            route_to(&scene.client, std::slice::from_ref(router));
        })
    }

    /// A pool whose packets another load balancer forwards. This script tells it the members.
    fn behind(label: &str, members: u8, script: &str, prepare: fn(&Scene, &Host)) -> Self {
        let scene = Scene::new(label);
        age(&site(&scene));
        let keys = key_file(&scene, "pool.keys");
        let host = scene.lab.add_host_at("balancer", 2).expect("a host");
        prepare(&scene, &host);
        let scripts = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/balancers");
        let script = format!("{scripts}/{script}");
        let listen = SocketAddr::from((host.address().ipv6(), POOL_PORT)).to_string();
        let [v4, v6] = pool_addresses().map(|address| address.to_string());
        let key_file = keys.to_string_lossy().into_owned();
        let words = [
            "balance",
            "--address",
            &v4,
            "--address",
            &v6,
            "--listen",
            &listen,
            "--key-file",
            &key_file,
            "--no-forward",
            "--on-change",
            &script,
            "--json",
        ];
        let balancer = PoolProgram::start(&scene, &host, "balancer", &words);
        balancer.wait_for("listening", 1);
        let mut this = Self {
            members: Vec::new(),
            balancer,
            second: None,
            scene,
            keys,
            is_routed: false,
        };
        for _ in 0..members {
            this.add_member(&[]);
        }
        this
    }

    /// The balancers.
    pub fn balancers(&self) -> impl Iterator<Item = &PoolProgram> {
        let second = self.second.iter().map(|(second, _)| second);
        std::iter::once(&self.balancer).chain(second)
    }

    /// Starts the first balancer again, which was killed.
    ///
    /// # Panics
    /// When it does not start.
    pub fn restart_balancer(&mut self) {
        let (_, etcd) = self.second.as_ref().expect("a second balancer");
        let host = self.balancer.host.clone();
        self.balancer.process = start_balancer_process(&self.scene, &host, etcd, &self.balancer);
        self.balancer.is_killed = false;
        self.balancer.wait_for("listening", 1);
    }

    /// The router in front of the balancers gives the packets for the pool to these.
    ///
    /// # Panics
    /// When the client's host has no such route.
    pub fn route_to_balancers(&self, hosts: &[Host]) {
        route_to(&self.scene.client, hosts);
    }

    /// The addresses for members, as in `outlive objects --pool`.
    pub(super) fn control_addresses(&self) -> String {
        let addresses: Vec<String> = { self.balancers() }
            .map(|it| SocketAddr::from((it.host.address().ipv6(), POOL_PORT)).to_string())
            .collect();
        addresses.join(",")
    }
}

/// Packets of this client for the pool go to these hosts.
fn route_to(client: &Host, hosts: &[Host]) {
    for address in pool_addresses() {
        let ip = address.ip();
        let (family, bits): (_, u8) = if ip.is_ipv4() {
            ("-4", 32)
        } else {
            ("-6", 128)
        };
        let hops = hosts.iter().map(|host| match ip {
            IpAddr::V4(_) => IpAddr::from(host.address().ipv4()),
            IpAddr::V6(_) => IpAddr::from(host.address().ipv6()),
        });
        let hops: String = hops.map(|hop| format!(" nexthop via {hop}")).collect();
        let command = format!("ip {family} route replace {ip}/{bits}{hops}");
        arrange::run(client, &command);
    }
}

fn start_balancer(scene: &Scene, host: &Host, name: &str, etcd: &Etcd) -> PoolProgram {
    let words = words_of_balancer(scene, host, etcd);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let balancer = PoolProgram::start(scene, host, name, &words);
    balancer.wait_for("listening", 1);
    balancer
}

/// A new process with the run directory, and a new log.
fn start_balancer_process(
    scene: &Scene,
    host: &Host,
    etcd: &Etcd,
    former: &PoolProgram,
) -> Process {
    let outlive = crate::binaries::outlive();
    let mut command = host.command(&outlive.to_string_lossy());
    command.args(words_of_balancer(scene, host, etcd));
    command.env("OUTLIVE_RUN_DIR", &former.run_dir);
    std::fs::remove_file(&former.said).expect("a log");
    let said = Output::File(former.said.clone());
    host.spawn(&mut command, &said).expect("the program starts")
}

fn words_of_balancer(scene: &Scene, host: &Host, etcd: &Etcd) -> Vec<String> {
    let [v4, v6] = pool_addresses().map(|address| address.to_string());
    let listen = SocketAddr::from((host.address().ipv6(), POOL_PORT)).to_string();
    let key_file = scene.directory().join("pool.keys");
    let register = format!("etcd://{}", etcd.address());
    let words = [
        "balance",
        "--address",
        &v4,
        "--address",
        &v6,
        "--listen",
        &listen,
        "--key-file",
        &key_file.to_string_lossy(),
        "--register",
        &register,
        "--json",
    ];
    words.map(ToOwned::to_owned).to_vec()
}
