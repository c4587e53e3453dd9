//! The testbed of bench and paper: a lab, a directory of files, and a logger on one of the hosts.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use lab::{Host, Lab, Output, Process};
use tempfile::TempDir;

use crate::janitor::Janitor;
use crate::task::{Interrupt, Programs};

/// Port of the logger.
const LOGGER_PORT: u16 = 7600;
/// Longest time until a program listens.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(20);

/// A lab with files.
pub struct Testbed {
    /// The programs that run in the lab.
    pub programs: Programs,
    /// Ends the work at a signal.
    pub interrupt: Interrupt,
    files: TempDir,
    janitor: Janitor,
    /// The hosts, and the network between the hosts.
    pub lab: Lab,
}

impl Testbed {
    /// A lab without hosts, and a directory in `place`, for a service of that name.
    pub fn build(
        label: &str,
        service: &str,
        place: &Path,
        programs: Programs,
        interrupt: Interrupt,
    ) -> Result<Self> {
        let lab = Lab::new(label)?;
        let files = tempfile::Builder::new()
            .prefix(&format!("outlive-{label}-"))
            .tempdir_in(place)?;
        // The files are in outlive's run directory, so that the janitor removes both.
        let janitor = Janitor::start(&programs.outlive, files.path(), service)?;
        Ok(Self {
            programs,
            interrupt,
            files,
            janitor,
            lab,
        })
    }

    /// Path of a file.
    pub fn file(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    /// The directory of all files, which is also the `--run-dir`.
    pub fn directory(&self) -> &Path {
        self.files.path()
    }

    /// Starts `outlive logger` with more arguments on a host, and a new key; returns when the logger listens.
    pub fn start_logger(&self, host: &Host, more: &[&str]) -> Result<Process> {
        let outlive = &self.programs.outlive;
        let output = Command::new(outlive).arg("key").output()?;
        ensure!(output.status.success(), "`outlive key` failed: {output:?}");
        let keys = self.key_file();
        fs::write(&keys, output.stdout)?;
        fs::set_permissions(&keys, fs::Permissions::from_mode(0o600))?;
        let mut command = host.command(&outlive.to_string_lossy());
        command.args(["logger", "--listen", &logger_at(host).to_string()]);
        command.arg("--key-file").arg(keys).args(more);
        let log = self.file("logger.log");
        let logger = host.spawn(&mut command, &Output::File(log.clone()))?;
        self.await_listener(host, LOGGER_PORT, &logger, &log)?;
        Ok(logger)
    }

    /// The arguments of `serve` for the logger on that host.
    pub fn logger_arguments(&self, host: &Host) -> [String; 4] {
        [
            "--logger".to_owned(),
            logger_at(host).to_string(),
            "--key-file".to_owned(),
            self.key_file().to_string_lossy().into_owned(),
        ]
    }

    fn key_file(&self) -> PathBuf {
        self.file("keys")
    }

    /// Waits until a process listens on a port of a host.
    ///
    /// # Errors
    /// The process ends (see `log`), takes too long, or a signal interrupts.
    pub fn await_listener(&self, host: &Host, port: u16, who: &Process, log: &Path) -> Result<()> {
        let deadline = Instant::now() + LISTEN_TIMEOUT;
        host.enter(|| {
            while !listens(port) {
                self.interrupt.check()?;
                if who.wait_with_timeout(Duration::ZERO)?.is_some() {
                    bail!("it ended: {}", fs::read_to_string(log).unwrap_or_default());
                }
                ensure!(Instant::now() < deadline, "nobody listens on port {port}");
                thread::sleep(Duration::from_micros(100));
            }
            Ok(())
        })?
    }

    /// Removes hosts, processes and files.
    pub fn remove(self) -> Result<()> {
        self.lab
            .remove()
            .context("not everything could be removed")?;
        self.files
            .close()
            .context("not all files could be removed")?;
        self.janitor.dismiss();
        Ok(())
    }

    /// Cleans up after a failure: kills all processes, and lets the janitor remove the rest.
    pub fn abandon(self) {
        let _ = self.lab.remove();
        drop(self.janitor);
    }
}

fn logger_at(host: &Host) -> SocketAddr {
    SocketAddr::new(host.address().ipv4().into(), LOGGER_PORT)
}

/// Whether a process listens on that port, on the host of the calling thread.
fn listens(port: u16) -> bool {
    let local = format!(":{port:04X}");
    ["tcp", "tcp6"].iter().any(|table| {
        let text = fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap_or_default();
        text.lines().any(|line| {
            let mut fields = line.split_ascii_whitespace().skip(1);
            // 0A is LISTEN.
            fields.next().is_some_and(|field| field.ends_with(&local))
                && fields.nth(1) == Some("0A")
        })
    })
}
