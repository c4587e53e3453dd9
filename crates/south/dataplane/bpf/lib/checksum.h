/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Checksums of segments that the programs make or judge.
 */
#pragma once

#include "kernel.h"
#include "packet.h"

/* Whether the kernel has left the checksum for later, and vouches for the segment: one of this host,
 * or one that GRO has put together from segments that it verified. In a segment from the wire the
 * same number in the field is a wrong checksum. `struct __sk_buff` does not tell. */
static __always_inline bool unfinished(struct __sk_buff *skb)
{
	return BPF_CORE_READ_BITFIELD_PROBED((struct sk_buff *)skb, ip_summed) == CHECKSUM_PARTIAL;
}

static __always_inline __u16 fold_checksum(__u64 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* Of the pseudo-header of a segment of `len` bytes; not folded. (The ffff in an address that is mapped adds
 * nothing to a sum.) */
static __always_inline __u32 pseudo_sum(__u32 len, const __u8 *source, const __u8 *destination)
{
	__u64 sum = bpf_csum_diff(NULL, 0, (__be32 *)source, 16, 0);
	sum = bpf_csum_diff(NULL, 0, (__be32 *)destination, 16, sum);
	sum += (__u64)bpf_htonl(len) + bpf_htonl(IPPROTO_TCP);
	sum = (sum & 0xffffffff) + (sum >> 32);
	return sum + (sum >> 32);
}

/* Give a segment that is a header alone, of `len` bytes, its checksum, or what the kernel will finish.
 * Its checksum field is zero. */
static __always_inline void seal(__u8 *header, __u32 len, const __u8 *source, const __u8 *destination,
				 bool finish)
{
	__u32 sum = pseudo_sum(len, source, destination);
	len &= 0x3c;
	asm volatile("" : "+r"(len));
	if (finish)
		sum = bpf_csum_diff(NULL, 0, (__be32 *)header, len, sum);
	__u16 checksum = finish ? fold_checksum(sum) : ~fold_checksum(sum);
	__builtin_memcpy(header + TCP_CHECKSUM, &checksum, 2);
}
