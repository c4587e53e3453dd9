/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * How far the process of the server has read, as the process itself says: see replay/read_cursors.h.
 */
#pragma once

#include "../lib/kernel.h"
#include "flow.h"

/* How far the server's process has read a connection, and its logger knows what (read_cursors.h). Processes of the
 * service write these from outside; `flow_id` is the programs'. */
struct note {
	struct flow_key key;
	__u32 isn;     /* the client's */
	__u64 flow_id; /* whose it is, if that was found; 0: it was not */
	__u32 seq;     /* what lies before it is noted */
	__u32 taken;   /* enum taken; written last, and reset first */
	__u32 left;    /* the programs' as well: where the newest segment ended that no copy was made of */
	__u32 pad;
};

enum taken {
	NOTE_FREE = 0,
	NOTE_TAKEN = 1, /* by a connection */
	NOTE_BUSY = 2,  /* it is being taken */
	NOTE_DEAD = 3,  /* its process has not gone on with it: nothing is believed of it any more */
};

#define NOTES 65536
/* From the one that a connection's numbers lead to, this many may be its. */
#define NOTE_PROBES 4
