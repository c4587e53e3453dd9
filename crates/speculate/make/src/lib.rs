//! Optimistic make (Bubenik and Zwaenepoel, in `rice-annual-report-1989`, first part): what `make` would do is done on
//! every save, concealed, and shown when it is asked for.
//!
//! The real make runs. Each command that it begins is a [`job`] of its own, an encapsulation above what make sees at
//! that moment; and so is make itself. A job is known by what was asked for ([`command`]) and by what it has read:
//! when the same is asked for again, by whomever, and all that it has read is the same there, what it did is taken
//! over, finished or still running ([`engine`]). So a save makes a new make run over an empty view, in which what is
//! not stale costs nothing; and who asks for `make` is given what that one has done, or runs their own, in which each
//! command is looked for.
//!
//! A make has a library in it ([`preload`]), and so has its commands begun by a [`runner`], which asks the [`engine`]
//! over a socket ([`link`]). Where programs are concealed, that is so for every make, also one that a command begins.

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
