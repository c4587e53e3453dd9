//! Which host may speak for a service: epochs and leases.
//!
//! At any time at most one host may send what its clients can receive. Who that is is decided by the
//! [`Granter`], in the logger; a [`Holder`], in `serve`, asks it again and again, and tells the data
//! plane until when the host may speak. The data plane falls silent by itself when that time is over,
//! whatever has become of the process that asked. `docs/internals/leases.md` has the argument on one page.
//!
//! - An *epoch* is the time during which one host serves. The granter counts them.
//! - A *lease* is the permission to speak in an epoch for one term. The holder counts the term from when
//!   it **sent** its request, the granter from when it **granted** it, which is later; so the granter
//!   knows when the holder is silent without knowing what its clock shows ([`Terms`]).
//! - A holder needs no lease while there is no *standby* that could take over. Before one can, the holder
//!   has to confirm that its data plane enforces a lease.
//!
//! Both are pure: time is an argument, a [`Duration`](std::time::Duration) since an origin that is each
//! host's own (`CLOCK_BOOTTIME`), and clocks of two hosts are never compared. Messages may be lost, late,
//! doubled and out of order. **Panics:** none.

#![forbid(unsafe_code)]

mod detector;
mod granter;
mod holder;
mod terms;

pub use detector::FailureDetector;
pub use granter::{Claimant, Decision, Granter, Memory, Record, StillHeld, Taken};
pub use holder::{Holder, Speech};
pub use terms::{Drift, Terms, TermsError};
