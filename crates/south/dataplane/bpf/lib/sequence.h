/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Sequence numbers (RFC 9293 3.4).
 */
#pragma once

#include "kernel.h"

/* RFC 9293 3.4: numbers are compared modulo 2^32; there is no smallest one. */
static __always_inline bool after(__u32 a, __u32 b)
{
	return (__s32)(a - b) > 0;
}

static __always_inline bool before(__u32 a, __u32 b)
{
	return after(b, a);
}

#define LARGEST_WINDOW (1U << 30) /* RFC 7323 2.3 */

#define ADVANCE_TRIES 8

static __always_inline void advance(__u32 *high, __u32 value)
{
	if (after(value, *high))
		*high = value;
}

/* The same, of a number that several processors advance. */
static __always_inline void advance_shared(__u32 *high, __u32 value)
{
	for (__u32 i = 0; i < ADVANCE_TRIES; i++) {
		__u32 known = *(volatile __u32 *)high;
		if (!after(value, known) || __sync_val_compare_and_swap(high, known, value) == known)
			return;
	}
}
