/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Holding a service's segments back while its maps are copied (src/object/migration.rs).
 *
 * The two programs take the places of the old `ingress` and `egress`, on every interface. From then on:
 *
 *   1. HOLDS: no TCP segment of the service's endpoints and of known connections arrives or leaves, so no flow changes
 *      under the copy: the old programs find flows by these alone. TCP sends all of these segments again. Other packets
 *      pass, those of other services of the same address too: at egress the old program still has its say, because the
 *      lease of this host may be over (replay/fence.h). The latch (replay/latch.h) goes on: this is no gate, so a death
 *      is still seen as a death, and a close as a close.
 *   2. COMMITTED: the new programs have their maps. These two call the new programs, until the new programs take the
 *      places themselves, interface by interface.
 *   3. EXPIRED: the time was over, or the copy has failed. These two call the old programs, whose maps nobody has
 *      changed. A `serve` that is killed in the middle so leaves a service that goes on as before.
 *
 * A compare-and-swap decides between 2 and 3, so no packet meets the old programs after a commit, and none meets the new
 * programs without a commit.
 */
#include "lib/kernel.h"
#include "lib/packet.h"
#include "intf/flow.h"
#include "intf/service.h"

enum hold_state {
	HOLD_HOLDS = 0,
	HOLD_EXPIRED = 1,
	HOLD_COMMITTED = 2,
};

struct hold {
	__u64 until_ns; /* CLOCK_MONOTONIC */
	__u32 state;
	__u32 mark; /* service.mark */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct hold);
} hold SEC(".maps");

/* The maps of the old programs: the values are of the old layout, and are not read here. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(struct endpoint));
	__uint(value_size, 1);
} endpoints SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(struct flow_key));
	__uint(value_size, 1);
} flows SEC(".maps");

enum { OLD_PROGRAM, NEW_PROGRAM, PROGRAMS };

/* A kernel may take only programs of one direction into one array. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, PROGRAMS);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
} held_ingress SEC(".maps"), held_egress SEC(".maps");

static __always_inline struct hold *the_hold(void)
{
	__u32 zero = 0;
	return bpf_map_lookup_elem(&hold, &zero);
}

/* Leaves the first state once, and tells the state of now. */
static __always_inline __u32 leave_hold(struct hold *h, __u32 to)
{
	__u32 before = __sync_val_compare_and_swap(&h->state, HOLD_HOLDS, to);
	return before == HOLD_HOLDS ? to : before;
}

static __always_inline __u32 state_of(struct hold *h)
{
	__u32 state = *(volatile __u32 *)&h->state;
	if (state == HOLD_HOLDS && bpf_ktime_get_ns() >= h->until_ns)
		return leave_hold(h, HOLD_EXPIRED);
	return state;
}

static __always_inline bool is_held(struct __sk_buff *skb, bool leaves)
{
	struct flow_key key = {};
	struct packet p = {};
	__be16 ports[2];
	if (!parse_ip(skb, &p, leaves ? key.server : key.client, leaves ? key.client : key.server) ||
	    bpf_skb_load_bytes(skb, p.tcp_offset, ports, sizeof(ports)))
		return false;
	key.client_port = ports[leaves];
	key.server_port = ports[!leaves];
	struct endpoint local = { .port = key.server_port };
	__builtin_memcpy(local.address, key.server, sizeof(local.address));
	/* The connections that the server has opened begin at any port. */
	return bpf_map_lookup_elem(&endpoints, &local) || bpf_map_lookup_elem(&flows, &key);
}

SEC("tcx/ingress")
int hold_ingress(struct __sk_buff *skb)
{
	struct hold *h = the_hold();
	if (!h)
		return TCX_NEXT;
	__u32 state = state_of(h);
	if (state == HOLD_HOLDS)
		return is_held(skb, false) ? TCX_DROP : TCX_NEXT;
	bpf_tail_call(skb, &held_ingress, state == HOLD_COMMITTED ? NEW_PROGRAM : OLD_PROGRAM);
	return TCX_NEXT; /* `outlive clean` has removed all */
}

SEC("tcx/egress")
int hold_egress(struct __sk_buff *skb)
{
	struct hold *h = the_hold();
	if (!h)
		return TCX_NEXT;
	__u32 state = state_of(h);
	/* A packet of ours may be half made, and has other addresses then. */
	if (state == HOLD_HOLDS && (skb->mark - h->mark < MARKS || is_held(skb, true)))
		return withhold();
	bpf_tail_call(skb, &held_egress, state == HOLD_COMMITTED ? NEW_PROGRAM : OLD_PROGRAM);
	return TCX_NEXT;
}

/* `to`: the state that is wanted; afterwards the state that is. */
SEC("syscall")
int end_hold(__u32 *to)
{
	struct hold *h = the_hold();
	if (!h)
		return 0;
	__u32 wanted = *to;
	/* Without a packet nobody has looked at the clock. */
	*to = state_of(h) == HOLD_HOLDS ? leave_hold(h, wanted) : *(volatile __u32 *)&h->state;
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
