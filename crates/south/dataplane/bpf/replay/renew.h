/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Fast again after a death. What a replay says again is acknowledged by the programs, within microseconds. The socket of
 * the connection learns from that a round trip that no network has, and its congestion control keeps the shortest: BBR
 * sends what fits into the shortest round trip of the last ten seconds, CUBIC leaves slow start when a round trip
 * is longer than the shortest (HyStart).
 *
 * So the congestion control of each spliced connection begins anew, and slow start with it: when the recovery is over,
 * and again when the kernel has learned a real round trip from the client (`serve` has net.ipv4.tcp_min_rtt_wlen at 0:
 * the kernel forgets shorter ones then).
 *
 * `serve` reads from this iterator. It gets one byte for each socket that is not done with.
 */
#pragma once

#include "../lib/kernel.h"
#include "../lib/sequence.h"
#include "../intf/flow.h"
#include "../intf/service.h"
#include "state.h"
#include "latch.h"

#define SOL_TCP 6
#define TCP_CONGESTION 13
#define TCP_BPF_SNDCWND_CLAMP 1002
#define CONGESTION_NAME 16
/* Larger than any window. */
#define NO_THRESHOLD 0x7fffffff

/* Once: what a round trip is, is still to be learned. Twice: all is done. */
#define TIMES 2

static __always_inline void begin_anew(struct tcp_sock *tcp)
{
	char name[CONGESTION_NAME] = {}, other[] = "reno";
	int no_threshold = NO_THRESHOLD;
	if (bpf_getsockopt(tcp, SOL_TCP, TCP_CONGESTION, name, sizeof(name)))
		return;
	/* The same one again would change nothing. */
	bpf_setsockopt(tcp, SOL_TCP, TCP_CONGESTION, other, sizeof(other));
	bpf_setsockopt(tcp, SOL_TCP, TCP_CONGESTION, name, sizeof(name));
	/* This sets the threshold of slow start, too. */
	bpf_setsockopt(tcp, SOL_TCP, TCP_BPF_SNDCWND_CLAMP, &no_threshold, sizeof(no_threshold));
}

/* The shortest round trip is a real one when it is not far from the average, which has real ones in it by then. (The
 * kernel takes no round trip from an acknowledgement that may have been delayed.) */
static __always_inline bool is_due(const struct flow *f, struct tcp_sock *tcp)
{
	__u32 shortest = BPF_CORE_READ(tcp, rtt_min.s[0].v), average = BPF_CORE_READ(tcp, srtt_us) >> 3;
	return !f->splice.renewed || (after(f->client.ack, f->splice.renewed_at) && shortest >= average / 2);
}

SEC("iter/tcp")
int renew(struct bpf_iter__tcp *context)
{
	struct service *s = the_service();
	struct sock_common *common = context->sk_common;
	struct tcp_sock *tcp = common ? bpf_skc_to_tcp_sock(common) : NULL;
	if (!s || !tcp)
		return 0;
	struct sock *sk = (struct sock *)tcp;
	struct flow_key key = {
		.server_port = bpf_htons(BPF_CORE_READ(sk, __sk_common.skc_num)),
		.client_port = BPF_CORE_READ(sk, __sk_common.skc_dport),
	};
	bool v6 = BPF_CORE_READ(sk, __sk_common.skc_family) == AF_INET6;
	struct in6_addr a6;
	BPF_CORE_READ_INTO(&a6, sk, __sk_common.skc_v6_rcv_saddr);
	socket_address(key.server, &a6, BPF_CORE_READ(sk, __sk_common.skc_rcv_saddr), v6);
	BPF_CORE_READ_INTO(&a6, sk, __sk_common.skc_v6_daddr);
	socket_address(key.client, &a6, BPF_CORE_READ(sk, __sk_common.skc_daddr), v6);
	struct flow *f = bpf_map_lookup_elem(&flows, &key);
	if (!f || f->mode != FLOW_SPLICED || f->splice.renewed == TIMES || f->closed_ns || flow_gated(s, f))
		return 0;
	if (is_due(f, tcp)) {
		begin_anew(tcp);
		f->splice.renewed++;
		f->splice.renewed_at = f->server.nxt;
	}
	if (f->splice.renewed < TIMES)
		bpf_seq_write(context->meta->seq, &f->splice.renewed, 1);
	return 0;
}
