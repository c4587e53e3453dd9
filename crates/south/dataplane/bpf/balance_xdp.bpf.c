/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * The load balancer of a pool at XDP, in front of the program at tc (balance.bpf.c), with the maps of that program.
 *
 *   1. The decision on a packet is that of tc (balance/decide.h).
 *   2. A packet for a member on the link of its arrival goes back to the link as a frame to this member, at once.
 *   3. All other packets pass, and come to tc: what is not the balancer's, fragments, packets without a member, packets
 *      that are too long for the link, members on other links, and members whose link-layer address tc must find first
 *      (balance/neighbours.h). With encapsulation, all packets pass.
 *
 * So XDP drops nothing, and tc counts each drop.
 */
#define PROGRAMS_AT_XDP
#include "lib/kernel.h"
#include "lib/packet.h"
#include "intf/balance.h"
#include "balance/maps.h"
#include "balance/decide.h"
#include "balance/neighbours.h"

/* Is the packet short enough for the link? GRO, and XDP in the generic mode after GRO, make longer packets. */
static __always_inline bool has_room(struct xdp_md *frame, __u32 ifindex)
{
	__u32 len = buffer_len(frame) - ETH_HLEN;
	return !bpf_check_mtu(frame, ifindex, &len, 0, 0);
}

SEC("xdp.frags")
int balance_xdp(struct xdp_md *frame)
{
	struct decision found = {};
	decide(frame, &found);
	const struct balance_member *member = found.member;
	if (!member || found.balance->encapsulates)
		return XDP_PASS;
	const struct outer_route *route = &member->route;
	if (route->ifindex != frame->ingress_ifindex || !has_room(frame, route->ifindex) || !write_header(frame, route))
		return XDP_PASS;
	count_forwarded(&found);
	count_in(&xdp_counters, BALANCE_XDP_FORWARDED);
	return XDP_TX;
}

/* No map mentions this type by value, and libbpf needs its size. */
const struct balance_table *generate_balance_table;

char LICENSE[] SEC("license") = "GPL";
