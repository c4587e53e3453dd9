/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Read cursors: with a log link, a server with state (north side) sends its determinants to the logger before any
 * output that may depend on them. Bytes whose reads are stable there need no copy.
 *
 * The server's process keeps a read cursor for each connection in shared memory; stable_seq is at least that (clamp.h).
 * So a request whose determinants are stable is acknowledged by its response, and its copy, the logger's work with it
 * and the logger's ACK can be left out, where they cost more than they bring: bytes that were left out, and not read
 * when the host died, are retransmitted at the client's timer. A copy is left out of a segment that
 *
 *   is short             a long segment is read in parts, and may have to be acknowledged before that
 *   is the next          all before it is with the logger, one way or the other
 *   finds a server that  the response to the last one acknowledged it, and the read cursor has passed the bytes that
 *     answers              were left out last. So no client waits for more than one of its timers for an ACK
 *   need not be          a server's TCP that has not acknowledged by itself, for a second, what the logger had not
 *     acknowledged soon    yet: a client may be waiting for that before it goes on (RFC 896), and an answer is later
 *   comes soon behind    the logger is to know about where a client is, so that another host believes it
 *     a copy               (restored.h): what it has sent and heard, and its timestamps
 *   is one of many       where few come their copies cost nothing, and who takes over has what was on its way
 *
 * A retransmission was not answered, and is copied. A copy carries the read cursor, so that the logger does not wait
 * for bytes that it will not get.
 */
#pragma once

#include "../lib/kernel.h"
#include "../lib/sequence.h"
#include "../lib/packet.h"
#include "../intf/flow.h"
#include "../intf/service.h"
#include "../intf/read_cursor.h"
#include "state.h"

/* As long as a segment of a request may be, bytes. */
#define SKIP_PAYLOAD 1400
/* A copy follows another within these: bytes of the instream, and nanoseconds. Bytes of the outstream: PROGRESS. */
#define COPY_BYTES (32 * 1024) /* less than the smallest window, see is_credible */
#define COPY_NS (1000ULL * 1000 * 1000)
/* A cursor so far behind `stable`, bytes, is of no use. */
#define CURSOR_STALE (1U << 30)
/* For service.spare_copies. */
#define COPY_COUNT_NS (100ULL * 1000 * 1000)

/* The logger hears how far a client is that only listens, so that another host could speak to it where
 * it listens, if this one died: close enough for whoever watches the connection on the way and takes
 * segments outside of its window for invalid. */
#define PROGRESS (64 * 1024)

static __always_inline __u32 progress_step(const struct flow *f)
{
	__u32 window = (__u32)f->client.window << (f->client.window_scale & 15);
	return window / 2 > PROGRESS ? window / 2 : PROGRESS;
}

/* Where to look first for the cursor of a connection. As north_abi::read_cursors has it. */
static __always_inline __u32 cursor_place(const struct flow_key *key, __u32 isn)
{
	return (isn ^ key->client_port) * 0x9e3779b1 >> 16;
}

static __always_inline bool same_ends(const struct flow_key *a, const struct flow_key *b)
{
	const __u16 *x = (const __u16 *)a, *y = (const __u16 *)b;
	__u16 differs = 0;
	for (__u32 i = 0; i < sizeof(*a) / sizeof(*x); i++)
		differs |= x[i] ^ y[i];
	return !differs;
}

/* A process may have given it to another connection since. */
static __always_inline struct read_cursor *cursor_of(const struct flow *f)
{
	__u32 index = f->log.read_cursor - 1;
	struct read_cursor *cursor = f->log.read_cursor ? bpf_map_lookup_elem(&read_cursors, &index) : NULL;
	if (!cursor || cursor->state != CURSOR_TAKEN || cursor->flow_id != f->id || cursor->isn != f->client.isn)
		return NULL;
	return cursor;
}

static __always_inline struct read_cursor *find_cursor(const struct flow_key *key, struct flow *f)
{
	__u32 first = cursor_place(key, f->client.isn);
	for (__u32 i = 0; i < READ_CURSOR_PROBES; i++) {
		__u32 index = (first + i) & (READ_CURSORS - 1);
		struct read_cursor *cursor = bpf_map_lookup_elem(&read_cursors, &index);
		if (!cursor || cursor->state != CURSOR_TAKEN || cursor->isn != f->client.isn ||
		    !same_ends(&cursor->key, key))
			continue;
		cursor->flow_id = f->id;
		f->log.read_cursor = index + 1;
		return cursor;
	}
	return NULL;
}

/* All before `*seq` is read, with stable determinants. A cursor that stays behind, because another process goes on
 * with the connection, is distrusted before its number comes round. */
static __always_inline bool read_up_to(const struct flow *f, struct read_cursor *cursor, __u32 *seq)
{
	*seq = *(volatile const __u32 *)&cursor->seq;
	if (cursor->skipped_to && !before(*seq, cursor->skipped_to))
		cursor->skipped_to = 0;
	if (before(*seq, f->log.stable - CURSOR_STALE))
		__sync_val_compare_and_swap(&cursor->state, CURSOR_TAKEN, CURSOR_DEAD);
	return cursor->state == CURSOR_TAKEN && !after(*seq, f->client.nxt);
}

/* Advance `stable` to the read cursor. */
static __always_inline void advance_stable(struct flow *f)
{
	struct read_cursor *cursor = cursor_of(f);
	__u32 seq;
	if (cursor && read_up_to(f, cursor, &seq))
		advance(&f->log.stable, seq);
}

/* Do so few segments come that all may be copied? As many as that are, too, when more come all at once. */
static __always_inline bool copies_are_few(struct service *s, __u64 now)
{
	__u64 passed = now - s->copies_since_ns;
	if (passed > COPY_COUNT_NS) {
		s->copies_few = passed > 2 * COPY_COUNT_NS || s->copies <= s->spare_copies;
		s->copies_since_ns = now;
		s->copies = 0;
	}
	return s->copies++ < s->spare_copies && s->copies_few;
}

/* Is a copy due, for the logger to know about where the client is, or for the client to go on? */
static __always_inline bool is_copy_due(const struct flow *f, const struct packet *p, __u64 now)
{
	return (f->log.early_ack_ns && now - f->log.early_ack_ns < COPY_NS) || now - f->log.copied_ns > COPY_NS ||
	       !before(p->seq, f->log.copied + COPY_BYTES) ||
	       !before(p->ack, f->log.copied_ack + progress_step(f));
}

/* Need the logger have no copy of this segment? */
static __always_inline bool is_mirror_skipped(struct service *s, struct flow *f, struct read_cursor *cursor,
					     const struct packet *p, __u64 now)
{
	if (!f->log.all_acked || cursor->skipped_to || !p->payload_len || p->payload_len > SKIP_PAYLOAD ||
	    (p->flags & TCP_FIN) ||
	    p->seq != f->log.stable || p->seq + p->payload_len != f->client.nxt || f->closed_ns ||
	    flow_stands_still(s, f) || is_copy_due(f, p, now) || copies_are_few(s, now))
		return false;
	f->log.all_acked = 0;
	cursor->skipped_to = f->client.nxt;
	count(COUNT_MIRROR_SKIPPED);
	return true;
}
