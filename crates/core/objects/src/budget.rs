//! How many segments of unknown connections, and of clients that wait for their turn, a member looks at (TRODS 5.1: the
//! slow path has a lower priority).
//!
//! A claim at the other members and a look-up in the store follow each such segment. The tags of an idle connection and
//! of a stored response prove that a member has written the echo; the program in the kernel has compared these tags.
//! Any other segment can be made by anybody: such segments are limited, for each source and in all. A client whose
//! segment is dropped repeats the segment.
//!
//! The bytes of a client that wait ([`crate::queue`]) are limited for each connection in the programs, and in all here.
//! The member looks at these when nothing else waits.

use alloc::collections::BTreeMap;
use core::net::{IpAddr, Ipv6Addr};
use core::time::Duration;

use crate::plane::SegmentCopy;
use crate::timestamp::{State, Timestamp};

/// Time that each segment of a source costs, and of all sources.
const SOURCE_INTERVAL: Duration = Duration::from_micros(500);
const TOTAL_INTERVAL: Duration = Duration::from_micros(125);
/// Segments at once: the clients of a dead member speak within a second, and many may have one address (RFC 6888).
const SOURCE_BURST: u32 = 8192;
const TOTAL_BURST: u32 = 32_768;
/// The same of bytes that wait for their turn. The time is more than a segment costs.
const QUEUED_INTERVAL: Duration = Duration::from_micros(100);
const QUEUED_BURST: u32 = 8192;
/// Sources that are limited separately at a time.
const SOURCES_MAX: usize = 4096;
/// A host on the Internet has a network of this length (RFC 6177), bits of an IPv6 address that name no host.
const HOST_BITS: u32 = 64;

/// When a bucket would be full again (GCRA, ITU-T I.371).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Bucket(Duration);

/// The limits of a member.
#[derive(Debug, Clone, Default)]
pub struct Budget {
    total: Bucket,
    queued: Bucket,
    sources: BTreeMap<IpAddr, Bucket>,
    dropped: u64,
}

impl Bucket {
    /// Takes a segment out, if there is one.
    fn take(&mut self, now: Duration, interval: Duration, burst: u32) -> bool {
        let full_at = self.0.max(now);
        let has_room = full_at - now <= interval * (burst - 1);
        if has_room {
            self.0 = full_at + interval;
        }
        has_room
    }
}

impl Budget {
    /// Whether the member looks at the segment of an unknown connection.
    pub fn allows(&mut self, now: Duration, copy: &SegmentCopy) -> bool {
        if is_proven(copy) {
            return true;
        }
        let source = network(copy.key.client().ip());
        // The source first: a single source does not use up what there is for all.
        let allowed =
            self.allows_source(now, source) && self.total.take(now, TOTAL_INTERVAL, TOTAL_BURST);
        self.dropped += u64::from(!allowed);
        allowed
    }

    /// Whether the member looks at bytes of a client that wait for their turn.
    pub fn allows_queued(&mut self, now: Duration) -> bool {
        self.queued.take(now, QUEUED_INTERVAL, QUEUED_BURST)
    }

    fn allows_source(&mut self, now: Duration, source: IpAddr) -> bool {
        let is_known = self.sources.contains_key(&source);
        if !is_known && self.sources.len() >= SOURCES_MAX {
            self.sources.retain(|_, bucket| bucket.0 > now);
        }
        if !is_known && self.sources.len() >= SOURCES_MAX {
            return true;
        }
        let bucket = self.sources.entry(source).or_default();
        bucket.take(now, SOURCE_INTERVAL, SOURCE_BURST)
    }

    /// Segments that were dropped since the last call.
    pub const fn take_dropped(&mut self) -> u64 {
        core::mem::replace(&mut self.dropped, 0)
    }
}

/// Whether the echo has a tag that the kernel compares before it copies a segment of an unknown connection.
fn is_proven(copy: &SegmentCopy) -> bool {
    let timestamps = copy.segment().and_then(|segment| segment.timestamps());
    let state = timestamps.map(|timestamps| Timestamp::from_wire(timestamps.echo).state);
    matches!(state, Some(State::Agreed { .. } | State::Stored { .. }))
}

fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => Ipv6Addr::from(u128::from(address) >> HOST_BITS << HOST_BITS).into(),
    }
}

#[cfg(test)]
mod tests;
