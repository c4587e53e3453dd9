/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Self-fencing: a host that holds a lease falls silent when it is over, whatever has become of the
 * processes that would have to say so (stopped, starved, cut off). From then on nothing leaves that a
 * client could take for the service's:
 *
 *   segments from a protected address:port, RSTs and what was made here included    -> dropped, or
 *                                                                                      withheld
 *   what else comes from a protected address (ICMP, another port's segments)        -> dropped, but for
 *                                                                                      what goes to the
 *                                                                                      logger
 *   ARP in the name of a protected address, neighbour advertisements of one         -> dropped
 *
 * Packets that stay here pass: what is turned round on its way to the server's TCP, copies for the
 * logger. The gate has no say in this, nor has the heartbeat: a host that nobody supervises any more
 * serves on unprotected, but not beyond its lease.
 */
#pragma once

#include "../lib/kernel.h"
#include "../lib/sequence.h"
#include "../lib/packet.h"
#include "../intf/service.h"
#include "../intf/link.h"
#include "state.h"
#include "link.h"

#define ETH_P_ARP 0x0806
#define ARP_SENDER 14 /* its protocol address, from the start of the ARP packet */
#define IPPROTO_ICMPV6 58
#define NEIGHBOUR_ADVERTISEMENT 136

/* The clock counts while the host sleeps, too. */
static __always_inline bool fenced(const struct service *s)
{
	__u64 until = *(const volatile __u64 *)&s->lease_until_ns;
	return until && bpf_ktime_get_boot_ns() >= until;
}

static __always_inline int drop_fenced(void)
{
	count(COUNT_FENCED);
	return TCX_DROP;
}

/* Is it data, or a FIN, that its socket has sent before? (Of a segment that is new to its socket snd_nxt is the
 * first number: the socket counts when the segment is sent, tcp_event_new_data_sent.) */
static __always_inline bool is_repeated(struct __sk_buff *skb, const struct packet *p)
{
	struct bpf_sock *sk = skb->sk;
	if (!sk || !sequence_len(p) || (p->flags & TCP_RST))
		return false;
	sk = bpf_sk_fullsock(sk);
	if (!sk || sk->type != SOCK_STREAM || sk->protocol != IPPROTO_TCP)
		return false;
	const struct bpf_tcp_sock *tcp = bpf_tcp_sock(sk);
	return tcp && before(p->seq, tcp->snd_nxt);
}

/* A segment of the service that may not leave. New data and all that is not sent again are
 * withheld, repeated data is dropped. The server's TCP then has data in flight, and tries again twice
 * a second for fifteen minutes (Linux, tcp_retransmit_timer and TCP_RESOURCE_PROBE_INTERVAL). Of new
 * data that is dropped the server's TCP has nothing in flight: each try counts as a probe of a closed
 * window, and after tcp_retries2 probes, in 8 s, the connection is over (tcp_probe_timer). */
static __always_inline int refuse_fenced(struct __sk_buff *skb, const struct packet *p)
{
	return is_repeated(skb, p) ? drop_fenced() : (count(COUNT_FENCED), withhold());
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

/* The lease is over, and something leaves that is no segment from a protected address:port. */
__noinline int fence_other(struct __sk_buff *skb)
{
	struct link *l = the_link();
	__u8 ends[32] __attribute__((aligned(8)));
	__be32 v4[2] = {};
	__u32 at = ETH_HLEN;
	if (!l || skb->vlan_present) /* see parse_ip */
		return TCX_NEXT;
	if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		if (bpf_skb_load_bytes(skb, at + 8, ends, 32))
			return TCX_NEXT;
	} else {
		if (skb->protocol == bpf_htons(ETH_P_ARP)) {
			if (bpf_skb_load_bytes(skb, at + ARP_SENDER, &v4[0], 4))
				return TCX_NEXT;
		} else if (skb->protocol != bpf_htons(ETH_P_IP) || bpf_skb_load_bytes(skb, at + 12, v4, 8)) {
			return TCX_NEXT;
		}
		map_v4(ends, v4[0]);
		map_v4(ends + 16, v4[1]);
	}
	if (bpf_map_lookup_elem(&addresses, ends))
		return same_address(ends + 16, l->remote) ? TCX_NEXT : drop_fenced();
	if (skb->protocol == bpf_htons(ETH_P_IPV6) && advertised(skb, ends) &&
	    bpf_map_lookup_elem(&addresses, ends))
		return drop_fenced();
	return TCX_NEXT;
}
