/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Egress: from the server's TCP to the client's side.
 *
 *   our own packet for the server               -> turned round, into this interface's ingress
 *   our own packet for the client               -> others; without a link address: first to the neighbour
 *   anything of the service that would leave,   -> dropped (fence.h)
 *     when the lease is over
 *   not from a protected address:port, nor of a -> others
 *     connection that the server has opened
 *   flow or service gated                       -> dropped: FIN and RST of the dying included
 *   RST where all was said and acknowledged     -> dropped; with a log link it becomes the ACK that
 *                                                  the client may have missed
 *   SYN-ACK of a new connection                 -> remembered in `half_open`, to the client; a flow that
 *                                                  has the same ends still is over
 *   flow on its first server, the first RST     -> dropped: the kernel may not have found its socket
 *     before a word, to a client that has
 *     spoken
 *   flow on its first server                    -> observed; the head of a turn is recorded
 *   flow being spliced, SYN-ACK                 -> delta_seq and the timestamp offset follow from
 *                                                  it; the packet itself becomes the client's
 *                                                  third ACK and goes back up the stack
 *   flow being spliced, anything else           -> dropped (a RST: nobody listens yet)
 *   spliced flow, FIN where the client was      -> the flow has diverged: dropped, as is all that
 *     sent more                                    follows
 *   spliced flow, output that the client has    -> compared with the record, then turned into
 *                                                  the client's acknowledgement of it
 *   spliced flow, FIN that the client has, with -> to the client like anything else: no other
 *     an acknowledgement that is news              segment would bring the news
 *   spliced flow, the same again, if the client -> as anything else: the client answers with the present window
 *     has no room for the bytes behind             (zero_window.h)
 *   spliced flow, output that the client has    -> (an MPTCP client's only) the same for that part
 *     in part
 *   spliced flow, output that the client lacks  -> dropped as if lost, so that it comes again
 *     and that waits for a comparison (digest.h)
 *   spliced flow, pure ACK below what the       -> withheld: the client was told more
 *     client was told
 *   spliced flow, anything else                 -> compared if it overlaps the record, then
 *                                                  sequence number, timestamp and window mapped
 *                                                  to the client's, acknowledgement never taken
 *                                                  back
 */
#pragma once

#include "../lib/kernel.h"
#include "../lib/sequence.h"
#include "../lib/bytes.h"
#include "../lib/packet.h"
#include "../lib/edit.h"
#include "../lib/options.h"
#include "../lib/checksum.h"
#include "../intf/digest.h"
#include "../intf/flow.h"
#include "../intf/service.h"
#include "../intf/link.h"
#include "../intf/event.h"
#include "state.h"
#include "zero_window.h"
#include "read_cursors.h"
#include "doubt.h"
#include "link.h"
#include "fence.h"
#include "mirror.h"
#include "verify.h"
#include "digest.h"
#include "clamp.h"

/* Take the jumbo header out of a packet that becomes short. Where its TCP header is then; 0 if that
 * failed. */
static __always_inline __u32 without_jumbo(struct __sk_buff *skb, const struct packet *p)
{
	const __u32 plain = ETH_HLEN + sizeof(struct ipv6_header);
	__u8 tcp = IPPROTO_TCP;
	if (p->version != 6 || p->tcp_offset == plain)
		return p->tcp_offset;
	if (bpf_skb_adjust_room(skb, -(__s32)sizeof(struct jumbo_header), BPF_ADJ_ROOM_NET,
				BPF_F_ADJ_ROOM_FIXED_GSO) ||
	    bpf_skb_store_bytes(skb, ETH_HLEN + 6, &tcp, 1, 0))
		return 0;
	return plain;
}

/* Exchange source and destination of link and network header, and give the packet its new
 * length. */
static __always_inline bool turn_headers(struct __sk_buff *skb, bool v6, const struct flow_key *key,
					 __u32 tcp_offset, __u32 tcp_len)
{
	__u8 mac[12];
	__be16 old_len, new_len = bpf_htons(v6 ? tcp_len : tcp_offset - ETH_HLEN + tcp_len);
	__u32 len_at = ETH_HLEN + (v6 ? 4 : 2);
	if (bpf_skb_load_bytes(skb, 0, mac, 12) || bpf_skb_load_bytes(skb, len_at, &old_len, 2) ||
	    bpf_skb_change_tail(skb, tcp_offset + tcp_len, 0))
		return false;
	if (bpf_skb_store_bytes(skb, 0, mac + 6, 6, 0) || bpf_skb_store_bytes(skb, 6, mac, 6, 0) ||
	    bpf_skb_store_bytes(skb, len_at, &new_len, 2, 0))
		return false;
	if (v6)
		return !bpf_skb_store_bytes(skb, ETH_HLEN + 8, key->client, 32, 0);
	return !bpf_l3_csum_replace(skb, ETH_HLEN + 10, old_len, new_len, 2) &&
	       !bpf_skb_store_bytes(skb, ETH_HLEN + 12, key->client + 12, 4, 0) &&
	       !bpf_skb_store_bytes(skb, ETH_HLEN + 16, key->server + 12, 4, 0);
}

/* Turn a segment of the server into the client's pure ACK of everything before `ack`, and send
 * it back up: the server is told what the client would tell it. Server space. */
static __always_inline int self_ack(struct __sk_buff *skb, struct service *s, struct scratch *sc,
				    const struct flow_key *key, struct flow *f, const struct packet *p,
				    const struct options *o, __u32 ack)
{
	__u32 len = o->timestamps ? 32 : TCP_HEADER_MIN;
	__u8 *h = sc->header.edit;
	__builtin_memset(h, 0, 64);
	__builtin_memcpy(h, &key->client_port, 2);
	__builtin_memcpy(h + 2, &key->server_port, 2);
	write32(h + TCP_SEQ, p->ack);
	write32(h + TCP_ACK_SEQ, ack);
	h[TCP_DATA_OFFSET] = (len / 4) << 4;
	h[TCP_FLAGS] = TCP_ACK;
	write16(h + TCP_WINDOW, is_zero_window(f) && !is_replaying(f) ? 0 : self_ack_window(f));
	if (o->timestamps) {
		h[20] = OPTION_NOP;
		h[21] = OPTION_NOP;
		h[22] = OPTION_TIMESTAMPS;
		h[23] = 10;
		write32(h + 24, f->client.tsval);
		write32(h + 28, option_tsval(sc->header.tcp, o));
	}
	seal(h, len, key->client, key->server, true);

	__u32 at = without_jumbo(skb, p);
	if (!at || !turn_headers(skb, p->version == 6, key, at, len) ||
	    bpf_skb_store_bytes(skb, at, h, len == 32 ? 32 : TCP_HEADER_MIN, 0)) {
		count(COUNT_EDIT_FAILED);
		return TCX_DROP;
	}
	skb->mark = s->mark + MARK_SERVER_SPACE;
	return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}

/* The first server's segment, as the client will see it. */
static __always_inline void observe_server(struct flow *f, const struct packet *p, struct scratch *sc,
					   const struct options *o)
{
	if (p->flags & TCP_RST)
		return;
	advance_snd_nxt(f, p->seq + sequence_len(p));
	if (p->flags & TCP_ACK) {
		advance(&f->server.ack, p->ack);
		advance(&f->server.rcv_wnd_edge, p->ack + window_of(p, f->server.window_scale));
	}
	if (o->timestamps)
		f->server.tsval = option_tsval(sc->header.tcp, o);
}

/* The server answers a SYN: the half-open connection learns the other half of the handshake. */
static __always_inline void egress_synack(const struct service *s, struct flow *e,
					  const struct packet *p, struct scratch *sc)
{
	struct options o = find_options(&sc->header, p, false);
	/* Another answer than before (the request's socket expired, or its cookie did) is another
	 * connection: a logger refuses other numbers for the one that it knows. */
	if (e->server.synack_seen && e->server.isn != p->seq)
		replace_half_open(s, e);
	e->server.isn = p->seq;
	e->server.nxt = p->seq + 1;
	e->server.sent = 0;
	e->server.ack = p->ack;
	e->server.rcv_wnd_edge = p->ack + p->window; /* never scaled in a SYN, RFC 7323 2.2 */
	e->server.window_scale = scale_of(&o);
	if (o.window_scale == WINDOW_SCALE_ABSENT)
		e->client.window_scale = 0; /* one side's silence turns it off for both */
	e->server.timestamps = o.timestamps != 0;
	e->server.sack = o.sack_permitted;
	if (o.timestamps)
		e->server.tsval = option_tsval(sc->header.tcp, &o);
	e->server.synack_seen = 1;
	begin_digests(s, e, p->seq + 1);
	e->client.response_start = p->seq + 1;
	e->verify.response = RESPONSE_BEGUN; /* to nothing: the client's first byte begins a turn */
}

/* The same, for a connection that is to have a record behind a log link: it exists for the client
 * only when the logger knows of it (IV.B). And the client's segments have to leave room for what the
 * link adds to them: the MSS says so. */
__noinline int egress_synack_linked(struct __sk_buff *skb, const struct flow_key *key, struct flow *e,
				    const struct packet *p)
{
	struct service *s = the_service();
	struct scratch *sc = the_scratch(SCRATCH_EGRESS);
	if (!s || !sc || !key || !e || !p)
		return TCX_DROP;
	struct options o = find_options(&sc->header, p, false);
	const struct link *l = the_link();
	begin_edit(&sc->header);
	if (l && l->mtu && o.mss) {
		__u32 headers = (p->version == 4 ? sizeof(struct ipv4_header) : sizeof(struct ipv6_header)) +
				TCP_HEADER_MIN + LINK_OVERHEAD(l->v6);
		__u32 at = o.mss + 2, most = l->mtu - headers;
		if (read32(&sc->header.tcp[in_header(at)]) >> 16 > most)
			write16(&sc->header.edit[in_header(at)], most);
		if (!commit_edit(skb, sc, p))
			return TCX_DROP;
	}
	const struct link_path *path = the_path();
	if (!s->link_up || abandoned(s) || !path || !path->ifindex) {
		if (waits_for_logger(s))
			return count(COUNT_FENCED), withhold();
		e->unprotected = UNPROTECTED_LOGGER_LOST;
		return TCX_NEXT;
	}
	if (e->id && e->unprotected == UNPROTECTED_TOO_MANY_CONNECTIONS)
		return TCX_NEXT; /* the logger has said so */
	e->unprotected = PROTECTED;
	e->log.stable = e->client.isn;
	e->log.ack = p->ack; /* 0 is a number like any other: nothing is "after nothing" */
	e->log.copied_ack = p->seq + 1;
	e->log.former_ack = p->ack;
	e->log.tsecr = e->client.tsval;
	e->log.rcv_wnd_edge = e->server.rcv_wnd_edge;
	observe_server_ack(skb, e, p, &o, e->server.rcv_wnd_edge);
	return open_record(skb, key, e, p);
}

/* IV.E.4 of the paper, where the deltas come from. The window scale of the new server may
 * differ, too: windows are mapped one by one. */
static __always_inline int egress_spliced_synack(struct __sk_buff *skb, struct service *s,
						 struct scratch *sc, const struct flow_key *key,
						 struct flow *f, const struct packet *p)
{
	struct options o = find_options(&sc->header, p, false);
	if (f->mode == FLOW_SPLICING) {
		if (p->ack != f->splice.instream + 1)
			return TCX_DROP;
		f->splice.isn = p->seq;
		f->splice.nxt = p->seq + 1;
		f->splice.una = p->seq + 1;
		f->splice.ack = p->ack;
		f->splice.rcv_wnd_edge = p->ack + p->window;
		f->log.ack = f->splice.ack;
		f->log.rcv_wnd_edge = f->splice.rcv_wnd_edge;
		f->splice.window_scale = scale_of(&o);
		f->splice.delta_seq = f->splice.outstream - (p->seq + 1);
		if (o.timestamps) {
			f->splice.first_tsval = option_tsval(sc->header.tcp, &o);
			f->splice.ts_delta = f->server.tsval + 1 - f->splice.first_tsval;
		}
		f->mode = FLOW_SPLICED;
	}
	return self_ack(skb, s, sc, key, f, p, &o, p->seq + 1);
}

static __always_inline int translate_out(struct __sk_buff *skb, struct service *s, struct scratch *sc,
					 struct flow *f, const struct packet *p,
					 const struct options *o)
{
	__u32 seq = p->seq + f->splice.delta_seq;
	/* A server that resets or only acknowledges in the middle of its replay must be heard: a client takes no RST
	 * (RFC 5961 3.2) and no acknowledgement (RFC 9293 3.10.7.4) with a number below its window. A probe, which has a
	 * number before the newest of its server, is below the window on purpose: the client answers. */
	bool acknowledges = !sequence_len(p) && p->seq == f->splice.nxt;
	if (((p->flags & TCP_RST) || acknowledges) && before(seq, f->client.ack))
		seq = f->client.ack;
	begin_edit(&sc->header);
	write32(&sc->header.edit[TCP_SEQ], seq);
	if (p->flags & TCP_ACK) {
		__u32 edge = p->ack + window_of(p, f->splice.window_scale);
		__u32 previous = f->log.ack;
		bool clamps = linked(s, f) && !(p->flags & TCP_RST);
		if (clamps) {
			observe_server_ack(skb, f, p, o, edge); /* first, see there */
			advance_stable(f);
		}
		__u32 ack = clamped(s, f, p->ack);
		__u16 window = window_up_to(f, edge, ack);
		if (clamps) {
			if (o->timestamps)
				write32(&sc->header.edit[in_header(o->timestamps + 6)], f->log.tsecr);
			clamp_blocks(sc, f, o);
			if (!sequence_len(p) && withholds_ack(f, p, previous, ack, window))
				return withhold();
			if (before(ack, p->ack))
				count(COUNT_ACKS_CLAMPED);
		}
		observe_payload_ack(f, p, ack);
		write32(&sc->header.edit[TCP_ACK_SEQ], ack);
		write16(&sc->header.edit[TCP_WINDOW], window);
		advance(&f->server.ack, ack);
		advance(&f->server.rcv_wnd_edge, ack + ((__u32)window << (f->server.window_scale & 15)));
	}
	if (!(p->flags & TCP_RST))
		advance_snd_nxt(f, seq + sequence_len(p));
	if (o->timestamps) {
		__u32 tsval = option_tsval(sc->header.tcp, o) + f->splice.ts_delta;
		write32(&sc->header.edit[in_header(o->timestamps + 2)], tsval);
		advance(&f->server.tsval, tsval);
	}
	if (!commit_edit(skb, sc, p))
		return TCX_DROP;
	count(COUNT_TRANSLATED_OUT);
	return TCX_NEXT;
}

/* Is this FIN the repetition of an earlier life's FIN? The digest of all bytes ends before that number. */
static __always_inline bool repeats_fin(const struct flow *f, __u32 end)
{
	return f->digest.taken && f->digest.comparison == HAS_COMPARED && f->digest.sent.next == end - 1 &&
	       f->server.nxt == end;
}

/* A replay that closes where the client was sent more: what followed cannot be taken back. (What the client has heard by its
 * next words counts as recorded, with the end of the server.) */
static __always_inline bool ends_early(const struct flow *f, __u32 end)
{
	return before(end, f->server.nxt) || is_repeating(f) ||
	       (before(end - 1, f->verify.end) && !repeats_fin(f, end));
}

/* A FIN that acknowledges more than the client was told: most likely the client's own FIN, and no socket of the
 * server could say so later. The client may have this FIN, and then takes the segment for a copy. */
static __always_inline bool ends_with_news(const struct flow *f, const struct packet *p)
{
	return (p->flags & TCP_FIN) && after(p->ack, f->server.ack);
}

/* The end of what was compared stays as near behind what the server says as a segment that comes again can be: what lies
 * further apart than half of the sequence space is in no order (RFC 9293 3.4). */
static __always_inline void bound_verify_end(struct flow *f)
{
	__u32 nxt = f->splice.nxt + f->splice.delta_seq;
	if (nxt - f->verify.end - LARGEST_WINDOW < LARGEST_WINDOW)
		f->verify.end = nxt - LARGEST_WINDOW;
}

static __always_inline int egress_spliced(struct __sk_buff *skb, struct service *s, struct scratch *sc,
					  const struct flow_key *key, struct flow *f,
					  const struct packet *p)
{
	struct options o = find_options(&sc->header, p, false);
	__u32 len = sequence_len(p), end = p->seq + len;
	__u32 seq = p->seq + f->splice.delta_seq;
	bool repeated = !after(end, f->splice.nxt);
	if (!(p->flags & TCP_RST)) {
		advance(&f->splice.ack, p->ack);
		advance(&f->splice.rcv_wnd_edge, p->ack + window_of(p, f->splice.window_scale));
	}
	if ((p->payload_len && before(seq, f->verify.end) && !verify_replayed(skb, sc, f, p, seq)) ||
	    !digest_replayed(skb, f, p, seq) || contradicts_unrecorded(f, p, seq)) {
		f->mode = FLOW_DIVERGED;
		emit_event(s, EVENT_DIVERGED, key, f, 0, f->verify.diverged_at);
		return TCX_DROP;
	}
	if ((p->flags & TCP_FIN) && !(p->flags & TCP_RST) && ends_early(f, end + f->splice.delta_seq)) {
		f->mode = FLOW_DIVERGED;
		f->verify.ended_early = 1;
		f->verify.diverged_at = end + f->splice.delta_seq - 1;
		emit_event(s, EVENT_DIVERGED, key, f, 0, f->verify.diverged_at);
		return TCX_DROP;
	}
	/* Not before: who looks at the flow takes this for compared, and gives the server more. */
	if (!(p->flags & TCP_RST)) {
		advance(&f->splice.nxt, end);
		bound_verify_end(f);
	}
	bool client_has = !after(end + f->splice.delta_seq, f->client.ack);
	if (len && !(p->flags & TCP_RST) && client_has && !ends_with_news(f, p) &&
	    !(repeated && sent_beyond_window(f))) {
		digest_output(skb, s, f, p, seq);
		count(COUNT_SELF_ACKS);
		return self_ack(skb, s, sc, key, f, p, &o, ack_for_server(f, end, repeated));
	}
	if (len && !(p->flags & TCP_RST) && !client_has && waits_for_digest(f, seq, repeated)) {
		count(COUNT_REPLAY_HELD);
		if (before(seq, f->client.ack))
			return self_ack(skb, s, sc, key, f, p, &o, ack_for_server(f, client_una(f), repeated));
		return withhold();
	}
	/* An MPTCP client that had to fall back to plain TCP never reads on behind a segment of which
	 * it has a part (seen with Linux 6.18). Acknowledge that part; the rest comes again alone. */
	if (len && !(p->flags & TCP_RST) && f->whole_segments && !client_has && before(seq, f->client.ack)) {
		count(COUNT_SELF_ACKS);
		return self_ack(skb, s, sc, key, f, p, &o, ack_for_server(f, client_una(f), repeated));
	}
	if (!len && !(p->flags & TCP_RST) && before(p->ack, f->server.ack))
		return withhold();
	if (fenced(s)) { /* not before: what stays here goes on */
		digest_output(skb, s, f, p, seq);
		return refuse_fenced(skb, p);
	}
	int verdict = translate_out(skb, s, sc, f, p, &o);
	if (verdict == TCX_NEXT) {
		digest_output(skb, s, f, p, seq);
		mirror_head(skb, f, p, seq); /* in client space now, as the record is */
		if (s->link)
			observe_response(skb, f, p, seq);
	}
	return verdict;
}

/* A RST for a connection that both sides have ended and acknowledged: the answer to a straggler,
 * perhaps one of ours. A server that ends one with a RST, because it has not read all, is to be heard. */
static __always_inline bool is_afterthought(const struct service *s, const struct flow *f,
					    const struct packet *p)
{
	/* With a log link the client may not have been told yet; it will be when it is logged. */
	return (p->flags & TCP_RST) && f->closed_ns && f->server_closing != CLOSED_BY_RST &&
	       f->client.ack == f->server.nxt &&
	       f->client.nxt == (s->link ? closed_rcv_nxt(f) : f->server.ack);
}

/* Has the kernel not found the socket that is there? It looks for one without a lock: in the moment in which that takes the
 * place of its request it finds neither, if another CPU brings the client's first words just then (mended in Linux
 * 6.19), and says RST to them. They come again; who is told so twice is not there. Who has only acknowledged, and listens,
 * says nothing again, and would wait for ever. */
static __always_inline bool is_lookup_race(struct flow *f, const struct packet *p)
{
	__u32 first = f->server.isn + 1;
	if ((p->flags & (TCP_RST | TCP_ACK)) != TCP_RST || p->seq != first || f->server.nxt != first ||
	    sequence_len(p) || f->closed_ns || f->client.nxt == f->client.isn + 1 || f->log.lookup_missed)
		return false;
	f->log.lookup_missed = true;
	return true;
}

static __always_inline int egress_flow(struct __sk_buff *skb, struct service *s, struct scratch *sc,
				       const struct flow_key *key, struct flow *f,
				       const struct packet *p)
{
	bool synack = (p->flags & (TCP_SYN | TCP_ACK)) == (TCP_SYN | TCP_ACK);
	/* Nobody would recover it any more. */
	if (linked(s, f) && abandoned(s))
		lose_protection(s, key, f, UNPROTECTED_LOGGER_LOST);
	if (s->link && is_afterthought(s, f, p) && !flow_gated(s, f))
		return repeat_final_ack(skb, key, f);
	if (flow_gated(s, f) || f->mode == FLOW_DIVERGED || is_afterthought(s, f, p)) {
		count(COUNT_GATED_OUT);
		return TCX_DROP;
	}
	if (f->mode == FLOW_OBSERVED) {
		if (fenced(s)) {
			digest_output(skb, s, f, p, p->seq);
			return refuse_fenced(skb, p);
		}
		if (is_lookup_race(f, p)) {
			count(COUNT_GATED_OUT);
			return TCX_DROP;
		}
		struct options o = find_options(&sc->header, p, false);
		if (linked(s, f) && (p->flags & (TCP_ACK | TCP_RST)) == TCP_ACK) {
			int verdict = egress_clamped(skb, f, p, &o);
			if (verdict != TCX_NEXT)
				return verdict;
		} else {
			observe_server(f, p, sc, &o);
		}
		digest_output(skb, s, f, p, p->seq);
		mirror_head(skb, f, p, p->seq);
		if (s->link)
			observe_response(skb, f, p, p->seq);
		return TCX_NEXT;
	}
	if (synack)
		return egress_spliced_synack(skb, s, sc, key, f, p);
	if (f->mode == FLOW_SPLICING) {
		count(COUNT_GATED_OUT);
		return TCX_DROP;
	}
	return egress_spliced(skb, s, sc, key, f, p);
}

static __always_inline int egress_answer(struct __sk_buff *skb, struct service *s, struct scratch *sc,
					 const struct flow_key *key, struct flow *e,
					 const struct packet *p)
{
	egress_synack(s, e, p, sc);
	return s->link ? egress_synack_linked(skb, key, e, p) : TCX_NEXT;
}

/* Does the server answer a SYN that came while its last connection with these ends was being closed, or say one itself?
 * No two sockets have the same ends. */
static __always_inline bool opens_anew(struct service *s, const struct flow_key *key, struct flow *f,
				       const struct packet *p)
{
	if ((p->flags & (TCP_SYN | TCP_ACK | TCP_RST)) == TCP_SYN)
		return f->closed_ns && !flow_stands_still(s, f);
	if ((p->flags & (TCP_SYN | TCP_ACK)) != (TCP_SYN | TCP_ACK) || p->ack == f->client.isn + 1 ||
	    flow_stands_still(s, f) || (f->mode == FLOW_SPLICED && p->ack == f->splice.instream + 1))
		return false;
	struct flow *e = bpf_map_lookup_elem(&half_open, key);
	return e && p->ack == e->client.isn + 1;
}

SEC("tcx/egress")
int egress(struct __sk_buff *skb)
{
	struct flow_key key = {};
	struct packet p = {};
	struct service *s = the_service();
	if (!s)
		return TCX_NEXT;
	__u32 ours = skb->mark - s->mark;
	if (ours == MARK_CLIENT_SPACE || ours == MARK_SERVER_SPACE)
		return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
	if (ours == MARK_TO_CLIENT)
		return fenced(s) ? drop_fenced() : TCX_NEXT;
	if (ours == MARK_TO_NEIGHBOUR) {
		if (fenced(s))
			return drop_fenced();
		skb->mark = s->mark + MARK_TO_CLIENT; /* it leaves this device again */
		return bpf_redirect_neigh(skb->ifindex, NULL, 0, 0);
	}
	if (ours == MARK_TO_LOGGER)
		return TCX_NEXT;
	if (ours == MARK_SEGMENT && s->link)
		return wrap_segment(skb);
	if (!parse_ip(skb, &p, key.server, key.client)) {
		if (fenced(s) && fence_other(skb) == TCX_DROP)
			return TCX_DROP;
		return s->link ? learn_path(skb) : TCX_NEXT;
	}
	__be16 ports[2];
	if (bpf_skb_load_bytes(skb, p.tcp_offset, ports, sizeof(ports)))
		return fenced(s) ? fence_other(skb) : TCX_NEXT;
	key.server_port = ports[0];
	key.client_port = ports[1];
	struct flow *f = bpf_map_lookup_elem(&flows, &key);
	if (!f && !is_endpoint(key.server, key.server_port))
		return fenced(s) ? fence_other(skb) : TCX_NEXT;
	if (has_passed(skb, s, DIRECTION_OUT))
		return TCX_NEXT;

	struct scratch *sc = the_scratch(SCRATCH_EGRESS);
	if (!sc || !parse_tcp(skb, &p, sc->header.tcp))
		return fenced(s) ? drop_fenced() : TCX_NEXT;
	if (f && opens_anew(s, &key, f, &p)) {
		evict(&key, f);
		f = NULL;
	}
	if (f)
		return egress_flow(skb, s, sc, &key, f, &p);

	/* No flow: a handshake, a connection that is not protected, or an answer to a stray. */
	struct flow *e = bpf_map_lookup_elem(&half_open, &key);
	bool stale = e && e->server.synack_seen && e->incarnation != s->incarnation;
	if (service_gated(s) || stale || ((p.flags & TCP_RST) && strays_dropped(s))) {
		count(COUNT_GATED_OUT);
		return TCX_DROP;
	}
	if (fenced(s))
		return refuse_fenced(skb, &p);
	if (e && (p.flags & (TCP_SYN | TCP_ACK)) == (TCP_SYN | TCP_ACK))
		return egress_answer(skb, s, sc, &key, e, &p);
	return TCX_NEXT;
}
