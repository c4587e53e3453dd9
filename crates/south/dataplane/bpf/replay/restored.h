/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Flows whose host has died, made anew from the record that the logger has (FT-TCP IV.E). What the
 * logger does not know, the client does: a segment below its window makes it answer with its own
 * numbers (RFC 9293 3.10.7.4). Until it has spoken nothing is done with such a flow.
 *
 * What it says shows, too, whether the record is whole. If the dead host had gone on without its logger
 * for a while, its server has acknowledged what nobody recorded; a replay would then begin in the past,
 * and what the new server says would be taken for the answer to something else. A client that has sent
 * nothing but what is recorded, or sends again from a place that is recorded, was acknowledged no more
 * than that.
 *
 * What its client has behind a hole it says in the blocks of its selective acknowledgements: in answer to a
 * call, and not always in data that it sends again. Until it has told that, no server is given the connection;
 * and a client without selective acknowledgements, which never will, is lost if it may have a part of an answer
 * that nobody has recorded (see docs/internals/log-link.md).
 *
 * A server with state (north side) is beyond what a replay could get wrong: it has said what it has said,
 * and nothing was acknowledged that was not recorded as long as anybody looked after it. Its client is
 * believed if it has sent beyond the record, too, to a host that did not receive that any more; or it would
 * have to wait until it sends that again, for its timer that doubles with each try. If more was acknowledged
 * after all, the connection stands still, since what comes next never comes: `snd_beyond_stable` stays until the
 * client has sent bytes from a place that is recorded. `serve` resets a client with which it stays for too long.
 *
 * Who only guesses must not pass for it, so it is believed no further than it can be from what is
 * recorded:
 *
 *   sequence number   below the end of the record by a window of the server at most: it sends again
 *                     from what it was acknowledged, and what is recorded was offered to it (one less:
 *                     a keep-alive, RFC 9293 3.8.4); of one that is ahead above it by as much
 *   acknowledgement   above what is recorded by a window of its own (on its way when the host died), and
 *                     what a logger is not told of (PROGRESS in link.h)
 *   timestamps        newer than what is recorded by RESTORED_AGE at most, if they were agreed on
 *
 * One whose sequence number is the end of the record, as that of a client which waits or listens, is
 * right there once in 2^32. It may have heard RESTORED_LAG more, and its timestamps anything but a little
 * less than is recorded, which is a segment of an earlier time: the record of a connection that has been
 * idle may be older than PAWS can tell (RFC 7323 5.5), the more so at a tick a microsecond.
 */
#pragma once

#include "../lib/kernel.h"
#include "../lib/sequence.h"
#include "../lib/bytes.h"
#include "../lib/packet.h"
#include "../lib/edit.h"
#include "../lib/options.h"
#include "../intf/flow.h"
#include "../intf/service.h"
#include "../intf/event.h"
#include "state.h"
#include "read_cursors.h"

/* Ticks: three days of milliseconds. Of who only uploads, a log on disk may have none but the SYN's. */
#define RESTORED_AGE (1U << 28)
/* Copies that tell of progress may be lost, and a log on disk takes its time (at most a second, and one
 * commit) to write it: two seconds at 1 Gbit/s. */
#define RESTORED_LAG (1U << 28)

/* Can `tsval` follow the timestamp `known`? 0: none was received, for the server has opened the connection. */
static __always_inline bool is_later(__u32 known, __u32 tsval, bool exact)
{
	__u32 age = tsval - known;
	return age <= RESTORED_AGE || (exact && (!known || age < -RESTORED_AGE));
}

static __always_inline bool is_beyond_stable(const struct flow *f, const struct packet *p)
{
	return after(p->seq, f->log.stable);
}

/* Its client is still to show that its record is whole. */
static __always_inline bool is_unconfirmed(const struct flow *f)
{
	return f->log.restored == RESTORED_UNCONFIRMED || f->log.restored == RESTORED_GAP_KNOWN;
}

static __always_inline bool is_credible(const struct flow *f, const struct packet *p, bool timestamps,
					__u32 tsval, __u32 tsecr)
{
	__u32 offered = 65535U << (f->server.window_scale & 15);
	__u32 window = 65535U << (f->client.window_scale & 15);
	__u32 uncopied = window / 2 > PROGRESS ? window / 2 : PROGRESS;
	bool exact = p->seq == f->log.stable;
	bool believed = is_beyond_stable(f, p) ? p->seq - f->log.stable <= offered
				       : f->log.stable - p->seq <= offered + 1;
	if (!believed ||
	    p->ack - f->client.ack > window + uncopied + (exact ? RESTORED_LAG : 0))
		return false;
	/* RFC 7323 3.2: who agreed on them sends them in each segment. */
	return !f->server.timestamps || (timestamps && is_later(f->client.tsval, tsval, exact) &&
					 is_later(f->server.tsval, tsecr, exact));
}

/* Output that the client acknowledges, and that this host has not sent, is the dead host's. */
static __always_inline void on_late_ack(struct flow *f, const struct packet *p)
{
	if (after(p->ack, f->server.nxt))
		advance(&f->log.client_received, p->ack);
}

/* The client has this of the dead host's output, also behind a gap (RFC 2018). */
static __always_inline void on_sack_blocks(struct flow *f, const struct scratch *sc, const struct packet *p,
					const struct options *o)
{
	if (!o->sack)
		return;
	__u32 known = after(p->ack, f->server.nxt) ? p->ack : f->server.nxt;
	__u32 edges = (__u32)(o->sack_len - 2) / 4, at = o->sack + 2;
	for (__u32 i = 0; i < 8; i++, at += 4) {
		if (i >= edges || at > TCP_HEADER_MAX - 4)
			break;
		__u32 edge = read32(&sc->header.tcp[in_header(at)]);
		if (after(edge, known) && !after(edge, f->log.client_wnd_edge))
			advance(&f->log.client_received, edge);
	}
}

/* How far a client that was not believed yet has received, and the right edge of its window. Blocks that it sent before,
 * when it was ahead of the record, are as good. */
static __always_inline void on_first_segment(struct flow *f, const struct scratch *sc, const struct packet *p,
				       const struct options *o)
{
	f->log.client_wnd_edge = p->ack + ((__u32)p->window << (f->client.window_scale & 15));
	if (!after(f->log.client_received, p->ack) || after(f->log.client_received, f->log.client_wnd_edge))
		f->log.client_received = p->ack;
	on_sack_blocks(f, sc, p, o);
}

/* Does this segment show what its client has behind a gap, if anything? Blocks do, and so does an acknowledgement without
 * them. Some stacks leave blocks out of data that they send again, and of keep-alives. */
static __always_inline bool shows_gaps(const struct flow *f, const struct packet *p, const struct options *o)
{
	bool answers = !sequence_len(p) && !before(p->seq, f->log.stable);
	return f->server.sack && (answers || (o->sack && o->sack_len > 2));
}

/* A client that sends bytes that are not recorded, and never shows what it has behind a gap. */
static __always_inline bool never_shows_gaps(const struct flow *f)
{
	return f->log.is_doubtful && f->log.restored == RESTORED_UNCONFIRMED && !f->server.sack;
}

/* What becomes of a client that shows that its record is whole; RESTORED_NOT: nothing yet. One without selective
 * acknowledgements can have nothing behind a hole that nobody has recorded if an answer to what it said last has begun, the
 * beginning is recorded, and it has said nothing since. */
static __always_inline enum restored confirmed_state(const struct service *s, const struct flow *f,
						const struct packet *p, const struct options *o)
{
	bool needs_no_gaps = f->log.stateful || !f->log.is_doubtful || f->log.restored == RESTORED_GAP_KNOWN;
	if (needs_no_gaps || shows_gaps(f, p, o))
		return RESTORED_CONFIRMED;
	if (f->server.sack || after(p->seq + sequence_len(p), f->log.stable))
		return RESTORED_GAP_UNKNOWN;
	/* What is recorded, or a keep-alive, does not show what comes behind that. */
	if (sequence_len(p) || p->seq != f->log.stable)
		return RESTORED_NOT;
	return f->verify.head_left < s->verify_head ? RESTORED_CONFIRMED : RESTORED_GAP_UNKNOWN;
}

/* A segment of the client of a flow that was made anew. True: it shows that the record is whole. */
static __always_inline bool on_restored_segment(struct service *s, struct scratch *sc,
					  const struct flow_key *key, struct flow *f,
					  const struct packet *p, const struct options *o)
{
	if (p->flags & TCP_RST) {
		if (p->seq == f->server.ack || p->seq == f->client.nxt) {
			f->client.reset = 1;
			emit_event(s, EVENT_LATE, key, f, 0, 0);
		}
		return false;
	}
	__u32 tsval = o->timestamps ? option_tsval(sc->header.tcp, o) : 0;
	__u32 tsecr = o->timestamps ? option_tsecr(sc->header.tcp, o) : 0;
	if ((p->flags & (TCP_SYN | TCP_ACK)) != TCP_ACK ||
	    !is_credible(f, p, o->timestamps, tsval, tsecr))
		return false;
	if (is_beyond_stable(f, p) && !f->log.stateful) {
		/* What is not recorded comes again, maybe without blocks. */
		if (shows_gaps(f, p, o)) {
			on_first_segment(f, sc, p, o);
			f->log.restored = RESTORED_GAP_KNOWN;
		} else if (never_shows_gaps(f)) {
			on_first_segment(f, sc, p, o);
			f->log.restored = RESTORED_GAP_UNKNOWN;
			emit_event(s, EVENT_LATE, key, f, 0, 0);
		}
		return false;
	}
	enum restored state = confirmed_state(s, f, p, o);
	if (state == RESTORED_NOT)
		return false;
	on_first_segment(f, sc, p, o);
	advance_snd_nxt(f, p->ack);
	f->client.ack = p->ack;
	f->client.window = p->window;
	if (f->server.timestamps) {
		f->client.tsval = tsval;
		f->server.tsval = tsecr;
		f->log.tsecr = tsval;
	}
	f->log.snd_beyond_stable = is_beyond_stable(f, p);
	f->log.restored = state;
	emit_event(s, EVENT_LATE, key, f, 0, 0); /* a client whose gaps are unknown is probed at once */
	return true;
}

/* The record is whole, and now its client shows what it has behind a gap, too. */
static __always_inline void on_gaps_shown(struct service *s, const struct flow_key *key, struct flow *f,
				      const struct packet *p, const struct options *o)
{
	if (f->log.restored != RESTORED_GAP_UNKNOWN || !shows_gaps(f, p, o))
		return;
	f->log.restored = RESTORED_CONFIRMED;
	emit_event(s, EVENT_LATE, key, f, 0, 0);
}

/* What has been sent since reaches as far as what the dead host may have sent: all that the client can
 * have is known, as of any other flow. */
static __always_inline void forget_dead_host(struct flow *f)
{
	if (after(f->server.nxt, f->log.client_received) && !after(f->log.client_wnd_edge, f->server.nxt))
		f->log.restored = RESTORED_NOT;
}

/* A SYN for a flow that was made anew: its client never knew the connection. */
static __always_inline bool is_unknown_to_client(const struct flow *f, const struct packet *p)
{
	return is_unconfirmed(f) && p->seq == f->client.isn;
}
