//! A pool of web servers: a balancer, members, and the same servers without protection.

mod web_server;

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use lab::{Host, Output, Pid, Process, Signal};
use serde_json::Value;

use crate::events::Events;
use crate::task::Interrupt;
pub use web_server::WebServer;

/// Address of the pool.
const SERVICE: ([u8; 4], u16) = ([10, 0, 0, 110], 80);
/// Port on which the balancer listens for members.
const POOL_PORT: u16 = 7700;
const STEP_TIMEOUT: Duration = Duration::from_secs(20);
/// Bytes a second of each response of [`WebServer::PacedNginx`].
pub const PACED_RATE: u64 = 2 << 20;
const AGE_OF_OBJECTS: Duration = Duration::from_secs(86_400);

/// The hosts and the files of a pool.
pub struct PoolHosts {
    outlive: PathBuf,
    /// The objects are in `www`.
    directory: PathBuf,
    interrupt: Interrupt,
    balancer: Host,
    members: Vec<(Host, WebServer)>,
}

/// A program of a running pool.
struct Program {
    host: Host,
    process: Process,
    run_dir: PathBuf,
    events: Events,
}

/// A running pool.
pub struct Pool<'a> {
    hosts: &'a PoolHosts,
    balancer: Program,
    members: Vec<Program>,
}

impl PoolHosts {
    /// A pool with these hosts, whose objects are in `directory/www`.
    ///
    /// # Errors
    /// `outlive key` fails, or a file cannot be written.
    pub fn new(
        outlive: &Path,
        directory: &Path,
        interrupt: Interrupt,
        balancer: Host,
        members: Vec<(Host, WebServer)>,
    ) -> Result<Self> {
        let key = Command::new(outlive).arg("key").output()?;
        ensure!(key.status.success(), "`outlive key` failed: {key:?}");
        let keys = directory.join("pool.keys");
        fs::write(&keys, key.stdout)?;
        fs::set_permissions(&keys, fs::Permissions::from_mode(0o600))?;
        // Workers of a server may run as another user than root.
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755))?;
        Ok(Self {
            outlive: outlive.to_owned(),
            directory: directory.to_owned(),
            interrupt,
            balancer,
            members,
        })
    }

    /// The balancer's host.
    #[must_use]
    pub fn balancer(&self) -> &Host {
        &self.balancer
    }

    /// The host of a member.
    #[must_use]
    pub fn host(&self, member: usize) -> &Host {
        &self.members[member].0
    }

    /// Where the pool is.
    #[must_use]
    pub fn service(&self) -> SocketAddr {
        SERVICE.into()
    }

    /// Where a plain server is, at an address of its host.
    #[must_use]
    pub fn plain(&self, member: usize) -> SocketAddr {
        let host = &self.members[member].0;
        SocketAddr::new(host.address().ipv4().into(), SERVICE.1)
    }

    /// Starts the server of a member without protection, at this address.
    ///
    /// # Errors
    /// The server does not start.
    pub fn start_plain(&self, member: usize, at: SocketAddr) -> Result<Process> {
        let (host, server) = &self.members[member];
        let words = self.command(host, *server, at)?;
        let mut command = host.command(&words[0]);
        command.args(&words[1..]);
        let log = self.directory.join(format!("{}.plain", host.name()));
        let process = host.spawn(&mut command, &Output::File(log))?;
        self.await_listener(host, at)?;
        Ok(process)
    }

    /// Ends the server of a member without protection, also after a death of its host, which has power afterwards.
    ///
    /// # Errors
    /// The server does not end.
    pub fn stop_plain(&self, member: usize, server: &Process) -> Result<()> {
        let host = self.host(member);
        if host.is_on() {
            server.kill(Signal::TERM)?;
        }
        let ended = server.wait_with_timeout(STEP_TIMEOUT)?;
        ensure!(
            ended.is_some(),
            "the server of {} does not end",
            host.name()
        );
        Ok(host.power_on()?)
    }

    fn await_listener(&self, host: &Host, at: SocketAddr) -> Result<()> {
        let deadline = std::time::Instant::now() + STEP_TIMEOUT;
        while host.enter(|| std::net::TcpStream::connect(at))?.is_err() {
            self.interrupt.check()?;
            ensure!(
                std::time::Instant::now() < deadline,
                "nobody listens at {at}"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// The packets of a client for the pool reach a member directly, or the balancer.
    ///
    /// # Errors
    /// `ip` fails.
    pub fn bypass_balancer(&self, client: &Host, member: Option<usize>) -> Result<()> {
        let ip = IpAddr::from(SERVICE.0).to_string();
        let mut words = vec!["neigh".to_owned()];
        match member {
            Some(member) => {
                let mac = self.members[member].0.mac("eth0")?.to_string();
                words.extend(
                    ["replace", &ip, "lladdr", &mac, "nud", "permanent"].map(str::to_owned),
                );
            }
            None => words.extend(["del", &ip].map(str::to_owned)),
        }
        words.extend(["dev", "eth0"].map(str::to_owned));
        let done = client.command("ip").args(&words).output()?;
        ensure!(done.status.success(), "ip {words:?}: {done:?}");
        Ok(())
    }

    /// A client that closes first keeps a port in TIME_WAIT for a minute, and without timestamps no connection reuses
    /// the port: after some seconds of a connection for each request, `connect` would search for a port most of the
    /// time.
    ///
    /// # Errors
    /// The host is off.
    pub fn forget_closed_connections(client: &Host) -> Result<()> {
        Ok(client.sysctl("net.ipv4.tcp_max_tw_buckets", "0")?)
    }

    /// The command of a server on a host, with its own files and the common objects.
    fn command(&self, host: &Host, server: WebServer, at: SocketAddr) -> Result<Vec<String>> {
        let directory = self.directory.join(format!("web-{}", host.name()));
        if !directory.exists() {
            fs::create_dir(&directory)?;
            symlink(self.directory.join("www"), directory.join("www"))?;
        }
        server.command(&directory, at, host.name())
    }

    fn start(&self, host: &Host, name: &str, words: &[String]) -> Result<Program> {
        let run_dir = self.directory.join(format!("run-{}", host.name()));
        let log = self.directory.join(format!("{}.events", host.name()));
        let events = Events::in_file(log.clone())?;
        let mut command = host.command(&self.outlive.to_string_lossy());
        command.args([name, "--json", "--key-file"]);
        command.arg(self.directory.join("pool.keys"));
        command.args(words).env("OUTLIVE_RUN_DIR", &run_dir);
        let process = host.spawn(&mut command, &Output::File(log))?;
        Ok(Program {
            host: host.clone(),
            process,
            run_dir,
            events,
        })
    }

    fn listen(&self) -> SocketAddr {
        SocketAddr::new(self.balancer.address().ipv4().into(), POOL_PORT)
    }
}

impl Program {
    /// Ends the program. A lab's hosts share the kernel: `clean` removes the rest that a reboot would remove.
    fn stop(self, outlive: &Path) -> Result<()> {
        if self.host.is_on() {
            self.process.kill(Signal::TERM)?;
        }
        let ended = self.process.wait_with_timeout(STEP_TIMEOUT)?;
        ensure!(ended.is_some(), "{} does not end", self.host.name());
        self.host.power_on()?;
        let mut clean = self.host.command(&outlive.to_string_lossy());
        clean
            .args(["clean", "--kill", "--run-dir"])
            .arg(self.run_dir);
        let cleaned = clean.output()?;
        ensure!(cleaned.status.success(), "outlive clean: {cleaned:?}");
        Ok(())
    }
}

impl<'a> Pool<'a> {
    /// A pool with the first members, and more arguments of the balancer.
    ///
    /// # Errors
    /// The balancer or a member does not start.
    pub fn start(hosts: &'a PoolHosts, count: usize, more: &[&str]) -> Result<Self> {
        age(&hosts.directory.join("www"))?;
        let service = hosts.service().to_string();
        let listen = hosts.listen().to_string();
        let words = [
            "--address",
            &service,
            "--address-device",
            "eth0",
            "--listen",
            &listen,
        ];
        let words: Vec<String> = { words.iter().chain(more) }
            .map(|word| (*word).to_owned())
            .collect();
        let mut balancer = hosts.start(&hosts.balancer, "balance", &words)?;
        let events = &mut balancer.events;
        events.wait_for("listening", STEP_TIMEOUT, &hosts.interrupt)?;
        let mut pool = Self {
            hosts,
            balancer,
            members: Vec::new(),
        };
        for member in 0..count {
            let program = pool.start_member(member, member + 1)?;
            pool.members.push(program);
        }
        Ok(pool)
    }

    /// Starts the next member, and waits until the member knows all.
    ///
    /// # Errors
    /// All hosts have a member, or the member does not join.
    pub fn add_member(&mut self) -> Result<()> {
        let member = self.members.len();
        ensure!(member < self.hosts.members.len(), "all hosts have a member");
        let program = self.start_member(member, member + 1)?;
        self.members.push(program);
        Ok(())
    }

    /// Starts a member, and waits until the member knows this many members.
    fn start_member(&self, member: usize, count: usize) -> Result<Program> {
        let hosts = self.hosts;
        let (host, server) = &hosts.members[member];
        let listen = hosts.listen().to_string();
        let mut words: Vec<String> = ["--name", host.name(), "--pool", &listen, "--"]
            .map(str::to_owned)
            .into();
        words.extend(hosts.command(host, *server, hosts.service())?);
        let mut program = hosts.start(host, "objects", &words)?;
        loop {
            let events = &mut program.events;
            let table = events.wait_for("pool_changed", STEP_TIMEOUT, &hosts.interrupt)?;
            if table["members"].as_u64() >= u64::try_from(count).ok() {
                return Ok(program);
            }
        }
    }

    /// Waits until each member has told an event of this kind.
    ///
    /// # Errors
    /// A member does not.
    pub fn await_each(&self, kind: &str) -> Result<()> {
        let deadline = std::time::Instant::now() + STEP_TIMEOUT;
        while self.events_of(kind)?.len() < self.members.len() {
            self.hosts.interrupt.check()?;
            ensure!(
                std::time::Instant::now() < deadline,
                "a member does not tell {kind}"
            );
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Which member serves the connection of this client.
    ///
    /// # Errors
    /// No member does.
    pub fn server_of(&self, client: SocketAddr) -> Result<usize> {
        let text = client.to_string();
        let has = |member: &&Program| member.connections().is_ok_and(|all| all.contains(&text));
        let serving = self.members.iter().position(|member| has(&member));
        serving.with_context(|| format!("no member serves {text}"))
    }

    /// The living member with the most connections, except one.
    #[must_use]
    pub fn busiest(&self, except: Option<usize>) -> usize {
        let count = |member: &Program| {
            let all = member.connections().unwrap_or_default();
            all.lines().count()
        };
        let is_meant =
            |index: usize, member: &Program| member.host.is_on() && Some(index) != except;
        let meant =
            { self.members.iter().enumerate() }.filter(|(index, member)| is_meant(*index, member));
        meant
            .max_by_key(|(_, member)| count(member))
            .map_or(0, |(index, _)| index)
    }

    /// Name of a member's host.
    #[must_use]
    pub fn name(&self, member: usize) -> &str {
        self.members[member].host.name()
    }

    /// Kills all processes of a member's server.
    ///
    /// # Errors
    /// The host is off.
    pub fn kill_server(&self, member: usize) -> Result<()> {
        let host = &self.members[member].host;
        let own = self.members[member].process.pid();
        let pids: Vec<Pid> = { host.pids()?.into_iter() }
            .filter(|pid| *pid != own)
            .collect();
        Ok(host.kill(&pids)?)
    }

    /// Turns the power of a member's host off.
    ///
    /// # Errors
    /// The host is off.
    pub fn power_off(&self, member: usize) -> Result<()> {
        Ok(self.members[member].host.power_off()?)
    }

    /// Turns the power of the first dead host on, and starts its member again. Returns the name of the host.
    ///
    /// # Errors
    /// All hosts live, or the member does not join.
    pub fn power_on(&mut self) -> Result<String> {
        let dead = self.members.iter().position(|member| !member.host.is_on());
        let member = dead.context("all hosts live")?;
        let dead = self.members.remove(member);
        let outcome = dead.stop(&self.hosts.outlive);
        let alive = self
            .members
            .iter()
            .filter(|member| member.host.is_on())
            .count();
        let program = self.start_member(member, alive + 1)?;
        self.members.insert(member, program);
        outcome.map(|()| self.name(member).to_owned())
    }

    /// All events of a kind, of all members.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn events_of(&self, kind: &str) -> Result<Vec<Value>> {
        let mut all = Vec::new();
        for member in &self.members {
            all.extend(
                member
                    .events
                    .all()?
                    .into_iter()
                    .filter(|event| event["event"] == kind),
            );
        }
        Ok(all)
    }

    /// Ends everything.
    ///
    /// # Errors
    /// A program does not end, or something is left.
    pub fn stop(self) -> Result<()> {
        for program in self.members.into_iter().chain([self.balancer]) {
            program.stop(&self.hosts.outlive)?;
        }
        Ok(())
    }
}

impl Program {
    /// Open connections, one on each line.
    fn connections(&self) -> Result<String> {
        let mut command = self.host.command("ss");
        let sockets = command.args(["-Htn", "state", "established"]).output()?;
        Ok(String::from_utf8_lossy(&sockets.stdout).into_owned())
    }
}

/// Older than any connection: a member does not continue an object that has just changed.
fn age(directory: &Path) -> Result<()> {
    let old = SystemTime::now() - AGE_OF_OBJECTS;
    for entry in fs::read_dir(directory)?.flatten() {
        let path = entry.path();
        if path.is_dir() {
            age(&path)?;
        } else {
            let file = fs::File::options().write(true).open(path)?;
            file.set_modified(old)?;
        }
    }
    Ok(())
}
