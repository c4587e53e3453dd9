/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Which packets are of a pool, and of which connection. The object defines the service of the pool before:
 * `is_service` of an address and port, `is_service_address` of an address.
 */
#pragma once

#include "../lib/kernel.h"
#include "../lib/packet.h"
#include "../lib/flow_hash.h"
#include "../lib/icmp_error.h"

#define IPPROTO_FRAGMENT 44

enum packet_class {
	CLASS_OTHER,	/* for this host */
	CLASS_SEGMENT,
	CLASS_ICMP,
	CLASS_FRAGMENT, /* of a segment */
};

/* RFC 8200 4.5: up to the protocol that is in pieces. */
struct fragment_header {
	__u8 next_header;
	__u8 reserved;
	__be16 offset;
	__be32 id;
};

static __always_inline enum packet_class classify_v4(packet_buffer *buffer, struct hashed_flow *flow)
{
	struct ipv4_header ip;
	if (load_bytes(buffer, ETH_HLEN, &ip, sizeof(ip)))
		return CLASS_OTHER;
	__u32 ihl = (ip.version_ihl & 15) * 4;
	map_v4(flow->service, ip.destination);
	if (ihl < sizeof(ip) || !is_service_address(flow->service))
		return CLASS_OTHER;
	bool is_fragment = ip.fragment & bpf_htons(0x3fff);
	if (ip.protocol == IPPROTO_TCP && is_fragment)
		return CLASS_FRAGMENT;
	if (ip.protocol == IPPROTO_ICMP && !is_fragment && icmp_about_v4(buffer, ETH_HLEN + ihl, flow) && is_service(flow->service, flow->service_port))
		return CLASS_ICMP;
	return CLASS_OTHER;
}

static __always_inline enum packet_class classify_v6(packet_buffer *buffer, struct hashed_flow *flow)
{
	struct ipv6_header ip;
	if (load_bytes(buffer, ETH_HLEN, &ip, sizeof(ip)) || !is_service_address(ip.destination))
		return CLASS_OTHER;
	__u32 offset = ETH_HLEN + sizeof(ip);
	if (ip.next_header == IPPROTO_FRAGMENT) {
		struct fragment_header fragment;
		bool is_segment = !load_bytes(buffer, offset, &fragment, sizeof(fragment)) &&
				  fragment.next_header == IPPROTO_TCP;
		return is_segment ? CLASS_FRAGMENT : CLASS_OTHER;
	}
	if (ip.next_header == IPPROTO_ICMPV6 && icmp_about_v6(buffer, offset, flow) && is_service(flow->service, flow->service_port))
		return CLASS_ICMP;
	return CLASS_OTHER;
}

static __always_inline enum packet_class classify(packet_buffer *buffer, struct hashed_flow *flow)
{
	struct packet p = {};
	if (parse_ip(buffer, &p, flow->client, flow->service)) {
		__be16 ports[2];
		if (load_bytes(buffer, p.tcp_offset, ports, sizeof(ports)))
			return CLASS_OTHER;
		flow->client_port = ports[0];
		flow->service_port = ports[1];
		return is_service(flow->service, flow->service_port) ? CLASS_SEGMENT : CLASS_OTHER;
	}
	if (has_vlan_tag(buffer))
		return CLASS_OTHER;
	__u32 protocol = network_protocol(buffer);
	if (protocol == bpf_htons(ETH_P_IP))
		return classify_v4(buffer, flow);
	if (protocol == bpf_htons(ETH_P_IPV6))
		return classify_v6(buffer, flow);
	return CLASS_OTHER;
}
