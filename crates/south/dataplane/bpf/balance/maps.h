/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * The maps of a balancer. All are pinned, and outlive the process of the balancer.
 */
#pragma once

#include "../lib/kernel.h"
#include "../intf/balance.h"
#include "../intf/service.h"

/* More than MOST_ADDRESSES is never written. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MOST_ADDRESSES);
	__type(key, struct endpoint);
	__type(value, __u8);
} services SEC(".maps");

/* The addresses of the endpoints, without the ports. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MOST_ADDRESSES);
	__uint(key_size, 16);
	__type(value, __u8);
} service_addresses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct balance);
} balance SEC(".maps");

/* Without types: Linux 6.1 takes no table of user space, which has none, for a map of a structure (libbpf issue 816). */
struct table_map {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(struct balance_table));
};

/* The table in use is a map of its own: a new table takes its place in one step, and no packet reads a table that is
 * being written. Empty until the first table. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 1);
	__type(key, __u32);
	__array(values, struct table_map);
} tables SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, BALANCE_COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} balance_counters SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, BALANCE_MEMBERS);
	__type(key, __u32);
	__type(value, __u64);
} member_packets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, BALANCE_XDP_COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} xdp_counters SEC(".maps");

static __always_inline void count_in(void *map, __u32 key)
{
	__u64 *counter = bpf_map_lookup_elem(map, &key);
	if (counter)
		*counter += 1;
}

static __always_inline bool is_service(const __u8 *address, __be16 port)
{
	struct endpoint endpoint = { .port = port };
	__builtin_memcpy(endpoint.address, address, sizeof(endpoint.address));
	return bpf_map_lookup_elem(&services, &endpoint);
}

static __always_inline bool is_service_address(const __u8 *address)
{
	return bpf_map_lookup_elem(&service_addresses, address);
}
