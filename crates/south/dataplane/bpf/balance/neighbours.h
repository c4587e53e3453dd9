/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Link-layer headers for frames to members, which XDP learns from tc.
 *
 *   1. tc's ingress notes the address of the member in the control block of a packet, and leaves neighbour and header to
 *      the kernel (bpf_redirect_neigh).
 *   2. tc's egress sees the packet with the kernel's header, and keeps this header.
 *   3. XDP writes the same header for NEIGHBOUR_AGE_MAX_NS. Then a packet takes the way through tc again. So the kernel
 *      goes on to ask for the neighbour, and XDP follows a change.
 *
 * bpf_fib_lookup would give the header without that, but only on a host that forwards (sysctl forwarding). A balancer need
 * not be a router, and a host that becomes one loses its routes from router advertisements.
 */
#pragma once

#include "../lib/kernel.h"
#include "../intf/balance.h"

/* Also of members that have left, or have another address now. */
#define NEIGHBOURS (8 * BALANCE_MEMBERS)
#define NEIGHBOUR_AGE_MAX_NS 1000000000LL
/* In the first word of the control block: the other words are a member's address. */
#define NEIGHBOUR_NOTED 0x6f766e62

struct neighbour_key {
	__u8 address[16];
	__u32 ifindex;
};

struct neighbour {
	__u64 seen_ns;		   /* CLOCK_MONOTONIC_COARSE */
	__u8 header[2 * ETH_ALEN]; /* destination and source */
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, NEIGHBOURS);
	__type(key, struct neighbour_key);
	__type(value, struct neighbour);
} neighbours SEC(".maps");

static __always_inline void note_neighbour(struct __sk_buff *skb, const struct outer_route *route)
{
	const __u32 *words = (const __u32 *)route->destination;
	skb->cb[0] = NEIGHBOUR_NOTED;
	skb->cb[1] = words[0];
	skb->cb[2] = words[1];
	skb->cb[3] = words[2];
	skb->cb[4] = words[3];
}

/* The header of a packet that leaves for a member. */
static __always_inline void learn_neighbour(struct __sk_buff *skb)
{
	if (skb->cb[0] != NEIGHBOUR_NOTED)
		return;
	/* A VLAN's packet passes the devices below, too, which have another header. */
	skb->cb[0] = 0;
	struct neighbour_key key = { .ifindex = skb->ifindex };
	__u32 *words = (__u32 *)key.address;
	words[0] = skb->cb[1];
	words[1] = skb->cb[2];
	words[2] = skb->cb[3];
	words[3] = skb->cb[4];
	struct neighbour seen = { .seen_ns = bpf_ktime_get_coarse_ns() };
	if (!bpf_skb_load_bytes(skb, 0, seen.header, sizeof(seen.header)))
		bpf_map_update_elem(&neighbours, &key, &seen, BPF_ANY);
}

/* Writes the header of a frame to a member. False: the kernel must find the neighbour (again). */
static __always_inline bool write_header(struct xdp_md *frame, const struct outer_route *route)
{
	struct neighbour_key key = { .ifindex = route->ifindex };
	__builtin_memcpy(key.address, route->destination, sizeof(key.address));
	const struct neighbour *neighbour = bpf_map_lookup_elem(&neighbours, &key);
	if (!neighbour)
		return false;
	/* Signed: another processor may have a later time. */
	__s64 age = bpf_ktime_get_coarse_ns() - neighbour->seen_ns;
	if (age > NEIGHBOUR_AGE_MAX_NS)
		return false;
	void *data = (void *)(long)frame->data, *end = (void *)(long)frame->data_end;
	if (data + ETH_HLEN > end)
		return false;
	__builtin_memcpy(data, neighbour->header, sizeof(neighbour->header));
	return true;
}
