//! Leases of the members of a pool: many hosts speak at once, each by a lease of its own.
//!
//! A *member* serves the connections that the pool's table gives to this member. A member is *dead* when another member
//! may take these connections over: from then on no packet of the dead member may reach a client. The arithmetic is the
//! arithmetic of [`Terms`]:
//!
//! - The member ([`MemberLease`]) counts the term from the time of **sending** the request, T (1 - d).
//! - The balancer ([`PoolGranter`]) counts from the time of **granting**, (T + q) (1 + d), and declares the member dead
//!   after this time alone.
//!
//! A *membership* is a number that the member draws at random when it joins. A dead membership gets no lease any more:
//! the member drops the state of all connections and joins under another number.
//!
//! The balancer needs no stored memory: at the start, every known membership of the former life counts as granted for
//! the longest term ([`PoolGranter::assume`]), and an unknown membership is silent after [`PoolGranter::settled_at`].

mod granter;
mod member;

pub use granter::PoolGranter;
pub use member::MemberLease;

use std::time::Duration;

use protocol::pool::Config;

use crate::{Drift, Terms, TermsError};

impl Terms {
    /// The terms of a pool: 25 to 250 ms. The takeover of a member costs the other members little, so a member that
    /// asks steadily may be declared dead sooner than a host with a standby.
    #[must_use]
    pub fn of_pool() -> Self {
        Self {
            least: Duration::from_millis(25),
            ..Self::default()
        }
    }

    /// The terms that the balancer of a pool tells a member.
    ///
    /// # Errors
    /// No balancer of this program has these terms.
    pub fn of_config(config: &Config) -> Result<Self, TermsError> {
        let micros = |us: u32| Duration::from_micros(us.into());
        let terms = Self {
            term: micros(config.term_us),
            least: micros(config.least_term_us),
            drift: Drift::new(config.drift_ppm)?,
            queue: micros(config.queue_us),
            ..Self::of_pool()
        };
        terms.checked()
    }
}
