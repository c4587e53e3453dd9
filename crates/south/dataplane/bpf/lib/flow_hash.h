/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * The hash of a connection of a pool, from which the owner follows. The crate `pool` has the same in Rust.
 */
#pragma once

#include "kernel.h"
#include "siphash.h"

/* A connection, as the crate `pool` hashes it (flow_hash.rs). */
struct hashed_flow {
	__u8 client[16];
	__u8 service[16];
	__be16 client_port;
	__be16 service_port;
	__u8 purpose[4];
};

#define HASHED_FLOW_WORDS (sizeof(struct hashed_flow) / 8)

union flow_hash_input {
	struct sip_input words;
	struct hashed_flow flow;
};

static __always_inline __u64 flow_hash(union flow_hash_input *input, __u64 k0, __u64 k1)
{
	__builtin_memcpy(input->flow.purpose, "ownr", sizeof(input->flow.purpose));
	return siphash(&input->words, HASHED_FLOW_WORDS, k0, k1);
}
