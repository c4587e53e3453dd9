//! Starting, watching and killing an unmodified server in a separate cgroup.
//!
//! This is a thin outer crate: the crate touches processes, mounts, cgroupfs and kernel sockets, and makes no decisions
//! about recovery. Root is needed. In the order of a service's life:
//!
//! 1. [`mounts`] finds the cgroup v2 and bpf filesystems, or mounts them.
//! 2. [`Cgroup`] contains all processes that the server starts. The BPF programs recognise the service's processes by
//!    the id of the cgroup. Killing the cgroup kills all processes, also after forks.
//! 3. [`listener_on`] and [`address_is_local`] refuse early a start that could not work; [`Addresses`] gives the host
//!    an address of the service while the host serves.
//! 4. [`Command`] starts the server, which is in the cgroup from the first instruction.
//! 5. [`Server`] watches the main process by a pidfd; [`reap_orphans`] reaps descendants whose parents have ended.
//! 6. After a death, [`destroy_sockets`] closes the kernel sockets of the dead server ([`destroy_socket`]: the socket
//!    of a single connection), and [`Backoff`] determines the time of the next start.
//!
//! A drop of a [`Cgroup`] or a [`Server`] undoes no step: the death of the supervisor must not end the server. Only a
//! [`mounts::Mount`] unmounts its filesystem.

mod addresses;
mod backoff;
mod birth;
mod cgroup;
mod command;
mod deadline;
mod descriptors;
mod destroy;
mod host_name;
pub mod limits;
mod listening;
mod local;
pub mod mounts;
mod netlink;
mod orphans;
mod own_binary;
mod server;
mod tcp_state;
mod unread;
mod urgency;

pub use addresses::{Addresses, HostAddress, Route};
pub use backoff::{Backoff, BackoffConfig};
pub use birth::Announce;
pub use cgroup::{Cgroup, CgroupError};
pub use command::{Command, Isolation, SpawnError, resolve};
pub use descriptors::redirect_inherited;
pub use destroy::{
    DestroyError, Destroyed, check_destroy_supported, connection_states, destroy_socket,
    destroy_sockets, open_connections,
};
pub use host_name::host_name;
pub use listening::{Owner, is_listened_on, listener_on, listening_in};
pub use local::{LocalAddress, address_is_local, local_addresses};
pub use orphans::{become_subreaper, reap_orphans};
pub use own_binary::own_binary;
pub use rustix::process::Pid;
pub use server::{Exit, Server, StopError, stop_daemon};
pub use tcp_state::TcpState;
pub use unread::{Unread, is_connected, unread};
pub use urgency::become_urgent;
