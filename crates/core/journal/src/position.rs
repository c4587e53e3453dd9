//! 64-bit positions in a stream whose sequence numbers wrap.
//!
//! Position 0 is the SYN, position 1 the first byte of data. The sequence number of a position is the ISN plus the
//! position, modulo 2^32. The other way round, a sequence number names a position in every 4 GiB; a known position
//! nearby selects the right position.

use wire::SeqNumber;

/// 1 GiB: the largest receive window that TCP can announce (RFC 7323, 2.3). The next bytes of a peer are this close to
/// the bytes sent so far.
pub(crate) const PLAUSIBLE_DISTANCE: u32 = 1 << 30;

/// The position of the first byte of data.
pub(crate) const FIRST_POSITION: u64 = 1;

/// The sequence number at `position` in the stream that begins with `isn`.
pub(crate) fn seq_at(isn: SeqNumber, position: u64) -> SeqNumber {
    let [_, _, _, _, a, b, c, d] = position.to_be_bytes();
    isn + u32::from_be_bytes([a, b, c, d])
}

/// The position of `seq` in the 4 GiB that begin `behind` before `near`, or `None` if that lies
/// before the beginning of the stream.
pub(crate) fn unwrap(isn: SeqNumber, seq: SeqNumber, near: u64, behind: u32) -> Option<u64> {
    let ahead = seq.0.wrapping_sub(seq_at(isn, near).0);
    if ahead <= u32::MAX - behind {
        near.checked_add(u64::from(ahead))
    } else {
        near.checked_sub(u64::from(ahead.wrapping_neg()))
    }
}

#[cfg(test)]
mod tests {
    use super::{PLAUSIBLE_DISTANCE, seq_at, unwrap};
    use proptest::prelude::{any, proptest};
    use proptest::prop_assert_eq;
    use wire::SeqNumber;

    proptest! {
        /// A position is found again from any place that is less than the window away.
        #[test]
        fn position_survives_round_trip(
            isn in any::<u32>(),
            near in 0u64..1 << 40,
            behind in 0u32..=u32::MAX,
            offset in any::<u32>(),
        ) {
            let isn = SeqNumber(isn);
            let first = near.saturating_sub(u64::from(behind));
            let position = first + u64::from(offset);
            if position - first < (1 << 32) - (u64::from(behind) - (near - first)) {
                prop_assert_eq!(unwrap(isn, seq_at(isn, position), near, behind), Some(position));
            }
        }
    }

    #[test]
    fn positions_begin_at_first() {
        assert_eq!(
            unwrap(SeqNumber(0), SeqNumber(u32::MAX), 0, PLAUSIBLE_DISTANCE),
            None
        );
        assert_eq!(
            unwrap(SeqNumber(u32::MAX), SeqNumber(0), 0, PLAUSIBLE_DISTANCE),
            Some(1)
        );
    }
}
