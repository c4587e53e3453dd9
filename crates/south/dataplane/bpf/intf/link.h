/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * The log link: UDP to a logger on another machine. The formats are those of protocol::link; tests read the writing of one
 * side with the code of the other. Numbers are little endian, except in the packet of a client.
 */
#pragma once

#include "../lib/kernel.h"
#include "../lib/packet.h"
#include "flow.h"

#define LINK_MAGIC 0x6b4c4ff1
#define LINK_MODE_REPLAY 1

enum link_kind {
	LINK_OPEN = 1, /* a SYN-ACK waits for this to be recorded */
	LINK_ACK = 3,
};

/* In place of a segment's TTL or hop limit: its kind, and flags. */
enum segment_kind {
	SEGMENT_PLAIN = 0,
	SEGMENT_HEARD_ALL = 1, /* the client had heard everything: what is said next is a head */
	SEGMENT_TURN = 2,      /* the same, and the server waits for this */
	SEGMENT_NOTED = 4,     /* what lies before it by a given distance is noted */
	SEGMENT_HEAD = 5,      /* not the client's: the beginning of what the server says */
	SEGMENT_DOUBTED = 6,   /* a host that is dead may have answered it, see restored.h */
	SEGMENT_SAID = 7,      /* the digest of all that the client was sent, and has heard */
};

#define SEGMENT_KINDS 0x07
#define SEGMENT_UNFINISHED 0x08 /* as mirror_header.unfinished */
#define SEGMENT_SLOT 0x10       /* which of the two keys */
#define SEGMENT_MODE (LINK_MODE_REPLAY << 5)

enum ack_strategy {
	ACK_BASIC = 0,
	ACK_LAZY = 1,
	ACK_EAGER = 2,
	ACK_CONDITIONAL = 3,
};

/* Of SipHash-2-4. */
struct link_key {
	__u64 k0;
	__u64 k1;
};

/* The two ends of the link and its keys. Written from outside; a new key goes into the slot that is
 * not in use before `slot` names it. */
struct link {
	__u8 local[16]; /* IPv6 or v4-mapped */
	__u8 remote[16];
	__be16 local_port;
	__be16 remote_port;
	__u16 mtu; /* largest IP packet that it carries */
	__u8 strategy;
	__u8 slot; /* of the keys in use */
	__u8 v6;
	__u8 version; /* the agreed version of the link */
	__u8 digests; /* it takes digests */
	__u8 pad[6];
	struct link_key up[2];   /* to the logger */
#ifdef OUTLIVE_NEXT_VERSION
	__u64 next_version;
#endif
	struct link_key down[2]; /* from it */
};

/* The way to the logger, as the kernel's routing last sent one of `serve`'s probes. */
struct link_path {
	__u32 ifindex;
	__u8 l2[14];
	__u16 pad;
	__u32 seen; /* how many probes passed */
};

struct link_head {
	__u32 magic;
	__u8 version;
	__u8 kind;
	__u8 slot;
	__u8 count; /* of ranges */
	__u8 mode;
	__u8 options; /* 0: there are none in version 8 */
	__u8 zeros[6];
	__u64 flow_id;
	__u64 counter;
};

/* What was agreed on: all that a host that did not see it has to know. */
struct link_handshake {
	__u32 tsval; /* of the SYN-ACK */
	__u16 syn_window;
	__u8 syn_flags;
	__u8 syn_options_len;
	__u8 scales; /* of windows: the server's, and in the high half the client's */
	__u8 agreed;
	__u8 syn_options[TCP_OPTIONS_MAX];
	__u16 pad;
};

#define AGREED_TIMESTAMPS 1
#define AGREED_SACK 2
#define AGREED_WHOLE_SEGMENTS 4

struct link_open {
	struct link_head head;
	struct flow_key key;
	__u32 client_isn;
	__u32 server_isn;
	struct link_handshake handshake;
	__u64 tag;
};

/* One behind the other in a datagram, up to LINK_ACKS. */
#define LINK_ACKS 5

struct link_ack {
	struct link_head head;
	struct flow_key key;
	__u32 stable;
	struct range ranges[LINK_RANGES];
	__u64 tag;
};
