//! A record on another machine.

mod adoption;
mod durable;
mod keys;
mod loss;
mod metrics;
mod outage;
mod power;
mod recovery;
mod service_manager;
mod upgrade;

use e2e::exchange::{echoes, echoing, talks};
use e2e::loggers::{protect, status, with_logger};
