//! The protected servers: names, addresses, commands.

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;

use crate::stage::Stage;

/// A server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Server {
    /// nginx: no state between requests.
    Nginx,
    /// redis: data and subscriptions.
    Redis,
    /// mosquitto: sessions, subscriptions, and messages in flight.
    Mosquitto,
}

impl Server {
    pub(crate) const ALL: [Self; 3] = [Self::Nginx, Self::Redis, Self::Mosquitto];

    /// Name of the program and of the service.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::Redis => "redis",
            Self::Mosquitto => "mosquitto",
        }
    }

    pub(crate) fn port(self) -> u16 {
        match self {
            Self::Nginx => 80,
            Self::Redis => 6379,
            Self::Mosquitto => 1883,
        }
    }

    /// Whether one client sees data of another: such a server needs a determinant log.
    pub(crate) fn has_state(self) -> bool {
        self != Self::Nginx
    }

    /// Addresses for clients: nginx by IPv4 and IPv6, the others by IPv4.
    pub(crate) fn addresses(self, stage: &Stage) -> Vec<SocketAddr> {
        let [ipv4, ipv6] = stage.addresses(self);
        match self {
            Self::Nginx => vec![ipv4, ipv6],
            Self::Redis | Self::Mosquitto => vec![ipv4],
        }
    }

    /// Further arguments of `serve` and `standby` for this server.
    pub(crate) fn flags(self) -> &'static [&'static str] {
        if self.has_state() {
            &["--stateful=require"]
        } else {
            &[]
        }
    }

    /// The unmodified program and its arguments.
    pub(crate) fn command(self, stage: &Stage) -> Vec<String> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let directory = text(stage.directory());
        let errors = text(&stage.scratch("error.log"));
        let configuration = text(&stage.configuration(self));
        let [address, _] = stage.addresses(self);
        let (ip, port) = (address.ip().to_string(), address.port().to_string());
        let words: &[&str] = match self {
            Self::Nginx => &[
                "nginx",
                "-g",
                "daemon off;",
                "-e",
                &errors,
                "-c",
                &configuration,
            ],
            Self::Redis => &[
                "redis-server",
                "--bind",
                &ip,
                "--port",
                &port,
                "--dir",
                &directory,
                "--save",
                "",
                "--protected-mode",
                "no",
            ],
            Self::Mosquitto => &["mosquitto", "-c", &configuration],
        };
        words.iter().copied().map(str::to_owned).collect()
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Configuration of mosquitto: a listener, no files, no users.
pub(crate) fn mosquitto_configuration(address: SocketAddr) -> String {
    format!(
        "listener {} {}\nallow_anonymous true\npersistence false\nuser nobody\nlog_dest none\n",
        address.port(),
        address.ip()
    )
}
