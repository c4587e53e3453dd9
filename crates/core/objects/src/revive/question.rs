//! The request for the local server.

use alloc::{borrow::Cow, vec::Vec};

use http1::range::RangeRequest;
use http1::{BodyLength, Method, RequestHead};
use wire::SeqNumber;

use super::Reason;
use crate::flow::{RELEASED_MAX, Unprotected};

/// The request for the local server.
#[derive(Debug, Clone)]
pub(super) struct Question {
    /// The bytes.
    pub(super) bytes: Vec<u8>,
    /// First byte and end of the client's request.
    pub(super) start: SeqNumber,
    pub(super) end: SeqNumber,
    /// Bytes of the request that the client was told to have arrived.
    pub(super) released: u8,
    /// The store has the request, and the client was told of all of it.
    pub(super) is_acknowledged: bool,
    pub(super) method: Method,
    /// Range of the client's own request.
    pub(super) own_range: RangeRequest,
    pub(super) has_own_range: bool,
}

impl Question {
    /// Before the client has asked.
    pub(super) const fn none(end: SeqNumber) -> Self {
        Self {
            bytes: Vec::new(),
            start: end,
            end,
            released: 0,
            is_acknowledged: false,
            method: Method::Get,
            own_range: RangeRequest::From(0),
            has_own_range: false,
        }
    }

    /// Acknowledgement that the client has.
    pub(super) fn acknowledged(&self) -> SeqNumber {
        match self.is_acknowledged {
            true => self.end,
            false => self.start + u32::from(self.released),
        }
    }

    /// Number of the SYN.
    pub(super) fn syn(&self) -> SeqNumber {
        self.first() - 1
    }

    /// Number of the first byte, so that the last byte has the number of the client's last byte.
    pub(super) fn first(&self) -> SeqNumber {
        self.end - u32::try_from(self.bytes.len()).unwrap_or(0)
    }

    /// Where the part of the object begins that the client asked for.
    pub(super) const fn own_range_start(&self) -> u64 {
        match self.own_range {
            RangeRequest::Closed { first, .. } | RangeRequest::From(first) => first,
            RangeRequest::Suffix(_) => 0,
        }
    }
}

/// The request with the bytes before, which the client was told to have arrived, and the number of these bytes
/// ([`RELEASED_MAX`]).
pub(super) fn with_beginning(payload: &[u8]) -> (Cow<'_, [u8]>, u8) {
    const BEGINNINGS: [(&[u8], &[u8], u8); 4] = [
        (b"G", b"ET ", 1),
        (b"GE", b"T ", 2),
        (b"GET", b" ", 3),
        (b"GET ", b"/", RELEASED_MAX),
    ];
    for (before, behind, released) in BEGINNINGS {
        if payload.starts_with(behind) {
            return ([before, payload].concat().into(), released);
        }
    }
    (payload.into(), 0)
}

/// A request that can be asked again: the range that it asks for, if any.
pub(super) fn checked(head: &RequestHead<'_>) -> Result<Option<RangeRequest>, Reason> {
    if head.method == Method::Other || head.body != BodyLength::Bytes(0) {
        return Err(Reason::Request(Unprotected::Method));
    }
    let value = |name| head.fields.value(name);
    let has = |name| value(name).map(|value| value.is_some()).unwrap_or(true);
    if has("upgrade") || has("expect") {
        return Err(Reason::Request(Unprotected::Upgraded));
    }
    let Some(range) = value("range").map_err(|_| Reason::OwnRange)? else {
        return Ok(None);
    };
    match RangeRequest::parse(range) {
        Ok(RangeRequest::Suffix(_)) | Err(_) => Err(Reason::OwnRange),
        Ok(range) => Ok(Some(range)),
    }
}

/// The rest of a range behind `offset` bytes. `None` if the range has no such byte.
pub(super) fn rest(range: RangeRequest, offset: u64) -> Option<RangeRequest> {
    match range {
        RangeRequest::Closed { first, last } => {
            let first = first.checked_add(offset)?;
            (first <= last).then_some(RangeRequest::Closed { first, last })
        }
        RangeRequest::From(first) => Some(RangeRequest::From(first.checked_add(offset)?)),
        RangeRequest::Suffix(_) => None,
    }
}
