/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * The two ends of a connection.
 */
#pragma once

#include "../lib/kernel.h"

/* Addresses are IPv6 or v4-mapped, ports in network order. */
struct flow_key {
	__u8 client[16];
	__u8 server[16];
	__be16 client_port;
	__be16 server_port;
};
