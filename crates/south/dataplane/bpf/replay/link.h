/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * The log link: the record is kept by a logger on another machine (FT-TCP, sections II and IV).
 *
 *   a client's segment     -> a copy of it goes to the logger, in UDP; it is the segment itself, in
 *                             which the fields that the flow's number implies (addresses, ports) give
 *                             their place to that number and a tag. 28 bytes more on the link, and
 *                             segmentation offload works on it as on the original.
 *   the server's SYN-ACK   -> goes to the logger, in UDP, with both initial sequence numbers, and to
 *                             the client when they are recorded (IV.B).
 *   the head of an answer  -> the segment that it is in goes to the logger before it goes to the client,
 *                             cut to what one datagram carries. It may be lost; the ring has it, too.
 *   a client has heard all -> the digest of that goes to the logger, if heads are recorded of less: before what the client
 *                             says then, which the next host gives to a server that has said the same.
 *   acknowledgements of    -> stable_seq of their flows; the packet itself, or a copy of it, becomes the client's
 *   the logger                ACK, if the strategy says so (clamp.h).
 *
 * The way to the logger (interface and link header) is learned from the probes that `serve` sends
 * through its own socket: the kernel's routing and neighbour tables have then done their work. If they
 * are answered and none was seen (they leave by an interface without Ethernet, which has no programs of
 * ours), there is no logger for us.
 *
 * A copy that does not leave is a segment that does not arrive: it is not delivered, and the client's
 * TCP sees an ordinary loss. What is lost later, on the link, the server has and the logger has not:
 * it is not acknowledged, and the client sends it again.
 */
#pragma once

#include "../lib/kernel.h"
#include "../lib/siphash.h"
#include "../lib/sequence.h"
#include "../lib/packet.h"
#include "../lib/checksum.h"
#include "../intf/digest.h"
#include "../intf/flow.h"
#include "../intf/service.h"
#include "../intf/link.h"
#include "../intf/read_cursor.h"
#include "state.h"
#include "read_cursors.h"
#include "doubt.h"

#define LINK_OVERHEAD(v6) ((v6 ? sizeof(struct ipv6_header) : sizeof(struct ipv4_header)) + \
			   sizeof(struct udp_header))

static __always_inline struct link *the_link(void)
{
	__u32 zero = 0;
	return bpf_map_lookup_elem(&link, &zero);
}

static __always_inline struct link_path *the_path(void)
{
	__u32 zero = 0;
	return bpf_map_lookup_elem(&path, &zero);
}

static __always_inline bool same_address(const __u8 *a, const __u8 *b)
{
	const __u64 *x = (const __u64 *)a, *y = (const __u64 *)b;
	return x[0] == y[0] && x[1] == y[1];
}

/* Is this a datagram of the link, from `source` to `destination`? Where its payload is; 0: it is
 * none. */
static __always_inline __u32 link_payload(struct __sk_buff *skb, const struct link *l,
					  const __u8 *source, const __u8 *destination, __be16 from,
					  __be16 to)
{
	__u8 addresses[32] __attribute__((aligned(8)));
	struct udp_header udp;
	__u32 at = ETH_HLEN;
	/* With a tag it is the VLAN interface's (see parse_ip): the one below it would send copies
	 * without. */
	if (skb->vlan_present)
		return 0;
	if (l->v6) {
		__u8 next;
		if (skb->protocol != bpf_htons(ETH_P_IPV6) ||
		    bpf_skb_load_bytes(skb, at + 6, &next, 1) || next != IPPROTO_UDP ||
		    bpf_skb_load_bytes(skb, at + 8, addresses, 32))
			return 0;
		at += sizeof(struct ipv6_header);
	} else {
		struct ipv4_header ip;
		if (skb->protocol != bpf_htons(ETH_P_IP) ||
		    bpf_skb_load_bytes(skb, at, &ip, sizeof(ip)) || ip.version_ihl != 0x45 ||
		    ip.protocol != IPPROTO_UDP || (ip.fragment & bpf_htons(0x3fff)))
			return 0;
		map_v4(addresses, ip.source);
		map_v4(addresses + 16, ip.destination);
		at += sizeof(ip);
	}
	if (!same_address(addresses, source) || !same_address(addresses + 16, destination) ||
	    bpf_skb_load_bytes(skb, at, &udp, sizeof(udp)) || udp.source != from ||
	    udp.destination != to)
		return 0;
	return at + sizeof(udp);
}

/* A packet that is none of TCP leaves: is it a probe of ours? */
static __always_inline int learn_path(struct __sk_buff *skb)
{
	struct link *l = the_link();
	struct link_path *path = the_path();
	if (!l || !path ||
	    !link_payload(skb, l, l->local, l->remote, l->local_port, l->remote_port))
		return TCX_NEXT;
	path->seen++;
	path->ifindex = skb->ifindex;
	bpf_skb_load_bytes(skb, 0, path->l2, ETH_HLEN);
	return TCX_NEXT;
}

/* Put the headers of the link before the IP packet, with `own` bytes of ours between. */
static __always_inline bool wrap(struct __sk_buff *skb, struct scratch *sc, const struct link *l,
				 __u32 own, __u32 ip_len, __u64 gso)
{
	const struct link_path *path = the_path();
	__u32 len = ip_len + own + sizeof(struct udp_header);
	struct udp_header udp = { l->local_port, l->remote_port, bpf_htons(len), 0 };
	if (!path || !path->ifindex || len + sizeof(struct ipv4_header) > 65535)
		return false;
	__builtin_memcpy(sc->network, path->l2, ETH_HLEN);
	if (l->v6) {
		struct ipv6_header ip = {
			.version_class_flow = bpf_htonl(0x60000000), .payload_len = bpf_htons(len),
			.next_header = IPPROTO_UDP, .hop_limit = 64,
		};
		__builtin_memcpy(ip.source, l->local, 16);
		__builtin_memcpy(ip.destination, l->remote, 16);
		return !bpf_skb_adjust_room(skb, sizeof(ip) + sizeof(udp) + own, BPF_ADJ_ROOM_MAC,
					    gso | BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 |
						    BPF_F_ADJ_ROOM_ENCAP_L4_UDP) &&
		       !bpf_skb_store_bytes(skb, 0, sc->network, ETH_HLEN, 0) &&
		       !bpf_skb_store_bytes(skb, ETH_HLEN, &ip, sizeof(ip), 0) &&
		       !bpf_skb_store_bytes(skb, ETH_HLEN + sizeof(ip), &udp, sizeof(udp), 0);
	}
	struct ipv4_header ip = {
		.version_ihl = 0x45, .total_len = bpf_htons(sizeof(ip) + len),
		.fragment = bpf_htons(0x4000), .ttl = 64, .protocol = IPPROTO_UDP,
	};
	__builtin_memcpy(&ip.source, l->local + 12, 4);
	__builtin_memcpy(&ip.destination, l->remote + 12, 4);
	ip.checksum = fold_checksum(bpf_csum_diff(NULL, 0, (__be32 *)&ip, sizeof(ip), 0));
	return !bpf_skb_adjust_room(skb, sizeof(ip) + sizeof(udp) + own, BPF_ADJ_ROOM_MAC,
				    gso | BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 | BPF_F_ADJ_ROOM_ENCAP_L4_UDP) &&
	       !bpf_skb_store_bytes(skb, 0, sc->network, ETH_HLEN, 0) &&
	       !bpf_skb_store_bytes(skb, ETH_HLEN, &ip, sizeof(ip), 0) &&
	       !bpf_skb_store_bytes(skb, ETH_HLEN + sizeof(ip), &udp, sizeof(udp), 0);
}

/* What the copy of a segment takes with it through the stack, in skb->cb. CB_AFTER: where the newest head ended, or the
 * distance of the read cursor before the segment, or how far beyond the segment's acknowledgement the client has received
 * the output of a dead host. CB_KEEP, of a head: in the low half the bytes of payload to keep, in the high half the bytes
 * that the head has, with the bytes that come by the ring. */
enum { CB_FLOW_LOW, CB_FLOW_HIGH, CB_FLAGS, CB_AFTER, CB_KEEP };
/* Above the flags of a head: how far the client had sent when the response began, from the acknowledgement on. The
 * copy has that behind its payload. */
#define CB_REQUEST_END_SHIFT 8
#define CB_REQUEST_END_MOST 0xffffff
#define HEAD_REQUEST_END 4
static __always_inline __u32 request_distance(__u32 request_end, __u32 ack)
{
	__u32 distance = request_end - ack;
	return before(request_end, ack) ? 0 : distance > CB_REQUEST_END_MOST ? CB_REQUEST_END_MOST : distance;
}

/* Copy a packet to the interface of the link. */
static __always_inline bool send_copy(struct __sk_buff *skb, const struct service *s, const struct flow *f,
				      const struct link_path *path, __u32 flags, __u32 after)
{
	skb->cb[CB_FLOW_LOW] = f->id;
	skb->cb[CB_FLOW_HIGH] = f->id >> 32;
	skb->cb[CB_FLAGS] = flags;
	skb->cb[CB_AFTER] = after;
	__u32 mark = skb->mark; /* for the rules of others */
	skb->mark = s->mark + MARK_SEGMENT;
	bool sent = !bpf_clone_redirect(skb, path->ifindex, 0);
	skb->mark = mark;
	return sent;
}

static __always_inline __u32 kind_of(const struct flow *f, const struct packet *p)
{
	if (!sequence_len(p))
		return SEGMENT_PLAIN;
	/* Not a request that was answered, by this server or an earlier one, and comes again because its
	 * copy was lost; nor what the server of a host that died may have answered. */
	if (p->ack == f->server.nxt && p->seq == f->log.ack && !before(p->seq, f->log.former_ack) &&
	    !(f->log.restored && !after(p->ack, f->log.client_received)))
		return SEGMENT_TURN;
	return f->client.ack == f->server.nxt ? SEGMENT_HEARD_ALL : SEGMENT_PLAIN;
}

static __always_inline void copied(struct flow *f, const struct packet *p, __u64 now)
{
	advance(&f->log.copied_ack, p->ack);
	f->log.copied = p->seq + sequence_len(p);
	f->log.copied_ns = now;
}

/* Record a client's segment at the other end of the link. False: it must not reach the server now.
 * A function of its own for the verifier, as others here and in clamp.h. */
__noinline int link_instream(struct __sk_buff *skb, const struct flow_key *key, struct flow *f,
			     const struct packet *p)
{
	struct service *s = the_service();
	const struct link *l = the_link();
	const struct link_path *path = the_path();
	if (!s || !key || !f || !p || !l || !path)
		return false;
	__u64 now = bpf_ktime_get_ns();
	if (!s->link_up || abandoned_at(s, now) || !path->ifindex) {
		if (waits_for_logger(s))
			return false;
		lose_protection(s, key, f, UNPROTECTED_LOGGER_LOST);
		return true;
	}
	/* One that nobody cuts and that is too long with our headers (its handshake was not seen by this
	 * link, or the link carries less now) would be lost as often as the client sends it. */
	if (!skb->gso_size && p->ip_len + LINK_OVERHEAD(l->v6) > l->mtu) {
		lose_protection(s, key, f, UNPROTECTED_MIRROR_LOST);
		return true;
	}
	__u32 kind, after = f->verify.heads_to, cursor_seq;
	struct read_cursor *cursor = s->read_cursors ? cursor_of(f) : NULL;
	if (s->read_cursors && !cursor)
		cursor = find_cursor(key, f);
	if (cursor && read_up_to(f, cursor, &cursor_seq)) {
		advance(&f->log.stable, cursor_seq);
		if (is_mirror_skipped(s, f, cursor, p, now))
			return true;
	}
	/* Also without a cursor by now: bytes before the former cursor may have no copy. */
	cursor_seq = before(p->seq, f->log.stable) ? p->seq : f->log.stable;
	if (f->log.read_cursor && p->seq - cursor_seq <= 0xffff) {
		kind = SEGMENT_NOTED;
		after = p->seq - cursor_seq;
	} else if (is_doubted(f, p)) {
		kind = SEGMENT_DOUBTED;
		after = received_beyond_ack(f, p);
	} else {
		kind = kind_of(f, p);
	}
	__u32 flags = SEGMENT_MODE | kind | (l->slot ? SEGMENT_SLOT : 0);
	if (unfinished(skb))
		flags |= SEGMENT_UNFINISHED;
	bool sent = send_copy(skb, s, f, path, flags, after);
	if (sent)
		copied(f, p, now);
	if (sequence_len(p))
		count(sent ? COUNT_MIRRORED : COUNT_MIRROR_FULL);
	return sent;
}

/* Is the logger on this host? */
static __always_inline bool is_loopback(const struct link_path *path)
{
	bool loopback = true;
	for (__u32 i = 0; i < 12; i++)
		loopback = loopback && !path->l2[i];
	return loopback;
}

/* Give the logger the first `take` bytes behind `skip` of a segment of the server, which is as the client will see
 * it, or as many as a datagram holds: what the client has heard must not be lost with this host. Were that all? (To a
 * logger of this host nothing can be sent like this, see open_record, and nothing need be.) */
__noinline int link_head(struct __sk_buff *skb, struct flow *f, const struct packet *p, __u32 skip, __u32 take)
{
	struct service *s = the_service();
	const struct link *l = the_link();
	const struct link_path *path = the_path();
	if (!s || !f || !p || !l || !path)
		return false;
	__u32 headers = p->tcp_offset - ETH_HLEN + p->header_len + HEAD_REQUEST_END + LINK_OVERHEAD(l->v6);
	__be32 ack = 0;
	bool jumbo = p->version == 6 && p->tcp_offset != ETH_HLEN + sizeof(struct ipv6_header);
	if (!linked(s, f) || !s->link_up || abandoned(s) || !path->ifindex || jumbo || take > 0xffff ||
	    skip > 0xffff || headers + skip >= l->mtu || is_loopback(path))
		return false;
	__u32 room = l->mtu - headers, all = skip + take;
	__u32 keep = all > room ? room : all;
	/* What has no room is said only of a packet that begins with the head, which is then shorter than that. */
	skb->cb[CB_KEEP] = (skip ? keep - skip : take) << 16 | keep;
	__u32 flags = SEGMENT_MODE | SEGMENT_HEAD | SEGMENT_UNFINISHED | (l->slot ? SEGMENT_SLOT : 0);
	bpf_skb_load_bytes(skb, p->tcp_offset + TCP_ACK_SEQ, &ack, 4);
	flags |= request_distance(f->verify.request_end, bpf_ntohl(ack)) << CB_REQUEST_END_SHIFT;
	if (!send_copy(skb, s, f, path, flags, f->verify.heads_to))
		return false;
	if (take)
		count(COUNT_LINK_HEADS);
	return keep == all;
}

/* Has the client just acknowledged all that it was sent, of which heads are not all? */
static __always_inline bool client_acked_all(const struct service *s, const struct flow *f, const struct packet *p)
{
	return linked(s, f) && s->link_up && f->digest.taken && (p->flags & TCP_ACK) && !(p->flags & TCP_RST) &&
	       p->ack == f->client.ack && p->ack == f->server.nxt && p->ack != f->verify.heads_to &&
	       p->ack != f->digest.link_sent;
}

/* Take the digest of all before `end`, if the output ends just there, and no samples were taken of it. Output on another
 * processor meanwhile changes the digest. */
static __always_inline bool take_digest(struct digest *taken, struct flow *f, __u32 end)
{
	struct digest_half *d = &f->digest;
	__u32 nothing = 0;
	asm volatile("" : "+r"(nothing)); /* clang would make a loop of it */
	__u32 changes = __sync_fetch_and_add(&d->changes, nothing);
	*taken = d->now;
	bool sampled = d->sampled && !before(taken->next, d->sampled_from);
	return __sync_fetch_and_add(&d->changes, nothing) == changes && !(changes & 1) && !sampled &&
	       d->comparison != COMPARES && taken->next == end && taken->base != end;
}

/* Give the logger the digest of all that the client was sent, and has received: for the client's next bytes the next host
 * then knows the output that preceded them. Bytes from the acknowledgement of the server's TCP on are no part of that. */
__noinline int link_digest(struct __sk_buff *skb, struct flow *f, const struct packet *p)
{
	struct service *s = the_service();
	const struct link *l = the_link();
	const struct link_path *path = the_path();
	struct scratch *sc = the_scratch(SCRATCH_INGRESS);
	if (!s || !f || !p || !l || !path || !sc)
		return false;
	bool jumbo = p->version == 6 && p->tcp_offset != ETH_HLEN + sizeof(struct ipv6_header);
	if (!l->digests || jumbo || abandoned(s) || !path->ifindex || is_loopback(path) ||
	    !take_digest(&sc->digest, f, p->ack))
		return false;
	skb->cb[CB_KEEP] = 0;
	__u32 flags = SEGMENT_MODE | SEGMENT_SAID | SEGMENT_UNFINISHED | (l->slot ? SEGMENT_SLOT : 0);
	/* In a replay the server's acknowledgements come back to its own TCP, and log.ack does not change. */
	__u32 read = f->mode == FLOW_SPLICED && after(f->splice.ack, f->log.ack) ? f->splice.ack : f->log.ack;
	if (!send_copy(skb, s, f, path, flags, read))
		return false;
	f->digest.link_sent = p->ack;
	return true;
}

static __always_inline bool is_progress(const struct service *s, const struct flow *f,
					const struct packet *p)
{
	return linked(s, f) && s->link_up && !sequence_len(p) && p->ack == f->client.ack &&
	       !before(p->ack, f->log.copied_ack + progress_step(f));
}

/* Cut a head to its length, and put the client's position behind a head (not behind a digest). False: the packet is too
 * short. */
static __always_inline bool cut_head(struct __sk_buff *skb, struct packet *p, bool is_digest)
{
	__u32 len = p->tcp_offset - ETH_HLEN + p->header_len + (skb->cb[CB_KEEP] & 0xffff);
	bool v4 = p->version == 4;
	__be32 request_end = bpf_htonl(p->ack + ((__u32)skb->cb[CB_FLAGS] >> CB_REQUEST_END_SHIFT));
	if (len > p->ip_len)
		return false;
	__u32 end = ETH_HLEN + len;
	if (!is_digest)
		len += HEAD_REQUEST_END;
	__be16 field = bpf_htons(v4 ? len : len - sizeof(struct ipv6_header));
	p->ip_len = len;
	return !bpf_skb_change_tail(skb, ETH_HLEN + len, 0) &&
	       (is_digest || !bpf_skb_store_bytes(skb, end, &request_end, HEAD_REQUEST_END, 0)) &&
	       !bpf_skb_store_bytes(skb, ETH_HLEN + (v4 ? 2 : 4), &field, 2, 0);
}

/* Put a digest behind what was cut to its headers. */
static __always_inline bool add_digest(struct __sk_buff *skb, struct packet *p)
{
	struct scratch *sc = the_scratch(SCRATCH_INGRESS); /* the copy is made while the program there waits */
	__u32 end = ETH_HLEN + p->ip_len;
	bool v4 = p->version == 4;
	p->ip_len += sizeof(struct digest);
	__be16 field = bpf_htons(v4 ? p->ip_len : p->ip_len - sizeof(struct ipv6_header));
	return sc && !bpf_skb_change_tail(skb, end + sizeof(struct digest), 0) &&
	       !bpf_skb_store_bytes(skb, end, &sc->digest, sizeof(struct digest), 0) &&
	       !bpf_skb_store_bytes(skb, ETH_HLEN + (v4 ? 2 : 4), &field, 2, 0);
}

/* What only a head says. Its checksum is left to whoever finishes it, if somebody does: that was not
 * done here either, or would be wrong now. */
static __always_inline bool mark_head(struct __sk_buff *skb, const struct packet *p, const __u8 *ends)
{
	__u32 len = p->ip_len - (p->tcp_offset - ETH_HLEN);
	__u16 sum = ~fold_checksum(pseudo_sum(len, ends, ends + 16));
	__be32 after = bpf_htonl(skb->cb[CB_AFTER]);
	return !bpf_skb_store_bytes(skb, p->tcp_offset + TCP_ACK_SEQ, &after, 4, 0) &&
	       !bpf_skb_store_bytes(skb, p->tcp_offset + TCP_CHECKSUM, &sum, 2, 0);
}

/* As protocol::link::heads_digest. */
static __always_inline __be16 heads_digest(__u32 end)
{
	return bpf_htons((end * 0x9e3779b1) >> 16);
}

static __always_inline bool is_distance(__u8 flags)
{
	return (flags & SEGMENT_KINDS) == SEGMENT_NOTED || (flags & SEGMENT_KINDS) == SEGMENT_DOUBTED;
}

static __always_inline __u32 at_most_64k(__u32 distance)
{
	return distance > 0xffff ? 0xffff : distance;
}

/* The copy is about to leave. Its fields are replaced where protocol::link says. */
__noinline int wrap_segment(struct __sk_buff *skb)
{
	struct scratch *sc = the_scratch(SCRATCH_EGRESS);
	struct packet p = {};
	struct link *l = the_link();
	__u8 ends[32];
	if (!sc || !l || !parse_ip(skb, &p, ends, ends + 16) || !parse_tcp(skb, &p, sc->header.tcp))
		return TCX_DROP;
	__u32 low = skb->cb[CB_FLOW_LOW];
	__u8 flags = skb->cb[CB_FLAGS];
	bool is_digest = (flags & SEGMENT_KINDS) == SEGMENT_SAID;
	bool head = is_digest || (flags & SEGMENT_KINDS) == SEGMENT_HEAD;
	if (head && (!cut_head(skb, &p, is_digest) || (is_digest && !add_digest(skb, &p))))
		return TCX_DROP;
	__be16 window = head ? bpf_htons(skb->cb[CB_KEEP] >> 16)
			: is_distance(flags) ? bpf_htons(at_most_64k(skb->cb[CB_AFTER]))
					     : heads_digest(skb->cb[CB_AFTER]);
	__u64 *words = sc->frame.words;
	words[0] = ((__u64)skb->cb[CB_FLOW_HIGH] << 32) | low;
	words[1] = ((__u64)window << 48) | ((__u64)l->version << 40) | ((__u64)flags << 32) | p.seq;
	const struct link_key *key = &l->up[(flags & SEGMENT_SLOT) != 0];
	/* Now an address: not on the stack, which has no room for it (Linux 6.1). */
	words[0] = siphash((struct sip_input *)words, 2, key->k0, key->k1);
	words[1] = words[2] = words[3] = 0;

	/* Ports, and urgent pointer and window, before and after. */
	__be16 urgent = bpf_htons(p.seq);
	__u32 old[2] = {}, new[2] = { low, urgent | (__u32)window << 16 };
	__builtin_memcpy(&old[0], sc->header.tcp, 4);
	old[1] = *(__u16 *)&sc->header.tcp[TCP_URGENT] | (__u32) * (__u16 *)&sc->header.tcp[TCP_WINDOW] << 16;
	__s64 difference = bpf_csum_diff(old, sizeof(old), new, sizeof(new), 0);
	if (bpf_skb_store_bytes(skb, p.tcp_offset, &new[0], 4, 0) ||
	    bpf_skb_store_bytes(skb, p.tcp_offset + TCP_URGENT, &urgent, 2, 0) ||
	    bpf_skb_store_bytes(skb, p.tcp_offset + TCP_WINDOW, &window, 2, 0) ||
	    bpf_l4_csum_replace(skb, p.tcp_offset + TCP_CHECKSUM, 0, difference, 0) ||
	    (head && !mark_head(skb, &p, ends)))
		return TCX_DROP;
	/* The version takes the place of the TOS or the traffic class. */
	__be16 class = bpf_htons(6 << 12 | (__u32)l->version << 4);
	if (p.version == 4) {
		if (bpf_skb_store_bytes(skb, ETH_HLEN + 1, &l->version, 1, 0) ||
		    bpf_skb_store_bytes(skb, ETH_HLEN + 8, &flags, 1, 0) ||
		    bpf_skb_store_bytes(skb, ETH_HLEN + 12, words, 8, 0))
			return TCX_DROP;
	} else if (bpf_skb_store_bytes(skb, ETH_HLEN, &class, 2, 0) ||
		   bpf_skb_store_bytes(skb, ETH_HLEN + 7, &flags, 1, 0) ||
		   bpf_skb_store_bytes(skb, ETH_HLEN + 8, words, 32, 0)) {
		return TCX_DROP;
	}
	/* Pieces as large as the client's were fit, if its MSS was ours; else they are cut smaller. */
	bool fits = p.tcp_offset - ETH_HLEN + p.header_len + skb->gso_size + LINK_OVERHEAD(l->v6) <= l->mtu;
	if (!wrap(skb, sc, l, 0, p.ip_len, fits ? BPF_F_ADJ_ROOM_FIXED_GSO : 0)) {
		count(COUNT_EDIT_FAILED);
		return TCX_DROP;
	}
	skb->mark = 0;
	return TCX_NEXT;
}

/* Send a SYN-ACK to the logger, and keep what is needed to send it to the client then. `sc->header.edit`
 * is its header. */
__noinline int open_record(struct __sk_buff *skb, const struct flow_key *key, struct flow *e,
			   const struct packet *p)
{
	struct service *s = the_service();
	struct scratch *sc = the_scratch(SCRATCH_EGRESS);
	struct link *l = the_link();
	const struct link_path *path = the_path();
	if (!s || !sc || !key || !e || !p || !l || !path)
		return TCX_DROP;
	sc->waiting.len = p->header_len;
	if (!e->id)
		e->id = __sync_fetch_and_add(&s->next_flow_id, 1);
	__builtin_memcpy(sc->waiting.header, sc->header.edit, sizeof(sc->waiting.header));

	struct link_open *open = &sc->frame.open;
	__builtin_memset(open, 0, sizeof(*open));
	open->head.magic = LINK_MAGIC;
	open->head.version = l->version;
	open->head.mode = LINK_MODE_REPLAY;
	open->head.kind = LINK_OPEN;
	open->head.slot = l->slot & 1;
	open->head.flow_id = e->id;
	open->key = *key;
	/* Linux 6.1 takes no key from a pointer that a function was given. */
	if (bpf_map_update_elem(&synacks, &open->key, &sc->waiting, BPF_ANY))
		return TCX_DROP;
	open->client_isn = e->client.isn;
	open->server_isn = e->server.isn;
	open->handshake.tsval = e->server.tsval;
	open->handshake.syn_window = e->syn_window;
	open->handshake.syn_flags = e->syn_flags;
	open->handshake.syn_options_len = e->syn_options_len;
	open->handshake.scales = (e->server.window_scale & 15) | e->client.window_scale << 4;
	open->handshake.agreed = (e->server.timestamps ? AGREED_TIMESTAMPS : 0) |
				 (e->server.sack ? AGREED_SACK : 0) |
				 (e->whole_segments ? AGREED_WHOLE_SEGMENTS : 0);
	__builtin_memcpy(open->handshake.syn_options, e->syn_options, TCP_OPTIONS_MAX);
	const struct link_key *secret = &l->up[l->slot & 1];
	open->tag = siphash((struct sip_input *)sc->frame.words, offsetof(struct link_open, tag) / 8,
			    secret->k0, secret->k1);
	if (!wrap(skb, sc, l, sizeof(*open), p->ip_len, 0) ||
	    bpf_skb_store_bytes(skb, ETH_HLEN + LINK_OVERHEAD(l->v6), open, sizeof(*open), 0)) {
		count(COUNT_EDIT_FAILED);
		return TCX_DROP;
	}
	count(COUNT_LINK_OPENS);
	skb->mark = s->mark + MARK_TO_LOGGER;
	/* To a logger of this host: the packet has a route to the client, which the loopback would keep, and
	 * IP obey. What is received as if from outside has none. */
	return bpf_redirect(path->ifindex, is_loopback(path) ? BPF_F_INGRESS : 0);
}
