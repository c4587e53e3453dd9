//! Whether a replayed server says the same again where nothing of it is recorded (`digest.h`).
//!
//! What the client is sent is digested as it leaves, each byte once and in order, however it is cut into
//! segments and however often it is sent again. In a replay the same is made of what the new server says;
//! recorded bytes take the place of its own, which were compared and may differ in a Date. The two are
//! compared where the client is known to have acknowledged what was sent, before anything leaves that it
//! has not, and at the end of what was sent, before anything new leaves. Segments of the replay between
//! the two wait: they are lost on purpose, and come again. A server that can send no more before those are
//! acknowledged would wait for ever: when it has repeated them often enough they go, and the end is
//! compared when it comes.

use std::{collections::BTreeMap, fmt};

use wire::{Flags, FlowId, SeqNumber};

use crate::{
    egress::LARGEST_WINDOW,
    flow::{Flow, Mode},
    packet::{Segment, length32},
    tolerance::{EXPECT_CHUNK, Expect, chunk_of, offset_in_chunk},
    verify::Divergence,
};

/// Bytes that are folded at once.
const CHUNK: usize = EXPECT_CHUNK;
/// Where only samples are taken: so many bytes of each so many.
const SAMPLE: u32 = 64;
const UNIT: u32 = 32_768;
/// Of the polynomial of which chunks are the coefficients.
const PRIME: u64 = (1 << 61) - 1;
/// So often the server repeats what waits, after a timer, before it goes.
const HELD_MOST: u8 = 2;
/// No longer one is said again: what lies further apart than half of the sequence space is in no order (RFC 9293 3.4).
const LONGEST_TURN: u32 = (1 << 31) - (1 << 26);

/// Unknown to those whose bytes are digested.
#[derive(Clone, PartialEq, Eq)]
pub struct DigestKey {
    /// Of the 32-bit words of a chunk.
    pub factors: [u64; CHUNK / 4],
    /// Where the polynomial of the chunks is evaluated: less than 2^61 - 1.
    pub point: u64,
    /// How the places of samples are mixed.
    pub places: [u64; 2],
}

impl fmt::Debug for DigestKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DigestKey")
    }
}

impl DigestKey {
    /// A key of random numbers.
    pub fn of(mut random: impl FnMut() -> u64) -> Self {
        Self {
            factors: std::array::from_fn(|_| random()),
            point: random() % PRIME,
            places: std::array::from_fn(|_| random()),
        }
    }

    /// The sum of a piece of a chunk or of a sample, which begins at `at` there.
    fn sum(&self, at: usize, piece: &[u8]) -> u64 {
        let mut chunk = [0; CHUNK];
        chunk
            .iter_mut()
            .skip(at)
            .zip(piece)
            .for_each(|(to, from)| *to = *from);
        let (words, _) = chunk.as_chunks::<4>();
        let words = words
            .iter()
            .map(|word| u64::from(u32::from_le_bytes(*word)));
        let products = words.zip(&self.factors);
        products.fold(0, |sum, (word, factor)| {
            sum.wrapping_add(word.wrapping_mul(*factor))
        })
    }

    fn fold(&self, before: u64, sum: u64) -> u64 {
        let next = u128::from(before) * u128::from(self.point) + u128::from(sum);
        u64::try_from(next % u128::from(PRIME)).unwrap_or(0)
    }

    /// Where in its unit the sample is.
    fn sample(&self, seq: SeqNumber) -> u32 {
        let [factor, offset] = self.places;
        let mixed = u64::from(seq.0 / UNIT)
            .wrapping_mul(factor)
            .wrapping_add(offset);
        let places = u64::from(UNIT / SAMPLE);
        u32::try_from((mixed >> 32) % places).unwrap_or(0) * SAMPLE
    }
}

/// How outstreams are digested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Digests {
    /// With which key.
    pub key: DigestKey,
    /// Bytes in a microsecond that each processor may digest whole; 0: none, `u32::MAX`: all. (The model
    /// knows these two only.)
    pub rate: u32,
}

/// Of the outstream from `base` up to before `next`, client space. Equal ones with the same ends are of equal
/// bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Digest {
    /// Of whole chunks.
    pub folded: u64,
    /// Of the chunk that `next` is in.
    pub sum: u64,
    /// The first byte.
    pub base: SeqNumber,
    /// The one after the last.
    pub next: SeqNumber,
}

impl Digest {
    const fn beginning(base: SeqNumber) -> Self {
        Self {
            folded: 0,
            sum: 0,
            base,
            next: base,
        }
    }
}

/// Of what a replaying server says with what earlier servers have said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Comparison {
    /// There is nothing to compare with.
    #[default]
    None,
    /// `now` has to become what `acked` and `sent` are.
    Due,
    /// `now` has become `sent`.
    Done,
}

/// What the server says, and has to say again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DigestHalf {
    /// Of what it has said; in a replay it begins anew.
    pub now: Digest,
    /// Of what earlier servers have said.
    pub sent: Digest,
    /// As far as the client is known to have acknowledged that.
    pub acked: Digest,
    /// What becomes of `acked` when the client has acknowledged more.
    pub newer: Digest,
    /// Where this turn begins.
    pub turn: Digest,
    /// What lies before it is digested whole.
    pub sampled_from: Option<SeqNumber>,
    /// This flow has digests.
    pub taken: bool,
    /// How far the comparison of `now` with `acked` and `sent` is.
    pub comparison: Comparison,
    /// How often the server has repeated what waits for that.
    pub held: u8,
}

impl DigestHalf {
    /// Is the server saying again what clients were sent, and is that to be compared?
    #[must_use]
    pub fn says_again(&self) -> bool {
        self.comparison == Comparison::Due
    }

    fn is_sampled(&self, seq: SeqNumber) -> bool {
        self.sampled_from.is_some_and(|from| !seq.before(from))
    }

    /// What is sampled already is so from the turn's first byte on.
    fn begin_turn(&mut self) {
        self.turn = self.now;
        if self.is_sampled(self.now.next) {
            self.sampled_from = Some(self.now.next);
        }
    }

    /// From the next byte that the client is sent on.
    pub(crate) fn begin(&mut self, digests: Option<&Digests>, next: SeqNumber) {
        if digests.is_some() {
            let none = Digest::beginning(next);
            *self = Self {
                now: none,
                sent: none,
                acked: none,
                newer: none,
                turn: none,
                taken: true,
                ..Self::default()
            };
        }
    }

    /// Another server will say again what the client was sent from `outstream` on, of which it has
    /// acknowledged what lies before `acked`. What one that died in its replay has not said again is to be
    /// said by the next one.
    pub(crate) fn again(
        &mut self,
        digests: Option<&Digests>,
        outstream: SeqNumber,
        acked: SeqNumber,
    ) {
        if digests.is_none() {
            return;
        }
        if !self.taken {
            return self.begin(digests, outstream); // another host has spoken so far
        }
        if !self.says_again() {
            self.sent = self.now;
        }
        if !acked.before(self.newer.next) {
            self.acked = self.newer;
        }
        self.now = match outstream {
            _ if outstream == self.turn.next => self.turn,
            _ if outstream == self.sent.next => self.sent,
            _ => Digest::beginning(outstream),
        };
        let is_known = self.now.base == self.sent.base && !outstream.after(self.sent.next);
        self.comparison = match is_known {
            false => Comparison::None,
            true if outstream == self.sent.next => Comparison::Done,
            true => Comparison::Due,
        };
        if !is_known {
            (self.acked, self.newer, self.turn) = (self.now, self.now, self.now);
        }
        self.held = 0;
    }

    /// Does this wait for what is compared behind it? `repeated`: the server has said it before.
    pub(crate) fn waits(&mut self, seq: SeqNumber, acked: SeqNumber, repeated: bool) -> bool {
        if !self.says_again() {
            return false;
        }
        if repeated && !seq.after(acked) && self.held < HELD_MOST {
            self.held += 1;
        }
        self.held < HELD_MOST
    }
}

/// What leaves for the client, or would if the client had not got it already; `seq` is the segment's in
/// client space. Returns whether only samples are taken from now on.
pub(crate) fn digest_said(
    digests: Option<&Digests>,
    expected: &BTreeMap<(FlowId, u32), Expect>,
    flow: &mut Flow,
    segment: &Segment,
    payload: &[u8],
    seq: SeqNumber,
) -> bool {
    let ours = flow.digest.taken && flow.unprotected.is_none() && !flow.digest.says_again();
    let Some(digests) = digests.filter(|_| ours && !segment.has(Flags::RST)) else {
        return false;
    };
    let hole = seq.0.wrapping_sub(flow.digest.now.next.0);
    if !payload.is_empty() && hole > LARGEST_WINDOW && flow.digest.now.next.before(seq) {
        flow.digest.taken = false; // nothing fills that hole any more
    }
    let fresh = following(flow, payload, seq, seq + length32(payload.len()));
    if fresh.is_empty() {
        return false;
    }
    let digest = &mut flow.digest;
    if !flow.client.ack.before(digest.newer.next) {
        digest.acked = digest.newer;
        digest.newer = digest.now;
    }
    let begins = digest.sampled_from.is_none() && digests.rate == 0;
    if begins {
        let from = SeqNumber(digest.now.next.0.wrapping_add(UNIT - 1) & !(UNIT - 1));
        digest.sampled_from = Some(from);
    }
    // Of a turn this long nothing is said again: the mark stays where it is before what is said now.
    let next = digest.now.next;
    if digest
        .sampled_from
        .is_some_and(|from| !next.before(from) && next.0.wrapping_sub(from.0) > LONGEST_TURN)
    {
        digest.sampled_from = Some(next);
    }
    let turn = u32::try_from(flow.verify.head_sent % (1 << 32)).unwrap_or(0);
    let turn = flow.server.isn + 1 + turn;
    let none: Result<(), Divergence> = digest_bytes(digests, expected, flow, fresh, |flow| {
        if flow.digest.now.next == turn {
            flow.digest.begin_turn();
        }
        Ok(turn)
    });
    debug_assert_eq!(none, Ok(()));
    begins
}

/// What the server says again; `seq` is the segment's in client space.
pub(crate) fn digest_replayed(
    digests: Option<&Digests>,
    expected: &BTreeMap<(FlowId, u32), Expect>,
    flow: &mut Flow,
    segment: &Segment,
    payload: &[u8],
    seq: SeqNumber,
) -> Result<(), Divergence> {
    let ours = flow.digest.says_again() && !segment.has(Flags::RST);
    let Some(digests) = digests.filter(|_| ours) else {
        return Ok(());
    };
    let (sent, acked) = (flow.digest.sent, flow.digest.acked);
    let fresh = following(flow, payload, seq, sent.next);
    if fresh.is_empty() {
        return Ok(());
    }
    let same = |flow: &Flow, wanted: Digest| {
        let now = flow.digest.now;
        let differs = now.next == wanted.next && now != wanted;
        if differs {
            Err(Divergence(now.next))
        } else {
            Ok(())
        }
    };
    digest_bytes(digests, expected, flow, fresh, |flow| {
        same(flow, acked).map(|()| acked.next)
    })
    .and_then(|()| same(flow, sent))
    .inspect_err(|Divergence(at)| {
        flow.verify.by_digest = true;
        flow.verify.diverged_at = *at;
    })?;
    if flow.digest.now.next == sent.next {
        flow.digest.comparison = Comparison::Done; // whatever the numbers are when they have come round
    }
    Ok(())
}

/// What of the payload follows what was digested, up to before `to`.
fn following<'p>(flow: &Flow, payload: &'p [u8], seq: SeqNumber, to: SeqNumber) -> &'p [u8] {
    let end = seq + length32(payload.len());
    let end = if to.before(end) { to } else { end };
    let next = flow.digest.now.next;
    if next.before(seq) || !next.before(end) {
        return &[];
    }
    let place = |at: SeqNumber| usize::try_from(at.0.wrapping_sub(seq.0)).unwrap_or(usize::MAX);
    payload.get(place(next)..place(end)).unwrap_or_default()
}

/// Piece by piece. `at` is asked before each, and says where it ends at the latest.
fn digest_bytes(
    digests: &Digests,
    expected: &BTreeMap<(FlowId, u32), Expect>,
    flow: &mut Flow,
    mut bytes: &[u8],
    at: impl Fn(&mut Flow) -> Result<SeqNumber, Divergence>,
) -> Result<(), Divergence> {
    while !bytes.is_empty() {
        let stop = at(flow)?;
        let (seq, key) = (flow.digest.now.next, &digests.key);
        let at = offset_in_chunk(seq);
        let mut most = CHUNK - at;
        let (mut size, mut passed) = (CHUNK, false);
        if flow.digest.is_sampled(seq) {
            let (sample, within) = (key.sample(seq), seq.0 % UNIT);
            let end = [sample, sample + SAMPLE, UNIT];
            let end = end.into_iter().find(|end| within < *end).unwrap_or(UNIT);
            passed = end != sample + SAMPLE;
            most = usize::try_from(end - within).unwrap_or(usize::MAX);
            size = usize::try_from(SAMPLE).unwrap_or(CHUNK);
        }
        let before_stop = stop.0.wrapping_sub(seq.0);
        if before_stop != 0 {
            most = most.min(usize::try_from(before_stop).unwrap_or(usize::MAX));
        }
        let (piece, later) = bytes.split_at(bytes.len().min(most));
        let next = seq + length32(piece.len());
        if !passed {
            let said = as_sent(expected, flow, piece, at, seq);
            let now = &mut flow.digest.now;
            now.sum = now.sum.wrapping_add(key.sum(at % size, &said));
            if offset_in_chunk(next).is_multiple_of(size) {
                now.folded = key.fold(now.folded, now.sum);
                now.sum = 0;
            }
        }
        flow.digest.now.next = next;
        bytes = later;
    }
    Ok(())
}

/// What the client was sent: the record, where there is one.
fn as_sent(
    expected: &BTreeMap<(FlowId, u32), Expect>,
    flow: &Flow,
    piece: &[u8],
    at: usize,
    seq: SeqNumber,
) -> Vec<u8> {
    let is_recorded = flow.mode == Mode::Spliced && seq.before(flow.verify.end);
    let expect = expected.get(&(flow.id, chunk_of(seq)));
    let Some(expect) = expect.filter(|_| is_recorded) else {
        return piece.to_vec();
    };
    let bytes = (at..).zip(piece);
    bytes
        .map(|(i, byte)| match expect.strict[i] | expect.soft[i] {
            0 => *byte,
            _ => expect.bytes[i],
        })
        .collect()
}

#[cfg(test)]
mod tests;
