/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Mirroring: copies of the instream, and of the head of each turn of the outstream, go into a
 * ring that the logger reads. The ring is pinned kernel memory: what is in it survives the
 * server, the supervisor and the logger process.
 *
 * The rule that makes the record complete: a segment that finds no room in the ring is not
 * delivered to the server either. It is dropped, unacknowledged, and the client's own TCP
 * sends it again. Only when `serve` has been silent for its heartbeat, or the packet is longer
 * than any frame, is the connection declared unprotected and the segment let through, so that
 * nobody's upload freezes.
 *
 * A ring record's size must be a constant unless it is written through a dynptr, whose slices
 * have constant sizes again: short packets get one of a few fixed sizes, long ones a multiple
 * of MIRROR_SLICE. What a record has more than its packet costs no copy, but room: the ring is larger than
 * what is near the processor, and each page that is entered costs both sides more than the bytes do.
 */
#pragma once

#include "../lib/kernel.h"
#include "../lib/sequence.h"
#include "../lib/packet.h"
#include "../lib/checksum.h"
#include "../intf/digest.h"
#include "../intf/flow.h"
#include "../intf/service.h"
#include "../intf/mirror.h"
#include "state.h"
#include "link.h"

#define MIRROR_FRAME 2048 /* the largest of a fixed size */
#define MIRROR_SLICE 4096
#define MIRROR_SLICES 64
/* Wake the logger when this much waits; otherwise it comes by itself every few milliseconds. */
#define MIRROR_WAKE (256 * 1024)

/* Said with the kind of a frame: what is in the ring is on its way to another machine, and is to be there when
 * this one stops. The reader sleeps only when it has read all. */
#define MIRROR_SOON 0x100

/* Up to where the ring was filled when these programs woke its reader last. */
__u64 woken_to;

/* A wake-up is an interrupt, and takes longer than the rest of a frame. So the reader is woken once of what waits, and
 * not again before it has read up to there. None is lost: a reader that was woken sleeps only when it finds the ring
 * empty (poll(2) of libbpf's epoll), and has read up to `woken_to` then: the next frame that finds MIRROR_WAKE waiting
 * wakes it. `woken_to` is read by an atomic operation for its barrier: where the reader looks at the same moment, either it finds
 * our frame, or we find what it has read. Two processors may both wake it; programs that are loaded
 * in place of these know of no wake-up, and do so once more. A function of its own for the verifier, which looks at it once
 * and not at every frame. */
__noinline __u64 wake_flags(__u32 kind)
{
	if (kind & MIRROR_SOON)
		return 0;
	if (bpf_ringbuf_query(&mirror, BPF_RB_AVAIL_DATA) < MIRROR_WAKE)
		return BPF_RB_NO_WAKEUP;
	__u64 nothing = 0;
	asm volatile("" : "+r"(nothing)); /* clang would make a loop of it */
	__u64 told = __sync_fetch_and_add(&woken_to, nothing);
	if (bpf_ringbuf_query(&mirror, BPF_RB_CONS_POS) < told)
		return BPF_RB_NO_WAKEUP;
	/* Our frame is behind it, and is not read before it is submitted, which wakes the reader. */
	*(volatile __u64 *)&woken_to = bpf_ringbuf_query(&mirror, BPF_RB_PROD_POS);
	return BPF_RB_FORCE_WAKEUP;
}

/* Bytes of the header in frames of this version. */
static __always_inline __u32 mirror_header_len(__u8 version)
{
#ifdef OUTLIVE_NEXT_VERSION
	if (version <= MIRROR_VERSION)
		return __builtin_offsetof(struct mirror_header, next_version);
#endif
	return sizeof(struct mirror_header);
}

static __always_inline __u8 mirror_version(const struct service *s)
{
	return s ? s->mirror_version : MIRROR_VERSION;
}

/* Before the packet, which begins at mirror_header_len(version). */
static __always_inline void fill_header(struct mirror_header *h, __u8 version, __u8 kind, struct flow *f,
					__u32 packet_len, __u32 captured_len)
{
	h->magic = MIRROR_MAGIC;
	h->version = version;
	h->kind = kind;
	h->reason = 0;
	h->unfinished = 0;
	h->flow_id = f->id;
	h->timestamp_ns = bpf_ktime_get_ns();
	h->server_nxt = f->server.nxt;
	h->server_ack = f->server.ack;
	h->packet_len = packet_len;
	h->captured_len = captured_len;
	h->token = kind == MIRROR_OUTSTREAM ? ((__u64)f->verify.request_end << 32) | f->verify.head_next : 0;
#ifdef OUTLIVE_NEXT_VERSION
	h->next_version = f->id;
#endif
}

/* A frame without a packet. */
static __always_inline bool mirror_marker(struct flow *f, __u8 kind, __u8 reason, __u64 token)
{
	const struct service *s = the_service();
	struct mirror_header *h = bpf_ringbuf_reserve(&mirror, sizeof(*h), 0);
	if (!h)
		return false;
	fill_header(h, mirror_version(s), kind, f, 0, 0);
	h->reason = reason;
	h->token = token;
	/* Somebody waits for a barrier. */
	__u32 soon = s && s->link ? MIRROR_SOON : 0;
	bpf_ringbuf_submit(h, kind == MIRROR_BARRIER ? BPF_RB_FORCE_WAKEUP : wake_flags(soon));
	return true;
}

/* What the client was sent so far. */
static __always_inline void mirror_output_digest(struct flow *f, const struct digest *digest)
{
	__u8 version = mirror_version(the_service());
	struct mirror_header *h = bpf_ringbuf_reserve(&mirror, sizeof(*h) + sizeof(*digest), 0);
	if (!h) {
		count(COUNT_HEADS_LOST);
		return;
	}
	fill_header(h, version, MIRROR_DIGEST, f, sizeof(*digest), sizeof(*digest));
	*(struct digest *)((void *)h + mirror_header_len(version)) = *digest;
	bpf_ringbuf_submit(h, wake_flags(0));
}

/* Forget a flow whose ends are another connection's. */
static __always_inline void evict(const struct flow_key *key, struct flow *f)
{
	mirror_marker(f, MIRROR_CLOSED, CLOSED_EVICTED, 0);
	bpf_map_delete_elem(&flows, key);
}

/* A handshake begins anew: a logger that knows it by its number is told that it will not be. */
static __always_inline void replace_half_open(const struct service *s, struct flow *e)
{
	if (s->link && e->id)
		mirror_marker(e, MIRROR_CLOSED, CLOSED_EVICTED, 0);
	e->id = 0;
}

#define MIRROR_FIXED(limit)                                                                       \
	if (len <= (limit)) {                                                                     \
		struct {                                                                          \
			struct mirror_header header;                                              \
			__u8 packet[limit];                                                       \
		} *r = bpf_ringbuf_reserve(&mirror, sizeof(*r), 0);                               \
		if (!r)                                                                           \
			return false;                                                             \
		fill_header(&r->header, version, kind, f, ip_len, len);                           \
		r->header.unfinished = unfinished(skb);                                           \
		if (bpf_skb_load_bytes(skb, ETH_HLEN, (void *)r + mirror_header_len(version),     \
				       at_least_1(len, (limit) - 1))) {                           \
			bpf_ringbuf_discard(r, BPF_RB_NO_WAKEUP);                                 \
			return false;                                                             \
		}                                                                                 \
		bpf_ringbuf_submit(r, wake_flags(kind));                                          \
		return true;                                                                      \
	}

/* Functions of their own for the verifier, which looks at each once and not at every call. */

__noinline int mirror_short(struct __sk_buff *skb, struct flow *f, __u32 kind, __u32 ip_len, __u32 len)
{
	asm volatile("" : "+r"(len));
	if (!f || !len)
		return false;
	__u8 version = mirror_version(the_service());
	MIRROR_FIXED(128)
	MIRROR_FIXED(256)
	MIRROR_FIXED(512)
	MIRROR_FIXED(1024)
	MIRROR_FIXED(MIRROR_FRAME)
	return false;
}

__noinline int mirror_long(struct __sk_buff *skb, struct flow *f, __u32 kind, __u32 ip_len, __u32 len)
{
	struct bpf_dynptr record;
	int whole = 0;
	if (!f)
		return 0;
	__u8 version = mirror_version(the_service());
	__u32 header_len = mirror_header_len(version);
	__u32 slices = len / MIRROR_SLICE, rest = len % MIRROR_SLICE;
	__u32 size = sizeof(struct mirror_header) + (slices + !!rest) * MIRROR_SLICE;
	if (bpf_ringbuf_reserve_dynptr(&mirror, size, 0, &record))
		goto out;
	struct mirror_header *h = bpf_dynptr_data(&record, 0, sizeof(*h));
	if (!h)
		goto out;
	fill_header(h, version, kind, f, ip_len, len);
	h->unfinished = unfinished(skb);
	for (__u32 i = 0; i < MIRROR_SLICES && i < slices; i++) {
		__u8 *slice = bpf_dynptr_data(&record, header_len + i * MIRROR_SLICE, MIRROR_SLICE);
		if (!slice || bpf_skb_load_bytes(skb, ETH_HLEN + i * MIRROR_SLICE, slice, MIRROR_SLICE))
			goto out;
	}
	if (rest) {
		__u8 *slice = bpf_dynptr_data(&record, header_len + slices * MIRROR_SLICE, MIRROR_SLICE);
		rest = at_least_1(rest, MIRROR_SLICE - 1);
		if (!slice || bpf_skb_load_bytes(skb, ETH_HLEN + slices * MIRROR_SLICE, slice, rest))
			goto out;
	}
	whole = slices <= MIRROR_SLICES;
out:
	if (whole)
		bpf_ringbuf_submit_dynptr(&record, wake_flags(kind));
	else
		bpf_ringbuf_discard_dynptr(&record, BPF_RB_NO_WAKEUP);
	return whole;
}

/* Copy the first `len` bytes of the IP packet. False: there was no room. */
static __always_inline bool mirror_packet(struct __sk_buff *skb, const struct packet *p, struct flow *f,
					  __u32 kind, __u32 len)
{
	if (len < TCP_HEADER_MIN)
		return false;
	if (len <= MIRROR_FRAME)
		return mirror_short(skb, f, kind, p->ip_len, len);
	return mirror_long(skb, f, kind, p->ip_len, len);
}

/* Record a client's segment. False: it must not reach the server now. */
static __always_inline bool mirror_instream(struct __sk_buff *skb, struct service *s,
					    const struct flow_key *key, struct flow *f,
					    const struct packet *p)
{
	if (f->unprotected || f->log.ended)
		return true;
	if (s->link)
		return link_instream(skb, key, f, p);
	if (mirror_packet(skb, p, f, MIRROR_INSTREAM, p->ip_len)) {
		count(COUNT_MIRRORED);
		return true;
	}
	count(COUNT_MIRROR_FULL);
	if (!abandoned(s) && p->ip_len <= MIRROR_SLICE * MIRROR_SLICES)
		return false;
	lose_protection(s, key, f, UNPROTECTED_MIRROR_LOST);
	return true;
}

/* A turn begins: what the server says next is its head. */
static __always_inline void begin_head(const struct service *s, struct flow *f)
{
	f->verify.head_next = f->server.nxt;
	f->verify.head_sent = f->server.sent;
	f->verify.head_left = s->verify_head;
}

/* The server has come further with an answer of which all is recorded that is to be, and has heard more of its client by
 * now, which may not be recorded yet: that was no request whose answer began with a head of its own. A copy
 * without a byte says so: the copies of what the client said may be lost with this host. And what was in doubt is so no more
 * when the server has read it. */
static __always_inline void report_request_end(struct __sk_buff *skb, const struct service *s, struct flow *f,
				       const struct packet *p)
{
	if (!s || !s->link || !s->verify_head || !after(p->ack, f->verify.request_end))
		return;
	f->verify.request_end = p->ack;
	if (after(p->ack, f->log.stable) || (f->log.is_doubtful && after(p->ack, f->log.doubt)))
		link_head(skb, f, p, 0, 0);
}

/* Record what the client is sent at the beginning of a turn, for the comparison in replay;
 * `seq` is the segment's in client space. With a log link both by the link, at once, and by the ring,
 * which loses nothing while this host lives. A head that is lost is only a gap there; but it must
 * not begin late, in the middle of an answer, where it could not be told from a body. So what
 * a segment holds of the turn before (a new server has both in its send queue) is left out:
 * the frame says where the head goes on. */
static __always_inline void mirror_head(struct __sk_buff *skb, struct flow *f, const struct packet *p,
					__u32 seq)
{
	const struct service *s = the_service();
	__u32 skip = f->verify.head_next - seq, take = f->verify.head_left;
	if (!p->payload_len || f->unprotected)
		return;
	if (!take || before(f->verify.head_next, seq)) {
		/* A segment that the fence has withheld comes again. No retransmission fills a larger hole. */
		if (take && seq - f->verify.head_next > LARGEST_WINDOW)
			f->verify.head_left = 0;
		report_request_end(skb, s, f, p);
		return;
	}
	if (skip >= p->payload_len)
		return;
	if (take > p->payload_len - skip)
		take = p->payload_len - skip;
	f->verify.request_end = p->ack;
	__u32 kind = MIRROR_OUTSTREAM;
	/* If the logger has all of it, its coming once more is in no hurry. */
	if (s && s->link && !link_head(skb, f, p, skip, take))
		kind |= MIRROR_SOON;
	__u32 headers = p->tcp_offset - ETH_HLEN + p->header_len;
	bool recorded = mirror_packet(skb, p, f, kind, headers + skip + take);
	count(recorded ? COUNT_HEADS : COUNT_HEADS_LOST);
	f->verify.head_next += take;
	f->verify.heads_to = f->verify.head_next;
	f->verify.head_left = recorded ? f->verify.head_left - take : 0;
}

/* Is this what the server says to what the client said last, and is it an answer? As journal's
 * `answer`, for connections that have no record: all is one but the interim responses of HTTP/1.x, and
 * what begins like one. `seq` is the segment's in client space. */
__noinline int observe_response(struct __sk_buff *skb, struct flow *f, const struct packet *p, __u32 seq)
{
	static const __u8 interim[10] = { 'H', 'T', 'T', 'P', '/', '1', '.', 0, ' ', '1' };
	struct scratch *sc = the_scratch(SCRATCH_EGRESS); /* Linux 6.1 has no stack left for it */
	if (!sc || !f || !p || seq != f->client.response_start || f->verify.response != RESPONSE_NONE)
		return 0;
	__u8 *begins = sc->network; /* the first 12 bytes of what is said */
	__builtin_memset(begins, 0, 16);
	__u32 len = p->payload_len > 12 ? 12 : p->payload_len;
	if (!len || bpf_skb_load_bytes(skb, p->tcp_offset + p->header_len, begins,
				       at_least_1(len, 15)))
		return 0;
	for (__u32 i = 0; i < sizeof(interim); i++)
		if (i < len && i != 7 && begins[i] != interim[i])
			f->verify.response = RESPONSE_BEGUN;
	if (f->verify.response == RESPONSE_NONE && begins[10] == '0' && begins[11] == '1')
		f->verify.response = RESPONSE_OTHER_PROTOCOL;
	return 0;
}
