/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Egress: from the server's TCP to the clients.
 *
 *   made by user space, for the server          -> turned round, into this interface's ingress
 *   made by user space, for a client            -> to the neighbour
 *   in the name of an address of the pool: ARP  -> dropped (fence.h)
 *   lease over, or gate shut                    -> dropped, or withheld
 *   SYN-ACK                                     -> keyed ISN, the pool's window scale, the first index
 *   SYN-ACK of another SYN than the noted one   -> dropped: the client's options are not known
 *   flow of a server that has died              -> dropped: the FIN and RST of the dying
 *   flow that is being revived                  -> user space, which judges the response
 *   payload that another server has sent        -> acknowledged in the client's name
 *   first payload of a response                 -> the head is read: from here on timestamps say where the body began
 *   pure ACK of a guarded request               -> withheld
 *   response to a client without timestamps     -> user space, until the record of the turn is in the store
 *   response with inputs                        -> the same; its head leaves from user space alone, without these
 *   anything else of a flow                     -> sequence number, window and timestamp as the client shall see these;
 *                                                  a guarded request unacknowledged
 *   connection that is over                     -> translated
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
#include "fence.h"
#include "encapsulation.h"

/* A SYN-ACK. The client cannot be asked for its options again after a death: the window scale is the pool's, and the
 * rest travels in the timestamp. */
static __always_inline int egress_synack(struct __sk_buff *skb, struct member *m, struct object_scratch *s,
					 const struct flow_key *key, struct object_embryo *e, const struct packet *p)
{
	struct options o = find_options(&s->header, p, false);
	if (e->is_foreign) {
		e->is_answered = 1;
		e->isn = p->seq;
		e->delta = 0;
		e->wnd_edge = p->ack + p->window;
		return TCX_NEXT;
	}
	e->isn = keyed_isn(s, m, key, e->slot);
	e->delta = e->isn - p->seq;
	e->wnd_edge = p->ack + p->window; /* never scaled in a SYN, RFC 7323 2.2 */
	e->server_window_scale = o.window_scale;
	e->has_sack = e->has_sack && o.sack_permitted;
	e->has_timestamps = e->has_timestamps && o.timestamps;
	begin_edit(&s->header);
	write32(&s->header.edit[TCP_SEQ], e->isn);
	if (m->encapsulates && o.mss)
		lower_segment_size(s, o.mss, p);
	if (o.window_scale_at)
		s->header.edit[in_header(o.window_scale_at + 2)] = POOL_WINDOW_SCALE;
	else
		e->client_window_scale = 0; /* one side's silence turns it off for both */
	if (o.timestamps) {
		bool bare = !e->has_sack || e->segment_size < SEGMENT_SIZE_LEAST;
		__u32 state = agreed_state(s, &m->keys[0], bare ? USE_UNPROTECTED : USE_AGREED, key, e->slot,
					   client_options(e->client_window_scale, e->segment_size));
		if (!bare)
			state ^= number_bits(e->client_isn + 1);
		e->tsval = option_tsval(s->header.tcp, &o);
		write32(&s->header.edit[in_header(o.timestamps + 2)], state);
	}
	e->is_answered = 1;
	return commit_edit(skb, s, p) ? TCX_NEXT : TCX_DROP;
}

/* Acknowledgement and window, as the client shall see these. False: the segment would bring nothing new. A pure ACK
 * before the end of what was sent is a probe of a window or of a connection (tcp_xmit_probe_skb): without an answer,
 * the server's TCP would give up. */
static __always_inline bool clamp_ack(struct object_scratch *s, struct object_flow *f, const struct packet *p,
				      const struct options *o)
{
	bool is_probe = before(p->seq + f->delta, f->nxt);
	__u32 told = p->ack;
	/* A client without timestamps gets nothing of a response before the record is stored. */
	bool is_released = f->has_timestamps ? f->released_turn == f->turn.number + 1 : is_stored(f);
	if (f->turn.is_guarded && !is_released && after(told, f->turn.request_start + f->turn.released))
		told = f->turn.request_start + f->turn.released;
	if (before(told, f->told))
		told = f->told;
	__u32 edge = p->ack + window_of(p, server_scale(f));
	bool is_clamped = before(told, p->ack);
	advance(&f->received, p->ack);
	advance(&f->wnd_edge, edge);
	if (is_clamped && !sequence_len(p) && !after(told, f->told) && !is_probe && !f->owes_ack)
		return false;
	__u32 window = (f->wnd_edge - told) >> offered_scale(f);
	write32(&s->header.edit[TCP_ACK_SEQ], told);
	write16(&s->header.edit[TCP_WINDOW], window > 65535 ? 65535 : window);
	f->told = told;
	f->owes_ack = 0;
	/* Blocks would tell the client that its request has arrived. */
	if (is_clamped && o->sack) {
		for (__u32 i = 0; i < TCP_OPTIONS_MAX; i++) {
			if (i >= o->sack_len)
				break;
			s->header.edit[in_header(o->sack + i)] = OPTION_NOP;
		}
	}
	return true;
}

/* The timestamp. False: the segment needs a new index, and has to wait until the client has echoed a newer one. A
 * retransmission never waits: it may fill the hole behind which the client's echo stands still. The client has the same
 * bytes with the old state, or would have. */
static __always_inline bool stamp(struct object_scratch *s, struct object_flow *f, const struct options *o,
				  bool is_retransmission, bool is_alone)
{
	if (!o->timestamps || !f->has_timestamps)
		return true;
	const struct object_turn *t = &f->turn;
	bool is_bare = f->unprotected || (t->phase != OBJECT_IDLE && !t->is_guarded);
	__u32 state = is_bare ? f->bare : t->phase == OBJECT_BODY ? f->body_state : f->agreed;
	if (!is_bare && t->phase == OBJECT_BODY) {
		if (is_stored(f))
			state = f->stored;
		else if (is_exposed(f))
			state = f->bare;
	}
	bool has_new_state = state != f->state;
	enum assigned assigned =
		assign_index(&f->echoes, option_tsval(s->header.tcp, o), is_retransmission, has_new_state, is_alone);
	if (has_new_state && assigned == INDEX_EXHAUSTED) {
		if (!is_retransmission)
			return false;
		state = f->state;
	}
	f->state = state;
	write32(&s->header.edit[in_header(o->timestamps + 2)], (__u32)f->echoes.newest << INDEX_SHIFT | state);
	return true;
}

/* User space resets the client. */
static __always_inline int diverged(struct member *m, const struct flow_key *key)
{
	tell(m, OBJECT_DIVERGED, key, 0, 0);
	return withhold();
}

static __always_inline int egress_flow(struct __sk_buff *skb, struct member *m, struct object_scratch *s,
				       const struct flow_key *key, struct object_flow *f, const struct packet *p,
				       bool is_own)
{
	__u32 len = sequence_len(p), seq = p->seq + f->delta, end = seq + len;
	if (f->mode == OBJECT_FOREIGN)
		return TCX_NEXT;
	if (f->mode == OBJECT_REVIVING) {
		count(OBJECTS_PARKED);
		copy_segment(skb, key, p->ip_len, COPY_PARKED);
		return withhold();
	}
	if (f->incarnation != m->incarnation) {
		count(OBJECTS_GATED);
		return TCX_DROP;
	}
	struct options o = find_options(&s->header, p, false);
	begin_edit(&s->header);
	write32(&s->header.edit[TCP_SEQ], seq);
	if (p->flags & TCP_RST) {
		if (is_short(f, seq))
			return diverged(m, key);
		if (p->flags & TCP_ACK)
			write32(&s->header.edit[TCP_ACK_SEQ], p->ack);
		return commit_edit(skb, s, p) ? TCX_NEXT : TCX_DROP;
	}
	bool is_before = len && before(seq, f->floor);
	if (!is_before && p->payload_len && after(seq + p->payload_len, sent_end(f)))
		on_server_payload(skb, m, s, key, f, p, seq + p->payload_len);
	if (f->turn.chunk_place && len) {
		int result = follow_chunks(skb, m, key, f, p);
		if (result == CHUNKS_DIVERGE)
			return diverged(m, key);
		/* As if lost: the server's TCP sends the missing bytes, and these, again. */
		if (result == CHUNKS_ARE_MISSING)
			return withhold();
	}
	if ((p->flags & TCP_FIN) && is_short(f, seq + p->payload_len))
		return diverged(m, key);
	if (is_before)
		return self_ack(skb, s, f, p, (before(end, f->floor) ? end : f->floor) - f->delta);
	bool has_inputs = f->turn.has_inputs && before(seq, f->turn.head_end) && !is_own;
	if (len && (awaits_store(f) || has_inputs)) {
		count(OBJECTS_DEFERRED);
		copy_segment(skb, key, p->ip_len, COPY_DEFERRED);
		return withhold();
	}
	if (!clamp_ack(s, f, p, &o)) {
		count(OBJECTS_WITHHELD);
		return withhold();
	}
	if (!stamp(s, f, &o, len && before(seq, f->nxt), len && !after(f->nxt, f->client_ack))) {
		count(OBJECTS_EXHAUSTED);
		return withhold();
	}
	if ((p->flags & TCP_SYN) && o.window_scale_at)
		s->header.edit[in_header(o.window_scale_at + 2)] = POOL_WINDOW_SCALE;
	bool was_answered = is_answered(&f->turn);
	if (len)
		advance_nxt(f, seq + p->payload_len, end);
	/* The client's TCP may delay its acknowledgement, for which the client's next request waits. */
	if (f->has_queue && !was_answered && is_answered(&f->turn))
		tell(m, OBJECT_ANSWERED, key, 0, 0);
	if (p->flags & TCP_FIN)
		on_server_fin(f);
	if (!commit_edit(skb, s, p))
		return TCX_DROP;
	count(OBJECTS_TRANSLATED_OUT);
	return TCX_NEXT;
}

static __always_inline int egress_tombstone(struct __sk_buff *skb, struct object_scratch *s,
					    struct object_tombstone *t, const struct packet *p)
{
	struct options o = find_options(&s->header, p, false);
	begin_edit(&s->header);
	write32(&s->header.edit[TCP_SEQ], p->seq + t->delta);
	if (o.timestamps) {
		t->tsval = option_tsval(s->header.tcp, &o);
		write32(&s->header.edit[in_header(o.timestamps + 2)], t->value);
	}
	return commit_edit(skb, s, p) ? TCX_NEXT : TCX_DROP;
}

SEC("tcx/egress")
int egress(struct __sk_buff *skb)
{
	struct flow_key key = {};
	struct packet p = {};
	struct member *m = the_member();
	if (!m)
		return TCX_NEXT;
	__u32 ours = skb->mark - m->mark;
	if (ours == MARK_SERVER_SPACE || ours == MARK_CLIENT_SPACE || ours == MARK_QUEUED)
		return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
	if (ours == MARK_TO_CLIENT || ours == MARK_TO_NEIGHBOUR) {
		if (fenced(m)) {
			count(OBJECTS_FENCED);
			return TCX_DROP;
		}
		if (ours == MARK_TO_CLIENT)
			return TCX_NEXT;
		skb->mark = m->mark + MARK_TO_CLIENT; /* it leaves this device again */
		return bpf_redirect_neigh(skb->ifindex, NULL, 0, 0);
	}
	if (!parse_ip(skb, &p, key.server, key.client))
		return egress_other(skb);
	__be16 ports[2];
	if (bpf_skb_load_bytes(skb, p.tcp_offset, ports, sizeof(ports)))
		return egress_other(skb);
	key.server_port = ports[0];
	key.client_port = ports[1];
	if (!is_endpoint(key.server, key.server_port))
		return egress_other(skb);
	struct object_scratch *s = the_scratch(SCRATCH_EGRESS);
	if (!s || !parse_tcp(skb, &p, s->header.tcp))
		return TCX_DROP;
	struct object_flow *f = bpf_map_lookup_elem(&object_flows, &key);
	/* What the server says while user space asks it for a rest stays here. */
	bool stays = f && f->mode == OBJECT_REVIVING;
	if (!stays && fenced(m)) {
		count(OBJECTS_FENCED);
		return withhold();
	}
	if (!stays && m->gated) {
		count(OBJECTS_GATED);
		return TCX_DROP;
	}
	bool is_synack = (p.flags & (TCP_SYN | TCP_ACK)) == (TCP_SYN | TCP_ACK);
	struct object_embryo *e = is_synack ? bpf_map_lookup_elem(&embryos, &key) : NULL;
	bool is_noted = e && p.ack == e->client_isn + 1;
	/* The server's TCP has no socket of the flow any more, and never told: it had none yet (TCP_DEFER_ACCEPT). */
	if (f && is_noted && p.ack != f->client_isn + 1 && !stays) {
		bpf_map_delete_elem(&object_flows, &key);
		f = NULL;
	}
	if (f) {
		int verdict = egress_flow(skb, m, s, &key, f, &p, ours == MARK_FROM_SERVER);
		if (ours != MARK_FROM_SERVER || verdict != TCX_NEXT)
			return verdict;
		skb->mark = m->mark + MARK_TO_CLIENT; /* it leaves this device again */
		return bpf_redirect_neigh(skb->ifindex, NULL, 0, 0);
	}
	if (is_noted)
		return egress_synack(skb, m, s, &key, e, &p);
	if (e) {
		/* The options of the SYN that is answered are not known. The client sends its SYN again. */
		bpf_map_delete_elem(&embryos, &key);
		count(OBJECTS_GATED);
		return TCX_DROP;
	}
	struct object_tombstone *t = bpf_map_lookup_elem(&tombstones, &key);
	if (t)
		return egress_tombstone(skb, s, t, &p);
	/* The kernel's answer to a stray, or a socket that nobody knows: its numbers mean nothing to a client. */
	if (p.flags & TCP_RST)
		return TCX_NEXT;
	count(OBJECTS_GATED);
	return TCX_DROP;
}
