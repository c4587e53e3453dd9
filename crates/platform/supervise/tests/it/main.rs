//! Tests against the real kernel: the tests need root, and leave no process, cgroup or mount.

mod addresses;
mod common;
mod mounts;
mod processes;
mod sockets;
