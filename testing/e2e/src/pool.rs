//! A pool: a balancer, members with nginx, and a client.

mod balancers;
mod routed;

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use lab::{Host, Output, Pid, Process, Signal};
use rustix::net::sockopt;
use serde_json::Value;

use crate::loggers::key_file;
use crate::servers::{SERVER_PORT, site};
use crate::{EVENT_TIMEOUT, Scene, binaries};

pub use balancers::Etcd;

/// Receive buffer of a client.
const RECEIVE_BUFFER_BYTES: usize = 512 << 10;

/// The port on which the balancer listens for members.
pub const POOL_PORT: u16 = 7700;

/// The address of the pool, IPv4 and IPv6.
///
/// # Panics
/// Never: the addresses are constants.
#[must_use]
pub fn pool_addresses() -> [SocketAddr; 2] {
    ["10.0.0.110", "fd00::110"].map(|ip| {
        let ip = ip.parse().expect("an address");
        SocketAddr::new(ip, SERVER_PORT)
    })
}

/// A balancer (10.0.0.2), members (10.0.0.11 and so on), and the client of a scene.
#[derive(Debug)]
pub struct Pool {
    // Dropped in this order.
    /// The members.
    pub members: Vec<Member>,
    /// The balancer.
    pub balancer: PoolProgram,
    /// A second balancer, and the register of both.
    pub second: Option<(PoolProgram, Etcd)>,
    /// The lab, with the client.
    pub scene: Scene,
    keys: PathBuf,
    /// Members are in other network segments.
    is_routed: bool,
}

/// A program of the pool, with what it has program.
#[derive(Debug)]
pub struct PoolProgram {
    /// The host.
    pub host: Host,
    process: Process,
    words: Vec<String>,
    said: PathBuf,
    run_dir: PathBuf,
    is_stopped: bool,
    is_killed: bool,
}

/// A lab's hosts share the kernel and the file system: `clean` removes the leftovers that a reboot would remove, and
/// the table that a balancer leaves for the next balancer.
impl Drop for PoolProgram {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}:\n{}", self.host.name(), self.log());
            eprintln!("{}", self.known_connections());
        }
        if !self.is_stopped {
            let _ = self.process.kill(Signal::KILL);
            let _ = self.process.wait_with_timeout(EVENT_TIMEOUT);
        }
        if let Err(error) = self.host.power_on() {
            eprintln!("{}: {error}", self.host.name());
            return;
        }
        let cleaned = self.outlive(&["clean", "--kill"]);
        if !cleaned.status.success() {
            eprintln!("{}: {cleaned:?}", self.host.name());
        }
    }
}

/// A member.
#[derive(Debug)]
pub struct Member {
    /// `outlive objects`.
    pub program: PoolProgram,
    /// Its name in the pool.
    pub name: String,
}

impl PoolProgram {
    /// What the host's kernel and the program know of connections.
    fn known_connections(&self) -> String {
        if !self.host.is_on() {
            return "the host is off".to_owned();
        }
        let sockets = self.host.command("ss").args(["-Htano", "-i"]).output();
        let sockets = sockets.map(|printed| printed.stdout).unwrap_or_default();
        let status = self.outlive(&["status", "--connections", "--json"]).stdout;
        let [sockets, status] =
            [sockets, status].map(|it| String::from_utf8_lossy(&it).into_owned());
        format!("sockets:\n{sockets}\nstatus:\n{status}")
    }

    fn start(scene: &Scene, host: &Host, name: &str, words: &[&str]) -> Self {
        let said = scene.directory().join(format!("{name}.said"));
        let mut command = host.command(&binaries::outlive().to_string_lossy());
        let run_dir = scene.run_dir().join(name);
        command.args(words).env("OUTLIVE_RUN_DIR", &run_dir);
        let process = host
            .spawn(&mut command, &Output::File(said.clone()))
            .expect("the program starts");
        Self {
            host: host.clone(),
            process,
            words: words.iter().map(|&word| word.to_owned()).collect(),
            said,
            run_dir,
            is_stopped: false,
            is_killed: false,
        }
    }

    /// The output.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(&self.said).unwrap_or_default()
    }

    /// The events of a kind so far.
    #[must_use]
    pub fn events_of(&self, kind: &str) -> Vec<Value> {
        let log = self.log();
        let events = log
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        events
            .filter(|event: &Value| event["event"] == kind)
            .collect()
    }

    /// Waits for the event of this number, from 1. Returns the event.
    ///
    /// # Panics
    /// When the event does not come.
    #[track_caller]
    pub fn wait_for(&self, kind: &str, number: usize) -> Value {
        let deadline = Instant::now() + EVENT_TIMEOUT;
        loop {
            if let Some(event) = self.events_of(kind).get(number - 1) {
                return event.clone();
            }
            assert!(Instant::now() < deadline, "no {kind}: {}", self.log());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Kills the program, and nothing that it has started.
    ///
    /// # Panics
    /// When it does not run.
    pub fn kill(&mut self) {
        self.is_killed = true;
        self.process.kill(Signal::KILL).expect("a signal");
        let ended = self.process.wait_with_timeout(EVENT_TIMEOUT);
        assert!(ended.expect("a status").is_some(), "it lives");
    }

    /// Kills the program, and starts the program again. The output is appended.
    ///
    /// # Panics
    /// When the program does not run, or cannot be started.
    pub fn restart(&mut self) {
        self.restart_with(&[]);
    }

    /// The same, with more arguments than before.
    ///
    /// # Panics
    /// As there.
    pub fn restart_with(&mut self, more: &[&str]) {
        self.kill();
        self.words.extend(more.iter().map(|&word| word.to_owned()));
        let mut command = self.host.command(&binaries::outlive().to_string_lossy());
        command
            .args(&self.words)
            .env("OUTLIVE_RUN_DIR", &self.run_dir);
        let output = Output::File(self.said.clone());
        let started = self.host.spawn(&mut command, &output);
        self.process = started.expect("the program starts");
        self.is_killed = false;
    }

    /// Runs `outlive` with these arguments on the same host.
    ///
    /// # Panics
    /// When `outlive` cannot be started.
    #[must_use]
    pub fn outlive(&self, arguments: &[&str]) -> std::process::Output {
        let outlive = binaries::outlive();
        let mut command = self.host.command(&outlive.to_string_lossy());
        command
            .args(arguments)
            .env("OUTLIVE_RUN_DIR", &self.run_dir);
        command.output().expect("outlive starts")
    }

    /// Asks the program to stop, and waits for its end.
    ///
    /// # Panics
    /// When it does not end, or fails.
    #[track_caller]
    pub fn stop(mut self) {
        self.is_stopped = true;
        self.process.kill(Signal::TERM).expect("a signal");
        let ended = self.process.wait_with_timeout(EVENT_TIMEOUT);
        let ended = ended.expect("a status").expect("an end");
        let log = fs::read_to_string(&self.said).unwrap_or_default();
        assert!(ended.success(), "{ended}: {log}");
    }
}

impl Pool {
    /// A pool with this many members.
    ///
    /// # Panics
    /// When a member does not join.
    #[must_use]
    pub fn of(label: &str, members: u8) -> Self {
        Self::with(label, members, &[])
    }

    /// The same, with more arguments of the balancer.
    ///
    /// # Panics
    /// As there.
    #[must_use]
    pub fn with(label: &str, members: u8, more: &[&str]) -> Self {
        let scene = Scene::new(label);
        let host = scene.lab.add_host_at("balancer", 2).expect("a host");
        let mut this = Self::with_balancer(scene, host, more);
        for _ in 0..members {
            this.add_member(&[]);
        }
        this
    }

    /// A pool without members.
    fn with_balancer(scene: Scene, host: Host, more: &[&str]) -> Self {
        let root = site(&scene);
        // As a pool has its files: older than any download.
        age(&root);
        let keys = key_file(&scene, "pool.keys");
        // Members that are reached by IPv6 get packets of both families.
        let listen = SocketAddr::from((host.address().ipv6(), POOL_PORT)).to_string();
        let [v4, v6] = pool_addresses().map(|address| address.to_string());
        let key_file = keys.to_string_lossy();
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
            "--address-device",
            "eth0",
            "--json",
        ];
        let balancer = PoolProgram::start(&scene, &host, "balancer", &[&words[..], more].concat());
        balancer.wait_for("listening", 1);
        Self {
            members: Vec::new(),
            balancer,
            second: None,
            scene,
            keys: keys.clone(),
            is_routed: false,
        }
    }

    /// Starts a member with nginx on a host of its own, and waits until the whole pool knows the member.
    ///
    /// # Panics
    /// When the member does not join.
    pub fn add_member(&mut self, more: &[&str]) {
        self.add_member_with(more, Self::nginx);
    }

    /// The same, with another server: the command for a member of this name.
    ///
    /// # Panics
    /// As there.
    pub fn add_member_with(&mut self, more: &[&str], server: fn(&Self, &str) -> Vec<String>) {
        let (host, name) = self.next_host();
        let member = self.start_member(&host, &name, more, &server(self, &name));
        self.members.push(member);
        let members = self.members.iter();
        let alive = members.filter(|member| member.program.host.is_on());
        self.await_members(alive.count());
    }

    /// Starts a member that need not join, on this host: [`Pool::next_host`].
    #[must_use]
    pub fn begin_member(&self, (host, name): &(Host, String), server: &[&str]) -> Member {
        let server: Vec<String> = server.iter().map(|&word| word.to_owned()).collect();
        self.start_member(host, name, &[], &server)
    }

    /// A host for one more member, and the member's name.
    ///
    /// # Panics
    /// When there is no room for another host.
    #[must_use]
    pub fn next_host(&self) -> (Host, String) {
        let number = u8::try_from(self.members.len()).expect("few members");
        let name = format!("web{}", number + 1);
        if self.is_routed {
            return (self.host_behind_router(&name, number), name);
        }
        let host = self.scene.lab.add_host_at(&name, 11 + number);
        (host.expect("a host"), name)
    }

    fn start_member(&self, host: &Host, name: &str, more: &[&str], server: &[String]) -> Member {
        let at = self.control_addresses();
        let keys = self.keys.to_string_lossy();
        let words = [
            "objects",
            "--pool",
            &at,
            "--key-file",
            &keys,
            "--name",
            name,
            "--json",
        ];
        let server: Vec<&str> = server.iter().map(String::as_str).collect();
        let words = [&words[..], more, &["--"], &server].concat();
        Member {
            program: PoolProgram::start(&self.scene, host, name, &words),
            name: name.to_owned(),
        }
    }

    /// Starts a member again whose host was switched on again.
    ///
    /// # Panics
    /// When the member does not join.
    pub fn restart_member(&mut self, index: usize, members: usize) {
        let Member { program, name } = self.members.remove(index);
        let host = program.host.clone();
        // A host without power has no processes, and a namespace has the processes until these have ended.
        drop(program);
        let server = self.nginx(&name);
        let member = self.start_member(&host, &name, &[], &server);
        self.members.insert(index, member);
        self.await_members(members);
    }

    /// Waits until each of the living members knows this many members.
    ///
    /// # Panics
    /// When that does not happen.
    #[track_caller]
    pub fn await_members(&self, count: usize) {
        let alive = self
            .members
            .iter()
            .filter(|member| member.program.host.is_on());
        for member in alive {
            let deadline = Instant::now() + EVENT_TIMEOUT;
            let knows = || {
                let tables = member.program.events_of("pool_changed");
                tables.last().is_some_and(|table| table["members"] == count)
            };
            while !knows() {
                let logs = || self.members.iter().map(|member| member.program.log());
                assert!(
                    Instant::now() < deadline,
                    "{count} members: {}{}",
                    logs().collect::<String>(),
                    self.balancer.log()
                );
                thread::sleep(Duration::from_millis(5));
            }
        }
    }

    /// nginx. A response has the header `X-Pad` with the values of the arguments `pad`, `pad` and `odd` of the request,
    /// and of its field `X-Pad`.
    #[must_use]
    pub fn nginx(&self, name: &str) -> Vec<String> {
        let directory = self.scene.directory();
        let listen: String = pool_addresses()
            .iter()
            .map(|address| format!("listen {address} backlog=4096;\n"))
            .collect();
        let place = directory.display();
        let config = self.scene.write(
            &format!("{name}.conf"),
            format!(
                "user root;\nworker_processes 2;\npid {place}/{name}.pid;\nerror_log {place}/{name}.log;\ndaemon off;\n\
                 events {{ worker_connections 4096; }}\n\
                 http {{\naccess_log off;\nsendfile on;\nkeepalive_timeout 120s;\nkeepalive_requests 100000;\n\
                 server {{\n{listen}root {};\nadd_header X-Pad $arg_pad$arg_pad$arg_odd$http_x_pad;\n}}\n}}\n",
                directory.join("www").display()
            ),
        );
        let config = config.to_string_lossy();
        ["nginx", "-c", &config].map(str::to_owned).to_vec()
    }

    /// lighttpd. Its entity tags differ from the tags of nginx.
    #[must_use]
    pub fn lighttpd(&self, name: &str) -> Vec<String> {
        let directory = self.scene.directory();
        let [v4, v6] = pool_addresses();
        let config = self.scene.write(
            &format!("{name}.conf"),
            format!(
                "server.document-root = \"{}\"\nserver.bind = \"{}\"\nserver.port = {SERVER_PORT}\n\
                 server.errorlog = \"{}\"\nserver.max-keep-alive-requests = 100000\n\
                 server.max-keep-alive-idle = 120\netag.use-inode = \"disable\"\n\
                 mimetype.assign = ( \"\" => \"application/octet-stream\" )\n\
                 $SERVER[\"socket\"] == \"{v6}\" {{ }}\n",
                directory.join("www").display(),
                v4.ip(),
                directory.join(format!("{name}.log")).display(),
            ),
        );
        let config = config.to_string_lossy();
        ["lighttpd", "-D", "-f", &config]
            .map(str::to_owned)
            .to_vec()
    }

    /// Connects with a receive buffer that stays small: a server cannot be done with a large file before the client
    /// reads.
    ///
    /// # Panics
    /// When there is no connection.
    #[must_use]
    #[track_caller]
    pub fn connect(&self, address: SocketAddr) -> TcpStream {
        let stream = self.scene.connect_to(address);
        sockopt::set_socket_recv_buffer_size(&stream, RECEIVE_BUFFER_BYTES).expect("a size");
        stream
    }

    /// The member that serves a connection from this port of the client.
    ///
    /// # Panics
    /// When no member has the connection, or more than one.
    #[must_use]
    #[track_caller]
    pub fn server_of(&self, client: SocketAddr) -> usize {
        let text = client.to_string();
        let has = |member: &&(usize, &Member)| {
            let sockets = crate::arrange::run(&member.1.program.host, "ss -Htn state established");
            sockets.contains(&text)
        };
        let members: Vec<(usize, &Member)> = self
            .members
            .iter()
            .enumerate()
            .filter(|(_, member)| member.program.host.is_on())
            .collect();
        let serving: Vec<usize> = members
            .iter()
            .filter(has)
            .map(|(index, _)| *index)
            .collect();
        assert_eq!(serving.len(), 1, "{text} is served by {serving:?}");
        serving[0]
    }

    /// Events `revived` of all members.
    #[must_use]
    pub fn revived(&self) -> Vec<Value> {
        let all = self.members.iter();
        all.flat_map(|member| member.program.events_of("revived"))
            .collect()
    }

    /// Waits until so many connections were revived: a member tells of a revival after the client has the first bytes.
    ///
    /// # Panics
    /// When there are fewer or more.
    #[track_caller]
    pub fn await_revived(&self, count: usize) {
        crate::arrange::wait_until("the connections are revived", || {
            self.revived().len() >= count
        });
        assert_eq!(self.revived().len(), count);
    }

    /// No member has reset a connection.
    ///
    /// # Panics
    /// When one has.
    #[track_caller]
    pub fn assert_none_refused(&self) {
        for member in &self.members {
            let refused = member.program.events_of("refused");
            assert!(refused.is_empty(), "{}: {refused:?}", member.name);
        }
    }

    /// Stops everything, and looks for what is left.
    ///
    /// # Panics
    /// When a program fails, or a host that is on still has the pool's address.
    pub fn stop(self) {
        let hosts: Vec<Host> = self
            .members
            .iter()
            .map(|member| member.program.host.clone())
            .collect();
        for member in self.members {
            if member.program.host.is_on() && !member.program.is_killed {
                member.program.stop();
            }
        }
        if let Some((second, etcd)) = self.second {
            second.stop_unless_off();
            self.balancer.stop_unless_off();
            etcd.stop();
        } else {
            self.balancer.stop();
        }
        for host in hosts.iter().filter(|host| host.is_on()) {
            let addresses = crate::arrange::run(host, "ip -o addr");
            for address in pool_addresses() {
                let ip = format!("{}/", address.ip());
                assert!(!addresses.contains(&ip), "{}: {addresses}", host.name());
            }
        }
    }
}

impl Member {
    /// Processes of the server on this member's host.
    ///
    /// # Panics
    /// When the host is off.
    #[must_use]
    pub fn server_pids(&self) -> Vec<Pid> {
        let own = self.program.process.pid();
        let pids = self.program.host.pids().expect("it is on");
        pids.into_iter()
            .filter(|pid| *pid != own && is_server(*pid))
            .collect()
    }
}

fn is_server(pid: Pid) -> bool {
    let name = fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero()));
    name.is_ok_and(|name| matches!(name.trim(), "nginx" | "lighttpd"))
}

fn age(root: &Path) {
    let old = std::time::SystemTime::now() - Duration::from_secs(86_400);
    for entry in fs::read_dir(root).expect("a directory").flatten() {
        let path = entry.path();
        if path.is_dir() {
            age(&path);
        } else {
            let file = fs::File::options().write(true).open(&path).expect("a file");
            file.set_modified(old).expect("an older file");
        }
    }
}
