/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * The ACK clamp (FT-TCP IV.C and IV.F): with a log link, the client is told only of what both the
 * server's TCP and the logger have. stable_seq takes the place of a higher acknowledgement number,
 * the window grows by the difference, SACK blocks keep what is in both.
 *
 * The server's TCP says once what it has, and the logger some time later that it has it, too. What
 * then happens is the strategy:
 *
 *   basic        nothing: the server's next segment tells the client
 *   lazy         pure ACKs wait until all that they acknowledge is logged
 *   eager        an acknowledgement of the logger becomes the client's ACK, if it brings anything new
 *   conditional  so does one that follows the newest of the client's segments
 *
 * In any of them a pure ACK that would bring nothing new is withheld, and (except in basic) a gap at
 * the logger becomes a duplicate ACK at once: the client does not wait for its timer.
 *
 * `log` of a flow has two writers: egress (what the server's TCP has, what is deferred, the read cursor) and, when an
 * acknowledgement or a segment arrives, ingress (what the logger has, and the read cursor). Both take from
 * `deferred` and advance `stable` and `server.ack`. If they meet, either may be remembered as less, and in lazy an
 * ACK be missing; the client's next segment mends that, and nothing is ever more than the truth.
 */
#pragma once

#include "../lib/kernel.h"
#include "../lib/siphash.h"
#include "../lib/sequence.h"
#include "../lib/bytes.h"
#include "../lib/packet.h"
#include "../lib/edit.h"
#include "../lib/options.h"
#include "../lib/checksum.h"
#include "../intf/flow.h"
#include "../intf/service.h"
#include "../intf/mirror.h"
#include "../intf/link.h"
#include "state.h"
#include "read_cursors.h"
#include "link.h"
#include "fence.h"
#include "mirror.h"

/* The part of `r` that lies before `below`, or in one of `others`; else an empty range. */
static __always_inline struct range common(struct range r, __u32 below, const struct range *others,
					   __u32 count)
{
	if (before(r.start, below)) {
		if (after(r.end, below))
			r.end = below;
		return r;
	}
	for (__u32 i = 0; i < SERVER_BLOCKS && i < count; i++) {
		__u32 start = after(others[i].start, r.start) ? others[i].start : r.start;
		__u32 end = before(others[i].end, r.end) ? others[i].end : r.end;
		if (before(start, end)) {
			r.start = start;
			r.end = end;
			return r;
		}
	}
	r.end = r.start;
	return r;
}

/* Write a SACK option (RFC 2018 3) into `sc->header.edit` at `at`: of the `count` blocks that the server has
 * those that the logger has, too, and NOPs in the place of the others; or, into a header that is being
 * made, of those that the logger has those that the server has, if any. Returns how many they are. A
 * function of its own for the verifier. */
__noinline int put_blocks(struct scratch *sc, struct flow *f, __u32 at, __u32 count, int from_logger)
{
	__u32 kept = 0;
	if (!sc || !f)
		return 0;
	const struct log_half *log = &f->log;
	for (__u32 i = 0; i < SERVER_BLOCKS && i < count; i++) {
		struct range r = from_logger && i < LINK_RANGES
			? common(log->ranges[i], log->ack, log->blocks, log->block_count)
			: common(log->blocks[i], log->stable, log->ranges, log->range_count);
		if (r.start == r.end)
			continue;
		__u32 to = at + 2 + 8 * kept;
		write32(&sc->header.edit[in_header(to)], r.start);
		write32(&sc->header.edit[in_header(to + 4)], r.end);
		kept++;
	}
	if (from_logger && !kept)
		return 0;
	for (__u32 i = 0; i < SERVER_BLOCKS && i < count && !from_logger; i++) {
		__u32 to = at + 2 + 8 * i;
		if (i < kept)
			continue;
		write32(&sc->header.edit[in_header(to)], OPTION_NOP * 0x01010101);
		write32(&sc->header.edit[in_header(to + 4)], OPTION_NOP * 0x01010101);
	}
	sc->header.edit[in_header(at)] = kept ? OPTION_SACK : OPTION_NOP;
	sc->header.edit[in_header(at + 1)] = kept ? 2 + 8 * kept : OPTION_NOP;
	return kept;
}

/* What the client may be told instead of `ack`: no more than the logger has, no less than it was told
 * before. */
static __always_inline __u32 clamped(const struct service *s, const struct flow *f, __u32 ack)
{
	if (linked(s, f) && after(ack, f->log.stable))
		ack = f->log.stable;
	return before(ack, f->server.ack) ? f->server.ack : ack;
}

/* What the client shall read in the window field when it is told `ack`. The right edge is what
 * counts; it is kept (IV.C). */
static __always_inline __u16 window_up_to(const struct flow *f, __u32 edge, __u32 ack)
{
	__u32 window = after(edge, ack) ? (edge - ack) >> (f->server.window_scale & 15) : 0;
	return window > 65535 ? 65535 : window;
}

/* Each writes its own number and then reads the other's: if a segment of the server and an ACK of the logger
 * meet on two CPUs, at least one of them sees both, and the client is told. */
static __always_inline void meet(struct log_half *log)
{
	__sync_fetch_and_add(&log->meetings, 1); /* orders what is before it and what is behind */
}

/* What the server's TCP has, and how its segments travel. To be called before `stable` is read, see meet(). */
__noinline int observe_server_ack(struct __sk_buff *skb, struct flow *f, const struct packet *p,
			const struct options *o, __u32 edge)
{
	struct scratch *sc = the_scratch(SCRATCH_EGRESS);
	if (!sc || !f || !p || !o)
		return 0;
	struct log_half *log = &f->log;
	__u32 blocks = o->sack ? (__u32)(o->sack_len - 2) / 8 : 0;
	advance(&log->ack, p->ack);
	advance(&log->rcv_wnd_edge, edge);
	log->ece = p->flags & TCP_ECE;
	log->block_count = blocks > SERVER_BLOCKS ? SERVER_BLOCKS : blocks;
	for (__u32 i = 0; i < SERVER_BLOCKS; i++) {
		__u32 at = o->sack + 2 + 8 * i;
		if (i >= blocks)
			break;
		log->blocks[i].start = read32(&sc->header.tcp[in_header(at)]);
		log->blocks[i].end = read32(&sc->header.tcp[in_header(at + 4)]);
	}
	log->ifindex = skb->ifindex;
	bpf_skb_load_bytes(skb, 0, log->l2, ETH_HLEN);
	bpf_skb_load_bytes(skb, ETH_HLEN + (p->version == 4 ? 8 : 7), &log->ttl, 1);
	meet(log);
	return 0;
}

static __always_inline void defer_ack(struct log_half *log, __u32 ack)
{
	__u32 count = log->deferred_count;
	if (count && !after(ack, log->deferred[(count - 1) & (DEFERRED_ACKS - 1)]))
		return;
	if (count >= DEFERRED_ACKS)
		count = DEFERRED_ACKS - 1;
	log->deferred[count & (DEFERRED_ACKS - 1)] = ack;
	log->deferred_count = count + 1;
}

/* The highest of the deferred ACKs that the logger has released. */
static __always_inline bool released(struct log_half *log, __u32 *ack)
{
	__u32 kept = 0;
	bool any = false;
	for (__u32 i = 0; i < DEFERRED_ACKS && i < log->deferred_count; i++) {
		__u32 deferred = log->deferred[i];
		if (after(deferred, log->stable)) {
			log->deferred[kept++ & (DEFERRED_ACKS - 1)] = deferred;
		} else {
			*ack = deferred;
			any = true;
		}
	}
	log->deferred_count = kept;
	return any;
}

/* A pure ACK of the server: is it withheld? `previous` is what the server had acknowledged before,
 * `ack` and `window` are what the client would read. */
__noinline int withholds_ack(struct flow *f, const struct packet *p, __u32 previous, __u32 ack,
			  __u32 window)
{
	const struct link *l = the_link();
	if (!l || !f || !p)
		return false;
	__u32 edge = ack + (window << (f->server.window_scale & 15));
	if (f->log.read_cursor && after(p->ack, f->log.stable))
		f->log.early_ack_ns = bpf_ktime_get_ns();
	bool useless = after(p->ack, previous) && ack == f->server.ack && !after(edge, f->server.rcv_wnd_edge);
	/* A server that repeats itself answers a client that does: it is told what it can be, or it
	 * would send the same segment for ever. It may have been told before, and not have heard it. */
	bool repeats = p->ack == previous;
	if (l->strategy == ACK_LAZY && after(p->ack, f->log.stable) && !repeats) {
		defer_ack(&f->log, p->ack);
		useless = true;
	}
	if (useless)
		count(COUNT_ACKS_WITHHELD);
	return useless;
}

/* In `sc->header.edit`: the SACK blocks that may be told. */
static __always_inline void clamp_blocks(struct scratch *sc, struct flow *f, const struct options *o)
{
	if (!o->sack)
		return;
	__u32 count = f->log.block_count;
	if (put_blocks(sc, f, o->sack, count, false) < count)
		f->log.withheld = 1;
}

/* A segment of the server acknowledges so much. */
static __always_inline void observe_payload_ack(struct flow *f, const struct packet *p, __u32 ack)
{
	if (p->payload_len)
		f->log.all_acked = ack == f->client.nxt;
}

/* A segment of the client's first server. */
__noinline int egress_clamped(struct __sk_buff *skb, struct flow *f, const struct packet *p,
			      const struct options *o)
{
	struct service *s = the_service();
	struct scratch *sc = the_scratch(SCRATCH_EGRESS);
	if (!s || !sc || !f || !p || !o)
		return TCX_DROP;
	__u32 previous = f->log.ack, edge = p->ack + window_of(p, f->server.window_scale);
	observe_server_ack(skb, f, p, o, edge);
	advance_stable(f);
	advance_snd_nxt(f, p->seq + sequence_len(p));
	if (o->timestamps)
		f->server.tsval = option_tsval(sc->header.tcp, o);
	__u32 ack = clamped(s, f, p->ack);
	__u16 window = window_up_to(f, edge, ack);
	if (!sequence_len(p) && withholds_ack(f, p, previous, ack, window))
		return withhold();
	if (o->timestamps && !f->log.tsecr) /* the server has opened it, and knows what it was answered */
		f->log.tsecr = option_tsecr(sc->header.tcp, o);
	bool echo = o->timestamps && option_tsecr(sc->header.tcp, o) != f->log.tsecr;
	if (ack != p->ack || o->sack || echo) {
		begin_edit(&sc->header);
		if (echo)
			write32(&sc->header.edit[in_header(o->timestamps + 6)], f->log.tsecr);
		write32(&sc->header.edit[TCP_ACK_SEQ], ack);
		if (ack != p->ack)
			write16(&sc->header.edit[TCP_WINDOW], window);
		clamp_blocks(sc, f, o);
		if (!commit_edit(skb, sc, p))
			return TCX_DROP;
		if (before(ack, p->ack))
			count(COUNT_ACKS_CLAMPED);
	}
	advance(&f->server.ack, ack);
	advance(&f->server.rcv_wnd_edge, ack + ((__u32)window << (f->server.window_scale & 15)));
	observe_payload_ack(f, p, ack);
	return TCX_NEXT;
}

/* Make a packet for the client of another one (`own`: of a segment to it, whose checksum the kernel may
 * still have to finish): the TCP header in `sc->header.edit`, which has `len` bytes, behind the headers with
 * which the server's segments travel. */
static __always_inline int send_to_client(struct __sk_buff *skb, struct service *s, struct scratch *sc,
					  const struct flow_key *key, const struct log_half *log,
					  __u32 len, bool own)
{
	const __u32 *words = (const __u32 *)key->server;
	bool v4 = !words[0] && !words[1] && words[2] == bpf_htonl(0xffff);
	__u32 at = ETH_HLEN + (v4 ? sizeof(struct ipv4_header) : sizeof(struct ipv6_header));
	bool partial = unfinished(skb);
	if (len < TCP_HEADER_MIN || len > TCP_HEADER_MAX || (partial && !own) ||
	    bpf_skb_change_tail(skb, at + len, 0))
		goto failed;
	seal(sc->header.edit, len, key->server, key->client, !partial);
	__builtin_memcpy(sc->network, log->l2, ETH_HLEN);
	if (v4) {
		struct ipv4_header *ip = (struct ipv4_header *)&sc->network[ETH_HLEN];
		__builtin_memset(ip, 0, sizeof(*ip));
		ip->version_ihl = 0x45;
		ip->total_len = bpf_htons(sizeof(*ip) + len);
		ip->fragment = bpf_htons(0x4000);
		ip->ttl = log->ttl;
		ip->protocol = IPPROTO_TCP;
		__builtin_memcpy(&ip->source, key->server + 12, 4);
		__builtin_memcpy(&ip->destination, key->client + 12, 4);
		ip->checksum = fold_checksum(bpf_csum_diff(NULL, 0, (__be32 *)ip, sizeof(*ip), 0));
		if (bpf_skb_store_bytes(skb, 0, sc->network, ETH_HLEN + sizeof(*ip), BPF_F_RECOMPUTE_CSUM))
			goto failed;
	} else {
		struct ipv6_header *ip = (struct ipv6_header *)&sc->network[ETH_HLEN];
		__builtin_memset(ip, 0, sizeof(*ip));
		ip->version_class_flow = bpf_htonl(0x60000000);
		ip->payload_len = bpf_htons(len);
		ip->next_header = IPPROTO_TCP;
		ip->hop_limit = log->ttl;
		__builtin_memcpy(ip->source, key->server, 16);
		__builtin_memcpy(ip->destination, key->client, 16);
		if (bpf_skb_store_bytes(skb, 0, sc->network, ETH_HLEN + sizeof(*ip), BPF_F_RECOMPUTE_CSUM))
			goto failed;
	}
	if (bpf_skb_store_bytes(skb, at, sc->header.edit, at_least_1(len, 63), BPF_F_RECOMPUTE_CSUM))
		goto failed;
	skb->mark = s->mark + MARK_TO_CLIENT;
	return bpf_redirect(log->ifindex, 0);
failed:
	count(COUNT_EDIT_FAILED);
	return TCX_DROP;
}

/* Acknowledge everything before `ack` to the client, with the SACK blocks of what both have beyond. */
static __always_inline int send_client_ack(struct __sk_buff *skb, struct service *s, struct scratch *sc,
				       const struct flow_key *key, struct flow *f, __u32 ack, bool own)
{
	struct log_half *log = &f->log;
	__u16 window = window_up_to(f, log->rcv_wnd_edge, ack);
	__u32 len = TCP_HEADER_MIN;
	__u8 *h = sc->header.edit;
	__builtin_memset(h, 0, 64);
	__builtin_memcpy(h, &key->server_port, 2);
	__builtin_memcpy(h + 2, &key->client_port, 2);
	write32(h + TCP_SEQ, f->server.nxt);
	write32(h + TCP_ACK_SEQ, ack);
	h[TCP_FLAGS] = TCP_ACK | log->ece;
	write16(h + TCP_WINDOW, window);
	if (f->server.timestamps) {
		h[20] = OPTION_NOP;
		h[21] = OPTION_NOP;
		h[22] = OPTION_TIMESTAMPS;
		h[23] = 10;
		write32(h + 24, f->server.tsval);
		write32(h + 28, log->tsecr);
		len += 12;
	}
	if (log->range_count && f->server.sack) {
		__u32 blocks = put_blocks(sc, f, len + 2, log->range_count, true) & 3;
		if (blocks) {
			h[in_header(len)] = OPTION_NOP;
			h[in_header(len + 1)] = OPTION_NOP;
			len += 4 + 8 * blocks;
		}
	}
	h[TCP_DATA_OFFSET] = (len / 4) << 4;
	log->withheld = 0;
	advance(&f->server.ack, ack);
	advance(&f->server.rcv_wnd_edge, ack + ((__u32)window << (f->server.window_scale & 15)));
	count(COUNT_ACKS_MADE);
	return send_to_client(skb, s, sc, key, log, len, own);
}

/* What the server's TCP had received when its socket was closed. */
static __always_inline __u32 closed_rcv_nxt(const struct flow *f)
{
	return f->log.ifindex && after(f->log.ack, f->server.ack) ? f->log.ack : f->server.ack;
}

/* A RST for a connection that is over: the last ACK is lost, which no socket can repeat any more. (Had
 * the server's own last segments not been clamped, each of them would have brought it.) */
__noinline int repeat_final_ack(struct __sk_buff *skb, const struct flow_key *key, struct flow *f)
{
	struct service *s = the_service();
	struct scratch *sc = the_scratch(SCRATCH_EGRESS);
	if (!s || !sc || !key || !f)
		return TCX_DROP;
	count(COUNT_GATED_OUT);
	/* Else the logger's ACK will bring it. */
	if (!f->log.ifindex || (linked(s, f) && f->server.ack != f->log.ack))
		return TCX_DROP;
	if (fenced(s))
		return drop_fenced();
	return send_client_ack(skb, s, sc, key, f, closed_rcv_nxt(f), true);
}

/* The connection is over for the server, and the client knows what it had, or is not to know: so is
 * its record. What the client says afterwards (its FIN, if the server closed first) is between it and
 * the kernel. */
static __always_inline void close_record(struct flow *f, bool reset)
{
	if (!f->closed_ns || (f->server.ack != f->log.ack && !reset))
		return;
	/* If there is no room the sweep says so. */
	f->log.ended = mirror_marker(f, MIRROR_CLOSED, CLOSED_FINISHED, 0);
}

/* An ACK of the logger for a connection. Is an ACK to its client due? Its number is in `due`. */
static __always_inline bool on_logger_ack(struct service *s, const struct link *l, const struct link_ack *a,
					 struct flow *f, __u32 *due)
{
	struct log_half *log = &f->log;
	if (!linked(s, f) || a->head.counter <= log->counter)
		return false;
	/* A sign of life: not one that is played again. */
	count(COUNT_LINK_ACKS);
	log->counter = a->head.counter;
	advance(&log->stable, a->stable);
	log->range_count = a->head.count > LINK_RANGES ? LINK_RANGES : a->head.count;
	__builtin_memcpy(log->ranges, a->ranges, sizeof(log->ranges));
	meet(log);
	if (flow_gated(s, f) || f->mode == FLOW_SPLICING || f->mode == FLOW_DIVERGED || !log->ifindex ||
	    fenced(s))
		return false;

	__u32 ack = before(log->stable, log->ack) ? log->stable : log->ack;
	bool news = after(ack, f->server.ack);
	bool gap = log->range_count && (after(log->ack, log->stable) || log->withheld);
	bool is_due = false;
	if (l->strategy == ACK_EAGER || (f->closed_ns && news))
		is_due = news || gap;
	else if (l->strategy == ACK_CONDITIONAL)
		is_due = gap || (news && log->stable == f->client.nxt && ack == log->stable);
	else if (l->strategy == ACK_LAZY)
		is_due = (released(log, &ack) && after(ack, f->server.ack)) || gap;
	if (is_due)
		*due = ack;
	return is_due;
}

/* Both initial sequence numbers are logged. May the client know now that the connection exists? */
static __always_inline bool on_open_recorded(struct service *s, const struct link_ack *a, const struct flow_key *key,
				   struct flow *e)
{
	if (!bpf_map_lookup_elem(&synacks, key) || a->stable != e->client.isn + 1 || !e->server.synack_seen ||
	    e->incarnation != s->incarnation || service_gated(s) || fenced(s))
		return false;
	e->log.stable = e->client.isn + 1;
	return true;
}

enum ack_result { NO_ACK, FORGED_ACK, TAKEN_ACK };

/* One acknowledgement, if there is one at this place. A segment that becomes due is in `sc->due`. */
__noinline int on_link_ack(struct __sk_buff *skb, __u32 at)
{
	struct scratch *sc = the_scratch(SCRATCH_INGRESS);
	struct service *s = the_service();
	struct link *l = the_link();
	if (!sc || !s || !l)
		return NO_ACK;
	struct link_ack *a = &sc->frame.ack;
	if (bpf_skb_load_bytes(skb, at, a, sizeof(*a)) || a->head.magic != LINK_MAGIC ||
	    a->head.version != l->version || a->head.kind != LINK_ACK || a->head.mode != LINK_MODE_REPLAY)
		return NO_ACK;
	/* A slot that was never used has a key that anybody knows. */
	const struct link_key *secret = &l->down[a->head.slot & 1];
	if (!(secret->k0 | secret->k1) || a->head.slot > 1 || a->head.options || a->head.count > LINK_RANGES ||
	    siphash((struct sip_input *)sc->frame.words, offsetof(struct link_ack, tag) / 8, secret->k0,
		    secret->k1) != a->tag) {
		count(COUNT_LINK_FORGED);
		return FORGED_ACK;
	}
	struct due_segment *due = &sc->due[sc->due_count & (DUE_SEGMENTS - 1)];
	struct flow_key key = a->key;
	bool is_due = false;
	struct flow *f = bpf_map_lookup_elem(&flows, &key);
	if (f && f->id == a->head.flow_id) {
		is_due = on_logger_ack(s, l, a, f, &due->ack);
		due->is_synack = false;
	} else {
		struct flow *e = bpf_map_lookup_elem(&half_open, &key);
		is_due = e && e->id == a->head.flow_id && on_open_recorded(s, a, &key, e);
		due->is_synack = true;
	}
	due->key = key;
	due->flow_id = a->head.flow_id;
	sc->due_count += is_due;
	return TAKEN_ACK;
}

/* The packet becomes the segment that an ACK of the logger has made due. */
__noinline int send_due(struct __sk_buff *skb, __u32 which)
{
	struct scratch *sc = the_scratch(SCRATCH_INGRESS);
	struct service *s = the_service();
	if (!sc || !s)
		return TCX_DROP;
	struct due_segment *due = &sc->due[which & (DUE_SEGMENTS - 1)];
	const struct flow_key *key = &due->key; /* the stack has no room for another (Linux 6.1) */
	if (!due->is_synack) {
		struct flow *f = bpf_map_lookup_elem(&flows, key);
		if (!f || f->id != due->flow_id)
			return TCX_DROP;
		due->ifindex = f->log.ifindex;
		__u32 ack = before(due->ack, f->server.ack) ? f->server.ack : due->ack;
		int verdict = send_client_ack(skb, s, sc, key, f, ack, false);
		close_record(f, false);
		return verdict;
	}
	const struct synack *waiting = bpf_map_lookup_elem(&synacks, key);
	const struct flow *e = bpf_map_lookup_elem(&half_open, key);
	if (!waiting || !e || e->id != due->flow_id)
		return TCX_DROP;
	due->ifindex = e->log.ifindex;
	__builtin_memset(sc->header.edit, 0, 64);
	__builtin_memcpy(sc->header.edit, waiting->header, sizeof(waiting->header));
	__builtin_memset(sc->header.edit + TCP_CHECKSUM, 0, 2);
	return send_to_client(skb, s, sc, key, &e->log, waiting->len, false);
}

/* A packet that is none of TCP arrives: does it bring ACKs of the logger? All are read before any segment is sent,
 * because the packet itself becomes the last segment to a client, and its copies the segments before. */
__noinline int ingress_link(struct __sk_buff *skb)
{
	struct scratch *sc = the_scratch(SCRATCH_INGRESS);
	struct link *l = the_link();
	if (!sc || !l)
		return TCX_NEXT;
	__u32 at = link_payload(skb, l, l->remote, l->local, l->remote_port, l->local_port);
	if (!at)
		return TCX_NEXT;
	sc->due_count = 0;
	for (__u32 i = 0; i < LINK_ACKS; i++) {
		int result = on_link_ack(skb, at + i * sizeof(struct link_ack));
		if (result == NO_ACK && !i)
			return TCX_NEXT; /* the answer to a probe is for the socket */
		if (result != TAKEN_ACK)
			break;
	}
	int verdict = TCX_DROP;
	for (__u32 i = 0; i < LINK_ACKS && i < sc->due_count; i++) {
		verdict = send_due(skb, i);
		if (verdict != TCX_DROP && i + 1 < sc->due_count)
			bpf_clone_redirect(skb, sc->due[i].ifindex, 0);
	}
	return verdict;
}
