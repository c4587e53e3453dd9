//! The usual way without a proxy: nftables hands connections to servers by a hash, the servers answer the clients
//! directly, and a dead server is left out.

use std::fmt::Write as _;
use std::io::Write as _;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lab::{Host, Process};

use crate::pool::PoolHosts;

/// Time after which a monitor notices a death.
pub const DETECTION_TIME: Duration = Duration::from_millis(100);
const STEP_TIMEOUT: Duration = Duration::from_secs(10);
/// Servers have the address on `lo`, and do not tell the neighbours.
const QUIET: [(&str, &str); 2] = [
    ("net.ipv4.conf.all.arp_ignore", "1"),
    ("net.ipv4.conf.all.arp_announce", "2"),
];

/// A running balancer with servers of a pool's hosts, without protection, at the address of the pool.
pub struct DirectReturn<'a> {
    hosts: &'a PoolHosts,
    /// `None` is a dead server.
    servers: Vec<Option<Process>>,
}

impl<'a> DirectReturn<'a> {
    /// Starts the servers of the first members.
    ///
    /// # Errors
    /// A server does not start, or nftables refuses the rules.
    pub fn start(hosts: &'a PoolHosts, clients: &[&Host], count: usize) -> Result<Self> {
        let service = hosts.service();
        let ip = service.ip().to_string();
        run(hosts.balancer(), &["ip", "addr", "add", &ip, "dev", "eth0"])?;
        let mut servers = Vec::new();
        for member in 0..count {
            let host = hosts.host(member);
            run(host, &["ip", "addr", "add", &ip, "dev", "lo"])?;
            for (key, value) in QUIET {
                host.sysctl(key, value)?;
            }
            servers.push(Some(hosts.start_plain(member, service)?));
        }
        let this = Self { hosts, servers };
        this.balance()?;
        for client in clients {
            run(client, &["ip", "neigh", "flush", "all"])?;
        }
        Ok(this)
    }

    /// The rules of the living servers.
    fn balance(&self) -> Result<()> {
        let mut map = String::new();
        let living: Vec<usize> = self.living().collect();
        for (number, server) in living.iter().enumerate() {
            let separator = if number == 0 { "" } else { ", " };
            let mac = self.hosts.host(*server).mac("eth0")?;
            write!(map, "{separator}{number} : {mac}")?;
        }
        let service = self.hosts.service();
        let balancer = self.hosts.balancer();
        let rules = format!(
            "table netdev pool\ndelete table netdev pool\ntable netdev pool {{\n  chain inbound {{\n    type filter hook ingress device \"eth0\" \
             priority 0;\n    ip daddr {} tcp dport {} ether saddr set {} ether daddr set jhash ip saddr . tcp sport mod {} map {{ {map} }} \
             fwd to \"eth0\"\n  }}\n}}\n",
            service.ip(),
            service.port(),
            balancer.mac("eth0")?,
            living.len(),
        );
        let mut command = balancer.command("nft");
        let mut nft = command.args(["-f", "-"]).stdin(Stdio::piped()).spawn()?;
        let mut input = nft.stdin.take().context("nft has an input")?;
        input.write_all(rules.as_bytes())?;
        drop(input);
        ensure!(nft.wait()?.success(), "nft refuses {rules}");
        Ok(())
    }

    fn living(&self) -> impl Iterator<Item = usize> {
        let servers = self.servers.iter().enumerate();
        servers.filter_map(|(number, server)| server.as_ref().map(|_| number))
    }

    /// The living server with the most connections.
    #[must_use]
    pub fn busiest(&self) -> Option<usize> {
        self.living()
            .max_by_key(|server| connections(self.hosts.host(*server)).unwrap_or(0))
    }

    /// Leaves a server out that has just died, when a monitor would notice.
    ///
    /// # Errors
    /// The server lives, or nftables refuses the rules.
    pub fn leave_out(&mut self, server: usize) -> Result<()> {
        let dead = self.servers[server].take();
        let dead = dead.context("the server was left out before")?;
        let ended = dead.wait_with_timeout(STEP_TIMEOUT)?;
        ensure!(ended.is_some(), "server {server} lives");
        thread::sleep(DETECTION_TIME);
        if self.living().next().is_some() {
            self.balance()?;
        }
        Ok(())
    }

    /// Ends the servers, and removes rules and addresses. All hosts have power afterwards.
    ///
    /// # Errors
    /// A server does not end, or something is left.
    pub fn stop(self) -> Result<()> {
        let ip = self.hosts.service().ip().to_string();
        for (member, server) in self.servers.iter().enumerate() {
            let host = self.hosts.host(member);
            let forgets = !host.is_on();
            match server {
                Some(server) => self.hosts.stop_plain(member, server)?,
                None => host.power_on()?,
            }
            if forgets {
                continue;
            }
            run(host, &["ip", "addr", "del", &ip, "dev", "lo"])?;
            for (key, _) in QUIET {
                host.sysctl(key, "0")?;
            }
        }
        let balancer = self.hosts.balancer();
        run(balancer, &["nft", "delete", "table", "netdev", "pool"])?;
        run(balancer, &["ip", "addr", "del", &ip, "dev", "eth0"])
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
