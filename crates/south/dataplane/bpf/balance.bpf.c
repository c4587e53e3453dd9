/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * The load balancer of a pool: hands the packets of clients to the members, and has no state of connections.
 *
 *   1. A TCP segment to an address and port of the service, or an ICMP error about such a connection, is the balancer's
 *      (pool/classify.h). All other packets pass.
 *   2. The hash of the connection chooses an owner from the table of now (owner.h).
 *   3. The packet goes to the owner unchanged, as a frame to the link-layer address of the owner, or in UDP through
 *      routers (lib/encapsulation.h): members have the service's address too, and answer the clients themselves (direct
 *      server return).
 *
 * A fragment has no ports, and is dropped: a TCP that finds the path's MTU makes none. Without a member, packets are
 * dropped: a client tries again.
 *
 * The process of the balancer only changes the table. Without the process, packets go to the members of the last table.
 *
 * With `--forward xdp`, the program of balance_xdp.bpf.c sees the packets first, and the program at egress tells that
 * program the link-layer addresses (neighbours.h).
 */
#include "lib/kernel.h"
#include "lib/packet.h"
#include "intf/balance.h"
#include "balance/maps.h"
#include "balance/decide.h"
#include "balance/neighbours.h"
#include "lib/encapsulation.h"

static __always_inline int redirect_to(const struct outer_route *route)
{
	const __u32 *words = (const __u32 *)route->destination;
	struct bpf_redir_neigh next = { .nh_family = AF_INET6 };
	if (is_mapped_v4(route->destination)) {
		next.nh_family = AF_INET;
		next.ipv4_nh = words[3];
	} else {
		__builtin_memcpy(next.ipv6_nh, words, sizeof(next.ipv6_nh));
	}
	return bpf_redirect_neigh(route->ifindex, &next, sizeof(next), 0);
}

SEC("tcx/ingress")
int balance_ingress(struct __sk_buff *skb)
{
	struct decision found = {};
	decide(skb, &found);
	if (found.class == CLASS_OTHER)
		return TCX_NEXT;
	if (found.class == CLASS_FRAGMENT) {
		count_in(&balance_counters, BALANCE_FRAGMENTS);
		return TCX_DROP;
	}
	const struct balance_member *member = found.member;
	if (!member) {
		count_in(&balance_counters, BALANCE_NO_MEMBER);
		return TCX_DROP;
	}
	if (found.balance->encapsulates && !encapsulate(skb, &member->route, found.hash, 0)) {
		count_in(&balance_counters, BALANCE_NOT_WRAPPED);
		return TCX_DROP;
	}
	count_forwarded(&found);
	if (found.balance->encapsulates)
		return bpf_redirect_neigh(member->route.ifindex, NULL, 0, 0);
	note_neighbour(skb, &member->route);
	return redirect_to(&member->route);
}

SEC("tcx/egress")
int balance_egress(struct __sk_buff *skb)
{
	learn_neighbour(skb);
	return TCX_NEXT;
}

/* Types that no map mentions, so that the generated Rust has them as well. */
const struct balance_table *generate_balance_table;
enum balance_counter generate_balance_counter;
enum balance_xdp_counter generate_balance_xdp_counter;

char LICENSE[] SEC("license") = "GPL";
