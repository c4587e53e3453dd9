/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Events for user space, through a ring.
 */
#pragma once

#include "../lib/kernel.h"
#include "flow.h"

enum event_kind {
	EVENT_DEATH = 1,     /* a process of the service crashed: the gate is shut */
	EVENT_LISTENING = 2, /* the server listens on a protected port */
	EVENT_UNPROTECTED = 3,
	EVENT_DIVERGED = 4,
	EVENT_LATE = 5, /* a handshake of an earlier incarnation was completed, or a restored flow's client
			 * was heard: splice it too */
	EVENT_REPROTECTED = 6, /* recorded again, from instream `seq` and `outstream` on */
};

struct event {
	__u64 timestamp_ns;
	__u64 flow_id;
	struct flow_key key;
	__u32 kind;
	__u32 pid;
	__u32 status; /* as wait(2) gives it */
	__u32 reason; /* enum unprotected */
	__u32 seq;
	__u32 incarnation;
	__u32 outstream; /* end of what the client was sent on this flow */
};
