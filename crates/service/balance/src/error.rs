//! Why a balancer does not run. Each message names a remedy.

use std::{io, net::SocketAddr};

use channel::{ChannelError, KeyFileError};
use dataplane::DataplaneError;
use lease::TermsError;
use protocol::pool::{ADDRESS_COUNT_MAX, STORE_COUNT_MAX};
use service_addresses::AddressError;
use supervise::mounts::MountError;

use crate::etcd::EtcdServers;

/// An error of the balancer.
#[derive(Debug, thiserror::Error)]
pub enum BalanceError {
    /// No address was given.
    #[error("no address to balance: give --address ADDRESS:PORT, as clients connect")]
    NoAddress,
    /// The address is a wildcard.
    #[error(
        "{0} is a wildcard, and clients connect to single addresses: give each address and port"
    )]
    Wildcard(SocketAddr),
    /// More addresses than a pool can have.
    #[error("{given} addresses exceed the limit of {ADDRESS_COUNT_MAX}: run a second pool")]
    TooManyAddresses {
        /// Number of addresses.
        given: usize,
    },
    /// More stores than a pool can have.
    #[error("{given} stores exceed the limit of {STORE_COUNT_MAX}")]
    TooManyStores {
        /// Number of stores.
        given: usize,
    },
    /// The host lacks the address.
    #[error(
        "{0} is on no interface of this host: give --address-device DEVICE, and outlive brings the address up"
    )]
    NotLocal(SocketAddr),
    /// The device is for XDP.
    #[error("--forward-device is for --forward xdp: at tc, packets are forwarded from all devices")]
    NotForTc,
    /// XDP sends no packets in UDP.
    #[error("XDP sends packets to neighbours only: give --forward tc with --encapsulate")]
    XdpEncapsulates,
    /// No device has the addresses.
    #[error(
        "no device of this host has the addresses: name the device on which packets of clients arrive, with --forward-device DEVICE"
    )]
    NoForwardDevice,
    /// The device has frames of another form.
    #[error("{0} has no Ethernet frames, and XDP forwards only these: give --forward tc")]
    NotEthernet(String),
    /// Another host answers for the address.
    #[error(
        "{0}: take the address off that host; members have it on the loopback and must not answer ARP for it"
    )]
    InUse(AddressError),
    /// The address cannot be brought up.
    #[error(transparent)]
    Address(AddressError),
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {error}{}", hint(.error))]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error of the system.
        error: io::Error,
    },
    /// The metrics cannot be served.
    #[error("cannot show metrics on {address}: {error}{}", hint(.error))]
    Metrics {
        /// The address.
        address: SocketAddr,
        /// The error of the system.
        error: io::Error,
    },
    /// The key file cannot be used.
    #[error(transparent)]
    Keys(#[from] KeyFileError),
    /// The pool key cannot be made.
    #[error("cannot make the key of the pool: {0}")]
    PoolKey(#[from] ChannelError),
    /// No member can get a lease of this length.
    #[error("--lease: {}", lease_rule(*.0))]
    Lease(#[from] TermsError),
    /// Another balancer of this name runs.
    #[error("another `outlive balance` runs as {0}: stop that balancer, or choose another --name")]
    AlreadyRuns(String),
    /// No balancer of this name runs, or has left anything.
    #[error("no balancer runs as {0}: start `outlive balance`, or name another balancer")]
    NotRunning(String),
    /// The balancer refuses a request of the operator.
    #[error("{0}")]
    NotDone(String),
    /// The run directory cannot be used.
    #[error(
        "cannot use the run directory {path}: {source}; run this as root (sudo), or choose another --run-dir"
    )]
    RunDirectory {
        /// The directory.
        path: std::path::PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// No bpf filesystem can be had.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The register does not answer.
    #[error(
        "--register {servers}: {reason}: several balancers keep the table of the pool in etcd: is etcd running there?"
    )]
    Register {
        /// The servers.
        servers: EtcdServers,
        /// The newest error.
        reason: String,
    },
    /// The data plane fails.
    #[error(transparent)]
    Dataplane(#[from] DataplaneError),
    /// The system refuses.
    #[error("cannot {what}: {source}")]
    System {
        /// The attempted operation.
        what: &'static str,
        /// The error of the system.
        source: io::Error,
    },
}

/// The side at fault, and whether waiting helps; the command line derives exit codes from the fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The configuration.
    Config,
    /// A missing address, device or balancer.
    Missing,
    /// Another program.
    InTheWay,
    /// A missing permission.
    Permission,
    /// The host or the kernel.
    Host,
    /// The balancer itself.
    Ours,
}

impl BalanceError {
    /// The side at fault.
    #[must_use]
    pub fn fault(&self) -> Fault {
        match self {
            Self::NoAddress
            | Self::Wildcard(_)
            | Self::TooManyAddresses { .. }
            | Self::TooManyStores { .. }
            | Self::Keys(_)
            | Self::NotForTc
            | Self::XdpEncapsulates
            | Self::NoForwardDevice
            | Self::NotEthernet(_)
            | Self::Lease(_) => Fault::Config,
            Self::NotLocal(_)
            | Self::NotRunning(_)
            | Self::Register { .. }
            | Self::Address(AddressError::NoDevice(_)) => Fault::Missing,
            Self::InUse(_) | Self::AlreadyRuns(_) | Self::NotDone(_) => Fault::InTheWay,
            Self::Listen { error, .. } | Self::Metrics { error, .. } => match error.kind() {
                io::ErrorKind::AddrInUse => Fault::InTheWay,
                io::ErrorKind::AddrNotAvailable => Fault::Missing,
                io::ErrorKind::PermissionDenied => Fault::Permission,
                _ => Fault::Config,
            },
            Self::Mount(MountError::NotPermitted { .. })
            | Self::Dataplane(DataplaneError::NotPermitted { .. }) => Fault::Permission,
            Self::Mount(_) | Self::Dataplane(_) => Fault::Host,
            Self::RunDirectory { source, .. }
            | Self::System { source, .. }
            | Self::Address(AddressError::System { source, .. }) => match source.kind() {
                io::ErrorKind::PermissionDenied => Fault::Permission,
                _ => Fault::Ours,
            },
            Self::Address(_) | Self::PoolKey(_) => Fault::Ours,
        }
    }

    /// The word for scripts.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::NoAddress | Self::Wildcard(_) | Self::TooManyAddresses { .. } => "address",
            Self::TooManyStores { .. } => "store",
            Self::NotForTc
            | Self::XdpEncapsulates
            | Self::NoForwardDevice
            | Self::NotEthernet(_) => "forward",
            Self::NotLocal(_) => "address_not_here",
            Self::InUse(_) => "address_in_use",
            Self::Address(AddressError::NoDevice(_)) => "no_device",
            Self::Address(_) => "address_not_up",
            Self::Listen { .. } | Self::Metrics { .. } => "not_listening",
            Self::Keys(_) => "key_file",
            Self::PoolKey(_) => "pool_key",
            Self::Lease(_) => "lease",
            Self::AlreadyRuns(_) => "already_runs",
            Self::NotRunning(_) => "not_running",
            Self::NotDone(_) => "not_done",
            Self::RunDirectory { .. } => "run_directory",
            Self::Register { .. } => "register",
            Self::Mount(_) => "mount",
            Self::Dataplane(_) => "dataplane",
            Self::System { .. } => "system",
        }
    }
}

impl From<AddressError> for BalanceError {
    fn from(error: AddressError) -> Self {
        match error {
            AddressError::InUse { .. } => Self::InUse(error),
            AddressError::Dataplane(error) => Self::Dataplane(error),
            error => Self::Address(error),
        }
    }
}

fn lease_rule(error: TermsError) -> String {
    match error {
        TermsError::Longest => {
            "a lease lasts at most 2 s: for so long, the next balancer waits for members that it does not hear".into()
        }
        other => other.to_string(),
    }
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => " (another balancer, or another program, uses the port)",
        io::ErrorKind::AddrNotAvailable => " (this host does not have the address)",
        io::ErrorKind::PermissionDenied => " (ports below 1024 need privileges)",
        _ => "",
    }
}

pub(crate) trait SystemContext<T> {
    fn doing(self, what: &'static str) -> Result<T, BalanceError>;
}

impl<T> SystemContext<T> for io::Result<T> {
    fn doing(self, what: &'static str) -> Result<T, BalanceError> {
        self.map_err(|source| BalanceError::System { what, source })
    }
}
