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
 */
#pragma once

/* What is known of a client lies no further behind than this: the largest window (RFC 7323 2.3). */
#define RESTORED_REACH (1U << 30)

/* A segment of the client of a flow that was made anew. True: it tells what had to be known. */
static __always_inline bool hear_restored(struct service *s, struct scratch *sc,
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
	if ((p->flags & (TCP_SYN | TCP_ACK)) != TCP_ACK || f->log.stable - p->seq > RESTORED_REACH ||
	    p->ack - f->client.ack > RESTORED_REACH)
		return false;
	sent_up_to(f, p->ack);
	f->client.ack = p->ack;
	f->client.window = p->window;
	if (o->timestamps) {
		advance(&f->client.tsval, option_tsval(sc->tcp, o));
		advance(&f->server.tsval, option_tsecr(sc->tcp, o));
		f->log.tsecr = f->client.tsval;
	}
	f->log.heard = p->ack;
	f->log.restored = RESTORED_HEARD;
	emit_event(s, EVENT_LATE, key, f, 0, 0);
	return true;
}

/* A SYN for a flow that was made anew: its client had never heard of the connection. */
static __always_inline bool never_was(const struct flow *f, const struct packet *p)
{
	return f->log.restored == RESTORED_SILENT && p->seq == f->client.isn;
}
