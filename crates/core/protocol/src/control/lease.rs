//! Who may speak for a service: a host asks, the logger answers. What the two do with it is the
//! crate `lease`; `docs/internals/leases.md` says why it is safe.

use serde::{Deserialize, Serialize};

use super::{framed, values::name};

/// A host says where it stands, and asks where it stands then. Sent again and again, by the host that
/// serves and by its standbys; each is answered by at most one [`LeaseAnswer`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRequest {
    /// One life of the service on one host: drawn at random when the host has begun to take part
    /// since it was booted, or since it was superseded or released; the same when `serve` alone is
    /// started again.
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

/// Where one who asks stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Standing {
    /// It is silent and wants to serve; the operator vouches that no host serves by a permission that
    /// the logger may have forgotten.
    First,
    /// It is silent, and would serve if the host that serves does not any more.
    Standby {
        /// The newest epoch in which it was told that it is effective.
        effective_in: Option<u32>,
    },
    /// It was granted an epoch.
    Holds {
        /// Which.
        epoch: u32,
        /// It may speak at this moment.
        speaks: bool,
        /// Its data plane enforces the end of a lease: it would fall silent by itself.
        leased: bool,
        /// The number of the newest request whose answer it has. It ignores answers to older ones.
        answered: u64,
    },
    /// It held an epoch, has silenced itself, and does not speak again as this instance; or it was a
    /// standby, and is none any more.
    Released {
        /// Which; 0: none.
        epoch: u32,
    },
}

/// What becomes of the asker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseAnswer {
    /// Who asked.
    pub instance: u64,
    /// The number of its request.
    pub number: u64,
    /// The life of the logger: drawn at random when its process starts, never 0.
    pub life: u64,
    /// What it is told.
    #[serde(with = "framed")]
    pub verdict: Verdict,
}

/// What had become of the epoch before the one that is granted. For people: nothing is decided by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Former {
    /// Nothing is known of it.
    #[default]
    Unknown,
    /// The host that served had given it up: it was moved or stopped.
    GivenUp,
    /// Another host has let its lease run out: it has died, hangs or is cut off.
    Other,
    /// This host has, and was started again since.
    Same,
}

/// What one who asks is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// Nothing yet; ask again.
    Wait,
    /// It may speak for so long, counted from when it *sent* the request.
    Lease {
        /// In this epoch.
        epoch: u32,
        /// How long, µs.
        term_us: u32,
        /// A standby was heard a moment ago, and takes over when this lease is over.
        standby: bool,
        /// What had become of the epoch before.
        former: Former,
    },
    /// It may speak without end: there is nobody who could take over.
    Free {
        /// In this epoch.
        epoch: u32,
    },
    /// It is a standby.
    Standby {
        /// The present epoch.
        epoch: u32,
        /// It may be granted the next one.
        effective: bool,
        /// So long the answer stays the same, unless somebody gives the epoch up, µs; 0: nothing is known. Who asks
        /// again right then loses no time.
        again_us: u32,
    },
    /// The service is another's, or has been given up: the asker is silent from now on. It may come
    /// again as another instance.
    Superseded {
        /// The present epoch.
        epoch: u32,
    },
}
