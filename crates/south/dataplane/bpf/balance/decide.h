/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * The decision on a packet, the same at tc and at XDP.
 */
#pragma once

#include "../lib/kernel.h"
#include "../lib/buffer.h"
#include "../lib/flow_hash.h"
#include "../intf/balance.h"
#include "maps.h"
#include "owner.h"
#include "../pool/classify.h"

struct decision {
	enum packet_class class;
	const struct balance *balance;
	const struct balance_member *member; /* NULL: no member gets the packet */
	__u64 hash;			     /* of the connection */
};

static __always_inline void decide(packet_buffer *buffer, struct decision *decision)
{
	union flow_hash_input input = {};
	decision->class = classify(buffer, &input.flow);
	if (decision->class != CLASS_SEGMENT && decision->class != CLASS_ICMP)
		return;
	__u32 zero = 0;
	decision->balance = bpf_map_lookup_elem(&balance, &zero);
	if (!decision->balance)
		return;
	decision->hash = flow_hash(&input, decision->balance->k0, decision->balance->k1);
	decision->member = owner_of(decision->hash);
}

static __always_inline void count_forwarded(const struct decision *decision)
{
	count_in(&balance_counters, BALANCE_FORWARDED);
	if (decision->class == CLASS_ICMP)
		count_in(&balance_counters, BALANCE_ICMP);
	count_in(&member_packets, decision->member->slot);
}
