//! The stage of a test: a client, a server, and a directory for files.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output as Finished, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Instant, UNIX_EPOCH};

use lab::{Host, Lab, Output, Pid, Process};

use crate::loggers::{Logger, key_file};
use crate::servers::Server;
use crate::{EVENT_TIMEOUT, Protected, Recording};

/// A client (10.0.0.1, fd00::1) and a server (10.0.0.10, fd00::10) on one switch. Drop removes the lab.
#[derive(Debug)]
pub struct Scene {
    /// The logger of all services, if `OUTLIVE_E2E_LINK` is set.
    logger: OnceLock<Logger>,
    /// The client's host.
    pub client: Host,
    /// The server's host.
    pub server: Host,
    /// The lab that both are in, for a test that wants more hosts or links.
    pub lab: Lab,
}

/// Services of this process; one tree holds all cgroups.
static SERVICE_COUNT: AtomicU32 = AtomicU32::new(0);

impl Scene {
    /// Two fresh hosts.
    ///
    /// # Panics
    /// When no lab can be made: a lab needs root and iproute2.
    #[must_use]
    pub fn new(label: &str) -> Self {
        let lab = Lab::new(label).expect("a lab needs root and iproute2");
        let client = lab.add_host_at("client", 1).expect("a client");
        let server = lab.add_host_at("server", 10).expect("a server");
        Self {
            logger: OnceLock::new(),
            client,
            server,
            lab,
        }
    }

    /// A directory for files, which goes with the scene.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.lab.directory()
    }

    /// The run directory for `outlive`.
    #[must_use]
    pub fn run_dir(&self) -> PathBuf {
        self.directory().join("run")
    }

    /// Writes a file, with the directories above, and returns the path.
    ///
    /// # Panics
    /// When the file cannot be written.
    pub fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.directory().join(name);
        let above = path.parent().expect("a file is in a directory");
        fs::create_dir_all(above).expect("make a directory");
        fs::write(&path, contents).expect("write a file");
        path
    }

    /// The server's IPv4 address.
    #[must_use]
    pub fn ipv4(&self, port: u16) -> SocketAddr {
        (self.server.address().ipv4(), port).into()
    }

    /// The server's IPv6 address.
    #[must_use]
    pub fn ipv6(&self, port: u16) -> SocketAddr {
        (self.server.address().ipv6(), port).into()
    }

    /// Starts a server without `outlive`, and waits until it listens.
    ///
    /// # Panics
    /// When the server does not listen.
    #[must_use]
    pub fn plain(&self, server: &Server) -> Plain {
        self.plain_on(&self.server, server)
    }

    /// The same on another host.
    ///
    /// # Panics
    /// As there.
    #[must_use]
    pub fn plain_on(&self, host: &Host, server: &Server) -> Plain {
        let (program, arguments) = server.command.split_first().expect("a command");
        let mut command = host.command(program);
        let log = self.directory().join("plain.log");
        let process = host
            .spawn(command.args(arguments), &Output::File(log.clone()))
            .expect("the server starts");
        for address in &server.addresses {
            self.await_listening(*address, &log);
        }
        Plain {
            process,
            host: host.clone(),
        }
    }

    /// Starts a server under `outlive serve` and waits until it is protected.
    ///
    /// # Panics
    /// When the server is not protected; the message holds the log of `serve`.
    #[must_use]
    pub fn protect(&self, server: &Server) -> Protected {
        self.protect_with(server, &[])
    }

    /// [`Scene::protect`] with more arguments for `serve`.
    ///
    /// # Panics
    /// As there.
    #[must_use]
    pub fn protect_with(&self, server: &Server, flags: &[&str]) -> Protected {
        self.protect_within(&[], server, flags)
    }

    /// [`Scene::protect_with`], where another command runs `serve`: signals are for the group
    /// ([`Protected::kill_serve_group`]).
    ///
    /// # Panics
    /// As there.
    #[must_use]
    pub fn protect_within(
        &self,
        within: &'static [&'static str],
        server: &Server,
        flags: &[&str],
    ) -> Protected {
        let linked = self.linked(flags);
        let linked: Vec<&str> = linked.iter().map(String::as_str).collect();
        let flags = [flags, &linked].concat();
        Protected::start(self, server, service_name(), &flags, within)
    }

    /// Starts a server under `outlive serve`, without a wait.
    #[must_use]
    pub fn try_to_protect(&self, server: &Server, flags: &[&str]) -> Protected {
        Protected::begin(self, server, service_name(), flags, &[])
    }

    /// Flags for a record on another machine, if `OUTLIVE_E2E_LINK=1` asks for that in all tests and `flags` do not
    /// choose a logger or a mode for servers with state.
    pub(crate) fn linked(&self, flags: &[&str]) -> Vec<String> {
        let has_own = flags.contains(&"--logger") || flags.contains(&"--stateful");
        if std::env::var_os("OUTLIVE_E2E_LINK").is_none() || has_own {
            return Vec::new();
        }
        let logger = self.logger.get_or_init(|| {
            let host = self.lab.add_host_at("e2elog", 200).expect("a host");
            Logger::start(self, &host, &key_file(self, "e2e-keys"), &[])
        });
        logger.flags().to_vec()
    }

    /// Begins to record how connections to `port` begin and end at the client.
    ///
    /// # Panics
    /// When tcpdump cannot be started.
    #[must_use]
    pub fn record(&self, port: u16) -> Recording {
        Recording::start(&self.client, port)
    }

    /// A connection from the client's host to the server's IPv4 address. Reads and writes time out after
    /// [`EVENT_TIMEOUT`].
    ///
    /// # Panics
    /// When the connection is refused.
    #[must_use]
    pub fn connect(&self, port: u16) -> TcpStream {
        self.connect_to(self.ipv4(port))
    }

    /// [`Scene::connect`] to any address.
    ///
    /// # Panics
    /// As there.
    #[must_use]
    pub fn connect_to(&self, address: SocketAddr) -> TcpStream {
        let stream = self
            .client
            .enter(|| TcpStream::connect_timeout(&address, EVENT_TIMEOUT))
            .expect("the client is on")
            .unwrap_or_else(|error| panic!("connect to {address}: {error}"));
        stream
            .set_read_timeout(Some(EVENT_TIMEOUT))
            .expect("a timeout");
        stream
            .set_write_timeout(Some(EVENT_TIMEOUT))
            .expect("a timeout");
        stream.set_nodelay(true).expect("no delay");
        stream
    }

    /// Runs a command on the client's host until the end, killed after twice [`EVENT_TIMEOUT`].
    ///
    /// # Panics
    /// When the command cannot be started.
    #[must_use]
    pub fn on_client(&self, program: &str, arguments: &[&str]) -> Finished {
        let mut command = self.client.command("timeout");
        let limit = (EVENT_TIMEOUT * 2).as_secs().to_string();
        command.args(["-k", "1", &limit, program]).args(arguments);
        run(&mut command)
    }

    /// Waits for a listener, with connections from the server's own host: the client's wire carries no packet of
    /// this.
    fn await_listening(&self, address: SocketAddr, log: &Path) {
        let deadline = Instant::now() + EVENT_TIMEOUT;
        let connect = || TcpStream::connect_timeout(&address, EVENT_TIMEOUT);
        while self.server.enter(connect).expect("it is on").is_err() {
            let said = || fs::read_to_string(log).unwrap_or_default();
            assert!(Instant::now() < deadline, "nobody at {address}: {}", said());
            thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

/// A name that no other service has. The time tells this process from an earlier process with the same number: a run
/// of tests that was killed leaves cgroups and pins behind.
fn service_name() -> String {
    let number = SERVICE_COUNT.fetch_add(1, Ordering::Relaxed);
    let seconds = UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_secs());
    // The last letter: no name is the beginning of another.
    format!("e2e{}-{seconds:x}-{number}s", std::process::id())
}

/// Runs a command until the end, and returns the output.
pub(crate) fn run(command: &mut Command) -> Finished {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .output()
        .unwrap_or_else(|error| panic!("run {command:?}: {error}"))
}

/// A server without protection. Drop kills the server with all its processes, and returns when the port is free.
#[derive(Debug)]
pub struct Plain {
    process: Process,
    host: Host,
}

impl Plain {
    /// The main process.
    #[must_use]
    pub fn main_pid(&self) -> Pid {
        self.process.pid()
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        let main = self.process.pid();
        let children = fs::read_to_string(format!("/proc/{main}/task/{main}/children"));
        let children = children.unwrap_or_default();
        let pids = children
            .split_whitespace()
            .filter_map(|pid| pid.parse().ok());
        let mut pids: Vec<Pid> = pids.filter_map(Pid::from_raw).collect();
        pids.push(main);
        if let Err(error) = self.host.kill(&pids) {
            eprintln!("a server was left: {error}");
        }
    }
}
