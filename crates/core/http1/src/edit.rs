//! The request for the rest of an object: the client's request with another range.

use alloc::vec::Vec;
use core::fmt::Write as _;
use core::ops::Range;

use crate::head::{Doubt, parse_request};
use crate::range::RangeRequest;
use crate::version::ObjectVersion;

/// Field by which a server sees that a request is a revival. The field is taken from requests of clients.
pub const REVIVED_FIELD: &str = "Outlive-Revived";

/// Field with the inputs of a dynamic response that its request does not have (TRODS 7): a service that gets the same
/// inputs with the same request answers with the same bytes.
pub const INPUTS_FIELD: &str = "X-TRODS";

/// Fields of the client's request that another range or condition replaces.
const REPLACED_FIELDS: [&str; 7] = [
    "range",
    "if-range",
    "if-match",
    "if-none-match",
    "if-modified-since",
    "if-unmodified-since",
    REVIVED_FIELD,
];

/// The request for a part of an object, on the condition that the version is the same, if that is known. `request`
/// begins with a complete request head; the rest is left out.
///
/// # Errors
/// The head is in doubt, or not complete ([`Doubt::Malformed`]).
pub fn request_for_rest(
    request: &[u8],
    rest: RangeRequest,
    version: Option<&ObjectVersion>,
    is_marked: bool,
) -> Result<Vec<u8>, Doubt> {
    let head = parse_request(request)?.ok_or(Doubt::Malformed)?;
    let mut edited = Vec::with_capacity(head.len + 128);
    edited.extend_from_slice(request_line(request));
    for (name, value) in head.fields.iter() {
        let is_replaced = REPLACED_FIELDS
            .iter()
            .any(|replaced| replaced.eq_ignore_ascii_case(name));
        if !is_replaced {
            push_field(&mut edited, name, value);
        }
    }
    let mut range = alloc::string::String::new();
    let _ = write!(range, "{rest}");
    push_field(&mut edited, "Range", range.as_bytes());
    if let Some(etag) = version.and_then(ObjectVersion::strong_etag) {
        push_field(&mut edited, "If-Match", etag.as_bytes());
    } else if let Some(modified) = version.and_then(|version| version.last_modified.as_ref()) {
        push_field(&mut edited, "If-Unmodified-Since", modified.as_bytes());
    }
    if is_marked {
        push_field(&mut edited, REVIVED_FIELD, b"1");
    }
    edited.extend_from_slice(b"\r\n");
    Ok(edited)
}

/// The request with the inputs of its response, in the place of a field of the client.
///
/// # Errors
/// The head is in doubt, or not complete ([`Doubt::Malformed`]).
pub fn request_with_inputs(request: &[u8], inputs: &[u8]) -> Result<Vec<u8>, Doubt> {
    let head = parse_request(request)?.ok_or(Doubt::Malformed)?;
    let mut edited = Vec::with_capacity(head.len + inputs.len() + 16);
    edited.extend_from_slice(request_line(request));
    for (name, value) in head.fields.iter() {
        if !name.eq_ignore_ascii_case(INPUTS_FIELD) {
            push_field(&mut edited, name, value);
        }
    }
    push_field(&mut edited, INPUTS_FIELD, inputs);
    edited.extend_from_slice(b"\r\n");
    Ok(edited)
}

/// Where the values of [`INPUTS_FIELD`] are in a head, with the white space around. The head is whole and clear.
#[must_use]
pub fn inputs_in(head: &[u8]) -> Vec<Range<usize>> {
    let mut places = Vec::new();
    let mut start = 0;
    for line in head.split_inclusive(|byte| *byte == b'\n') {
        let name_len = line.iter().position(|byte| *byte == b':');
        let name = name_len.and_then(|len| line.get(..len));
        if let (Some(len), Some(name)) = (name_len, name)
            && name.eq_ignore_ascii_case(INPUTS_FIELD.as_bytes())
        {
            let is_end = |byte: &&u8| matches!(byte, b'\r' | b'\n');
            let end_len = line.iter().rev().take_while(is_end).count();
            places.push(start + len + 1..start + line.len() - end_len);
        }
        start += line.len();
    }
    places
}

/// The request line with its end, without the empty lines that a client may send before (RFC 9112, 2.2).
fn request_line(request: &[u8]) -> &[u8] {
    let is_text = |byte: &u8| !matches!(byte, b'\r' | b'\n');
    let begin = request.iter().position(is_text).unwrap_or_default();
    let line = &request[begin..];
    let end = line.iter().position(|byte| *byte == b'\n');
    &line[..end.map_or(0, |end| end + 1)]
}

fn push_field(edited: &mut Vec<u8>, name: &str, value: &[u8]) {
    edited.extend_from_slice(name.as_bytes());
    edited.extend_from_slice(b": ");
    edited.extend_from_slice(value);
    edited.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rest_is_asked_for_with_the_clients_own_fields() {
        let request = b"GET /a HTTP/1.1\r\nHost: h\r\nrange: bytes=10-\r\nIf-None-Match: \"x\"\r\nCookie: c=1\r\n\r\n";
        let rest = RangeRequest::Closed {
            first: 100,
            last: 999,
        };
        let mut version = ObjectVersion {
            complete_len: Some(1000),
            etag: Some("\"v1\"".into()),
            last_modified: Some("Mon".into()),
            content_encoding: None,
        };
        let edited = request_for_rest(request, rest, Some(&version), false).unwrap();
        assert_eq!(
            std::str::from_utf8(&edited),
            Ok(
                "GET /a HTTP/1.1\r\nHost: h\r\nCookie: c=1\r\nRange: bytes=100-999\r\nIf-Match: \"v1\"\r\n\r\n"
            )
        );
        version.etag = Some("W/\"v1\"".into());
        let edited = request_for_rest(request, rest, Some(&version), true).unwrap();
        let text = std::str::from_utf8(&edited).unwrap();
        assert!(
            text.ends_with("If-Unmodified-Since: Mon\r\nOutlive-Revived: 1\r\n\r\n"),
            "{text}"
        );
        assert!(parse_request(&edited).is_ok_and(|head| head.is_some()));
    }

    #[test]
    fn inputs_take_the_place_of_a_clients_field() {
        let request = b"GET /a HTTP/1.1\r\nx-trods: mine\r\nHost: h\r\n\r\n";
        let edited = request_with_inputs(request, b"seed=7").unwrap();
        let expected = "GET /a HTTP/1.1\r\nHost: h\r\nX-TRODS: seed=7\r\n\r\n";
        assert_eq!(std::str::from_utf8(&edited), Ok(expected));
        let places = inputs_in(&edited);
        assert_eq!(places.len(), 1);
        assert_eq!(&edited[places[0].clone()], b" seed=7");
        let none = b"HTTP/1.1 200 OK\r\nX-TRODS2: a\r\nY: X-TRODS: b\r\n\r\n";
        assert!(inputs_in(none).is_empty());
        let empty = b"HTTP/1.1 200 OK\r\nX-TRODS:\r\nX-Trods:  \r\n\r\n";
        let lens: Vec<usize> = inputs_in(empty).iter().map(Range::len).collect();
        assert_eq!(lens, [0, 2]);
    }

    #[test]
    fn incomplete_request_is_refused() {
        let rest = RangeRequest::From(0);
        let version = ObjectVersion {
            complete_len: None,
            etag: None,
            last_modified: None,
            content_encoding: None,
        };
        let edited = request_for_rest(b"GET / HTTP/1.1\r\n", rest, Some(&version), false);
        assert_eq!(edited, Err(Doubt::Malformed));
    }
}
