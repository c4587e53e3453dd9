//! RESP2, the protocol of Valkey and Redis: commands, and frames of answers.
//!
//! The crate `redis-protocol` reads a frame. [`frame_len`] finds the end of the frame before, with bounds: the crate's
//! reader has no limit of the depth, and copies all parts of an incomplete frame.

use redis_protocol::resp2::{decode::decode, types::OwnedFrame};

use crate::dialect::ProtocolError;

/// Deepest array: the pages of a scan have two levels.
const DEPTH_MAX: usize = 4;
/// Longest line, bytes.
const LINE_LEN_MAX: usize = 64 << 10;
/// Longest value, bytes.
const BULK_LEN_MAX: usize = 1 << 20;
/// Most elements of an array.
const ELEMENTS_MAX: usize = 1 << 20;

/// Appends a command.
pub(crate) fn command(parts: &[&[u8]], out: &mut Vec<u8>) {
    let line = |kind: u8, len: usize, out: &mut Vec<u8>| {
        out.push(kind);
        out.extend_from_slice(len.to_string().as_bytes());
        out.extend_from_slice(b"\r\n");
    };
    line(b'*', parts.len(), out);
    for part in parts {
        line(b'$', part.len(), out);
        out.extend_from_slice(part);
        out.extend_from_slice(b"\r\n");
    }
}

/// The first frame, and its length. `None`: the frame is not complete.
pub(crate) fn frame(input: &[u8]) -> Result<Option<(OwnedFrame, usize)>, ProtocolError> {
    let Some(len) = frame_len(input)? else {
        return Ok(None);
    };
    match decode(&input[..len]) {
        Ok(Some((frame, read))) if read == len => Ok(Some((frame, len))),
        _ => Err(ProtocolError("a malformed frame")),
    }
}

/// Length of the first frame. `None`: the frame is not complete.
fn frame_len(input: &[u8]) -> Result<Option<usize>, ProtocolError> {
    // Elements that are missing of each array around.
    let mut missing = vec![1_usize];
    let mut at = 0;
    while let Some(count) = missing.last_mut() {
        if *count == 0 {
            missing.pop();
            continue;
        }
        *count -= 1;
        let Some((kind, text, end)) = line(input, at)? else {
            return Ok(None);
        };
        at = end;
        match kind {
            b'+' | b'-' | b':' => {}
            b'$' => {
                if let Some(len) = length(text, BULK_LEN_MAX)? {
                    match input.get(at + len..at + len + 2) {
                        None => return Ok(None),
                        Some(b"\r\n") => at += len + 2,
                        Some(_) => return Err(ProtocolError("a value without an end")),
                    }
                }
            }
            b'*' if missing.len() <= DEPTH_MAX => missing.extend(length(text, ELEMENTS_MAX)?),
            _ => return Err(ProtocolError("an unknown kind of frame")),
        }
    }
    Ok(Some(at))
}

type Line<'a> = (u8, &'a [u8], usize);

/// First byte, text and end of the line that begins here.
fn line(input: &[u8], at: usize) -> Result<Option<Line<'_>>, ProtocolError> {
    let rest = &input[at..];
    let rest = &rest[..rest.len().min(LINE_LEN_MAX)];
    match rest.windows(2).position(|pair| pair == b"\r\n") {
        Some(0) => Err(ProtocolError("an empty line")),
        Some(len) => Ok(Some((rest[0], &rest[1..len], at + len + 2))),
        None if rest.len() == LINE_LEN_MAX => Err(ProtocolError("a line without an end")),
        None => Ok(None),
    }
}

/// A length; `None` for -1.
fn length(text: &[u8], most: usize) -> Result<Option<usize>, ProtocolError> {
    if text == b"-1" {
        return Ok(None);
    }
    let number = std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse::<usize>().ok());
    match number {
        Some(len) if len <= most => Ok(Some(len)),
        _ => Err(ProtocolError("a length beyond the limits")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn value() -> impl Strategy<Value = Vec<u8>> {
        let text = "[ -~]{0,9}";
        let leaf = prop_oneof![
            text.prop_map(|text| format!("+{text}\r\n").into_bytes()),
            text.prop_map(|text| format!("-{text}\r\n").into_bytes()),
            any::<i64>().prop_map(|number| format!(":{number}\r\n").into_bytes()),
            Just(b"$-1\r\n".to_vec()),
            Just(b"*-1\r\n".to_vec()),
            prop::collection::vec(any::<u8>(), 0..20).prop_map(|value| {
                [format!("${}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat()
            }),
        ];
        leaf.prop_recursive(3, 20, 5, |inner| {
            prop::collection::vec(inner, 0..5)
                .prop_map(|all| [format!("*{}\r\n", all.len()).into_bytes(), all.concat()].concat())
        })
    }

    proptest! {
        /// The own walk and the crate's reader agree on the end of a frame, wherever the bytes are cut.
        #[test]
        fn end_of_a_frame_is_the_readers(bytes in value(), tail in prop::collection::vec(any::<u8>(), 0..5)) {
            let whole = [bytes.as_slice(), &tail].concat();
            let (read, len) = frame(&whole).unwrap().expect("a whole frame");
            prop_assert_eq!(len, bytes.len());
            prop_assert_eq!(decode(&whole).unwrap(), Some((read, len)));
            for cut in 0..bytes.len() {
                prop_assert_eq!(frame(&bytes[..cut]), Ok(None));
            }
        }

        #[test]
        fn command_is_a_frame_of_its_parts(parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 1..5)) {
            let mut out = Vec::new();
            let slices: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            command(&slices, &mut out);
            let frames = parts.into_iter().map(OwnedFrame::BulkString).collect();
            prop_assert_eq!(frame(&out), Ok(Some((OwnedFrame::Array(frames), out.len()))));
        }
    }

    #[test]
    fn deep_or_long_frames_are_refused() {
        assert!(frame(&b"*1\r\n".repeat(100_000)).is_err());
        assert!(frame(b"*99999999999\r\n").is_err());
        assert!(frame(b"$99999999\r\n").is_err());
        assert!(frame(b"$-2\r\n").is_err());
        assert!(frame(b"$1\r\nabc").is_err());
        assert!(frame(b"HTTP/1.1 400 Bad Request\r\n").is_err());
        assert!(frame(&vec![b'+'; LINE_LEN_MAX]).is_err());
    }
}
