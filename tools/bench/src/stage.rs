//! A client's, a server's and a logger's host, and files in memory, so that no disk is measured.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use lab::{Address, Direction, Host, Link, Output};

use harness::nginx;
use harness::task::{Interrupt, Programs};
use harness::testbed::Testbed;

/// Name of the service.
pub(super) const SERVICE: &str = "bench";
/// The port of every server but iperf3's.
pub(super) const PORT: u16 = 80;
/// The server's interface on the logger's network.
const LOG_INTERFACE: &str = "eth1";
/// Size of the small object.
pub(super) const SMALL_OBJECT_BYTES: usize = 128;

/// A lab with `client` at 10.0.0.1 and `server` at 10.0.0.10. On a second network, `logger` is at 10.0.1.20 and the
/// server at 10.0.1.10.
pub(super) struct Stage {
    pub(super) client: Host,
    pub(super) server: Host,
    pub(super) logger: Host,
    pub(super) testbed: Testbed,
}

impl Stage {
    pub(super) fn build(programs: Programs, interrupt: Interrupt) -> Result<Self> {
        let memory = Path::new("/dev/shm");
        let elsewhere = std::env::temp_dir();
        let place = if memory.is_dir() { memory } else { &elsewhere };
        let testbed = Testbed::build("bench", SERVICE, place, programs, interrupt)?;
        let client = testbed.lab.add_host_at("client", 1)?;
        let server = testbed.lab.add_host_at("server", 10)?;
        let logger = testbed.lab.add_host_in("logger", Address::new(1, 20)?)?;
        testbed
            .lab
            .add_link(&server, LOG_INTERFACE, Address::new(1, 10)?)?;
        // For thousands of connections to a single port, again and again.
        client.sysctl("net.ipv4.ip_local_port_range", "1024 65535")?;
        client.sysctl("net.ipv4.tcp_tw_reuse", "1")?;
        let stage = Self {
            client,
            server,
            logger,
            testbed,
        };
        fs::create_dir(stage.file("www"))?;
        fs::write(stage.file("www/small"), vec![b'x'; SMALL_OBJECT_BYTES])?;
        let text = nginx::configuration(stage.testbed.directory(), &[stage.address(PORT)]);
        fs::write(stage.file("nginx.conf"), text)?;
        Ok(stage)
    }

    /// Where a file is.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.testbed.file(name)
    }

    /// A file of `size` zeros that takes no disk space.
    pub(super) fn sparse(&self, name: &str, size: u64) -> Result<PathBuf> {
        let path = self.file(name);
        File::create(&path)?.set_len(size)?;
        Ok(path)
    }

    /// A port of the server.
    pub(super) fn address(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.server.address().ipv4().into(), port)
    }

    /// Limits the log link to `rate` bits per second each way; `None` removes the limit.
    pub(super) fn set_log_rate(&self, rate: Option<u64>) -> Result<()> {
        limit(&self.logger, rate)?;
        limit_link(&self.server.link(LOG_INTERFACE)?, rate)
    }

    /// Adds so many microseconds of round trip on the log link, besides the lab's own delay.
    pub(super) fn set_log_round_trip(&self, microseconds: u32) -> Result<()> {
        let half = Duration::from_micros(microseconds.into()) / 2;
        self.logger.links()[0].adjust(&Direction::BOTH, |link| link.delay(half))?;
        Ok(())
    }

    /// Runs a command on the client's host to the end and returns the output.
    ///
    /// # Errors
    /// The command failed, took more than `limit`, or was interrupted by the user. The command is killed then.
    pub(super) fn run(
        &self,
        program: &str,
        arguments: &[&str],
        limit: Duration,
        interrupt: &Interrupt,
    ) -> Result<String> {
        let mut command: Command = self.client.command(program);
        command.args(arguments);
        let (stdout, stderr) = (self.file("stdout"), self.file("stderr"));
        for file in [&stdout, &stderr] {
            fs::write(file, "")?;
        }
        let output = Output::Files {
            stdout: stdout.clone(),
            stderr: stderr.clone(),
        };
        let process = self.client.spawn(&mut command, &output)?;
        let deadline = Instant::now() + limit;
        let status = loop {
            interrupt.check()?;
            if let Some(status) = process.wait_with_timeout(Duration::from_millis(50))? {
                break status;
            }
            if Instant::now() > deadline {
                bail!("{program} took more than {} s", limit.as_secs());
            }
        };
        let said = fs::read_to_string(&stdout)?;
        let complaint = fs::read_to_string(&stderr).unwrap_or_default();
        ensure!(
            status.success(),
            "{program} failed ({status}): {complaint}{said}"
        );
        Ok(said)
    }

    /// Removes hosts, processes and files.
    pub(super) fn remove(self) -> Result<()> {
        self.testbed.remove()
    }

    /// As [`Stage::remove`], after a failure that was reported already.
    pub(super) fn abandon(self) {
        self.testbed.abandon();
    }
}

/// Takes the power from a host, at a single moment for the other hosts: the lab needs about ten milliseconds to remove
/// a link, and a few to cut a link.
pub(super) fn power_off(host: &Host) -> Result<()> {
    let links = host.links();
    // The clients' link first: a host without power sends no packets, but a host that only lost the logger would.
    for link in &links {
        link.cut()?;
    }
    host.power_off()?;
    for link in &links {
        link.heal()?; // for the next power-on
    }
    Ok(())
}

/// Limits a host's first link to `rate` bits per second each way; `None` removes the limit.
pub(super) fn limit(host: &Host, rate: Option<u64>) -> Result<()> {
    limit_link(&host.links()[0], rate)
}

fn limit_link(link: &Link, rate: Option<u64>) -> Result<()> {
    link.adjust(&Direction::BOTH, |link| match rate {
        Some(rate) => link.rate(rate),
        None => link.unlimited(),
    })?;
    Ok(())
}
