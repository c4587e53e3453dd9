//! The verdict on a response that a revived connection gets from another server.
//!
//! The client has a part of a response. The member asks a server for the rest. Only a response whose bytes continue the
//! client's part exactly is spliced; a doubt is a reset, with a reason (TRODS 3.2, and 7 for objects with versions).

use http1::range::{ByteRange, ContentRange};
use http1::version::{ObjectVersion, VersionCheck, VersionDifference};
use http1::{BodyLength, Doubt, ResponseHead};

/// The download that is to go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Download {
    /// Bytes of the object that the client asked for: the whole object, or the range of the client's own request.
    pub range: ByteRange,
    /// Bytes of the range that the client has.
    pub offset: u64,
    /// Version of the object that the client has a part of.
    pub version: ObjectVersion,
}

/// Rules of the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JudgeRules {
    /// Validators that must be equal.
    pub check: VersionCheck,
    /// Most bytes that are taken from a server and thrown away, because the server ignores ranges.
    pub discard_limit: u64,
    /// Every server sends the same chunks of the same response.
    pub takes_chunks: bool,
}

/// What becomes of the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The body continues the client's part, behind `discard` bytes that the client has, or never asked for.
    Splice {
        /// Bytes of the body to throw away.
        discard: u64,
    },
    /// The server cannot answer now.
    Retry,
    /// The client's part cannot be continued.
    Reset(Refusal),
}

/// Why a client's part cannot be continued.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The server has another version of the object.
    #[error("another version of the object: {0}")]
    Version(VersionDifference),
    /// The server refuses the condition, or its object is shorter.
    #[error("another version of the object: the server answers {status}")]
    Condition {
        /// Status code.
        status: u16,
    },
    /// The server has no such object.
    #[error("the object is gone: the server answers {status}")]
    Gone {
        /// Status code.
        status: u16,
    },
    /// The response has another part than the member asked for.
    #[error("the server answers with another part of the object")]
    Part,
    /// The server ignores ranges, and too many bytes come before the client's position.
    #[error("the server ignores ranges, and {bytes} bytes lie before the client's position")]
    DiscardLimit {
        /// Bytes before the position.
        bytes: u64,
    },
    /// The meaning of the response is in doubt.
    #[error("the response is in doubt: {0}")]
    Doubt(#[from] Doubt),
}

/// Judges the head of a response to the request for the rest of `download`.
#[must_use]
pub fn judge(download: &Download, response: &ResponseHead<'_>, rules: JudgeRules) -> Verdict {
    match decide(download, response, rules) {
        Ok(verdict) => verdict,
        Err(refusal) => Verdict::Reset(refusal),
    }
}

fn decide(
    download: &Download,
    response: &ResponseHead<'_>,
    rules: JudgeRules,
) -> Result<Verdict, Refusal> {
    let rest = download.range.rest_from(download.offset);
    match response.status {
        206 => {
            let version = ObjectVersion::of(response)?;
            same_version(download, &version, rules)?;
            match content_range(response)? {
                Some(ContentRange::Part { range, .. }) if Some(range) == rest => {
                    body_is(response, range)?;
                    Ok(Verdict::Splice { discard: 0 })
                }
                _ => Err(Refusal::Part),
            }
        }
        200 => {
            let version = ObjectVersion::of(response)?;
            same_version(download, &version, rules)?;
            whole(download, rest, response, rules)
        }
        404 | 410 => Err(Refusal::Gone {
            status: response.status,
        }),
        500..=599 => Ok(Verdict::Retry),
        status => Err(Refusal::Condition { status }),
    }
}

/// Judges the head of a response in chunks, which begins anew, to a client that has `offset` bytes of the body of the
/// recorded version.
///
/// # Errors
/// The response cannot be known to be the same.
pub fn judge_chunks(
    (recorded, offset): (&ObjectVersion, u64),
    (version, response): (&ObjectVersion, &ResponseHead<'_>),
    rules: JudgeRules,
) -> Result<(), Refusal> {
    let is_same_form = response.status == 200 && response.body == BodyLength::Chunked;
    if !is_same_form || !rules.takes_chunks {
        return Err(Refusal::Part);
    }
    let compared = recorded.compare_validators(version, rules.check);
    compared.map_err(Refusal::Version)?;
    if offset > rules.discard_limit {
        return Err(Refusal::DiscardLimit { bytes: offset });
    }
    Ok(())
}

fn same_version(
    download: &Download,
    version: &ObjectVersion,
    rules: JudgeRules,
) -> Result<(), Refusal> {
    let compared = download.version.compare(version, rules.check);
    compared.map_err(Refusal::Version)
}

/// A server that ignores ranges answers with the whole object.
fn whole(
    download: &Download,
    rest: Option<ByteRange>,
    response: &ResponseHead<'_>,
    rules: JudgeRules,
) -> Result<Verdict, Refusal> {
    let rest = rest.ok_or(Refusal::Part)?;
    // The end of the object must be the end of the client's range: the member cuts no body.
    let ends_with_the_object = match (response.body, download.version.complete_len) {
        (BodyLength::Bytes(len), _) => rest.last().checked_add(1) == Some(len),
        (_, len) => len.is_some() && rest.last().checked_add(1) == len,
    };
    if !ends_with_the_object {
        return Err(Refusal::Part);
    }
    let bytes = rest.first();
    if bytes > rules.discard_limit {
        return Err(Refusal::DiscardLimit { bytes });
    }
    Ok(Verdict::Splice { discard: bytes })
}

fn content_range(response: &ResponseHead<'_>) -> Result<Option<ContentRange>, Refusal> {
    let value = response.fields.value("content-range")?;
    let range = value.map(ContentRange::parse).transpose();
    range.map_err(|_| Refusal::Part)
}

/// The body has as many bytes as the part.
fn body_is(response: &ResponseHead<'_>, range: ByteRange) -> Result<(), Refusal> {
    match response.body {
        BodyLength::Bytes(len) if len.checked_sub(1) == Some(range.last() - range.first()) => {
            Ok(())
        }
        _ => Err(Refusal::Part),
    }
}

#[cfg(test)]
mod tests {
    use std::string::{String, ToString as _};

    use http1::{Method, parse_response};
    use proptest::prelude::*;

    use super::*;

    const RULES: JudgeRules = JudgeRules {
        check: VersionCheck::Etag,
        discard_limit: 500,
        takes_chunks: false,
    };

    fn version(etag: &str, len: u64) -> ObjectVersion {
        ObjectVersion {
            complete_len: Some(len),
            etag: Some(etag.to_string()),
            last_modified: None,
            content_encoding: None,
        }
    }

    /// A download of an object of 1,000 bytes.
    fn download(first: u64, last: u64, offset: u64) -> Download {
        Download {
            range: ByteRange::new(first, last).unwrap(),
            offset,
            version: version("\"v\"", 1000),
        }
    }

    fn verdict(download: &Download, status: u16, fields: &str) -> Verdict {
        let text = std::format!("HTTP/1.1 {status} x\r\n{fields}\r\n");
        let head = parse_response(text.as_bytes(), Method::Get)
            .unwrap()
            .unwrap();
        judge(download, &head, RULES)
    }

    #[test]
    fn exact_rest_of_same_version_is_spliced() {
        let fields = "Content-Length: 700\r\nContent-Range: bytes 300-999/1000\r\nETag: \"v\"\r\n";
        assert_eq!(
            verdict(&download(0, 999, 300), 206, fields),
            Verdict::Splice { discard: 0 }
        );
        let own_range = download(100, 999, 200);
        assert_eq!(
            verdict(&own_range, 206, fields),
            Verdict::Splice { discard: 0 }
        );
    }

    #[test]
    fn other_part_is_reset() {
        for fields in [
            "Content-Length: 699\r\nContent-Range: bytes 301-999/1000\r\nETag: \"v\"\r\n",
            "Content-Length: 699\r\nContent-Range: bytes 300-998/1000\r\nETag: \"v\"\r\n",
            "Content-Length: 699\r\nContent-Range: bytes 300-999/1000\r\nETag: \"v\"\r\n",
        ] {
            let verdict = verdict(&download(0, 999, 300), 206, fields);
            assert_eq!(verdict, Verdict::Reset(Refusal::Part), "{fields}");
        }
    }

    #[test]
    fn other_version_is_reset() {
        let fields = "Content-Length: 700\r\nContent-Range: bytes 300-999/1000\r\nETag: \"w\"\r\n";
        let spliced = verdict(&download(0, 999, 300), 206, fields);
        assert!(
            matches!(spliced, Verdict::Reset(Refusal::Version(_))),
            "{spliced:?}"
        );
        let longer = "Content-Length: 701\r\nContent-Range: bytes 300-1000/1001\r\nETag: \"v\"\r\n";
        let spliced = verdict(&download(0, 999, 300), 206, longer);
        assert!(
            matches!(spliced, Verdict::Reset(Refusal::Version(_))),
            "{spliced:?}"
        );
        let refused = verdict(&download(0, 999, 300), 412, "");
        assert_eq!(refused, Verdict::Reset(Refusal::Condition { status: 412 }));
    }

    #[test]
    fn whole_object_is_spliced_behind_the_discarded_bytes() {
        let whole = "Content-Length: 1000\r\nETag: \"v\"\r\n";
        assert_eq!(
            verdict(&download(0, 999, 300), 200, whole),
            Verdict::Splice { discard: 300 }
        );
        assert_eq!(
            verdict(&download(0, 999, 501), 200, whole),
            Verdict::Reset(Refusal::DiscardLimit { bytes: 501 })
        );
        let cut = download(0, 899, 300);
        assert_eq!(verdict(&cut, 200, whole), Verdict::Reset(Refusal::Part));
    }

    /// 416 tells the length at best, and no version.
    #[test]
    fn unsatisfied_range_is_reset() {
        let refused = Verdict::Reset(Refusal::Condition { status: 416 });
        for fields in [
            "Content-Range: bytes */1000\r\nContent-Length: 0\r\n",
            "Content-Range: bytes */300\r\nContent-Length: 0\r\n",
            "",
        ] {
            assert_eq!(verdict(&download(0, 999, 1000), 416, fields), refused);
            assert_eq!(verdict(&download(0, 999, 300), 416, fields), refused);
        }
    }

    #[test]
    fn failing_server_gets_a_second_request_and_missing_object_is_reset() {
        assert_eq!(verdict(&download(0, 999, 300), 503, ""), Verdict::Retry);
        let gone = Verdict::Reset(Refusal::Gone { status: 404 });
        assert_eq!(verdict(&download(0, 999, 300), 404, ""), gone);
        let moved = Verdict::Reset(Refusal::Condition { status: 302 });
        assert_eq!(verdict(&download(0, 999, 300), 302, ""), moved);
    }

    proptest! {
        /// Whatever a server answers: the first byte that the client gets is the client's next byte, of the same
        /// version, and the last byte is the last byte of the client's range.
        #[test]
        fn spliced_bytes_continue_the_clients_part(
            len in 1_u64..8, first in 0_u64..8, last in 0_u64..8, offset in 0_u64..8,
            status in prop::sample::select(std::vec![200_u16, 206, 416]),
            etag in prop::sample::select(std::vec!["\"v\"", "\"w\""]),
            part_first in 0_u64..8, part_last in 0_u64..8, now in 1_u64..8,
        ) {
            let first = first % len;
            let last = first + last % (len - first);
            let offset = offset % (last - first + 2);
            let download = Download {
                range: ByteRange::new(first, last).unwrap(),
                offset,
                version: version("\"v\"", len),
            };
            let body = part_last.saturating_sub(part_first) + 1;
            let fields: String = match status {
                200 => std::format!("Content-Length: {now}\r\n"),
                206 => std::format!("Content-Length: {body}\r\nContent-Range: bytes {part_first}-{part_last}/{now}\r\n"),
                _ => std::format!("Content-Length: 0\r\nContent-Range: bytes */{now}\r\n"),
            };
            match verdict(&download, status, &std::format!("{fields}ETag: {etag}\r\n")) {
                Verdict::Splice { discard } => {
                    prop_assert_eq!((etag, now), ("\"v\"", len));
                    let (begin, end) = if status == 206 { (part_first, part_last) } else { (0, now - 1) };
                    prop_assert_eq!((begin + discard, end), (first + offset, last));
                }
                Verdict::Retry => prop_assert!(false, "no answer of these is a failure"),
                Verdict::Reset(_) => {}
            }
        }
    }
}
