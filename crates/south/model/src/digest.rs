//! Digests: does a replayed server repeat the bytes of which there is no record (`digest.h`)?
//!
//! The digest covers the outstream as segments leave: each byte once and in order, whatever the segmentation
//! and the number of retransmissions. In a replay the new server's outstream is digested in the same way.
//! Recorded bytes take the place of the new server's: `verify` has compared these, and a Date may differ. Both
//! digests are compared at two places: where the client's last known acknowledgement is, before a byte behind
//! that leaves, and at the end of the old outstream, before a new byte leaves. Segments of the replay between
//! the two places wait: the program drops a segment, and the server's TCP sends the same bytes later. A
//! server with a full window would wait for ever. After two repetitions the segment leaves, and the
//! end is compared when the server reaches the end.
//!
//! A third place is each request that waits in the replay until the server has repeated all output
//! before the request.

use std::{cell::Cell, collections::BTreeMap, fmt};

use protocol::{Digest, DigestSeed};
use wire::{Flags, FlowId, SeqNumber};

use crate::{
    egress::LARGEST_WINDOW,
    flow::{Flow, Mode},
    packet::{Segment, length32},
    tolerance::{EXPECT_CHUNK, Expect, chunk_of, offset_in_chunk},
    verify::Divergence,
};

/// Bytes of a chunk.
const CHUNK: usize = EXPECT_CHUNK;
/// Bytes of a sample, and of the unit of which a sample is taken.
const SAMPLE: u32 = 64;
const UNIT: u32 = 32_768;
/// Modulus of the polynomial whose coefficients are the chunks.
const PRIME: u64 = (1 << 61) - 1;
/// A logger on another machine gets a digest at least once in so many bytes, for a host that takes
/// over.
const DIGEST_INTERVAL: u32 = 65_536;
/// Repetitions, after a timer, of a segment that waits, before the segment leaves.
const MOST_RETRANSMITS: u8 = 2;
/// No longer turn is replayed: numbers further apart than half of the sequence space have no order (RFC 9293 3.4).
const LONGEST_TURN: u32 = (1 << 31) - (1 << 26);

/// Secret: clients and servers must not be able to choose bytes with equal digests.
#[derive(Clone, PartialEq, Eq)]
pub struct DigestKey {
    /// Factors of the 32-bit words of a chunk.
    pub factors: [u64; CHUNK / 4],
    /// The point of the polynomial: less than 2^61 - 1.
    pub point: u64,
    /// Factor and offset that place the samples.
    pub places: [u64; 2],
    /// Seed of the key.
    pub seed: DigestSeed,
}

impl fmt::Debug for DigestKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DigestKey")
    }
}

impl DigestKey {
    /// A key of random numbers.
    pub fn of(mut random: impl FnMut() -> u64) -> Self {
        Self::made_of(DigestSeed([random(), random()]))
    }

    /// The key of this seed, on whichever host.
    #[must_use]
    pub fn made_of(seed: DigestSeed) -> Self {
        let key = seed.as_key();
        let mut counter = 0_u64;
        let mut next = || {
            counter += 1;
            key.tag(&counter.to_le_bytes())
        };
        Self {
            factors: std::array::from_fn(|_| next()),
            point: next() % PRIME,
            places: std::array::from_fn(|_| next()),
            seed,
        }
    }

    /// The sum of a piece that begins at `at` in a chunk or sample.
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

    /// Offset of the sample in the unit of `seq`.
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
    /// The key of this service.
    pub key: DigestKey,
    /// Bytes in a microsecond that each processor may digest whole; 0: none, `u32::MAX`: all. (The model
    /// knows these two only.)
    pub rate: u32,
}

const fn beginning(base: SeqNumber) -> Digest {
    Digest {
        folded: 0,
        sum: 0,
        base,
        next: base,
    }
}

/// State of the comparison of a replay with the old outstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Comparison {
    /// No old outstream is known.
    #[default]
    None,
    /// `now` has to become equal to `acked` and `sent`.
    Due,
    /// `now` has become `sent`.
    Done,
}

/// Digests of the server's outstream, now and before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DigestHalf {
    /// Of this server's outstream; a replay begins anew.
    pub now: Digest,
    /// Of the old outstream.
    pub sent: Digest,
    /// Of the part of the old outstream that the client is known to have acknowledged.
    pub acked: Digest,
    /// The next `acked`, when the client has acknowledged as much.
    pub newer: Digest,
    /// At the beginning of this turn.
    pub turn: Digest,
    /// Digest of earlier servers' output before a request of the client. The request waits for the
    /// comparison.
    pub wanted: Option<Digest>,
    /// Bytes from here on are sampled, bytes before are digested whole.
    pub sampled_from: Option<SeqNumber>,
    /// This turn began behind the first sample.
    pub is_turn_sampled: bool,
    /// The flow has digests.
    pub taken: bool,
    /// How far the comparison of `now` with `acked` and `sent` is.
    pub comparison: Comparison,
    /// Retransmissions of the segment that waits for the comparison.
    pub retransmits: u8,
    /// End of the digest that the link sent last, when the client had received all of that.
    pub link_sent: SeqNumber,
}

impl DigestHalf {
    /// Does the server repeat the old outstream, with a comparison still to come?
    #[must_use]
    pub fn is_repeating(&self) -> bool {
        self.comparison == Comparison::Due
    }

    fn is_sampled(&self, seq: SeqNumber) -> bool {
        self.sampled_from.is_some_and(|from| !seq.before(from))
    }

    fn begin_turn(&mut self) {
        self.turn = self.now;
        self.is_turn_sampled = self.is_sampled(self.now.next);
    }

    /// Digests from the next outstream byte on.
    pub(crate) fn begin(&mut self, digests: Option<&Digests>, next: SeqNumber) {
        if digests.is_some() {
            let none = beginning(next);
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

    /// A new server will repeat the outstream from `outstream` on; the client has acknowledged the bytes before
    /// `acked`. After a death in the middle of a replay the old outstream stays the same.
    pub(crate) fn restart(
        &mut self,
        digests: Option<&Digests>,
        outstream: SeqNumber,
        acked: SeqNumber,
    ) {
        if digests.is_none() {
            return;
        }
        if !self.taken {
            return self.begin(digests, outstream); // the outstream so far came from another host
        }
        if !self.is_repeating() {
            self.sent = self.now;
        }
        if !acked.before(self.newer.next) {
            self.acked = self.newer;
        }
        if outstream == self.turn.next && self.is_turn_sampled {
            // The first sample may be too far behind to have an order.
            self.sampled_from = Some(outstream);
        }
        self.now = match outstream {
            _ if outstream == self.turn.next => self.turn,
            _ if outstream == self.sent.next => self.sent,
            _ => beginning(outstream),
        };
        let is_known = self.now.base == self.sent.base && !outstream.after(self.sent.next);
        self.comparison = match is_known {
            false => Comparison::None,
            true if outstream == self.sent.next => Comparison::Done,
            true => Comparison::Due,
        };
        if !is_known {
            (self.acked, self.newer) = (self.now, self.now);
            self.begin_turn(); // a whole one, though the last turn before may have begun behind the first sample
        }
        self.retransmits = 0;
        self.wanted = None;
    }

    /// Of these bytes, the number that lies behind the end of a digest.
    pub(crate) fn behind(&self, seq: SeqNumber, len: u32) -> u32 {
        let (from, end) = (seq.max_seq(self.sent.next), seq + len);
        let is_compared = self.comparison != Comparison::None;
        let behind = end.distance_from(from);
        behind.filter(|_| is_compared).unwrap_or(0)
    }

    /// Digest of all output before `end`, if the server's output ends there, and no samples were
    /// taken.
    pub(crate) fn whole_before(&self, end: SeqNumber) -> Option<Digest> {
        let now = self.now;
        let is_whole = self.taken && !self.is_repeating() && !self.is_sampled(now.next);
        (is_whole && now.next == end && now.base != end).then_some(now)
    }

    /// A restored flow: the logger's digest of the outstream up to the client's acknowledgement,
    /// and the digest of the output that a replay leaves out.
    pub(crate) fn inherit_digest(
        &mut self,
        digests: Option<&Digests>,
        acked: Digest,
        turn: Digest,
    ) {
        if digests.is_some() && !self.taken {
            *self = Self {
                now: acked,
                sent: acked,
                acked,
                newer: acked,
                turn,
                taken: true,
                ..Self::default()
            };
        }
    }

    /// The next request waits until the server has repeated the output that `wanted` covers. (A
    /// late question is answered at the next place.)
    pub(crate) fn want(&mut self, wanted: Digest) {
        let is_known = self.is_repeating() && self.now.base == wanted.base;
        let is_to_come = !self.now.next.after(wanted.next) && !wanted.next.after(self.sent.next);
        let is_open = wanted != self.now; // else it is said already, and equal
        let is_due = is_known && is_to_come && is_open && !self.is_sampled(wanted.next);
        self.wanted = is_due.then_some(wanted);
    }

    /// Whether output differs from the output that a request waits for.
    fn compare_wanted(&mut self) -> Result<(), Divergence> {
        let now = self.now;
        let reached = self.wanted.take_if(|wanted| !now.next.before(wanted.next));
        match reached {
            Some(wanted) if wanted.next == now.next && wanted != now => Err(Divergence(now.next)),
            _ => Ok(()),
        }
    }

    /// The next place behind `now` at which the old outstream is compared; any other, if there is none.
    fn next_stop(&self) -> SeqNumber {
        let behind = |at: &SeqNumber| match at.0.wrapping_sub(self.now.next.0) {
            0 => u32::MAX,
            distance => distance,
        };
        let wanted = self.wanted.map_or(self.acked.next, |wanted| wanted.next);
        std::cmp::min_by_key(self.acked.next, wanted, behind)
    }

    /// Does the segment at `seq` wait for a comparison further on? `repeated`: a segment that came before.
    pub(crate) fn waits(&mut self, seq: SeqNumber, acked: SeqNumber, repeated: bool) -> bool {
        if !self.is_repeating() {
            return false;
        }
        if repeated && !seq.after(acked) && self.retransmits < MOST_RETRANSMITS {
            self.retransmits += 1;
        }
        self.retransmits < MOST_RETRANSMITS
    }
}

/// Results of a digested segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Digested {
    /// From now on samples are taken.
    pub(crate) sampling_begins: bool,
    /// Digest of the output before the request that begins here, if that output is not recorded: a
    /// new server gets the request after repeating this output. And the digest of the whole
    /// outstream so far, for a host that takes over.
    pub(crate) mirrored: [Option<Digest>; 3],
}

/// Digests a segment that leaves for the client, that the client has already, or that the fence withholds; `seq` is in
/// client space.
pub(crate) fn digest_output(
    digests: Option<&Digests>,
    expected: &BTreeMap<(FlowId, u32), Expect>,
    flow: &mut Flow,
    segment: &Segment,
    payload: &[u8],
    (seq, is_linked): (SeqNumber, bool),
) -> Digested {
    let ours = flow.digest.taken && flow.unprotected.is_none() && !flow.digest.is_repeating();
    let Some(digests) = digests.filter(|_| ours && !segment.has(Flags::RST)) else {
        return Digested::default();
    };
    let hole = seq.0.wrapping_sub(flow.digest.now.next.0);
    if !payload.is_empty() && hole > LARGEST_WINDOW && flow.digest.now.next.before(seq) {
        flow.digest.taken = false; // no retransmission fills that hole any more
    }
    let fresh = following(flow, payload, seq, seq + length32(payload.len()));
    if fresh.is_empty() {
        return Digested::default();
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
    // A turn of this length is not replayed; the mark has to stay before `now.next`.
    let next = digest.now.next;
    if digest
        .sampled_from
        .is_some_and(|from| !next.before(from) && next.0.wrapping_sub(from.0) > LONGEST_TURN)
    {
        digest.sampled_from = Some(next);
    }
    let turn = u32::try_from(flow.verify.head_sent % (1 << 32)).unwrap_or(0);
    let turn = flow.server.isn + 1 + turn;
    let turn_begins = Cell::new(false);
    let none: Result<(), Divergence> = digest_bytes(digests, expected, flow, fresh, |flow| {
        if flow.digest.now.next == turn {
            flow.digest.begin_turn();
            turn_begins.set(true);
        }
        Ok(turn)
    });
    debug_assert_eq!(none, Ok(()));
    let digest = &flow.digest;
    let is_recorded = flow.verify.heads_to == digest.turn.next;
    let tells_turn = turn_begins.get() && !digest.is_turn_sampled && !is_recorded;
    let passes = next.0 / DIGEST_INTERVAL != digest.now.next.0 / DIGEST_INTERVAL;
    let tells = is_linked && digest.sampled_from.is_none() && passes;
    // A record that begins with this request needs the digest of that place, too: without it no
    // comparison is possible.
    let turn = digest.turn.next;
    let is_first = next.before(turn) || next.0 / DIGEST_INTERVAL == turn.0 / DIGEST_INTERVAL;
    Digested {
        sampling_begins: begins,
        mirrored: [
            tells_turn.then_some(digest.turn),
            (tells && is_first).then_some(digest.turn),
            tells.then_some(digest.now),
        ],
    }
}

/// Digests and compares a segment of a replay; `seq` is in client space.
pub(crate) fn digest_replayed(
    digests: Option<&Digests>,
    expected: &BTreeMap<(FlowId, u32), Expect>,
    flow: &mut Flow,
    segment: &Segment,
    payload: &[u8],
    seq: SeqNumber,
) -> Result<(), Divergence> {
    let ours = flow.digest.is_repeating() && !segment.has(Flags::RST);
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
        same(flow, acked)?;
        flow.digest.compare_wanted()?;
        Ok(flow.digest.next_stop())
    })
    .and_then(|()| flow.digest.compare_wanted())
    .and_then(|()| same(flow, sent))
    .inspect_err(|Divergence(at)| {
        flow.verify.by_digest = true;
        flow.verify.diverged_at = *at;
    })?;
    if flow.digest.now.next == sent.next {
        flow.digest.comparison = Comparison::Done; // a state: a comparison of numbers would come round
    }
    Ok(())
}

/// The payload from `now.next` up to before `to`.
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

/// Digests piece by piece. `at` is called before each piece and returns the latest end.
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

/// The bytes as the client was sent: from the record, where the record has the bytes.
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
