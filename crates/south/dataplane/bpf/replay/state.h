/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * The maps, and the small questions that every program asks of them.
 *
 * Who writes what: `client` of a flow is written at ingress, `server` at egress, `splice` by
 * control before the flow is spliced and at egress afterwards, but for `una` and `held`, which are
 * written at ingress. The packets of one connection
 * do not run concurrently in one direction (egress holds the socket lock, ingress runs on the
 * CPU that the flow is steered to), so each of these has one writer and needs no lock; single
 * bytes are used for flags so that two writers never share a word. `verify` has two: ingress
 * begins a head when the client has heard everything, egress goes on with it when the server
 * answers that. Should both meet, a head begins late, and a connection may be lost for it.
 */
#pragma once

#include "../lib/kernel.h"
#include "../lib/siphash.h"
#include "../lib/sequence.h"
#include "../lib/packet.h"
#include "../lib/edit.h"
#include "../lib/endpoints.h"
#include "../intf/digest.h"
#include "../intf/flow.h"
#include "../intf/service.h"
#include "../intf/link.h"
#include "../intf/read_cursor.h"
#include "../intf/event.h"
#include "../intf/expect.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct service);
} service SEC(".maps");

/* Connections whose handshake is complete. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, struct flow_key);
	__type(value, struct flow);
} flows SEC(".maps");

/* Handshakes under way. A flood of SYNs evicts only other handshakes. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct flow_key);
	__type(value, struct flow);
} half_open SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1048576);
	__type(key, struct expect_key);
	__type(value, struct expect);
} expected SEC(".maps");

/* The record on its way to the logger; sized by the loader. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 25);
} mirror SEC(".maps");

/* For digests: written from outside, once. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct digest_key);
} digest_keys SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct digest_budget);
} digest_budgets SEC(".maps");

/* The log link, if there is one: written from outside. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct link);
} link SEC(".maps");

/* Written at egress. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct link_path);
} path SEC(".maps");

/* Mapped by the processes of the service, too. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, READ_CURSORS);
	__type(key, __u32);
	__type(value, struct read_cursor);
} read_cursors SEC(".maps");

/* TCP headers of the SYN-ACKs that wait for the logger, by connection. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct flow_key);
	__type(value, struct synack);
} synacks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

/* The TCP header of a SYN-ACK that waits for the logger. */
struct synack {
	__u8 header[TCP_OPTIONS_MAX + 20];
	__u32 len;
};

#define DUE_SEGMENTS 8

/* Too large for the stack. One packet at a time is handled on a CPU in each direction, but an
 * egress program can be interrupted by the ingress one (softirq): one slot for each. */
struct scratch {
	struct header_edit header;
	struct flow half_open;
	/* One chunk; twice the room, because the verifier does not see that offset and length
	 * together stay within one. */
	__u64 replayed[2 * EXPECT_CHUNK / 8];
	/* A frame of the log link, from or to the logger, and what SipHash is taken of. */
	union {
		struct link_open open;
		struct link_ack ack;
		__u64 words[SIPHASH_WORDS];
		__u8 bytes[8 * SIPHASH_WORDS];
	} frame;
	/* Segments to clients that become due by a datagram of the logger: an ACK of recorded bytes, or a SYN-ACK. As many
	 * as LINK_ACKS, and a power of two for the verifier. */
	struct due_segment {
		struct flow_key key;
		__u64 flow_id;
		__u32 ack;
		__u32 ifindex;
		__u32 is_synack;
	} due[DUE_SEGMENTS];
	__u32 due_count;
	struct synack waiting; /* on its way to the map: the stack has no room for it (Linux 6.1) */
	struct digest digest; /* of the output, on its way to the logger */
	__u8 network[ETH_HLEN + 40]; /* link and network header of a packet that we make */
};

enum { SCRATCH_INGRESS, SCRATCH_EGRESS, SCRATCHES };

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SCRATCHES);
	__type(key, __u32);
	__type(value, struct scratch);
} scratches SEC(".maps");

static __always_inline void count(__u32 which)
{
	__u64 *value = bpf_map_lookup_elem(&counters, &which);
	if (value)
		*value += 1;
}

/* Put `s->header.edit` in the place of `s->header.tcp`. */
static __always_inline bool commit_edit(struct __sk_buff *skb, struct scratch *s, const struct packet *p)
{
	int stored = store_edit(skb, &s->header, p);
	if (stored == -EFAULT)
		count(COUNT_EDIT_FAILED);
	return !stored;
}

static __always_inline struct scratch *the_scratch(__u32 slot)
{
	return bpf_map_lookup_elem(&scratches, &slot);
}

static __always_inline struct service *the_service(void)
{
	__u32 zero = 0;
	return bpf_map_lookup_elem(&service, &zero);
}

/* The client is sent everything before `end`: SND.NXT (RFC 9293 3.3.1). */
static __always_inline void advance_snd_nxt(struct flow *f, __u32 end)
{
	if (!after(end, f->server.nxt))
		return;
	f->server.sent += end - f->server.nxt;
	f->server.nxt = end;
}

/* Without `serve` nobody would ever open the gate again: its silence opens it. */
static __always_inline bool abandoned_at(const struct service *s, __u64 now)
{
	/* Signed: the heartbeat may be renewed on another CPU after this one read the clock. */
	return (__s64)(now - s->heartbeat_ns) > (__s64)s->heartbeat_timeout_ns;
}

static __always_inline bool abandoned(struct service *s)
{
	return abandoned_at(s, bpf_ktime_get_ns());
}

static __always_inline bool service_gated(struct service *s)
{
	return s->gated && !abandoned(s);
}

/* Segments of unknown connections may be those of a connection that is being recovered. */
static __always_inline bool strays_dropped(struct service *s)
{
	return s->recovering && !abandoned(s);
}

enum direction { DIRECTION_IN = 1, DIRECTION_OUT = 2 };

/* Has this packet passed a program of ours before, in this direction? The frames of a device that is stacked upon
 * another one (macvlan, ipvlan) pass the programs of both, and a packet must be translated once. The number stays with
 * the packet from device to device. Another service has another mark. */
static __always_inline bool has_passed(struct __sk_buff *skb, const struct service *s, enum direction direction)
{
	__u32 stamp = ((s->mark >> 16 ^ s->mark) & 0xfffc) | direction;
	if (skb->tc_index == stamp)
		return true;
	skb->tc_index = stamp;
	return false;
}

/* Is the record of this flow kept at the other end of a log link? Then the client is told of no more
 * than is known to be there. */
static __always_inline bool linked(const struct service *s, const struct flow *f)
{
	return s->link && !f->unprotected && !f->log.ended;
}

/* Has a living server closed it? */
static __always_inline bool is_closing(const struct flow *f)
{
	return f->server_closing != NOT_CLOSING && f->server_closing != HALF_CLOSED;
}

/* Is this flow's server socket one that may not speak or hear? A flow of an earlier life
 * stays gated until it is spliced. What a living server closed is the kernel's to finish. */
static __always_inline bool flow_gated(struct service *s, struct flow *f)
{
	if (is_closing(f))
		return false;
	if (f->incarnation != s->incarnation)
		return !abandoned(s);
	return service_gated(s);
}

/* Without a logger there is no lease, either: who needs one falls silent soon, and keeps its clients waiting
 * rather than serve them without a record meanwhile. */
static __always_inline bool waits_for_logger(struct service *s)
{
	return s->lease_until_ns && !abandoned(s);
}

/* Does nothing reach its server socket now? */
static __always_inline bool flow_stands_still(struct service *s, struct flow *f)
{
	return flow_gated(s, f) || f->mode == FLOW_SPLICING || f->mode == FLOW_DIVERGED;
}

static __always_inline void emit_event(struct service *s, __u32 kind, const struct flow_key *key,
				       struct flow *f, __u32 reason, __u32 seq)
{
	struct event *e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);
	if (!e) {
		count(COUNT_EVENTS_LOST);
		return;
	}
	__builtin_memset(e, 0, sizeof(*e));
	e->timestamp_ns = bpf_ktime_get_ns();
	e->kind = kind;
	e->incarnation = s->incarnation;
	e->reason = reason;
	e->seq = seq;
	if (key)
		e->key = *key;
	if (f) {
		e->flow_id = f->id;
		e->outstream = f->server.nxt;
	}
	bpf_ringbuf_submit(e, 0);
}

static __always_inline void lose_protection(struct service *s, const struct flow_key *key,
					    struct flow *f, __u8 reason)
{
	if (f->unprotected)
		return;
	f->unprotected = reason;
	emit_event(s, EVENT_UNPROTECTED, key, f, reason, 0);
}
