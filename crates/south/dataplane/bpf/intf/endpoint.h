/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Addresses under protection.
 */
#pragma once

#include "../lib/kernel.h"

/* Addresses of a service, each port of a range counted. */
#define MOST_ADDRESSES 1024

/* An address:port under protection. */
struct endpoint {
	__u8 address[16];
	__be16 port;
	__u16 pad;
};
