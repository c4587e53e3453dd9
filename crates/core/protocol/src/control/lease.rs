//! Who may speak for a service: a host asks, the logger answers. The crate `lease` has the
//! decisions of both; `docs/internals/leases.md` says why leases are safe.

use serde::{Deserialize, Serialize};

use super::{framed, values::name};

/// A host reports a standing and asks for a verdict. The serving host and the standbys send
/// requests again and again; the logger answers each request with at most one [`LeaseAnswer`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRequest {
    /// Instance of the service on one host: drawn at random when the host takes part for the first
    /// time since the boot, or since the last instance was superseded or released. A restart of
    /// `serve` alone keeps the instance.
    pub instance: u64,
    /// The host, the same after a reboot. At any time a host has at most one instance of a service.
    pub host: u64,
    /// Grows from request to request of an instance.
    pub number: u64,
    /// The life of the logger from which the asker heard last; 0: none.
    pub life: u64,
    /// The order of standbys; the lowest is preferred.
    pub preference: u16,
    /// Where the asker stands.
    #[serde(with = "framed")]
    pub standing: Standing,
    /// The name of the service.
    #[serde(with = "name")]
    pub service: String,
}

/// Standing of the asking host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Standing {
    /// The host is silent and wants to serve. The operator vouches that no host serves by a
    /// permission that the logger may have forgotten.
    First,
    /// The host is silent, and would serve after the end of the serving host.
    Standby {
        /// The newest epoch in which the logger told the host that the standby is effective.
        effective_in: Option<u32>,
    },
    /// The host was granted an epoch.
    Holds {
        /// Which.
        epoch: u32,
        /// The host may speak at this moment.
        speaks: bool,
        /// The data plane of the host enforces the end of a lease: at the end, the host falls
        /// silent without `serve`.
        leased: bool,
        /// The number of the newest request whose answer has arrived. The host ignores answers to
        /// older requests.
        answered: u64,
    },
    /// The host held an epoch, is silent now, and does not speak again as this instance. Or the
    /// host was a standby, and is no standby any more.
    Released {
        /// Which; 0: none.
        epoch: u32,
    },
}

/// The logger's verdict on a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseAnswer {
    /// Who asked.
    pub instance: u64,
    /// The number of the request.
    pub number: u64,
    /// Number of this run of the logger: drawn at random when the logger process starts, never 0.
    pub life: u64,
    /// The verdict.
    #[serde(with = "framed")]
    pub verdict: Verdict,
}

/// End of the epoch before the granted epoch. For people: no decision depends on this value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Former {
    /// The logger does not know the former epoch.
    #[default]
    Unknown,
    /// The former host had given the epoch up: the service was moved or stopped.
    GivenUp,
    /// The lease of another host has expired: that host has died, hangs or is cut off.
    Other,
    /// This host has, and was started again since.
    Same,
}

/// The logger's decision for the asking host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// No decision yet; ask again.
    Wait,
    /// The host may speak for `term_us`, counted from the moment at which the host *sent* the
    /// request.
    Lease {
        /// In this epoch.
        epoch: u32,
        /// How long, µs.
        term_us: u32,
        /// A standby was heard a moment ago, and takes over when this lease is over.
        standby: bool,
        /// End of the epoch before.
        former: Former,
    },
    /// The host may speak without end: there is no standby that could take over.
    Free {
        /// In this epoch.
        epoch: u32,
    },
    /// The host is a standby.
    Standby {
        /// The present epoch.
        epoch: u32,
        /// This standby may be granted the next epoch.
        effective: bool,
        /// Time for which the answer stays the same, unless a host gives the epoch up, µs; 0:
        /// unknown. A request at the end of that time loses no time.
        again_us: u32,
    },
    /// Another host has the service, or the service was given up: the asking host is silent from
    /// now on. The host may ask again as another instance.
    Superseded {
        /// The present epoch.
        epoch: u32,
    },
}
