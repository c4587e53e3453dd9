//! A seeded simulator: clients, a network that loses and reorders, a server that dies at every
//! step, and between them the real decisions and the model of the south side wrap.
//!
//! A run is a function of a single number, the seed. The seed draws a [`Scenario`] (the clients and requests, the
//! quality of the network, the deaths of the server), which is then played in virtual time: no threads, no clock, no
//! randomness of the operating system.
//!
//! ```text
//! clients ── hosts ── network ── south_model::SouthSide ── host ── server application
//! (client)  (host)   (network)        │   (node)            (process, session)
//!                                     ├── mirror ring ── journal   (record)
//!                                     └── recovery::Recovery       (driver)
//! ```
//!
//! Both ends run `smoltcp`, a TCP without knowledge of outlive. Under test is the real code of `south-model`,
//! `recovery` and `journal`. The module `driver` does the work that the crate `serve` does with kernel maps and
//! processes. Meanwhile the module `invariants` compares packets, bytes and record with a run without crashes; a
//! difference is a [`Violation`].
//!
//! | module | |
//! |---|---|
//! | `scenario`, `conversation` | what is played: drawn from the seed |
//! | `network`, `host`, `linux_tcp` | packets on their way; a host with its TCP |
//! | `client`, `session`, `process` | the applications at both ends |
//! | `node` | the server's host: its TCP behind the south side wrap |
//! | `stateful`, `determinants` | a server with state, and what outlives it |
//! | `repair` | sockets that go on where others stood |
//! | `record`, `driver`, `actions` | logger and supervisor |
//! | `link`, `crashable_logger` | the way to a logger on another machine; one with a log, which is killed |
//! | `invariants` | the invariants |
//! | `simulation` | the loop of events |
//! | `failure` | a broken run of the worlds below, for people |
//! | `trace` | what happens, for people |
//! | `pool` | another world: the mode `objects` |
//! | `bulk` | another world: bulk transfers by datagrams; in it `connections`: by TCP |

#![forbid(unsafe_code)]

mod actions;
mod bulk;
mod client;
mod clock;
mod conversation;
mod crashable_logger;
mod determinants;
mod driver;
mod failure;
mod host;
mod invariants;
mod link;
mod linux_tcp;
mod network;
mod node;
mod pool;
mod power;
mod process;
mod record;
mod repair;
mod scenario;
mod session;
mod simulation;
mod stateful;
mod trace;

pub use bulk::{
    BulkFailure, BulkFlaw, BulkOutcome, BulkScenario, ConnectionFailure, ConnectionFlaw,
    ConnectionOutcome, ConnectionScenario, play_bulk, play_connections,
};
pub use failure::{BrokenRun, Seeded};
pub use invariants::Violation;
pub use node::NorthCounters;
pub use pool::{PoolFailure, PoolFlaw, PoolOutcome, PoolScenario, play_pool};
pub use scenario::{Fault, Flaw, Scenario};
pub use simulation::{Failure, Outcome, play, play_seed};

/// A millisecond, in nanoseconds, the unit of all times here.
pub(crate) const MS: u64 = 1_000_000;
/// A second.
pub(crate) const SECOND: u64 = 1_000 * MS;

/// A length that fits 32 bits, as all lengths in a simulation do.
pub(crate) fn length32(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// A 32-bit length as an index.
pub(crate) fn index(length: u32) -> usize {
    usize::try_from(length).unwrap_or(usize::MAX)
}

/// A pause of at most `pace`, ns; longer after `idle` times without work.
pub(crate) fn pause(rng: &mut rand::rngs::SmallRng, pace: u64, idle: u32) -> u64 {
    let pause = rand::Rng::random_range(rng, pace / 4..=pace);
    (pause << idle.min(12)).min(pace.max(10 * MS))
}
