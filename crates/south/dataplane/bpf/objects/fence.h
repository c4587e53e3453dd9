/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * What a member never says: the address of the pool is on each member, and the balancer alone answers for it.
 *
 *   ARP requests in the name of an address of the pool                              -> in the name of the interface's
 *                                                                                      own address
 *   other ARP in the name of one, neighbour advertisements of one                   -> dropped
 *   what else comes from such an address (ICMP, segments of another port)           -> dropped when the lease is over
 */
#pragma once

#include "../lib/kernel.h"
#include "../lib/packet.h"
#include "../intf/objects.h"
#include "state.h"

#define ETH_P_ARP 0x0806
#define ARP_OPERATION 6 /* from the start of the ARP packet */
#define ARP_SENDER 14   /* its protocol address */
#define ARP_TARGET 24
#define ARP_REQUEST 1
#define IPPROTO_ICMPV6 58
#define NEIGHBOUR_ADVERTISEMENT 136

static __always_inline bool is_ours(const __u8 *address)
{
	return bpf_map_lookup_elem(&addresses, address) != NULL;
}

/* The target of a neighbour advertisement. */
static __always_inline bool advertised(struct __sk_buff *skb, __u8 *address)
{
	__u8 next, type;
	return !bpf_skb_load_bytes(skb, ETH_HLEN + 6, &next, 1) && next == IPPROTO_ICMPV6 &&
	       !bpf_skb_load_bytes(skb, ETH_HLEN + sizeof(struct ipv6_header), &type, 1) &&
	       type == NEIGHBOUR_ADVERTISEMENT &&
	       !bpf_skb_load_bytes(skb, ETH_HLEN + sizeof(struct ipv6_header) + 8, address, 16);
}

/* The kernel asks for the address of a neighbour in the name of the packet that waits (arp_solicit): of a segment of the
 * pool's address. Nobody would answer if the request did not leave, and the neighbours would send the pool's packets here
 * if it left so. Without an address of its own the interface asks as for a probe (RFC 5227 1.1). */
static __always_inline int egress_arp(struct __sk_buff *skb)
{
	__u8 source[16] __attribute__((aligned(8)));
	__be32 sender, target;
	__be16 operation;
	__u32 ifindex = skb->ifindex;
	if (bpf_skb_load_bytes(skb, ETH_HLEN + ARP_SENDER, &sender, 4) ||
	    bpf_skb_load_bytes(skb, ETH_HLEN + ARP_TARGET, &target, 4) ||
	    bpf_skb_load_bytes(skb, ETH_HLEN + ARP_OPERATION, &operation, 2))
		return TCX_NEXT;
	map_v4(source, sender);
	if (!is_ours(source))
		return TCX_NEXT;
	if (operation != bpf_htons(ARP_REQUEST) || sender == target)
		return TCX_DROP;
	__be32 *own = bpf_map_lookup_elem(&own_addresses, &ifindex);
	__be32 name = own ? *own : 0;
	return bpf_skb_store_bytes(skb, ETH_HLEN + ARP_SENDER, &name, 4, 0) ? TCX_DROP : TCX_NEXT;
}

/* No segment from an address:port of the pool. */
__noinline int egress_other(struct __sk_buff *skb)
{
	struct member *m = the_member();
	__u8 source[16] __attribute__((aligned(8)));
	__be32 v4 = 0;
	if (!m || skb->vlan_present)
		return TCX_NEXT;
	if (skb->protocol == bpf_htons(ETH_P_ARP))
		return egress_arp(skb);
	if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		if (advertised(skb, source) && is_ours(source))
			return TCX_DROP;
		if (bpf_skb_load_bytes(skb, ETH_HLEN + 8, source, 16))
			return TCX_NEXT;
	} else {
		if (skb->protocol != bpf_htons(ETH_P_IP) || bpf_skb_load_bytes(skb, ETH_HLEN + 12, &v4, 4))
			return TCX_NEXT;
		map_v4(source, v4);
	}
	if (!fenced(m) || !is_ours(source))
		return TCX_NEXT;
	count(OBJECTS_FENCED);
	return TCX_DROP;
}
