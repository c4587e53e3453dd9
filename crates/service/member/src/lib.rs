//! A member of a pool: supervises a web server, and goes on with the downloads of members that have died.
//!
//! | module | |
//! |---|---|
//! | `ask` | questions of an operator to a running member |
//! | `claiming` | claims of unknown connections, on the wire |
//! | `engine` | the event loop's work: events of the programs, deaths of the server, revivals |
//! | `event` | events of a member |
//! | `metrics` | the status as metrics |
//! | `operator` | the answers to an operator: status, events, metrics |
//! | `pool_check` | `outlive check --pool`: whether members agree |
//! | `pool_client` | the stream to the balancer: settings, the lease, the table |
//! | `probe` | the answers of a member to a check |
//! | `records` | records of connections in the store of the pool |
//! | `remains` | what a member leaves on its host, and `outlive clean` |
//! | `revivals` | connections that are being revived, between the programs and the crate `objects` |
//! | `revived_objects` | request targets of revived responses |
//! | `run` | a member from its start to its end |
//! | `server` | the server: start, death, start after a death |
//! | `status` | the status of a member |

mod ask;
mod claiming;
mod clock;
mod encapsulation_port;
mod engine;
mod error;
mod event;
mod metrics;
mod operator;
pub mod pool_check;
mod pool_client;
mod probe;
mod records;
mod remains;
mod revivals;
mod revived_objects;
mod run;
mod server;
mod status;

pub use ask::{ask, ask_events};
pub use error::MemberError;
pub use event::Event;
pub use objects::revive::WITHHOLD_MAX;
pub use remains::{Cleaned, clean, leftovers};
pub use run::{Options, run};
pub use status::{
    ConnectionStatus, FlowCount, FlowPhase, HeldBy, PoolStatus, ServerStatus, Status, Totals,
};
