/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * ICMP errors about connections of the service. A router on the way to a client tells the service's address of a packet
 * that it has dropped ("packet too big"), and has put the beginning of that packet into the error. The error belongs to
 * the member that has sent the packet: the owner of the connection in the packet, whose source is the service.
 */
#pragma once

#include "kernel.h"
#include "packet.h"
#include "flow_hash.h"

#define IPPROTO_ICMP 1
#define IPPROTO_ICMPV6 58
/* RFC 792, RFC 4443 3: type, code, checksum, and a word that depends on the type. */
#define ICMP_HEADER_LEN 8
#define ICMP_UNREACHABLE 3
#define ICMP_TIME_EXCEEDED 11
#define ICMP_PARAMETER 12
#define ICMPV6_UNREACHABLE 1
#define ICMPV6_PARAMETER 4
#define IPV4_OFFSET_MASK 0x1fff

/* The packet in the error, from `offset` on. */
static __always_inline bool inner_v4(packet_buffer *buffer, __u32 offset, struct hashed_flow *flow)
{
	struct ipv4_header ip;
	if (load_bytes(buffer, offset, &ip, sizeof(ip)))
		return false;
	__u32 ihl = (ip.version_ihl & 15) * 4;
	if (ip.protocol != IPPROTO_TCP || (ip.fragment & bpf_htons(IPV4_OFFSET_MASK)) || ihl < sizeof(ip))
		return false;
	map_v4(flow->service, ip.source);
	map_v4(flow->client, ip.destination);
	__be16 ports[2];
	if (load_bytes(buffer, offset + ihl, ports, sizeof(ports)))
		return false;
	flow->service_port = ports[0];
	flow->client_port = ports[1];
	return true;
}

static __always_inline bool inner_v6(packet_buffer *buffer, __u32 offset, struct hashed_flow *flow)
{
	struct ipv6_header ip;
	if (load_bytes(buffer, offset, &ip, sizeof(ip)) || ip.next_header != IPPROTO_TCP)
		return false;
	__builtin_memcpy(flow->service, ip.source, 16);
	__builtin_memcpy(flow->client, ip.destination, 16);
	__be16 ports[2];
	if (load_bytes(buffer, offset + sizeof(ip), ports, sizeof(ports)))
		return false;
	flow->service_port = ports[0];
	flow->client_port = ports[1];
	return true;
}

static __always_inline bool icmp_about_v4(packet_buffer *buffer, __u32 offset, struct hashed_flow *flow)
{
	__u8 type;
	if (load_bytes(buffer, offset, &type, sizeof(type)))
		return false;
	if (type != ICMP_UNREACHABLE && type != ICMP_TIME_EXCEEDED && type != ICMP_PARAMETER)
		return false;
	return inner_v4(buffer, offset + ICMP_HEADER_LEN, flow);
}

static __always_inline bool icmp_about_v6(packet_buffer *buffer, __u32 offset, struct hashed_flow *flow)
{
	__u8 type;
	if (load_bytes(buffer, offset, &type, sizeof(type)))
		return false;
	if (type < ICMPV6_UNREACHABLE || type > ICMPV6_PARAMETER)
		return false;
	return inner_v6(buffer, offset + ICMP_HEADER_LEN, flow);
}
