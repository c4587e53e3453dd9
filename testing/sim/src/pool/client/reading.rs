//! Bytes of the server: order, timestamps, and responses. Here is the witness of a download.

use http1::{BodyLength, Method, parse_response};
use wire::{Flags, SackBlock, Segment, SeqNumber};

use super::{Recent, WINDOW_FIELD, WINDOW_SCALE, offset};
use crate::{
    index,
    pool::{
        scenario::Fetch,
        site::{Part, Site},
        witness::Broken,
    },
};

/// The response under way.
#[derive(Debug, Clone, Copy)]
pub(in crate::pool) struct Response {
    /// Where head, body and response end, and from where on bytes were not compared yet.
    body: usize,
    end: usize,
    compared: usize,
    pub(in crate::pool) part: Part,
}

/// The receiving side.
#[derive(Debug, Default)]
pub(in crate::pool) struct Reader {
    /// Number of the first byte of the first response.
    first: SeqNumber,
    /// All responses, one behind the other, as far as bytes have come: at a place never two different bytes.
    bytes: Vec<Option<u8>>,
    in_order: usize,
    /// Where the server's FIN is.
    fin: Option<usize>,
    /// Where each whole response ends.
    ends: Vec<usize>,
    response: Option<Response>,
    pub(super) recent: Recent,
    /// A member has told that the connection cannot be revived.
    pub(in crate::pool) is_unprotected: bool,
    /// The newest time at which bytes lay behind a hole.
    pub(in crate::pool) had_hole_at: Option<u64>,
}

/// For the decision to wait with an acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Progress {
    in_order: usize,
    known: usize,
    has_fin: bool,
}

impl Progress {
    /// One segment in order has come, and no byte is behind a hole.
    pub(super) const fn is_plain_after(self, before: Self) -> bool {
        let is_in_order = self.in_order > before.in_order && self.in_order == self.known;
        is_in_order && before.in_order == before.known && !self.has_fin
    }
}

impl Reader {
    pub(super) const fn begin(&mut self, first: SeqNumber, tsval: u32) {
        self.first = first;
        self.recent.value = tsval;
    }

    pub(in crate::pool) const fn in_order(&self) -> usize {
        self.in_order
    }

    pub(in crate::pool) const fn whole_count(&self) -> usize {
        self.ends.len()
    }

    pub(in crate::pool) const fn response(&self) -> Option<Response> {
        self.response
    }

    pub(in crate::pool) const fn echo(&self) -> u32 {
        self.recent.value
    }

    pub(in crate::pool) const fn has_hole(&self) -> bool {
        self.in_order < self.bytes.len()
    }

    /// The client has a part of the head of a response, or a part behind a hole.
    pub(in crate::pool) fn has_part_of_head(&self) -> bool {
        let start = self.ends.last().copied().unwrap_or(0);
        self.has_hole() || (self.response.is_none() && self.in_order > start)
    }

    pub(super) fn has_fin(&self) -> bool {
        self.fin == Some(self.in_order)
    }

    pub(super) const fn progress(&self) -> Progress {
        Progress {
            in_order: self.in_order,
            known: self.bytes.len(),
            has_fin: self.fin.is_some(),
        }
    }

    pub(super) fn rcv_nxt(&self) -> SeqNumber {
        self.first + offset(self.in_order) + u32::from(self.has_fin())
    }

    /// The end of the bytes behind holes.
    pub(super) fn highest(&self) -> SeqNumber {
        let end = self.first + offset(self.bytes.len());
        end.max_seq(self.rcv_nxt())
    }

    /// Bytes behind holes (RFC 2018), the highest first.
    pub(super) fn blocks(&self, most: usize) -> Vec<SackBlock> {
        let mut blocks = Vec::new();
        let mut right = self.bytes.len();
        while right > self.in_order && blocks.len() < most {
            let known = self.bytes[..right].iter().rev();
            let len = known.take_while(|byte| byte.is_some()).count();
            if right - len < self.in_order {
                break;
            }
            blocks.push(SackBlock {
                left: self.first + offset(right - len),
                right: self.first + offset(right),
            });
            let hole = self.bytes[..right - len].iter().rev();
            right -= len + hole.take_while(|byte| byte.is_none()).count();
        }
        blocks
    }

    /// PAWS (RFC 7323, 5), the window, and the timestamp that is echoed from now on.
    pub(super) fn accepts(
        &mut self,
        segment: &Segment<'_>,
        order: u64,
        has_timestamps: bool,
    ) -> Result<bool, Broken> {
        let stamps = segment.timestamps();
        if stamps.is_some() != has_timestamps {
            return Err(Broken::new("a segment with other timestamps than agreed"));
        }
        let is_in_window = segment
            .seq()
            .before(self.first + offset(self.in_order) + window());
        // Linux: `tcp_sequence`.
        let is_old = segment.end_seq().before(self.recent.acked_to);
        let recent = &mut self.recent;
        recent.segments += 1;
        let Some(stamps) = stamps else {
            return Ok(is_in_window && !is_old);
        };
        if recent.value.wrapping_sub(stamps.value).cast_signed() > 0 {
            // Of two segments that overtake each other every TCP refuses one. A call has any timestamp.
            return match order < recent.order || is_call(segment) {
                true => Ok(false),
                false => Err(Broken::new("PAWS refuses a segment that none overtook")),
            };
        }
        if is_old {
            return Ok(false);
        }
        if !segment.seq().after(recent.acked_to) {
            (recent.value, recent.order) = (stamps.value, order);
        }
        Ok(is_in_window)
    }

    /// Whether the segment has bytes behind all responses that are whole.
    pub(super) fn is_of_next(&self, segment: &Segment<'_>) -> bool {
        let end = segment.seq() + offset(segment.payload_len());
        let known = self.first + offset(self.ends.last().copied().unwrap_or(0));
        segment.payload_len() > 0 && end.after(known)
    }

    /// Takes payload and FIN.
    pub(super) fn take(
        &mut self,
        segment: &Segment<'_>,
        fetches: &[Fetch],
        site: &Site,
    ) -> Result<(), Broken> {
        if segment.sequence_len() == 0 {
            return Ok(());
        }
        // A call, also with a window (`objects::queue::call`): the client has the byte, and its TCP drops this one.
        if segment.payload() == [0] && !segment.end_seq().after(self.rcv_nxt()) {
            return Ok(());
        }
        let Some(at) = segment.seq().distance_from(self.first).map(index) else {
            return Err(Broken::new("bytes before the first"));
        };
        for (at, byte) in (at..).zip(segment.payload()) {
            if self.bytes.len() <= at {
                self.bytes.resize(at + 1, None);
            }
            let known = *self.bytes[at].get_or_insert(*byte);
            if known != *byte {
                return Err(Broken::new(format!("another byte at {at}")));
            }
        }
        if segment.flags().contains(Flags::FIN) {
            let fin = at + segment.payload_len();
            if self.fin.is_some_and(|known| known != fin) {
                return Err(Broken::new("another end of the connection"));
            }
            self.fin = Some(fin);
        }
        while self.bytes.get(self.in_order).is_some_and(Option::is_some) {
            self.in_order += 1;
        }
        while self.read(fetches, site)? {}
        let is_early = self.has_fin() && self.response.is_some();
        if is_early && !self.is_unprotected {
            return Err(Broken::new("the server closes in the middle of a response"));
        }
        Ok(())
    }

    /// Whether one more response is whole.
    fn read(&mut self, fetches: &[Fetch], site: &Site) -> Result<bool, Broken> {
        let start = self.ends.last().copied().unwrap_or(0);
        let response = match self.response {
            Some(response) => response,
            None if self.in_order == start => return Ok(false),
            None => match self.head(start, fetches, site)? {
                Some(response) => response,
                None => return Ok(false),
            },
        };
        let end = self.in_order.min(response.end);
        for at in response.compared..end {
            let is_same = self.bytes[at] == response.part.byte(at - response.body);
            if !is_same {
                let text = format!("byte {at} is not of {:?}", response.part);
                return Err(Broken::new(text));
            }
        }
        self.response = Some(Response {
            compared: end.max(response.compared),
            ..response
        });
        if end < response.end {
            return Ok(false);
        }
        self.ends.push(response.end);
        self.response = None;
        Ok(true)
    }

    fn head(
        &self,
        start: usize,
        fetches: &[Fetch],
        site: &Site,
    ) -> Result<Option<Response>, Broken> {
        let Some(fetch) = fetches.get(self.ends.len()) else {
            return Err(Broken::new("bytes that belong to no response"));
        };
        let known = self.bytes[start..self.in_order].iter();
        let stream: Vec<u8> = known.take(2048).map_while(|byte| *byte).collect();
        let head = parse_response(&stream, Method::Get).map_err(Broken::unreadable)?;
        let Some(head) = head else {
            return Ok(None);
        };
        let part = site.part_of(fetch, &head).ok_or_else(|| {
            Broken::new(format!(
                "the head of another response than that of {fetch:?}"
            ))
        })?;
        let len = match head.body {
            BodyLength::Bytes(len) if len == part.body_len() => part.body_len(),
            BodyLength::Chunked if part.is_chunked => part.body_len(),
            _ => return Err(Broken::new("a body of another length")),
        };
        let body = start + head.len;
        Ok(Some(Response {
            body,
            end: body + usize::try_from(len).map_err(Broken::unreadable)?,
            compared: body,
            part,
        }))
    }
}

fn window() -> u32 {
    u32::from(WINDOW_FIELD) << WINDOW_SCALE
}

/// A segment that only wants an answer (`objects::call`).
fn is_call(segment: &Segment<'_>) -> bool {
    segment.payload() == [0] && segment.window() == 0
}
