/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Ingress: from the clients, through the balancer, to the server's TCP.
 *
 *   in UDP, from the balancer or a member       -> unwrapped (encapsulation.h)
 *   not for an address:port of the pool         -> others
 *   made by user space, for the server          -> the server's TCP, untouched
 *   gate shut                                   -> dropped: the client sends again
 *   SYN, and other members do not know this one -> dropped: these would take the connection for one of a dead member
 *   SYN                                         -> remembered (`embryos`), without options that bind a connection to
 *                                                  one host; to the server
 *   first ACK of the SYN-ACK                    -> the embryo becomes a flow
 *   RST of an embryo                            -> the server's TCP, if the number is exact
 *   flow, first bytes of a request              -> a turn begins
 *   flow, bytes behind the request under way    -> user space, until the turn is over
 *   flow, part of a request, with a store       -> user space, until the rest has come
 *   flow, acknowledgement of the whole response -> the turn ends: the client hears that the request has arrived
 *   flow                                        -> translated
 *   flow that is being revived                  -> user space
 *   flow of a server that has died              -> user space revives it
 *   connection that is over                     -> translated
 *   connection that another member serves       -> that member
 *   RST of an unknown connection                -> dropped
 *   segment of an unknown connection, whose     -> user space: another member served the client
 *     echo a member has written
 *   segment without timestamps of an unknown    -> user space, while the pool is in quiescence: a record may tell more
 *     connection, with a store
 *   any other segment of an unknown connection  -> the kernel, which resets it; while the pool is in quiescence: dropped
 *   more such segments in a round than the      -> dropped
 *     kernel gets
 */
#pragma once

#include "../lib/kernel.h"
#include "../lib/sequence.h"
#include "../lib/bytes.h"
#include "../lib/packet.h"
#include "../lib/edit.h"
#include "../lib/options.h"
#include "../intf/objects.h"
#include "state.h"
#include "timestamps.h"
#include "turn.h"
#include "turned.h"
#include "copy.h"
#include "encapsulation.h"

/* A SYN: begin to know a connection. `f`: the server's TCP may have a connection with these ends. If so, it answers
 * with a challenge ACK (RFC 5961 4), by which a client that has begun anew learns of the old connection, and resets
 * it. */
static __always_inline int ingress_syn(struct __sk_buff *skb, struct member *m, struct object_scratch *s,
				       const struct flow_key *key, struct object_flow *f, const struct packet *p)
{
	if (f)
		f->owes_ack = 1;
	begin_edit(&s->header);
	struct options o = find_options(&s->header, p, true);
	struct object_embryo *known = bpf_map_lookup_elem(&embryos, key);
	if (o.stripped && !commit_edit(skb, s, p))
		return TCX_DROP;
	/* The server's TCP answers one SYN at a time, and another SYN with a challenge at most (RFC 5961 4). */
	if (known && known->incarnation == m->incarnation && (known->client_isn == p->seq || known->is_answered))
		return TCX_NEXT;
	__u8 slot = slot_now(m);
	const struct object_tombstone *over = f ? NULL : bpf_map_lookup_elem(&tombstones, key);
	if (f)
		slot = slot_behind(slot, f->slot);
	else if (over)
		slot = slot_behind(slot, over->slot);
	else if (in_quiescence(m)) /* another member may have served a connection of this port, and may still send */
		slot = slot_behind(slot, slot_behind(slot, slot));
	struct object_embryo e = {
		.began_ns = bpf_ktime_get_ns(),
		.client_isn = p->seq,
		.incarnation = m->incarnation,
		.changes = m->changes,
		.client_window_scale = scale_of(&o),
		.server_window_scale = WINDOW_SCALE_ABSENT,
		.slot = slot,
		.has_timestamps = o.timestamps != 0,
		.has_sack = o.sack_permitted,
		.is_foreign = o.authenticated,
		.segment_size = 536,
	};
	if (o.mss)
		e.segment_size = read32(&s->header.tcp[in_header(o.mss)]);
	if (o.timestamps)
		e.client_tsval = option_tsval(s->header.tcp, &o);
	bpf_map_update_elem(&embryos, key, &e, BPF_ANY);
	return TCX_NEXT;
}

/* Would the server's TCP believe the segment (RFC 9293 3.10.7.4)? */
static __always_inline bool acceptable(const struct object_flow *f, const struct packet *p)
{
	__u32 end = p->seq + sequence_len(p);
	if (before(end, f->told) || after(p->seq, f->wnd_edge))
		return false;
	return (p->flags & (TCP_SYN | TCP_ACK | TCP_RST)) == TCP_ACK &&
	       (!after(p->ack, f->nxt) || !after(p->ack, last_ack(f)));
}

/* Without timestamps the record alone tells another member the client's position. */
static __always_inline bool can_be_protected(const struct member *m, const struct object_embryo *e)
{
	if (!e->has_timestamps)
		return m->store == STORE_INDEXED;
	return e->has_sack && e->segment_size >= SEGMENT_SIZE_LEAST;
}

/* The flow of a handshake that is complete. In a function of its own: the verifier looks at it once. */
__noinline int fill_flow(struct object_scratch *s, const struct object_embryo *e, const struct flow_key *key)
{
	struct member *m = the_member();
	if (!m || !s || !e || !key)
		return 0;
	struct object_flow *f = &s->flow;
	__builtin_memset(f, 0, sizeof(*f));
	f->incarnation = e->incarnation;
	f->client_isn = e->client_isn;
	f->client_nxt = e->client_isn + 1;
	f->client_ack = e->isn + 1;
	f->client_tsval = e->client_tsval;
	f->isn = e->isn;
	f->nxt = e->isn + 1;
	f->floor = e->isn;
	f->delta = e->delta;
	f->told = e->client_isn + 1;
	f->received = f->told;
	f->wnd_edge = e->wnd_edge;
	f->client_window_scale = e->client_window_scale;
	f->server_window_scale = e->server_window_scale;
	f->slot = e->slot;
	f->mode = e->is_foreign ? OBJECT_FOREIGN : OBJECT_SERVED;
	f->has_timestamps = e->has_timestamps;
	f->turn.request_end = f->client_nxt;
	f->turn.asked_ns = e->began_ns;
	f->echoes.newest_tsval = e->tsval;
	f->echoes.has_echo = 1;
	for (__u32 i = 0; i < ECHO_ENTRIES; i++)
		f->echoes.tsvals[i] = e->tsval;
	f->has_sack = e->has_sack;
	f->segment_size = e->segment_size;
	if (e->is_foreign || !can_be_protected(m, e))
		f->unprotected = OBJECT_NO_TIMESTAMPS;
	f->options = client_options(e->client_window_scale, e->segment_size);
	f->agreed = agreed_state(s, &m->keys[0], USE_AGREED, key, f->slot, f->options) ^ number_bits(f->told);
	f->bare = agreed_state(s, &m->keys[0], USE_UNPROTECTED, key, f->slot, f->options);
	f->state = f->unprotected ? f->bare : f->agreed;
	return 0;
}

/* A segment of no flow: the last step of a handshake that we saw begin? */
static __always_inline struct object_flow *promote(struct member *m, struct object_scratch *s, const struct flow_key *key,
						   const struct packet *p)
{
	struct object_embryo *e = bpf_map_lookup_elem(&embryos, key);
	/* Since two changes of the pool, another member may have served the connection, and may have died. */
	if (e && m->changes - e->changes > 1) {
		bpf_map_delete_elem(&embryos, key);
		return NULL;
	}
	if (!e || !e->is_answered || (p->flags & (TCP_SYN | TCP_ACK | TCP_RST)) != TCP_ACK)
		return NULL;
	if (p->ack != e->isn + 1 || before(p->seq, e->client_isn + 1) || after(p->seq, e->wnd_edge))
		return NULL;
	fill_flow(s, e, key);
	long denied = bpf_map_update_elem(&object_flows, key, &s->flow, BPF_NOEXIST);
	if (denied && denied != -EEXIST)
		count(OBJECTS_TABLE_FULL);
	if (!denied && s->flow.unprotected)
		tell(m, OBJECT_UNPROTECTED, key, s->flow.unprotected, 0);
	bpf_map_delete_elem(&embryos, key);
	return bpf_map_lookup_elem(&object_flows, key);
}

/* The client resets a handshake: it has begun another one from the same port, or does not want this one. */
static __always_inline int ingress_reset(struct __sk_buff *skb, struct object_scratch *s, const struct flow_key *key,
					 const struct object_embryo *e, const struct packet *p)
{
	if (!e->is_answered || p->seq != e->client_isn + 1)
		return TCX_DROP;
	begin_edit(&s->header);
	if (p->flags & TCP_ACK)
		write32(&s->header.edit[TCP_ACK_SEQ], p->ack - e->delta);
	bpf_map_delete_elem(&embryos, key);
	return commit_edit(skb, s, p) ? TCX_NEXT : TCX_DROP;
}

/* The echo that the server's TCP must read. */
static __always_inline __u32 translated_echo(struct object_flow *f, const struct object_scratch *s,
					     const struct packet *p, const struct options *o, bool has_old_ack)
{
	if (!o->timestamps || !f->has_timestamps || !(p->flags & TCP_ACK))
		return 0;
	__u32 echo = option_tsecr(s->header.tcp, o);
	return echo ? on_echo(&f->echoes, echo >> INDEX_SHIFT, has_old_ack) : 0;
}

/* Numbers of the server's socket in the place of those that the client sees. A client that
 * knows of no connection resets at the number that it was told; the server's TCP believes a RST at its own number only
 * (RFC 5961 3.2). It refuses acknowledgements of bytes that it has not sent, though the client has these. */
static __always_inline int translate_in(struct __sk_buff *skb, struct object_scratch *s, struct object_flow *f,
					const struct packet *p, const struct options *o, __u32 echo)
{
	begin_edit(&s->header);
	if ((p->flags & TCP_RST) && p->seq == f->told)
		write32(&s->header.edit[TCP_SEQ], f->received);
	if (p->flags & TCP_ACK) {
		bool is_ahead = after(p->ack, f->nxt) && !after(p->ack, f->client_ack);
		__u32 ack = is_ahead ? f->nxt : p->ack;
		/* The server sends chunks that were not read again, though the client has them: from another server. */
		if (f->turn.chunk_place && f->turn.phase == OBJECT_BODY && !after(p->ack, f->client_ack) &&
		    after(ack, f->turn.chunk_next))
			ack = f->turn.chunk_next;
		write32(&s->header.edit[TCP_ACK_SEQ], ack - f->delta);
	}
	if (o->timestamps && f->has_timestamps && (p->flags & TCP_ACK))
		write32(&s->header.edit[in_header(o->timestamps + 6)], echo);
	if (o->sack) {
		__u32 edges = (__u32)(o->sack_len - 2) / 4, at = o->sack + 2;
		for (__u32 i = 0; i < 8; i++, at += 4) {
			if (i >= edges || at > TCP_HEADER_MAX - 4)
				break;
			write32(&s->header.edit[in_header(at)], read32(&s->header.tcp[in_header(at)]) - f->delta);
		}
	}
	if (!commit_edit(skb, s, p))
		return TCX_DROP;
	count(OBJECTS_TRANSLATED_IN);
	return TCX_NEXT;
}

/* The timestamp is the newest that the server's TCP can echo (RFC 7323 4.3), also while the client was told of less
 * than has arrived: an acknowledgement in the client's name must not be older, or PAWS refuses it. */
static __always_inline void note_client(struct object_flow *f, const struct object_scratch *s, const struct packet *p,
					const struct options *o)
{
	__u32 tsval = option_tsval(s->header.tcp, o);
	if (o->timestamps && !after(p->seq, f->received) && after(tsval, f->client_tsval))
		f->client_tsval = tsval;
	f->client_window = p->window;
}

/* Would the server's TCP take the bytes? User space gives them to it with the client's newest acknowledgement and
 * timestamp, and a sender that guesses must not gain by that: the acknowledgement is not older than the largest window
 * (RFC 5961 5.2), nor the timestamp than the newest (RFC 7323 5.2). */
static __always_inline bool has_fitting_numbers(const struct object_flow *f, const struct object_scratch *s,
						const struct packet *p, const struct options *o)
{
	__u32 window_most = 65535U << (f->client_window_scale & 15);
	if (before(p->ack, f->client_ack - window_most))
		return false;
	return !f->has_timestamps || (o->timestamps && !before(option_tsval(s->header.tcp, o), f->client_tsval));
}

/* May user space get one more copy of the client's bytes in this round? The client sends bytes again that are dropped. */
static __always_inline bool has_queue_budget(const struct member *m, struct object_flow *f, const struct packet *p)
{
	__u8 round = *(const volatile __u8 *)&m->queue_round;
	__u8 price = p->ip_len <= OBJECT_COPY_SMALL ? 1 : QUEUED_LARGE;
	if (f->queue_round != round) {
		f->queue_round = round;
		f->queued = 0;
	}
	if (f->queued + price > QUEUED_MOST)
		return false;
	f->queued += price;
	return true;
}

/* The bytes wait for their turn, unacknowledged. A repetition of the request under way may come in the same segment. */
static __always_inline int keep_waiting(struct __sk_buff *skb, struct member *m, const struct flow_key *key,
					struct object_flow *f, const struct packet *p)
{
	const struct object_turn *t = &f->turn;
	f->has_queue = 1;
	count(OBJECTS_QUEUED);
	if (has_queue_budget(m, f, p))
		copy_queued(skb, key, p->ip_len);
	else
		count(OBJECTS_COPIES_LOST);
	if (t->is_guarded && before(p->seq, t->request_end))
		on_repeated_request(m, key, f);
	return TCX_DROP;
}

static __always_inline int ingress_flow(struct __sk_buff *skb, struct member *m, struct object_scratch *s,
					const struct flow_key *key, struct object_flow *f, const struct packet *p,
					bool is_queued)
{
	struct options o = find_options(&s->header, p, false);
	if (f->mode == OBJECT_FOREIGN)
		return TCX_NEXT;
	f->ifindex = skb->ifindex;
	if (f->mode == OBJECT_REVIVING || f->incarnation != m->incarnation) {
		/* Without an echo the numbers alone show that the segment is the client's. */
		bool is_of_client = f->has_timestamps || f->mode == OBJECT_REVIVING ||
				    (acceptable(f, p) && !before(p->ack, f->client_ack));
		if (!(p->flags & TCP_RST) && is_of_client)
			copy_segment(skb, key, p->ip_len, COPY_CLIENT);
		return TCX_DROP;
	}
	bool has_old_ack = before(p->ack, f->client_ack);
	if (!acceptable(f, p)) {
		/* The server's TCP answers with an ACK (RFC 9293 3.10.7.4). */
		f->owes_ack = 1;
		return translate_in(skb, s, f, p, &o, translated_echo(f, s, p, &o, true));
	}
	note_client(f, s, p, &o);
	/* Not only when the client repeats its request, which may be two minutes later. */
	if (f->turn.phase == OBJECT_BODY && f->turn.is_guarded && is_overdue(m, f))
		lose_protection(m, key, f, OBJECT_WITHHELD_TOO_LONG);
	/* Before anything leaves: the echo may be needed for the next index. */
	__u32 echo = translated_echo(f, s, p, &o, has_old_ack);
	bool was_stored = is_stored(f);
	if (was_stored && m->store == STORE_INDEXED && !has_old_ack && o.timestamps && f->has_timestamps &&
	    (option_tsecr(s->header.tcp, &o) & ((1U << INDEX_SHIFT) - 1)) == f->stored)
		f->released_turn = f->turn.number + 1;
	/* The acknowledgement first: the next request may come with it. */
	bool was_guarded = f->turn.is_guarded;
	bool has_ended = on_client_ack(f, p->ack, p->seq + p->payload_len);
	if (has_ended && f->has_queue)
		tell(m, OBJECT_TURN_OVER, key, 0, 0);
	if (p->payload_len && after(p->seq + p->payload_len, f->client_nxt)) {
		if (on_client_payload(skb, m, key, f, p, is_queued))
			return has_fitting_numbers(f, s, p, &o) ? keep_waiting(skb, m, key, f, p) : TCX_DROP;
	} else if (p->payload_len && f->turn.is_guarded && after(p->seq + p->payload_len, f->turn.request_start)) {
		on_repeated_request(m, key, f);
	}
	/* A pure ACK or a FIN behind a lost request tells nothing of the request. */
	if (p->payload_len || p->seq == f->client_nxt)
		advance_shared(&f->client_nxt, p->seq + sequence_len(p));
	/* An idle client shall be told that nothing is under way: then no member needs the store for the client, and no
	 * member takes the next request for the request of the last response. */
	bool is_news = was_guarded ? was_stored || before(f->told, f->received) : !f->unprotected;
	if (has_ended && is_news && make_ack(skb, s, f, p)) {
		count(OBJECTS_EDIT_FAILED);
		return TCX_DROP;
	}
	return translate_in(skb, s, f, p, &o, echo);
}

/* Twice the lifetime of a segment (RFC 9293 3.4.2 says two minutes; no network of today keeps a segment for longer than
 * this). After that, another member may have served a new connection with the same ends. */
#define TOMBSTONE_NS (60ULL * 1000 * 1000 * 1000)

/* A connection whose server's socket is gone, or waits for late segments (TIME_WAIT). */
static __always_inline int ingress_tombstone(struct __sk_buff *skb, struct object_scratch *s,
					     const struct object_tombstone *t, const struct packet *p)
{
	struct options o = find_options(&s->header, p, false);
	begin_edit(&s->header);
	if (p->flags & TCP_ACK)
		write32(&s->header.edit[TCP_ACK_SEQ], p->ack - t->delta);
	if (o.timestamps && (p->flags & TCP_ACK))
		write32(&s->header.edit[in_header(o.timestamps + 6)], t->tsval);
	return commit_edit(skb, s, p) ? TCX_NEXT : TCX_DROP;
}

/* One hop less to live: two members that each take the other for the server would send a packet round for ever. */
static __always_inline bool age(struct __sk_buff *skb, const struct packet *p)
{
	__u8 hops;
	if (p->version == 6)
		return !bpf_skb_load_bytes(skb, ETH_HLEN + 7, &hops, 1) && hops-- > 1 &&
		       !bpf_skb_store_bytes(skb, ETH_HLEN + 7, &hops, 1, 0);
	__be16 word, aged; /* TTL and protocol */
	if (bpf_skb_load_bytes(skb, ETH_HLEN + 8, &word, 2) || bpf_ntohs(word) < 0x200)
		return false;
	aged = bpf_htons(bpf_ntohs(word) - 0x100);
	return !bpf_l3_csum_replace(skb, ETH_HLEN + 10, word, aged, 2) &&
	       !bpf_skb_store_bytes(skb, ETH_HLEN + 8, &aged, 2, 0);
}

/* The other member answers the client itself. */
static __always_inline int forward(struct __sk_buff *skb, const struct member *m, const struct next_hop *to,
				   const struct flow_key *key, const struct packet *p, int arrival)
{
	struct bpf_redir_neigh next = { .nh_family = to->family };
	__builtin_memcpy(next.ipv6_nh, to->address, sizeof(next.ipv6_nh));
	if (!age(skb, p))
		return TCX_DROP;
	if (m->encapsulates)
		return forward_wrapped(skb, to, key, arrival);
	count(OBJECTS_FORWARDED);
	return bpf_redirect_neigh(skb->ifindex, &next, sizeof(next), 0);
}

/* May the kernel get one more? Two processors may each take the last place. */
static __always_inline bool take_place(struct member *m)
{
	if (m->strays >= STRAYS_MOST) {
		count(OBJECTS_STRAYS_DROPPED);
		return false;
	}
	m->strays += 1;
	return true;
}

/* Anybody can make segments that prove nothing: half of the ring is for the others, and for revivals. User space is fair
 * to the sources of the segments that it gets (objects::budget). */
static __always_inline bool has_room_for_unproven(void)
{
	bool has_room = bpf_ringbuf_query(&copies, BPF_RB_AVAIL_DATA) < COPIES_BYTES / 2;
	if (!has_room)
		count(OBJECTS_COPIES_LOST);
	return has_room;
}

static __always_inline int copy_unknown(struct __sk_buff *skb, const struct flow_key *key, const struct packet *p)
{
	count(OBJECTS_UNKNOWN);
	copy_segment(skb, key, p->ip_len, COPY_UNKNOWN);
	return TCX_DROP;
}

static __always_inline int ingress_unknown(struct __sk_buff *skb, struct member *m, struct object_scratch *s,
					   const struct flow_key *key, const struct packet *p)
{
	if (p->flags & TCP_RST)
		return TCX_DROP;
	struct options o = find_options(&s->header, p, false);
	bool changed = in_quiescence(m), is_unproven = false;
	if (o.timestamps && (p->flags & TCP_ACK)) {
		enum echo_verdict verdict = judge_echo(s, m, key, option_tsecr(s->header.tcp, &o), p->seq);
		if (verdict == ECHO_AGREED || verdict == ECHO_BARE || verdict == ECHO_STORED)
			return copy_unknown(skb, key, p);
		is_unproven = verdict == ECHO_WEAK;
		if (verdict == ECHO_FORGED)
			count(OBJECTS_FORGED);
	}
	/* The numbers in the record of the store tell whether the client is right. */
	if (!o.timestamps && (p->flags & TCP_ACK) && m->store == STORE_INDEXED)
		is_unproven = true;
	if (changed && is_unproven)
		return has_room_for_unproven() ? copy_unknown(skb, key, p) : TCX_DROP;
	if (changed || !take_place(m))
		return TCX_DROP;
	count(OBJECTS_STRAY);
	return TCX_NEXT;
}

SEC("tcx/ingress")
int ingress(struct __sk_buff *skb)
{
	struct flow_key key = {};
	struct packet p = {};
	struct member *m = the_member();
	int arrival = m && m->encapsulates ? decapsulate(skb) : ARRIVED_DIRECTLY;
	if (arrival == ARRIVED_FORGED)
		return TCX_DROP;
	if (!m || !parse_ip(skb, &p, key.client, key.server))
		return TCX_NEXT;
	struct object_scratch *s = the_scratch(SCRATCH_INGRESS);
	if (!s || !parse_tcp(skb, &p, s->header.tcp))
		return TCX_NEXT;
	__builtin_memcpy(&key.client_port, s->header.tcp, 4); /* both ports: they are adjacent in the key, too */
	if (!is_endpoint(key.server, key.server_port))
		return TCX_NEXT;
	__u32 ours = skb->mark - m->mark;
	if (ours < MARKS)
		skb->mark = 0; /* it has done its work; rules of others must not see it */
	if (ours == MARK_SERVER_SPACE)
		return TCX_NEXT;
	if (m->gated || fenced(m)) {
		count(OBJECTS_GATED);
		return TCX_DROP;
	}
	struct object_flow *f = bpf_map_lookup_elem(&object_flows, &key);
	bool stands_still = f && (f->mode == OBJECT_REVIVING || f->incarnation != m->incarnation);
	if (!stands_still && (p.flags & (TCP_SYN | TCP_ACK | TCP_RST)) == TCP_SYN)
		return m->accepts ? ingress_syn(skb, m, s, &key, f, &p) : TCX_DROP;
	if (!f)
		f = promote(m, s, &key, &p);
	if (f)
		return ingress_flow(skb, m, s, &key, f, &p, ours == MARK_QUEUED);
	struct object_embryo *e = p.flags & TCP_RST ? bpf_map_lookup_elem(&embryos, &key) : NULL;
	struct object_tombstone *t = bpf_map_lookup_elem(&tombstones, &key);
	bool waits = t && bpf_ktime_get_ns() - t->closed_ns < TOMBSTONE_NS;
	/* Of a server's TCP in TIME_WAIT, which has answered the SYN with an acknowledgement, the RST is for that. */
	if (e && (e->is_answered || !waits))
		return ingress_reset(skb, s, &key, e, &p);
	if (waits)
		return ingress_tombstone(skb, s, t, &p);
	struct next_hop *to = bpf_map_lookup_elem(&forwards, &key);
	if (to)
		return forward(skb, m, to, &key, &p, arrival);
	return ingress_unknown(skb, m, s, &key, &p);
}
