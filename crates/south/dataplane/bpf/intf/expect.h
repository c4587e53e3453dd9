/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * The expected outstream of a replay.
 */
#pragma once

#include "../lib/kernel.h"

/* Outstream bytes compared in one step, see verify.h. */
#define EXPECT_CHUNK 512

/* What the replayed outstream must look like: 512 bytes of it, aligned in client space. */
struct expect_key {
	__u64 flow_id;
	__u32 chunk; /* sequence number / EXPECT_CHUNK */
	__u32 pad;
};

struct expect {
	__u8 bytes[EXPECT_CHUNK];
	__u8 strict[EXPECT_CHUNK]; /* 0xff: must be equal; 0: no record, or tolerated */
	__u8 soft[EXPECT_CHUNK];   /* 0xff: may differ, counted */
} __attribute__((aligned(8)));
