/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * The maps of a member, and the small questions that every program asks of these.
 *
 * One writer for each field: the client's fields of a connection, and the echoes that it has sent, are written at
 * ingress; the server's fields, and the indexes, at egress (after a revival, an echo may advance an index). A turn goes from hand to hand as the protocol orders:
 * ingress begins a turn before the server can answer, egress reads the answer before the client can acknowledge it,
 * ingress ends the turn.
 */
#pragma once

#include "../lib/kernel.h"
#include "../lib/sequence.h"
#include "../lib/packet.h"
#include "../lib/edit.h"
#include "../lib/endpoints.h"
#include "../lib/siphash.h"
#include "../intf/marks.h"
#include "../intf/objects.h"

#define OBJECT_FLOWS_MOST 262144
#define NO_LENGTH (~0ULL)

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct member);
} member SEC(".maps");

/* An IPv4 address of each interface that is not of the pool. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __be32);
} own_addresses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, OBJECT_FLOWS_MOST);
	__type(key, struct flow_key);
	__type(value, struct object_flow);
} object_flows SEC(".maps");

/* A flood of SYNs evicts only other handshakes. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct flow_key);
	__type(value, struct object_embryo);
} embryos SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 131072);
	__type(key, struct flow_key);
	__type(value, struct object_tombstone);
} tombstones SEC(".maps");

/* Connections that other members serve, as these have said. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 262144);
	__type(key, struct flow_key);
	__type(value, struct next_hop);
} forwards SEC(".maps");

#define COPIES_BYTES (1 << 23)

/* Segments for user space. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, COPIES_BYTES);
} copies SEC(".maps");

/* Segments of clients that wait for their turn: user space takes these behind the others, and many fill no room that a
 * revival needs. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 22);
} queued SEC(".maps");

/* Segments that begin turns and responses, for records in the store. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 23);
} turns SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} object_events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, OBJECTS_COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} object_counters SEC(".maps");

/* Too large for the stack. An egress program can be interrupted by the ingress program: one slot for each. */
struct object_scratch {
	struct header_edit header;
	struct object_flow flow;
	struct sip_input sip;
	__u8 frame[ETH_HLEN + 40 + 2]; /* link and network header of a packet that is turned round */
};

enum { SCRATCH_INGRESS, SCRATCH_EGRESS, SCRATCH_OTHER, SCRATCHES };

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, SCRATCHES);
	__type(key, __u32);
	__type(value, struct object_scratch);
} object_scratches SEC(".maps");

static __always_inline struct object_scratch *the_scratch(__u32 slot)
{
	return bpf_map_lookup_elem(&object_scratches, &slot);
}

static __always_inline struct member *the_member(void)
{
	__u32 zero = 0;
	return bpf_map_lookup_elem(&member, &zero);
}

static __always_inline void count(__u32 which)
{
	__u64 *value = bpf_map_lookup_elem(&object_counters, &which);
	if (value)
		*value += 1;
}

/* A member whose lease is over is silent: another member may go on with its connections. The clock counts while the
 * host sleeps, too. */
static __always_inline bool fenced(const struct member *m)
{
	return bpf_ktime_get_boot_ns() >= *(const volatile __u64 *)&m->lease_until_ns;
}

/* Has the pool changed a short time ago? */
static __always_inline bool in_quiescence(const struct member *m)
{
	return bpf_ktime_get_boot_ns() < *(const volatile __u64 *)&m->quiescence_until_ns;
}

static __always_inline bool commit_edit(struct __sk_buff *skb, struct object_scratch *s, const struct packet *p)
{
	int stored = store_edit(skb, &s->header, p);
	if (stored)
		count(OBJECTS_EDIT_FAILED);
	return !stored;
}

static __always_inline void tell(struct member *m, __u32 kind, const struct flow_key *key, __u32 reason, __u32 seq)
{
	struct object_event *e = bpf_ringbuf_reserve(&object_events, sizeof(*e), 0);
	if (!e) {
		count(OBJECTS_EVENTS_LOST);
		return;
	}
	__builtin_memset(e, 0, sizeof(*e));
	e->timestamp_ns = bpf_ktime_get_ns();
	e->kind = kind;
	e->incarnation = m->incarnation;
	e->reason = reason;
	e->seq = seq;
	if (key)
		e->key = *key;
	bpf_ringbuf_submit(e, 0);
}

/* Is the record of the turn under way in the store? */
static __always_inline bool is_stored(const struct object_flow *f)
{
	return *(const volatile __u32 *)&f->stored_turn == f->turn.number + 1;
}

/* The timestamps of the response under way do not tell the client's position, and the record is not stored. */
static __always_inline bool is_exposed(const struct object_flow *f)
{
	return f->exposed_turn == f->turn.number + 1 && !is_stored(f);
}

/* The record alone would tell another member the client's position, or the response. */
static __always_inline bool awaits_store(const struct object_flow *f)
{
	return (!f->has_timestamps || f->turn.has_inputs) && !f->unprotected && f->turn.is_guarded &&
	       f->turn.phase == OBJECT_BODY && !is_stored(f);
}

/* From here on an echo of the client tells every member that the connection cannot be revived. */
static __always_inline void lose_protection(struct member *m, const struct flow_key *key, struct object_flow *f,
					    __u8 reason)
{
	if (f->unprotected)
		return;
	f->unprotected = reason;
	f->turn.is_guarded = 0;
	f->turn.chunk_place = CHUNK_NONE; /* nobody reads the rest */
	tell(m, OBJECT_UNPROTECTED, key, reason, 0);
}
