/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Packets from the balancer of a pool to a member, and from member to member, through routers: an IP packet in UDP.
 *
 *   IPv4 or IPv6 header    from an address of the sender to the address of the member
 *   UDP header             to ENCAPSULATION_PORT; no checksum (RFC 6935); the source port follows from the tag, so that
 *                          equal-cost paths share the connections
 *   struct encapsulation
 *   the IP packet          of a client, or an ICMP error of a router, unchanged
 */
#pragma once

#include "../lib/kernel.h"

enum encapsulation_constant {
	ENCAPSULATION_PORT = 7702,
	ENCAPSULATION_MAGIC = 0x6f6c,
	ENCAPSULATION_VERSION = 1,
	ENCAPSULATION_OVERHEAD_V4 = 40, /* bytes before the IP packet, by the family of the outer header */
	ENCAPSULATION_OVERHEAD_V6 = 60,
	ENCAPSULATION_PATH_MTU = 1500, /* that the path from the balancer to each member must carry */
};

/* Flags. */
#define ENCAPSULATION_FORWARDED 1 /* by a member: the next member forwards the packet no more */
#define ENCAPSULATION_FLAGS 1

struct encapsulation {
	__be16 magic;
	__u8 version;
	__u8 flags;
	__be32 tag[2]; /* the hash of the connection, under the pool's key: nobody else can make a packet */
};

/* The way to a member, as the routing table of this host has the way. */
struct outer_route {
	__u8 source[16]; /* of the outer header. IPv4 in the mapped form */
	__u8 destination[16];
	__u32 ifindex;
};
