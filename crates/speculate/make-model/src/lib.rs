//! The simulation of *Optimistic Make* (Bubenik and Zwaenepoel, section 5). N machines run a command at a time, and M
//! users send a request after an exponential think time. There are two strategies. *Pessimistic*: all commands begin at
//! the request. *Optimistic*: each command begins when the target goes out of date; a command that is ready at the
//! request costs only its mandate. Both strategies get the same requests. The result is the *improvement* of each
//! request: the pessimistic response time divided by the optimistic response time.
//!
//! The distributions of the paper are empirical, and the text has only some figures of the distributions.
//! [`Workload::paper`] is fitted to these figures. [`measure`] simulates a setting until the medians are known
//! precisely enough. Randomness is an argument, times are seconds. **Panics:** none.

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
