//! Clients without timestamps: no echo tells the position, only the record and the numbers of a segment.

use core::time::Duration;

use wire::{Flags, FlowKey, Segment};

use super::{Position, PositionError, Reason, Rejected, Rules, segments, unreachable};
use crate::key::PoolKey;
use crate::record::{Record, StoredTurn};

/// Time after which a client has repeated an unacknowledged request: its pauses may have grown behind a long response,
/// and during the death.
const REPEAT_TIME: Duration = Duration::from_secs(15);

/// Why a client that has the whole response of the record is not revived now.
pub(super) fn objection(
    key: FlowKey,
    rules: &Rules,
    segment: &Segment<'_>,
    turn: &StoredTurn,
    now: Duration,
) -> Option<Rejected> {
    if segments::has_bytes_behind_hole(segment) {
        return Some(Rejected {
            reason: PositionError::HeaderPart.into(),
            reset: segments::reset(key, segment.ack(), segment.end_seq()),
        });
    }
    if segment.payload().is_empty() {
        let has_repeated = now >= rules.settled_at + REPEAT_TIME;
        return Some(without_request(key, segment, turn, has_repeated));
    }
    // Bytes of a dead server may still be on their way. The client sends the request again.
    (now < rules.settled_at).then_some(Rejected {
        reason: Reason::Idle,
        reset: None,
    })
}

/// A segment without payload of a client without timestamps that has the whole response of the record.
fn without_request(
    key: FlowKey,
    segment: &Segment<'_>,
    turn: &StoredTurn,
    has_repeated: bool,
) -> Rejected {
    let end = turn.request_end();
    // The client has sent more than a FIN.
    if segment.seq().after(end + 1) {
        // A client that repeats nothing has the acknowledgement of the next request, which was not protected. Another
        // client's timer brings the request, sooner by this message.
        return match has_repeated {
            true => Rejected {
                reason: PositionError::NextRequest.into(),
                reset: segments::reset(key, segment.ack(), segment.end_seq()),
            },
            false => Rejected {
                reason: Reason::Idle,
                reset: unreachable::about(key, end),
            },
        };
    }
    let closes = segment.flags().contains(Flags::FIN) && segment.seq() == end;
    Rejected {
        reason: Reason::Idle,
        reset: closes.then(|| segments::close(key, segment)).flatten(),
    }
}

/// The position of a client without timestamps.
pub(super) fn of_numbers<'r>(
    (key, flow): (&PoolKey, &FlowKey),
    segment: &Segment<'_>,
    record: Result<&'r Record, PositionError>,
) -> Result<(Position, Option<&'r StoredTurn>), PositionError> {
    match record {
        Ok(record) => Position::of_numbers(key, flow, segment, record),
        Err(PositionError::NoStore) => Err(PositionError::NoTimestamps),
        Err(error) => Err(error),
    }
}
