//! `outlive logger` on the third host, and its events.

use std::fs::OpenOptions;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc::Sender;
use std::thread;

use anyhow::{Context, Result, ensure};
use lab::Host;
use serde_json::Value;

use crate::director::Message;
use crate::stage::Stage;

/// Port for TCP and UDP.
const PORT: u16 = 7600;

/// The logger. Dropping this value kills the logger; the stage removes the records.
pub(crate) struct Record {
    host: Host,
    outlive: PathBuf,
    keys: PathBuf,
    log: PathBuf,
    director: Sender<Message>,
    child: Child,
}

impl Record {
    /// Makes a key, and starts a logger with a durable log.
    pub(crate) fn start(
        stage: &Stage,
        host: &Host,
        outlive: &Path,
        director: Sender<Message>,
    ) -> Result<Self> {
        let (keys, log) = (stage.scratch("keys"), stage.scratch("log"));
        write_key(outlive, &keys)?;
        let child = spawn(host, outlive, &keys, &log, &director)?;
        Ok(Self {
            host: host.clone(),
            outlive: outlive.to_owned(),
            keys,
            log,
            director,
            child,
        })
    }

    /// Arguments of `serve` and `standby` for this logger. Clients wait while the logger is gone.
    pub(crate) fn flags(&self) -> Vec<String> {
        let keys = self.keys.to_string_lossy().into_owned();
        let mut flags = ["--logger", &address(&self.host), "--key-file", &keys]
            .map(str::to_owned)
            .to_vec();
        flags.extend(["--on-logger-loss", "hold", "--address-device", "eth0"].map(str::to_owned));
        flags
    }

    /// The process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills the logger and starts it again at once, as a service manager would.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.end()?;
        self.child = spawn(
            &self.host,
            &self.outlive,
            &self.keys,
            &self.log,
            &self.director,
        )?;
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("demo: the logger was not ended: {error:#}");
        }
    }
}

fn address(host: &Host) -> String {
    SocketAddr::from((host.address().ipv4(), PORT)).to_string()
}

fn write_key(outlive: &Path, keys: &Path) -> Result<()> {
    let key = Command::new(outlive).arg("key").output()?;
    ensure!(key.status.success(), "`outlive key` failed");
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(keys)
        .context("cannot write the key file")?;
    Ok(file.write_all(&key.stdout)?)
}

fn spawn(
    host: &Host,
    outlive: &Path,
    keys: &Path,
    log: &Path,
    director: &Sender<Message>,
) -> Result<Child> {
    let mut child = host
        .command(&outlive.to_string_lossy())
        .args(["logger", "--json", "--listen", &address(host)])
        .arg("--key-file")
        .arg(keys)
        .arg("--dir")
        .arg(log)
        // A terminal's interrupt is for us.
        .process_group(0)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {}", outlive.display()))?;
    if let Some(stderr) = child.stderr.take() {
        let director = director.clone();
        thread::spawn(move || pass_on(stderr, &director));
    }
    Ok(child)
}

/// Reads lines until the logger has ended.
fn pass_on(stderr: ChildStderr, director: &Sender<Message>) {
    for line in BufReader::new(stderr).split(b'\n') {
        let Ok(line) = line else { break };
        let text = || String::from_utf8_lossy(&line).into_owned();
        let narrated = serde_json::from_slice::<Value>(&line).map_err(|_| text());
        // After the demo no thread receives messages, but the logger must be able to write.
        let _ = director.send(Message::Logger(narrated));
    }
}
