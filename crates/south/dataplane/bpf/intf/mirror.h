/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Mirror frames: the logger reads these from the ring. The format is that of protocol::mirror; a test decodes frames of one
 * side with the code of the other.
 */
#pragma once

#include "../lib/kernel.h"
#include "digest.h"

#define MIRROR_MAGIC 0x4c54554f
/* The newest version. Frames bear service.mirror_version. A build with OUTLIVE_NEXT_VERSION, for tests, knows the version
 * after this, too. */
#define MIRROR_VERSION 3

enum mirror_kind {
	MIRROR_INSTREAM = 1,
	MIRROR_OUTSTREAM = 2,
	MIRROR_BARRIER = 3,
	MIRROR_OPENED = 4,
	MIRROR_CLOSED = 5,
	MIRROR_DIGEST = 6,
};

enum closed_reason {
	CLOSED_FINISHED = 1,
	CLOSED_EVICTED = 4,
};

struct mirror_header {
	__u32 magic;
	__u8 version;
	__u8 kind;
	__u8 reason;
	__u8 unfinished; /* the checksum field holds only the pseudo-header's sum; the kernel vouches */
	__u64 flow_id;
	__u64 timestamp_ns;
	__u32 server_nxt;
	__u32 server_ack;
	__u32 packet_len;
	__u32 captured_len;
	__u64 token;
#ifdef OUTLIVE_NEXT_VERSION
	__u64 next_version; /* not in frames of MIRROR_VERSION: the packet is there */
#endif
};
