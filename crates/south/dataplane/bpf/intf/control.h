/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Requests of user space: the argument of the program `control`.
 */
#pragma once

#include "../lib/kernel.h"
#include "digest.h"
#include "flow.h"

enum control_op {
	CONTROL_HEARTBEAT = 1,
	CONTROL_GATE = 2,      /* shut the gate now */
	CONTROL_INCARNATION = 3, /* a new life: opens the gate for it alone */
	CONTROL_RECOVERED = 4,
	CONTROL_STOPPING = 5,  /* argument: whether it is asked to end */
	CONTROL_MAIN = 6,      /* argument: pid of the main process */
	CONTROL_SPLICE = 7,
	CONTROL_ABANDON = 8,   /* forget the flow */
	CONTROL_UNPROTECT = 9, /* argument: enum unprotected */
	CONTROL_BARRIER = 10,  /* argument: token */
	CONTROL_SWEEP = 11,    /* forget flows closed for longer than `argument` ns */
	CONTROL_LINK_UP = 12,  /* argument: whether there is a logger */
	CONTROL_REPROTECT = 13, /* record the flow again from its next turn on */
	CONTROL_NUMBERS = 14,  /* argument: flows are numbered from here on */
	CONTROL_LEASE = 15,    /* argument: service.lease_until_ns */
	CONTROL_GRAFT = 16,    /* as SPLICE, to a socket that is there already; argument: its window, bytes */
	CONTROL_NUMBER = 17,   /* fills in a number for a flow, and in `argument` the present incarnation */
	CONTROL_OPENED = 18,   /* the flow was never half-open: have its record opened, if it is not behind a link */
	CONTROL_WANT = 19,     /* the next request waits until the server has said again what `digest` is of */
	CONTROL_REFUSE = 20,   /* the logger takes no record of the handshake `flow_id`; argument: enum unprotected. Fills in
				* `key` */
	CONTROL_INHERIT_DIGEST = 21, /* another host's output to the flow's client has `digest`, and `turn` before
				      * the part that a replay repeats */
	CONTROL_MIRROR_VERSION = 22, /* argument: service.mirror_version */
};

struct control {
	__u32 op;
	__s32 result; /* 0 or -errno */
	__u64 argument;
	__u64 flow_id; /* the flow's number: `key` alone may name a later connection */
	struct flow_key key;
	__u32 instream;
	__u32 outstream;
	__u32 verify_end;
	__u64 swept;
	struct digest digest;
	struct digest turn;
};
