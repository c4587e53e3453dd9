//! The objects of a pool: bytes, versions, requests and responses.

use http1::{
    BodyLength, ResponseHead,
    range::{ContentRange, RangeRequest},
    version::ObjectVersion,
};

use super::scenario::Fetch;
use crate::{SECOND, index};

/// 2026-09-21 10:00: the beginning of each run.
pub(super) const UNIX_START: u64 = 1_789_984_800;
/// Servers that align ranges begin at a multiple.
const RANGE_ALIGNMENT: u64 = 4096;
/// Data of a chunk, but for the last with data.
const CHUNK_BYTES: u64 = 700;
const CHUNK_END: &[u8] = b"\r\n";
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";
/// Of some objects: nobody reads these to the end.
const MALFORMED_LAST_CHUNK: &[u8] = b"0\r\nA: b\n\r\n";
/// Of objects that never changed.
const OLD_DATE: &str = "Mon, 07 Sep 2026 08:00:00 GMT";

/// An object.
#[derive(Debug, Clone, Copy)]
pub(super) struct Object {
    pub(super) len: u64,
    pub(super) is_chunked: bool,
}

/// What all servers have in common.
#[derive(Debug, Clone)]
pub(super) struct Site {
    pub(super) objects: Vec<Object>,
    /// Servers tell when an object was modified.
    pub(super) has_dates: bool,
    /// Heads of two lives of a server have different lengths.
    pub(super) has_other_heads: bool,
}

/// The versions at a member: number, and time of the change since the beginning of the run, ns.
pub(super) type Versions = Vec<(u32, u64)>;

/// A part of a version of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) object: usize,
    pub(super) version: u32,
    pub(super) first: u64,
    len: u64,
    pub(super) is_chunked: bool,
}

/// The life of a server.
#[derive(Debug, Clone, Copy)]
pub(super) struct Life {
    pub(super) number: u32,
    /// A range begins at a round number.
    pub(super) aligns: bool,
}

fn body_byte(object: usize, version: u32, at: u64) -> u8 {
    let mixed = (at + 1 + u64::from(version) * 0x1_0001).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    mixed.to_le_bytes()[0] ^ u8::try_from(object % 256).unwrap_or(0)
}

pub(super) fn request(fetch: &Fetch) -> Vec<u8> {
    let range = fetch
        .first
        .map_or_else(String::new, |first| format!("Range: bytes={first}-\r\n"));
    let object = fetch.object;
    format!("GET /{object} HTTP/1.1\r\nHost: pool\r\n{range}\r\n").into_bytes()
}

impl Part {
    /// Bytes of the body.
    pub(super) fn body_len(&self) -> u64 {
        if !self.is_chunked {
            return self.len;
        }
        let rest = self.len % CHUNK_BYTES;
        let rest = if rest > 0 { framed_len(rest) } else { 0 };
        self.len / CHUNK_BYTES * framed_len(CHUNK_BYTES) + rest + self.last_chunk().len() as u64
    }

    /// The byte of the body at a position.
    pub(super) fn byte(&self, at: usize) -> Option<u8> {
        let at = u64::try_from(at).ok()?;
        if !self.is_chunked {
            return self.data(at);
        }
        let number = (at / framed_len(CHUNK_BYTES)).min(self.len / CHUNK_BYTES);
        let (at, before) = (at - number * framed_len(CHUNK_BYTES), number * CHUNK_BYTES);
        let len = (self.len - before).min(CHUNK_BYTES);
        let head = chunk_head(len);
        let of = |text: &[u8], at: u64| text.get(usize::try_from(at).ok()?).copied();
        let head_len = head.len() as u64;
        match at.checked_sub(head_len) {
            _ if len == 0 => of(self.last_chunk(), at),
            None => of(head.as_bytes(), at),
            Some(data) if data < len => self.data(before + data),
            Some(data) if data < len + CHUNK_END.len() as u64 => of(CHUNK_END, data - len),
            Some(_) => of(self.last_chunk(), at - framed_len(len)),
        }
    }

    /// Whether the body has an end that nobody reads.
    pub(super) const fn is_malformed(&self) -> bool {
        self.is_chunked && self.object % 4 == 3
    }

    const fn last_chunk(&self) -> &'static [u8] {
        if self.is_malformed() {
            MALFORMED_LAST_CHUNK
        } else {
            LAST_CHUNK
        }
    }

    fn data(&self, at: u64) -> Option<u8> {
        (at < self.len).then(|| body_byte(self.object, self.version, self.first + at))
    }
}

fn chunk_head(len: u64) -> String {
    format!("{len:x}\r\n")
}

/// Of a chunk with so many bytes of data.
fn framed_len(len: u64) -> u64 {
    (chunk_head(len).len() + CHUNK_END.len()) as u64 + len
}

impl Site {
    /// The response to a request for an object, at a server with these versions.
    pub(super) fn response(
        &self,
        object: usize,
        range: Option<RangeRequest>,
        versions: &Versions,
        life: Life,
    ) -> Vec<u8> {
        let Object { len, is_chunked } = self.objects[object];
        let (version, changed) = versions[object];
        let whole = Part {
            object,
            version,
            first: 0,
            len,
            is_chunked,
        };
        let validators = self.validators(object, version, changed, life);
        let Some(range) = range.filter(|_| !is_chunked) else {
            let length = match is_chunked {
                true => "Transfer-Encoding: chunked".to_owned(),
                false => format!("Content-Length: {len}"),
            };
            return whole.after(&format!("HTTP/1.1 200 OK\r\n{length}\r\n{validators}\r\n"));
        };
        let Some(range) = range.resolve(len) else {
            let head = "HTTP/1.1 416 R\r\nContent-Length: 0\r\nContent-Range: bytes */";
            return format!("{head}{len}\r\n\r\n").into_bytes();
        };
        let first = match life.aligns {
            true => range.first() / RANGE_ALIGNMENT * RANGE_ALIGNMENT,
            false => range.first(),
        };
        let (last, part_len) = (range.last(), range.last() + 1 - first);
        let part = Part {
            first,
            len: part_len,
            ..whole
        };
        part.after(&format!(
            "HTTP/1.1 206 P\r\nContent-Range: bytes {first}-{last}/{len}\r\n\
             Content-Length: {part_len}\r\n{validators}\r\n"
        ))
    }

    fn validators(&self, object: usize, version: u32, changed: u64, life: Life) -> String {
        let modified = match self.has_dates {
            true => format!("Last-Modified: {}\r\n", date(changed)),
            false => String::new(),
        };
        let by = match self.has_other_heads {
            true => "x".repeat(index(life.number % 7)),
            false => String::new(),
        };
        let number = life.number;
        format!("ETag: \"{object}-{version}\"\r\n{modified}Date: {number:010}\r\nServer: s{by}\r\n")
    }

    /// The part that a response to a request has, if the head is one of ours.
    pub(super) fn part_of(&self, fetch: &Fetch, head: &ResponseHead<'_>) -> Option<Part> {
        let etag = head.fields.value("etag").ok()??;
        let (object, version) = etag.trim_matches('"').split_once('-')?;
        let object: usize = object.parse().ok().filter(|of| *of == fetch.object)?;
        let Object { len, is_chunked } = self.objects[object];
        let first = match (head.status, fetch.first) {
            (200, None) => 0,
            (200, Some(_)) if head.body == BodyLength::Chunked => 0,
            (206, Some(asked)) => {
                match ContentRange::parse(head.fields.value("content-range").ok()??).ok()? {
                    ContentRange::Part { range, complete } if complete == Some(len) => {
                        let is_whole = range.last() + 1 == len && range.first() <= asked;
                        is_whole.then(|| range.first())?
                    }
                    _ => return None,
                }
            }
            _ => return None,
        };
        Some(Part {
            object,
            version: version.parse().ok()?,
            first,
            len: len - first,
            is_chunked,
        })
    }

    /// A version as heads tell.
    pub(super) fn version(&self, object: usize, (version, changed): (u32, u64)) -> ObjectVersion {
        let Object { len, is_chunked } = self.objects[object];
        ObjectVersion {
            complete_len: (!is_chunked).then_some(len),
            etag: Some(format!("\"{object}-{version}\"")),
            last_modified: self.has_dates.then(|| date(changed)),
            content_encoding: None,
        }
    }
}

impl Part {
    fn after(&self, head: &str) -> Vec<u8> {
        let len = usize::try_from(self.body_len()).expect("small");
        let body = (0..len).map_while(|at| self.byte(at));
        head.bytes().chain(body).collect()
    }
}

/// Time of a change. A change at the beginning was long ago.
fn date(changed: u64) -> String {
    if changed == 0 {
        return OLD_DATE.to_owned();
    }
    let seconds = changed / SECOND;
    let (hours, minutes, seconds) = (10 + seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("Mon, 21 Sep 2026 {hours:02}:{minutes:02}:{seconds:02} GMT")
}
