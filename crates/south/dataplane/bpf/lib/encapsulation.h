/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Wraps a packet in UDP, and unwraps it (intf/encapsulation.h).
 *
 *   wrapping      room behind the link header, with the kernel's knowledge of the inner packet: a super-segment is cut,
 *                 and an unfinished checksum is finished, in the inner packet. The routing table finds the next hop.
 *   unwrapping    the room goes. bpf_skb_change_proto gives the packet the family of the inner header: Linux before 6.3
 *                 has no flag for that in bpf_skb_adjust_room.
 *
 * ECN: the outer header says that the transport is not capable (RFC 6040 4.1, compatibility mode), so the inner packet
 * has all that there is to know. The outer header forbids fragments: a fragment would have no ports.
 */
#pragma once

#include "kernel.h"
#include "packet.h"
#include "checksum.h"
#include "../intf/encapsulation.h"

#define OUTER_TTL 64
#define IPV4_DONT_FRAGMENT 0x4000
#define IPV6_VERSION 0x60000000
#define IPV6_FLOW_LABEL 0xfffff
/* The dynamic ports (RFC 6335 6). */
#define SOURCE_PORT_FIRST 49152
#define SOURCE_PORT_MASK 0x3fff
#define EALREADY 114

struct outer_v4 {
	struct ipv4_header ip;
	struct udp_header udp;
	struct encapsulation own;
};

struct outer_v6 {
	struct ipv6_header ip;
	struct udp_header udp;
	struct encapsulation own;
};

_Static_assert(sizeof(struct outer_v4) == ENCAPSULATION_OVERHEAD_V4, "headers before the packet, IPv4");
_Static_assert(sizeof(struct outer_v6) == ENCAPSULATION_OVERHEAD_V6, "headers before the packet, IPv6");

static __always_inline struct udp_header outer_udp(__u64 tag, __u32 len)
{
	/* The kernel writes the length of each segment when it cuts a super-segment. */
	struct udp_header udp = {
		.source = bpf_htons(SOURCE_PORT_FIRST + (tag >> 48 & SOURCE_PORT_MASK)),
		.destination = bpf_htons(ENCAPSULATION_PORT),
		.len = len > 0xffff ? 0 : bpf_htons(len),
	};
	return udp;
}

static __always_inline struct encapsulation own_header(__u64 tag, __u8 flags)
{
	struct encapsulation own = {
		.magic = bpf_htons(ENCAPSULATION_MAGIC), .version = ENCAPSULATION_VERSION, .flags = flags,
		.tag = { bpf_htonl(tag >> 32), bpf_htonl(tag) },
	};
	return own;
}

/* Room for the outer headers. The pieces of a super-segment stay as long as the client's segments were: the handshake
 * has made these short enough. A packet that was unwrapped here may still be known as wrapped (skb->encapsulation, when
 * the sender is on the same machine): the kernel then has all it must know of the inner packet. */
static __always_inline bool make_room(struct __sk_buff *skb, bool v6, __u32 room)
{
	__u64 flags = (v6 ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 : BPF_F_ADJ_ROOM_ENCAP_L3_IPV4) |
		      BPF_F_ADJ_ROOM_ENCAP_L4_UDP | BPF_F_ADJ_ROOM_FIXED_GSO;
	long made = bpf_skb_adjust_room(skb, room, BPF_ADJ_ROOM_MAC, flags);
	if (made != -EALREADY)
		return !made;
	bool is_v6 = skb->protocol == bpf_htons(ETH_P_IPV6);
	__u32 same_family = is_v6 ? ENCAPSULATION_OVERHEAD_V6 : ENCAPSULATION_OVERHEAD_V4;
	if (bpf_skb_adjust_room(skb, same_family, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO))
		return false;
	return v6 == is_v6 || !bpf_skb_change_proto(skb, bpf_htons(v6 ? ETH_P_IPV6 : ETH_P_IP), 0);
}

/* Put the outer headers before the IP packet. False: the packet is too long for the device then, or the kernel cannot.
 * BPF_F_RECOMPUTE_CSUM: a sum of the whole packet, from the network device, stays right. */
static __always_inline bool encapsulate(struct __sk_buff *skb, const struct outer_route *route, __u64 tag, __u8 flags)
{
	bool v6 = !is_mapped_v4(route->destination);
	__u32 mtu = 0, room = v6 ? sizeof(struct outer_v6) : sizeof(struct outer_v4);
	if (!route->ifindex || bpf_check_mtu(skb, route->ifindex, &mtu, room, 0) || !make_room(skb, v6, room))
		return false;
	__u32 len = skb->len - ETH_HLEN;
	if (v6) {
		struct outer_v6 outer = {
			.ip = { .version_class_flow = bpf_htonl(IPV6_VERSION | (tag >> 32 & IPV6_FLOW_LABEL)),
				.next_header = IPPROTO_UDP, .hop_limit = OUTER_TTL },
			.udp = outer_udp(tag, len - sizeof(outer.ip)),
			.own = own_header(tag, flags),
		};
		outer.ip.payload_len = outer.udp.len;
		__builtin_memcpy(outer.ip.source, route->source, 16);
		__builtin_memcpy(outer.ip.destination, route->destination, 16);
		return !bpf_skb_store_bytes(skb, ETH_HLEN, &outer, sizeof(outer), BPF_F_RECOMPUTE_CSUM);
	}
	struct outer_v4 outer = {
		.ip = { .version_ihl = 0x45, .total_len = len > 0xffff ? 0 : bpf_htons(len),
			.fragment = bpf_htons(IPV4_DONT_FRAGMENT), .ttl = OUTER_TTL, .protocol = IPPROTO_UDP },
		.udp = outer_udp(tag, len - sizeof(outer.ip)),
		.own = own_header(tag, flags),
	};
	__builtin_memcpy(&outer.ip.source, route->source + 12, 4);
	__builtin_memcpy(&outer.ip.destination, route->destination + 12, 4);
	outer.ip.checksum = fold_checksum(bpf_csum_diff(NULL, 0, (__be32 *)&outer.ip, sizeof(outer.ip), 0));
	return !bpf_skb_store_bytes(skb, ETH_HLEN, &outer, sizeof(outer), BPF_F_RECOMPUTE_CSUM);
}

/* A packet that may be wrapped. */
struct outer_view {
	__u32 own_at;	   /* offset of struct encapsulation */
	__u8 has_options; /* of IPv4, or is the first fragment: no sender makes these */
};

static __always_inline bool same_words(const __u8 *a, const __u8 *b)
{
	const __u64 *x = (const __u64 *)a, *y = (const __u64 *)b;
	return x[0] == y[0] && x[1] == y[1];
}

/* Is the packet UDP to ENCAPSULATION_PORT of this address? */
static __always_inline bool find_outer(struct __sk_buff *skb, const __u8 *address, struct outer_view *found)
{
	__u8 destination[16] __attribute__((aligned(8)));
	__be16 ports[2];
	__u32 at = ETH_HLEN;
	/* With a tag, the packet comes again on the VLAN's device, without. */
	if (skb->vlan_present)
		return false;
	if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		__u8 next;
		if (bpf_skb_load_bytes(skb, at + 6, &next, 1) || next != IPPROTO_UDP ||
		    bpf_skb_load_bytes(skb, at + 24, destination, 16))
			return false;
		at += sizeof(struct ipv6_header);
	} else if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct ipv4_header ip;
		/* Only the first fragment has ports. */
		if (bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)) || ip.protocol != IPPROTO_UDP ||
		    (ip.fragment & bpf_htons(0x1fff)))
			return false;
		__u32 ihl = (ip.version_ihl & 15) * 4;
		if (ihl < sizeof(ip))
			return false;
		map_v4(destination, ip.destination);
		at += ihl;
		found->has_options = ihl != sizeof(ip) || (ip.fragment & bpf_htons(0x2000));
	} else {
		return false;
	}
	if (!same_words(destination, address) || bpf_skb_load_bytes(skb, at, ports, sizeof(ports)) ||
	    ports[1] != bpf_htons(ENCAPSULATION_PORT))
		return false;
	found->own_at = at + sizeof(struct udp_header);
	return true;
}

/* Take the outer headers off. False: no sender makes such a packet, or the kernel cannot; the packet must be dropped.
 * `own`: the header of ours. Whether the packet is of the pool is still to be asked. */
static __always_inline bool take_off(struct __sk_buff *skb, const struct outer_view *outer, struct encapsulation *own)
{
	__u8 version;
	if (outer->has_options || bpf_skb_load_bytes(skb, outer->own_at, own, sizeof(*own)) ||
	    bpf_skb_load_bytes(skb, outer->own_at + sizeof(*own), &version, 1))
		return false;
	version >>= 4;
	if (own->magic != bpf_htons(ENCAPSULATION_MAGIC) || own->version != ENCAPSULATION_VERSION ||
	    (own->flags & ~ENCAPSULATION_FLAGS) || (version != 4 && version != 6))
		return false;
	__be16 family = bpf_htons(version == 6 ? ETH_P_IPV6 : ETH_P_IP);
	/* Makes the room longer or shorter by the difference of the two network headers. */
	if (skb->protocol != family && bpf_skb_change_proto(skb, family, 0))
		return false;
	__s32 room = version == 6 ? ENCAPSULATION_OVERHEAD_V6 : ENCAPSULATION_OVERHEAD_V4;
	return !bpf_skb_adjust_room(skb, -room, BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO) &&
	       !bpf_skb_store_bytes(skb, 2 * ETH_ALEN, &family, sizeof(family), 0);
}
