/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * TCP segments in packets: headers are read with load_bytes, which does not care where the stack keeps them.
 */
#pragma once

#include "kernel.h"
#include "bytes.h"
#include "buffer.h"

/* Options of a TCP header: at most 40 bytes (RFC 9293 3.1). */
#define TCP_OPTIONS_MAX 40

/* The packet is gone, and the kernel's TCP takes it for sent: a packet for an interface that does not exist is freed
 * without an error (skb_do_redirect). TCP would answer the error of a drop: it halves the congestion window, even for
 * a pure ACK (__tcp_transmit_skb), and does not count the segment as sent. */
static __always_inline int withhold(void)
{
	return bpf_redirect(0, 0);
}

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10
#define TCP_ECE 0x40
#define TCP_CWR 0x80
#define TCP_HEADER_MIN 20
#define TCP_HEADER_MAX 60

struct ipv4_header {
	__u8 version_ihl;
	__u8 tos;
	__be16 total_len;
	__be16 id;
	__be16 fragment;
	__u8 ttl;
	__u8 protocol;
	__sum16 checksum;
	__be32 source;
	__be32 destination;
};

struct ipv6_header {
	__be32 version_class_flow;
	__be16 payload_len;
	__u8 next_header;
	__u8 hop_limit;
	__u8 source[16];
	__u8 destination[16];
};

struct udp_header {
	__be16 source;
	__be16 destination;
	__be16 len;
	__sum16 checksum;
};

/* What Linux puts between the IPv6 and the TCP header of a super-segment that the 16-bit length
 * cannot tell: a hop-by-hop header with nothing but the jumbo payload option (RFC 2675 2). */
struct jumbo_header {
	__u8 next_header;
	__u8 header_len; /* in 8 bytes, not counting the first */
	__u8 option;
	__u8 option_len;
	__be32 payload_len; /* this header's own bytes included */
};

#define OPTION_JUMBO 0xc2

/* Offsets into the TCP header. */
enum {
	TCP_SEQ = 4,
	TCP_ACK_SEQ = 8,
	TCP_DATA_OFFSET = 12,
	TCP_FLAGS = 13,
	TCP_WINDOW = 14,
	TCP_CHECKSUM = 16,
	TCP_URGENT = 18,
};

struct packet {
	__u32 tcp_offset; /* from the start of the frame */
	__u32 header_len; /* of TCP, options included */
	__u32 ip_len;     /* IP header to end of payload, without padding of the link */
	__u32 payload_len;
	__u32 seq;
	__u32 ack;
	__u16 window;
	__u8 flags;
	__u8 version;
};

static __always_inline __u32 sequence_len(const struct packet *p)
{
	return p->payload_len + !!(p->flags & TCP_FIN) + !!(p->flags & TCP_SYN);
}

/* The window in bytes; never scaled in a SYN (RFC 7323 2.2), also when it is sent again. */
static __always_inline __u32 window_of(const struct packet *p, __u8 scale)
{
	return (__u32)p->window << (p->flags & TCP_SYN ? 0 : scale);
}

static __always_inline void map_v4(__u8 *address, __be32 v4)
{
	__u32 *words = (__u32 *)address;
	words[0] = 0;
	words[1] = 0;
	words[2] = bpf_htonl(0xffff);
	words[3] = v4;
}

static __always_inline bool is_mapped_v4(const __u8 *address)
{
	const __u32 *words = (const __u32 *)address;
	return !words[0] && !words[1] && words[2] == bpf_htonl(0xffff);
}

/* Is there a TCP segment behind a jumbo header at `p->tcp_offset`, to the end of the frame? Such
 * frames exist only between this host's TCP and a device, or GRO and this host's TCP; gso_max_size
 * does not bound them: a sender makes two segments one in any case (tcp_min_tso_segs), and with an
 * MTU above 32 KiB, the loopback's, two are more than 64 KiB. */
static __always_inline bool skip_jumbo(packet_buffer *buffer, struct packet *p)
{
	struct jumbo_header jumbo;
	if (load_bytes(buffer, p->tcp_offset, &jumbo, sizeof(jumbo)))
		return false;
	if (jumbo.next_header != IPPROTO_TCP || jumbo.header_len || jumbo.option != OPTION_JUMBO ||
	    jumbo.option_len != sizeof(jumbo.payload_len) ||
	    bpf_ntohl(jumbo.payload_len) != buffer_len(buffer) - p->tcp_offset)
		return false;
	p->tcp_offset += sizeof(jumbo);
	return true;
}

/* Fill `source` and `destination`, and all of `p` that the IP header tells. False for what is
 * not a whole TCP segment: other protocols, fragments, other extension headers. */
static __always_inline bool parse_ip(packet_buffer *buffer, struct packet *p, __u8 *source,
				     __u8 *destination)
{
	/* With a tag it is a VLAN interface's, which will see it (or has) without. */
	if (has_vlan_tag(buffer))
		return false;
	__u32 protocol = network_protocol(buffer);
	if (protocol == bpf_htons(ETH_P_IP)) {
		struct ipv4_header ip;
		if (load_bytes(buffer, ETH_HLEN, &ip, sizeof(ip)))
			return false;
		if (ip.protocol != IPPROTO_TCP || (ip.fragment & bpf_htons(0x3fff)))
			return false;
		__u32 ihl = (ip.version_ihl & 15) * 4;
		if (ihl < sizeof(ip))
			return false;
		p->version = 4;
		p->tcp_offset = ETH_HLEN + ihl;
		p->ip_len = bpf_ntohs(ip.total_len);
		map_v4(source, ip.source);
		map_v4(destination, ip.destination);
	} else if (protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6_header ip;
		if (load_bytes(buffer, ETH_HLEN, &ip, sizeof(ip)))
			return false;
		p->version = 6;
		p->tcp_offset = ETH_HLEN + sizeof(ip);
		p->ip_len = bpf_ntohs(ip.payload_len);
		if (ip.next_header != IPPROTO_TCP &&
		    (ip.next_header != IPPROTO_HOPOPTS || p->ip_len || !skip_jumbo(buffer, p)))
			return false;
		if (p->ip_len)
			p->ip_len += sizeof(ip);
		__builtin_memcpy(source, ip.source, 16);
		__builtin_memcpy(destination, ip.destination, 16);
	} else {
		return false;
	}
	/* A length of 0 is BIG TCP; a frame may be longer than its packet (link padding). */
	if (!p->ip_len)
		p->ip_len = buffer_len(buffer) - ETH_HLEN;
	return true;
}

/* The TCP header into `tcp`; false when the segment is malformed. */
/* A length that is known not to be 0, and to have no bits but those of the mask when 1 is taken from
 * it. Linux 6.1's verifier does not learn that from a comparison with 0, but a helper's size must
 * not be. */
static __always_inline __u32 at_least_1(__u32 len, __u32 mask)
{
	asm volatile("" : "+r"(len));
	return ((len - 1) & mask) + 1;
}

static __always_inline bool parse_tcp(packet_buffer *buffer, struct packet *p, __u8 *tcp)
{
	if (load_bytes(buffer, p->tcp_offset, tcp, TCP_HEADER_MIN))
		return false;
	__u32 header_len = (tcp[TCP_DATA_OFFSET] >> 4) * 4;
	if (header_len < TCP_HEADER_MIN ||
	    p->tcp_offset - ETH_HLEN + header_len > p->ip_len ||
	    ETH_HLEN + p->ip_len > buffer_len(buffer))
		return false;
	__u32 options_len = header_len - TCP_HEADER_MIN;
	if (options_len > 0 && options_len <= TCP_OPTIONS_MAX &&
	    load_bytes(buffer, p->tcp_offset + TCP_HEADER_MIN, tcp + TCP_HEADER_MIN,
			       at_least_1(options_len, 63)))
		return false;
	p->header_len = header_len;
	p->payload_len = p->ip_len - (p->tcp_offset - ETH_HLEN) - header_len;
	p->seq = read32(tcp + TCP_SEQ);
	p->ack = read32(tcp + TCP_ACK_SEQ);
	p->window = ((__u16)tcp[TCP_WINDOW] << 8) | tcp[TCP_WINDOW + 1];
	p->flags = tcp[TCP_FLAGS];
	return true;
}
