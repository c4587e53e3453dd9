//! The time of a frame on the line, and the kernel's token bucket that charges this time.
//!
//! A real Ethernet is busy for longer than a frame's bytes: before the frame come 8 bytes of preamble, after the frame
//! come 4 of checksum and a gap of 12, and a frame is never shorter than 60 bytes (IEEE 802.3, clauses 3 and 4A).
//! Rates count all of this. A full frame of 1514 bytes takes 1538, an IP packet takes 38 more than the packet's
//! length, and bulk TCP with timestamps gets at most 1448/1538 of the rate.
//!
//! A rate without other faults is enforced by the kernel (tc-tbf(8)), without a detour through user space. There is a
//! difficulty: a sender's stack hands down up to 64 KiB as a single packet (segmentation offload). The bucket cuts a
//! packet that is longer than the bucket's depth. For a shorter packet the bucket charges the headers and payloads of
//! the pieces, but adds the overhead only once. So there are two ways to set the bucket, see [`bucket`].

/// Bytes of a frame's header.
const HEADER_BYTES: u64 = 14;
/// Bytes before and after a frame: preamble, checksum and gap.
const OVERHEAD_BYTES: u64 = 24;
/// The shortest frame, without the checksum.
const MIN_FRAME_BYTES: u64 = 60;
/// A full frame at Ethernet's usual MTU, without the checksum.
pub(crate) const FULL_FRAME_BYTES: u64 = HEADER_BYTES + 1500;
/// At least this many full frames may wait for the line, at any rate.
const MIN_QUEUED_FRAMES: u64 = 30;
/// The queue also holds at least the line's bytes of a second divided by this number.
const QUEUE_SHARE: u64 = 10;
/// Up to this rate the bucket sees each frame as a separate packet.
const EXACT_RATE_LIMIT: u64 = 100_000_000;

/// How long a frame of `length` bytes keeps the line busy, in bytes.
pub(crate) fn busy_bytes(length: u64) -> u64 {
    length.max(MIN_FRAME_BYTES).saturating_add(OVERHEAD_BYTES)
}

/// The bytes that may wait for a line of `rate` bits per second.
pub(crate) fn room(rate: u64) -> u64 {
    (MIN_QUEUED_FRAMES * busy_bytes(FULL_FRAME_BYTES)).max(rate / 8 / QUEUE_SHARE)
}

/// The arguments of `tc qdisc` for a line of `rate` bits per second and packets of up to `mtu` bytes.
///
/// Up to 100 Mbit/s the bucket is less than two full frames deep, so the bucket sees single frames and charges each
/// frame exactly. Above, such a shallow bucket would run over between two timer ticks of a busy CPU. There the bucket
/// is a millisecond deep, and instead of the overhead the bucket counts the share that full frames have of the line.
/// Full frames are then charged exactly, frames of half the length 1.6 % too little, and the shortest 7 %.
pub(crate) fn bucket(rate: u64, mtu: u32) -> String {
    let frame = HEADER_BYTES + u64::from(mtu);
    let limit = room(rate);
    if rate <= EXACT_RATE_LIMIT {
        let depth = (2 * frame - 100).max(frame + OVERHEAD_BYTES);
        let least = MIN_FRAME_BYTES + OVERHEAD_BYTES;
        return format!(
            "tbf rate {rate}bit burst {depth} limit {limit} overhead {OVERHEAD_BYTES} mpu {least}"
        );
    }
    let counted = u128::from(rate) * u128::from(frame) / u128::from(frame + OVERHEAD_BYTES);
    let depth = (rate / 8 / 1000).max(2 * frame);
    // The kernel counts a bucket's depth in 32 bits.
    let depth = depth.min(1 << 30);
    format!(
        "tbf rate {counted}bit burst {depth} limit {limit} mpu {}",
        MIN_FRAME_BYTES + OVERHEAD_BYTES
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_time_matches_ethernet() {
        assert_eq!(busy_bytes(1514), 1538);
        assert_eq!(busy_bytes(42), 84, "ARP is padded");
    }

    #[test]
    fn slow_buckets_hold_less_than_two_frames() {
        assert_eq!(
            bucket(10_000_000, 1500),
            "tbf rate 10000000bit burst 2928 limit 125000 overhead 24 mpu 84"
        );
    }

    #[test]
    fn fast_buckets_charge_full_frames_exactly() {
        // 1e9 * 1514 / 1538.
        assert_eq!(
            bucket(1_000_000_000, 1500),
            "tbf rate 984395318bit burst 125000 limit 12500000 mpu 84"
        );
    }

    #[test]
    fn every_rate_buffers_some_frames() {
        assert_eq!(room(1), 30 * 1538);
        assert_eq!(room(1_000_000_000), 12_500_000);
    }
}
