//! The core of the mode *objects* (TRODS, Princeton): a server of a pool goes on with the download of a dead server.
//!
//! The client holds the state. The unacknowledged request says which object the client downloads. The timestamp that
//! the client echoes says where in the sequence space the body of the response began. This crate has the encodings:
//!
//! - [`isn`]: the keyed initial sequence number of each connection;
//! - [`timestamp`]: the layout of timestamps, and the index that keeps round trips and PAWS (RFC 7323, 5) right;
//! - [`head`]: summaries of heads, which the program in the kernel finds, too;
//! - [`judge`]: whether a response of another server continues the client's part;
//! - [`plane`]: the model of the programs in the kernel;
//! - [`revive`] and [`revivals`]: the connections that a member goes on with;
//! - [`budget`]: how many segments of unknown connections a member looks at;
//! - [`record`]: the state of a connection in the store of the pool;
//! - [`store`]: operations at the store of the pool, and the decisions of one or two stores;
//! - [`records`]: the records of a member: when a record is written, looked up, renewed and deleted;
//! - [`turns`]: the turns that a member writes to the store;
//! - [`queue`]: pipelined requests, and requests in several segments;
//! - [`call`]: a segment that a client answers;
//! - [`paper`]: the layout of the paper, for comparison.
//!
//! The crate does no I/O and reads no clock: time and keys are arguments.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod budget;
pub mod call;
pub mod deferred;
mod farewell;
pub mod flaws;
pub mod flow;
pub mod head;
pub mod isn;
pub mod judge;
mod key;
pub mod paper;
pub mod plane;
pub mod queue;
mod reasons;
pub mod record;
pub mod records;
pub mod revivals;
pub mod revive;
pub mod store;
pub mod timestamp;
pub mod turns;
pub mod unreachable;
pub mod window_update;

pub use key::PoolKey;
