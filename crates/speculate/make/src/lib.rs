//! Optimistic make (Bubenik and Zwaenepoel, in `rice-annual-report-1989`, first part): every save starts a concealed
//! make, whose effects are shown at a request.
//!
//! The real make runs. Make and each command of make is a [`job`] of its own: an encapsulation above the files that
//! make sees at that moment. The request ([`command`]) and the inputs identify a job. For an equal request with equal
//! inputs the [`engine`] reuses the job, finished or still running. Therefore each save starts a new make over an empty
//! view, in which only stale commands cost time. A user who runs `make` gets the effects of the finished make, or runs
//! a make of the user, for which each command is looked up.
//!
//! A make has a preloaded library ([`preload`]), which starts each command by a [`runner`]. The runner asks the
//! [`engine`] over a socket ([`link`]). The same holds for every make in a concealed command.

mod cost;
pub mod daemon;
mod drain;
pub mod engine;
mod exit_status;
pub mod expected_targets;
pub mod guard;
pub mod input;
pub mod job;
mod listener;
pub mod output;
pub mod preload;
pub mod repositories;
mod user_context;
pub mod watch;
pub mod worlds;

pub use make_rpc::{command, environment, jobserver, link, runner};

pub use conceal::preflight;
