//! The beginning of a stream: each end tells the versions that it speaks.
//!
//! | offset | field | |
//! |---|---|---|
//! | 0 | magic | `OLctl` |
//! | 5 | role `u8` | of [`Role`], from 1 |
//! | 6 | oldest `u8` | oldest version of the control stream that this end speaks, above 0 |
//! | 7 | newest `u8` | newest version |
//!
//! The layout is the same in all versions: an end that reads an opening does not know the version of the peer yet.

use super::{ControlError, VERSIONS};
use crate::{Versions, bulk, pool};

const MAGIC: [u8; 5] = *b"OLctl";

/// Which end of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// `serve`, a standby or an operator: begins the stream and sends requests.
    Asks,
    /// The logger: answers.
    Answers,
    /// A member of a pool: begins the stream ([`crate::pool`]).
    Member,
    /// The balancer of a pool.
    Balancer,
    /// The sender of bulk data: begins the stream ([`crate::bulk`]).
    Sender,
    /// A receiver of bulk data.
    Receiver,
}

impl Role {
    const fn code(self) -> u8 {
        match self {
            Self::Asks => 1,
            Self::Answers => 2,
            Self::Member => 3,
            Self::Balancer => 4,
            Self::Sender => 5,
            Self::Receiver => 6,
        }
    }

    const fn of_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Asks),
            2 => Some(Self::Answers),
            3 => Some(Self::Member),
            4 => Some(Self::Balancer),
            5 => Some(Self::Sender),
            6 => Some(Self::Receiver),
            _ => None,
        }
    }

    /// The other end of the same stream.
    const fn peer(self) -> Self {
        match self {
            Self::Asks => Self::Answers,
            Self::Answers => Self::Asks,
            Self::Member => Self::Balancer,
            Self::Balancer => Self::Member,
            Self::Sender => Self::Receiver,
            Self::Receiver => Self::Sender,
        }
    }

    /// The versions of the stream that this program speaks.
    #[must_use]
    pub const fn versions(self) -> Versions {
        match self {
            Self::Asks | Self::Answers => VERSIONS,
            Self::Member | Self::Balancer => pool::STREAM_VERSIONS,
            Self::Sender | Self::Receiver => bulk::STREAM_VERSIONS,
        }
    }

    /// The subject of the stream, for people.
    pub(super) const fn subject(self) -> &'static str {
        match self {
            Self::Asks | Self::Answers => "about a service and its logger",
            Self::Member | Self::Balancer => "about a pool and its balancer",
            Self::Sender | Self::Receiver => "about a bulk transfer",
        }
    }
}

/// The first bytes of each direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opening {
    /// The end that sends the opening.
    pub role: Role,
    /// The versions that this end speaks.
    pub versions: Versions,
}

impl Opening {
    /// The length of an opening, bytes.
    pub const LEN: usize = 8;

    /// The opening of this program in this role.
    #[must_use]
    pub const fn of(role: Role) -> Self {
        Self {
            role,
            versions: role.versions(),
        }
    }

    /// The bytes of the opening.
    #[must_use]
    pub const fn encode(self) -> [u8; Self::LEN] {
        let [a, b, c, d, e] = MAGIC;
        let (oldest, newest) = (self.versions.oldest(), self.versions.newest());
        [a, b, c, d, e, self.role.code(), oldest, newest]
    }

    /// Reads the opening of the end with this role from the beginning of a stream; `None`: some of it has not arrived.
    /// A stranger is noticed at the first wrong byte.
    ///
    /// # Errors
    ///
    /// [`ControlError::NoOpening`], [`ControlError::WrongWay`] and [`ControlError::OtherSubject`].
    pub fn read(from: Role, stream: &[u8]) -> Result<Option<Self>, ControlError> {
        let arrived = stream.len().min(MAGIC.len());
        if stream[..arrived] != MAGIC[..arrived] {
            return Err(ControlError::NoOpening);
        }
        match stream.get(MAGIC.len()) {
            Some(code) => match Role::of_code(*code) {
                Some(role) if role == from => {}
                Some(role) if role == from.peer() => return Err(ControlError::WrongWay),
                Some(role) => return Err(ControlError::OtherSubject(role)),
                None => return Err(ControlError::NoOpening),
            },
            None => return Ok(None),
        }
        let Some([oldest, newest]) = stream.get(MAGIC.len() + 1..Self::LEN) else {
            return Ok(None);
        };
        let versions = Versions::new(*oldest, *newest).ok_or(ControlError::NoOpening)?;
        Ok(Some(Self {
            role: from,
            versions,
        }))
    }
}

/// The newest version of the peer, compared with ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Peer {
    /// The peer knows exactly the fields that we know.
    Same,
    /// The peer may send fields that we do not know.
    Newer,
    /// The peer may not know all fields that we know.
    Older,
}

/// The terms of a stream after both openings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Agreed {
    version: u8,
    peer: Peer,
}

impl Agreed {
    /// Two ends of this version of the program.
    pub const OWN: Self = Self {
        version: VERSIONS.newest(),
        peer: Peer::Same,
    };

    /// Two ends of this version of the program, for the stream of this role.
    #[must_use]
    pub const fn own(role: Role) -> Self {
        Self {
            version: role.versions().newest(),
            peer: Peer::Same,
        }
    }

    /// The terms for an end that speaks `ours`, with a peer that speaks `theirs`.
    ///
    /// # Errors
    ///
    /// [`ControlError::NoCommonVersion`].
    pub fn on(ours: Versions, theirs: Versions) -> Result<Self, ControlError> {
        let Some(version) = ours.agree(theirs) else {
            return Err(ControlError::NoCommonVersion { ours, theirs });
        };
        let peer = match theirs.newest().cmp(&ours.newest()) {
            core::cmp::Ordering::Less => Peer::Older,
            core::cmp::Ordering::Equal => Peer::Same,
            core::cmp::Ordering::Greater => Peer::Newer,
        };
        Ok(Self { version, peer })
    }

    /// The version that both ends speak: no message of a later version goes over this stream.
    #[must_use]
    pub const fn version(self) -> u8 {
        self.version
    }

    pub(super) const fn peer(self) -> Peer {
        self.peer
    }
}
