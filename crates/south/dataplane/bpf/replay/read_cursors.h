/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Notes: with a log link, a server with state (north side) tells its logger by itself what it has read,
 * before it says anything that may depend on it. What was read and is noted there needs no copy.
 *
 * The server's process says in shared memory how far that is, connection by connection; stable_seq is at
 * least that (clamp.h). So a request that is read, noted and answered is acknowledged by its answer, and its
 * copy, the logger's work with it and the logger's word on it can be left out, where they cost more than they
 * bring: what was left out and not read when the host died comes again when its client's timer says so. A copy
 * is left out of a segment that
 *
 *   is short             what is long is read in parts, and may have to be acknowledged before that
 *   is the next          all before it is with the logger, one way or the other
 *   finds a server that  the answer to the last one acknowledged it, and what was left out last is noted.
 *     answers              So no client waits for more than one of its timers for an ACK
 *   need not be          a server's TCP that has not acknowledged by itself, for a second, what the logger had not
 *     acknowledged soon    yet: a client may be waiting for that before it goes on (RFC 896), and an answer is later
 *   comes soon behind    the logger is to know about where a client is, so that another host believes it
 *     a copy               (restored.h): what it has sent and heard, and its timestamps
 *   is one of many       where few come their copies cost nothing, and who takes over has what was on its way
 *
 * What comes again was not answered, and is copied. A copy says how far all before it is noted, so that
 * the logger does not wait for what it will not get.
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
#define NOTE_PAYLOAD 1400
/* A copy follows another within these: bytes of the instream, and nanoseconds. Bytes of the outstream: PROGRESS. */
#define NOTE_BYTES (32 * 1024) /* less than the smallest window, see is_credible */
#define NOTE_NS (1000ULL * 1000 * 1000)
/* So far behind what the logger has, bytes, a note is of no use. */
#define NOTE_STALE (1U << 30)
/* For service.spare_copies. */
#define NOTE_TENTH_NS (100ULL * 1000 * 1000)

/* The logger hears how far a client is that only listens, so that another host could speak to it where
 * it listens, if this one died: close enough for whoever watches the connection on the way and takes
 * segments outside of its window for invalid. */
#define PROGRESS (64 * 1024)

static __always_inline __u32 progress_step(const struct flow *f)
{
	__u32 window = (__u32)f->client.window << (f->client.window_scale & 15);
	return window / 2 > PROGRESS ? window / 2 : PROGRESS;
}

/* Where to look first for the note of a connection. As north_abi::notes has it. */
static __always_inline __u32 note_place(const struct flow_key *key, __u32 isn)
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
static __always_inline struct note *note_of(const struct flow *f)
{
	__u32 index = f->log.note - 1;
	struct note *n = f->log.note ? bpf_map_lookup_elem(&notes, &index) : NULL;
	return n && n->taken == NOTE_TAKEN && n->flow_id == f->id && n->isn == f->client.isn ? n : NULL;
}

static __always_inline struct note *find_note(const struct flow_key *key, struct flow *f)
{
	__u32 first = note_place(key, f->client.isn);
	for (__u32 i = 0; i < NOTE_PROBES; i++) {
		__u32 index = (first + i) & (NOTES - 1);
		struct note *n = bpf_map_lookup_elem(&notes, &index);
		if (!n || n->taken != NOTE_TAKEN || n->isn != f->client.isn || !same_ends(&n->key, key))
			continue;
		n->flow_id = f->id;
		f->log.note = index + 1;
		return n;
	}
	return NULL;
}

/* What lies before `*seq` is noted. One that stays behind, because another process goes on with the connection, is
 * believed no more before its number comes round. */
static __always_inline bool noted_up_to(const struct flow *f, struct note *n, __u32 *seq)
{
	*seq = *(volatile const __u32 *)&n->seq;
	if (n->left && !before(*seq, n->left))
		n->left = 0;
	if (before(*seq, f->log.stable - NOTE_STALE))
		__sync_val_compare_and_swap(&n->taken, NOTE_TAKEN, NOTE_DEAD);
	return n->taken == NOTE_TAKEN && !after(*seq, f->client.nxt);
}

/* Hear what the server's process has said by now. */
static __always_inline void hear_note(struct flow *f)
{
	struct note *n = note_of(f);
	__u32 seq;
	if (n && noted_up_to(f, n, &seq))
		advance(&f->log.stable, seq);
}

/* Do so few segments come that all may be copied? As many as that are, too, when more come all at once. */
static __always_inline bool copies_are_few(struct service *s, __u64 now)
{
	__u64 passed = now - s->copies_since_ns;
	if (passed > NOTE_TENTH_NS) {
		s->copies_few = passed > 2 * NOTE_TENTH_NS || s->copies <= s->spare_copies;
		s->copies_since_ns = now;
		s->copies = 0;
	}
	return s->copies++ < s->spare_copies && s->copies_few;
}

/* Is a copy due, for the logger to know about where the client is, or for the client to go on? */
static __always_inline bool is_copy_due(const struct flow *f, const struct packet *p, __u64 now)
{
	return (f->log.early_ack_ns && now - f->log.early_ack_ns < NOTE_NS) || now - f->log.copied_ns > NOTE_NS ||
	       !before(p->seq, f->log.copied + NOTE_BYTES) ||
	       !before(p->ack, f->log.copied_ack + progress_step(f));
}

/* Need the logger have no copy of this segment? */
static __always_inline bool is_left_to_notes(struct service *s, struct flow *f, struct note *n,
					     const struct packet *p, __u64 now)
{
	if (!f->log.all_acked || n->left || !p->payload_len || p->payload_len > NOTE_PAYLOAD || (p->flags & TCP_FIN) ||
	    p->seq != f->log.stable || p->seq + p->payload_len != f->client.nxt || f->closed_ns ||
	    flow_stands_still(s, f) || is_copy_due(f, p, now) || copies_are_few(s, now))
		return false;
	f->log.all_acked = 0;
	n->left = f->client.nxt;
	count(COUNT_LEFT_TO_NOTES);
	return true;
}
