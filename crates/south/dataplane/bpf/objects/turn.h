/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Turns of a connection: a request, and its response (TRODS 3.2). While the client lacks a part of the response, the
 * request stays unacknowledged: the client keeps the request for the next member.
 */
#pragma once

#include "../lib/kernel.h"
#include "../lib/sequence.h"
#include "../lib/packet.h"
#include "../intf/objects.h"
#include "head.h"
#include "state.h"
#include "timestamps.h"
#include "copy.h"
#include "chunks.h"

/* Segments on Ethernet (RFC 9293 3.7.1), and the option of timestamps with its padding. */
#define ETHERNET_SEGMENT_SIZE 1460
#define TIMESTAMPS_LEN 12
/* IP and TCP. */
#define HEADERS_MOST 120

/* Where the payload begins in the frame. */
static __always_inline __u32 payload_at(const struct packet *p)
{
	return p->tcp_offset + p->header_len;
}

/* End of the bytes that the client was sent, by whichever server: a server that died may have sent more of the response
 * than this server's socket has, and the client acknowledges these as soon as a hole before them is filled. */
static __always_inline __u32 sent_end(const struct object_flow *f)
{
	return after(f->client_ack, f->nxt) ? f->client_ack : f->nxt;
}

/* The last number that the client may acknowledge: of a revived connection, the end of the response, and a FIN. */
static __always_inline __u32 last_ack(const struct object_flow *f)
{
	const struct object_turn *t = &f->turn;
	__u64 left = t->response_len - t->sent;
	if (t->response_len == NO_LENGTH && t->chunk_place)
		left = LARGEST_WINDOW;
	else if (t->response_len == NO_LENGTH || t->response_len < t->sent)
		return sent_end(f);
	if (f->floor == f->isn || t->phase != OBJECT_BODY || left > LARGEST_WINDOW)
		return sent_end(f);
	return sent_end(f) + (__u32)left + 1;
}

/* Why a request cannot be guarded; 0 if it can. */
static __always_inline __u8 objection(const struct request_head *head)
{
	if (head->verdict == HEAD_PARTIAL)
		return OBJECT_SPLIT_REQUEST;
	if (head->verdict != HEAD_WHOLE)
		return OBJECT_NOT_HTTP;
	if (head->flags & (REQUEST_UPGRADE | REQUEST_EXPECT))
		return OBJECT_UPGRADED;
	if (head->flags & REQUEST_RANGES)
		return OBJECT_MULTIPART;
	if (head->body != BODY_BYTES || head->body_len > LARGEST_WINDOW)
		return OBJECT_METHOD;
	return OBJECT_PROTECTED;
}

/* A record has the request from one copy. Without a store the client repeats a longer request in several segments, and
 * no member joins the segments. */
static __always_inline __u32 longest_request(const struct member *m, const struct object_flow *f)
{
	if (m->store)
		return OBJECT_TURN_COPY_MOST - HEADERS_MOST;
	__u32 size = f->segment_size < ETHERNET_SEGMENT_SIZE ? f->segment_size : ETHERNET_SEGMENT_SIZE;
	__u32 options = f->has_timestamps ? TIMESTAMPS_LEN : 0;
	return size > options ? size - options : 0;
}

/* The bytes are not the next request of the connection, whole and alone. `is_queued`: the bytes have waited already. True:
 * the bytes wait for their turn (objects::queue). */
static __always_inline bool must_wait(struct member *m, const struct flow_key *key, struct object_flow *f, __u8 reason,
				      bool is_queued)
{
	if (!is_queued)
		return true;
	lose_protection(m, key, f, reason);
	return false;
}

/* New bytes of the client. True: the bytes wait for their turn. */
static __always_inline bool on_client_payload(struct __sk_buff *skb, struct member *m, const struct flow_key *key,
					      struct object_flow *f, const struct packet *p, bool is_queued)
{
	__u32 end = p->seq + p->payload_len;
	struct object_turn *t = &f->turn;
	if (f->unprotected)
		return false;
	if (t->phase != OBJECT_IDLE) {
		/* The rest of a body belongs to the turn. */
		return after(end, t->request_end) && must_wait(m, key, f, OBJECT_PIPELINED, is_queued);
	}
	if (p->seq != f->client_nxt)
		return must_wait(m, key, f, OBJECT_SPLIT_REQUEST, is_queued);
	if (p->ack != sent_end(f))
		return must_wait(m, key, f, OBJECT_PIPELINED, is_queued);
	struct request_head head = {};
	scan_request(skb, payload_at(p), p->payload_len, &head);
	/* Without a store no member can repeat a request of several segments. */
	if (head.verdict == HEAD_PARTIAL && m->store)
		return must_wait(m, key, f, OBJECT_SPLIT_REQUEST, is_queued);
	__u8 reason = objection(&head);
	/* User space blanks the field. */
	if (!reason && m->takes_inputs && (head.flags & REQUEST_INPUTS) && !is_queued)
		return true;
	if (!reason && p->payload_len > head.len + head.body_len)
		return must_wait(m, key, f, OBJECT_PIPELINED, is_queued);
	bool is_guarded = head.method == METHOD_GET && !head.body_len && (f->has_timestamps || m->store == STORE_INDEXED);
	/* Where the last bytes begin is in the record alone. */
	if (!reason && is_guarded && !m->store && (head.flags & REQUEST_SUFFIX))
		reason = OBJECT_OWN_RANGE;
	if (!reason && is_guarded && p->payload_len > longest_request(m, f))
		reason = OBJECT_SPLIT_REQUEST;
	if (reason) {
		lose_protection(m, key, f, reason);
		return false;
	}
	t->request_start = p->seq;
	t->request_end = p->seq + head.len + (__u32)head.body_len;
	t->response_start = p->ack;
	t->response_len = NO_LENGTH;
	t->chunk_place = CHUNK_NONE;
	t->chunk_left = 0;
	t->chunk_next = 0;
	t->acked = 0;
	t->sent = 0;
	t->method = head.method;
	t->has_range = !!(head.flags & REQUEST_RANGE);
	t->is_guarded = is_guarded;
	t->has_inputs = 0;
	t->repeats = 0;
	t->released = 0;
	/* Of the first request it is the time of the handshake: the slot of the connection tells no other. */
	if (t->number)
		t->asked_ns = bpf_ktime_get_ns();
	t->phase = OBJECT_ASKED;
	if (m->store && t->is_guarded)
		copy_turn(skb, key, p->ip_len, COPY_REQUEST, BPF_RB_NO_WAKEUP);
	return false;
}

/* Bytes of a guarded request that are acknowledged with its response: objects::flow::released_with_response. */
static __always_inline __u8 released_with_response(__u32 turn_number)
{
	return turn_number & 1 ? 2 : 1;
}

/* The head of a response. The reason why the rest of the response is not protected, or 0. */
static __always_inline __u8 on_response_head(struct __sk_buff *skb, struct member *m, struct object_scratch *s,
					     const struct flow_key *key, struct object_flow *f, const struct packet *p)
{
	struct object_turn *t = &f->turn;
	struct response_head head = {};
	scan_response(skb, payload_at(p), p->payload_len, t->method, m->version_check, &head);
	if (head.verdict != HEAD_WHOLE || head.status < 200)
		return OBJECT_HEADER;
	if (m->takes_inputs && (head.flags & RESPONSE_INPUTS)) {
		t->has_inputs = 1;
		t->head_end = t->response_start + head.len;
		/* Without its inputs no server repeats the response. */
		if (!m->store)
			t->is_guarded = 0;
	}
	bool is_repeatable = m->takes_chunks && m->store;
	if (head.body == BODY_CHUNKED && (!is_repeatable || head.status == 206))
		return OBJECT_CHUNKED;
	if (head.flags & RESPONSE_PARTS)
		return OBJECT_MULTIPART;
	/* Another server may do as asked: the position in the object would be another. */
	if (head.status == 200 || head.status == 206) {
		if (t->has_range != !!(head.flags & RESPONSE_PART))
			return OBJECT_OWN_RANGE;
	}
	__u32 word = version_word(head.version, head.range_first);
	t->response_len = head.body == BODY_BYTES ? head.len + head.body_len : NO_LENGTH;
	if (head.body == BODY_CHUNKED) {
		t->chunk_place = CHUNK_FIRST_DIGIT;
		t->chunk_next = t->response_start + head.len;
	}
	if (head.body == BODY_CHUNKED || (!t->number && head.len >= HEADER_MOST)) {
		if (!m->store || head.len > OBJECT_TURN_COPY_MOST - HEADERS_MOST)
			return OBJECT_HEADER;
		/* The record alone tells the position, and that the response is in chunks. */
		f->exposed_turn = t->number + 1;
		f->body_state = f->bare;
	} else if (!t->number) {
		f->body_state = first_state(s, m, key, f, head.len, word);
	} else {
		f->body_state = later_state(s, m, key, f, t->response_start + head.len, word);
	}
	t->phase = OBJECT_BODY;
	/* Of other responses a part of the object is no continuation. */
	if ((head.status != 200 && head.status != 206) || (head.body == BODY_BYTES && !head.body_len))
		t->is_guarded = 0;
	if (t->is_guarded && t->released < released_with_response(t->number))
		t->released = released_with_response(t->number);
	return OBJECT_PROTECTED;
}

/* The client's TCP sends a request again and again that nobody acknowledges. Windows gives up after five times: after the
 * fourth some bytes are acknowledged, and the count begins anew. Only of bytes that every guarded request begins with. */
#define RELEASE_AFTER 4
#define RELEASE_STEP 2
#define RELEASED_BEYOND 3 /* so many bytes, or more: a later response may be further than its timestamps tell */

/* A guarded request without a record is unacknowledged for too long. */
static __always_inline bool is_overdue(const struct member *m, const struct object_flow *f)
{
	return !is_stored(f) && bpf_ktime_get_ns() - f->turn.asked_ns > m->withhold_ns;
}

static __always_inline void on_repeated_request(struct member *m, const struct flow_key *key, struct object_flow *f)
{
	struct object_turn *t = &f->turn;
	if (is_overdue(m, f)) {
		lose_protection(m, key, f, OBJECT_WITHHELD_TOO_LONG);
		return;
	}
	/* User space answers so that the pauses do not double (objects::unreachable). */
	tell(m, OBJECT_REPEATED, key, 0, t->request_start + t->released);
	__u8 released = t->released ? t->released + RELEASE_STEP : released_with_response(t->number);
	if (released > RELEASED_MOST || ++t->repeats < RELEASE_AFTER)
		return;
	t->repeats = 0;
	t->released = released; /* the server's TCP answers the repetition, and that answer says it */
}

/* New bytes of the server, up to `end` as the client sees the numbers. Whether the bytes leave is not certain yet. */
static __always_inline void on_server_payload(struct __sk_buff *skb, struct member *m, struct object_scratch *s,
					      const struct flow_key *key, struct object_flow *f, const struct packet *p,
					      __u32 end)
{
	struct object_turn *t = &f->turn;
	__u8 reason = OBJECT_PROTECTED;
	bool is_head = t->phase == OBJECT_ASKED;
	if (f->unprotected)
		return;
	if (t->phase == OBJECT_ASKED)
		reason = p->seq + f->delta == t->response_start ? on_response_head(skb, m, s, key, f, p) : OBJECT_SERVER;
	else if (t->phase == OBJECT_IDLE)
		reason = OBJECT_SERVER; /* a word that nobody asked for */
	__u64 sent = t->sent + (end - sent_end(f));
	if (!reason && sent > t->response_len)
		reason = OBJECT_SERVER;
	__u64 limit = !t->number ? FIRST_LIMIT : m->is_immutable ? FAR_LIMIT : NEAR_LIMIT;
	if (!reason && t->is_guarded && sent > limit) {
		/* Without protection until the store answers. */
		if (!is_stored(f) && m->store && t->number && t->method == METHOD_GET)
			f->exposed_turn = t->number + 1;
		else if (!is_stored(f))
			reason = t->number ? OBJECT_LATER_RESPONSE : OBJECT_TOO_LONG;
		/* An echo may be older than the acknowledgement: of the segment that filled a hole. */
		if (!reason && t->number && t->released < RELEASED_BEYOND)
			t->released += RELEASE_STEP;
	}
	if (reason)
		lose_protection(m, key, f, reason);
	else if (is_head && m->store && t->is_guarded)
		/* A later response is soon further than its timestamps can tell. */
		copy_turn(skb, key, p->ip_len, COPY_RESPONSE,
			  !f->has_timestamps || t->has_inputs || is_exposed(f) ||
					  (t->number && t->response_len > NEAR_LIMIT) ?
				  BPF_RB_FORCE_WAKEUP :
											      BPF_RB_NO_WAKEUP);
}

/* Bytes have left, up to `payload_end` and with a FIN to `end`. A pure ACK tells nothing of bytes that were withheld.
 * The floor stays as near behind what the client was sent as a segment that comes again can be: what lies further
 * apart than half of the sequence space is in no order (RFC 9293 3.4). */
static __always_inline void advance_nxt(struct object_flow *f, __u32 payload_end, __u32 end)
{
	__u32 known = sent_end(f);
	if (after(payload_end, known))
		__sync_fetch_and_add(&f->turn.sent, (__u64)(payload_end - known));
	advance(&f->nxt, end);
	if (f->nxt - f->floor > LARGEST_WINDOW)
		f->floor = f->nxt - LARGEST_WINDOW;
}

/* The end of a response in chunks: also in bytes that the client has from another server. See CHUNKS_ARE_READ. */
static __always_inline int follow_chunks(struct __sk_buff *skb, struct member *m, const struct flow_key *key,
					 struct object_flow *f, const struct packet *p)
{
	int result = read_chunks(skb, f, payload_at(p), p->seq + f->delta, p->payload_len);
	if (result <= 0)
		return result;
	lose_protection(m, key, f, result);
	return CHUNKS_ARE_READ;
}

/* A response that ends here ends before the client's position. The client would take no FIN and no RST there. */
static __always_inline bool is_short(const struct object_flow *f, __u32 end)
{
	return before(end, f->floor) || (!before(end, f->nxt) && before(end, f->client_ack));
}

/* The whole response has left. */
static __always_inline bool is_answered(const struct object_turn *t)
{
	return t->phase == OBJECT_BODY && t->sent >= t->response_len;
}

/* The server ends the response by closing. */
static __always_inline void on_server_fin(struct object_flow *f)
{
	if (f->turn.phase == OBJECT_BODY && f->turn.response_len == NO_LENGTH) {
		f->turn.response_len = f->turn.sent;
		f->turn.chunk_place = CHUNK_NONE;
	}
}

/* The bytes that an acknowledgement adds. Segments of a connection may be in the hands of several processors at a time
 * (a client without a network card between: its softirq and its process), and each byte counts once. */
static __always_inline __u32 claim_acked(struct object_flow *f, __u32 ack)
{
	for (__u32 i = 0; i < ADVANCE_TRIES; i++) {
		__u32 known = *(volatile __u32 *)&f->client_ack;
		if (!after(ack, known))
			return 0;
		/* The client has bytes of another server. */
		__u32 end = after(known, f->nxt) ? known : f->nxt;
		if (__sync_val_compare_and_swap(&f->client_ack, known, ack) != known)
			continue;
		if (after(ack, end))
			__sync_fetch_and_add(&f->turn.sent, (__u64)(ack - end));
		return ack - known;
	}
	return 0; /* the next acknowledgement has these bytes, too */
}

/* An acknowledgement of the client, in a segment whose payload ends at `end`. Whether the turn is over with that. */
static __always_inline bool on_client_ack(struct object_flow *f, __u32 ack, __u32 end)
{
	struct object_turn *t = &f->turn;
	bool is_body = t->phase == OBJECT_BODY;
	__u32 more = claim_acked(f, ack), nothing = 0;
	asm volatile("" : "+r"(nothing)); /* clang would make a loop of it */
	if (is_body && more)
		__sync_fetch_and_add(&t->acked, (__u64)more);
	if (t->phase != OBJECT_BODY || t->acked < t->response_len)
		return false;
	/* Also with the last bytes of a request that the server has answered before. */
	if (before(f->client_nxt, t->request_end) && before(end, t->request_end))
		return false;
	/* One processor ends the turn. The number is read before the phase is, and is written after it. */
	__u32 number = __sync_fetch_and_add(&t->number, nothing);
	if (*(volatile __u8 *)&t->phase != OBJECT_BODY ||
	    __sync_val_compare_and_swap(&t->ended, number, number + 1) != number)
		return false;
	f->agreed ^= number_bits(t->request_start) ^ number_bits(t->request_end);
	t->phase = OBJECT_IDLE;
	t->is_guarded = 0;
	__sync_fetch_and_add(&t->number, 1);
	return true;
}
