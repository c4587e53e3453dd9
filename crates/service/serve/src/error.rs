//! Reasons why a service cannot be protected. Each message names a remedy.

use std::{
    ffi::OsString,
    io,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
};

use channel::{ChannelError, KeyFileError};
use dataplane::{DataplaneError, MOST_ADDRESSES};
use protocol::control::ControlError;
use serde::Serialize;
use service_addresses::{AddressError, LinkLayer};
use supervise::{CgroupError, DestroyError, Exit, SpawnError, StopError, mounts::MountError};

use crate::options;

/// An error of `serve`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// We lack capabilities.
    #[error(
        "this process lacks the capabilities {}: run it as root (sudo), or in a container with --cap-add={}",
        .0.join(", "),
        .0.join(",")
    )]
    NoCapability(Vec<&'static str>),
    /// No address was given.
    #[error("no address to protect: give --address ADDRESS:PORT, as clients connect")]
    NoAddress,
    /// The address is a wildcard.
    #[error(
        "{0} is a wildcard, and clients connect to single addresses: give each address, as in --address 10.0.0.10:80 --address '[fd00::10]:80'"
    )]
    Wildcard(SocketAddr),
    /// The programs have no memory for this many addresses.
    #[error(
        "{given} addresses exceed the limit of {MOST_ADDRESSES} (each port of a range counts): run two services"
    )]
    TooManyAddresses {
        /// Number of given addresses.
        given: usize,
    },
    /// The address is not on this host.
    #[error(
        "{address} is not an address of this host, which has {present}; --address-device DEVICE brings the address up"
    )]
    NotLocal {
        /// The address.
        address: SocketAddr,
        /// Addresses of the host.
        present: String,
    },
    /// No such network device.
    #[error("this host has no network device {0:?}; `ip link` lists the devices")]
    NoDevice(String),
    /// Another host answers for an address that is to be brought up.
    #[error(
        "another host on {device} has {ip} ({}): end the service there, or remove the address (`ip address del`). Two hosts that serve {ip} in turn need the same --name, and `outlive standby` on the second host. If a router answers for all addresses: --take-address",
        LinkLayer(*mac)
    )]
    AddressInUse {
        /// The address.
        ip: IpAddr,
        /// On the link of this device.
        device: String,
        /// The other host's link-layer address.
        mac: [u8; 6],
    },
    /// An address that is to come and go with the service is on the host for good.
    #[error(
        "this host has {0} already, and outlive brings the address up only while this host serves: remove the address from the system's configuration and from the device (`ip address del`)"
    )]
    AddressHere(IpAddr),
    /// The kernel keeps sockets of a service that another host is to serve.
    #[error(
        "sockets of the server at {0} cannot be removed, so this host stays silent, and no other host takes over at once; `ss -tn` lists the sockets"
    )]
    SocketsLeft(String),
    /// Several loggers do not agree on the active host.
    #[error(
        "a standby requires exactly one --logger: several loggers do not agree on the host that serves"
    )]
    SeveralLoggers,
    /// Without a hardware address this host has no distinct number.
    #[error(
        "the device of --address-device has no hardware address, and the logger tells hosts apart by that: give a network card"
    )]
    NoHostNumber,
    /// The numbers cannot be shown there.
    #[error(
        "cannot serve metrics on {address}: {error}; --metrics needs a free port and an address of this host"
    )]
    Metrics {
        /// Address of the endpoint.
        address: SocketAddr,
        /// Error of the system.
        error: io::Error,
    },
    /// Another program listens already.
    #[error("{owner}: stop that program first; outlive starts the server in a cgroup")]
    InUse {
        /// The program that listens.
        owner: String,
    },
    /// Another service of this host has an address.
    #[error(
        "{address} is an address of the service {service}, which another outlive serve runs on this host (process {pid}): stop that service, or omit the address"
    )]
    AddressServed {
        /// The common address.
        address: SocketAddr,
        /// The name of that service.
        service: String,
        /// The process.
        pid: u32,
    },
    /// Another `serve` protects a service of this name.
    #[error(
        "another outlive serve runs the service {name}: see `outlive status {name}`, or choose another --name"
    )]
    AlreadyServed {
        /// The name.
        name: String,
    },
    /// The remains of an earlier `serve` cannot be adopted.
    #[error(
        "an earlier outlive serve of {name} was killed, and its server cannot be adopted ({why}): stop the server and run `outlive clean {name}`"
    )]
    NotAdopted {
        /// The name.
        name: String,
        /// The obstacle.
        why: Box<Self>,
    },
    /// The service that runs was started with other options.
    #[error(
        "{name} runs with another {option}: give the same value, or stop the server and run `outlive clean {name}`"
    )]
    OtherOptions {
        /// The name.
        name: String,
        /// The first option that differs.
        option: &'static str,
    },
    /// The service that runs belongs to another version of this program.
    #[error(
        "another version of outlive runs {name} (layout {layout}; this version has {}): install the versions between one after the other, or start that version again and stop the service, or stop the server and run `outlive clean {name}` of that version",
        dataplane::LAYOUT_VERSION
    )]
    OtherLayout {
        /// The name.
        name: String,
        /// Version of the layout.
        layout: u32,
    },
    /// A name that cannot be a directory.
    #[error(
        "{0:?} cannot be the name of a service: use letters, digits, '.', '_' and '-', the first a letter, a digit or '_'"
    )]
    BadName(String),
    /// No service and no remains have this name.
    #[error(
        "no service is called {name}, and no remains of a service have this name; {}",
        listed(known)
    )]
    NoService {
        /// The name.
        name: String,
        /// Services that there are.
        known: Vec<String>,
    },
    /// The run directory cannot be used.
    #[error("cannot use {}: {source}", path.display())]
    RunDir {
        /// Path of the run directory.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// The preloaded library cannot be in the server.
    #[error(
        "{0}. `--stateful=off` protects the connections of a server without state between requests"
    )]
    NotWrappable(#[from] north_host::program::NotWrappable),
    /// The preloaded library is not in the server.
    #[error(
        "the input of the server cannot be recorded: the preloaded library is not in the server, which may be statically linked or clear its environment. `--stateful=off` protects the connections of a server without state between requests"
    )]
    NotWrapped,
    /// Another program listens than the recorded program.
    #[error(
        "the listening process is a child of the recorded process, and runs another program: pass the server binary to `serve`, not a wrapper (a script, a shell). `--stateful=off` protects the connections of a server without state between requests"
    )]
    NotRecorded,
    /// The server makes a call that cannot be replayed.
    #[error(
        "{server} cannot be rebuilt from a record of its input: {why}. `--stateful=off` protects the connections of a server without state between requests"
    )]
    NotReplayable {
        /// The program.
        server: String,
        /// Description of the call.
        why: String,
    },
    /// The server did not come up the first time.
    #[error(
        "the server {exit} before it listened on {addresses}: nothing is protected; see the messages of the server above"
    )]
    FirstStart {
        /// Exit status of the server.
        exit: Exit,
        /// Addresses on which the server should have listened.
        addresses: String,
    },
    /// The command cannot be started.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// CRIU, which checkpoints need.
    #[error(transparent)]
    Criu(#[from] checkpoint::CriuError),
    /// The room of an image.
    #[error(transparent)]
    Room(#[from] checkpoint::SandboxError),
    /// The cgroup.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// A mount.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// Stopping the server.
    #[error(transparent)]
    Stop(#[from] StopError),
    /// Leftover sockets.
    #[error(transparent)]
    Destroy(#[from] DestroyError),
    /// The data plane.
    #[error(transparent)]
    Dataplane(#[from] DataplaneError),
    /// The logger cannot be started, or reached, or does not answer.
    #[error("the logger: {0}")]
    Logger(String),
    /// The logger has ended the stream.
    #[error("the logger has closed the connection")]
    LoggerClosed,
    /// The logger knows another service with an address of this service.
    #[error(
        "the logger: {0}; end that service. Two hosts that serve an address in turn need the same --name, and `outlive standby` on the second host. If the other host is gone for good: `outlive logger release` with that name. For two sites with the same private address behind NAT: --shared-address"
    )]
    AddressClaimed(String),
    /// A logger on another machine cannot be reached, or does not want us.
    #[error("the logger at {at}: {}", unreachable(at, error))]
    LoggerUnreachable {
        /// Address of the logger.
        at: SocketAddr,
        /// Failure of the connection.
        error: ChannelError,
    },
    /// The records belong to a service that was alive a moment ago.
    #[error("the logger: {0}")]
    StillServed(String),
    /// The records cannot be had yet.
    #[error("the logger: {0}")]
    StillWritten(String),
    /// None of the loggers wants us, and waiting will not help.
    #[error("{0}")]
    NoLogger(String),
    /// The key file.
    #[error(transparent)]
    Keys(#[from] KeyFileError),
    /// A service of this name was never served with leases of this logger.
    #[error("{0}")]
    NeverGranted(String),
    /// The logger does not know the requested object.
    #[error("the logger: {0}")]
    NotKnown(String),
    /// The logger sent an unexpected message. The logger has an accepted key: this is no stranger, but another version.
    #[error("the logger has another version: {}", advised(.0))]
    LoggerProtocol(#[from] ControlError),
    /// No version of the log link, or of the mirror frame, is common to this host and the logger.
    #[error("the logger has another version: {0}")]
    NoCommonVersion(String),
    /// The logger ended the stream before sending versions, as a logger before version 9 of the control stream does.
    #[error(
        "the logger has closed the connection without a version, as an older logger does. Two versions of outlive in a row understand each other: upgrade an older logger"
    )]
    LoggerMayBeOlder,
    /// A fabricated packet could not be built: our own bug.
    #[error("a fabricated packet: {0}")]
    Fabricate(#[from] wire::EmitError),
    /// Something of the system failed.
    #[error("{what}: {source}")]
    System {
        /// The attempted operation.
        what: &'static str,
        /// Error of the system.
        source: io::Error,
    },
}

/// The side at fault, and whether waiting helps; the command line derives exit codes from the fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The request cannot be done as requested.
    Config,
    /// Something is not there, and may be later.
    Missing,
    /// Something is in the way, and may not be later.
    InTheWay,
    /// We may not.
    Permission,
    /// This host or kernel lacks something.
    Host,
    /// The server that was to be protected failed.
    Server,
    /// We did.
    Ours,
}

impl ServeError {
    /// The error about the server with this command.
    pub(crate) fn not_replayable(command: &[OsString], why: String) -> Self {
        let program = command.first().map(Path::new);
        let name = program.and_then(Path::file_name).unwrap_or_default();
        Self::NotReplayable {
            server: name.to_string_lossy().into_owned(),
            why,
        }
    }

    /// The error of a logger that has sent no byte yet.
    pub(crate) fn into_first_reply_error(self) -> Self {
        match self {
            Self::LoggerClosed => Self::LoggerMayBeOlder,
            other => other,
        }
    }

    /// Is the reason that the server's state cannot be rebuilt from the input?
    #[must_use]
    pub fn is_of_the_north(&self) -> bool {
        matches!(
            self,
            Self::NotWrappable(_)
                | Self::NotWrapped
                | Self::NotRecorded
                | Self::NotReplayable { .. }
        )
    }

    /// Is the reason that the running service is served without a record?
    #[must_use]
    pub fn is_without_record(&self) -> bool {
        matches!(self, Self::OtherOptions { option, .. } if *option == options::NORTH)
    }

    /// Message for a server that is served without a record for this reason.
    #[must_use]
    pub fn and_without(&self) -> String {
        let why = match self.is_without_record() {
            true => "the running server has no record".into(),
            false => self.to_string(),
        };
        format!("{why}; the state of the server is not protected (--stateful=prefer)")
    }

    /// The side at fault.
    #[must_use]
    pub fn fault(&self) -> Fault {
        match self {
            Self::NoCapability(_)
            | Self::NoLogger(_)
            | Self::Dataplane(DataplaneError::NotPermitted { .. })
            | Self::Mount(MountError::NotPermitted { .. })
            | Self::Destroy(DestroyError::NotPermitted) => Fault::Permission,
            Self::NotLocal { .. } | Self::NoDevice(_) => Fault::Missing,
            Self::InUse { .. }
            | Self::AlreadyServed { .. }
            | Self::AddressServed { .. }
            | Self::StillServed(_)
            | Self::StillWritten(_)
            | Self::NotAdopted { .. }
            | Self::AddressInUse { .. }
            | Self::AddressClaimed(_)
            | Self::Cgroup(CgroupError::Occupied { .. }) => Fault::InTheWay,
            Self::Metrics { error, .. } => match error.kind() {
                io::ErrorKind::AddrInUse => Fault::InTheWay,
                io::ErrorKind::AddrNotAvailable => Fault::Missing,
                io::ErrorKind::PermissionDenied => Fault::Permission,
                _ => Fault::Config,
            },
            Self::LoggerUnreachable { error, .. } => of_channel(error),
            Self::RunDir { source, .. }
            | Self::System { source, .. }
            | Self::Cgroup(CgroupError::Io { source, .. })
            | Self::Dataplane(DataplaneError::Setting { source, .. }) => of_io(source),
            Self::NoAddress
            | Self::Wildcard(_)
            | Self::TooManyAddresses { .. }
            | Self::AddressHere(_)
            | Self::NoHostNumber
            | Self::SeveralLoggers
            | Self::OtherOptions { .. }
            | Self::OtherLayout { .. }
            | Self::BadName(_)
            | Self::NoService { .. }
            | Self::NeverGranted(_)
            | Self::Spawn(_)
            | Self::Criu(_)
            | Self::Keys(_)
            | Self::NotWrappable(_)
            | Self::NotWrapped
            | Self::NotRecorded
            | Self::NotReplayable { .. }
            | Self::Dataplane(DataplaneError::Memory { .. })
            | Self::Cgroup(CgroupError::InvalidName { .. }) => Fault::Config,
            Self::FirstStart { .. } => Fault::Server,
            Self::Mount(_)
            | Self::SocketsLeft(_)
            | Self::Destroy(DestroyError::Unsupported | DestroyError::NoDiag)
            | Self::Dataplane(DataplaneError::Load { .. } | DataplaneError::Attach { .. }) => {
                Fault::Host
            }
            _ => Fault::Ours,
        }
    }
}

/// The difference, and a remedy if the error itself names none.
fn advised(error: &ControlError) -> String {
    match error {
        ControlError::NoCommonVersion { .. } => error.to_string(),
        error => format!(
            "{error}. Two versions of outlive in a row understand each other: upgrade the older version"
        ),
    }
}

/// A logger that knows us not, or not this version, is not waited for.
fn of_channel(error: &ChannelError) -> Fault {
    match error {
        ChannelError::Refused {
            refusal: channel::Refusal::Version(_),
            ..
        }
        | ChannelError::UnknownVersion(_)
        | ChannelError::NotOurs => Fault::Config,
        error if error.is_configuration() => Fault::Permission,
        _ => Fault::Missing,
    }
}

fn of_io(error: &io::Error) -> Fault {
    match error.kind() {
        io::ErrorKind::PermissionDenied => Fault::Permission,
        io::ErrorKind::ReadOnlyFilesystem => Fault::Host,
        _ => Fault::Ours,
    }
}

fn listed(services: &[String]) -> String {
    match services {
        [] => "this host has no services".to_owned(),
        known => format!("this host has {}", known.join(", ")),
    }
}

/// The obstacle, and a remedy.
fn unreachable(at: &SocketAddr, error: &ChannelError) -> String {
    match error {
        ChannelError::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            format!(
                "no process listens there; start `outlive logger --listen {at} --key-file FILE` on that host"
            )
        }
        ChannelError::Io(error) if error.kind() == io::ErrorKind::TimedOut => {
            format!(
                "no answer; is that host up, and does a firewall let TCP and UDP port {} through?",
                at.port()
            )
        }
        ChannelError::NotOurs | ChannelError::Truncated => {
            format!("{error}; is this the port of an `outlive logger`?")
        }
        ChannelError::Refused {
            refusal: channel::Refusal::Version(_),
            ..
        }
        | ChannelError::UnknownVersion(_) => error.to_string(),
        error if error.is_configuration() => {
            format!(
                "{error}; both hosts need the same line in their key files (`outlive key` prints a line)"
            )
        }
        error => error.to_string(),
    }
}

/// Adds the attempted operation to an I/O error.
impl From<AddressError> for ServeError {
    fn from(error: AddressError) -> Self {
        match error {
            AddressError::NoDevice(device) => Self::NoDevice(device),
            AddressError::InUse { ip, device, mac } => Self::AddressInUse { ip, device, mac },
            AddressError::System { what, source } => Self::System { what, source },
            AddressError::Dataplane(error) => Self::Dataplane(error),
        }
    }
}

pub(crate) trait SystemContext<T> {
    fn doing(self, what: &'static str) -> Result<T, ServeError>;
}

impl<T> SystemContext<T> for io::Result<T> {
    fn doing(self, what: &'static str) -> Result<T, ServeError> {
        self.map_err(|source| ServeError::System { what, source })
    }
}

impl<T> SystemContext<T> for Result<T, rustix::io::Errno> {
    fn doing(self, what: &'static str) -> Result<T, ServeError> {
        self.map_err(io::Error::from).doing(what)
    }
}
