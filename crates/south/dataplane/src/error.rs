//! Errors between `outlive` and the kernel.

use std::path::PathBuf;

/// An error of the data plane.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataplaneError {
    /// The kernel refused the programs: the kernel is too old, or lacks a feature.
    #[error(
        "this kernel does not load the data plane ({source}): use a kernel with BTF (CONFIG_DEBUG_INFO_BTF), the BPF ring buffer, dynptr and bpf_loop (Linux 5.19 or later)"
    )]
    Load {
        /// Error of libbpf.
        source: libbpf_rs::Error,
    },
    /// We may not load the programs.
    #[error(
        "loading the programs is not permitted ({source}): this needs CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN, and neither a container's seccomp filter nor the kernel's lockdown may forbid bpf(2)"
    )]
    NotPermitted {
        /// Error of libbpf.
        source: libbpf_rs::Error,
    },
    /// A setting of an interface cannot be changed.
    #[error(
        "cannot set {} to 1: {source}; where /proc/sys is not writable, as in a container, change the setting beforehand ({setting}=1, for instance by --sysctl)",
        path.display()
    )]
    Setting {
        /// File of the setting.
        path: PathBuf,
        /// Name of the setting for sysctl(8).
        setting: String,
        /// Error of the system.
        source: std::io::Error,
    },
    /// The maps do not fit into the kernel's memory.
    #[error(
        "this host has no memory for a ring of {ring} bytes (--ring-size) and a table of {flows} connections (--max-connections): reduce both"
    )]
    Memory {
        /// Bytes of the ring.
        ring: u32,
        /// Connections.
        flows: u32,
    },
    /// A program could not be attached.
    #[error("cannot attach {program} to {target}: {source}")]
    Attach {
        /// The program.
        program: &'static str,
        /// Interface or tracepoint.
        target: String,
        /// Error of the kernel.
        source: libbpf_rs::Error,
    },
    /// The driver of an interface has no native XDP, or not with the settings of the interface.
    #[error(
        "{interface} takes no program at native XDP ({source}): the driver has none, or not with this MTU, with LRO or with so many queues; give --forward tc, or --forward xdp-generic for XDP without the driver"
    )]
    NoNativeXdp {
        /// The interface.
        interface: String,
        /// Error of the kernel.
        source: libbpf_rs::Error,
    },
    /// Another program is at the place of the balancer's.
    #[error(
        "{interface} has another XDP program (ip link show dev {interface}): remove that program, or give --forward tc"
    )]
    XdpTaken {
        /// The interface.
        interface: String,
    },
    /// A program that is none of the service's is in the place of the service's.
    #[error(
        "on {interface} an unknown program has the place of the service's filter (tc filter show dev {interface} ingress, egress): remove that filter, and start outlive serve again"
    )]
    UnknownFilter {
        /// The interface.
        interface: String,
    },
    /// A map or program of the object is missing: our own bug.
    #[error("the BPF object has no {0}")]
    Missing(&'static str),
    /// A map operation failed.
    #[error("{what}: {source}")]
    Map {
        /// The attempted operation.
        what: &'static str,
        /// Error of the kernel.
        source: libbpf_rs::Error,
    },
    /// The control program refused an operation.
    #[error("{what} was refused: {source}")]
    Control {
        /// The attempted operation.
        what: &'static str,
        /// The reason.
        source: std::io::Error,
    },
    /// A pin exists already, or the directory cannot be made.
    #[error("cannot pin in {}: {source}", path.display())]
    Pin {
        /// Where.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A map of the layout before cannot be taken over: the old programs go on.
    #[error("the map {map} of the former layout cannot be taken over: {why}")]
    Migration {
        /// Name of the map.
        map: String,
        /// The reason.
        why: crate::object::MigrationError,
    },
    /// Maps were not copied in time: the old programs go on.
    #[error(
        "the maps of the former layout were not copied within {limit:?}, and the old programs go on: start outlive serve again when the host is less busy"
    )]
    HeldTooLong {
        /// Longest time for which segments may be held back.
        limit: std::time::Duration,
    },
    /// The next version was killed just after the next version's programs had replaced the programs
    /// of this version.
    #[error(
        "a newer version of outlive has taken the service over, and was killed: start that version again"
    )]
    Superseded,
    /// A packet could not be put on an interface.
    #[error("{what}: {source}")]
    Socket {
        /// The attempted operation.
        what: &'static str,
        /// The reason.
        source: std::io::Error,
    },
    /// The packet to inject is malformed: our own bug.
    #[error("packet to inject: {0}")]
    Packet(#[from] wire::WireError),
}

/// Adds the attempted operation to an error of libbpf.
pub(crate) trait MapContext<T> {
    fn doing(self, what: &'static str) -> Result<T, DataplaneError>;
}

impl<T> MapContext<T> for Result<T, libbpf_rs::Error> {
    fn doing(self, what: &'static str) -> Result<T, DataplaneError> {
        self.map_err(|source| DataplaneError::Map { what, source })
    }
}

/// Adds the attempted operation to an I/O error.
pub(crate) trait SocketContext<T> {
    fn doing(self, what: &'static str) -> Result<T, DataplaneError>;
}

impl<T> SocketContext<T> for std::io::Result<T> {
    fn doing(self, what: &'static str) -> Result<T, DataplaneError> {
        self.map_err(|source| DataplaneError::Socket { what, source })
    }
}
