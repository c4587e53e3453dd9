//! Two hosts on one switch, and files in memory, so that no disk is measured.

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lab::{Host, Lab, Output};
use tempfile::TempDir;

use super::Interrupt;
use crate::janitor::Janitor;
use crate::nginx;

/// Name of the service.
pub(super) const SERVICE: &str = "bench";
/// The port of every server but iperf3's.
pub(super) const PORT: u16 = 80;
/// A small object, bytes.
const SMALL: usize = 128;

/// A lab with `client` at 10.0.0.1 and `server` at 10.0.0.10.
pub(super) struct Stage {
    pub(super) client: Host,
    pub(super) server: Host,
    pub(super) outlive: PathBuf,
    pub(super) xtask: PathBuf,
    files: TempDir,
    janitor: Janitor,
    lab: Lab,
}

impl Stage {
    pub(super) fn build(outlive: PathBuf, xtask: PathBuf) -> Result<Self> {
        let lab = Lab::new("bench")?;
        let client = lab.add_host_at("client", 1)?;
        let server = lab.add_host_at("server", 10)?;
        // Thousands of connections to one port, again and again.
        client.sysctl("net.ipv4.ip_local_port_range", "1024 65535")?;
        client.sysctl("net.ipv4.tcp_tw_reuse", "1")?;
        let memory = Path::new("/dev/shm");
        let place = if memory.is_dir() {
            memory
        } else {
            lab.directory()
        };
        let files = tempfile::Builder::new()
            .prefix("outlive-bench-")
            .tempdir_in(place)?;
        // The files are in outlive's run directory, so that the janitor removes both.
        let janitor = Janitor::start(&outlive, files.path(), SERVICE)?;
        let stage = Self {
            client,
            server,
            outlive,
            xtask,
            files,
            janitor,
            lab,
        };
        fs::create_dir(stage.file("www"))?;
        fs::write(stage.file("www/small"), vec![b'x'; SMALL])?;
        let text = nginx::configuration(stage.files.path(), &[stage.address(PORT)]);
        fs::write(stage.file("nginx.conf"), text)?;
        Ok(stage)
    }

    /// Where a file is.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    /// outlive's `--run-dir`.
    pub(super) fn run_directory(&self) -> &Path {
        self.files.path()
    }

    /// A file of so many zeros that takes no room.
    pub(super) fn sparse(&self, name: &str, size: u64) -> Result<PathBuf> {
        let path = self.file(name);
        File::create(&path)?.set_len(size)?;
        Ok(path)
    }

    /// A port of the server.
    pub(super) fn address(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.server.address().ipv4().into(), port)
    }

    /// Runs a command of the client's host to its end and returns what it printed.
    ///
    /// # Errors
    /// It failed, took more than `limit`, or we were interrupted: it is killed then.
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
