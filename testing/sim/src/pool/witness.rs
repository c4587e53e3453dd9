//! Violations of invariants, and reasons for resets.

use std::fmt;

use http1::version::ObjectVersion;
use objects::{
    PoolKey,
    head::version_hash,
    revive::{PositionError, Reason},
    timestamp::{LaterPosition, State, Timestamp, version_word},
};
use types::VersionCheck;
use wire::FlowKey;

/// An invariant is broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Broken(pub(super) String);

impl Broken {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub(super) fn unreadable(error: impl fmt::Debug) -> Self {
        Self(format!("bytes of nobody: {error:?}"))
    }
}

/// Kinds of faults that have happened so far.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Happened {
    /// A fault has begun, a host was booted after the others, or the pool has another table than the first.
    pub(super) moved: bool,
    /// An object has changed at a member.
    pub(super) changed: bool,
    /// A host of a member has lost power.
    pub(super) lost_power: bool,
    /// A store was late, silent or dead, or has lost records.
    pub(super) store_failed: bool,
}

/// What is known of a client when its connection is reset.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known {
    pub(super) happened: Happened,
    pub(super) is_unprotected: bool,
    pub(super) had_part_of_head: bool,
    pub(super) has_pipelined: bool,
    pub(super) has_aligning_server: bool,
    pub(super) had_no_server: bool,
    /// Nobody reads the end of the response under way.
    pub(super) is_malformed: bool,
    /// `None`: the pool has no store.
    pub(super) store: Option<KnownStore>,
}

/// What is known of the client's record.
#[derive(Debug, Clone, Copy)]
pub(super) struct KnownStore {
    pub(super) has_timestamps: bool,
    /// The record of the response under way was confirmed.
    pub(super) is_stored: bool,
    /// A store has that record, and no store has failed a short time ago.
    pub(super) is_there: bool,
    /// The response goes on without protection; or was further than its timestamps told, without a record.
    pub(super) is_exposed: bool,
    /// The client has no byte of the body.
    pub(super) has_no_body: bool,
}

/// Whether a reset has a reason that the faults explain.
pub(super) fn is_explained(reason: &Reason, known: Known) -> bool {
    if !known.happened.moved {
        return false;
    }
    match reason {
        Reason::Position(PositionError::Unprotected) => {
            known.is_unprotected || known.store.is_some_and(|store| store.is_exposed)
        }
        Reason::Position(PositionError::HeaderPart) => {
            let has_no_body = known.store.is_some_and(|store| store.has_no_body);
            known.had_part_of_head || known.has_pipelined || has_no_body
        }
        Reason::Position(
            PositionError::RecordMissing
            | PositionError::OtherRecord
            | PositionError::NextRequest
            | PositionError::StoreLost,
        ) => known.store.is_some_and(|store| {
            let is_unstored = !store.has_timestamps && !store.is_stored;
            let is_lost = known.happened.store_failed && !store.is_there;
            // The client repeats a request, and the repetitions were lost.
            let is_early = !store.has_timestamps && *reason == PositionError::NextRequest.into();
            is_lost || is_unstored || store.is_exposed || is_early
        }),
        Reason::Position(_)
        | Reason::Idle
        | Reason::OwnRange
        | Reason::LongHead
        | Reason::Request(_) => false,
        Reason::LaterRequest => known.has_pipelined,
        // The client is gone: nobody is reset.
        Reason::Silent => true,
        Reason::Version => known.happened.changed || known.has_aligning_server,
        Reason::Modified => known.happened.changed,
        Reason::Answer(_) => {
            known.has_aligning_server || known.happened.changed || known.is_malformed
        }
        Reason::NoServer => known.had_no_server,
    }
}

/// Whether the few bits of an echo cannot tell this version from the version that the client has a part of.
pub(super) fn is_collision(
    key: &PoolKey,
    flow: &FlowKey,
    echo: u32,
    version: &ObjectVersion,
    first: u64,
    check: VersionCheck,
) -> bool {
    let word = version_word(version_hash(version, check), first);
    match Timestamp::from_wire(echo).state {
        State::First {
            slot,
            options,
            header_len,
            tag,
        } => State::first_tag(key, flow, slot, options, header_len, word) == tag,
        State::Later {
            options,
            position: LaterPosition::Near { distance, tag },
            ..
        } => State::later_tag(key, flow, options, distance, word) == tag,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reset_needs_a_change_of_the_pool() {
        for moved in [false, true] {
            let known = Known {
                happened: Happened {
                    moved,
                    ..Happened::default()
                },
                is_unprotected: true,
                had_part_of_head: false,
                has_pipelined: false,
                has_aligning_server: false,
                had_no_server: false,
                is_malformed: false,
                store: None,
            };
            let reason = PositionError::Unprotected.into();
            assert_eq!(is_explained(&reason, known), moved);
        }
    }
}
