//! Properties of every byte string. The property tests of this crate and the fuzz target run the same functions; each
//! function panics if the property does not hold.

use alloc::string::ToString as _;

use crate::chunks::Chunks;
use crate::edit::{REVIVED_FIELD, request_for_rest};
use crate::head::{Doubt, HEAD_LEN_MAX, Method, parse_request, parse_response};
use crate::range::{ByteRange, ContentRange, RangeRequest};
use crate::version::{ObjectVersion, VersionCheck, VersionDifference};

/// The end of a head does not depend on the bytes behind the head, and no shorter head is complete. The request for a
/// rest is a request for the same target, with that range alone.
///
/// # Panics
///
/// If the property does not hold.
pub fn head(bytes: &[u8]) {
    if let Ok(Some(head)) = parse_request(bytes) {
        assert!((1..=HEAD_LEN_MAX).contains(&head.len));
        assert_eq!(parse_request(&bytes[..head.len]), Ok(Some(head.clone())));
        assert_eq!(parse_request(&bytes[..head.len - 1]), Ok(None));
        edited(bytes, head.target);
    }
    for method in [Method::Get, Method::Head] {
        if let Ok(Some(head)) = parse_response(bytes, method) {
            assert_eq!(
                parse_response(&bytes[..head.len], method),
                Ok(Some(head.clone()))
            );
            assert_eq!(parse_response(&bytes[..head.len - 1], method), Ok(None));
            if let Ok(version) = ObjectVersion::of(&head) {
                let same = version.compare(&version, VersionCheck::Etag);
                let is_unknown = matches!(
                    same,
                    Err(VersionDifference::Length { .. } | VersionDifference::NoValidator)
                );
                assert!(same.is_ok() || is_unknown, "{same:?}");
            }
        }
    }
}

/// The end of a body in chunks does not depend on how the bytes come, and lies within the bytes.
///
/// # Panics
///
/// If the property does not hold.
pub fn chunks(bytes: &[u8]) {
    let (mut whole, mut single) = (Chunks::new(), Chunks::new());
    let taken = whole.take(bytes);
    let mut one_by_one = bytes.iter().map(|byte| single.take(&[*byte]));
    match taken {
        Ok(len) => {
            assert!(len == bytes.len() || whole.is_done());
            assert!(one_by_one.by_ref().take(len).all(|taken| taken == Ok(1)));
            assert_eq!(single, whole);
        }
        // Byte by byte no call needs many steps.
        Err(Doubt::TooLong) => {}
        Err(_) => assert!(one_by_one.any(|taken| taken.is_err())),
    }
}

/// Ranges stay within the object, and are read as written.
///
/// # Panics
///
/// If the property does not hold.
pub fn range(text: &str) {
    if let Ok(ContentRange::Part { range, complete }) = ContentRange::parse(text) {
        assert!(complete.is_none_or(|complete| range.last() < complete));
    }
    let Ok(request) = RangeRequest::parse(text) else {
        return;
    };
    for complete in [0, 1, 1000, u64::MAX] {
        let Some(range) = request.resolve(complete) else {
            continue;
        };
        assert!(range.first() <= range.last() && range.last() < complete);
        let read = RangeRequest::parse(&RangeRequest::from(range).to_string())
            .map(|read| read.resolve(complete));
        assert_eq!(read, Ok(Some(range)));
    }
}

fn edited(request: &[u8], target: &str) {
    let rest = ByteRange::new(7, 9).expect("in order");
    let version = ObjectVersion {
        complete_len: Some(10),
        etag: Some("\"v\"".into()),
        last_modified: None,
        content_encoding: None,
    };
    let Ok(edited) = request_for_rest(request, rest.into(), Some(&version), true) else {
        return;
    };
    // The new fields may make the head too long.
    if let Ok(head) = parse_request(&edited) {
        let head = head.expect("a complete head");
        assert_eq!((head.len, head.target), (edited.len(), target));
        assert_eq!(head.fields.value("range"), Ok(Some("bytes=7-9")));
        assert_eq!(head.fields.value("if-match"), Ok(Some("\"v\"")));
        assert_eq!(head.fields.values(REVIVED_FIELD).count(), 1);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    /// A head of common parts, and a few bytes of any value in the place of others.
    fn damaged_head() -> impl Strategy<Value = Vec<u8>> {
        let line = prop::sample::select(std::vec![
            "GET / HTTP/1.1",
            "HEAD /a HTTP/1.0",
            "POST /b HTTP/1.1",
            "HTTP/1.1 200 OK",
            "HTTP/1.1 206 x",
            "HTTP/1.1 304 x",
            "HTTP/1.0 200 x",
            "Host: a",
            "Content-Length: 12",
            "Content-Length: 0",
            "Transfer-Encoding: chunked",
            "Content-Range: bytes 1-5/9",
            "ETag: \"a\"",
            "ETag: W/\"a\"",
            "Last-Modified: Mon",
            "Range: bytes=1-",
            "If-Match: \"b\"",
            "Outlive-Revived: 1",
            "",
            "x",
        ]);
        let end = prop::sample::select(std::vec!["\r\n", "\r\n", "\r\n", "\r\n", "\n"]);
        let lines = prop::collection::vec((line, end), 1..8);
        let damages = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..2);
        (lines, damages).prop_map(|(lines, damages)| {
            let mut bytes: Vec<u8> = lines
                .iter()
                .flat_map(|(line, end)| [line.as_bytes(), end.as_bytes()].concat())
                .collect();
            bytes.extend_from_slice(b"\r\n");
            for (at, value) in damages {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            bytes
        })
    }

    proptest! {
        #[test]
        fn damaged_heads_have_the_properties(bytes in damaged_head()) {
            head(&bytes);
        }

        #[test]
        fn texts_have_the_properties_of_ranges(text in "(bytes[= ])?[0-9*]{0,3}[-/,][0-9*]{0,20}(/[0-9*]{0,4})?") {
            range(&text);
        }
    }

    #[test]
    fn seeds_have_the_properties() {
        let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/seeds/http_head");
        let mut count = 0;
        for seed in std::fs::read_dir(seeds).expect("seeds") {
            let bytes = std::fs::read(seed.expect("a file").path()).expect("a seed");
            head(&bytes);
            count += 1;
        }
        assert!(count > 0);
    }
}
