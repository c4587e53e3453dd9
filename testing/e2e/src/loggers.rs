//! Loggers on separate hosts.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use lab::{Host, Output, Process, Signal};

use crate::servers::Server;
use crate::{EVENT_TIMEOUT, Protected, Scene, binaries};

/// The port of all loggers, TCP and UDP.
pub const LOGGER_PORT: u16 = 7600;

/// How soon a logger is lost, for tests of a loss: the flags of `serve`.
pub const SHORT_LOGGER_TIMEOUT: &str = "--logger-timeout=1s";

/// A running `outlive logger`. Drop stops the logger.
#[derive(Debug)]
pub struct Logger {
    process: Process,
    host: Host,
    said: PathBuf,
    keys: PathBuf,
    more: Vec<String>,
}

impl Logger {
    /// Starts a logger on this host, and waits until the logger listens.
    ///
    /// # Panics
    /// When the logger does not listen.
    #[must_use]
    pub fn start(scene: &Scene, host: &Host, keys: &Path, flags: &[&str]) -> Self {
        Self::start_of(&binaries::outlive(), scene, host, (keys, flags))
    }

    fn start_of(
        outlive: &Path,
        scene: &Scene,
        host: &Host,
        (keys, flags): (&Path, &[&str]),
    ) -> Self {
        let said = scene
            .directory()
            .join(format!("logger-{}.said", host.name()));
        let at = SocketAddr::from((host.address().ipv4(), LOGGER_PORT));
        let mut command = host.command(&outlive.to_string_lossy());
        command.args(["logger", "--listen", &at.to_string(), "--key-file"]);
        command.arg(keys).args(flags);
        let process = host
            .spawn(&mut command, &Output::File(said.clone()))
            .expect("the logger starts");
        let this = Self {
            process,
            host: host.clone(),
            said,
            keys: keys.to_owned(),
            more: flags.iter().map(ToString::to_string).collect(),
        };
        this.await_listening();
        this
    }

    fn await_listening(&self) {
        let deadline = Instant::now() + EVENT_TIMEOUT;
        let connect = || TcpStream::connect_timeout(&self.address(), EVENT_TIMEOUT);
        while self.host.enter(connect).expect("it is on").is_err() {
            assert!(Instant::now() < deadline, "no logger: {}", self.log());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Address of the listener.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        (self.host.address().ipv4(), LOGGER_PORT).into()
    }

    /// Host of the logger.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Output of the logger.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(&self.said).unwrap_or_default()
    }

    /// Flags for `serve` to use this logger. For a server with state, the programs mirror as few segments as
    /// possible, or `OUTLIVE_E2E_COPIES` segments a second.
    #[must_use]
    pub fn flags(&self) -> [String; 5] {
        let keys = self.keys.to_string_lossy().into_owned();
        let at = self.address().to_string();
        let copies = std::env::var("OUTLIVE_E2E_COPIES").unwrap_or_else(|_| "0".into());
        let copies = format!("--mirror-skip-above={copies}");
        ["--logger".into(), at, "--key-file".into(), keys, copies]
    }

    /// SIGKILL, and waits for the end of the logger.
    ///
    /// # Panics
    /// When the logger does not die.
    pub fn kill(&self) {
        self.process.kill(Signal::KILL).expect("it runs");
        let ended = self.process.wait_with_timeout(EVENT_TIMEOUT).expect("wait");
        assert!(ended.is_some(), "the logger survived SIGKILL");
    }

    /// Starts another logger with the same flags in the place of the killed logger.
    ///
    /// # Panics
    /// When the new logger does not start.
    pub fn replace_dead(&mut self, scene: &Scene) {
        let more = self.more.clone();
        let more: Vec<&str> = more.iter().map(String::as_str).collect();
        self.replace_dead_with(scene, &more);
    }

    /// The same, but with this build of `outlive`.
    ///
    /// # Panics
    /// As there.
    pub fn replace_dead_by(&mut self, outlive: &Path, scene: &Scene) {
        let more = self.more.clone();
        let more: Vec<&str> = more.iter().map(String::as_str).collect();
        let (host, keys) = (self.host.clone(), self.keys.clone());
        *self = Self::start_of(outlive, scene, &host, (&keys, &more));
    }

    /// The same, with these flags.
    ///
    /// # Panics
    /// As there.
    pub fn replace_dead_with(&mut self, scene: &Scene, flags: &[&str]) {
        *self = Self::start(scene, &self.host.clone(), &self.keys.clone(), flags);
    }
}

impl Drop for Logger {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!(
                "--- the logger on {} said:\n{}---",
                self.host.name(),
                self.log()
            );
        }
        let _ = self.process.kill(Signal::KILL);
        let _ = self.process.wait_with_timeout(EVENT_TIMEOUT);
    }
}

/// A key file with a single fresh key.
///
/// # Panics
/// When the file cannot be written.
#[must_use]
pub fn key_file(scene: &Scene, name: &str) -> PathBuf {
    let path = scene.directory().join(name);
    write_keys(&path, &[&new_key(scene)]);
    path
}

/// A fresh key.
///
/// # Panics
/// When `outlive` does not print a key.
#[must_use]
pub fn new_key(scene: &Scene) -> String {
    let mut command = scene.server.command(&binaries::outlive().to_string_lossy());
    let output = crate::scene::run(command.arg("key"));
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout)
        .expect("text")
        .trim()
        .to_owned()
}

/// Writes a key file atomically.
///
/// # Panics
/// When the file cannot be written.
pub fn write_keys(path: &Path, keys: &[&str]) {
    let new = path.with_extension("new");
    let _ = fs::remove_file(&new);
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create(true)
        .mode(0o600)
        .open(&new)
        .expect("open a key file");
    file.write_all((keys.join("\n") + "\n").as_bytes())
        .expect("write a key file");
    fs::rename(&new, path).expect("put a key file in place");
}

/// A scene with a logger on a host of its own.
///
/// # Panics
/// When the logger does not start.
#[must_use]
pub fn with_logger(label: &str) -> (Scene, Logger) {
    with_logger_that(label, &[])
}

/// [`with_logger`], told more.
///
/// # Panics
/// As there.
#[must_use]
pub fn with_logger_that(label: &str, flags: &[&str]) -> (Scene, Logger) {
    let scene = Scene::new(label);
    let host = scene.lab.add_host_at("logger", 20).expect("a host");
    let keys = key_file(&scene, "keys");
    let logger = Logger::start(&scene, &host, &keys, flags);
    (scene, logger)
}

/// Starts a server whose record this logger keeps.
///
/// # Panics
/// When the server is not protected.
#[must_use]
pub fn protect(scene: &Scene, server: &Server, logger: &Logger, more: &[&str]) -> Protected {
    let flags = logger.flags();
    let flags: Vec<&str> = flags
        .iter()
        .map(String::as_str)
        .chain(more.iter().copied())
        .collect();
    let protected = scene.protect_with(server, &flags);
    protected.wait_for("logger_in_use", 1);
    protected
}

/// The status, as a JSON object.
///
/// # Panics
/// When `outlive` does not print a status.
#[track_caller]
#[must_use]
pub fn status(protected: &Protected) -> serde_json::Value {
    let answer = protected.outlive("status", &["--json", "--connections", protected.name()]);
    answer.json().pop().unwrap_or_else(|| panic!("{answer:?}"))
}

/// Waits until the service has sent to the logger all data that clients have received by now. The service looks for
/// data to send before each answer: the second answer proves a look that began after the call.
///
/// # Panics
/// When the service does not answer.
#[track_caller]
pub fn await_recorded(protected: &Protected) {
    for _ in 0..2 {
        let _ = status(protected);
    }
}
