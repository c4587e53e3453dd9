//! Starting, watching and killing an unmodified server in a cgroup of its own.
//!
//! This is a thin outer crate: it touches processes, mounts, cgroupfs and kernel
//! sockets, and decides nothing about recovery. It needs root. In the order of a
//! service's life:
//!
//! 1. [`mounts`] finds the cgroup v2 and bpf filesystems, or mounts them.
//! 2. [`Cgroup`] is the box around everything that the server starts. The kernel side
//!    recognises the service's processes by its id; killing the box kills them all,
//!    however they forked.
//! 3. [`listener_on`] and [`address_is_local`] refuse early what could not work; [`Addresses`] gives
//!    the host an address of the service for as long as it is served.
//! 4. [`Command`] starts the server, already in its box when its first instruction runs.
//! 5. [`Server`] watches the main process by a pidfd; [`reap_orphans`] buries the
//!    descendants that were left to us.
//! 6. After a death, [`destroy_sockets`] closes what the dead server left in the
//!    kernel ([`destroy_socket`]: that of one connection), and [`Backoff`] says when to start again.
//!
//! Nothing here is undone by dropping a [`Cgroup`] or a [`Server`]: the death of the
//! supervisor must not take the server with it. Only a [`mounts::Mount`] unmounts itself.

mod addresses;
mod backoff;
mod birth;
mod cgroup;
mod command;
mod deadline;
mod descriptors;
mod destroy;
pub mod limits;
mod listening;
mod local;
pub mod mounts;
mod netlink;
mod orphans;
mod server;
mod tcp_state;
mod unread;
mod urgency;

pub use addresses::{Addresses, HostAddress};
pub use backoff::{Backoff, BackoffConfig};
pub use birth::Announce;
pub use cgroup::{Cgroup, CgroupError};
pub use command::{Command, Isolation, SpawnError, resolve};
pub use descriptors::redirect_inherited;
pub use destroy::{
    DestroyError, Destroyed, check_destroy_supported, destroy_socket, destroy_sockets,
    open_connections,
};
pub use listening::{Owner, is_listened_on, listener_on, listening_in};
pub use local::{LocalAddress, address_is_local, local_addresses};
pub use orphans::{become_subreaper, reap_orphans};
pub use rustix::process::Pid;
pub use server::{Exit, Server, StopError, stop_daemon};
pub use tcp_state::TcpState;
pub use unread::{Unread, is_connected, unread};
pub use urgency::become_urgent;
