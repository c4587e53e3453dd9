//! What `outlive serve` is told.

use std::{ffi::OsString, net::SocketAddr, path::PathBuf, time::Duration};

use dataplane::{AckStrategy, AttachMode};
use recovery::ReplayMode;
use south_model::CrashOn;

use crate::rundir::RunDir;

/// How much of a replayed outstream is compared with what the client was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Verify {
    /// Everything, byte by byte.
    Full,
    /// The first 4 KiB after the beginning of each turn byte by byte, and a digest of everything.
    #[default]
    Hash,
    /// The first 4 KiB after the beginning of each turn.
    Head,
    /// Nothing.
    Off,
}

impl Verify {
    /// Outstream bytes recorded at the beginning of each turn.
    #[must_use]
    pub const fn head(self) -> u32 {
        match self {
            Self::Full => u32::MAX,
            Self::Hash | Self::Head => 4096,
            Self::Off => 0,
        }
    }
}

/// What the record may hold, bytes.
#[derive(Debug, Clone, Copy)]
pub struct LoggerLimits {
    /// For one connection.
    pub per_connection: u64,
    /// For all.
    pub total: u64,
    /// The ring between kernel and logger; a power of two.
    pub ring: u32,
}

/// What becomes of connections when no logger answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnLoggerLoss {
    /// They go on, unprotected.
    Unprotect,
    /// They wait until the logger is back.
    Hold,
}

/// The loggers on other machines, and the way in which they are used.
#[derive(Debug, Clone)]
pub struct LinkConfig {
    /// Where they are, the best first; at least one.
    pub loggers: Vec<SocketAddr>,
    /// The file of the keys that they know us by.
    pub key_file: PathBuf,
    /// How acknowledgements are made of what the logger says.
    pub strategy: AckStrategy,
    /// What happens when none answers.
    pub on_loss: OnLoggerLoss,
    /// What a server with state writes to files and pipes waits for the logger, too.
    pub commit_effects: bool,
    /// Of a server with state: if no more segments come in a second, all are copied, and none is left to its notes.
    pub copies_per_second: u32,
    /// For how long one must be silent to be lost.
    pub timeout: Duration,
}

/// When checkpoints of a server with state are made, and by what.
#[derive(Debug, Clone)]
pub struct CheckpointConfig {
    /// CRIU, by its path or name.
    pub criu: PathBuf,
    /// So many bytes were recorded since the last one.
    pub at: Option<u64>,
    /// So much time has passed, and something was recorded.
    pub every: Option<Duration>,
    /// The directory in which they are; `None`: in the service's own.
    pub directory: Option<PathBuf>,
}

/// One service.
#[derive(Debug, Clone)]
pub struct ServeConfig {
    /// Its name, for status and for the names of what belongs to it.
    pub name: String,
    /// The addresses that clients connect to.
    pub addresses: Vec<SocketAddr>,
    /// The network device on which the addresses come and go with the service; `None`: they are the
    /// host's.
    pub address_device: Option<String>,
    /// The addresses are brought up although another host answers for them.
    pub take_address: bool,
    /// Another site has the same addresses behind NAT: no logger refuses the one for the other.
    pub shared_address: bool,
    /// The server's command.
    pub command: Vec<OsString>,
    /// The server has state: what it is told is recorded, and replayed before it serves again.
    pub wrapped: bool,
    /// How it is served if it cannot be rebuilt from a record; `None`: not at all.
    pub otherwise: Option<Box<ServeConfig>>,
    /// It cannot be rebuilt, and a record was only preferred: hosts that take over do without one, too.
    pub without: bool,
    /// When an image of the server takes the place of its record.
    pub checkpoints: Option<CheckpointConfig>,
    /// It keeps nothing across connections: when nobody is connected, and its record is so large, bytes, both begin
    /// anew.
    pub renew_at: Option<u64>,
    /// Where replays begin.
    pub replay: ReplayMode,
    /// What is compared.
    pub verify: Verify,
    /// Header fields whose values may differ in a replay.
    pub tolerate: Vec<String>,
    /// Which ends of its processes are crashes.
    pub crash_on: CrashOn,
    /// What the record may hold.
    pub limits: LoggerLimits,
    /// Largest number of connections protected at a time.
    pub max_connections: u32,
    /// How long connections wait for a server that does not come back.
    pub give_up_after: Duration,
    /// Deaths during a connection's replay after which it is given up.
    pub quarantine_after: u32,
    /// How long the server may take to end when asked to.
    pub grace: Duration,
    /// How the programs are attached.
    pub attach: AttachMode,
    /// The record is kept on another machine.
    pub link: Option<LinkConfig>,
    /// Wait until the logger grants that this host serves, instead of vouching that nobody else does.
    pub standby: bool,
    /// While this host stands by its server follows the one that serves.
    pub hot: bool,
    /// Of several standbys the one with the lowest serves.
    pub preference: u16,
    /// Where Prometheus finds the numbers.
    pub metrics: Option<SocketAddr>,
    /// Where events are kept when we are gone.
    pub history: Option<PathBuf>,
    /// Where sockets, locks and mounts of ours live.
    pub run_dir: RunDir,
}

impl ServeConfig {
    /// Outstream bytes recorded at the beginning of each turn. None of a server with state, whose replay compares all
    /// that it says by itself: a client that has heard something of which its notes know nothing is not kept at all.
    /// But one that may go on without notes takes its clients with it.
    pub(crate) fn verify_head(&self) -> u32 {
        match &self.otherwise {
            Some(otherwise) => otherwise.verify.head(),
            None if self.wrapped => 0,
            None => self.verify.head(),
        }
    }

    /// What the server says is digested, to be compared in a replay; of a server with state as
    /// [`ServeConfig::verify_head`] has it.
    pub(crate) fn digests(&self) -> bool {
        let verify = match &self.otherwise {
            Some(otherwise) => otherwise.verify,
            None if self.wrapped => return false,
            None => self.verify,
        };
        verify == Verify::Hash
    }

    /// If no more segments come in a tenth of a second, each is mirrored; `None`: there are no read cursors.
    pub(crate) fn spare_copies(&self) -> Option<u32> {
        let link = self.link.as_ref().filter(|_| self.wrapped)?;
        Some(link.copies_per_second.div_ceil(10))
    }

    /// The name of a service at this address if it is given none: `10.0.0.10-80`.
    #[must_use]
    pub fn default_name(address: SocketAddr) -> String {
        let ip = address.ip().to_string();
        // ::1 as 0::1: a name that begins with `-` would be taken for an option.
        let zero = if ip.starts_with(':') { "0" } else { "" };
        format!("{zero}{}-{}", ip.replace(':', "-"), address.port())
    }
}

/// Two addresses of a range, one after the other.
pub(crate) fn is_next(one: &SocketAddr, next: &SocketAddr) -> bool {
    one.ip() == next.ip() && one.port().checked_add(1) == Some(next.port())
}

/// Addresses as they are told: ports in a row as one range, as `--address` has it.
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

    /// The programs are loaded once: they must do what either way of serving asks for.
    #[test]
    fn preferred_record_is_verified_as_stateless() {
        let asks = |config: &ServeConfig| (config.verify_head(), config.digests());
        assert_eq!(asks(&with_state(None, false)), (0, false));
        for verify in [Verify::Full, Verify::Hash, Verify::Head, Verify::Off] {
            let config = with_state(Some(verify), false);
            let goes_on = config.otherwise.as_ref().expect("it may");
            assert_eq!(asks(&config), asks(goes_on));
            assert_eq!(config.digests(), verify == Verify::Hash);
            // At a logger, too, of which another host takes over.
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
