/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Control: what user space may change, as one program that it runs. Changing a flow's fields
 * here rather than by writing a whole value from outside keeps the rule of one writer a field,
 * and keeps every transition of the gate next to the code that obeys it.
 */
#pragma once

#include "../lib/kernel.h"
#include "../lib/sequence.h"
#include "../lib/process.h"
#include "../intf/digest.h"
#include "../intf/flow.h"
#include "../intf/service.h"
#include "../intf/mirror.h"
#include "../intf/read_cursor.h"
#include "../intf/control.h"
#include "state.h"
#include "mirror.h"
#include "digest.h"

/* Prepare a flow for its fabricated SYN. */
static __always_inline void control_splice(struct service *s, struct flow *f, const struct control *c)
{
	f->mode = FLOW_SPLICING;
	__builtin_memset(&f->splice, 0, sizeof(f->splice));
	f->splice.instream = c->instream;
	f->splice.outstream = c->outstream;
	f->splice.ack = c->instream + 1;
	f->splice.rcv_wnd_edge = c->instream + 1;
	f->verify.end = c->verify_end;
	f->verify.compared = 0;
	f->verify.tolerated = 0;
	f->verify.unverified = 0;
	f->verify.behind = 0;
	f->verify.ended_early = 0;
	f->verify.by_digest = 0;
	__sync_fetch_and_add(&f->digest.changes, 1);
	restart_digest(s, f, c->outstream);
	__sync_fetch_and_add(&f->digest.changes, 1);
	f->closed_ns = 0;
	f->server_closing = NOT_CLOSING;
	advance(&f->log.former_ack, f->log.ack);
	f->log.ack = c->instream + 1;
	f->log.rcv_wnd_edge = c->instream + 1;
	f->log.block_count = 0;
	f->log.deferred_count = 0;
	f->log.read_cursor = 0;
	f->log.all_acked = 0;
	f->given_ns = bpf_ktime_get_ns();
	f->incarnation = s->incarnation; /* last: from here on its packets may pass */
}

/* The new server's socket was made at the numbers that the client knows: there is nothing to translate but
 * acknowledgements of what the client had been told before. The determinants of its reads are stable: it has waited for
 * that before it told where it stands. A client that has sent no more has no bytes beyond `stable`. */
static __always_inline void control_graft(struct service *s, struct flow *f, const struct control *c)
{
	control_splice(s, f, c);
	f->splice.isn = c->outstream - 1;
	f->splice.nxt = c->outstream;
	f->splice.una = c->outstream;
	f->splice.rcv_wnd_edge = f->splice.ack + (__u32)c->argument;
	f->splice.window_scale = f->server.window_scale;
	f->splice.first_tsval = f->server.tsval;
	f->log.rcv_wnd_edge = f->splice.rcv_wnd_edge;
	advance(&f->log.stable, f->splice.ack);
	if (!after(f->client.nxt, f->log.stable))
		f->log.snd_beyond_stable = 0;
	if (f->log.restored) { /* its client may know that already */
		advance(&f->server.ack, f->splice.ack);
		advance(&f->server.rcv_wnd_edge, f->splice.ack);
	}
	f->mode = FLOW_SPLICED;
}

struct bpf_map;

struct sweep {
	__u64 before_ns;
	__u64 ended_before_ns;
	__u64 swept;
	bool linked;
};

/* With a log link a connection that its first server has closed stays known, for the client's last
 * words; as long as it takes to say them a few times. */
#define LAST_SEGMENTS_NS (5ULL * 1000 * 1000 * 1000)

static long sweep_flow(struct bpf_map *map, const void *key, void *value, void *context)
{
	struct sweep *w = context;
	struct flow *f = value;
	bool ended = (f->log.ended || !w->linked) && f->mode == FLOW_OBSERVED;
	if (f->closed_ns && f->closed_ns < (ended ? w->ended_before_ns : w->before_ns)) {
		if (w->linked && !f->log.ended)
			mirror_marker(f, MIRROR_CLOSED, CLOSED_EVICTED, 0);
		bpf_map_delete_elem(&flows, key);
		w->swept++;
	}
	return 0;
}

/* Another logger counts its acknowledgements from the beginning. */
static long begin_count(struct bpf_map *map, const void *key, void *value, void *context)
{
	struct flow *f = value;
	f->log.counter = 0;
	return 0;
}

/* No process is left that could write it. */
static long free_cursor(struct bpf_map *map, const void *key, void *value, void *context)
{
	struct read_cursor *cursor = value;
	cursor->state = 0;
	cursor->flow_id = 0;
	return 0;
}

struct refused {
	__u64 flow_id;
	struct flow_key key;
	__u8 reason;
	bool found;
};

static long refuse_half_open(struct bpf_map *map, const void *key, void *value, void *context)
{
	struct refused *r = context;
	struct flow *e = value;
	if (e->id != r->flow_id)
		return 0;
	e->unprotected = r->reason;
	r->key = *(const struct flow_key *)key;
	r->found = true;
	return 1;
}

/* The logger knows the handshake by its number alone. The next SYN-ACK goes to the client at once. */
static __always_inline __s32 control_refuse(struct control *c)
{
	struct refused r = { .flow_id = c->flow_id, .reason = c->argument };
	if (!c->flow_id)
		return -ENOENT;
	bpf_for_each_map_elem(&half_open, refuse_half_open, &r, 0);
	c->key = r.key;
	return r.found ? 0 : -ENOENT;
}

static __always_inline __s32 control_flow(struct service *s, struct control *c)
{
	struct flow_key key = c->key;
	struct flow *f = bpf_map_lookup_elem(&flows, &key);
	/* The ends may be another connection's by now. */
	if (!f || f->id != c->flow_id)
		return -ENOENT;
	switch (c->op) {
	case CONTROL_SPLICE:
		control_splice(s, f, c);
		return 0;
	case CONTROL_GRAFT:
		control_graft(s, f, c);
		return 0;
	case CONTROL_UNPROTECT:
		f->unprotected = c->argument;
		return 0;
	case CONTROL_REPROTECT:
		if (!s->link || f->unprotected != UNPROTECTED_LOGGER_LOST)
			return -EINVAL;
		f->unprotected = UNPROTECTED_AWAITS_TURN;
		return 0;
	case CONTROL_ABANDON:
		evict(&key, f);
		return 0;
	case CONTROL_WANT: {
		struct digest wanted = c->digest;
		want_digest(f, &wanted);
		return 0;
	}
	case CONTROL_INHERIT_DIGEST: {
		struct digest acked = c->digest, turn = c->turn;
		inherit_digest(s, f, &acked, &turn);
		return 0;
	}
	case CONTROL_OPENED:
		if (!s->link && !mirror_marker(f, MIRROR_OPENED, 0, ((__u64)f->server.isn << 32) | f->client.isn))
			return -ENOSPC;
		return 0;
	}
	return -EINVAL;
}

static __always_inline __s32 control_service(struct service *s, struct control *c)
{
	__u64 now = bpf_ktime_get_ns();
	switch (c->op) {
	case CONTROL_HEARTBEAT:
		s->heartbeat_ns = now;
		return 0;
	case CONTROL_GATE:
		if (!s->gated)
			s->gated_ns = now;
		s->gated = 1;
		return 0;
	case CONTROL_INCARNATION:
		s->recovering = 1;
		s->incarnation++;
		s->gated = 0;
		if (s->read_cursors)
			bpf_for_each_map_elem(&read_cursors, free_cursor, NULL, 0);
		return 0;
	case CONTROL_RECOVERED:
		s->recovering = 0;
		return 0;
	case CONTROL_STOPPING:
		s->stopping = !!c->argument;
		return 0;
	case CONTROL_NUMBERS:
		if (s->next_flow_id < c->argument)
			s->next_flow_id = c->argument;
		return 0;
	case CONTROL_NUMBER:
		c->flow_id = __sync_fetch_and_add(&s->next_flow_id, 1);
		c->argument = s->incarnation;
		return 0;
	case CONTROL_MIRROR_VERSION:
		s->mirror_version = c->argument;
		return 0;
	case CONTROL_LEASE:
		s->lease_until_ns = c->argument;
		return 0;
	case CONTROL_MAIN:
		s->pid_namespace = own_pid_namespace();
		s->main_pid = c->argument;
		return 0;
	case CONTROL_BARRIER: {
		struct flow none = {};
		return mirror_marker(&none, MIRROR_BARRIER, 0, c->argument) ? 0 : -ENOSPC;
	}
	case CONTROL_LINK_UP:
		/* A link that is up stays up: a segment on another CPU would lose the flow's protection in the meantime. */
		if (c->argument)
			bpf_for_each_map_elem(&flows, begin_count, NULL, 0);
		s->link_up = !!c->argument;
		return 0;
	case CONTROL_SWEEP: {
		__u64 last_segments_ns = c->argument < LAST_SEGMENTS_NS ? c->argument : LAST_SEGMENTS_NS;
		struct sweep w = {
			.linked = s->link,
			.before_ns = now > c->argument ? now - c->argument : 0,
			.ended_before_ns = now > last_segments_ns ? now - last_segments_ns : 0,
		};
		bpf_for_each_map_elem(&flows, sweep_flow, &w, 0);
		c->swept = w.swept;
		return 0;
	}
	}
	return -EINVAL;
}

SEC("syscall")
int control(struct control *c)
{
	struct service *s = the_service();
	if (!s) {
		c->result = -ENOENT;
		return 0;
	}
	if (c->op == CONTROL_SPLICE || c->op == CONTROL_GRAFT || c->op == CONTROL_ABANDON || c->op == CONTROL_UNPROTECT ||
	    c->op == CONTROL_REPROTECT || c->op == CONTROL_OPENED || c->op == CONTROL_WANT ||
	    c->op == CONTROL_INHERIT_DIGEST)
		c->result = control_flow(s, c);
	else if (c->op == CONTROL_REFUSE)
		c->result = control_refuse(c);
	else
		c->result = control_service(s, c);
	return 0;
}
