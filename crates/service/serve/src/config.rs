//! Configuration of `outlive serve`.

use std::{ffi::OsString, net::SocketAddr, path::PathBuf, time::Duration};

use dataplane::{AckStrategy, AttachMode};
use recovery::ReplayMode;
use south_model::CrashOn;

use crate::rundir::RunDir;

/// How much of a replayed outstream is compared with the original outstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Verify {
    /// All bytes.
    Full,
    /// The first 4 KiB of each response, and a digest of the whole outstream.
    #[default]
    Hash,
    /// The first 4 KiB of each response.
    Head,
    /// No comparison.
    Off,
}

impl Verify {
    /// Outstream bytes recorded at the beginning of each response.
    #[must_use]
    pub const fn head(self) -> u32 {
        match self {
            Self::Full => u32::MAX,
            Self::Hash | Self::Head => 4096,
            Self::Off => 0,
        }
    }
}

/// Limits of the record, bytes.
#[derive(Debug, Clone, Copy)]
pub struct LoggerLimits {
    /// Limit of a connection.
    pub per_connection: u64,
    /// Limit of all connections together.
    pub total: u64,
    /// The ring between kernel and logger; a power of two.
    pub ring: u32,
}

/// Fate of connections when no logger answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnLoggerLoss {
    /// Connections continue unprotected.
    Unprotect,
    /// Connections wait until the logger is back.
    Hold,
}

/// The loggers on other machines, and how `serve` uses them.
#[derive(Debug, Clone)]
pub struct LinkConfig {
    /// Addresses of the loggers, in order of preference; at least one.
    pub loggers: Vec<SocketAddr>,
    /// Key file; the loggers have a key of this file.
    pub key_file: PathBuf,
    /// How acknowledgements of the logger become ACKs to clients.
    pub strategy: AckStrategy,
    /// Policy when no logger answers.
    pub on_loss: OnLoggerLoss,
    /// A server with state also waits for the logger before writing to files and pipes.
    pub commit_effects: bool,
    /// Server with state: up to this number of segments per second, every segment is mirrored, and no segment is left
    /// to the determinants.
    pub copies_per_second: u32,
    /// Silence after which a logger is lost.
    pub timeout: Duration,
}

/// When and with which program checkpoints of a server with state are made.
#[derive(Debug, Clone)]
pub struct CheckpointConfig {
    /// Path or name of CRIU.
    pub criu: PathBuf,
    /// Bytes recorded since the last checkpoint that make a checkpoint due.
    pub at: Option<u64>,
    /// Time after which a checkpoint is due, if the record has grown.
    pub every: Option<Duration>,
    /// Directory of the images; `None`: in the run directory of the service.
    pub directory: Option<PathBuf>,
}

/// Configuration of a service.
#[derive(Debug, Clone)]
pub struct ServeConfig {
    /// Name in the status and in the names of the service's objects.
    pub name: String,
    /// The addresses that clients connect to.
    pub addresses: Vec<SocketAddr>,
    /// Network device on which the addresses come and go with the service; `None`: the addresses belong to the host.
    pub address_device: Option<String>,
    /// Bring the addresses up although another host answers for them.
    pub take_address: bool,
    /// Another site has the same addresses behind NAT: no logger refuses one site because of the other site.
    pub shared_address: bool,
    /// The server's command.
    pub command: Vec<OsString>,
    /// The server has state: the input is recorded, and replayed before the server serves again.
    pub wrapped: bool,
    /// Configuration for a server that cannot be rebuilt from a record; `None`: such a server is not served.
    pub otherwise: Option<Box<ServeConfig>>,
    /// The server cannot be rebuilt, and a record was only preferred: a host that takes over does without a record,
    /// too.
    pub without: bool,
    /// When an image of the server replaces the record.
    pub checkpoints: Option<CheckpointConfig>,
    /// The server keeps no state across connections. When no client is connected and the record has this size in bytes,
    /// server and record start again.
    pub renew_at: Option<u64>,
    /// Start of replays: the connection's beginning, or the last unanswered request.
    pub replay: ReplayMode,
    /// Extent of the comparison.
    pub verify: Verify,
    /// Header fields whose values may differ in a replay.
    pub tolerate: Vec<String>,
    /// Which deaths of the server's processes are crashes.
    pub crash_on: CrashOn,
    /// Limits of the record.
    pub limits: LoggerLimits,
    /// Largest number of connections protected at a time.
    pub max_connections: u32,
    /// Time that connections wait for a server that does not come back.
    pub give_up_after: Duration,
    /// Deaths during a connection's replay after which the connection is reset.
    pub quarantine_after: u32,
    /// Time from the request to stop until the server must have ended.
    pub grace: Duration,
    /// Way in which the programs are attached.
    pub attach: AttachMode,
    /// The record is kept on another machine.
    pub link: Option<LinkConfig>,
    /// Wait until the logger grants the service to this host, instead of asserting that no other host serves.
    pub standby: bool,
    /// While this host is a standby, the server replicates the server of the active host.
    pub hot: bool,
    /// Of several standbys the standby with the lowest number serves.
    pub preference: u16,
    /// Address at which Prometheus finds the metrics.
    pub metrics: Option<SocketAddr>,
    /// File in which events outlive `serve`.
    pub history: Option<PathBuf>,
    /// Run directory: sockets, locks and mounts.
    pub run_dir: RunDir,
}

impl ServeConfig {
    /// Outstream bytes recorded at the beginning of each response. 0 for a server with state: the replay itself
    /// compares all output, and a client that received output unknown to the determinants is reset in any case. A
    /// server that may continue without a record keeps the clients, which need response heads.
    pub(crate) fn verify_head(&self) -> u32 {
        match &self.otherwise {
            Some(otherwise) => otherwise.verify.head(),
            None if self.wrapped => 0,
            None => self.verify.head(),
        }
    }

    /// The outstream is digested for comparison in a replay; for a server with state see [`ServeConfig::verify_head`].
    pub(crate) fn digests(&self) -> bool {
        let verify = match &self.otherwise {
            Some(otherwise) => otherwise.verify,
            None if self.wrapped => return false,
            None => self.verify,
        };
        verify == Verify::Hash
    }

    /// Up to this number of segments in a tenth of a second, each segment is mirrored; `None`: no read cursors.
    pub(crate) fn spare_copies(&self) -> Option<u32> {
        let link = self.link.as_ref().filter(|_| self.wrapped)?;
        Some(link.copies_per_second.div_ceil(10))
    }

    /// Default name of a service at this address: `10.0.0.10-80`.
    #[must_use]
    pub fn default_name(address: SocketAddr) -> String {
        let ip = address.ip().to_string();
        // ::1 as 0::1: a name that begins with `-` would be taken for an option.
        let zero = if ip.starts_with(':') { "0" } else { "" };
        format!("{zero}{}-{}", ip.replace(':', "-"), address.port())
    }
}

/// Do the addresses have the same IP address and consecutive ports?
pub(crate) fn is_next(one: &SocketAddr, next: &SocketAddr) -> bool {
    one.ip() == next.ip() && one.port().checked_add(1) == Some(next.port())
}

/// Addresses for people: consecutive ports as a range, as in `--address`.
pub(crate) fn in_words(addresses: &[SocketAddr]) -> Vec<String> {
    let rows = addresses.chunk_by(is_next);
    rows.map(|row| match row {
        [first, .., last] => format!("{first}-{}", last.port()),
        _ => row.iter().map(ToString::to_string).collect(),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_name_is_a_valid_argument() {
        let name = |text: &str| ServeConfig::default_name(text.parse().expect("an address"));
        assert_eq!(name("10.0.0.10:80"), "10.0.0.10-80");
        assert_eq!(name("[fd00::1]:80"), "fd00--1-80");
        assert_eq!(name("[::1]:80"), "0--1-80");
    }

    fn with_state(otherwise: Option<Verify>, link: bool) -> ServeConfig {
        let plain = |verify| ServeConfig {
            name: "web".to_owned(),
            addresses: Vec::new(),
            address_device: None,
            take_address: false,
            shared_address: false,
            command: Vec::new(),
            wrapped: false,
            otherwise: None,
            without: false,
            checkpoints: None,
            renew_at: None,
            replay: ReplayMode::Connection,
            verify,
            tolerate: Vec::new(),
            crash_on: CrashOn::Signal,
            limits: LoggerLimits {
                per_connection: 1 << 20,
                total: 1 << 20,
                ring: 1 << 20,
            },
            max_connections: 1,
            give_up_after: Duration::ZERO,
            quarantine_after: 1,
            grace: Duration::ZERO,
            attach: AttachMode::Auto,
            link: None,
            standby: false,
            hot: false,
            preference: 0,
            metrics: None,
            history: None,
            run_dir: RunDir::default(),
        };
        let loggers = LinkConfig {
            loggers: Vec::new(),
            key_file: PathBuf::new(),
            strategy: AckStrategy::Basic,
            on_loss: OnLoggerLoss::Hold,
            commit_effects: false,
            copies_per_second: 0,
            timeout: Duration::ZERO,
        };
        ServeConfig {
            wrapped: true,
            otherwise: otherwise.map(|verify| Box::new(plain(verify))),
            link: link.then_some(loggers),
            ..plain(Verify::Hash)
        }
    }

    /// The programs are loaded once, and must suit both ways of serving.
    #[test]
    fn preferred_record_is_verified_as_stateless() {
        let asks = |config: &ServeConfig| (config.verify_head(), config.digests());
        assert_eq!(asks(&with_state(None, false)), (0, false));
        for verify in [Verify::Full, Verify::Hash, Verify::Head, Verify::Off] {
            let config = with_state(Some(verify), false);
            let goes_on = config.otherwise.as_ref().expect("it may");
            assert_eq!(asks(&config), asks(goes_on));
            assert_eq!(config.digests(), verify == Verify::Hash);
            // Also with a logger, from which another host takes over.
            assert_eq!(asks(&with_state(Some(verify), true)), asks(&config));
        }
    }

    #[test]
    fn consecutive_ports_print_as_range() {
        let all = [
            "10.0.0.1:80",
            "10.0.0.1:82",
            "10.0.0.1:83",
            "10.0.0.1:84",
            "10.0.0.2:85",
            "[fd00::1]:65534",
            "[fd00::1]:65535",
        ];
        let all = all.map(|one| one.parse().expect("an address"));
        assert_eq!(
            in_words(&all),
            [
                "10.0.0.1:80",
                "10.0.0.1:82-84",
                "10.0.0.2:85",
                "[fd00::1]:65534-65535"
            ]
        );
    }
}
