/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Ingress: from the client's side to the server's TCP.
 *
 *   not for a protected address:port, nor of a  -> others
 *     connection that the server has opened
 *   our own packet, server space                -> the server's TCP, untouched
 *   our own packet, client space                -> translated, to the server's TCP
 *   SYN of a new connection                     -> remembered in `half_open`, to the server; one that
 *                                                  an earlier life has answered is dropped while
 *                                                  a recovery is under way, and for a second
 *   first ACK of the server's SYN-ACK           -> the half-open connection becomes a flow;
 *                                                  "opened" is recorded: no room, no delivery
 *   segment of no known connection              -> the server's TCP (which resets it), but dropped
 *                                                  while a recovery is under way: it may belong
 *                                                  to a connection that is being recovered
 *   flow whose server is gone (gated)           -> observe what the client has acknowledged, record
 *                                                  what it sends, drop
 *   flow, segment with payload or FIN           -> recorded first; no room, no delivery
 *   flow on its first server                    -> the server's TCP
 *   flow made anew from its record (restored.h) -> nothing is believed before the client has shown
 *                                                  that the record is whole
 *   flow spliced, FIN of a client that has      -> dropped: it comes again when the server, too,
 *     heard more than the new server has said      is there
 *   flow spliced, new payload of a client that  -> recorded, and dropped: the replay gives it
 *     has heard more than the new server has said
 *   flow spliced, in a replay: a segment that   -> dropped: the record has the bytes
 *     the client was told has arrived
 *   flow spliced, beyond the window of the new  -> payload or FIN dropped; an acknowledgement
 *     server                                       alone is given the number of the window's edge
 *   flow spliced to a later server              -> acknowledgement number, SACK blocks and echoed
 *                                                  timestamp mapped to the new server's, then on;
 *                                                  of a client without room the last acknowledgement
 *                                                  is held back (zero_window.h)
 *
 * What a segment tells about the client is believed only if the server's TCP would believe it
 * (RFC 9293 3.10.7.4, as Linux checks it), or a stranger could spoil what recovery relies on.
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
#include "../intf/mirror.h"
#include "../intf/event.h"
#include "state.h"
#include "zero_window.h"
#include "doubt.h"
#include "link.h"
#include "mirror.h"
#include "digest.h"
#include "clamp.h"
#include "restored.h"

/* The end of all that the client may have been sent. */
static __always_inline __u32 snd_max(const struct flow *f)
{
	/* Its dead host may have sent more than is known: at most up to the edge of the client's window then. */
	return f->log.restored && after(f->log.client_wnd_edge, f->server.nxt) ? f->log.client_wnd_edge : f->server.nxt;
}

static __always_inline bool acceptable(const struct flow *f, const struct packet *p)
{
	__u32 end = p->seq + sequence_len(p);
	if (before(end, f->server.ack) || after(p->seq, f->server.rcv_wnd_edge))
		return false;
	if (p->flags & TCP_RST)
		return true;
	return (p->flags & (TCP_SYN | TCP_ACK)) == TCP_ACK && !after(p->ack, snd_max(f));
}

/* Learn from a segment of the client. False: nothing of it is believed. */
static __always_inline bool observe_client(struct flow *f, const struct packet *p, struct scratch *s,
					   const struct options *o, bool gated)
{
	if (!acceptable(f, p))
		return false;
	__u32 end = p->seq + sequence_len(p);
	if (p->flags & TCP_RST) {
		/* RFC 5961 3.2: only at exactly RCV.NXT; a gated server cannot challenge, so the
		 * client's own SND.NXT counts too. */
		if (gated && (p->seq == f->server.ack || p->seq == f->client.nxt))
			f->client.reset = 1;
		return false;
	}
	if (o->timestamps) {
		__u32 tsval = option_tsval(s->header.tcp, o);
		if (f->client.tsval && before(tsval, f->client.tsval))
			return false; /* PAWS, RFC 7323 5 */
		f->client.tsval = tsval;
		/* With a log link, who receives is server and logger together. The server's own echo would be
		 * that of the first copy, long ago, of what comes again because the logger had not got it:
		 * the client would take its retransmission for spurious, and the time for a round trip. */
		if (!after(p->seq, f->server.ack))
			f->log.tsecr = tsval;
	}
	if (f->log.restored) {
		on_late_ack(f, p);
		advance_snd_nxt(f, p->ack);
		on_sack_blocks(f, s, p, o);
		forget_dead_host(f);
	}
	if (sequence_len(p) && !after(p->seq, f->server.ack))
		f->log.snd_beyond_stable = 0; /* what is missing comes */
	if (after(end, f->client.nxt)) {
		f->client.nxt = end;
		f->client.response_start = f->server.nxt;
		if (f->verify.response == RESPONSE_BEGUN)
			f->verify.response = RESPONSE_NONE;
	}
	if (!before(p->ack, f->client.ack)) {
		f->client.ack = p->ack;
		f->client.window = p->window;
	}
	return true;
}

static __always_inline int translate_in(struct __sk_buff *skb, struct scratch *s, struct flow *f,
					const struct packet *p, const struct options *o)
{
	bool withheld = f->splice.ack_withheld;
	begin_edit(&s->header);
	if (p->flags & TCP_ACK) {
		/* The client may have acknowledged more than the new server has said so far, but not
		 * more than it was ever sent: that is for the server's own check to refuse. */
		__u32 ack = p->ack - f->splice.delta_seq;
		if (after(ack, f->splice.nxt) && !after(p->ack, f->server.nxt))
			ack = f->splice.nxt;
		ack = ack_for_server(f, ack, !is_replaying(f));
		advance_una(f, ack);
		withheld |= f->splice.ack_withheld;
		write32(&s->header.edit[TCP_ACK_SEQ], ack);
		/* See overshoots(). The server's TCP and a connection tracker take a number at the edge. */
		if (!sequence_len(p) && !(p->flags & TCP_RST) && after(p->seq, f->splice.rcv_wnd_edge))
			write32(&s->header.edit[TCP_SEQ], f->splice.rcv_wnd_edge);
		if (is_replaying(f) && p->window < self_ack_window(f))
			write16(&s->header.edit[TCP_WINDOW], self_ack_window(f));
	}
	if (o->timestamps && (p->flags & TCP_ACK)) {
		/* An echo from before the splice would look like a round trip of the whole outage. */
		__u32 tsecr = option_tsecr(s->header.tcp, o) - f->splice.ts_delta;
		if (before(tsecr, f->splice.first_tsval))
			tsecr = f->splice.first_tsval;
		/* The client's echo is older than the retransmission: Linux would take the retransmission for spurious. */
		if (withheld)
			tsecr = 0;
		write32(&s->header.edit[in_header(o->timestamps + 6)], tsecr);
	}
	if (o->sack) {
		__u32 edges = (__u32)(o->sack_len - 2) / 4, at = o->sack + 2;
		for (__u32 i = 0; i < 8; i++, at += 4) {
			if (i >= edges || at > TCP_HEADER_MAX - 4)
				break;
			__u32 edge = read32(&s->header.tcp[in_header(at)]) - f->splice.delta_seq;
			write32(&s->header.edit[in_header(at)], withheld ? OPTION_NOP * 0x01010101 : edge);
		}
		if (withheld && edges) { /* the blocks lie in the part that is held back */
			s->header.edit[in_header(o->sack)] = OPTION_NOP;
			s->header.edit[in_header(o->sack + 1)] = OPTION_NOP;
		}
	}
	if (!commit_edit(skb, s, p))
		return TCX_DROP;
	count(COUNT_TRANSLATED_IN);
	return TCX_NEXT;
}

/* Less than the initial retransmission timeout (RFC 6298 2.1): a client that has had no answer sends its SYN
 * again no sooner, and one that comes again before is the network's copy. */
#define FIRST_TIMEOUT (900ULL * 1000 * 1000)

/* An earlier life has answered this SYN. May its client still be about to acknowledge that? */
static __always_inline bool answer_is_awaited(struct service *s, const struct flow *e)
{
	if (abandoned(s))
		return false;
	return s->recovering || bpf_ktime_get_ns() - e->given_ns < FIRST_TIMEOUT;
}

/* The options of a SYN, into the half-open connection. A function of its own for the verifier. */
__noinline int copy_options(struct scratch *sc, __u32 len)
{
	if (!sc)
		return 0;
	for (__u32 i = 0; i < TCP_OPTIONS_MAX; i++) {
		__u32 end = len;
		asm volatile("" : "+r"(end)); /* the verifier would follow each length by itself */
		sc->half_open.syn_options[i] = i < end ? sc->header.edit[TCP_HEADER_MIN + i] : 0;
	}
	return 0;
}

/* A SYN: begin to know a connection. */
static __always_inline int ingress_syn(struct __sk_buff *skb, struct service *s, struct scratch *sc,
				       const struct flow_key *key, const struct packet *p)
{
	if (service_gated(s)) {
		count(COUNT_GATED_IN);
		return TCX_DROP; /* the client tries again in a second */
	}
	/* A SYN that is sent again changes nothing: Linux limits the rate of repeated SYN-ACKs, and
	 * the one that we saw may be the only one. */
	struct flow *known = bpf_map_lookup_elem(&half_open, key);
	bool answered = known && known->server.synack_seen && known->client.isn == p->seq;
	/* If it was an earlier life that answered, the client's ACK may be on its way, and a second
	 * answer would contradict the first. The client tries again. */
	if (answered && known->incarnation != s->incarnation && answer_is_awaited(s, known)) {
		count(COUNT_GATED_IN);
		return TCX_DROP;
	}
	begin_edit(&sc->header);
	struct options o = find_options(&sc->header, p, true);
	if (o.authenticated) {
		count(COUNT_UNTRACKED); /* keys that we do not have: let it be */
		return TCX_NEXT;
	}
	if (o.stripped) {
		if (!commit_edit(skb, sc, p))
			return TCX_DROP;
		count(COUNT_STRIPPED);
	}
	if (answered && known->incarnation == s->incarnation)
		return TCX_NEXT;
	if (known)
		replace_half_open(s, known);
	struct flow *f = &sc->half_open;
	__builtin_memset(f, 0, sizeof(*f));
	f->incarnation = s->incarnation;
	f->given_ns = bpf_ktime_get_ns();
	f->ifindex = skb->ifindex;
	f->whole_segments = o.multipath;
	f->syn_flags = p->flags;
	f->syn_window = p->window;
	f->syn_options_len = p->header_len - TCP_HEADER_MIN;
	copy_options(sc, f->syn_options_len);
	f->client.isn = p->seq;
	f->client.nxt = p->seq + 1;
	f->client.window = p->window;
	f->client.window_scale = scale_of(&o);
	if (o.timestamps)
		f->client.tsval = option_tsval(sc->header.tcp, &o);
	bpf_map_update_elem(&half_open, key, f, BPF_ANY);
	return TCX_NEXT;
}

/* A segment of no flow: the last step of a handshake that we saw begin? `*unrecorded` is set if the
 * record cannot be opened now. As with what is recorded later, the server must not have the segment
 * then; one of the two ends will send its part of the handshake again.
 *
 * The client's ACK and its first words may do this at once on two CPUs. Both give the connection one
 * number, and open its record before anybody can find the flow: a record is not opened twice. Who
 * comes second goes on with the flow of the first, which may have recorded something by then. */
static __always_inline struct flow *promote(struct service *s, const struct flow_key *key,
					  const struct packet *p, __u32 ifindex, bool *unrecorded)
{
	struct flow *e = bpf_map_lookup_elem(&half_open, key);
	if (!e || !e->server.synack_seen || !(p->flags & TCP_ACK) || (p->flags & TCP_RST))
		return NULL;
	/* The ACK itself may be lost or late: data tells as much, in any order. */
	if (p->ack != e->server.isn + 1 || !acceptable(e, p))
		return NULL;
	if (!e->id) /* else a logger knows it by its number already, or this is not the first try */
		__sync_val_compare_and_swap(&e->id, 0, __sync_fetch_and_add(&s->next_flow_id, 1));
	e->client.ack = p->ack;
	begin_head(s, e); /* a server may speak first */
	e->verify.heads_to = e->server.nxt;
	e->verify.request_end = e->client.isn + 1;
	e->ifindex = ifindex;
	bool opened = s->link || mirror_marker(e, MIRROR_OPENED, 0,
					     ((__u64)e->server.isn << 32) | e->client.isn);
	if (!opened && !abandoned(s)) {
		count(COUNT_MIRROR_FULL);
		*unrecorded = true;
		return NULL;
	}
	long denied = bpf_map_update_elem(&flows, key, e, BPF_NOEXIST);
	if (denied && denied != -EEXIST) {
		count(COUNT_TABLE_FULL);
		if (!s->link)
			mirror_marker(e, MIRROR_CLOSED, CLOSED_EVICTED, 0);
		lose_protection(s, key, e, UNPROTECTED_TOO_MANY_CONNECTIONS);
		bpf_map_delete_elem(&half_open, key);
		return NULL;
	}
	struct flow *f = bpf_map_lookup_elem(&flows, key);
	if (!f || denied)
		return f;
	if (!opened)
		lose_protection(s, key, f, UNPROTECTED_MIRROR_LOST);
	bpf_map_delete_elem(&half_open, key);
	/* Its server died while the client's ACK was on the way, and the others may have been
	 * spliced already. */
	if (f->incarnation != s->incarnation)
		emit_event(s, EVENT_LATE, key, f, 0, 0);
	return f;
}

/* What the client says may have been answered by its dead host: it is recorded, and the replay gives it to the server. */
static __always_inline bool waits_for_server(const struct flow *f, const struct packet *p)
{
	return !(p->flags & TCP_RST) && is_doubted(f, p);
}

/* The end of an instream whose client has heard more than the new server has said so far. The
 * first server had said all that before it heard the end; one that hears it earlier takes the
 * client for gone, and stops in the middle of its answer (nginx does). The client sends it again.
 * But a server that never says it again must hear the end at last: it will close, too early, and
 * the client is reset then, instead of waiting in vain. */
#define FIN_WAIT_NS (30ULL * 1000 * 1000 * 1000)

static __always_inline bool fin_precedes_repeat(const struct flow *f, const struct packet *p)
{
	return f->mode == FLOW_SPLICED && (p->flags & TCP_FIN) && !(p->flags & TCP_RST) &&
	       bpf_ktime_get_ns() - f->given_ns < FIN_WAIT_NS &&
	       after(p->ack, f->splice.nxt + f->splice.delta_seq) && !after(p->ack, f->server.nxt);
}

/* An earlier server may have read this, and nobody have recorded it: what the client has heard may be the answer to it, and
 * the client alone has it. (What it says behind that in the same segment has to wait: the replay gives both, unless nothing
 * is recorded any more.) */
static __always_inline bool may_have_been_read(const struct service *s, const struct flow *f, const struct packet *p)
{
	__u32 end = p->seq + p->payload_len, last = f->unprotected ? p->seq + 1 : end;
	if (!s->link || !after(end, f->log.stable))
		return false;
	return !after(last, f->log.former_ack) ||
	       (f->log.restored && (!f->log.is_doubtful || !after(last, f->log.doubt)));
}

/* What a client says that has heard more than the new server has said so far is recorded, and the replay gives it to the
 * server when that has said again all that the client was sent, and nothing else: nothing is executed for a connection that
 * is going to be lost. What the server has already has no time to lose; a socket that was made at the client's numbers has
 * nothing to say again. */
static __always_inline bool payload_precedes_repeat(struct service *s, const struct flow *f, const struct packet *p)
{
	return f->mode == FLOW_SPLICED && f->splice.delta_seq && p->payload_len && !(p->flags & TCP_RST) &&
	       after(p->ack, spliced_snd_nxt(f)) && !after(p->ack, f->server.nxt) &&
	       after(p->seq + p->payload_len, f->splice.ack) && !may_have_been_read(s, f, p) && !abandoned(s);
}

/* An earlier server may have offered the client a window that ends far behind the window of the new server. A segment
 * beyond the new window is of no use to the new server's TCP (RFC 9293 3.10.7.4). But a connection tracker on this host
 * (nf_conntrack since Linux 6.2) takes the end of such a segment for the end of all that the client has sent: the tracker
 * ignores the acknowledgements of the new server, which are far behind that, calls the rest of the replay invalid, and a
 * firewall drops it.
 *
 * In a replay a segment that crosses the edge stays here, too: the replay gives its bytes to the server, and the answer of the
 * server's TCP would be withheld. Later the answer is needed: without it the client does not learn that the window is closed. */
static __always_inline bool overshoots(const struct flow *f, const struct packet *p)
{
	__u32 end = p->seq + sequence_len(p);
	if (f->mode != FLOW_SPLICED || is_closing(f) || end == p->seq || (p->flags & TCP_RST))
		return false;
	__u32 number = before(f->splice.ack, f->server.ack) ? end : p->seq;
	return after(number, f->splice.rcv_wnd_edge);
}

/* Does the segment end before the number that the client was told? In a replay the new server's TCP may accept such a
 * segment, and remember the timestamp (RFC 7323 4.3). The programs do not believe the segment (observe_client), and keep the
 * older timestamp. With that timestamp the server's TCP would discard the rest of the replay (PAWS, RFC 7323 5.3). */
static __always_inline bool lags(const struct flow *f, const struct packet *p)
{
	return f->mode == FLOW_SPLICED && !is_closing(f) && !(p->flags & TCP_RST) &&
	       before(f->splice.ack, f->server.ack) && before(p->seq + sequence_len(p), f->server.ack);
}

/* A flow that lost its logger, and has one again: the record can begin where the client says what
 * comes after all that it and the server have said so far, if it had an `answer` to all that. Without
 * one it may be in the middle of its request, and a later server would hear the rest of it alone. */
static __always_inline void protect_again(struct service *s, const struct flow_key *key,
					  struct flow *f, const struct packet *p, bool answer)
{
	if (!answer || f->closed_ns || f->unprotected != UNPROTECTED_AWAITS_TURN || !s->link_up ||
	    p->ack != f->server.nxt || p->seq != f->server.ack || flow_gated(s, f) ||
	    f->mode == FLOW_SPLICING)
		return;
	__builtin_memset(&f->log, 0, sizeof(f->log));
	f->log.stable = p->seq;
	f->log.ack = f->server.ack;
	f->log.former_ack = f->server.ack;
	f->log.tsecr = f->client.tsval;
	f->log.rcv_wnd_edge = f->server.rcv_wnd_edge;
	f->log.copied_ack = p->ack;
	f->verify.heads_to = p->ack;
	f->verify.request_end = p->seq;
	begin_digests(s, f, p->ack);
	f->unprotected = PROTECTED;
	emit_event(s, EVENT_REPROTECTED, key, f, 0, p->seq);
}

static __always_inline int ingress_flow(struct __sk_buff *skb, struct service *s, struct scratch *sc,
					const struct flow_key *key, struct flow *f,
					const struct packet *p)
{
	struct options o = find_options(&sc->header, p, false);
	bool gated = flow_stands_still(s, f);
	bool answer = f->verify.response == RESPONSE_BEGUN;
	if (is_unconfirmed(f) && !on_restored_segment(s, sc, key, f, p, &o)) {
		count(COUNT_GATED_IN);
		return TCX_DROP;
	}
	if (observe_client(f, p, sc, &o, gated))
		on_gaps_shown(s, key, f, p, &o);
	f->ifindex = skb->ifindex;
	if (client_acked_all(s, f, p))
		link_digest(skb, f, p);
	/* Bytes that were acknowledged before are in the record already. */
	__u32 end = p->seq + sequence_len(p);
	bool recorded = true;
	if (end != p->seq && after(end, f->server.ack) && !(p->flags & (TCP_SYN | TCP_RST)) &&
	    acceptable(f, p) && f->mode != FLOW_DIVERGED) {
		/* Whoever speaks after having heard everything may begin a turn. */
		if (f->client.ack == f->server.nxt) {
			begin_head(s, f);
			protect_again(s, key, f, p, answer);
		}
		/* At the gate, too: what the replay brings along need not wait for the client's
		 * retransmission timer, which doubles with each try. */
		recorded = mirror_instream(skb, s, key, f, p);
	} else if (is_progress(s, f, p)) {
		link_instream(skb, key, f, p);
	}
	gated = gated || fin_precedes_repeat(f, p) || waits_for_server(f, p) || payload_precedes_repeat(s, f, p) ||
		overshoots(f, p) || lags(f, p);
	if (gated)
		count(COUNT_GATED_IN);
	if (gated || !recorded)
		return TCX_DROP;
	if (f->mode == FLOW_SPLICED)
		return translate_in(skb, sc, f, p, &o);
	return TCX_NEXT;
}

/* The packet has passed the device below, and arrives at the device that the server's socket sees. */
static __always_inline int arrives_above(struct __sk_buff *skb, const struct flow_key *key, struct flow *f)
{
	struct flow *e = bpf_map_lookup_elem(&half_open, key);
	if (f)
		f->ifindex = skb->ifindex;
	if (e)
		e->ifindex = skb->ifindex;
	return TCX_NEXT;
}

SEC("tcx/ingress")
int ingress(struct __sk_buff *skb)
{
	struct flow_key key = {};
	struct packet p = {};
	struct service *s = the_service();
	if (!s)
		return TCX_NEXT;
	if (!parse_ip(skb, &p, key.client, key.server))
		return s->link ? ingress_link(skb) : TCX_NEXT;
	struct scratch *sc = the_scratch(SCRATCH_INGRESS);
	if (!sc || !parse_tcp(skb, &p, sc->header.tcp))
		return TCX_NEXT;
	__builtin_memcpy(&key.client_port, sc->header.tcp, 4); /* both ports: they are adjacent in the key, too */
	/* What the server has opened itself begins at any port. */
	struct flow *f = bpf_map_lookup_elem(&flows, &key);
	if (!f && !is_endpoint(key.server, key.server_port))
		return TCX_NEXT;
	if (has_passed(skb, s, DIRECTION_IN))
		return arrives_above(skb, &key, f);

	__u32 ours = skb->mark - s->mark;
	if (ours < MARKS)
		skb->mark = 0; /* it has done its work; rules of others must not see it */
	if (ours == MARK_SERVER_SPACE) {
		if (f && f->mode == FLOW_SPLICED && (p.flags & TCP_ACK))
			advance_una(f, p.ack);
		return TCX_NEXT;
	}
	if (ours == MARK_CLIENT_SPACE) {
		/* What the server has closed would answer with a RST. */
		if (!f || f->mode != FLOW_SPLICED || is_closing(f) || flow_gated(s, f) || doubt_precedes_repeat(f, &p))
			return TCX_DROP;
		struct options o = find_options(&sc->header, &p, false);
		return translate_in(skb, sc, f, &p, &o);
	}
	bool syn = (p.flags & (TCP_SYN | TCP_ACK | TCP_RST)) == TCP_SYN;
	if (f && syn && (f->closed_ns || is_unknown_to_client(f, &p))) {
		evict(&key, f);
		f = NULL;
	}
	/* The flow may be of a connection that is over: its socket is gone before we are told. The
	 * server's TCP knows, and a SYN-ACK says so (egress.h). */
	bool anew = f && syn && p.seq != f->client.isn && !flow_stands_still(s, f);
	if (syn && (!f || anew))
		return ingress_syn(skb, s, sc, &key, &p);
	bool unrecorded = false;
	if (!f) {
		f = promote(s, &key, &p, skb->ifindex, &unrecorded);
		/* The logger hears that somebody is there: of handshakes that nobody completes it forgets the
		 * oldest. If this is lost, the client's first words will tell. */
		if (f && linked(s, f) && !sequence_len(&p))
			link_instream(skb, &key, f, &p);
	}
	if (unrecorded)
		return TCX_DROP;
	if (!f)
		f = bpf_map_lookup_elem(&flows, &key); /* its handshake was completed on another CPU since */
	if (!f) {
		if (service_gated(s) || strays_dropped(s)) {
			count(COUNT_GATED_IN);
			return TCX_DROP;
		}
		count(COUNT_UNTRACKED);
		return TCX_NEXT;
	}
	return ingress_flow(skb, s, sc, &key, f, &p);
}
