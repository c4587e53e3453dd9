/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Acknowledgements for a new server whose client's window is closed.
 *
 * A replay is shown room that the client does not have; otherwise the replay would wait for a client that does not read. Behind
 * the end of the replay the server's TCP fills that room with new segments, and the client discards these. From then on the
 * server's TCP retransmits at intervals that double, up to two minutes (TCP_RTO_MAX). A window update does not end the wait: for
 * the server's TCP the retransmission is still in flight.
 *
 * So the acknowledgement of the last bytes is held back while the client's window is closed. The window update releases the
 * acknowledgement: the retransmission has arrived, and the server's TCP sends the missing segments at once.
 *
 *   the server's TCP
 *     -> while the client's window is closed
 *   sends a segment that the client has, for the first time
 *     -> an acknowledgement of all but the last HELD_BACK bytes
 *   retransmits that segment, with nothing sent behind the replay
 *     -> an acknowledgement of all, window 0: the server waits for a window update
 *   has sent segments behind the replay
 *     -> an acknowledgement of all but the last HELD_BACK bytes, window 0
 *   retransmits a segment without an acknowledgement
 *     -> no answer in the client's name: the segment goes to the client, and the client answers
 *
 * The window update, and each acknowledgement before, reach the server with TSecr 0 and without SACK blocks. From both Linux would
 * conclude that the retransmission timer had fired too early (RFC 4015), and would no longer regard the segments as lost.
 */
#pragma once

#include "../lib/kernel.h"
#include "../lib/sequence.h"
#include "../intf/flow.h"

/* Self-ACKs have microsecond round trips and would inflate the congestion window; this keeps
 * what a replaying server may have in flight small. It is no less than a segment can have: into a
 * smaller window Linux sends one of the loopback's (65483 bytes) only when its persist timer
 * fires, five times a second. */
#define SELF_ACK_WINDOW 65535

/* More than a whole segment of Ethernet: Linux goes on when a retransmitted segment is acknowledged as a whole. Larger
 * segments wait for the retransmission timer. */
#define HELD_BACK 1500

static __always_inline __u16 self_ack_window(const struct flow *f)
{
	__u32 scale = f->client.window_scale & 15; /* at most 14; the field then never shows 0 */
	return (SELF_ACK_WINDOW + (1 << scale) - 1) >> scale;
}

static __always_inline bool is_zero_window(const struct flow *f)
{
	return !f->client.window;
}

/* The client's acknowledgement, server space. */
static __always_inline __u32 client_una(const struct flow *f)
{
	return f->client.ack - f->splice.delta_seq;
}

/* Has the client more than the new server has said so far? */
static __always_inline bool is_replaying(const struct flow *f)
{
	return before(f->splice.nxt, client_una(f));
}

/* Has the server sent segments for which the client has no room? (MPTCP clients are left out: egress.h acknowledges the part
 * of a segment that such a client has, and the client would never be asked.) */
static __always_inline bool sent_beyond_window(const struct flow *f)
{
	return is_zero_window(f) && !f->whole_segments && after(f->splice.nxt, client_una(f));
}

/* The acknowledgement that the server reads when the client has acknowledged `ack` (server space). `all`: hold nothing back from
 * a server with nothing sent behind the replay. The server's own check refuses a number that no server has sent. */
static __always_inline __u32 ack_for_server(const struct flow *f, __u32 ack, bool all)
{
	bool beyond = sent_beyond_window(f);
	if (after(ack, f->splice.nxt) || !is_zero_window(f) || f->whole_segments || (all && !beyond))
		return ack;
	__u32 most = client_una(f) - HELD_BACK + beyond;
	/* One byte more, once: Linux before 6.6 takes a closed window only from an acknowledgement of new bytes. */
	__u32 least = f->splice.una + (beyond && !f->splice.ack_withheld);
	if (before(most, least))
		most = least;
	return before(most, ack) ? most : ack;
}

/* The server's socket reads this acknowledgement. Called at ingress alone, which every acknowledgement passes. */
static __always_inline void advance_una(struct flow *f, __u32 ack)
{
	if (after(ack, f->splice.nxt))
		return;
	advance(&f->splice.una, ack);
	f->splice.ack_withheld = is_zero_window(f) && !f->whole_segments && before(f->splice.una, client_una(f)) &&
			 before(f->splice.una, f->splice.nxt);
}
