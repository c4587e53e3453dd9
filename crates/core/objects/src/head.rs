//! Summaries of heads of requests and responses: the facts of a head on which the protection of a connection depends.
//!
//! The scanner in the kernel finds the same summaries (`bpf/objects/head.h` of the crate `dataplane`).

use http1::edit::INPUTS_FIELD;
use http1::range::{ByteRange, ContentRange};
use http1::version::{ObjectVersion, VersionCheck};
use http1::{BodyLength, Doubt, Fields, Method, Protocol, RequestHead, ResponseHead};

/// Summary of a request head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestSummary {
    /// Length of the head, bytes.
    pub len: usize,
    /// Method.
    pub method: Method,
    /// Version of the protocol.
    pub protocol: Protocol,
    /// How the end of the body is found.
    pub body: BodyLength,
    /// `Connection: close`.
    pub has_close: bool,
    /// `Range`.
    pub has_range: bool,
    /// Several ranges.
    pub has_ranges: bool,
    /// One range: the last bytes of an object.
    pub has_suffix: bool,
    /// `Authorization`, or cookies.
    pub has_credentials: bool,
    /// `Upgrade`.
    pub has_upgrade: bool,
    /// `Expect`.
    pub has_expect: bool,
    /// Inputs of a dynamic response ([`INPUTS_FIELD`]).
    pub has_inputs: bool,
}

impl RequestSummary {
    /// The summary of a head.
    #[must_use]
    pub fn of(head: &RequestHead<'_>) -> Self {
        let fields = &head.fields;
        let mut ranges = fields.values("range");
        let (range, second) = (ranges.next(), ranges.next());
        let has_comma = range.is_some_and(|value| value.contains(&b','));
        let has_ranges = has_comma || second.is_some();
        let is_suffix = |value: &[u8]| value.windows(2).any(|two| two == b"=-");
        Self {
            len: head.len,
            method: head.method,
            protocol: head.protocol,
            body: head.body,
            has_close: has_close(fields),
            has_range: range.is_some(),
            has_ranges,
            has_suffix: !has_ranges && range.is_some_and(is_suffix),
            has_credentials: fields.has("authorization") || fields.has("cookie"),
            has_upgrade: fields.has("upgrade"),
            has_expect: fields.has("expect"),
            has_inputs: fields.has(INPUTS_FIELD),
        }
    }
}

/// Summary of a response head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResponseSummary {
    /// Length of the head, bytes.
    pub len: usize,
    /// Status code.
    pub status: u16,
    /// Version of the protocol.
    pub protocol: Protocol,
    /// How the end of the body is found.
    pub body: BodyLength,
    /// The part of the object that the response has: only of a response 206 with one part.
    pub part: Option<ByteRange>,
    /// A response 206 with several parts.
    pub has_parts: bool,
    /// Length of the object, bytes.
    pub complete_len: Option<u64>,
    /// See [`version_hash`].
    pub version: u32,
    /// Another response can be known to be of the same version ([`ObjectVersion::compare`]).
    pub is_comparable: bool,
    /// `Connection: close`.
    pub has_close: bool,
    /// Inputs of the response ([`INPUTS_FIELD`]).
    pub has_inputs: bool,
}

impl ResponseSummary {
    /// The summary of a head.
    ///
    /// # Errors
    /// A validator occurs twice, or a range is malformed.
    pub fn of(head: &ResponseHead<'_>, check: VersionCheck) -> Result<Self, Doubt> {
        let version = ObjectVersion::of(head)?;
        let mut types = head.fields.values("content-type");
        Ok(Self {
            len: head.len,
            status: head.status,
            protocol: head.protocol,
            body: head.body,
            part: part_of(head)?,
            has_parts: head.status == 206 && types.any(is_multipart),
            complete_len: version.complete_len,
            version: version_hash(&version, check),
            is_comparable: version.compare(&version, check).is_ok(),
            has_close: has_close(&head.fields),
            has_inputs: head.fields.has(INPUTS_FIELD),
        })
    }
}

fn part_of(head: &ResponseHead<'_>) -> Result<Option<ByteRange>, Doubt> {
    if head.status != 206 {
        return Ok(None);
    }
    let value = head.fields.value("content-range")?;
    match value.map(ContentRange::parse) {
        None => Ok(None),
        Some(Ok(ContentRange::Part { range, .. })) => Ok(Some(range)),
        Some(_) => Err(Doubt::Malformed),
    }
}

fn is_multipart(content_type: &[u8]) -> bool {
    let multipart = b"multipart/byteranges";
    let start = content_type.get(..multipart.len());
    start.is_some_and(|start| start.eq_ignore_ascii_case(multipart))
}

/// Whether the connection ends behind the message (RFC 9112, 9.6). White space separates words, too: a list without
/// commas is malformed, and the careful meaning is the end.
fn has_close(fields: &Fields<'_>) -> bool {
    let mut words = fields
        .values("connection")
        .flat_map(|list| list.split(|byte| matches!(byte, b',' | b' ' | b'\t')));
    words.any(|word| word.eq_ignore_ascii_case(b"close"))
}

/// Odd, and half of the bits are 1.
const VERSION_FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
/// The hash before the first word. From zero on, the length zero would leave no trace.
const VERSION_SEED: u64 = 1 << 63;
/// In place of a length that a response does not tell.
const LENGTH_UNKNOWN: u64 = u64::MAX;

/// Labels of the fields: bytes that move to another field change the hash.
#[derive(Debug, Clone, Copy)]
enum Label {
    Encoding = 1,
    Etag = 2,
    Modified = 3,
}

/// Hash of the values that [`ObjectVersion::compare`] compares. Equal versions have equal hashes. The hashes of two
/// different versions are equal with a probability of about 2⁻³². The hash has no key: a server can choose values with
/// equal hashes.
#[must_use]
pub fn version_hash(version: &ObjectVersion, check: VersionCheck) -> u32 {
    if check == VersionCheck::Off {
        return 0;
    }
    let mut hash = VersionHash(VERSION_SEED);
    hash.add_word(version.complete_len.unwrap_or(LENGTH_UNKNOWN));
    hash.add_field(Label::Encoding, version.content_encoding.as_deref());
    let strong_etag = version.strong_etag();
    match check {
        VersionCheck::Etag if strong_etag.is_some() => hash.add_field(Label::Etag, strong_etag),
        VersionCheck::Etag | VersionCheck::Modified => {
            hash.add_field(Label::Modified, version.last_modified.as_deref());
        }
        VersionCheck::Length | VersionCheck::Off => {}
    }
    hash.lower_half()
}

struct VersionHash(u64);

impl VersionHash {
    /// Different words have different results.
    fn add_word(&mut self, word: u64) {
        let product = (self.0 ^ word).wrapping_mul(VERSION_FACTOR);
        self.0 = product ^ product >> 32;
    }

    fn add_field(&mut self, label: Label, value: Option<&str>) {
        let Some(value) = value else { return };
        self.add_word((label as u64) << 32 | value.len() as u64);
        for chunk in value.as_bytes().chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.add_word(u64::from_le_bytes(word));
        }
    }

    fn lower_half(&self) -> u32 {
        let [a, b, c, d, ..] = self.0.to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::string::String;
    use std::vec::Vec;

    use http1::{parse_request, parse_response};
    use proptest::prelude::*;

    use super::*;

    const CHECKS: [VersionCheck; 4] = [
        VersionCheck::Etag,
        VersionCheck::Modified,
        VersionCheck::Length,
        VersionCheck::Off,
    ];

    fn request(fields: &str) -> RequestSummary {
        let text = std::format!("GET / HTTP/1.1\r\n{fields}\r\n");
        RequestSummary::of(&parse_request(text.as_bytes()).unwrap().unwrap())
    }

    fn response(status: u16, fields: &str) -> ResponseSummary {
        let text = std::format!("HTTP/1.1 {status} x\r\n{fields}\r\n");
        let head = parse_response(text.as_bytes(), Method::Get);
        ResponseSummary::of(&head.unwrap().unwrap(), VersionCheck::Etag).unwrap()
    }

    #[test]
    fn request_summary_tells_its_fields() {
        let plain = request("Host: a\r\n");
        assert!(!plain.has_range && !plain.has_credentials && !plain.has_close);
        let one = request("Range: bytes=1-\r\n");
        assert!(one.has_range && !one.has_ranges);
        assert!(request("Range: bytes=1-2,5-6\r\n").has_ranges);
        assert!(request("Range: bytes=1-\r\nrange: bytes=2-\r\n").has_ranges);
        assert!(request("Range: bytes=-5\r\n").has_suffix);
        assert!(!request("Range: bytes=1-\r\n").has_suffix);
        assert!(!request("Range: bytes=-5\r\nRange: bytes=1-\r\n").has_suffix);
        assert!(request("COOKIE: a=b\r\n").has_credentials);
        assert!(request("Authorization: x\r\n").has_credentials);
        assert!(request("Upgrade: h2c\r\n").has_upgrade);
        assert!(request("Expect: 100-continue\r\n").has_expect);
        assert!(request("Connection: TE, Close\r\n").has_close);
        assert!(request("Connection: x close\r\n").has_close);
        assert!(!request("Connection: closed, clo se\r\n").has_close);
    }

    #[test]
    fn response_summary_tells_part_length_and_version() {
        let fields = "ETag: \"a\"\r\nContent-Length: 50\r\n";
        let whole = response(200, fields);
        assert_eq!((whole.part, whole.complete_len), (None, Some(50)));
        assert!(whole.is_comparable && !whole.has_parts);
        let part = std::format!("{fields}Content-Range: bytes 50-99/100\r\n");
        let part = response(206, &part);
        let range = ByteRange::new(50, 99);
        assert_eq!((part.part, part.complete_len), (range, Some(100)));
        let parts = response(206, "Content-Type: Multipart/ByteRanges; boundary=a\r\n");
        assert!(parts.has_parts && !parts.is_comparable);
        assert!(!response(200, "ETag: W/\"a\"\r\nContent-Length: 5\r\n").is_comparable);
        assert!(!response(200, "ETag: \"a\"\r\nTransfer-Encoding: chunked\r\n").is_comparable);
    }

    /// Values of which many are equal, or are equal but for a move of bytes to another field.
    fn versions() -> impl Strategy<Value = ObjectVersion> {
        let text = |texts: &[&str]| {
            let texts: Vec<String> = texts.iter().map(|text| (*text).into()).collect();
            prop::option::of(prop::sample::select(texts))
        };
        let tags = text(&["\"a\"", "\"ab\"", "W/\"a\"", "", "Mon", "gzip"]);
        let times = text(&["Mon", "Monday", "\"a\"", ""]);
        let codings = text(&["gzip", "br", "", "gzipMon", "\"a\""]);
        let lengths = prop::option::of(prop::sample::select(std::vec![
            0_u64,
            1,
            100,
            101,
            1 << 32,
            u64::MAX - 1
        ]));
        (lengths, tags, times, codings).prop_map(|(len, etag, modified, encoding)| ObjectVersion {
            complete_len: len,
            etag,
            last_modified: modified,
            content_encoding: encoding,
        })
    }

    proptest! {
        #[test]
        fn hashes_are_equal_exactly_for_equal_versions(a in versions(), b in versions()) {
            for check in CHECKS {
                let are_equal = version_hash(&a, check) == version_hash(&b, check);
                match a.compare(&b, check) {
                    Ok(()) => prop_assert!(are_equal, "{check:?}"),
                    // Two responses without validators or length may have equal hashes.
                    Err(_) if a.compare(&a, check).is_ok() && b.compare(&b, check).is_ok() => {
                        prop_assert!(!are_equal, "{check:?}");
                    }
                    Err(_) => {}
                }
            }
        }

        #[test]
        fn order_of_fields_and_status_do_not_change_the_version(
            order in Just(["ETag: \"v1\"", "Last-Modified: Mon", "Content-Encoding: gzip", "Server: a"]).prop_shuffle(),
            len in 1_u64..1000,
            first in 0_u64..1000,
            check in prop::sample::select(CHECKS.to_vec()),
        ) {
            let first = first % len;
            let fields = order.join("\r\n");
            let whole = std::format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n{fields}\r\n\r\n");
            let last = len - 1;
            let rest = len - first;
            let part = std::format!(
                "HTTP/1.1 206 x\r\n{fields}\r\nContent-Range: bytes {first}-{last}/{len}\r\nContent-Length: {rest}\r\n\r\n"
            );
            let hash = |text: &str| {
                let head = parse_response(text.as_bytes(), Method::Get).unwrap().unwrap();
                let summary = ResponseSummary::of(&head, check).unwrap();
                (summary.complete_len, summary.version)
            };
            prop_assert_eq!(hash(&whole), hash(&part));
            let longer = whole.replace("ETag: \"v1\"", "ETag: \"v2\"");
            prop_assert_eq!(hash(&whole) == hash(&longer), check != VersionCheck::Etag);
        }
    }

    #[test]
    fn empty_object_has_a_hash_of_its_own() {
        let version = |len, coding: Option<&str>| ObjectVersion {
            complete_len: Some(len),
            etag: None,
            last_modified: None,
            content_encoding: coding.map(Into::into),
        };
        let hash = |version| version_hash(&version, VersionCheck::Length);
        // The label of an empty coding is the word of this length.
        let label = u64::from(u32::MAX) + 1;
        assert_ne!(hash(version(0, Some(""))), hash(version(label, None)));
    }

    #[test]
    fn similar_versions_have_different_hashes() {
        let mut seen = HashMap::new();
        for number in 0..20_000_u64 {
            let version = ObjectVersion {
                complete_len: Some(1000 + number % 10),
                etag: Some(std::format!(
                    "\"{:x}-{:x}\"",
                    0x5f5e_1000 + number / 10,
                    1000
                )),
                last_modified: None,
                content_encoding: None,
            };
            let before = seen.insert(version_hash(&version, VersionCheck::Etag), number);
            assert_eq!(before, None, "{number}");
        }
    }
}
