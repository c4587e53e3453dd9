//! A direction of an impaired link, as a pure queue: frames and the time go in, and frames come out when due.
//!
//! The rate is a token bucket, kept as a time instead of a count: `line_free_at` is the time when the line has sent
//! all accepted frames. This time may lag behind the clock by the time of a small burst, the bucket's depth, and may
//! be ahead of the clock by the bound of the queue.

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::{Impairment, line};

/// Depth of the token bucket, in bytes on the line.
const BURST_BYTES: u64 = 2 * 1538;
/// More bytes than this never wait, whatever for: 100 ms at 5 Gbit/s.
const MAX_QUEUED_BYTES: usize = 64 << 20;

/// A direction of a link. Times are since an epoch of the caller's choice.
#[derive(Debug)]
pub(crate) struct Pipe {
    impairment: Impairment,
    cut: bool,
    stream: u64,
    rng: SmallRng,
    queue: BinaryHeap<Reverse<Queued>>,
    queued_bytes: usize,
    accepted: u64,
    line_free_at: Duration,
    last_in_order: Duration,
}

/// A frame under way. Equal deadlines go out in the order of acceptance.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Queued {
    deadline: Duration,
    order: u64,
    frame: Vec<u8>,
}

impl Pipe {
    /// `stream` tells the randomness of the two directions apart.
    pub(crate) fn new(impairment: Impairment, cut: bool, stream: u64) -> Self {
        Self {
            rng: seeded(&impairment, stream),
            impairment,
            cut,
            stream,
            queue: BinaryHeap::new(),
            queued_bytes: 0,
            accepted: 0,
            line_free_at: Duration::ZERO,
            last_in_order: Duration::ZERO,
        }
    }

    /// Changes the faults of later frames; a cut also loses the frames under way. The randomness starts over only with
    /// a different impairment.
    pub(crate) fn set(&mut self, impairment: &Impairment, cut: bool) {
        if self.impairment != *impairment {
            self.impairment = impairment.clone();
            self.rng = seeded(impairment, self.stream);
            self.line_free_at = Duration::ZERO;
        }
        self.cut = cut;
        if cut {
            self.queue.clear();
            self.queued_bytes = 0;
        }
    }

    /// Accepts a frame. `overhead` bytes of the frame are not on the wire. Returns the number of copies to send at
    /// once; delayed copies come from [`Pipe::due`].
    pub(crate) fn offer(&mut self, now: Duration, frame: &[u8], overhead: usize) -> u8 {
        if self.cut {
            return 0;
        }
        // All three are always drawn, so that a setting does not shift the choices of another.
        let lost = self.happens(self.impairment.loss);
        let duplicated = self.happens(self.impairment.duplicate);
        let reordered = self.happens(self.impairment.reorder);
        if lost {
            return 0;
        }
        let mut at_once = 0;
        for copy in 0..1 + u8::from(duplicated) {
            let Some(departure) = self.depart(now, frame.len().saturating_sub(overhead)) else {
                continue;
            };
            let deadline = self.arrival(departure, reordered && copy == 0);
            if deadline <= now && self.queue.is_empty() {
                at_once += 1;
            } else {
                self.push(deadline, frame);
            }
        }
        at_once
    }

    /// The next frame whose time has come.
    pub(crate) fn due(&mut self, now: Duration) -> Option<Vec<u8>> {
        if self.next_deadline()? > now {
            return None;
        }
        let Reverse(queued) = self.queue.pop()?;
        self.queued_bytes -= queued.frame.len();
        Some(queued.frame)
    }

    /// When the next frame is due.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.queue.peek().map(|Reverse(queued)| queued.deadline)
    }

    fn happens(&mut self, percent: f64) -> bool {
        self.rng.random::<f64>() * 100.0 < percent
    }

    /// The time when a frame of this length has left the line; `None` when the queue is full.
    fn depart(&mut self, now: Duration, length: usize) -> Option<Duration> {
        let Some(rate) = self.impairment.rate else {
            return Some(now);
        };
        let start = self
            .line_free_at
            .max(now.saturating_sub(time_on_line(BURST_BYTES, rate)));
        let room = time_on_line(line::room(rate), rate);
        if start > now.saturating_add(room) {
            return None;
        }
        let length = u64::try_from(length).unwrap_or(u64::MAX);
        let busy = time_on_line(line::busy_bytes(length), rate);
        self.line_free_at = start.saturating_add(busy);
        Some(self.line_free_at.max(now))
    }

    /// The time of arrival of a frame that left the line at `departure`, in order unless `reordered`.
    fn arrival(&mut self, departure: Duration, reordered: bool) -> Duration {
        let on_time = departure.saturating_add(self.impairment.delay);
        if reordered {
            return on_time.saturating_add(self.impairment.reorder_by);
        }
        self.last_in_order = self.last_in_order.max(on_time);
        self.last_in_order
    }

    fn push(&mut self, deadline: Duration, frame: &[u8]) {
        if self.queued_bytes + frame.len() > MAX_QUEUED_BYTES {
            return;
        }
        self.queued_bytes += frame.len();
        self.accepted += 1;
        self.queue.push(Reverse(Queued {
            deadline,
            order: self.accepted,
            frame: frame.to_vec(),
        }));
    }
}

/// The time of so many bytes at so many bits per second (not 0).
fn time_on_line(bytes: u64, rate: u64) -> Duration {
    let nanoseconds = u128::from(bytes) * 8 * 1_000_000_000 / u128::from(rate.max(1));
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
}

fn seeded(impairment: &Impairment, stream: u64) -> SmallRng {
    SmallRng::seed_from_u64(impairment.seed ^ stream.rotate_left(32))
}
