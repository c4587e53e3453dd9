//! The north side wrap: what is preloaded into a server's processes (`ft-tcp-infocom-2001`, III.B).
//!
//! It stands between the program and its C library, under the names of the calls whose outcomes a program cannot
//! compute by itself. In the first life of a server it performs each call and *records* the outcome in memory that
//! outlives the process (`stream`); where output must not leave before its causes are safe, it holds
//! it until then (`commit`, `later`). In the next life it *replays*: the same program, given the same outcomes in the
//! same order, comes to the same state, and what it says is compared instead of sent. At the end of the record the
//! supervisor hands it its clients' connections (`live`), and it records on from there.
//!
//! Rules of this crate, which runs inside programs that know nothing of it: no allocation, no lock, no
//! panic; system calls of its own only (`sys`), since the C library's names are ours. `errno` is
//! what the call said. Everything is done by each process's first thread (`tree`); calls of others pass through,
//! and are refused loudly where they concern a client.

// The words that go to the kernel are what C has made of them; and a call of the program's is one operation, with
// one reason.
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
