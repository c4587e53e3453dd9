//! The length of a message's body (RFC 9112, 6.3).

use crate::fields::Fields;
use crate::head::{Doubt, Method, Protocol};

/// How the end of a body is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyLength {
    /// This many bytes follow the head.
    Bytes(u64),
    /// Chunks follow, the last of length 0.
    Chunked,
    /// The end of the connection is the end of the body. Only responses.
    UntilClose,
}

pub(crate) fn of_request(fields: &Fields<'_>, protocol: Protocol) -> Result<BodyLength, Doubt> {
    match (
        transfer_encoding(fields, protocol)?,
        content_length(fields)?,
    ) {
        (Some(Coding::Chunked), None) => Ok(BodyLength::Chunked),
        (None, length) => Ok(BodyLength::Bytes(length.unwrap_or(0))),
        (Some(_), _) => Err(Doubt::AmbiguousLength),
    }
}

pub(crate) fn of_response(
    fields: &Fields<'_>,
    protocol: Protocol,
    method: Method,
    status: u16,
) -> Result<BodyLength, Doubt> {
    let lengths = (
        transfer_encoding(fields, protocol)?,
        content_length(fields)?,
    );
    if matches!(status, 100..=199 | 204 | 304) || method == Method::Head {
        return Ok(BodyLength::Bytes(0));
    }
    match lengths {
        (Some(_), Some(_)) => Err(Doubt::AmbiguousLength),
        (Some(Coding::Chunked), None) => Ok(BodyLength::Chunked),
        (Some(Coding::Other), None) | (None, None) => Ok(BodyLength::UntilClose),
        (None, Some(length)) => Ok(BodyLength::Bytes(length)),
    }
}

/// The last transfer coding.
enum Coding {
    Chunked,
    Other,
}

/// HTTP/1.0 has no transfer codings: some programs ignore the field, others do not (RFC 9112, 6.1).
fn transfer_encoding(fields: &Fields<'_>, protocol: Protocol) -> Result<Option<Coding>, Doubt> {
    let value = match fields.value("transfer-encoding") {
        Err(Doubt::RepeatedField) => return Err(Doubt::AmbiguousLength),
        value => value?,
    };
    if value.is_some() && protocol == Protocol::Http10 {
        return Err(Doubt::AmbiguousLength);
    }
    Ok(value.map(|value| {
        let last = value.rsplit(',').next().unwrap_or_default();
        match last.trim().eq_ignore_ascii_case("chunked") {
            true => Coding::Chunked,
            false => Coding::Other,
        }
    }))
}

/// RFC 9112 allows equal repetitions. Here these are in doubt: not all servers agree.
fn content_length(fields: &Fields<'_>) -> Result<Option<u64>, Doubt> {
    let value = match fields.value("content-length") {
        Err(Doubt::RepeatedField) => return Err(Doubt::AmbiguousLength),
        value => value?,
    };
    value.map(number).transpose()
}

/// A number without a sign.
fn number(text: &str) -> Result<u64, Doubt> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|_| is_number);
    number.ok_or(Doubt::AmbiguousLength)
}
