//! The usual way: nftables hands connections to servers by a hash, and a dead server is left out.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::{Host, Process, Signal};

use super::{Act, SERVERS, Scene};

/// Time after which a monitor notices a death.
const DETECTION_TIME: Duration = Duration::from_millis(100);
const STEP_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) struct Plain<'a> {
    scene: &'a Scene,
    balancer: Host,
    servers: RefCell<Vec<(usize, Host, Process)>>,
}

impl<'a> Plain<'a> {
    pub(super) fn start(scene: &'a Scene) -> Result<Self> {
        let hosts = &scene.hosts;
        let balancer = hosts.balancer().clone();
        let service = hosts.service();
        let ip = service.ip().to_string();
        run(&balancer, &["ip", "addr", "add", &ip, "dev", "eth0"])?;
        let mut servers = Vec::new();
        for member in 0..SERVERS.len() {
            let host = hosts.host(member).clone();
            run(&host, &["ip", "addr", "add", &ip, "dev", "lo"])?;
            host.sysctl("net.ipv4.conf.all.arp_ignore", "1")?;
            host.sysctl("net.ipv4.conf.all.arp_announce", "2")?;
            let process = hosts.start_plain(member, service)?;
            servers.push((member, host, process));
        }
        let plain = Self {
            scene,
            balancer,
            servers: RefCell::new(servers),
        };
        plain.balance()?;
        run(&scene.client, &["ip", "neigh", "flush", "all"])?;
        Ok(plain)
    }

    /// The rules of the living servers.
    fn balance(&self) -> Result<()> {
        let servers = self.servers.borrow();
        let service = self.scene.hosts.service();
        let mut map = String::new();
        for (number, (_, host, _)) in servers.iter().enumerate() {
            let separator = if number == 0 { "" } else { ", " };
            write!(map, "{separator}{number} : {}", host.mac("eth0")?)?;
        }
        let rules = format!(
            "table netdev pool\ndelete table netdev pool\ntable netdev pool {{\n  chain inbound {{\n    type filter hook ingress device \"eth0\" \
             priority 0;\n    ip daddr {} tcp dport {} ether saddr set {} ether daddr set jhash ip saddr . tcp sport mod {} map {{ {map} }} \
             fwd to \"eth0\"\n  }}\n}}\n",
            service.ip(),
            service.port(),
            self.balancer.mac("eth0")?,
            servers.len(),
        );
        let mut command = self.balancer.command("nft");
        let mut nft = command.args(["-f", "-"]).stdin(Stdio::piped()).spawn()?;
        let mut input = nft.stdin.take().context("nft has an input")?;
        input.write_all(rules.as_bytes())?;
        drop(input);
        ensure!(nft.wait()?.success(), "nft refuses {rules}");
        Ok(())
    }

    /// The server with the most connections dies; a server that is back is not needed.
    pub(super) fn act(&self, act: Act) -> Result<String> {
        if act == Act::PowerOn {
            return Ok("(nothing comes back)".to_owned());
        }
        let busiest = {
            let servers = self.servers.borrow();
            let counts = servers
                .iter()
                .map(|(_, host, _)| connections(host).unwrap_or(0));
            counts
                .enumerate()
                .max_by_key(|(_, count)| *count)
                .map_or(0, |(index, _)| index)
        };
        let (_, host, process) = self.servers.borrow_mut().remove(busiest);
        match act {
            Act::KillServer => host.kill(&host.pids()?)?,
            Act::PowerOff | Act::PowerOn => host.power_off()?,
        }
        process.wait_with_timeout(STEP_TIMEOUT)?;
        thread::sleep(DETECTION_TIME);
        if !self.servers.borrow().is_empty() {
            self.balance()?;
        }
        Ok(format!("{} dies", host.name()))
    }

    pub(super) fn stop(self) -> Result<()> {
        for (_, _, process) in self.servers.into_inner() {
            process.kill(Signal::KILL)?;
            process.wait_with_timeout(STEP_TIMEOUT)?;
        }
        Ok(())
    }
}

fn connections(host: &Host) -> Result<usize> {
    let sockets = host
        .command("ss")
        .args(["-Htn", "state", "established"])
        .output()?;
    Ok(sockets.stdout.iter().filter(|byte| **byte == b'\n').count())
}

fn run(host: &Host, words: &[&str]) -> Result<()> {
    let done = host.command(words[0]).args(&words[1..]).output()?;
    ensure!(done.status.success(), "{words:?}: {done:?}");
    Ok(())
}
