/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * What a new server is told of its client while it says again what the client has, and of a client that has no room then.
 *
 * A replay is shown room that the client does not have, or it would wait for a client that does not read. Behind the end
 * of the replay the server's TCP sends into that room, too, and the client discards that. The server's TCP then has sent
 * what its client does not take, and sends it again at times that double, up to two minutes (RTO_MAX): it does not wait
 * for the client's word that there is room, as it would had it sent nothing (RFC 9293 3.8.6.1). When that word comes, its
 * TCP sends nothing at once, because what it has sent again is on its way, for all it knows.
 *
 * So the end of what the client has is held back from the server while the client has no room. With the client's word
 * that there is room the server is told all: what it has sent again has arrived, and it sends what is missing.
 */
#pragma once

/* Self-ACKs have microsecond round trips and would inflate the congestion window; this keeps
 * what a replaying server may have in flight small. It is no less than a segment can have: into a
 * smaller window Linux sends one of the loopback's (65483 bytes) only when its persist timer
 * fires, five times a second. */
#define SELF_ACK_WINDOW 65535

/* More than a whole segment of Ethernet: Linux goes on when a segment that it has sent again is acknowledged as a whole. */
#define HELD_BACK 1500

static __always_inline __u16 self_ack_window(const struct flow *f)
{
	__u32 scale = f->client.window_scale & 15; /* at most 14; the field then never shows 0 */
	return (SELF_ACK_WINDOW + (1 << scale) - 1) >> scale;
}

static __always_inline bool has_no_room(const struct flow *f)
{
	return !f->client.window;
}

/* The end of what the client has, server space. */
static __always_inline __u32 client_heard(const struct flow *f)
{
	return f->client.ack - f->splice.delta_seq;
}

/* Has the client more than the new server has said so far? */
static __always_inline bool is_replaying(const struct flow *f)
{
	return before(f->splice.nxt, client_heard(f));
}

/* Has the server sent what its client has no room for? */
static __always_inline bool sent_in_vain(const struct flow *f)
{
	return has_no_room(f) && after(f->splice.nxt, client_heard(f));
}

/* What the server is told when the client has all before `ack` (server space). `again`: the server waits for that in vain. */
static __always_inline __u32 told_of(struct flow *f, __u32 ack, bool again)
{
	bool in_vain = sent_in_vain(f);
	/* One byte more: Linux before 6.6 believes that there is no room only from who acknowledges more. */
	__u32 most = client_heard(f) - HELD_BACK + in_vain;
	if (before(most, f->splice.una))
		most = f->splice.una;
	f->splice.held = has_no_room(f) && (in_vain || !again) && after(ack, most);
	if (f->splice.held)
		ack = most;
	advance(&f->splice.una, ack);
	return ack;
}
