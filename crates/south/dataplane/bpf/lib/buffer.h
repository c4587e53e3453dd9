/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * The packet of a program: a socket buffer at tc, or a frame that has none yet (XDP). An object of programs at XDP defines
 * PROGRAMS_AT_XDP. The headers that read packets by these functions alone are of use in both.
 */
#pragma once

#include "kernel.h"

#ifdef PROGRAMS_AT_XDP

typedef struct xdp_md packet_buffer;

static __always_inline long load_bytes(packet_buffer *buffer, __u32 offset, void *to, __u32 len)
{
	return bpf_xdp_load_bytes(buffer, offset, to, len);
}

static __always_inline __u32 buffer_len(packet_buffer *buffer)
{
	return bpf_xdp_get_buff_len(buffer);
}

/* Of the Ethernet header, in network order; 0 for a frame that is cut off. A VLAN's tag is here, in the place of the protocol. */
static __always_inline __u32 network_protocol(packet_buffer *buffer)
{
	__be16 protocol = 0;
	bpf_xdp_load_bytes(buffer, 2 * ETH_ALEN, &protocol, sizeof(protocol));
	return protocol;
}

static __always_inline bool has_vlan_tag(packet_buffer *buffer)
{
	return false;
}

#else

typedef struct __sk_buff packet_buffer;

static __always_inline long load_bytes(packet_buffer *buffer, __u32 offset, void *to, __u32 len)
{
	return bpf_skb_load_bytes(buffer, offset, to, len);
}

static __always_inline __u32 buffer_len(packet_buffer *buffer)
{
	return buffer->len;
}

static __always_inline __u32 network_protocol(packet_buffer *buffer)
{
	return buffer->protocol;
}

/* The kernel has taken the tag off the packet. */
static __always_inline bool has_vlan_tag(packet_buffer *buffer)
{
	return buffer->vlan_present;
}

#endif
