/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Reading and rewriting TCP segments. Headers are read with bpf_skb_load_bytes, which does not
 * care where the stack keeps them, and changed through bpf_skb_store_bytes and
 * bpf_l4_csum_replace with a difference, which is right for the three ways in which the stack
 * keeps a checksum (PARTIAL, NONE, COMPLETE).
 */
#pragma once

/* The packet is gone, and the kernel's TCP takes it for sent: a packet for an interface that does not exist is freed
 * without an error (skb_do_redirect). TCP would answer the error of a drop: it halves the congestion window, even for
 * a pure ACK (__tcp_transmit_skb), and does not count the segment as sent. */
static __always_inline int withhold(void)
{
	return bpf_redirect(0, 0);
}

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10
#define TCP_ECE 0x40
#define TCP_CWR 0x80

#define OPTION_END 0
#define OPTION_NOP 1
#define OPTION_MSS 2
#define OPTION_WINDOW_SCALE 3
#define OPTION_SACK_PERMITTED 4
#define OPTION_SACK 5
#define OPTION_TIMESTAMPS 8
#define OPTION_MD5 19
#define OPTION_AO 29
#define OPTION_MPTCP 30
#define OPTION_FAST_OPEN 34
#define OPTION_EXPERIMENTAL 254

#define TCP_HEADER_MIN 20
#define TCP_HEADER_MAX 60
#define WINDOW_SCALE_MAX 14 /* RFC 7323 2.3 */

struct ipv4_header {
	__u8 version_ihl;
	__u8 tos;
	__be16 total_len;
	__be16 id;
	__be16 fragment;
	__u8 ttl;
	__u8 protocol;
	__sum16 checksum;
	__be32 source;
	__be32 destination;
};
struct ipv6_header {
	__be32 version_class_flow;
	__be16 payload_len;
	__u8 next_header;
	__u8 hop_limit;
	__u8 source[16];
	__u8 destination[16];
};
/* What Linux puts between the IPv6 and the TCP header of a super-segment that the 16-bit length
 * cannot tell: a hop-by-hop header with nothing but the jumbo payload option (RFC 2675 2). */
struct jumbo_header {
	__u8 next_header;
	__u8 header_len; /* in 8 bytes, not counting the first */
	__u8 option;
	__u8 option_len;
	__be32 payload_len; /* this header's own bytes included */
};
#define OPTION_JUMBO 0xc2

/* Offsets into the TCP header. */
enum {
	TCP_SEQ = 4,
	TCP_ACK_SEQ = 8,
	TCP_DATA_OFFSET = 12,
	TCP_FLAGS = 13,
	TCP_WINDOW = 14,
	TCP_CHECKSUM = 16,
	TCP_URGENT = 18,
};

struct packet {
	__u32 tcp_offset; /* from the start of the frame */
	__u32 header_len; /* of TCP, options included */
	__u32 ip_len;     /* IP header to end of payload, without padding of the link */
	__u32 payload_len;
	__u32 seq;
	__u32 ack;
	__u16 window;
	__u8 flags;
	__u8 version;
};

struct options {
	__u8 timestamps; /* offset of the option in the TCP header; 0: absent */
	__u8 sack;
	__u8 sack_len;
	__u8 sack_permitted;
	__u8 mss;
	__u8 window_scale; /* 0xff: absent */
	__u8 authenticated; /* MD5 or AO */
	__u8 stripped;
	__u8 multipath;
};

static __always_inline __u32 read32(const __u8 *b)
{
	return ((__u32)b[0] << 24) | ((__u32)b[1] << 16) | ((__u32)b[2] << 8) | b[3];
}

static __always_inline void write32(__u8 *b, __u32 v)
{
	b[0] = v >> 24;
	b[1] = v >> 16;
	b[2] = v >> 8;
	b[3] = v;
}

static __always_inline void write16(__u8 *b, __u16 v)
{
	b[0] = v >> 8;
	b[1] = v;
}

/* Tell the verifier that an index is inside the 64-byte header buffers. */
static __always_inline __u32 in_header(__u32 i)
{
	asm volatile("" : "+r"(i));
	return i & 63;
}

static __always_inline __u32 sequence_len(const struct packet *p)
{
	return p->payload_len + !!(p->flags & TCP_FIN) + !!(p->flags & TCP_SYN);
}

/* The window in bytes; never scaled in a SYN (RFC 7323 2.2), also when it is sent again. */
static __always_inline __u32 window_of(const struct packet *p, __u8 scale)
{
	return (__u32)p->window << (p->flags & TCP_SYN ? 0 : scale);
}

static __always_inline void map_v4(__u8 *address, __be32 v4)
{
	__u32 *words = (__u32 *)address;
	words[0] = 0;
	words[1] = 0;
	words[2] = bpf_htonl(0xffff);
	words[3] = v4;
}

/* Is there a TCP segment behind a jumbo header at `p->tcp_offset`, to the end of the frame? Such
 * frames exist only between this host's TCP and a device, or GRO and this host's TCP; gso_max_size
 * does not bound them: a sender makes two segments one in any case (tcp_min_tso_segs), and with an
 * MTU above 32 KiB, the loopback's, two are more than 64 KiB. */
static __always_inline bool skip_jumbo(struct __sk_buff *skb, struct packet *p)
{
	struct jumbo_header jumbo;
	if (bpf_skb_load_bytes(skb, p->tcp_offset, &jumbo, sizeof(jumbo)))
		return false;
	if (jumbo.next_header != IPPROTO_TCP || jumbo.header_len || jumbo.option != OPTION_JUMBO ||
	    jumbo.option_len != sizeof(jumbo.payload_len) ||
	    bpf_ntohl(jumbo.payload_len) != skb->len - p->tcp_offset)
		return false;
	p->tcp_offset += sizeof(jumbo);
	return true;
}

/* Fill `source` and `destination`, and all of `p` that the IP header tells. False for what is
 * not a whole TCP segment: other protocols, fragments, other extension headers. */
static __always_inline bool parse_ip(struct __sk_buff *skb, struct packet *p, __u8 *source,
				     __u8 *destination)
{
	/* With a tag it is a VLAN interface's, which will see it (or has) without. */
	if (skb->vlan_present)
		return false;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct ipv4_header ip;
		if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
			return false;
		if (ip.protocol != IPPROTO_TCP || (ip.fragment & bpf_htons(0x3fff)))
			return false;
		__u32 ihl = (ip.version_ihl & 15) * 4;
		if (ihl < sizeof(ip))
			return false;
		p->version = 4;
		p->tcp_offset = ETH_HLEN + ihl;
		p->ip_len = bpf_ntohs(ip.total_len);
		map_v4(source, ip.source);
		map_v4(destination, ip.destination);
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6_header ip;
		if (bpf_skb_load_bytes(skb, ETH_HLEN, &ip, sizeof(ip)))
			return false;
		p->version = 6;
		p->tcp_offset = ETH_HLEN + sizeof(ip);
		p->ip_len = bpf_ntohs(ip.payload_len);
		if (ip.next_header != IPPROTO_TCP &&
		    (ip.next_header != IPPROTO_HOPOPTS || p->ip_len || !skip_jumbo(skb, p)))
			return false;
		if (p->ip_len)
			p->ip_len += sizeof(ip);
		__builtin_memcpy(source, ip.source, 16);
		__builtin_memcpy(destination, ip.destination, 16);
	} else {
		return false;
	}
	/* A length of 0 is BIG TCP; a frame may be longer than its packet (link padding). */
	if (!p->ip_len)
		p->ip_len = skb->len - ETH_HLEN;
	return true;
}

/* The TCP header into `tcp`; false when the segment is malformed. */
/* A length that is known not to be 0, and to have no bits but those of the mask when 1 is taken from
 * it. Linux 6.1's verifier does not learn that from a comparison with 0, but a helper's size must
 * not be. */
static __always_inline __u32 at_least_1(__u32 len, __u32 mask)
{
	asm volatile("" : "+r"(len));
	return ((len - 1) & mask) + 1;
}

static __always_inline bool parse_tcp(struct __sk_buff *skb, struct packet *p, __u8 *tcp)
{
	if (bpf_skb_load_bytes(skb, p->tcp_offset, tcp, TCP_HEADER_MIN))
		return false;
	__u32 header_len = (tcp[TCP_DATA_OFFSET] >> 4) * 4;
	if (header_len < TCP_HEADER_MIN ||
	    p->tcp_offset - ETH_HLEN + header_len > p->ip_len ||
	    ETH_HLEN + p->ip_len > skb->len)
		return false;
	__u32 options_len = header_len - TCP_HEADER_MIN;
	if (options_len > 0 && options_len <= TCP_OPTIONS_MAX &&
	    bpf_skb_load_bytes(skb, p->tcp_offset + TCP_HEADER_MIN, tcp + TCP_HEADER_MIN,
			       at_least_1(options_len, 63)))
		return false;
	p->header_len = header_len;
	p->payload_len = p->ip_len - (p->tcp_offset - ETH_HLEN) - header_len;
	p->seq = read32(tcp + TCP_SEQ);
	p->ack = read32(tcp + TCP_ACK_SEQ);
	p->window = ((__u16)tcp[TCP_WINDOW] << 8) | tcp[TCP_WINDOW + 1];
	p->flags = tcp[TCP_FLAGS];
	return true;
}

struct option_walk {
	struct scratch *s;
	__u32 header_len;
	__u32 i;
	bool strip;
	struct options o;
};

/* Options that would bind the connection to state which only the first server has: another
 * path's keys (MPTCP), a cookie and data in the SYN (Fast Open). */
static __always_inline bool must_strip(__u8 kind)
{
	return kind == OPTION_MPTCP || kind == OPTION_FAST_OPEN || kind == OPTION_EXPERIMENTAL;
}

static long walk_option(__u32 n, void *context)
{
	struct option_walk *w = context;
	struct scratch *s = w->s;
	__u32 i = w->i;
	if (i >= w->header_len || i >= TCP_HEADER_MAX)
		return 1;
	__u8 kind = s->tcp[in_header(i)];
	if (kind == OPTION_END)
		return 1;
	if (kind == OPTION_NOP) {
		w->i = i + 1;
		return 0;
	}
	if (i + 1 >= w->header_len)
		return 1;
	__u8 len = s->tcp[in_header(i + 1)];
	if (len < 2 || i + len > w->header_len)
		return 1;
	if (kind == OPTION_TIMESTAMPS && len == 10)
		w->o.timestamps = i;
	else if (kind == OPTION_MSS && len == 4)
		w->o.mss = i;
	else if (kind == OPTION_WINDOW_SCALE && len == 3)
		w->o.window_scale = s->tcp[in_header(i + 2)];
	else if (kind == OPTION_SACK_PERMITTED && len == 2)
		w->o.sack_permitted = 1;
	else if (kind == OPTION_SACK && ((len - 2) & 7) == 0) {
		w->o.sack = i;
		w->o.sack_len = len;
	} else if (kind == OPTION_MD5 || kind == OPTION_AO)
		w->o.authenticated = 1;
	else if (w->strip && must_strip(kind)) {
		for (__u32 j = 0; j < TCP_OPTIONS_MAX; j++) {
			if (j >= len)
				break;
			s->edit[in_header(i + j)] = OPTION_NOP;
		}
		w->o.stripped = 1;
		w->o.multipath |= kind == OPTION_MPTCP;
	}
	w->i = i + len;
	return 0;
}

/* Find the options of the header in `s->tcp`; with `strip`, blank those that we cannot carry
 * in `s->edit`. Malformed options end the walk: what came before them counts. A function of its own for the verifier,
 * which would follow each option's way through all that comes behind. */
__noinline int walk_options(struct scratch *s, __u32 header_len, int strip, struct options *found)
{
	struct option_walk w = {
		.s = s, .header_len = header_len, .i = TCP_HEADER_MIN, .strip = strip,
		.o = { .window_scale = 0xff },
	};
	if (!s || !found)
		return 0;
	/* What nearly every data segment carries: NOP, NOP, timestamps (RFC 7323 appendix A). */
	if (header_len >= 32 && *(__u32 *)&s->tcp[TCP_HEADER_MIN] == bpf_htonl(0x0101080a)) {
		w.o.timestamps = TCP_HEADER_MIN + 2;
		w.i = 32;
	}
	if (w.i < header_len)
		bpf_loop(TCP_OPTIONS_MAX, walk_option, &w, 0);
	*found = w.o;
	return 0;
}

static __always_inline struct options find_options(struct scratch *s, const struct packet *p, bool strip)
{
	struct options found = {};
	walk_options(s, p->header_len, strip, &found);
	return found;
}

/* The option's offset leaves room for its ten bytes, or the walk would not have kept it. */
static __always_inline __u32 option_tsval(const __u8 *header, const struct options *o)
{
	return read32(&header[in_header(o->timestamps + 2)]);
}

static __always_inline __u32 option_tsecr(const __u8 *header, const struct options *o)
{
	return read32(&header[in_header(o->timestamps + 6)]);
}

static __always_inline __u8 scale_of(const struct options *o)
{
	if (o->window_scale == 0xff)
		return 0;
	return o->window_scale > WINDOW_SCALE_MAX ? WINDOW_SCALE_MAX : o->window_scale;
}

/* Begin an edit: `s->edit` becomes a copy of the header. */
static __always_inline void begin_edit(struct scratch *s)
{
	__builtin_memcpy(s->edit, s->tcp, 64);
}

/* Put `s->edit` in the place of `s->tcp`. */
static __always_inline bool commit_edit(struct __sk_buff *skb, struct scratch *s, const struct packet *p)
{
	__u32 len = p->header_len & 0x3c; /* a multiple of 4, at most TCP_HEADER_MAX */
	asm volatile("" : "+r"(len));
	if (len < TCP_HEADER_MIN)
		return false;
	__s64 difference = bpf_csum_diff((__be32 *)s->tcp, len, (__be32 *)s->edit, len, 0);
	if (bpf_skb_store_bytes(skb, p->tcp_offset, s->edit, len, 0) ||
	    bpf_l4_csum_replace(skb, p->tcp_offset + TCP_CHECKSUM, 0, difference, 0)) {
		count(COUNT_EDIT_FAILED);
		return false;
	}
	return true;
}

/* Whether the kernel has left the checksum for later, and vouches for the segment: one of this host,
 * or one that GRO has put together from segments that it verified. In a segment from the wire the
 * same number in the field is a wrong checksum. `struct __sk_buff` does not tell. */
static __always_inline bool unfinished(struct __sk_buff *skb)
{
	return BPF_CORE_READ_BITFIELD_PROBED((struct sk_buff *)skb, ip_summed) == CHECKSUM_PARTIAL;
}

static __always_inline __u16 fold_checksum(__u64 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/* Of the pseudo-header of a segment of `len` bytes; not folded. (The ffff in an address that is mapped adds
 * nothing to a sum.) */
static __always_inline __u32 pseudo_sum(__u32 len, const __u8 *source, const __u8 *destination)
{
	__u64 sum = bpf_csum_diff(NULL, 0, (__be32 *)source, 16, 0);
	sum = bpf_csum_diff(NULL, 0, (__be32 *)destination, 16, sum);
	sum += (__u64)bpf_htonl(len) + bpf_htonl(IPPROTO_TCP);
	sum = (sum & 0xffffffff) + (sum >> 32);
	return sum + (sum >> 32);
}

/* Give a segment that is a header alone, of `len` bytes, its checksum, or what the kernel will finish.
 * Its checksum field is zero. */
static __always_inline void seal(__u8 *header, __u32 len, const __u8 *source, const __u8 *destination,
				 bool finish)
{
	__u32 sum = pseudo_sum(len, source, destination);
	len &= 0x3c;
	asm volatile("" : "+r"(len));
	if (finish)
		sum = bpf_csum_diff(NULL, 0, (__be32 *)header, len, sum);
	__u16 checksum = finish ? fold_checksum(sum) : ~fold_checksum(sum);
	__builtin_memcpy(header + TCP_CHECKSUM, &checksum, 2);
}
