/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * The owner of a connection: hash, table, member. The crate `pool` has the same in Rust.
 */
#pragma once

#include "../lib/kernel.h"
#include "../intf/balance.h"
#include "maps.h"

/* `hash`: of the connection (flow_hash.h). Its low half chooses. */
static __always_inline const struct balance_member *owner_of(__u32 hash)
{
	__u32 zero = 0;
	void *current = bpf_map_lookup_elem(&tables, &zero);
	if (!current)
		return NULL;
	const struct balance_table *table = bpf_map_lookup_elem(current, &zero);
	if (!table || !table->owner_count)
		return NULL;
	__u32 entry = hash % table->owner_count;
	if (entry >= BALANCE_OWNERS)
		return NULL;
	__u32 member = table->owners[entry];
	if (member >= BALANCE_MEMBERS)
		return NULL;
	return &table->members[member];
}
