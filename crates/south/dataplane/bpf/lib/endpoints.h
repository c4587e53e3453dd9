/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * The addresses and ports of a service: each object has maps of its own.
 */
#pragma once

#include "kernel.h"
#include "../intf/endpoint.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2 * MOST_ADDRESSES); /* each port alone, too */
	__type(key, struct endpoint);
	__type(value, __u8);
} endpoints SEC(".maps");

/* The addresses alone, for packets without a port. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MOST_ADDRESSES);
	__uint(key_size, 16);
	__type(value, __u8);
} addresses SEC(".maps");

static __always_inline bool is_endpoint(const __u8 *address, __be16 port)
{
	struct endpoint local = { .port = port };
	__builtin_memcpy(local.address, address, sizeof(local.address));
	return bpf_map_lookup_elem(&endpoints, &local) != NULL;
}

/* A listener's own address may be a wildcard: any endpoint with its port is meant. */
static __always_inline bool is_listener(__be16 port, const __u8 *address)
{
	struct endpoint local = { .port = port };
	const __u32 *words = (const __u32 *)address;
	/* 0.0.0.0 (v4-mapped) or ::; the loader has put each port in with address ::, too. */
	bool wildcard = !words[0] && !words[1] && !words[3] && (!words[2] || words[2] == bpf_htonl(0xffff));
	if (!wildcard)
		__builtin_memcpy(local.address, address, 16);
	return bpf_map_lookup_elem(&endpoints, &local) != NULL;
}
