//! The paper's three machines and its Ethernets.
//!
//! An Ethernet of 1999 is one medium: what its hosts send together is at most its rate, and
//! their acknowledgements compete with the data. So each of the paper's Ethernets is a shared
//! medium of the lab here, and each interface on it sends at most at that rate. Nothing
//! collides in the lab, so its Ethernets carry more than real ones did.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lab::{Address, Direction, Host, Lab, Output, Process, Signal};
use tempfile::TempDir;

use super::experiment::{Layout, Strategy};
use crate::bench::{Interrupt, listens};
use crate::janitor::Janitor;

/// The paper's transfer: 1 MB.
pub(super) const UPLOAD: u32 = 1 << 20;
/// The service.
pub(super) const PORT: u16 = 80;
const SERVICE: &str = "paper";
const LOGGER_PORT: u16 = 7600;
/// How long anything may take that is not measured.
const PATIENCE: Duration = Duration::from_secs(20);

/// The lab.
pub(super) struct Stage {
    pub(super) client: Host,
    pub(super) server: Host,
    logger: Host,
    /// Where the logger is reached from the server.
    logger_at: SocketAddr,
    programs: Programs,
    pub(super) interrupt: Interrupt,
    files: TempDir,
    janitor: Janitor,
    lab: Lab,
}

/// What is run.
#[derive(Clone)]
pub(super) struct Programs {
    pub(super) outlive: PathBuf,
    pub(super) xtask: PathBuf,
}

impl Stage {
    pub(super) fn build(layout: Layout, programs: Programs, interrupt: Interrupt) -> Result<Self> {
        let lab = Lab::new("paper")?;
        let rates = layout.rates();
        for (subnet, rate) in rates {
            lab.share(*subnet, *rate)?;
        }
        let [client, server, logger] = [1, 2, 3].map(|number| {
            let subnet = if number == 3 { layout.log_subnet() } else { 0 };
            Address::new(subnet, number)
        });
        let client = lab.add_host_in("client", client?)?;
        let server = lab.add_host_in("server", server?)?;
        let logger = lab.add_host_in("logger", logger?)?;
        if layout.log_subnet() != 0 {
            lab.add_link(&server, "eth1", Address::new(layout.log_subnet(), 2)?)?;
        }
        for host in [&client, &server, &logger] {
            // What one run learns of a path must not help the next.
            host.sysctl("net.ipv4.tcp_no_metrics_save", "1")?;
            // The paper's congestion control, near enough, and on every machine the same.
            host.sysctl("net.ipv4.tcp_congestion_control", "reno")?;
            for link in host.links() {
                let subnet = link.address().subnet();
                let rate = rates.iter().find(|(of, _)| *of == subnet);
                let rate = rate.context("a network without a rate")?.1;
                link.adjust(&Direction::BOTH, |link| link.rate(rate))?;
            }
        }
        let files = tempfile::Builder::new()
            .prefix("outlive-paper-")
            .tempdir()?;
        let janitor = Janitor::start(&programs.outlive, files.path(), SERVICE)?;
        let logger_at = SocketAddr::new(logger.address().ipv4().into(), LOGGER_PORT);
        Ok(Self {
            client,
            server,
            logger,
            logger_at,
            programs,
            interrupt,
            files,
            janitor,
            lab,
        })
    }

    /// A key that service and logger share, for their eyes only.
    fn make_keys(&self) -> Result<()> {
        let output = Command::new(&self.programs.outlive).arg("key").output()?;
        ensure!(output.status.success(), "`outlive key` failed: {output:?}");
        let path = self.file("keys");
        fs::write(&path, output.stdout)?;
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        Ok(())
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    /// The service's address.
    pub(super) fn address(&self) -> SocketAddr {
        SocketAddr::new(self.server.address().ipv4().into(), PORT)
    }

    /// Starts a logger on its host, which acknowledges every frame by itself if told so.
    pub(super) fn start_logger(&self, each_frame: bool) -> Result<Process> {
        self.make_keys()?;
        let mut command = self
            .logger
            .command(&self.programs.outlive.to_string_lossy());
        command.args([
            "logger",
            "--listen",
            &self.logger_at.to_string(),
            "--key-file",
        ]);
        command.arg(self.file("keys"));
        if each_frame {
            command.arg("--ack-each-frame");
        }
        let log = self.file("logger.log");
        let logger = self
            .logger
            .spawn(&mut command, &Output::File(log.clone()))?;
        self.await_listener(&self.logger, LOGGER_PORT, &logger, &log)?;
        Ok(logger)
    }

    /// Starts the server that discards what it gets, protected by what the strategy says.
    pub(super) fn start_server(&self, strategy: Strategy, with: &Protection) -> Result<Server> {
        let address = self.address().to_string();
        let xtask = self.programs.xtask.to_string_lossy().into_owned();
        let mut sink = vec![xtask, "bench-sink".to_owned(), address.clone()];
        if let Some(bytes) = strategy.receive_buffer() {
            sink.extend(["--receive-buffer".to_owned(), bytes.to_string()]);
        }
        let mut command = match with {
            Protection::None => self.server.command(&sink.remove(0)),
            protection => {
                let mut command = self
                    .server
                    .command(&self.programs.outlive.to_string_lossy());
                command.args(["serve", "--json", "--name", SERVICE, "--address", &address]);
                command.arg("--run-dir").arg(self.files.path().join("run"));
                if let (Protection::Logger, Some(ack)) = (protection, strategy.ack()) {
                    let logger = self.logger_at.to_string();
                    command.args(["--logger", &logger, "--ack", ack, "--key-file"]);
                    command.arg(self.file("keys"));
                }
                command.arg("--");
                command
            }
        };
        let log = self.file("serve.log");
        fs::write(&log, "")?;
        let process = self
            .server
            .spawn(command.args(&sink), &Output::File(log.clone()))?;
        let server = Server { process, log };
        self.await_listener(&self.server, PORT, &server.process, &server.log)?;
        if *with != Protection::None {
            server.await_event("protecting", &self.interrupt)?;
        }
        Ok(server)
    }

    fn await_listener(&self, host: &Host, port: u16, who: &Process, log: &Path) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !host.enter(|| listens(port))? {
            self.interrupt.check()?;
            if who.wait_with_timeout(Duration::from_millis(2))?.is_some() {
                bail!("it ended: {}", fs::read_to_string(log).unwrap_or_default());
            }
            ensure!(Instant::now() < deadline, "nobody listens on port {port}");
        }
        Ok(())
    }

    /// Connects the client, which is given so long for each thing it does.
    pub(super) fn connect(&self, limit: Duration) -> Result<TcpStream> {
        let address = self.address();
        let stream = self
            .client
            .enter(|| TcpStream::connect_timeout(&address, limit))??;
        stream.set_read_timeout(Some(limit))?;
        stream.set_write_timeout(Some(limit))?;
        Ok(stream)
    }

    /// Waits until the client has nothing to send any more, and nothing that is not
    /// acknowledged.
    pub(super) fn await_acknowledged(&self, stream: &TcpStream, limit: Duration) -> Result<()> {
        let port = stream.local_addr()?.port();
        let deadline = Instant::now() + limit;
        loop {
            match self.client.enter(|| unacknowledged(port))? {
                Some(0) | None => return Ok(()),
                Some(bytes) => ensure!(
                    Instant::now() < deadline,
                    "{bytes} bytes are not acknowledged"
                ),
            }
            self.interrupt.check()?;
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Removes hosts, processes and files.
    pub(super) fn remove(self) -> Result<()> {
        self.lab
            .remove()
            .context("not everything could be removed")?;
        self.files
            .close()
            .context("not all files could be removed")?;
        self.janitor.dismiss();
        Ok(())
    }
}

/// Sends the paper's upload as fast as it can.
pub(super) fn send(stream: &mut TcpStream) -> Result<()> {
    let chunk = [b'x'; 8192];
    for _ in 0..UPLOAD as usize / chunk.len() {
        stream.write_all(&chunk)?;
    }
    Ok(())
}

/// Ends it, and hears from the server how much it was.
pub(super) fn finish(mut stream: &TcpStream) -> Result<()> {
    stream.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    ensure!(
        answer == UPLOAD.to_string(),
        "the server got {answer:?} bytes"
    );
    Ok(())
}

/// Bytes in the send queue of the calling thread's host's socket at that port; `None` when it
/// is gone, as one is whose last byte was acknowledged.
fn unacknowledged(port: u16) -> Option<u64> {
    let table = fs::read_to_string("/proc/thread-self/net/tcp").ok()?;
    let local = format!(":{port:04X}");
    let line = table.lines().find(|line| {
        let address = line.split_ascii_whitespace().nth(1);
        address.is_some_and(|address| address.ends_with(&local))
    })?;
    let queues = line.split_ascii_whitespace().nth(4)?;
    u64::from_str_radix(queues.split(':').next()?, 16).ok()
}

/// Who keeps the record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protection {
    None,
    /// A logger on the server's host, as without `--logger`.
    Local,
    /// The logger's host.
    Logger,
}

/// A running server, or `serve`.
pub(super) struct Server {
    process: Process,
    log: PathBuf,
}

impl Server {
    /// The events that `serve` has told.
    pub(super) fn events(&self) -> Result<Vec<serde_json::Value>> {
        let text = fs::read_to_string(&self.log)?;
        let events = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        Ok(events.collect())
    }

    /// Waits for the first event of that name.
    pub(super) fn await_event(&self, name: &str, interrupt: &Interrupt) -> Result<()> {
        self.await_events(name, 1, interrupt).map(|_| ())
    }

    /// Waits for the `count`th event of that name.
    pub(super) fn await_events(
        &self,
        name: &str,
        count: usize,
        interrupt: &Interrupt,
    ) -> Result<serde_json::Value> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let events = self.events()?;
            let mut named = events.iter().filter(|event| event["event"] == name);
            if let Some(event) = named.nth(count - 1) {
                return Ok(event.clone());
            }
            interrupt.check()?;
            ensure!(
                Instant::now() < deadline,
                "no event `{name}`: {}",
                fs::read_to_string(&self.log)?
            );
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Stops it, however it is.
    pub(super) fn stop(self) -> Result<()> {
        self.process.kill(Signal::TERM)?;
        let ended = self.process.wait_with_timeout(PATIENCE)?;
        ensure!(ended.is_some(), "the server does not end on SIGTERM");
        Ok(())
    }
}
