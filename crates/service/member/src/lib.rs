//! A member of a pool: supervises a web server, and goes on with the downloads of members that have died.
//!
//! | module | |
//! |---|---|
//! | `claiming` | claims of unknown connections, on the wire |
//! | `engine` | the event loop's work: events of the programs, deaths of the server, revivals |
//! | `event` | events of a member |
//! | `pool_client` | the stream to the balancer: settings, the lease, the table |
//! | `records` | records of connections in the store of the pool |
//! | `remains` | what a member leaves on its host, and `outlive clean` |
//! | `revivals` | connections that are being revived, between the programs and the crate `objects` |
//! | `run` | a member from its start to its end |
//! | `server` | the server: start, death, start after a death |

mod claiming;
mod clock;
mod engine;
mod error;
mod event;
mod pool_client;
mod records;
mod remains;
mod revivals;
mod run;
mod server;

pub use error::MemberError;
pub use event::Event;
pub use objects::revive::WITHHOLD_MAX;
pub use remains::{Cleaned, clean, leftovers};
pub use run::{Options, run};
