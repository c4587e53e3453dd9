//! Numbers of a role of `outlive` for Prometheus, and the health of the role.
//!
//! An [`Endpoint`] answers `GET /metrics` (OpenMetrics text, or Prometheus' older format) and `GET /health` (200 or
//! 503, and a line with the reason) over HTTP. The endpoint has a separate thread, and asks for the numbers only at a
//! request: without requests the endpoint costs no time. A single peer is served at a time: a request must arrive
//! within two seconds, and the peer must take the answer within two seconds. A peer that reaches the port can keep
//! other peers from the numbers, but costs the role at most a thread and a descriptor.
//!
//! A role describes its numbers by [`Numbers`]: names, units and help texts are beside the values.

#![forbid(unsafe_code)]

mod endpoint;
mod families;
mod format;
mod histogram;
mod manual;
mod request;

pub use endpoint::{Endpoint, Running};
pub use families::{Families, Label, Unit, text};
pub use histogram::Histogram;
pub use manual::table;

use std::fmt;

/// Whether the role is well, and a line with the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// The role does its work.
    Well(String),
    /// The role does not do all of its work.
    Ill(String),
}

/// Numbers of a role at a moment.
pub trait Numbers: fmt::Debug + Send + Sync + 'static {
    /// Labels that all values have.
    fn labels(&self) -> Vec<Label>;

    /// All families with values. The set of families never depends on the values.
    ///
    /// # Errors
    /// Errors of `families`.
    fn families(&self, families: &mut Families<'_>) -> fmt::Result;

    /// Health of the role.
    fn health(&self) -> Health;
}

#[cfg(test)]
mod tests;
