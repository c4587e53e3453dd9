//! TCP sequence numbers (RFC 9293, 3.4).
//!
//! Sequence numbers count modulo 2^32. Sequence numbers have **no total order**: "before" holds only between numbers
//! that are less than half of the space apart, and is not transitive around the circle. [`SeqNumber`] therefore
//! implements neither `Ord` nor `PartialOrd`, but offers named comparisons, and [`SeqNumber::distance_from`] returns
//! `None` where a subtraction would have wrapped. Two numbers exactly 2^31 apart are in no order: each of the four
//! comparisons is false.
//!
//! **0 is an ordinary number.** A connection may start at 0 or pass through 0. No code here uses 0 for "none": an
//! absent number is an `Option`. `Default` is 0, as the kernel makes the entries of a map.

use core::fmt;
use core::ops::{Add, AddAssign, Sub};

/// Half of the sequence space: from this distance on "before" and "after" have no meaning.
const HALF_SPACE: u32 = 1 << 31;

/// A TCP sequence number (RFC 9293, 3.4), modulo 2^32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SeqNumber(
    /// The number in host byte order.
    pub u32,
);

impl SeqNumber {
    /// Whether `self` comes after `other`: 1 to 2^31 − 1 numbers further on.
    #[must_use]
    pub const fn after(self, other: Self) -> bool {
        other.before(self)
    }

    /// Whether `self` comes before `other`: `other` is 1 to 2^31 − 1 numbers further on.
    #[must_use]
    pub const fn before(self, other: Self) -> bool {
        let ahead = other.0.wrapping_sub(self.0);
        ahead != 0 && ahead < HALF_SPACE
    }

    /// Whether `self` equals `other` or comes after `other`.
    #[must_use]
    pub const fn at_or_after(self, other: Self) -> bool {
        self.0 == other.0 || self.after(other)
    }

    /// Whether `self` equals `other` or comes before `other`.
    #[must_use]
    pub const fn at_or_before(self, other: Self) -> bool {
        other.at_or_after(self)
    }

    /// The later of two numbers; `self` if they are in no order.
    #[must_use]
    pub const fn max_seq(self, other: Self) -> Self {
        if other.after(self) { other } else { self }
    }

    /// The earlier of two numbers; `self` if they are in no order.
    #[must_use]
    pub const fn min_seq(self, other: Self) -> Self {
        if other.before(self) { other } else { self }
    }

    /// How many numbers `self` is further on than `earlier`: 0 to 2^31 − 1, or `None` if `self`
    /// does not come at or after `earlier`.
    #[must_use]
    pub const fn distance_from(self, earlier: Self) -> Option<u32> {
        let distance = self.0.wrapping_sub(earlier.0);
        if distance < HALF_SPACE {
            Some(distance)
        } else {
            None
        }
    }

    /// Whether `self` is among the `len` numbers that begin with `start`. An empty range contains no number. Unlike
    /// the comparisons, the answer is exact for every `len`.
    #[must_use]
    pub const fn within(self, start: Self, len: u32) -> bool {
        self.0.wrapping_sub(start.0) < len
    }
}

impl Add<u32> for SeqNumber {
    type Output = Self;

    fn add(self, count: u32) -> Self {
        Self(self.0.wrapping_add(count))
    }
}

impl AddAssign<u32> for SeqNumber {
    fn add_assign(&mut self, count: u32) {
        *self = *self + count;
    }
}

impl Sub<u32> for SeqNumber {
    type Output = Self;

    fn sub(self, count: u32) -> Self {
        Self(self.0.wrapping_sub(count))
    }
}

impl fmt::Display for SeqNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests;
