//! Byte ranges (RFC 9110, 14): the part of an object that a request asks for, and the part that a response has.

use core::fmt;

/// Why a field has no range that can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// The value is not of the form of RFC 9110, or another unit than bytes.
    #[error("not a range of bytes")]
    Malformed,
    /// Several ranges: the response has several parts.
    #[error("several ranges")]
    Several,
}

/// The part of an object that a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RangeRequest {
    /// From one byte to another byte, both included.
    Closed {
        /// First byte.
        first: u64,
        /// Last byte; not before the first.
        last: u64,
    },
    /// From a byte to the end.
    From(u64),
    /// The last bytes, this many.
    Suffix(u64),
}

/// Bytes of an object, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteRange {
    first: u64,
    last: u64,
}

/// The part of an object that a response has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentRange {
    /// A part, and the length of the whole object, if the server knows that length.
    Part {
        /// The part.
        range: ByteRange,
        /// Length of the object, bytes.
        complete: Option<u64>,
    },
    /// No part, with the length of the object: to a request beyond the end (416).
    Unsatisfied {
        /// Length of the object, bytes.
        complete: u64,
    },
}

impl RangeRequest {
    /// Parses the value of `Range`.
    ///
    /// # Errors
    /// The value is malformed, or has several ranges.
    pub fn parse(value: &str) -> Result<Self, RangeError> {
        let ranges = unit(value, '=')?;
        if ranges.contains(',') {
            return Err(RangeError::Several);
        }
        let (first, last) = ranges.trim().split_once('-').ok_or(RangeError::Malformed)?;
        match (first.is_empty(), last.is_empty()) {
            (true, true) => Err(RangeError::Malformed),
            (true, false) => number(last).map(Self::Suffix),
            (false, true) => number(first).map(Self::From),
            (false, false) => {
                let range = ByteRange::new(number(first)?, number(last)?);
                let ByteRange { first, last } = range.ok_or(RangeError::Malformed)?;
                Ok(Self::Closed { first, last })
            }
        }
    }

    /// The bytes of an object of this length. `None` if the object has none of these bytes.
    #[must_use]
    pub fn resolve(self, complete: u64) -> Option<ByteRange> {
        let end = complete.checked_sub(1)?;
        match self {
            Self::Closed { first, last } => ByteRange::new(first, last.min(end)),
            Self::From(first) => ByteRange::new(first, end),
            Self::Suffix(0) => None,
            Self::Suffix(len) => ByteRange::new(complete.saturating_sub(len), end),
        }
    }
}

impl ByteRange {
    /// `None` if the last byte is before the first.
    #[must_use]
    pub const fn new(first: u64, last: u64) -> Option<Self> {
        if first <= last {
            Some(Self { first, last })
        } else {
            None
        }
    }

    /// First byte.
    #[must_use]
    pub const fn first(self) -> u64 {
        self.first
    }

    /// Last byte.
    #[must_use]
    pub const fn last(self) -> u64 {
        self.last
    }

    /// The rest behind the first `offset` bytes. `None` if nothing is left.
    #[must_use]
    pub const fn rest_from(self, offset: u64) -> Option<Self> {
        match self.first.checked_add(offset) {
            Some(first) => Self::new(first, self.last),
            None => None,
        }
    }
}

impl ContentRange {
    /// Parses the value of `Content-Range`.
    ///
    /// # Errors
    /// The value is malformed, or the part is not within the object.
    pub fn parse(value: &str) -> Result<Self, RangeError> {
        let (range, complete) = unit(value, ' ')?
            .split_once('/')
            .ok_or(RangeError::Malformed)?;
        let complete = match complete {
            "*" => None,
            complete => Some(number(complete)?),
        };
        if range == "*" {
            let complete = complete.ok_or(RangeError::Malformed)?;
            return Ok(Self::Unsatisfied { complete });
        }
        let (first, last) = range.split_once('-').ok_or(RangeError::Malformed)?;
        let range = ByteRange::new(number(first)?, number(last)?).ok_or(RangeError::Malformed)?;
        match complete {
            Some(complete) if range.last >= complete => Err(RangeError::Malformed),
            complete => Ok(Self::Part { range, complete }),
        }
    }
}

impl From<ByteRange> for RangeRequest {
    fn from(ByteRange { first, last }: ByteRange) -> Self {
        Self::Closed { first, last }
    }
}

/// The value of `Range`.
impl fmt::Display for RangeRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed { first, last } => write!(f, "bytes={first}-{last}"),
            Self::From(first) => write!(f, "bytes={first}-"),
            Self::Suffix(len) => write!(f, "bytes=-{len}"),
        }
    }
}

/// The text behind the unit `bytes`. Units have no case.
fn unit(value: &str, separator: char) -> Result<&str, RangeError> {
    let (unit, rest) = value
        .trim()
        .split_once(separator)
        .ok_or(RangeError::Malformed)?;
    match unit.eq_ignore_ascii_case("bytes") {
        true => Ok(rest.trim()),
        false => Err(RangeError::Malformed),
    }
}

fn number(text: &str) -> Result<u64, RangeError> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|_| is_number);
    number.ok_or(RangeError::Malformed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use std::string::ToString as _;

    use super::*;

    fn part(first: u64, last: u64, complete: Option<u64>) -> Result<ContentRange, RangeError> {
        let range = ByteRange::new(first, last).unwrap();
        Ok(ContentRange::Part { range, complete })
    }

    #[test]
    fn ranges_of_requests_are_read() {
        let parse = RangeRequest::parse;
        assert_eq!(
            parse("bytes=0-0"),
            Ok(RangeRequest::Closed { first: 0, last: 0 })
        );
        assert_eq!(parse("Bytes=7-"), Ok(RangeRequest::From(7)));
        assert_eq!(parse("bytes=-5"), Ok(RangeRequest::Suffix(5)));
        assert_eq!(parse("bytes=0-1,5-6"), Err(RangeError::Several));
        for wrong in [
            "",
            "bytes",
            "bytes=",
            "bytes=-",
            "bytes=5-4",
            "bytes=+1-2",
            "lines=1-2",
            "bytes=18446744073709551616-",
        ] {
            assert_eq!(parse(wrong), Err(RangeError::Malformed), "{wrong}");
        }
    }

    #[test]
    fn parts_of_responses_are_read() {
        let parse = ContentRange::parse;
        assert_eq!(parse("bytes 0-499/1234"), part(0, 499, Some(1234)));
        assert_eq!(parse("bytes 734-1233/*"), part(734, 1233, None));
        assert_eq!(
            parse("bytes */1234"),
            Ok(ContentRange::Unsatisfied { complete: 1234 })
        );
        for wrong in [
            "bytes */*",
            "bytes 0-1234/1234",
            "bytes 5-4/9",
            "bytes=0-1/2",
            "0-1/2",
        ] {
            assert_eq!(parse(wrong), Err(RangeError::Malformed), "{wrong}");
        }
    }

    proptest! {
        /// A range is the bytes that the request names, cut at the end of the object.
        #[test]
        fn resolved_range_lies_within_the_object(
            first in 0_u64..20, last in 0_u64..20, complete in 0_u64..20, kind in 0..3,
        ) {
            let request = match kind {
                0 if first <= last => RangeRequest::Closed { first, last },
                1 => RangeRequest::Suffix(last),
                _ => RangeRequest::From(first),
            };
            let is_asked = |byte: &u64| match request {
                RangeRequest::Closed { first, last } => (first..=last).contains(byte),
                RangeRequest::From(first) => *byte >= first,
                RangeRequest::Suffix(len) => *byte + len >= complete,
            };
            let bytes: std::vec::Vec<u64> = (0..complete).filter(is_asked).collect();
            let resolved = request.resolve(complete);
            let resolved: std::vec::Vec<u64> =
                resolved.map_or_else(Default::default, |range| (range.first()..=range.last()).collect());
            prop_assert_eq!(resolved, bytes);
        }

        #[test]
        fn written_range_is_read_again(first in any::<u64>(), len in any::<u64>()) {
            let last = first.saturating_add(len);
            let range = ByteRange::new(first, last).unwrap();
            prop_assert_eq!(RangeRequest::parse(&RangeRequest::from(range).to_string()), Ok(RangeRequest::Closed { first, last }));
        }
    }
}
