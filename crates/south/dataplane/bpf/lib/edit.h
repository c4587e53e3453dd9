/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Rewriting the TCP header of a packet: through bpf_skb_store_bytes and bpf_l4_csum_replace with a difference, which is
 * right for the three ways in which the stack keeps a checksum (PARTIAL, NONE, COMPLETE).
 */
#pragma once

#include "kernel.h"
#include "packet.h"

/* The TCP header of a packet, and the header that the packet gets. Too large for the stack: a mode keeps the two
 * in a map. Aligned, so that the compiler copies words. */
struct header_edit {
	__u8 tcp[64];  /* as it came, options included */
	__u8 edit[64]; /* as it shall be */
} __attribute__((aligned(8)));

/* Tell the verifier that an index is inside the 64-byte header buffers. */
static __always_inline __u32 in_header(__u32 i)
{
	asm volatile("" : "+r"(i));
	return i & 63;
}

/* Begin an edit: `h->edit` becomes a copy of the header. */
static __always_inline void begin_edit(struct header_edit *h)
{
	__builtin_memcpy(h->edit, h->tcp, 64);
}

/* Put `h->edit` in the place of `h->tcp`: 0; -EINVAL for a header that is none, -EFAULT where the kernel cannot write. */
static __always_inline int store_edit(struct __sk_buff *skb, struct header_edit *h, const struct packet *p)
{
	__u32 len = p->header_len & 0x3c; /* a multiple of 4, at most TCP_HEADER_MAX */
	asm volatile("" : "+r"(len));
	if (len < TCP_HEADER_MIN)
		return -EINVAL;
	__s64 difference = bpf_csum_diff((__be32 *)h->tcp, len, (__be32 *)h->edit, len, 0);
	if (bpf_skb_store_bytes(skb, p->tcp_offset, h->edit, len, 0) ||
	    bpf_l4_csum_replace(skb, p->tcp_offset + TCP_CHECKSUM, 0, difference, 0))
		return -EFAULT;
	return 0;
}
