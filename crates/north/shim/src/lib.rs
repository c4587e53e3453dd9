//! The north side wrap: the library that is preloaded into a server's processes (`ft-tcp-infocom-2001`, III.B).
//!
//! The shim stands between the program and the C library, under the names of the calls whose outcomes a program
//! cannot compute itself. In the first incarnation of a server the shim performs each call and *records* the outcome
//! in memory that outlives the process (`stream`). Where output must not leave before its causes are safe, the shim
//! defers the output (`output_commit`). In the next incarnation the shim *replays*: the same program with the same
//! outcomes in the same order reaches the same state, and the output is compared instead of sent. At the end of the
//! record the supervisor hands over the clients' connections (`live`), and recording continues.
//!
//! Rules of this crate, which runs inside programs that do not know the shim: no allocation, no lock, no panic;
//! system calls of its own only (`sys`), because the C library's names are ours. `errno` is the outcome of the call.
//! The first thread of each process does all work (`process_tree`). Calls of other threads pass through, and are
//! refused loudly where a client is concerned.

// System calls take the bits of C's types. And a call of the program is a single operation, with a single reason for
// all unsafe steps.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::multiple_unsafe_ops_per_block
)]

mod allocators;
mod calls;
mod children;
mod clock;
mod closing;
mod connection_owner;
mod datagrams;
mod descriptors;
mod determinant_sender;
mod errno;
mod helpers;
mod init;
mod inodes;
mod ipc_replay;
mod live;
mod liveness;
mod messages;
mod mutexes;
mod output_commit;
mod places;
mod process_group;
mod process_tree;
mod program;
mod read_cursors;
mod real;
mod shared_state_guard;
mod signals;
mod snapshot_point;
mod stream;
mod sys;
mod wrap;
