/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Members in other network segments than the balancer and each other (`outlive balance --encapsulate`).
 *
 *   UDP to ENCAPSULATION_PORT, with the tag of the pool -> unwrapped: from here on as if it had arrived directly
 *   other UDP to that port of this member               -> dropped
 *   of a connection that another member serves          -> wrapped, to that member; once at most
 *   SYN-ACK                                             -> a segment size that leaves room for the outer headers
 *
 * The model has the segment size alone: it sees packets before they are wrapped, and after they are unwrapped.
 */
#pragma once

#include "../lib/kernel.h"
#include "../lib/packet.h"
#include "../lib/encapsulation.h"
#include "../lib/endpoints.h"
#include "../lib/flow_hash.h"
#include "../intf/objects.h"
#include "state.h"

static __always_inline bool is_service(const __u8 *address, __be16 port)
{
	return is_endpoint(address, port);
}

static __always_inline bool is_service_address(const __u8 *address)
{
	return bpf_map_lookup_elem(&addresses, address) != NULL;
}

#include "../pool/classify.h"

enum arrival {
	ARRIVED_DIRECTLY = 0,
	ARRIVED_WRAPPED = 1,
	ARRIVED_FORWARDED = 2, /* by another member */
	ARRIVED_FORGED = 3,    /* to be dropped */
};

static __always_inline union flow_hash_input *hash_input(struct object_scratch *s)
{
	return (union flow_hash_input *)&s->sip;
}

/* A function of its own for the verifier. */
__noinline int decapsulate(struct __sk_buff *skb)
{
	struct member *m = the_member();
	struct object_scratch *s = the_scratch(SCRATCH_INGRESS);
	struct outer_view outer = {};
	struct encapsulation own;
	if (!m || !s || !find_outer(skb, m->address, &outer))
		return ARRIVED_DIRECTLY;
	if (!take_off(skb, &outer, &own))
		goto forged;
	enum packet_class class = classify(skb, &hash_input(s)->flow);
	if (class != CLASS_SEGMENT && class != CLASS_ICMP)
		goto forged;
	__u64 tag = flow_hash(hash_input(s), m->keys[0].k0, m->keys[0].k1);
	if (own.tag[0] != bpf_htonl(tag >> 32) || own.tag[1] != bpf_htonl(tag))
		goto forged;
	count(OBJECTS_UNWRAPPED);
	return own.flags & ENCAPSULATION_FORWARDED ? ARRIVED_FORWARDED : ARRIVED_WRAPPED;
forged:
	count(OBJECTS_MISWRAPPED);
	return ARRIVED_FORGED;
}

/* Two members that each take the other for the server would send a packet round for ever: no packet is forwarded
 * twice. */
__noinline int forward_wrapped(struct __sk_buff *skb, const struct next_hop *to, const struct flow_key *key,
			       int arrival)
{
	struct member *m = the_member();
	struct object_scratch *s = the_scratch(SCRATCH_INGRESS);
	if (!m || !s || !to || !key)
		return TCX_DROP;
	struct hashed_flow *flow = &hash_input(s)->flow;
	__builtin_memcpy(flow->client, key->client, sizeof(flow->client));
	__builtin_memcpy(flow->service, key->server, sizeof(flow->service));
	flow->client_port = key->client_port;
	flow->service_port = key->server_port;
	__u64 tag = flow_hash(hash_input(s), m->keys[0].k0, m->keys[0].k1);
	if (arrival == ARRIVED_FORWARDED || !encapsulate(skb, &to->route, tag, ENCAPSULATION_FORWARDED)) {
		count(OBJECTS_NOT_WRAPPED);
		return TCX_DROP;
	}
	count(OBJECTS_FORWARDED);
	return bpf_redirect_neigh(to->route.ifindex, NULL, 0, 0);
}

/* In a SYN-ACK, the longest segment that the client may send: on the way from the balancer, the segment has the outer
 * headers, too. The client's own link may carry less than the members' links, so the latter do not decide. */
static __always_inline void lower_segment_size(struct object_scratch *s, __u32 option, const struct packet *p)
{
	__u32 at = in_header(option + 2), size = read32(&s->header.edit[in_header(option)]) & 0xffff;
	__u32 most = ENCAPSULATION_PATH_MTU - (p->version == 6 ? 60 : 40);
	if (size > most)
		size = most;
	if (size <= 2 * ENCAPSULATION_OVERHEAD_V6)
		return;
	size -= ENCAPSULATION_OVERHEAD_V6;
	s->header.edit[at] = size >> 8;
	s->header.edit[in_header(at + 1)] = size;
}
