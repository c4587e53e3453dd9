/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * What the client of a host that has died says, and nobody may know the answer to: the copies of a request and of the
 * head of its answer were both lost, and the client has heard of the answer. Of a long answer only the head is recorded,
 * so that what the client has heard may be the rest of that. What it says is given to the new server when that has said
 * again all that the client has heard: then there was no other answer.
 *
 * What the client had sent when the newest answer began of which there is a head is not in doubt: the answer to
 * that is compared.
 */
#pragma once

#include "../lib/kernel.h"
#include "../lib/sequence.h"
#include "../lib/packet.h"
#include "../intf/digest.h"
#include "../intf/flow.h"

/* SND.NXT of the present server, if it has taken the connection; client space. */
static __always_inline __u32 spliced_snd_nxt(const struct flow *f)
{
	return f->splice.nxt + f->splice.delta_seq;
}

/* The dead host may have answered what the client says from log.doubt on, and the client have heard that: it has
 * heard more than heads of answers are recorded, or may have (behind a hole of which it has not told), and the server
 * of now has not said so much again. */
static __always_inline bool is_in_doubt(const struct flow *f)
{
	if (!f->log.is_doubtful || f->log.stateful)
		return false;
	if (f->log.restored == RESTORED_GAP_UNKNOWN)
		return true;
	return f->log.restored == RESTORED_CONFIRMED && after(f->log.client_received, f->verify.heads_to) &&
	       !(f->mode == FLOW_SPLICED && !before(spliced_snd_nxt(f), f->log.client_received));
}

/* Is this segment, or its end, in doubt? (That the client ends waits by itself: see fin_precedes_repeat.) */
static __always_inline bool is_doubted(const struct flow *f, const struct packet *p)
{
	return p->payload_len && after(p->seq + p->payload_len, f->log.doubt) && is_in_doubt(f);
}

/* How far the client has received the dead host's output, beyond the acknowledgement of a segment. */
static __always_inline __u32 received_beyond_ack(const struct flow *f, const struct packet *p)
{
	return after(f->log.client_received, p->ack) ? f->log.client_received - p->ack : 0;
}

/* All that the client has heard is compared with a digest. The replay may give to the server what the dead one had read
 * by then: what follows from that is compared, too, before it is of any use. */
static __always_inline bool compares_all_received(const struct flow *f)
{
	return f->digest.comparison == COMPARES && !after(f->log.client_received, f->digest.sent.next);
}

/* The replay gives it to the server when that has said again what the client has heard. A server may have ended because of
 * what its client had said, and say that again no sooner: then all but the last number is enough. */
static __always_inline bool doubt_precedes_repeat(struct flow *f, const struct packet *p)
{
	if (!is_doubted(f, p) || compares_all_received(f))
		return false;
	if (spliced_snd_nxt(f) + 1 != f->log.client_received)
		return true;
	if (!f->log.is_unrecorded)
		f->log.unrecorded_from = f->log.client_received - 1;
	f->log.is_unrecorded = 1;
	return false;
}

/* Does the server say a byte of which the client has another life's, as far as can be told? Nobody has recorded that. (The
 * last number may be the end of what the dead host's server said.) */
static __always_inline bool contradicts_unrecorded(struct flow *f, const struct packet *p, __u32 seq)
{
	if (!f->log.is_unrecorded || f->log.stateful)
		return false;
	if (!before(seq, f->log.client_received)) {
		f->log.is_unrecorded = 0; /* it has come past that */
		return false;
	}
	if (!before(f->log.unrecorded_from, f->log.client_received) ||
	    !after(seq + p->payload_len, f->log.unrecorded_from))
		return false;
	f->verify.diverged_at = after(f->log.unrecorded_from, seq) ? f->log.unrecorded_from : seq;
	return true;
}
