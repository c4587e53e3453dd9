/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Never a wrong byte: while a replayed server says again what the client has heard, its output
 * is compared with the record as it passes, before anything of the segment is acknowledged or
 * sent on. `expected` holds the record in chunks of 512 bytes aligned in client space, with a
 * mask that says where the bytes must agree, where they may differ (the value of a Date
 * header) and where there is no record. The first disagreement ends the flow: it is marked
 * FLOW_DIVERGED, nothing leaves any more, and an event tells where.
 */
#pragma once

#include "../lib/kernel.h"
#include "../lib/sequence.h"
#include "../lib/packet.h"
#include "../intf/digest.h"
#include "../intf/flow.h"
#include "../intf/expect.h"
#include "state.h"
#include "mirror.h"

#define WORDS (EXPECT_CHUNK / 8)

struct comparison {
	struct __sk_buff *skb;
	struct scratch *s;
	struct flow *f;
	__u32 offset; /* of the next byte in the frame */
	__u32 seq;    /* of that byte, client space */
	__u32 left;
	bool diverged;
};

/* Functions of their own for the verifier, which looks at each once. */

/* Where the segment has no bytes the record is compared with itself. */
__noinline int take_expected(struct scratch *s, const struct expect *e)
{
	if (!s || !e)
		return 0;
	const __u64 *want = (const __u64 *)e->bytes;
#pragma clang loop unroll(disable)
	for (int i = 0; i < WORDS; i++)
		s->replayed[i] = want[i];
	return 0;
}

enum compared { AGREES = 0, TOLERATED = 1, DIFFERS = 2 };

__noinline int compare_words(const struct scratch *s, const struct expect *e)
{
	if (!s || !e)
		return AGREES;
	const __u64 *want = (const __u64 *)e->bytes, *strict = (const __u64 *)e->strict, *soft = (const __u64 *)e->soft;
	__u64 wrong = 0, tolerated = 0;
#pragma clang loop unroll(disable)
	for (int i = 0; i < WORDS; i++) {
		__u64 difference = s->replayed[i] ^ want[i];
		wrong |= difference & strict[i];
		tolerated |= difference & soft[i];
	}
	if (wrong)
		return DIFFERS;
	return tolerated ? TOLERATED : AGREES;
}

__noinline int first_difference(struct scratch *s, struct expect *e)
{
	if (!s || !e)
		return 0;
	const __u8 *seen = (__u8 *)s->replayed;
	for (__u32 i = 0; i < EXPECT_CHUNK; i++)
		if ((seen[i] ^ e->bytes[i]) & e->strict[i])
			return i;
	return 0;
}

/* Of these bytes, how many lie behind what a digest is compared of. */
static __always_inline __u32 behind_digest(const struct flow *f, __u32 seq, __u32 len)
{
	const struct digest_half *d = &f->digest;
	__u32 from = before(seq, d->sent.next) ? d->sent.next : seq;
	return d->comparison != COMPARES_NOT && after(seq + len, from) ? seq + len - from : 0;
}

static long compare_chunk(__u32 n, void *context)
{
	struct comparison *c = context;
	struct scratch *s = c->s;
	struct flow *f = c->f;
	if (c->left == 0)
		return 1;
	__u32 at = c->seq & (EXPECT_CHUNK - 1);
	__u32 len = EXPECT_CHUNK - at;
	if (len > c->left)
		len = c->left;
	__u32 offset = c->offset, seq = c->seq;
	c->offset += len;
	c->seq += len;
	c->left -= len;

	struct expect_key key = { .flow_id = f->id, .chunk = seq / EXPECT_CHUNK };
	struct expect *e = bpf_map_lookup_elem(&expected, &key);
	if (!e) {
		f->verify.unverified += len;
		return 0;
	}
	take_expected(s, e);
	asm volatile("" : "+r"(len), "+r"(at));
	if (at >= EXPECT_CHUNK || len == 0 || len > EXPECT_CHUNK)
		return 1;
	if (bpf_skb_load_bytes(c->skb, offset, (__u8 *)s->replayed + at,
			       at_least_1(len, EXPECT_CHUNK - 1))) {
		f->verify.unverified += len;
		return 0;
	}
	int result = compare_words(s, e);
	if (result == DIFFERS) {
		f->verify.diverged_at = (seq & ~(EXPECT_CHUNK - 1)) + first_difference(s, e);
		c->diverged = true;
		return 1;
	}
	f->verify.compared += len;
	f->verify.behind += behind_digest(f, seq, len);
	if (result == TOLERATED)
		f->verify.tolerated++;
	return 0;
}

/* False: the segment, which begins at `seq` in client space, contradicts the record. */
static __always_inline bool verify_replayed(struct __sk_buff *skb, struct scratch *s, struct flow *f,
					    const struct packet *p, __u32 seq)
{
	__u32 left = f->verify.end - seq;
	if (left > p->payload_len)
		left = p->payload_len;
	struct comparison c = {
		.skb = skb, .s = s, .f = f, .seq = seq, .left = left,
		.offset = p->tcp_offset + p->header_len,
	};
	bpf_loop(MIRROR_SLICES * MIRROR_SLICE / EXPECT_CHUNK + 1, compare_chunk, &c, 0);
	return !c.diverged;
}
