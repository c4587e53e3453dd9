/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Numbers in network order in buffers of bytes.
 */
#pragma once

#include "kernel.h"

static __always_inline __u32 read32(const __u8 *b)
{
	return ((__u32)b[0] << 24) | ((__u32)b[1] << 16) | ((__u32)b[2] << 8) | b[3];
}

static __always_inline void write32(__u8 *b, __u32 v)
{
	b[0] = v >> 24;
	b[1] = v >> 16;
	b[2] = v >> 8;
	b[3] = v;
}

static __always_inline void write16(__u8 *b, __u16 v)
{
	b[0] = v >> 8;
	b[1] = v;
}
