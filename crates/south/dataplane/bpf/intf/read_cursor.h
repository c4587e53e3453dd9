/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Read cursors: how far the processes of the server have read, see replay/read_cursors.h.
 */
#pragma once

#include "../lib/kernel.h"
#include "flow.h"

/* How far a process of the server has read a connection with stable determinants. Processes of the service write these
 * from outside; `flow_id` is the programs'. */
struct read_cursor {
	struct flow_key key;
	__u32 isn;     /* the client's */
	__u64 flow_id; /* whose it is, if that was found; 0: it was not */
	__u32 seq;     /* the determinants of all reads before it are stable */
	__u32 state;   /* enum cursor_state; written last, and reset first */
	__u32 skipped_to; /* the programs' as well: end of the newest segment that was not copied */
	__u32 pad;
};

enum cursor_state {
	CURSOR_FREE = 0,
	CURSOR_TAKEN = 1, /* by a connection */
	CURSOR_BUSY = 2,  /* it is being taken */
	CURSOR_DEAD = 3,  /* its process no longer advances it: the programs distrust it */
};

#define READ_CURSORS 65536
/* From the place that a connection's numbers lead to, this many may be its. */
#define READ_CURSOR_PROBES 4
