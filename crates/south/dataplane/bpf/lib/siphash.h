/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * SipHash-2-4 (Aumasson and Bernstein, 2012) of whole 64-bit words: the tag by which the two ends of
 * the log link know each other's packets.
 */
#pragma once

#include "kernel.h"

/* Longest input, words: an OPEN. */
#define SIPHASH_WORDS 16

struct sip {
	__u64 v0, v1, v2, v3;
};

static __always_inline __u64 rotated(__u64 value, __u32 by)
{
	return (value << by) | (value >> (64 - by));
}

static __always_inline void sip_round(struct sip *s)
{
	s->v0 += s->v1;
	s->v1 = rotated(s->v1, 13) ^ s->v0;
	s->v0 = rotated(s->v0, 32);
	s->v2 += s->v3;
	s->v3 = rotated(s->v3, 16) ^ s->v2;
	s->v0 += s->v3;
	s->v3 = rotated(s->v3, 21) ^ s->v0;
	s->v2 += s->v1;
	s->v1 = rotated(s->v1, 17) ^ s->v2;
	s->v2 = rotated(s->v2, 32);
}

static __always_inline void sip_word(struct sip *s, __u64 word)
{
	s->v3 ^= word;
	sip_round(s);
	sip_round(s);
	s->v0 ^= word;
}

struct sip_input {
	__u64 words[SIPHASH_WORDS];
};

/* Of the first `count` words. A function of its own for the verifier, which looks at it once. */
__noinline __u64 siphash(const struct sip_input *input, __u32 count, __u64 k0, __u64 k1)
{
	struct sip s = {
		.v0 = k0 ^ 0x736f6d6570736575ULL,
		.v1 = k1 ^ 0x646f72616e646f6dULL,
		.v2 = k0 ^ 0x6c7967656e657261ULL,
		.v3 = k1 ^ 0x7465646279746573ULL,
	};
	if (!input)
		return 0;
	for (__u32 i = 0; i < SIPHASH_WORDS && i < count; i++)
		sip_word(&s, input->words[i]);
	sip_word(&s, (__u64)count << 59); /* the length in bytes, in the last byte */
	s.v2 ^= 0xff;
	for (int i = 0; i < 4; i++)
		sip_round(&s);
	return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}
