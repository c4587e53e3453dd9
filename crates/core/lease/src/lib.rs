//! Which host may send for a service: epochs and leases.
//!
//! At any time at most one host may send packets that clients can receive. The [`Granter`], in the logger, chooses the
//! host. A [`Holder`], in `serve`, asks the granter again and again, and tells the data plane until when the host may
//! send. When that time is over, the data plane falls silent without any process. `docs/internals/leases.md` has the
//! argument on one page.
//!
//! - An *epoch* is the time during which one host serves. The granter counts the epochs.
//! - A *lease* is the permission to send in an epoch for one term. The holder counts the term from the time of
//!   **sending** the request, the granter from the later time of **granting**. So the granter knows when the holder is
//!   silent, without the holder's clock ([`Terms`]).
//! - A holder needs no lease while no *standby* could take over. Before a standby can, the holder has to confirm that
//!   the data plane enforces a lease.
//!
//! In a pool many hosts may send at once, each by a lease of its own: [`pool`].
//!
//! All are pure. Time is an argument: a [`Duration`](std::time::Duration) since an origin of each host
//! (`CLOCK_BOOTTIME`). Clocks of two hosts are never compared. Messages may be lost, late, doubled and out of order.
//! **Panics:** none.

#![forbid(unsafe_code)]

mod detector;
mod granter;
mod holder;
pub mod pool;
mod terms;

pub use detector::FailureDetector;
pub use granter::{Claimant, Decision, Granter, Memory, Record, StillHeld, Taken};
pub use holder::{Holder, Speech};
pub use terms::{Drift, Terms, TermsError};
