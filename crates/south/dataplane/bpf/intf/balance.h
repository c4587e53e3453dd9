/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * The balancer of a pool: its key, its table of members and owners, and its counters.
 */
#pragma once

#include "../lib/kernel.h"
#include "encapsulation.h"

/* A balancer of another layout begins anew (src/balance.rs). */
#define BALANCE_LAYOUT_VERSION 2
/* Members of a pool. */
#define BALANCE_MEMBERS 256
/* Owners in a table of Maglev, a prime. */
#define BALANCE_OWNERS 65537
#define BALANCE_NAME_LEN 64

/* The key of the hash of a connection, and the way to members. */
struct balance {
	__u64 k0, k1;
	__u32 encapsulates; /* packets go to members in UDP, through routers */
	__u32 pad;
};

struct balance_member {
	struct outer_route route; /* without encapsulation: `destination`, on the link `ifindex` */
	__u16 slot;	  /* of its packets in `member_packets`: the same from table to table */

	/* For the next life of the balancer alone. */
	__u16 claim_port;
	__u64 membership;
	__u32 draining;
	__u8 name[BALANCE_NAME_LEN]; /* ends with a zero */
	__u32 pad;
};

/* A table is one value: a packet sees all of it, or all of another. */
struct balance_table {
	__u64 epoch;
	__u32 kind; /* for the next life alone */
	__u32 member_count;
	__u32 owner_count;
	__u32 pad;
	struct balance_member members[BALANCE_MEMBERS];
	__u16 owners[BALANCE_OWNERS + 3]; /* by the hash of the connection: positions in `members` */
};

enum balance_counter {
	BALANCE_FORWARDED = 0,
	BALANCE_ICMP = 1,      /* of these: ICMP errors about a connection */
	BALANCE_FRAGMENTS = 2, /* dropped: only the first fragment has ports */
	BALANCE_NO_MEMBER = 3, /* dropped */
	BALANCE_NOT_WRAPPED = 4, /* dropped: too long for the link to the member with the outer headers */
	BALANCE_COUNTERS = 5,
};

/* In a map of their own: a balancer that was started by a version without XDP has its counters in the map above. */
enum balance_xdp_counter {
	BALANCE_XDP_FORWARDED = 0, /* of BALANCE_FORWARDED */
	BALANCE_XDP_COUNTERS = 1,
};
