/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Bodies in chunks (RFC 9112 7.1): where a response ends. The same reader as http1::chunks.
 */
#pragma once

#include "../lib/kernel.h"
#include "../lib/sequence.h"
#include "../lib/packet.h"
#include "../intf/objects.h"
#include "state.h"

struct chunk_reader {
	struct __sk_buff *skb;
	__u64 left; /* the length as far as it is read, or the bytes that the chunk still has */
	__u32 at;   /* in the frame */
	__u32 end;
	__u8 place; /* enum chunk_place */
	__u8 is_malformed;
};

/* The value of a digit, or 16. */
static __always_inline __u8 hex_digit(__u8 byte)
{
	if (byte >= '0' && byte <= '9')
		return byte - '0';
	byte |= 0x20;
	return byte >= 'a' && byte <= 'f' ? byte - 'a' + 10 : 16;
}

/* The place behind a byte that is not of a chunk; CHUNK_NONE: the byte does not belong there. */
static __always_inline __u8 place_behind(struct chunk_reader *r, __u8 byte)
{
	__u8 digit = hex_digit(byte);
	switch (r->place) {
	case CHUNK_FIRST_DIGIT:
	case CHUNK_DIGIT:
		if (digit < 16) {
			if (r->left >> 60)
				return CHUNK_NONE;
			r->left = r->left << 4 | digit;
			return CHUNK_DIGIT;
		}
		if (r->place == CHUNK_FIRST_DIGIT)
			return CHUNK_NONE;
		if (byte == ';' || byte == ' ' || byte == '\t')
			return CHUNK_EXTENSION;
		return byte == '\r' ? CHUNK_LENGTH_END : CHUNK_NONE;
	case CHUNK_EXTENSION:
		if (byte == '\n')
			return CHUNK_NONE;
		return byte == '\r' ? CHUNK_LENGTH_END : CHUNK_EXTENSION;
	case CHUNK_LENGTH_END:
		if (byte != '\n')
			return CHUNK_NONE;
		return r->left ? CHUNK_DATA : CHUNK_LAST_RETURN;
	case CHUNK_DATA_RETURN:
		return byte == '\r' ? CHUNK_DATA_END : CHUNK_NONE;
	case CHUNK_DATA_END:
		return byte == '\n' ? CHUNK_FIRST_DIGIT : CHUNK_NONE;
	case CHUNK_LAST_RETURN:
	case CHUNK_TRAILER:
		if (byte == '\n')
			return CHUNK_NONE;
		if (byte != '\r')
			return CHUNK_TRAILER;
		return r->place == CHUNK_TRAILER ? CHUNK_TRAILER_END : CHUNK_LAST;
	case CHUNK_TRAILER_END:
		return byte == '\n' ? CHUNK_LAST_RETURN : CHUNK_NONE;
	case CHUNK_LAST:
		return byte == '\n' ? CHUNK_DONE : CHUNK_NONE;
	default:
		return CHUNK_NONE;
	}
}

static long chunk_step(__u32 index, struct chunk_reader *r)
{
	__u8 byte = 0;
	if (r->at >= r->end || r->place == CHUNK_DONE)
		return 1;
	if (r->place == CHUNK_DATA) {
		__u32 len = r->end - r->at;
		if (r->left < len)
			len = r->left;
		r->left -= len;
		r->at += len;
		if (!r->left)
			r->place = CHUNK_DATA_RETURN;
		return 0;
	}
	__u8 next = bpf_skb_load_bytes(r->skb, r->at, &byte, 1) ? CHUNK_NONE : place_behind(r, byte);
	if (next == CHUNK_NONE) {
		r->is_malformed = 1;
		return 1;
	}
	r->place = next;
	r->at++;
	return 0;
}

/* Result of a look at the chunks of a segment; otherwise why the response is not protected (enum unprotected_object). */
#define CHUNKS_ARE_READ 0
#define CHUNKS_ARE_MISSING -1 /* bytes before the segment */
#define CHUNKS_DIVERGE -2 /* the response is another one than the client has a part of */

/* Reads the bytes of a segment, whose payload begins at `at` in the frame and at `seq` in the client's view. A function
 * of its own for the verifier. */
__noinline int read_chunks(struct __sk_buff *skb, struct object_flow *f, __u32 at, __u32 seq, __u32 len)
{
	if (!f)
		return CHUNKS_ARE_READ;
	struct object_turn *t = &f->turn;
	if (t->phase != OBJECT_BODY)
		return CHUNKS_ARE_READ;
	if (after(seq, t->chunk_next))
		return CHUNKS_ARE_MISSING;
	if (!after(seq + len, t->chunk_next))
		return CHUNKS_ARE_READ;
	struct chunk_reader r = {
		.skb = skb,
		.left = t->chunk_left,
		.at = at + (t->chunk_next - seq),
		.end = at + len,
		.place = t->chunk_place,
	};
	bpf_loop(CHUNK_STEPS_MOST, chunk_step, &r, 0);
	bool is_done = r.place == CHUNK_DONE, is_doubt = r.is_malformed || (r.at < r.end && !is_done);
	__u32 next = seq + (r.at - at);
	if ((is_done || is_doubt) && before(next, f->client_ack))
		return CHUNKS_DIVERGE;
	if (is_doubt)
		return OBJECT_CHUNKED;
	t->chunk_next = next;
	t->chunk_left = r.left;
	t->chunk_place = is_done ? CHUNK_NONE : r.place;
	if (!is_done)
		return CHUNKS_ARE_READ;
	/* `sent` may grow at ingress; its distance from the end is small. */
	__u64 sent = *(const volatile __u64 *)&t->sent;
	t->response_len = sent + (__s64)(__s32)(next - t->response_start - (__u32)sent);
	return r.at < r.end ? OBJECT_SERVER : CHUNKS_ARE_READ;
}
