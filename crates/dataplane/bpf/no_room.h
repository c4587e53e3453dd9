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
 *
 *   the server's TCP, while its client has no room
 *   says what the client has for the first time     -> is told of all but the last HELD_BACK bytes
 *   says that again, and has sent nothing behind it -> is told all, and that there is no room: it waits for room
 *   has sent something behind it                    -> is told of all but the last HELD_BACK bytes, and that there is no room
 *   sends again what it was not told of             -> is not answered in the client's name: the client says what room it has
 *
 * What the client says then, and the word that there is room, shows the server no echo (TSecr 0) and no SACK block: from these
 * Linux would conclude that its timer had fired too early (RFC 4015), and take back that anything was lost.
 */
#pragma once

/* Self-ACKs have microsecond round trips and would inflate the congestion window; this keeps
 * what a replaying server may have in flight small. It is no less than a segment can have: into a
 * smaller window Linux sends one of the loopback's (65483 bytes) only when its persist timer
 * fires, five times a second. */
#define SELF_ACK_WINDOW 65535

/* More than a whole segment of Ethernet: Linux goes on when a segment that it has sent again is acknowledged as a whole. With
 * larger ones the server goes on at its timer. */
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

/* Has the server sent what its client has no room for? (An MPTCP client is not asked by what it has in part: egress.h.) */
static __always_inline bool sent_in_vain(const struct flow *f)
{
	return has_no_room(f) && !f->whole_segments && after(f->splice.nxt, client_heard(f));
}

/* What the server is told when the client has all before `ack` (server space). `all`: nothing of that is held back
 * from a server that has sent nothing behind it. What no server has sent is for the server's own check to refuse. */
static __always_inline __u32 told_of(const struct flow *f, __u32 ack, bool all)
{
	bool in_vain = sent_in_vain(f);
	if (after(ack, f->splice.nxt) || !has_no_room(f) || f->whole_segments || (all && !in_vain))
		return ack;
	__u32 most = client_heard(f) - HELD_BACK + in_vain;
	/* One byte more, once: Linux before 6.6 believes that there is no room only from who acknowledges more. */
	__u32 least = f->splice.una + (in_vain && !f->splice.held);
	if (before(most, least))
		most = least;
	return before(most, ack) ? most : ack;
}

/* The server is told this: at ingress alone, where all passes that its socket is told. */
static __always_inline void note_told(struct flow *f, __u32 ack)
{
	if (after(ack, f->splice.nxt))
		return;
	advance(&f->splice.una, ack);
	f->splice.held = has_no_room(f) && !f->whole_segments && before(f->splice.una, client_heard(f)) &&
			 before(f->splice.una, f->splice.nxt);
}
