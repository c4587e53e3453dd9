//! The record is kept on another machine.

mod adoption;
mod closed;
mod durable;
mod keys;
mod loss;
mod metrics;
mod power;
mod recovery;
mod watched;

use e2e::exchange::{echoes, echoing, talks};
use e2e::loggers::{protect, status, with_logger};
