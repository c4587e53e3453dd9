//! The load balancer and monitor of a pool.
//!
//! | module | |
//! |---|---|
//! | `service` | the event loop: control streams of members, the monitor, and the effects of the monitor's decisions |
//! | `member_stream` | a control stream |
//! | `forwarding` | the table in the kernel, the interfaces, and the links of the members |
//! | `register`, `etcd` | the place of the newest table: several balancers write into etcd |
//! | `change_script` | a program of the operator that gives the table to another load balancer |
//! | `run_directory` | lock, socket and mounts |
//! | `status` | the status, and the questions of an operator |
//! | `metrics` | the numbers for Prometheus |
//!
//! All decisions are in the crate `pool`. A balancer that ends leaves the programs and the service's address in place:
//! packets go to the members of the last table, the next balancer goes on with that table, and [`clean`] removes all.

#![forbid(unsafe_code)]

mod change_script;
mod clean;
mod config;
mod error;
mod etcd;
mod event;
mod forwarding;
mod member_stream;
mod metrics;
mod register;
mod run_directory;
mod service;
mod status;

pub use clean::{Cleaned, clean, leftovers};
pub use config::{BalanceConfig, Delivery, Forward};
pub use error::{BalanceError, Fault};
pub use etcd::{EtcdServers, ServersError};
pub use event::{Code, Event};
pub use service::Balancer;
pub use status::{MemberStatus, PacketCounts, Status, ask, ask_events, confirm_dead, drain};
