//! The simulation of *Optimistic Make* (Bubenik and Zwaenepoel, section 5): N machines that run one command at a time,
//! M users who ask for something to be made after an exponential think time, and two ways to do it. *Pessimistic*: all
//! commands are begun when they are asked for. *Optimistic*: each is begun when its target goes out of date, and
//! what is ready when it is asked for costs only its mandate. Both see the same requests. What matters is the
//! *improvement* of each request: its pessimistic response time by its optimistic one.
//!
//! The paper's distributions are empirical and are not in its text, only some of their figures. [`Workload::paper`] is
//! fitted to those. [`measure`] simulates a setting until its medians are known well enough. Randomness is an
//! argument, times are seconds. **Panics:** none.

#![forbid(unsafe_code)]

mod distribution;
mod experiment;
mod scheduler;
mod statistics;
mod workload;

pub use distribution::{Commands, LogNormal, Times};
pub use experiment::{Measured, Precision, measure};
pub use scheduler::{Outcome, run};
pub use statistics::{Interval, interval, mean, median};
pub use workload::{Command, Request, Setting, Workload};
