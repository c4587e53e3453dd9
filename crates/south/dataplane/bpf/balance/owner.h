/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * The owner of a connection: hash, table, member. The crate `pool` has the same in Rust.
 */
#pragma once

#include "../lib/kernel.h"
#include "../lib/siphash.h"
#include "../intf/balance.h"
#include "maps.h"

/* A connection, as the crate `pool` hashes it (flow_hash.rs). */
struct hashed_flow {
	__u8 client[16];
	__u8 service[16];
	__be16 client_port;
	__be16 service_port;
	__u8 purpose[4];
};

#define HASHED_FLOW_WORDS (sizeof(struct hashed_flow) / 8)

union owner_input {
	struct sip_input words;
	struct hashed_flow flow;
};

static __always_inline const struct balance_member *owner_of(union owner_input *input)
{
	__u32 zero = 0;
	const struct balance *b = bpf_map_lookup_elem(&balance, &zero);
	void *current = bpf_map_lookup_elem(&tables, &zero);
	if (!b || !current)
		return NULL;
	const struct balance_table *table = bpf_map_lookup_elem(current, &zero);
	if (!table || !table->owner_count)
		return NULL;
	__builtin_memcpy(input->flow.purpose, "ownr", sizeof(input->flow.purpose));
	__u32 hash = siphash(&input->words, HASHED_FLOW_WORDS, b->k0, b->k1);
	__u32 entry = hash % table->owner_count;
	if (entry >= BALANCE_OWNERS)
		return NULL;
	__u32 member = table->owners[entry];
	if (member >= BALANCE_MEMBERS)
		return NULL;
	return &table->members[member];
}
