/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * One service: its settings, its present state, the marks of packets, and its counters.
 */
#pragma once

#include "../lib/kernel.h"
#include "endpoint.h"
#include "crash.h"
#include "marks.h"

/* Counts from the first release on. A build with OUTLIVE_NEXT_VERSION, for tests, is of the version after this
 * (src/pins.rs). */
#define LAYOUT_VERSION 15

/* One service, its settings and its life. Settings are written once, before anything is
 * attached; the rest by the programs. */
struct service {
	__u64 netns_cookie;
	__u64 cgroup_id;
	__u64 heartbeat_timeout_ns;
	__u32 cgroup_level;
	__u32 crash_policy;
	__u32 mark; /* the first of the MARKS marks below */
	__u32 verify_head; /* outstream bytes recorded after the beginning of each turn */

	__u64 heartbeat_ns; /* of `serve`, CLOCK_MONOTONIC */
	__u64 lease_until_ns; /* CLOCK_BOOTTIME: nothing leaves from then on; 0: no lease is needed */
	__u64 gated_ns;
#ifdef OUTLIVE_NEXT_VERSION
	__u64 next_version;
#endif
	__u64 next_flow_id;
	__u64 copies_since_ns; /* of what was counted in `copies` */
	__u32 copies; /* segments that need none */
	__u32 spare_copies; /* if no more than these come in a tenth of a second, none is left out (read_cursors.h) */
	__u32 incarnation;
	__u32 main_pid;      /* as `serve` numbers processes */
	__u32 pid_namespace; /* the one of `serve` */
	__u8 gated;      /* nothing of the service leaves or enters */
	__u8 recovering; /* segments of unknown connections are dropped, not reset */
	__u8 stopping;   /* asked to end: deaths are not crashes */
	__u8 link;       /* the record is kept at the other end of a log link, not behind the ring */
	__u8 link_up;    /* there is a logger there */
	__u8 read_cursors; /* its server logs determinants, and advances read cursors */
	__u8 copies_few; /* in the tenth of a second before no more came */
	__u8 digests;  /* what the server says is digested */
	__u32 digest_rate; /* bytes in a microsecond that each processor may digest whole; 0: none, 2^32 - 1: all */
	__u8 mirror_version; /* of the frames in the ring, as agreed with the reader */
};

enum counter {
	COUNT_MIRRORED = 0,      /* instream segments recorded */
	COUNT_MIRROR_FULL,       /* instream segments dropped because the ring was full */
	COUNT_HEADS,             /* outstream heads recorded */
	COUNT_HEADS_LOST,        /* outstream heads not recorded because the ring was full */
	COUNT_GATED_OUT,         /* packets of the service dropped by the gate */
	COUNT_GATED_IN,          /* client packets dropped by the gate */
	COUNT_SELF_ACKS,         /* replayed segments acknowledged for the client */
	COUNT_TRANSLATED_OUT,
	COUNT_TRANSLATED_IN,
	COUNT_UNTRACKED,         /* segments of connections that are not protected */
	COUNT_STRIPPED,          /* TCP options removed from a SYN */
	COUNT_TABLE_FULL,        /* connections that found no room in the table */
	COUNT_EVENTS_LOST,
	COUNT_EDIT_FAILED,       /* packets dropped because they could not be rewritten */
	COUNT_LINK_ACKS,         /* acknowledgements of the logger, each counted once */
	COUNT_LINK_FORGED,       /* packets that pretended to be one */
	COUNT_LINK_HEADS,        /* beginnings of answers that went to the logger at once */
	COUNT_LINK_OPENS,        /* SYN-ACKs that took the detour through the logger */
	COUNT_ACKS_CLAMPED,      /* segments that told the client less than the server's TCP had */
	COUNT_ACKS_WITHHELD,     /* pure ACKs that would have brought nothing new */
	COUNT_ACKS_MADE,         /* ACKs made from acknowledgements of the logger */
	COUNT_FENCED,            /* packets dropped because the lease was over */
	COUNT_MIRROR_SKIPPED,    /* segments that no copy was made of */
	COUNT_REPLAY_HELD,       /* replayed segments that waited for what is compared behind them */
	COUNT_SAMPLED,           /* connections of which only samples are digested from then on */
	COUNTERS,
};
