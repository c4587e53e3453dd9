//! Words for scripts and metrics: the reasons why a connection is not protected, or was reset.

use crate::flow::Unprotected;
use crate::judge::Refusal;
use crate::revive::{PositionError, Reason};

impl Unprotected {
    /// The label in JSON and in metrics.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::NoTimestamps => "no_timestamps",
            Self::NotHttp => "not_http",
            Self::Method => "method",
            Self::Upgraded => "upgraded",
            Self::SplitRequest => "split_request",
            Self::Pipelined => "pipelined",
            Self::Header => "long_header",
            Self::Chunked => "chunked",
            Self::LaterResponse => "later_response",
            Self::WithheldTooLong => "withheld_too_long",
            Self::Server => "server",
            Self::Multipart => "multipart",
            Self::OwnRange => "own_range",
            Self::TooLong => "too_long",
        }
    }
}

impl PositionError {
    /// The label in JSON and in metrics.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::NoTimestamps => Unprotected::NoTimestamps.label(),
            Self::Unprotected => "unprotected",
            Self::HeaderPart => "header_partly_received",
            Self::NoStore => "no_store",
            Self::RecordMissing => "record_missing",
            Self::StoreLost => "store_lost",
            Self::OtherRecord => "other_record",
            Self::NextRequest => Unprotected::Pipelined.label(),
        }
    }
}

impl Refusal {
    /// The label in JSON and in metrics.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Version(_) | Self::Condition { .. } => "version",
            Self::Gone { .. } => "gone",
            Self::Part => "other_part",
            Self::DiscardLimit { .. } => "discard_limit",
            Self::Doubt(_) => "doubt",
        }
    }
}

impl Reason {
    /// All labels.
    pub const LABELS: [&'static str; 30] = [
        "chunked",
        "discard_limit",
        "doubt",
        "gone",
        "header_partly_received",
        "idle",
        "later_request",
        "later_response",
        "long_header",
        "method",
        "modified",
        "multipart",
        "no_server",
        "no_store",
        "no_timestamps",
        "not_http",
        "other_part",
        "other_record",
        "own_range",
        "pipelined",
        "record_missing",
        "server",
        "silent",
        "split_request",
        "store_lost",
        "too_long",
        "unprotected",
        "upgraded",
        "version",
        "withheld_too_long",
    ];

    /// The label in JSON and in metrics, one of [`Reason::LABELS`].
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Position(error) => error.label(),
            Self::Request(unprotected) => unprotected.label(),
            Self::OwnRange => Unprotected::OwnRange.label(),
            Self::Answer(refusal) => refusal.label(),
            Self::Version => "version",
            Self::Modified => "modified",
            Self::LaterRequest => "later_request",
            Self::Silent => "silent",
            Self::Idle => "idle",
            Self::NoServer => "no_server",
            Self::LongHead => Unprotected::Header.label(),
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn labels_are_known() {
        let of_requests = Unprotected::ALL.map(Reason::Request);
        let of_positions = [
            PositionError::NoTimestamps,
            PositionError::Unprotected,
            PositionError::HeaderPart,
            PositionError::NoStore,
            PositionError::RecordMissing,
            PositionError::StoreLost,
            PositionError::OtherRecord,
            PositionError::NextRequest,
        ]
        .map(Reason::Position);
        let of_answers = [
            Refusal::Gone { status: 404 },
            Refusal::Condition { status: 412 },
            Refusal::Part,
            Refusal::DiscardLimit { bytes: 1 },
        ]
        .map(Reason::Answer);
        let more = [
            Reason::OwnRange,
            Reason::Version,
            Reason::Modified,
            Reason::LaterRequest,
            Reason::Silent,
            Reason::NoServer,
            Reason::LongHead,
        ];
        let all: Vec<Reason> = [
            of_requests.to_vec(),
            of_positions.to_vec(),
            of_answers.to_vec(),
            more.to_vec(),
        ]
        .concat();
        for reason in all {
            assert!(Reason::LABELS.contains(&reason.label()), "{reason:?}");
        }
        assert!(Reason::LABELS.is_sorted());
    }
}
