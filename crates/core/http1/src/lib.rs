//! Heads of HTTP/1.1 messages (RFC 9110, RFC 9112).
//!
//! A *head* is the start line and the fields, up to the empty line. [`RequestHead`] and [`ResponseHead`] are views of a
//! head. A head whose meaning is in doubt is refused, see [`Doubt`]: a parser that guesses would disagree
//! with the server, and bytes of one message would be taken for another message.
//!
//! - [`range`]: `Range` and `Content-Range`;
//! - [`version`]: the validators that tell two versions of an object apart;
//! - [`chunks`]: the end of a body in chunks;
//! - [`date`]: dates in fields;
//! - [`edit`]: the request for the rest of an object.
//!
//! The crate does no I/O. No function panics on any bytes.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod body;
pub mod chunks;
pub mod date;
pub mod edit;
mod fields;
mod head;
#[cfg(any(test, feature = "fuzzing"))]
pub mod properties;
pub mod range;
pub mod version;

pub use body::BodyLength;
pub use fields::Fields;
pub use head::{
    Doubt, HEAD_LEN_MAX, Method, Protocol, RequestHead, ResponseHead, parse_request, parse_response,
};
