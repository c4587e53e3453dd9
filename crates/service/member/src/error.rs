//! Errors of a member.

use std::{io, net::SocketAddr};

use dataplane::DataplaneError;
use supervise::{CgroupError, DestroyError, SpawnError};

/// An error of a member.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemberError {
    /// Between this process and the programs in the kernel.
    #[error(transparent)]
    Dataplane(#[from] DataplaneError),
    /// The server's cgroup.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The server cannot be started.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// Sockets of a dead server cannot be removed.
    #[error(transparent)]
    Destroy(#[from] DestroyError),
    /// A file system of the kernel cannot be mounted.
    #[error(transparent)]
    Mount(#[from] supervise::mounts::MountError),
    /// A member of this name runs already.
    #[error(
        "a member called {0} runs on this host already: choose another --name, or stop it first"
    )]
    Runs(String),
    /// No member of this name has left anything.
    #[error("no member called {0} runs or has left anything in this run directory")]
    NeverRan(String),
    /// A process that is not the member's server listens on an address of the pool.
    #[error(
        "another process listens on {0}: stop that process (`ss -ltnp` names it); the member starts the server by itself"
    )]
    PortTaken(SocketAddr),
    /// Another program has the port of packets between the hosts of the pool.
    #[error(
        "the balancer's --encapsulate needs UDP port {port}: {source} (`ss -lunp` names the other program)"
    )]
    EncapsulationPort {
        /// The port.
        port: u16,
        /// The error of the system.
        source: io::Error,
    },
    /// No member of this name runs.
    #[error(
        "no member called {0} answers: start `outlive objects`, or name another member; if it was killed, `outlive clean` removes the remains"
    )]
    NotRunning(String),
    /// The metrics cannot be served.
    #[error("cannot show metrics on {address}: {error}")]
    Metrics {
        /// The address.
        address: SocketAddr,
        /// The error of the system.
        error: io::Error,
    },
    /// No neighbour sends packets to such an address.
    #[error("--member-address: {0}")]
    Address(protocol::pool::AddressError),
    /// The key file.
    #[error(transparent)]
    KeyFile(channel::KeyFileError),
    /// The stream to the balancer.
    #[error(
        "the balancer at {at}: {source}: is `outlive balance` running there, with the same key file?"
    )]
    Balancer {
        /// The balancer.
        at: SocketAddr,
        /// The reason.
        source: channel::ChannelError,
    },
    /// Several balancers that do not know of each other.
    #[error(
        "the balancer at {at} has no register, and --pool names several balancers: start each `outlive balance` with the same --register"
    )]
    NoRegister {
        /// The balancer.
        at: SocketAddr,
    },
    /// Balancers of different pools.
    #[error(
        "the balancer at {at} has other addresses or another key than the first balancer: give both the same --address and --key-file"
    )]
    OtherSettings {
        /// The balancer.
        at: SocketAddr,
    },
    /// Messages of the balancer.
    #[error("the balancer: {0}")]
    Protocol(protocol::control::ControlError),
    /// The balancer does not answer.
    #[error("the balancer does not answer")]
    NoAnswer,
    /// The balancer does not admit the member.
    #[error("the balancer does not admit this member: {0}")]
    Refused(protocol::pool::Refused),
    /// A URL of a store from the balancer.
    #[error("the balancer's --store: {0}")]
    StoreUrl(store::UrlError),
    /// Responses with inputs or in chunks, and no store for these.
    #[error(
        "--dynamic and --deterministic-chunks need a store: start `outlive balance` with --store"
    )]
    NoStore,
    /// Terms of leases that no balancer has.
    #[error("the terms of the balancer's leases: {0}")]
    Terms(lease::TermsError),
    /// A call of the system.
    #[error("cannot {what}: {source}")]
    System {
        /// The attempted operation.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

/// Adds the attempted operation to an error of the system.
pub(crate) trait SystemContext<T> {
    fn doing(self, what: &'static str) -> Result<T, MemberError>;
}

impl<T> SystemContext<T> for io::Result<T> {
    fn doing(self, what: &'static str) -> Result<T, MemberError> {
        self.map_err(|source| MemberError::System { what, source })
    }
}
