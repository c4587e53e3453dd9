//! Who may speak for a service: a host asks, the logger answers. What the two do with it is the
//! crate `lease`; `docs/internals/leases.md` says why it is safe.

use super::ControlError;
use super::cursor::{Cursor, Writer};

/// A host says where it stands, and asks where it stands then. Sent again and again, by the host that
/// serves and by its standbys; each is answered by at most one [`LeaseAnswer`].
#[derive(Debug, Clone, PartialEq, Eq)]
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
    pub standing: Standing,
    /// The name of the service.
    pub service: String,
}

/// Where one who asks stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseAnswer {
    /// Who asked.
    pub instance: u64,
    /// The number of its request.
    pub number: u64,
    /// The life of the logger: drawn at random when its process starts, never 0.
    pub life: u64,
    /// What it is told.
    pub verdict: Verdict,
}

/// What had become of the epoch before the one that is granted. For people: nothing is decided by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

mod former {
    pub(super) const UNKNOWN: u8 = 0;
    pub(super) const GIVEN_UP: u8 = 1;
    pub(super) const OTHER: u8 = 2;
    pub(super) const SAME: u8 = 3;
}

mod standing {
    pub(super) const FIRST: u8 = 1;
    pub(super) const STANDBY: u8 = 2;
    pub(super) const HOLDS: u8 = 3;
    pub(super) const RELEASED: u8 = 4;
}

mod verdict {
    pub(super) const WAIT: u8 = 1;
    pub(super) const LEASE: u8 = 2;
    pub(super) const FREE: u8 = 3;
    pub(super) const STANDBY: u8 = 4;
    pub(super) const SUPERSEDED: u8 = 5;
}

impl LeaseRequest {
    pub(super) fn encode(&self, body: &mut Writer<'_>) {
        body.u64(self.instance);
        body.u64(self.host);
        body.u64(self.number);
        body.u64(self.life);
        body.u16(self.preference);
        self.standing.encode(body);
        body.bytes(self.service.as_bytes());
    }

    pub(super) fn decode(body: &mut Cursor<'_>) -> Result<Self, ControlError> {
        Ok(Self {
            instance: body.u64()?,
            host: body.u64()?,
            number: body.u64()?,
            life: body.u64()?,
            preference: body.u16()?,
            standing: Standing::decode(body)?,
            service: body.text()?,
        })
    }
}

impl Standing {
    fn encode(self, body: &mut Writer<'_>) {
        match self {
            Self::First => body.u8(standing::FIRST),
            Self::Standby { effective_in } => {
                body.u8(standing::STANDBY);
                body.bool(effective_in.is_some());
                if let Some(epoch) = effective_in {
                    body.u32(epoch);
                }
            }
            Self::Holds {
                epoch,
                speaks,
                leased,
                answered,
            } => {
                body.u8(standing::HOLDS);
                body.u32(epoch);
                body.bool(speaks);
                body.bool(leased);
                body.u64(answered);
            }
            Self::Released { epoch } => {
                body.u8(standing::RELEASED);
                body.u32(epoch);
            }
        }
    }

    fn decode(body: &mut Cursor<'_>) -> Result<Self, ControlError> {
        Ok(match body.u8()? {
            standing::FIRST => Self::First,
            standing::STANDBY => Self::Standby {
                effective_in: body.bool()?.then(|| body.u32()).transpose()?,
            },
            standing::HOLDS => Self::Holds {
                epoch: body.u32()?,
                speaks: body.bool()?,
                leased: body.bool()?,
                answered: body.u64()?,
            },
            standing::RELEASED => Self::Released { epoch: body.u32()? },
            _ => return Err(ControlError::Malformed("where the asker stands is unknown")),
        })
    }
}

impl Former {
    fn encode(self, body: &mut Writer<'_>) {
        body.u8(match self {
            Self::Unknown => former::UNKNOWN,
            Self::GivenUp => former::GIVEN_UP,
            Self::Other => former::OTHER,
            Self::Same => former::SAME,
        });
    }

    fn decode(body: &mut Cursor<'_>) -> Result<Self, ControlError> {
        Ok(match body.u8()? {
            former::UNKNOWN => Self::Unknown,
            former::GIVEN_UP => Self::GivenUp,
            former::OTHER => Self::Other,
            former::SAME => Self::Same,
            _ => {
                return Err(ControlError::Malformed(
                    "what has become of the epoch before is unknown",
                ));
            }
        })
    }
}

impl LeaseAnswer {
    pub(super) fn encode(&self, body: &mut Writer<'_>) {
        body.u64(self.instance);
        body.u64(self.number);
        body.u64(self.life);
        self.verdict.encode(body);
    }

    pub(super) fn decode(body: &mut Cursor<'_>) -> Result<Self, ControlError> {
        Ok(Self {
            instance: body.u64()?,
            number: body.u64()?,
            life: body.u64()?,
            verdict: Verdict::decode(body)?,
        })
    }
}

impl Verdict {
    fn encode(self, body: &mut Writer<'_>) {
        match self {
            Self::Wait => body.u8(verdict::WAIT),
            Self::Lease {
                epoch,
                term_us,
                standby,
                former,
            } => {
                body.u8(verdict::LEASE);
                body.u32(epoch);
                body.u32(term_us);
                body.bool(standby);
                former.encode(body);
            }
            Self::Free { epoch } => {
                body.u8(verdict::FREE);
                body.u32(epoch);
            }
            Self::Standby {
                epoch,
                effective,
                again_us,
            } => {
                body.u8(verdict::STANDBY);
                body.u32(epoch);
                body.bool(effective);
                body.u32(again_us);
            }
            Self::Superseded { epoch } => {
                body.u8(verdict::SUPERSEDED);
                body.u32(epoch);
            }
        }
    }

    fn decode(body: &mut Cursor<'_>) -> Result<Self, ControlError> {
        Ok(match body.u8()? {
            verdict::WAIT => Self::Wait,
            verdict::LEASE => Self::Lease {
                epoch: body.u32()?,
                term_us: body.u32()?,
                standby: body.bool()?,
                former: Former::decode(body)?,
            },
            verdict::FREE => Self::Free { epoch: body.u32()? },
            verdict::STANDBY => Self::Standby {
                epoch: body.u32()?,
                effective: body.bool()?,
                again_us: body.u32()?,
            },
            verdict::SUPERSEDED => Self::Superseded { epoch: body.u32()? },
            _ => return Err(ControlError::Malformed("the verdict is unknown")),
        })
    }
}
