//! The expected replayed outstream: the record, and the places where output may differ.
//!
//! A restarted server repeats the same output, except for output that depends on the time of day:
//! the value of an HTTP `Date` field has the same length and other digits. The operator names such
//! fields; different values are counted. All other recorded bytes must be equal.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use wire::SeqNumber;

use crate::packet::length32;

/// Bytes of one [`Expect`].
pub const EXPECT_CHUNK: usize = 512;

/// The chunk that holds this byte of the outstream.
pub(crate) const fn chunk_of(seq: SeqNumber) -> u32 {
    seq.0 / 512
}

/// Offset of `seq` in the chunk.
pub(crate) const fn offset_in_chunk(seq: SeqNumber) -> usize {
    seq.0 as usize % EXPECT_CHUNK
}

/// 512 bytes of outstream, aligned in client space: `struct expect` of `intf/expect.h`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expect {
    /// The record.
    pub bytes: [u8; EXPECT_CHUNK],
    /// `0xff` where the replay must agree with the record.
    pub strict: [u8; EXPECT_CHUNK],
    /// `0xff` where the replay may differ.
    pub soft: [u8; EXPECT_CHUNK],
}

impl Default for Expect {
    fn default() -> Self {
        let none = [0; EXPECT_CHUNK];
        Self {
            bytes: none,
            strict: none,
            soft: none,
        }
    }
}

/// The fields whose values may differ unless the operator names other fields.
pub const DEFAULT_FIELDS: &[&str] = &["Date"];

/// The recorded ranges as chunks, each with a number (sequence number / [`EXPECT_CHUNK`]).
/// `answers`: the places where responses begin, in order like the ranges.
#[must_use]
pub fn expectations(
    ranges: &[(SeqNumber, Vec<u8>)],
    answers: &[SeqNumber],
    fields: &[impl AsRef<str>],
) -> BTreeMap<u32, Expect> {
    let mut chunks: BTreeMap<u32, Expect> = BTreeMap::new();
    let mut answers = answers.iter().copied().peekable();
    // Places that follow from the lengths of earlier answers.
    let mut next_answers: Vec<SeqNumber> = Vec::new();
    for (start, bytes) in joined(ranges) {
        let end = start + length32(bytes.len());
        while answers.next_if(|at| at.before(start)).is_some() {}
        let known = std::iter::from_fn(|| answers.next_if(|at| at.before(end)));
        let known: Vec<SeqNumber> = known.chain(next_answers.drain(..)).collect();
        let (inside, behind): (Vec<_>, Vec<_>) = known.into_iter().partition(|at| at.before(end));
        let offsets = inside.iter().filter_map(|at| at.distance_from(start));
        let offsets = offsets.filter_map(|offset| usize::try_from(offset).ok());
        let mut soft = vec![false; bytes.len()];
        let (values, next) = tolerated(&bytes, offsets, fields);
        for range in values {
            soft[range].fill(true);
        }
        next_answers = behind;
        let next = next.into_iter().filter_map(|at| u32::try_from(at).ok());
        next_answers.extend(next.map(|at| start + at));
        for (i, (byte, soft)) in bytes.iter().zip(soft).enumerate() {
            let seq = start + length32(i);
            let at = offset_in_chunk(seq);
            let chunk = chunks.entry(chunk_of(seq)).or_default();
            chunk.bytes[at] = *byte;
            let mask = if soft {
                &mut chunk.soft
            } else {
                &mut chunk.strict
            };
            mask[at] = 0xff;
        }
    }
    chunks
}

/// Joins adjacent ranges: a record comes in pieces that end anywhere, and the beginning of a piece
/// need not be the beginning of a response.
fn joined(ranges: &[(SeqNumber, Vec<u8>)]) -> Vec<(SeqNumber, Vec<u8>)> {
    let mut whole: Vec<(SeqNumber, Vec<u8>)> = Vec::new();
    for (start, bytes) in ranges {
        match whole.last_mut() {
            Some((first, before)) if *first + length32(before.len()) == *start => {
                before.extend(bytes)
            }
            _ => whole.push((*start, bytes.clone())),
        }
    }
    whole
}

/// Positions of the values of these fields in the HTTP/1 response heads of `bytes`, and the places behind `bytes` where
/// the next response begins. A head begins with a status line where a response must begin (at the start of a recorded
/// range, at one of `answers`, or after a body of known length) and ends with an empty line (RFC 9112 2.1), or with the
/// record. All other bytes count as a body.
fn tolerated(
    bytes: &[u8],
    answers: impl Iterator<Item = usize>,
    fields: &[impl AsRef<str>],
) -> (Vec<Range<usize>>, BTreeSet<usize>) {
    let mut found = Vec::new();
    let mut read = BTreeSet::new();
    for at in std::iter::once(0).chain(answers) {
        read_responses(bytes, at, fields, (&mut read, &mut found));
    }
    let next = read.split_off(&bytes.len());
    (found, next)
}

/// Reads the responses from `at` on, up to a response that was read before, or begins behind
/// `bytes`. Adds this place to `read`, too.
fn read_responses(
    bytes: &[u8],
    mut at: usize,
    fields: &[impl AsRef<str>],
    (read, found): (&mut BTreeSet<usize>, &mut Vec<Range<usize>>),
) {
    let begins = |at: usize| {
        let rest = bytes.get(at..);
        rest.is_some_and(|rest| rest.starts_with(b"HTTP/1."))
    };
    while begins(at) && read.insert(at) {
        let (body, framing) = read_head(bytes, at, fields, found);
        at = match framing {
            // The answer to a HEAD request announces a body that does not come.
            _ if begins(body) => body,
            Framing::Length(length) => {
                let next = body.saturating_add(length);
                if next > bytes.len() {
                    read.insert(next);
                }
                next
            }
            Framing::Chunked => end_of_chunks(bytes, body),
            Framing::UntilClose => return,
        };
    }
}

/// How the end of a body is known (RFC 9112 6.3).
enum Framing {
    Length(usize),
    Chunked,
    UntilClose,
}

/// Reads the head at `at`; returns where the body begins.
fn read_head(
    bytes: &[u8],
    at: usize,
    fields: &[impl AsRef<str>],
    found: &mut Vec<Range<usize>>,
) -> (usize, Framing) {
    let mut framing = Framing::UntilClose;
    let mut start = line_end(bytes, at) + 2;
    while start < bytes.len() {
        let end = line_end(bytes, start);
        let line = &bytes[start..end];
        if line.is_empty() {
            return (end + 2, framing);
        }
        if let Some(value) = value_of(line, fields) {
            found.push(start + value..end);
        }
        if let Some(value) = value_of(line, &["Content-Length"]) {
            let digits = line[value..].trim_ascii();
            let length = std::str::from_utf8(digits)
                .ok()
                .and_then(|text| text.parse().ok());
            framing = length.map_or(Framing::UntilClose, Framing::Length);
        } else if value_of(line, &["Transfer-Encoding"]).is_some() {
            framing = Framing::Chunked;
        }
        start = end + 2;
    }
    (bytes.len(), Framing::UntilClose)
}

/// Where the chunked body that begins at `at` ends (RFC 9112 7.1); the end of the record if the
/// body does not end there, or is malformed.
fn end_of_chunks(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() {
        let end = line_end(bytes, at);
        let size = bytes[at..end]
            .split(|byte| *byte == b';')
            .next()
            .unwrap_or_default();
        let size = std::str::from_utf8(size.trim_ascii())
            .ok()
            .and_then(|hex| usize::from_str_radix(hex, 16).ok());
        match size {
            None => return bytes.len(),
            Some(0) => return end_of_trailers(bytes, end + 2),
            Some(size) => at = end.saturating_add(size).saturating_add(4),
        }
    }
    bytes.len()
}

fn end_of_trailers(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() {
        let end = line_end(bytes, at);
        let empty = end == at;
        at = end + 2;
        if empty {
            break;
        }
    }
    at
}

/// End of the line that begins at `from`, without CRLF.
fn line_end(bytes: &[u8], from: usize) -> usize {
    bytes[from..]
        .windows(2)
        .position(|two| two == b"\r\n")
        .map_or(bytes.len(), |length| from + length)
}

/// Where the value begins in this header line, if the field is in `fields`.
fn value_of(line: &[u8], fields: &[impl AsRef<str>]) -> Option<usize> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    fields
        .iter()
        .any(|field| line[..colon].eq_ignore_ascii_case(field.as_ref().as_bytes()))
        .then_some(colon + 1)
}

#[cfg(test)]
mod tests;
