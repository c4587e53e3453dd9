//! Where a download is, as the client's echo and acknowledgement tell.

use core::time::Duration;

use http1::version::ObjectVersion;
use wire::{FlowKey, Segment, SeqNumber};

use super::Rules;
use crate::flaws::Flaws;
use crate::head::version_hash;
use crate::isn::{self, Slot};
use crate::key::PoolKey;
use crate::queue::FLOW_LEN_MAX;
use crate::record::{Record, StoredTurn};
use crate::timestamp::{
    ClientOptions, FAR_POSITIONS, LaterPosition, NEAR_POSITIONS, STORED_TURNS, State, version_word,
};

/// Bytes behind the beginning of a later body up to which an acknowledgement tells the beginning; the rest of the range
/// means that the client has a part of the header.
const NEAR_LIMIT: u32 = 24 << 10;
const FAR_LIMIT: u32 = FAR_POSITIONS - (64 << 10);
/// The same for a first body.
const FIRST_LIMIT: u32 = 3 << 30;

/// Longest time for which a request may stay unacknowledged: less than the period of the slots, without the slots that
/// a connection may be ahead.
pub const WITHHOLD_MAX: Duration = Duration::from_secs(180);

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

/// The agreement of the handshake, and the state of the record's turn.
#[derive(Debug, Clone, Copy)]
struct AgreedTerms {
    slot: Slot,
    options: ClientOptions,
    state: State,
}

impl AgreedTerms {
    /// No response is under way, and the next request begins at `start`.
    fn idle(&self, key: &PoolKey, flow: &FlowKey, start: SeqNumber) -> Position {
        Position::idle((self.slot, self.options), key, flow, start)
    }
}

/// What a request is that a client sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fit {
    /// The request of the client's position.
    Asked,
    /// The request behind that one, of which a part was acknowledged: its response was under way. A segment of that
    /// response that was lost, or lies behind a hole, has brought no echo; or a later segment without payload has
    /// brought the acknowledgement.
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
    /// The response under way is in the store of the pool, and this member has no store.
    #[error("the record of the response is in a store, and this member has none")]
    NoStore,
    /// Every store has answered, and none has the record.
    #[error("no store has the record of the response")]
    RecordMissing,
    /// Not every store has answered, and no answer has the record.
    #[error("the store with the record of the response does not answer")]
    StoreLost,
    /// The record is of another turn or another connection than the client's echo.
    #[error("the record in the store is of another response than the client's echo")]
    OtherRecord,
    /// The client has sent more than the request of the record.
    #[error("the client has sent another request behind the request of the response")]
    NextRequest,
}

impl Position {
    /// No response is under way, and the next request begins at `start`.
    pub(super) fn idle(
        (slot, options): (Slot, ClientOptions),
        key: &PoolKey,
        flow: &FlowKey,
        start: SeqNumber,
    ) -> Self {
        Self::Idle {
            slot,
            options,
            is_first: false,
            tag: State::agreed_tag(key, flow, slot, options, start),
        }
    }

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
            State::Stored { .. } => Err(PositionError::NoStore),
        }
    }

    /// The position that the record of the connection tells with a client's segment. The record's turn is returned if
    /// its response is under way, or if the client repeats an earlier request than the record's.
    ///
    /// # Errors
    /// See [`PositionError`].
    pub fn of_record<'r>(
        state: State,
        key: &PoolKey,
        flow: &FlowKey,
        segment: &Segment<'_>,
        record: &'r Record,
    ) -> Result<(Self, Option<&'r StoredTurn>), PositionError> {
        let State::Stored {
            slot,
            options,
            turn: number,
            tag,
        } = state
        else {
            return Err(PositionError::OtherRecord);
        };
        if State::stored_tag(key, flow, slot, options, number) != tag {
            return Err(PositionError::OtherRecord);
        }
        let turn = record.turns.last().ok_or(PositionError::OtherRecord)?;
        if record.slot != slot || !record.is_of(isn::initial(key, flow, slot), None) {
            return Err(PositionError::OtherRecord);
        }
        let told = AgreedTerms {
            slot,
            options,
            state,
        };
        let turns_behind = turn.number.wrapping_sub(number.into()) % STORED_TURNS;
        // The client has echoed nothing of the response to the request of the record: the response before is whole, or
        // the client would not have asked. With an earlier request the client does not know that this request
        // has arrived, and asks the request of the record after that.
        if turns_behind == 1 {
            if !record.is_near(segment.seq()) {
                return Err(PositionError::OtherRecord);
            }
            let is_earlier = segment.seq().before(turn.request_start);
            let asked = is_earlier.then_some(turn);
            return Ok((told.idle(key, flow, turn.request_start), asked));
        }
        if turns_behind > 0 {
            return Err(PositionError::OtherRecord);
        }
        Self::within(told, (key, flow), segment, turn)
    }

    /// The position that the record tells with a segment without timestamps. The numbers alone show that the segment is
    /// the client's: the numbers must lie within the turn of the record.
    ///
    /// # Errors
    /// See [`PositionError`].
    pub fn of_numbers<'r>(
        key: &PoolKey,
        flow: &FlowKey,
        segment: &Segment<'_>,
        record: &'r Record,
    ) -> Result<(Self, Option<&'r StoredTurn>), PositionError> {
        let turn = record.turns.last().ok_or(PositionError::OtherRecord)?;
        let slot = record.slot;
        let is_of = record.is_of(isn::initial(key, flow, slot), None);
        if record.options.has_timestamps || !is_of {
            return Err(PositionError::OtherRecord);
        }
        let options = ClientOptions::of_number(0);
        let state = State::stored(key, flow, slot, options, turn.number);
        let told = AgreedTerms {
            slot,
            options,
            state,
        };
        Self::within(told, (key, flow), segment, turn)
    }

    /// The position of a client that knows of the response to the request of the record.
    fn within<'r>(
        told: AgreedTerms,
        (key, flow): (&PoolKey, &FlowKey),
        segment: &Segment<'_>,
        turn: &'r StoredTurn,
    ) -> Result<(Self, Option<&'r StoredTurn>), PositionError> {
        let answer = turn.answer.as_ref().ok_or(PositionError::OtherRecord)?;
        let acked = answer.offset(segment.ack());
        let acked = acked.ok_or(PositionError::OtherRecord)?;
        // An acknowledgement of the response has come with a part of the request at least.
        if segment.seq().before(turn.request_start) {
            return Err(PositionError::OtherRecord);
        }
        let end = turn.request_end();
        let has_all = answer.response_len == Some(acked);
        let behind = segment.seq().distance_from(end).unwrap_or(0);
        if usize::try_from(behind).is_ok_and(|behind| behind > FLOW_LEN_MAX) {
            return Err(PositionError::NextRequest);
        }
        // Of a client that pipelines, the number of a segment may be behind the request.
        if has_all && (segment.payload().is_empty() || !segment.seq().before(end)) {
            return Ok((told.idle(key, flow, end), None));
        }
        let offset = acked.checked_sub(answer.header_len.into());
        let offset = offset.ok_or(PositionError::HeaderPart)?;
        let body = Self::Body {
            state: told.state,
            options: told.options,
            start: answer.start + answer.header_len,
            offset,
        };
        Ok((body, Some(turn)))
    }

    /// The position of a client that repeats the request of the record, which begins at `start`.
    ///
    /// # Errors
    /// See [`PositionError`].
    pub fn of_repetition<'r>(
        start: SeqNumber,
        key: &PoolKey,
        flow: &FlowKey,
        ack: SeqNumber,
        record: &'r Record,
    ) -> Result<(Self, Option<&'r StoredTurn>), PositionError> {
        let turn = record.turns.last().ok_or(PositionError::OtherRecord)?;
        let is_of = record.is_of(isn::initial(key, flow, record.slot), None);
        let answer = turn.answer.as_ref();
        let answer = answer.filter(|_| is_of && turn.request_start == start);
        let (answer, options) = answer
            .zip(record.options.rounded())
            .ok_or(PositionError::OtherRecord)?;
        let acked = answer.offset(ack).ok_or(PositionError::OtherRecord)?;
        let offset = acked.checked_sub(answer.header_len.into());
        let body = Self::Body {
            state: State::stored(key, flow, record.slot, options, turn.number),
            options,
            start: answer.start + answer.header_len,
            offset: offset.ok_or(PositionError::HeaderPart)?,
        };
        Ok((body, Some(turn)))
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
            } => slot.earliest_beginning(unix_now),
            _ => unix_now.saturating_sub(withhold),
        }
    }

    /// Age of the connection, as far as the slot tells: what is left of the time for a first response counts from the
    /// handshake, so that the slot tells the beginning. Zero of a later response.
    pub(super) fn age(&self, unix_now: Duration) -> Duration {
        match self {
            Self::Body {
                state: State::First { slot, .. },
                ..
            }
            | Self::Idle {
                slot,
                is_first: true,
                ..
            } => unix_now.saturating_sub(slot.beginning(unix_now)),
            _ => Duration::ZERO,
        }
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

    /// The position of a client that waits for the response to the request behind: a part of that request was
    /// acknowledged, so everything before was, and the response under way is over.
    pub(crate) fn behind(&self, key: &PoolKey, flow: &FlowKey, start: SeqNumber) -> Self {
        // The echo of a later response does not tell the slot; the tag is the only use.
        Self::idle((Slot::new(0), self.options()), key, flow, start)
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
            State::Agreed { .. } | State::Stored { .. } => false,
        }
    }
}
