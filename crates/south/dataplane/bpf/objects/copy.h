/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Copies of segments for user space: of clients that nobody here knows, and of both sides of a connection that is being
 * revived; and of segments that begin turns and responses, for records in the store.
 */
#pragma once

#include "../lib/kernel.h"
#include "../lib/packet.h"
#include "../intf/objects.h"
#include "state.h"

struct small_copy {
	struct object_copy header;
	__u8 bytes[OBJECT_COPY_SMALL];
};

struct turn_copy {
	struct object_copy header;
	__u8 bytes[OBJECT_TURN_COPY_MOST];
};

struct large_copy {
	struct object_copy header;
	__u8 bytes[OBJECT_COPY_MOST];
};

static __always_inline void fill_copy(struct object_copy *c, const struct flow_key *key, __u32 kind, __u32 ifindex,
				      __u32 packet_len, __u32 copied_len)
{
	c->timestamp_ns = bpf_ktime_get_ns();
	c->key = *key;
	c->kind = kind;
	c->ifindex = ifindex;
	c->packet_len = packet_len;
	c->copied_len = copied_len;
}

static __always_inline int copy_into(void *ring, struct __sk_buff *skb, const struct flow_key *key, __u32 packet_len,
				     __u32 kind)
{
	__u32 len = packet_len, ifindex = skb->ifindex;
	if (!key)
		return 0;
	if (len <= OBJECT_COPY_SMALL) {
		struct small_copy *c = bpf_ringbuf_reserve(ring, sizeof(*c), 0);
		if (!c)
			goto lost;
		len = at_least_1(len, 2047);
		if (len > OBJECT_COPY_SMALL || bpf_skb_load_bytes(skb, ETH_HLEN, c->bytes, len)) {
			bpf_ringbuf_discard(c, 0);
			goto lost;
		}
		fill_copy(&c->header, key, kind, ifindex, packet_len, len);
		bpf_ringbuf_submit(c, 0);
		return 1;
	}
	struct large_copy *c = bpf_ringbuf_reserve(ring, sizeof(*c), 0);
	if (!c)
		goto lost;
	if (len > OBJECT_COPY_MOST)
		len = OBJECT_COPY_MOST;
	len = at_least_1(len, 2 * OBJECT_COPY_MOST - 1);
	if (len > OBJECT_COPY_MOST || bpf_skb_load_bytes(skb, ETH_HLEN, c->bytes, len)) {
		bpf_ringbuf_discard(c, 0);
		goto lost;
	}
	fill_copy(&c->header, key, kind, ifindex, packet_len, len);
	bpf_ringbuf_submit(c, 0);
	return 1;
lost:
	count(OBJECTS_COPIES_LOST);
	return 0;
}

/* Whether user space gets the segment. A function of its own for the verifier. */
__noinline int copy_segment(struct __sk_buff *skb, const struct flow_key *key, __u32 packet_len, __u32 kind)
{
	return copy_into(&copies, skb, key, packet_len, kind);
}

/* The same, for bytes of a client that wait for their turn. */
__noinline int copy_queued(struct __sk_buff *skb, const struct flow_key *key, __u32 packet_len)
{
	return copy_into(&queued, skb, key, packet_len, COPY_QUEUED);
}

/* `flags` of bpf_ringbuf_submit: user space looks into the ring every few milliseconds, and a wake-up for each request
 * would cost more than the rest. */
__noinline int copy_turn(struct __sk_buff *skb, const struct flow_key *key, __u32 packet_len, __u32 kind, __u32 flags)
{
	__u32 len = packet_len, ifindex = skb->ifindex;
	if (!key)
		return 0;
	if (len <= OBJECT_COPY_SMALL) {
		struct small_copy *c = bpf_ringbuf_reserve(&turns, sizeof(*c), 0);
		if (!c)
			goto lost;
		len = at_least_1(len, 2047);
		if (len > OBJECT_COPY_SMALL || bpf_skb_load_bytes(skb, ETH_HLEN, c->bytes, len)) {
			bpf_ringbuf_discard(c, BPF_RB_NO_WAKEUP);
			goto lost;
		}
		fill_copy(&c->header, key, kind, ifindex, packet_len, len);
		bpf_ringbuf_submit(c, flags);
		return 1;
	}
	struct turn_copy *c = bpf_ringbuf_reserve(&turns, sizeof(*c), 0);
	if (!c)
		goto lost;
	if (len > OBJECT_TURN_COPY_MOST)
		len = OBJECT_TURN_COPY_MOST;
	len = at_least_1(len, 2 * OBJECT_TURN_COPY_MOST - 1);
	if (len > OBJECT_TURN_COPY_MOST || bpf_skb_load_bytes(skb, ETH_HLEN, c->bytes, len)) {
		bpf_ringbuf_discard(c, BPF_RB_NO_WAKEUP);
		goto lost;
	}
	fill_copy(&c->header, key, kind, ifindex, packet_len, len);
	bpf_ringbuf_submit(c, flags);
	return 1;
lost:
	count(OBJECTS_COPIES_LOST);
	return 0;
}
