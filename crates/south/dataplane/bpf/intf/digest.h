/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Digests of the outstream: see replay/digest.h.
 */
#pragma once

#include "../lib/kernel.h"

/* Outstream bytes that a digest folds at once, aligned in client space; where it only samples, so many of each so many
 * (digest.h). */
#define DIGEST_CHUNK 512
#define DIGEST_SAMPLE 64
#define DIGEST_UNIT 32768
/* A logger on another machine gets a digest at least once in so many bytes, for a host that takes over. */
#define DIGEST_INTERVAL 65536

/* Of the outstream from `base` up to before `next`, client space. Equal ones with the same ends are of equal bytes. */
struct digest {
	__u64 folded; /* of whole chunks */
	__u64 sum;    /* of the chunk that `next` is in */
	__u32 base;
	__u32 next;
};

enum digest_comparison {
	COMPARES_NOT = 0,
	COMPARES = 1, /* `now` has to become what `acked` and `sent` are */
	HAS_COMPARED = 2, /* it has become `sent` */
};

enum sampling {
	SAMPLED = 1,
	TURN_SAMPLED = 2,
};

/* What the server says, and has to say again (digest.h). */
struct digest_half {
	struct digest now; /* of what it has said; in a replay it begins anew */
	__u32 sampled_from; /* what lies before it is digested whole */
	__u8 taken;    /* this flow has digests */
	__u8 sampled;  /* enum sampling: `sampled_from` is set; and this turn began behind that */
	__u8 comparison; /* enum digest_comparison */
	__u8 retransmits; /* of the segment that waits for that */
	struct digest newer; /* what becomes of `acked` when the client has acknowledged more */
	struct digest acked; /* of what earlier servers have said, as far as the client is known to have acknowledged it */
	struct digest sent;  /* of all that they have said */
	struct digest turn;  /* where this turn begins */
	struct digest wanted; /* of what they had said before a request of the client, which waits for that */
	__u32 wants; /* `wanted` is still to be compared. Set from outside, reset at egress */
	__u32 link_sent; /* end of the digest that the link sent last, when the client had received all of that */
	__u32 changes; /* of `now`: odd while it is under way, for readers on other processors */
	__u32 pad;
};

/* Unknown to those whose bytes are digested. */
struct digest_key {
	__u64 point; /* less than 2^61 - 1 */
	__u64 place_factor;
	__u64 place_offset;
	__u64 factors[DIGEST_CHUNK / 4];
	__u64 seed[2]; /* what all that is made of: for a host that takes over */
};

/* What may be digested whole: so much on each processor. */
struct digest_budget {
	__u64 filled_ns;
	__u64 left; /* bytes */
};
