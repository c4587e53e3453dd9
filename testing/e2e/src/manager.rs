//! A service manager like systemd (`sd_notify(3)`, `sd_watchdog_enabled(3)`).

use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::Command;

use lab::Host;

use crate::{EVENT_TIMEOUT, Scene};

/// Receives the state messages of a program, as a service manager does.
#[derive(Debug)]
pub struct Manager {
    at: PathBuf,
    socket: UnixDatagram,
}

impl Manager {
    /// A manager with a socket in the scene's directory.
    ///
    /// # Panics
    /// When the socket cannot be made.
    #[must_use]
    pub fn new(scene: &Scene) -> Self {
        let at = scene.directory().join("notify.sock");
        let socket = UnixDatagram::bind(&at).expect("a socket");
        socket
            .set_read_timeout(Some(EVENT_TIMEOUT))
            .expect("a time limit");
        Self { at, socket }
    }

    /// The beginning of a command that runs a program for the manager, which watches the program. The caller adds the
    /// program and its arguments.
    #[must_use]
    pub fn command(&self, host: &Host) -> Command {
        let mut command = host.command("sh");
        command.env("NOTIFY_SOCKET", &self.at);
        command.env("WATCHDOG_USEC", "60000000");
        let watched = "export WATCHDOG_PID=$$; exec \"$@\"";
        command.args(["-c", watched, "sh"]);
        command
    }

    /// Waits until the program sends this message.
    ///
    /// # Panics
    /// When the program sends no message for [`EVENT_TIMEOUT`].
    #[track_caller]
    pub fn await_message(&self, word: &str) {
        let mut buffer = [0; 256];
        loop {
            let len = self
                .socket
                .recv(&mut buffer)
                .expect("the program tells its manager");
            if String::from_utf8_lossy(&buffer[..len]).contains(word) {
                return;
            }
        }
    }
}
