//! Where a download is, as the client's echo and acknowledgement tell.

use core::time::Duration;

use http1::version::ObjectVersion;
use wire::{FlowKey, SeqNumber};

use super::Rules;
use crate::flaws::Flaws;
use crate::head::version_hash;
use crate::isn::{self, Slot};
use crate::key::PoolKey;
use crate::timestamp::{
    ClientOptions, FAR_POSITIONS, LaterPosition, NEAR_POSITIONS, State, version_word,
};

/// Bytes behind the beginning of a later body up to which an acknowledgement tells the beginning; the rest of the range
/// means that the client has a part of the header.
const NEAR_LIMIT: u32 = 24 << 10;
const FAR_LIMIT: u32 = FAR_POSITIONS - (64 << 10);
/// The same for a first body.
const FIRST_LIMIT: u32 = 3 << 30;

/// Longest time for which a request may stay unacknowledged: less than the period of the slots.
pub const WITHHOLD_MAX: Duration = Duration::from_secs(240);

/// Where a download is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Position {
    /// The client has the whole response to its last request, or has none yet.
    Idle {
        /// When the connection began.
        slot: Slot,
        /// Options of the handshake.
        options: ClientOptions,
        /// No response has begun on the connection.
        is_first: bool,
        /// 17 bits, see [`State::agreed_tag`].
        tag: u32,
    },
    /// The client has the header, and a part of the body.
    Body {
        /// State in the client's echo.
        state: State,
        /// Options of the handshake.
        options: ClientOptions,
        /// Number of the first byte of the body.
        start: SeqNumber,
        /// Bytes of the body that the client has.
        offset: u64,
    },
}

/// What a request is that a client sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fit {
    /// The request of the client's position.
    Asked,
    /// The request behind that one, of which a segment behind a hole has acknowledged a part: its response was under
    /// way, and the client may have bytes of that response.
    Next,
    /// A later one: the client's timer brings the request of the position.
    Later,
}

/// Why an echo tells no position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum PositionError {
    /// The client does not use timestamps.
    #[error("the client uses no timestamps")]
    NoTimestamps,
    /// The member that served the client could not protect the connection.
    #[error("the connection was not protected")]
    Unprotected,
    /// The client has a part of the response header.
    #[error("the client has a part of the response header")]
    HeaderPart,
    /// The echo is of the catalogue.
    #[error("the echo names an entry of a catalogue that this member does not have")]
    Listed,
}

impl Position {
    /// The position that an echo tells with the client's acknowledgement.
    ///
    /// # Errors
    /// See [`PositionError`].
    pub fn of(
        state: State,
        key: &PoolKey,
        flow: &FlowKey,
        ack: SeqNumber,
    ) -> Result<Self, PositionError> {
        match state {
            State::Agreed { slot, options, tag } => {
                if State::unprotected_tag(key, flow, slot, options) == tag {
                    return Err(PositionError::Unprotected);
                }
                let is_first = isn::initial(key, flow, slot) + 1 == ack;
                Ok(Self::Idle {
                    slot,
                    options,
                    is_first,
                    tag,
                })
            }
            State::First {
                slot,
                options,
                header_len,
                ..
            } => {
                let start = isn::initial(key, flow, slot) + 1 + u32::from(header_len);
                let offset = ack.0.wrapping_sub(start.0);
                Self::body(state, options, start, offset, FIRST_LIMIT)
            }
            State::Later {
                options, position, ..
            } => {
                let base = isn::initial(key, flow, Slot::new(0));
                let (distance, positions, limit) = match position {
                    LaterPosition::Near { distance, .. } => {
                        (u32::from(distance), NEAR_POSITIONS, NEAR_LIMIT)
                    }
                    LaterPosition::Far { distance } => (distance, FAR_POSITIONS, FAR_LIMIT),
                };
                let offset = ack.0.wrapping_sub(base.0).wrapping_sub(distance) % positions;
                Self::body(state, options, ack - offset, offset, limit)
            }
            State::Listed { .. } => Err(PositionError::Listed),
        }
    }

    const fn body(
        state: State,
        options: ClientOptions,
        start: SeqNumber,
        offset: u32,
        limit: u32,
    ) -> Result<Self, PositionError> {
        if offset > limit {
            return Err(PositionError::HeaderPart);
        }
        Ok(Self::Body {
            state,
            options,
            start,
            offset: offset as u64,
        })
    }

    /// Options of the handshake.
    #[must_use]
    pub const fn options(&self) -> ClientOptions {
        match self {
            Self::Idle { options, .. } | Self::Body { options, .. } => *options,
        }
    }

    /// Time since the Unix epoch at which the download began, at the earliest. The slot tells the beginning of a first
    /// response: no download that an echo tells of is older than the slots' period ([`WITHHOLD_MAX`]).
    pub(super) fn began(&self, unix_now: Duration, withhold: Duration) -> Duration {
        match self {
            Self::Body {
                state: State::First { slot, .. },
                ..
            } => slot.newest_beginning(unix_now),
            _ => unix_now.saturating_sub(withhold),
        }
    }

    /// How old a first response may be.
    pub(super) fn age(&self, unix_now: Duration) -> Duration {
        unix_now.saturating_sub(self.began(unix_now, Duration::ZERO))
    }

    /// Number of the turn whose response the client has a part of, as far as the echo tells: only whether the number is
    /// odd. `None`: no response is under way.
    pub(super) const fn request_number(&self) -> Option<u32> {
        match self {
            Self::Body {
                state: State::Later { is_odd, .. },
                ..
            } => Some(if *is_odd { 1 } else { 2 }),
            Self::Body { .. } => Some(0),
            Self::Idle { .. } => None,
        }
    }

    /// Whether a request that begins at `start`, and of which the client was told that `released` bytes have arrived,
    /// is the request of the response that the client has a part of, or the next request if no response is under way.
    pub(crate) fn fits(
        &self,
        key: &PoolKey,
        flow: &FlowKey,
        start: SeqNumber,
        released: u8,
        flaws: Flaws,
    ) -> Fit {
        match *self {
            Self::Idle {
                slot, options, tag, ..
            } if State::agreed_tag(key, flow, slot, options, start) == tag => Fit::Asked,
            Self::Body { .. } if released > 0 => {
                let number = self.request_number().unwrap_or(0);
                if released % 2 == flaws.released_with_response(number) % 2 {
                    Fit::Asked
                } else {
                    Fit::Next
                }
            }
            Self::Idle { .. } | Self::Body { .. } => Fit::Later,
        }
    }

    /// Bytes of the body behind the client's position up to which the client's echo tells the position.
    pub(super) const fn tellable(&self) -> u64 {
        let Self::Body { state, offset, .. } = self else {
            return u64::MAX;
        };
        let limit = match state {
            State::Later {
                position: LaterPosition::Near { .. },
                ..
            } => NEAR_LIMIT as u64,
            State::Later { .. } => FAR_LIMIT as u64,
            _ => return u64::MAX,
        };
        limit.saturating_sub(*offset)
    }

    /// Whether a few bits are all that is known of the version.
    pub(super) const fn is_tagged(&self) -> bool {
        matches!(
            self,
            Self::Body {
                state: State::First { .. }
                    | State::Later {
                        position: LaterPosition::Near { .. },
                        ..
                    },
                ..
            }
        )
    }

    /// Has the client a part of this version, beginning at this byte of the object? Of timestamps of kind `Far` the
    /// operator says that objects never change.
    pub(super) fn has_version(
        &self,
        rules: &Rules,
        flow: &FlowKey,
        version: &ObjectVersion,
        first: u64,
    ) -> bool {
        let Self::Body { state, .. } = *self else {
            return true;
        };
        let word = version_word(version_hash(version, rules.judge.check), first);
        match state {
            State::First {
                slot,
                options,
                header_len,
                tag,
            } => State::first_tag(&rules.key, flow, slot, options, header_len, word) == tag,
            State::Later {
                options,
                position: LaterPosition::Near { distance, tag },
                ..
            } => State::later_tag(&rules.key, flow, options, distance, word) == tag,
            State::Later { .. } => true,
            State::Agreed { .. } | State::Listed { .. } => false,
        }
    }
}
