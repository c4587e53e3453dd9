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
 */
#include "lib/kernel.h"
#include "lib/packet.h"
#include "intf/balance.h"
#include "balance/maps.h"
#include "balance/owner.h"
#include "lib/flow_hash.h"
#include "pool/classify.h"
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
	union flow_hash_input input = {};
	enum packet_class class = classify(skb, &input.flow);
	if (class == CLASS_OTHER)
		return TCX_NEXT;
	if (class == CLASS_FRAGMENT) {
		count_in(&balance_counters, BALANCE_FRAGMENTS);
		return TCX_DROP;
	}
	__u32 zero = 0;
	const struct balance *b = bpf_map_lookup_elem(&balance, &zero);
	__u64 hash = b ? flow_hash(&input, b->k0, b->k1) : 0;
	const struct balance_member *member = b ? owner_of(hash) : NULL;
	if (!member) {
		count_in(&balance_counters, BALANCE_NO_MEMBER);
		return TCX_DROP;
	}
	if (b->encapsulates && !encapsulate(skb, &member->route, hash, 0)) {
		count_in(&balance_counters, BALANCE_NOT_WRAPPED);
		return TCX_DROP;
	}
	count_in(&balance_counters, BALANCE_FORWARDED);
	if (class == CLASS_ICMP)
		count_in(&balance_counters, BALANCE_ICMP);
	count_in(&member_packets, member->slot);
	if (b->encapsulates)
		return bpf_redirect_neigh(member->route.ifindex, NULL, 0, 0);
	return redirect_to(&member->route);
}

/* Types that no map mentions, so that the generated Rust has them as well. */
const struct balance_table *generate_balance_table;
enum balance_counter generate_balance_counter;

char LICENSE[] SEC("license") = "GPL";
