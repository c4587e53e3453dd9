//! How a role of `outlive` is, for Prometheus and for whoever asks whether it is well.
//!
//! An [`Endpoint`] answers `GET /metrics` (OpenMetrics text, or Prometheus' older format) and `GET /health` (200 or
//! 503, and a line that says why) over HTTP. It has a thread of its own and asks for the numbers when somebody
//! wants them, so that nothing is spent when nobody does. One peer is served at a time, for two
//! seconds at the most: whoever reaches the port can keep others from the numbers, but costs the role
//! one thread and one descriptor, and never more.
//!
//! A role says what it has by [`Numbers`]: names, units and help texts are where the values are.

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

/// Whether all is well, and a line that says what is meant by that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// It does what it is there for.
    Well(String),
    /// It does not, or not all of it.
    Ill(String),
}

/// What a role has to tell at one moment.
pub trait Numbers: fmt::Debug + Send + Sync + 'static {
    /// Labels that all values have.
    fn labels(&self) -> Vec<Label>;

    /// All families, each with its values. The same families always, whatever their values.
    ///
    /// # Errors
    /// Those of `families`.
    fn families(&self, families: &mut Families<'_>) -> fmt::Result;

    /// How it is.
    fn health(&self) -> Health;
}

#[cfg(test)]
mod tests;
