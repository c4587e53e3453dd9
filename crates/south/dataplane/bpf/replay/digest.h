/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Digests: does a replayed server repeat the bytes of which verify.h has no record?
 *
 * The digest covers the outstream as segments leave: each byte once and in order, whatever the segmentation and the
 * number of retransmissions. In a replay the new server's outstream is digested in the same way. Recorded bytes take
 * the place of the new server's: verify.h has compared these, and a Date may differ. Both digests are compared at two
 * places: where the client's last known acknowledgement is, before a byte behind that leaves, and at the end of the old
 * outstream, before a new byte leaves. Segments of the replay between the two places wait (egress.h): the program
 * drops a segment, and the server's TCP sends the same bytes later. A server with a full window would wait for ever.
 * After MOST_RETRANSMITS repetitions the segment leaves, and the end is compared when the server reaches the end.
 *
 * A third place is wherever a request of the client waits in the replay for all that the client had heard before it
 * (recovery::replay). The digest of that is recorded where the verifier's record of beginnings has gaps.
 *
 * The digest of a chunk of 512 bytes is the sum of the 32-bit words, each multiplied with a secret 64-bit factor of the
 * word's place, modulo 2^64. Two different chunks have an equal sum with a probability of 2^-33 at the most. Chunks are
 * the coefficients of a polynomial modulo 2^61 - 1 at a secret point. A chunk of zeros adds 0, a missing piece adds 0:
 * pieces of a chunk can be added in the order of arrival. Chunks are aligned in client space.
 *
 * A server may speak faster than the digest can follow. Each processor has a budget. When the budget is spent, the
 * connection is sampled from the next unit of 32 KiB on: 64 bytes of each unit, at a secret place, count as a chunk.
 * `sampled_from` keeps the place of the first sample, and the replay takes the same samples.
 */
#pragma once

#include "../lib/kernel.h"
#include "../lib/sequence.h"
#include "../lib/packet.h"
#include "../intf/digest.h"
#include "../intf/flow.h"
#include "../intf/service.h"
#include "../intf/expect.h"
#include "state.h"
#include "mirror.h"

#define DIGEST_PRIME ((1ULL << 61) - 1)
/* An unused budget is kept for this time, microseconds. */
#define DIGEST_BURST_US 16384
/* Repetitions, after a timer, of a segment that waits, before the segment leaves. */
#define MOST_RETRANSMITS 2
/* No longer turn is replayed: numbers further apart than half of the sequence space have no order (RFC 9293 3.4). */
#define LONGEST_TURN ((1U << 31) - (1U << 26))

struct digesting {
	struct __sk_buff *skb;
	struct scratch *s;
	struct flow *f;
	const struct digest_key *key;
	__u32 offset; /* of the next byte in the frame */
	__u32 left;
};

/* The product modulo the prime of two numbers below the prime. */
static __always_inline __u64 times(__u64 a, __u64 b)
{
	__u64 a1 = a >> 32, a0 = (__u32)a, b1 = b >> 32, b0 = (__u32)b;
	__u64 low = a0 * b0, mid = a1 * b0 + a0 * b1;
	/* 2^64 is 8, and 2^61 is 1. */
	__u64 sum = ((a1 * b1) << 3) + (mid >> 29) + ((mid & ((1ULL << 29) - 1)) << 32) +
		    (low & DIGEST_PRIME) + (low >> 61);
	sum = (sum & DIGEST_PRIME) + (sum >> 61);
	return sum >= DIGEST_PRIME ? sum - DIGEST_PRIME : sum;
}

static __always_inline __u64 folded(__u64 before, __u64 point, __u64 sum)
{
	__u64 next = times(before, point) + (sum & DIGEST_PRIME) + (sum >> 61);
	next = (next & DIGEST_PRIME) + (next >> 61);
	return next >= DIGEST_PRIME ? next - DIGEST_PRIME : next;
}

/* Separate functions: the verifier looks at each once. */
__noinline __u64 chunk_sum(const struct scratch *s, const struct digest_key *key)
{
	__u64 even = 0, odd = 0;
	if (!s || !key)
		return 0;
	const __u32 *words = (const __u32 *)s->replayed;
#pragma unroll
	for (int i = 0; i < DIGEST_CHUNK / 4; i += 2) {
		even += words[i] * key->factors[i];
		odd += words[i + 1] * key->factors[i + 1];
		asm volatile("" : "+r"(even), "+r"(odd)); /* or the products are collected on the stack */
	}
	return even + odd;
}

/* The same of the blocks of DIGEST_SAMPLE bytes that the bytes from `at` up to before `end` are in. */
__noinline __u64 part_sum(const struct scratch *s, const struct digest_key *key, __u32 at, __u32 end)
{
	__u64 sum = 0;
	if (!s || !key)
		return 0;
	at &= DIGEST_CHUNK - DIGEST_SAMPLE;
#pragma clang loop unroll(disable)
	for (int block = 0; block < DIGEST_CHUNK / DIGEST_SAMPLE && at < end; block++, at += DIGEST_SAMPLE) {
		__u32 from = at;
		asm volatile("" : "+r"(from));
		from &= DIGEST_CHUNK - DIGEST_SAMPLE;
		const __u32 *words = (const __u32 *)((const __u8 *)s->replayed + from);
		const __u64 *factors = key->factors + from / 4;
#pragma unroll
		for (int i = 0; i < DIGEST_SAMPLE / 4; i++) {
			sum += words[i] * factors[i];
			asm volatile("" : "+r"(sum));
		}
	}
	return sum;
}

/* The sum of the sample that begins at `at` in the chunk. */
__noinline __u64 sample_sum(const struct scratch *s, const struct digest_key *key, __u32 at)
{
	__u64 sum = 0;
	if (!s || !key)
		return 0;
	const __u32 *words = (const __u32 *)((const __u8 *)s->replayed + (at & (DIGEST_CHUNK - DIGEST_SAMPLE)));
#pragma unroll
	for (int i = 0; i < DIGEST_SAMPLE / 4; i++) {
		sum += words[i] * key->factors[i];
		asm volatile("" : "+r"(sum));
	}
	return sum;
}

/* From 512 - `at` on, a mask of the bytes of a chunk from `at` to the end. A branch in place of the mask would make the
 * verifier follow both ways. */
static const __u8 from_byte[2 * DIGEST_CHUNK] = { [DIGEST_CHUNK ... 2 * DIGEST_CHUNK - 1] = 0xff };

/* Put the record in the place of a piece that begins at `at` in the chunk. */
__noinline int take_recorded(struct scratch *s, const struct expect *e, __u32 at, __u32 len)
{
	if (!s || !e)
		return 0;
	__u32 begin = DIGEST_CHUNK - at, end = begin - len;
	asm volatile("" : "+r"(begin), "+r"(end));
	begin &= 2 * DIGEST_CHUNK - 1;
	end &= DIGEST_CHUNK - 1; /* a piece has bytes */
	if (begin > DIGEST_CHUNK)
		return 0;
	const __u64 *begins = (const __u64 *)(from_byte + begin), *ends = (const __u64 *)(from_byte + end);
	const __u64 *want = (const __u64 *)e->bytes, *strict = (const __u64 *)e->strict, *soft = (const __u64 *)e->soft;
#pragma clang loop unroll(disable)
	for (int i = 0; i < DIGEST_CHUNK / 8; i++) {
		__u64 known = (strict[i] | soft[i]) & begins[i] & ~ends[i];
		s->replayed[i] = (s->replayed[i] & ~known) | (want[i] & known);
	}
	return 0;
}

static __always_inline bool same_digest(const struct digest *a, const struct digest *b)
{
	return a->folded == b->folded && a->sum == b->sum && a->base == b->base;
}

/* Does the server repeat the old outstream, with a comparison still to come? */
static __always_inline bool is_repeating(const struct flow *f)
{
	return f->digest.comparison == COMPARES;
}

static __always_inline bool is_sampled(const struct flow *f, __u32 seq)
{
	return f->digest.sampled && !before(seq, f->digest.sampled_from);
}

/* Offset of the sample in the unit of `seq`. */
static __always_inline __u32 sample_of(const struct digest_key *key, __u32 seq)
{
	__u64 mixed = (seq / DIGEST_UNIT) * key->place_factor + key->place_offset;
	return (mixed >> 32) % (DIGEST_UNIT / DIGEST_SAMPLE) * DIGEST_SAMPLE;
}

/* Put the record in the place of the `len` bytes read for the chunk of `seq`. */
static __always_inline void overlay(struct scratch *s, const struct flow *f, __u32 seq, __u32 len)
{
	if (f->mode != FLOW_SPLICED || !before(seq, f->verify.end))
		return;
	struct expect_key key = { .flow_id = f->id, .chunk = seq / EXPECT_CHUNK };
	struct expect *e = bpf_map_lookup_elem(&expected, &key);
	if (e)
		take_recorded(s, e, seq & (DIGEST_CHUNK - 1), len);
}

/* Where bytes are not there, zeros count. */
static __always_inline void clear_block(struct scratch *s, __u32 at)
{
	asm volatile("" : "+r"(at));
	__builtin_memset((__u8 *)s->replayed + (at & (DIGEST_CHUNK - DIGEST_SAMPLE)), 0, DIGEST_SAMPLE);
}

/* A chunk, or the present part of a chunk. */
static long digest_piece(__u32 n, void *context)
{
	struct digesting *c = context;
	struct scratch *s = c->s;
	struct digest *now = &c->f->digest.now;
	if (c->left == 0)
		return 1;
	__u32 seq = now->next, at = seq & (DIGEST_CHUNK - 1), len = DIGEST_CHUNK - at;
	if (len > c->left)
		len = c->left;
	__u64 *seen = s->replayed;
	asm volatile("" : "+r"(len), "+r"(at));
	if (at >= DIGEST_CHUNK || len == 0 || len > DIGEST_CHUNK)
		return 1;
	if (len < DIGEST_CHUNK) {
		clear_block(s, at);
		clear_block(s, at + len - 1);
	}
	if (bpf_skb_load_bytes(c->skb, c->offset, (__u8 *)seen + at, at_least_1(len, DIGEST_CHUNK - 1)))
		return 1;
	overlay(s, c->f, seq, len);
	now->sum += len == DIGEST_CHUNK ? chunk_sum(s, c->key) : part_sum(s, c->key, at, at + len);
	c->offset += len;
	c->left -= len;
	now->next = seq + len;
	if ((now->next & (DIGEST_CHUNK - 1)) == 0) {
		now->folded = folded(now->folded, c->key->point, now->sum);
		now->sum = 0;
	}
	return 0;
}

/* The present part of a unit, of which only the sample counts. */
static long digest_unit(__u32 n, void *context)
{
	struct digesting *c = context;
	struct scratch *s = c->s;
	struct digest *now = &c->f->digest.now;
	if (c->left == 0)
		return 1;
	__u32 within = now->next & (DIGEST_UNIT - 1), unit = now->next - within;
	__u32 end = within + c->left < DIGEST_UNIT ? within + c->left : DIGEST_UNIT;
	__u32 sample = sample_of(c->key, unit);
	__u32 from = within > sample ? within : sample;
	__u32 to = end < sample + DIGEST_SAMPLE ? end : sample + DIGEST_SAMPLE;
	if (from < to) {
		__u32 at = (unit + from) & (DIGEST_CHUNK - 1), len = to - from;
		asm volatile("" : "+r"(len), "+r"(at));
		at &= DIGEST_CHUNK - 1;
		clear_block(s, at);
		if (bpf_skb_load_bytes(c->skb, c->offset + (from - within), (__u8 *)s->replayed + at,
				       at_least_1(len, DIGEST_SAMPLE - 1)))
			return 1;
		overlay(s, c->f, unit + from, len);
		now->sum += sample_sum(s, c->key, at);
		if (to == sample + DIGEST_SAMPLE) {
			now->folded = folded(now->folded, c->key->point, now->sum);
			now->sum = 0;
		}
	}
	c->offset += end - within;
	c->left -= end - within;
	now->next = unit + end;
	return 0;
}

static __always_inline const struct digest_key *the_digest_key(void)
{
	__u32 zero = 0;
	return bpf_map_lookup_elem(&digest_keys, &zero);
}

/* May `len` bytes more be digested whole? */
static __always_inline bool within_budget(const struct service *s, __u32 len)
{
	__u32 zero = 0;
	struct digest_budget *b = bpf_map_lookup_elem(&digest_budgets, &zero);
	if (!b || s->digest_rate == (__u32)-1)
		return true;
	if (b->left < len) {
		__u64 now = bpf_ktime_get_ns(), passed = (now - b->filled_ns) / 1000;
		if (passed > DIGEST_BURST_US)
			passed = DIGEST_BURST_US;
		__u64 left = b->left + passed * s->digest_rate;
		b->left = left < DIGEST_BURST_US * (__u64)s->digest_rate ? left
									 : DIGEST_BURST_US * (__u64)s->digest_rate;
		b->filled_ns = now;
	}
	if (b->left < len)
		return false;
	b->left -= len;
	return true;
}

/* A new server will get the request that begins this turn when it has said all before it again. What is recorded of that tells,
 * or the digest. */
static __always_inline void begin_turn(struct flow *f)
{
	struct digest_half *d = &f->digest;
	d->turn = d->now;
	if (is_sampled(f, d->now.next)) {
		d->sampled |= TURN_SAMPLED;
	} else {
		d->sampled &= ~TURN_SAMPLED;
		if (f->verify.heads_to != d->now.next)
			mirror_output_digest(f, &d->turn);
	}
}

/* Does a request wait for what was said here, and is that something else? */
static __always_inline bool differs_from_wanted(struct digest_half *d)
{
	__u32 nothing = 0;
	asm volatile("" : "+r"(nothing)); /* clang would make a loop of it */
	if (!d->wants || !__sync_fetch_and_add(&d->wants, nothing) || before(d->now.next, d->wanted.next))
		return false;
	d->wants = false;
	return d->now.next == d->wanted.next && !same_digest(&d->now, &d->wanted);
}

/* The next request waits until the server has said again what this is of. (Who asks too late hears at the next place.) */
static __always_inline void want_digest(struct flow *f, const struct digest *wanted)
{
	struct digest_half *d = &f->digest;
	d->wants = false;
	if (!is_repeating(f) || d->now.base != wanted->base || is_sampled(f, wanted->next) ||
	    after(d->now.next, wanted->next) || after(wanted->next, d->sent.next))
		return;
	/* Said already, and equal. (`wanted` is not written while egress may compare with it: there is one at a time.) */
	if (d->now.next == wanted->next && same_digest(&d->now, wanted))
		return;
	d->wanted = *wanted;
	__sync_lock_test_and_set(&d->wants, 1); /* who finds that set, on whichever processor, finds all of `wanted` */
}

/* Digest the bytes from `now.next` up to before `to` of the segment that begins at `seq` in client space. Not 0: the
 * outstream of the replay differs. */
__noinline int digest_segment(struct __sk_buff *skb, struct flow *f, const struct packet *p, __u32 seq, __u32 to)
{
	const struct service *s = the_service();
	const struct digest_key *key = the_digest_key();
	struct scratch *sc = the_scratch(SCRATCH_EGRESS);
	if (!s || !key || !sc || !f || !p)
		return 0;
	struct digest_half *d = &f->digest;
	__u32 end = seq + p->payload_len;
	if (before(to, end))
		end = to;
	bool again = is_repeating(f);
	if (before(d->now.next, seq)) {
		if (!again && seq - d->now.next > LARGEST_WINDOW)
			d->taken = false; /* no retransmission fills that hole any more */
		return 0;
	}
	if (!before(d->now.next, end))
		return 0;
	__u32 turn = f->server.isn + 1 + (__u32)f->verify.head_sent;
	struct digesting c = {
		.skb = skb, .s = sc, .f = f, .key = key, .offset = p->tcp_offset + p->header_len + (d->now.next - seq),
	};
	if (!again) {
		if (!before(f->client.ack, d->newer.next)) {
			d->acked = d->newer;
			d->newer = d->now;
		}
		if (!d->sampled && !within_budget(s, end - d->now.next)) {
			d->sampled = SAMPLED;
			d->sampled_from = (d->now.next + DIGEST_UNIT - 1) & ~(DIGEST_UNIT - 1);
			count(COUNT_SAMPLED);
		}
		/* A turn of this length is not replayed; the mark has to stay before `now.next`. */
		if (is_sampled(f, d->now.next) && d->now.next - d->sampled_from > LONGEST_TURN)
			d->sampled_from = d->now.next;
	}
	__u32 stop = again ? d->acked.next : turn, from = d->now.next;
	bool differs = false;
	__sync_fetch_and_add(&d->changes, 1);
	for (int part = 0; part < 3 && before(d->now.next, end); part++) {
		if (d->now.next == stop && !again)
			begin_turn(f);
		differs = again && ((d->now.next == stop && !same_digest(&d->now, &d->acked)) || differs_from_wanted(d));
		if (differs)
			break;
		__u32 to = after(stop, d->now.next) && before(stop, end) ? stop : end;
		/* Who asks has looked at `now` a moment before: the place may lie behind it by now. */
		__u32 wanted = d->wants ? d->wanted.next : to;
		if (again && after(wanted, d->now.next) && before(wanted, to))
			to = wanted;
		if (!is_sampled(f, d->now.next)) {
			c.left = (d->sampled && before(d->sampled_from, to) ? d->sampled_from : to) - d->now.next;
			bpf_loop(2 * MIRROR_SLICES * MIRROR_SLICE / DIGEST_CHUNK, digest_piece, &c, 0);
		}
		if (is_sampled(f, d->now.next)) {
			c.left = to - d->now.next;
			bpf_loop(2 * MIRROR_SLICES * MIRROR_SLICE / DIGEST_UNIT, digest_unit, &c, 0);
		}
	}
	__sync_fetch_and_add(&d->changes, 1);
	differs = differs || (again && differs_from_wanted(d));
	if (!again && s->link && !d->sampled && from / DIGEST_INTERVAL != d->now.next / DIGEST_INTERVAL) {
		/* A record that begins with this turn needs the digest of that place, too: only so is the other one comparable. */
		if (before(from, d->turn.next) || from / DIGEST_INTERVAL == d->turn.next / DIGEST_INTERVAL)
			mirror_output_digest(f, &d->turn);
		mirror_output_digest(f, &d->now);
	}
	if (again && !differs && d->now.next == d->sent.next) {
		differs = !same_digest(&d->now, &d->sent);
		if (!differs)
			d->comparison = HAS_COMPARED; /* a state: a comparison of numbers would come round */
	}
	if (differs) {
		f->verify.by_digest = true;
		f->verify.diverged_at = d->now.next;
	}
	return differs;
}

/* Digest a segment that leaves for the client, that the client has already, or that the fence withholds. The server's
 * TCP takes a withheld segment for sent: a repetition comes behind the segments that follow. */
static __always_inline void digest_output(struct __sk_buff *skb, const struct service *s, struct flow *f,
					const struct packet *p, __u32 seq)
{
	if (s->digests && f->digest.taken && !f->unprotected && p->payload_len && !(p->flags & TCP_RST) &&
	    !is_repeating(f))
		digest_segment(skb, f, p, seq, seq + p->payload_len);
}

/* False: the segment contradicts the old outstream. */
static __always_inline bool digest_replayed(struct __sk_buff *skb, struct flow *f, const struct packet *p, __u32 seq)
{
	return !is_repeating(f) || !p->payload_len || (p->flags & TCP_RST) ||
	       !digest_segment(skb, f, p, seq, f->digest.sent.next);
}

/* Does the segment wait for a comparison further on? `repeated`: a segment of the server that came before. */
static __always_inline bool waits_for_digest(struct flow *f, __u32 seq, bool repeated)
{
	if (!is_repeating(f))
		return false;
	if (repeated && !after(seq, f->client.ack) && f->digest.retransmits < MOST_RETRANSMITS)
		f->digest.retransmits++;
	return f->digest.retransmits < MOST_RETRANSMITS;
}

/* All but how often they have changed. */
static __always_inline void forget_digests(struct digest_half *d)
{
	__u32 changes = d->changes;
	__builtin_memset(d, 0, sizeof(*d));
	d->changes = changes;
}

/* The flow has digests from the next outstream byte on. */
static __always_inline void begin_digests(const struct service *s, struct flow *f, __u32 next)
{
	struct digest none = { .base = next, .next = next };
	if (!s->digests)
		return;
	forget_digests(&f->digest);
	f->digest.taken = true;
	f->digest.now = f->digest.sent = f->digest.acked = f->digest.newer = f->digest.turn = none;
}

/* A flow that was made anew: the logger's digest of the output that its client has acknowledged. */
static __always_inline void inherit_digest(const struct service *s, struct flow *f, const struct digest *acked,
					  const struct digest *turn)
{
	struct digest_half *d = &f->digest;
	if (!s->digests || d->taken)
		return;
	forget_digests(d);
	d->taken = true;
	d->now = d->sent = d->acked = d->newer = *acked;
	d->turn = *turn;
}

/* A new server will repeat the outstream from `outstream` on. After a death in the middle of a replay the old outstream
 * stays the same. */
static __always_inline void restart_digest(const struct service *s, struct flow *f, __u32 outstream)
{
	struct digest_half *d = &f->digest;
	struct digest none = { .base = outstream, .next = outstream };
	if (!s->digests)
		return;
	if (!d->taken) /* the outstream so far came from another host */
		return begin_digests(s, f, outstream);
	if (!is_repeating(f))
		d->sent = d->now;
	if (!before(f->client.ack, d->newer.next))
		d->acked = d->newer;
	if (outstream == d->turn.next) {
		d->now = d->turn;
		/* The first sample may be too far behind to have an order. */
		if (d->sampled & TURN_SAMPLED)
			d->sampled_from = outstream;
	} else if (outstream == d->sent.next)
		d->now = d->sent;
	else
		d->now = none;
	if (d->now.base != d->sent.base || after(outstream, d->sent.next)) {
		d->comparison = COMPARES_NOT;
		d->acked = d->newer = d->turn = d->now;
		/* A whole one, though the last turn before may have begun behind the first sample. */
		d->sampled &= ~TURN_SAMPLED;
		if (is_sampled(f, outstream))
			d->sampled |= TURN_SAMPLED;
	} else {
		d->comparison = outstream == d->sent.next ? HAS_COMPARED : COMPARES;
	}
	d->retransmits = 0;
	d->wants = false;
}
