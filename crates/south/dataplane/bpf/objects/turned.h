/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Packets that are turned round: an acknowledgement for the client, made from the client's own; an acknowledgement in the
 * client's name, made from a segment of the server.
 */
#pragma once

#include "../lib/kernel.h"
#include "../lib/bytes.h"
#include "../lib/packet.h"
#include "../lib/edit.h"
#include "../lib/options.h"
#include "../lib/checksum.h"
#include "../intf/objects.h"
#include "state.h"
#include "turn.h"

#define TIME_TO_LIVE 64
#define HEADER_WITH_TIMESTAMPS 32
#define LINK_AND_V4 (ETH_HLEN + 20)
#define LINK_AND_V6 (ETH_HLEN + 40)

/* The shift that the client applies to a window of this flow, and the shift of the server's TCP. */
static __always_inline __u8 offered_scale(const struct object_flow *f)
{
	return f->server_window_scale == WINDOW_SCALE_ABSENT ? 0 : POOL_WINDOW_SCALE;
}

static __always_inline __u8 server_scale(const struct object_flow *f)
{
	return f->server_window_scale == WINDOW_SCALE_ABSENT ? 0 : f->server_window_scale & 15;
}

/* Exchanges the two ends of link and network header. A function of its own for the verifier. */
__noinline int turn_ends(struct __sk_buff *skb, const struct object_scratch *s, __u32 version)
{
	__u8 ttl = TIME_TO_LIVE;
	if (!s)
		return -EINVAL;
	const __u8 *f = s->frame;
	if (bpf_skb_store_bytes(skb, 0, f + ETH_ALEN, ETH_ALEN, 0) || bpf_skb_store_bytes(skb, ETH_ALEN, f, ETH_ALEN, 0))
		return -EFAULT;
	if (version == 6)
		return bpf_skb_store_bytes(skb, ETH_HLEN + 8, f + ETH_HLEN + 24, 16, 0) ||
		       bpf_skb_store_bytes(skb, ETH_HLEN + 24, f + ETH_HLEN + 8, 16, 0) ||
		       bpf_skb_store_bytes(skb, ETH_HLEN + 7, &ttl, 1, 0);
	/* The word of TTL and protocol is the only one whose sum changes. */
	return bpf_l3_csum_replace(skb, ETH_HLEN + 10, *(__u16 *)(f + ETH_HLEN + 8),
				   bpf_htons(TIME_TO_LIVE << 8 | IPPROTO_TCP), 2) ||
	       bpf_skb_store_bytes(skb, ETH_HLEN + 8, &ttl, 1, 0) ||
	       bpf_skb_store_bytes(skb, ETH_HLEN + 12, f + ETH_HLEN + 16, 4, 0) ||
	       bpf_skb_store_bytes(skb, ETH_HLEN + 16, f + ETH_HLEN + 12, 4, 0);
}

/* The client's pure ACK has ended a turn. Nobody else would tell the client that its request has arrived: the client
 * would send the request again, and the server's TCP might close before. The packet goes out once as the server's ACK,
 * with the numbers of the server's socket, and then becomes again what it was; NOPs are in the place of other options
 * than timestamps. With payload or a FIN the server's TCP answers. */
__noinline int make_ack(struct __sk_buff *skb, struct object_scratch *s, const struct object_flow *f,
			const struct packet *p)
{
	struct member *m = the_member();
	if (!m || !s || !f || !p)
		return 0;
	bool v6 = p->version == 6;
	__u8 *h = s->header.edit;
	__u32 len = p->header_len & 0x3c;
	if (p->payload_len || (p->flags & (TCP_FIN | TCP_SYN | TCP_RST)) || len < HEADER_WITH_TIMESTAMPS ||
	    p->tcp_offset != (v6 ? LINK_AND_V6 : LINK_AND_V4) || !f->has_timestamps)
		return 0;
	if (v6 ? bpf_skb_load_bytes(skb, 0, s->frame, LINK_AND_V6) : bpf_skb_load_bytes(skb, 0, s->frame, LINK_AND_V4))
		return 0;
	begin_edit(&s->header);
	__builtin_memcpy(h, s->header.tcp + 2, 2);
	__builtin_memcpy(h + 2, s->header.tcp, 2);
	write32(h + TCP_SEQ, sent_end(f) - f->delta);
	write32(h + TCP_ACK_SEQ, f->received);
	h[TCP_FLAGS] = TCP_ACK;
	write16(h + TCP_WINDOW, (f->wnd_edge - f->received) >> server_scale(f));
	h[20] = OPTION_NOP;
	h[21] = OPTION_NOP;
	h[22] = OPTION_TIMESTAMPS;
	h[23] = 10;
	write32(h + 24, f->echoes.newest_tsval);
	write32(h + 28, f->client_tsval);
	for (__u32 i = HEADER_WITH_TIMESTAMPS; i < TCP_HEADER_MAX; i++)
		h[i] = OPTION_NOP;
	if (turn_ends(skb, s, p->version) || !commit_edit(skb, s, p))
		return -EFAULT;
	/* The client's packet came from the balancer, which forwards nothing to clients. */
	__u32 mark = skb->mark;
	skb->mark = m->mark + MARK_FROM_SERVER;
	bpf_clone_redirect(skb, skb->ifindex, 0);
	skb->mark = mark;
	count(OBJECTS_ACKS_MADE);
	/* Back, whatever the clone's way has done to the packet. */
	asm volatile("" : "+r"(len));
	if (len < HEADER_WITH_TIMESTAMPS || len > TCP_HEADER_MAX)
		return -EFAULT;
	if (v6 ? bpf_skb_store_bytes(skb, 0, s->frame, LINK_AND_V6, 0) : bpf_skb_store_bytes(skb, 0, s->frame, LINK_AND_V4, 0))
		return -EFAULT;
	return bpf_skb_store_bytes(skb, p->tcp_offset, s->header.tcp, len, 0) ? -EFAULT : 0;
}

/* Window of an acknowledgement that lies `missing` bytes before the client's: objects::flow::Client::window_before. */
static __always_inline __u16 window_before(const struct object_flow *f, __u32 missing)
{
	__u8 scale = f->client_window_scale & 15;
	__u32 units = missing >> scale, rest = missing & ((1U << scale) - 1);
	if (units > 0xffff)
		units = 0xffff;
	units += f->client_window + !!rest;
	return units > 0xffff ? 0xffff : units;
}

/* Turns a segment of the server into the client's pure ACK of everything before `ack`: the client has these bytes, from
 * another server. `ack`: number of the server's socket. */
__noinline int self_ack(struct __sk_buff *skb, struct object_scratch *s, const struct object_flow *f,
			const struct packet *p, __u32 ack)
{
	if (!s || !f || !p)
		return TCX_DROP;
	struct member *m = the_member();
	bool v6 = p->version == 6;
	__u32 at = v6 ? LINK_AND_V6 : LINK_AND_V4, len = f->has_timestamps ? HEADER_WITH_TIMESTAMPS : TCP_HEADER_MIN;
	__u8 *h = s->header.edit;
	/* Of another form than the kernel's TCP has: as if lost. */
	if (!m || p->header_len < TCP_HEADER_MIN || p->tcp_offset != at)
		return withhold();
	if (v6 ? bpf_skb_load_bytes(skb, 0, s->frame, LINK_AND_V6) : bpf_skb_load_bytes(skb, 0, s->frame, LINK_AND_V4))
		return withhold();
	__u32 server_tsval = f->echoes.newest_tsval;
	if (p->header_len >= HEADER_WITH_TIMESTAMPS)
		server_tsval = read32(s->header.tcp + 24);
	__builtin_memset(h, 0, 64);
	__builtin_memcpy(h, s->header.tcp + 2, 2);
	__builtin_memcpy(h + 2, s->header.tcp, 2);
	write32(h + TCP_SEQ, p->ack);
	write32(h + TCP_ACK_SEQ, ack);
	h[TCP_DATA_OFFSET] = len / 4 << 4;
	h[TCP_FLAGS] = TCP_ACK;
	write16(h + TCP_WINDOW, window_before(f, f->floor - f->delta - ack));
	if (f->has_timestamps) {
		h[20] = OPTION_NOP;
		h[21] = OPTION_NOP;
		h[22] = OPTION_TIMESTAMPS;
		h[23] = 10;
		write32(h + 24, f->client_tsval);
		write32(h + 28, server_tsval);
	}
	const __u8 *ends = s->frame + ETH_HLEN;
	__u8 from[16] __attribute__((aligned(8))), to[16] __attribute__((aligned(8)));
	if (v6) {
		__builtin_memcpy(from, ends + 24, 16);
		__builtin_memcpy(to, ends + 8, 16);
	} else {
		__be32 v4;
		__builtin_memcpy(&v4, ends + 16, 4);
		map_v4(from, v4);
		__builtin_memcpy(&v4, ends + 12, 4);
		map_v4(to, v4);
	}
	seal(h, len, from, to, true);
	__be16 old_len, new_len = bpf_htons(v6 ? len : at - ETH_HLEN + len);
	__u32 len_at = ETH_HLEN + (v6 ? 4 : 2);
	if (bpf_skb_load_bytes(skb, len_at, &old_len, 2) || bpf_skb_change_tail(skb, at + len, 0) ||
	    bpf_skb_store_bytes(skb, len_at, &new_len, 2, 0) ||
	    (!v6 && bpf_l3_csum_replace(skb, ETH_HLEN + 10, old_len, new_len, 2)) || turn_ends(skb, s, p->version) ||
	    (f->has_timestamps ? bpf_skb_store_bytes(skb, at, h, HEADER_WITH_TIMESTAMPS, 0) :
				 bpf_skb_store_bytes(skb, at, h, TCP_HEADER_MIN, 0))) {
		count(OBJECTS_EDIT_FAILED);
		return withhold();
	}
	count(OBJECTS_SELF_ACKS);
	skb->mark = m->mark + MARK_SERVER_SPACE;
	return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}
