//! Request heads and response heads.

use httparse::{EMPTY_HEADER, Header, Status};

use crate::body::{self, BodyLength};
use crate::fields::Fields;

/// Longest head, bytes.
pub const HEAD_LEN_MAX: usize = 8192;
/// Most fields of a head.
const FIELD_COUNT_MAX: usize = 100;

/// Why a head is refused. The connection is then carried without protection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Doubt {
    /// No end within [`HEAD_LEN_MAX`].
    #[error("the head is longer than {HEAD_LEN_MAX} bytes")]
    TooLong,
    /// More fields than the parser holds.
    #[error("the head has more than {FIELD_COUNT_MAX} fields")]
    TooManyFields,
    /// The bytes are no head of HTTP/1.
    #[error("the bytes are no head of HTTP/1")]
    Malformed,
    /// A line ends without a carriage return. Servers differ in the meaning (RFC 9112, 2.2).
    #[error("a line ends without a carriage return")]
    BareLineFeed,
    /// A message with two lengths, or with a length that is no number (RFC 9112, 6.3).
    #[error("the length of the body is ambiguous")]
    AmbiguousLength,
    /// A field that must occur once occurs twice.
    #[error("a field occurs twice")]
    RepeatedField,
}

/// Methods that the mode tells apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// `GET`.
    Get,
    /// `HEAD`.
    Head,
    /// Any other method.
    Other,
}

/// Version of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1.
    Http11,
}

/// A request head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestHead<'a> {
    /// Method.
    pub method: Method,
    /// Request target, as sent.
    pub target: &'a str,
    /// Version of the protocol.
    pub protocol: Protocol,
    /// The fields, in order.
    pub fields: Fields<'a>,
    /// How the end of the body is found.
    pub body: BodyLength,
    /// Length of the head with the empty line, bytes.
    pub len: usize,
}

/// A response head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponseHead<'a> {
    /// Status code.
    pub status: u16,
    /// Version of the protocol.
    pub protocol: Protocol,
    /// The fields, in order.
    pub fields: Fields<'a>,
    /// How the end of the body is found.
    pub body: BodyLength,
    /// Length of the head with the empty line, bytes.
    pub len: usize,
}

/// Parses the beginning of `bytes`. `None` if the head has no end yet.
///
/// # Errors
/// The meaning of the head is in doubt.
pub fn parse_request(bytes: &[u8]) -> Result<Option<RequestHead<'_>>, Doubt> {
    let mut headers = [EMPTY_HEADER; FIELD_COUNT_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let status = request.parse(limited(bytes));
    let Some(len) = complete(status, bytes)? else {
        return Ok(None);
    };
    let (Some(method), Some(target)) = (request.method, request.path) else {
        return Err(Doubt::Malformed);
    };
    let fields = Fields::of(request.headers);
    let protocol = protocol(request.version)?;
    Ok(Some(RequestHead {
        method: match method {
            "GET" => Method::Get,
            "HEAD" => Method::Head,
            _ => Method::Other,
        },
        target,
        protocol,
        body: body::of_request(&fields, protocol)?,
        fields,
        len,
    }))
}

/// Parses the beginning of `bytes`: a response to a request with this method. `None` if the head has no end yet. An
/// interim response (1xx) is a response like others.
///
/// # Errors
/// The meaning of the head is in doubt.
pub fn parse_response(bytes: &[u8], method: Method) -> Result<Option<ResponseHead<'_>>, Doubt> {
    let mut headers = [EMPTY_HEADER; FIELD_COUNT_MAX];
    let mut response = httparse::Response::new(&mut headers);
    let status = response.parse(limited(bytes));
    let Some(len) = complete(status, bytes)? else {
        return Ok(None);
    };
    let status = response.code.ok_or(Doubt::Malformed)?;
    let fields = Fields::of(response.headers);
    let protocol = protocol(response.version)?;
    Ok(Some(ResponseHead {
        status,
        protocol,
        body: body::of_response(&fields, protocol, method, status)?,
        fields,
        len,
    }))
}

fn limited(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len().min(HEAD_LEN_MAX)]
}

/// The length of a complete head.
fn complete(
    status: Result<Status<usize>, httparse::Error>,
    bytes: &[u8],
) -> Result<Option<usize>, Doubt> {
    match status {
        Ok(Status::Complete(len)) if has_bare_lf(&bytes[..len]) => Err(Doubt::BareLineFeed),
        Ok(Status::Complete(len)) => Ok(Some(len)),
        Ok(Status::Partial) if bytes.len() >= HEAD_LEN_MAX => Err(Doubt::TooLong),
        Ok(Status::Partial) => Ok(None),
        Err(httparse::Error::TooManyHeaders) => Err(Doubt::TooManyFields),
        Err(_) => Err(Doubt::Malformed),
    }
}

/// The parser takes a line feed for the end of a line.
fn has_bare_lf(head: &[u8]) -> bool {
    let mut before = 0;
    head.iter().any(|&byte| {
        let is_bare = byte == b'\n' && before != b'\r';
        before = byte;
        is_bare
    })
}

fn protocol(minor: Option<u8>) -> Result<Protocol, Doubt> {
    match minor {
        Some(0) => Ok(Protocol::Http10),
        Some(1) => Ok(Protocol::Http11),
        _ => Err(Doubt::Malformed),
    }
}

impl<'a> Fields<'a> {
    fn of(headers: &[Header<'a>]) -> Self {
        headers
            .iter()
            .map(|header| (header.name, header.value))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: &[u8] = b"GET /large HTTP/1.1\r\nHost: a\r\nRange: bytes=5-\r\n\r\nrest";

    #[test]
    fn head_is_partial_until_the_empty_line() {
        let len = REQUEST.len() - b"rest".len();
        for end in 0..len {
            assert_eq!(parse_request(&REQUEST[..end]), Ok(None), "{end}");
        }
        let head = parse_request(REQUEST).unwrap().unwrap();
        assert_eq!(
            (head.len, head.method, head.target),
            (len, Method::Get, "/large")
        );
        assert_eq!(head.fields.value("range"), Ok(Some("bytes=5-")));
        assert_eq!(head.body, BodyLength::Bytes(0));
    }

    #[test]
    fn head_in_doubt_is_refused() {
        let request = |fields: &str| {
            let text = std::format!("GET / HTTP/1.1\r\n{fields}\r\n");
            parse_request(text.as_bytes()).map(|head| head.map(|head| head.body))
        };
        assert_eq!(request("Host: a\n"), Err(Doubt::BareLineFeed));
        assert_eq!(request("no field\r\n"), Err(Doubt::Malformed));
        assert_eq!(
            request("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n"),
            Err(Doubt::AmbiguousLength)
        );
        assert_eq!(
            request("Content-Length: 3\r\nContent-Length: 4\r\n"),
            Err(Doubt::AmbiguousLength)
        );
        assert_eq!(
            request("Content-Length: +3\r\n"),
            Err(Doubt::AmbiguousLength)
        );
        assert_eq!(
            request("Content-Length: 3\r\nContent-Length: 3\r\n"),
            Err(Doubt::AmbiguousLength)
        );
        assert_eq!(
            parse_request(b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"),
            Err(Doubt::AmbiguousLength)
        );
        assert_eq!(request(&"a: b\r\n".repeat(101)), Err(Doubt::TooManyFields));
        assert_eq!(
            request(&std::format!("a: {}\r\n", "b".repeat(8200))),
            Err(Doubt::TooLong)
        );
        assert_eq!(
            parse_request(b"PRI * HTTP/2.0\r\n\r\n"),
            Err(Doubt::Malformed)
        );
        assert_eq!(parse_request(b"\x16\x03\x01\x02"), Err(Doubt::Malformed));
    }

    #[test]
    fn response_without_body_ends_with_the_head() {
        let body = |status: u16, method| {
            let text = std::format!("HTTP/1.1 {status} x\r\nContent-Length: 9\r\n\r\n");
            parse_response(text.as_bytes(), method)
                .unwrap()
                .unwrap()
                .body
        };
        assert_eq!(body(200, Method::Get), BodyLength::Bytes(9));
        assert_eq!(body(200, Method::Head), BodyLength::Bytes(0));
        assert_eq!(body(304, Method::Get), BodyLength::Bytes(0));
        assert_eq!(body(204, Method::Get), BodyLength::Bytes(0));
        assert_eq!(body(100, Method::Get), BodyLength::Bytes(0));
        let body = |fields: &str| {
            let text = std::format!("HTTP/1.1 200 OK\r\n{fields}\r\n");
            parse_response(text.as_bytes(), Method::Get)
                .unwrap()
                .unwrap()
                .body
        };
        assert_eq!(body(""), BodyLength::UntilClose);
        assert_eq!(body("Transfer-Encoding: chunked\r\n"), BodyLength::Chunked);
        assert_eq!(
            body("Transfer-Encoding: gzip, Chunked\r\n"),
            BodyLength::Chunked
        );
        assert_eq!(body("Transfer-Encoding: gzip\r\n"), BodyLength::UntilClose);
    }
}
