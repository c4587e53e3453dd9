//! Two hosts with HAProxy and keepalived, two with nginx, and the address that moves.

use std::fs;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lab::{Address, Host, Output, Process};

use crate::Bench;
use crate::haproxy::proxied::{configuration, prepare, start_haproxy, start_nginx};
use crate::stage::{PORT, power_off};

/// Between two advertisements. Who stands by takes over after three and a little (RFC 5798 6.1). Version 3 of VRRP
/// could do with 10 ms, at which a busy host is soon taken for dead.
pub(super) const ADVERT_MS: u32 = 100;
/// Longest time until the address is up.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(20);
/// Time after which a started host is a backup.
const START_TIME: Duration = Duration::from_secs(1);

/// The four hosts.
pub(super) struct Proxies {
    proxies: [Host; 2],
    webs: [Host; 2],
}

impl Proxies {
    pub(super) fn add(bench: &Bench) -> Result<Self> {
        let lab = &bench.stage.testbed.lab;
        let this = Self {
            proxies: [lab.add_host_at("lb1", 21)?, lab.add_host_at("lb2", 22)?],
            webs: [lab.add_host_at("web3", 33)?, lab.add_host_at("web4", 34)?],
        };
        prepare(bench, &this.webs)?;
        Ok(this)
    }

    /// Starts all parts; returns when clients reach the service, and the second proxy stands by.
    pub(super) fn start<'a>(&self, bench: &'a Bench) -> Result<Running<'a>> {
        for host in &self.proxies {
            host.power_on()?; // whatever a run before left
        }
        let [one, two] = &self.webs;
        let webs = [start_nginx(bench, one)?, start_nginx(bench, two)?];
        let [first, second] = &self.proxies;
        let address = SocketAddr::new(Address::new(0, 101)?.ipv4().into(), PORT);
        let configuration = configuration(address, &self.webs, "");
        let path = bench.stage.file("keepalived-haproxy.cfg");
        fs::write(&path, configuration)?;
        let mut running = Running {
            bench,
            address,
            configuration: path,
            members: [Member::off(first), Member::off(second)],
            _webs: webs,
        };
        running.start_member(0)?;
        running.await_address()?;
        running.start_member(1)?;
        thread::sleep(START_TIME);
        Ok(running)
    }
}

/// The running parts. A drop kills all of them.
pub(super) struct Running<'a> {
    bench: &'a Bench,
    address: SocketAddr,
    configuration: PathBuf,
    /// The host that has the address is the first.
    members: [Member; 2],
    _webs: [Process; 2],
}

struct Member {
    host: Host,
    /// keepalived, and HAProxy.
    processes: Vec<Process>,
}

impl Member {
    fn off(host: &Host) -> Self {
        Self {
            host: host.clone(),
            processes: Vec::new(),
        }
    }
}

impl Running<'_> {
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes the power from the host that has the address.
    pub(super) fn power_off(&mut self) -> Result<()> {
        let off = power_off(&self.members[0].host);
        self.members[0].processes.clear();
        self.members.swap(0, 1);
        off
    }

    /// Returns the power, and starts the processes of the host; returns when the host stands by.
    pub(super) fn come_back(&mut self) -> Result<()> {
        self.members[1].host.power_on()?;
        self.start_member(1)?;
        thread::sleep(START_TIME);
        Ok(())
    }

    fn start_member(&mut self, which: usize) -> Result<()> {
        let host = self.members[which].host.clone();
        // HAProxy listens on the address before the address is up.
        host.sysctl("net.ipv4.ip_nonlocal_bind", "1")?;
        let haproxy = start_haproxy(self.bench, &host, &self.configuration)?;
        let stage = &self.bench.stage;
        let file = |name: &str| stage.file(&format!("{}-{name}", host.name()));
        let path = file("keepalived.conf");
        fs::write(&path, keepalived(host.name(), self.address.ip()))?;
        let mut keepalived = host.command("keepalived");
        keepalived.args(["--vrrp", "--dont-fork", "--log-console", "--use-file"]);
        keepalived
            .arg(path)
            .arg("--pid")
            .arg(file("keepalived.pid"));
        keepalived.arg("--vrrp_pid").arg(file("vrrp.pid"));
        let output = Output::File(file("keepalived.log"));
        let keepalived = host
            .spawn(&mut keepalived, &output)
            .context("is keepalived there? `make setup` installs it")?;
        self.members[which].processes = vec![keepalived, haproxy];
        Ok(())
    }

    fn await_address(&self) -> Result<()> {
        let deadline = Instant::now() + ADDRESS_TIMEOUT;
        let client = &self.bench.stage.client;
        let connect = || TcpStream::connect_timeout(&self.address, Duration::from_millis(200));
        while client.enter(connect)?.is_err() {
            self.bench.interrupt.check()?;
            let said = || {
                let host = self.members[0].host.name();
                let path = self.bench.stage.file(&format!("{host}-keepalived.log"));
                fs::read_to_string(path).unwrap_or_default()
            };
            ensure!(
                Instant::now() < deadline,
                "keepalived has not brought the address up: {}",
                said()
            );
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }
}

/// Both hosts have the same priority, so that the address stays when a host comes back (`nopreempt`). The neighbours
/// get the announcement at once, and again after a second.
fn keepalived(host: &str, address: IpAddr) -> String {
    let seconds = f64::from(ADVERT_MS) / 1e3;
    format!(
        "global_defs {{
    router_id {host}
    vrrp_version 3
    vrrp_garp_master_delay 1
}}
vrrp_instance clients {{
    state BACKUP
    nopreempt
    interface eth0
    virtual_router_id 51
    priority 100
    advert_int {seconds}
    virtual_ipaddress {{
        {address}/24
    }}
}}
"
    )
}
