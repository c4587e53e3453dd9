/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Sockets of the kernel's TCP, as the tracepoint inet_sock_set_state shows these.
 */
#pragma once

#include "kernel.h"
#include "packet.h"

static __always_inline void socket_address(__u8 *address, const struct in6_addr *v6, __be32 v4, bool is_v6)
{
	if (is_v6)
		__builtin_memcpy(address, v6, 16);
	else
		map_v4(address, v4);
}

/* Two segments may complete one handshake on two CPUs: each makes a socket, one finds its place
 * taken and is thrown away (inet_ehash_nolisten), and the connection goes on with the other. The
 * one that is thrown away has its port still; a socket that is closed has given it back. */
static __always_inline bool came_second(struct sock *sk, int old_state, int new_state)
{
	return old_state == TCP_SYN_RECV && new_state == TCP_CLOSE &&
	       BPF_CORE_READ((struct inet_connection_sock *)sk, icsk_bind_hash) != NULL;
}
