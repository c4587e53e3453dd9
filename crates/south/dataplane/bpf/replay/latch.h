/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * The death latch (FT-TCP VI.A): a server that is killed closes its connections, and the
 * kernel says so to the clients. Asking at egress whose packet it is catches only a third of
 * these FINs and RSTs. Instead the gate is shut before the first of them can be built:
 *
 *  - sched_process_exit comes before a task's files are closed. If the task belongs to the
 *    service's cgroup and leaves as a crash does, the whole service is gated.
 *  - inet_sock_set_state tells which connections a *living* server closes by itself: those
 *    stay open at the gate, the kernel finishes them. It also tells when the server listens
 *    again, and when a connection is over.
 *
 * A crash is: any process of the service killed by a signal (for other processes than the main
 * one, SIGPIPE excepted: that is a client's going away), the main process leaving with a
 * status other than 0; any process with such a status if the policy says so. Another policy
 * leaves all but the main process to their parents: what such a process leaves behind ends as
 * a living server's connections do.
 *
 * Both tracepoints are host-wide: the first is keyed by cgroup, the second by network
 * namespace, address and port.
 */
#pragma once

#include "../lib/kernel.h"
#include "../lib/packet.h"
#include "../lib/death.h"
#include "../lib/process.h"
#include "../lib/socket.h"
#include "../intf/flow.h"
#include "../intf/service.h"
#include "../intf/mirror.h"
#include "../intf/event.h"
#include "state.h"
#include "mirror.h"
#include "clamp.h"

/* Whether the gate was open. */
static __always_inline bool shut_gate(struct service *s)
{
	return set_flag(s, offsetof(struct service, gated));
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(on_exit, struct task_struct *task)
{
	struct service *s = the_service();
	if (!s || !s->cgroup_id || s->stopping || s->gated || abandoned(s))
		return 0;
	if (bpf_get_current_ancestor_cgroup_id(s->cgroup_level) != s->cgroup_id)
		return 0;
	if (!ends_process(task))
		return 0;
	__u32 number = process_number(task, s->pid_namespace);
	if (!is_crash(task, number, s->main_pid, s->crash_policy))
		return 0;
	if (!shut_gate(s))
		return 0;
	s->gated_ns = bpf_ktime_get_ns();
	struct event *e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);
	if (!e) {
		count(COUNT_EVENTS_LOST);
		return 0;
	}
	__builtin_memset(e, 0, sizeof(*e));
	e->timestamp_ns = s->gated_ns;
	e->kind = EVENT_DEATH;
	e->pid = number;
	e->status = task->exit_code;
	e->incarnation = s->incarnation;
	bpf_ringbuf_submit(e, BPF_RB_FORCE_WAKEUP);
	return 0;
}

/* Is it this flow's server socket? A SYN may have come for the same ends since it was taken out of the
 * kernel's table: what the socket has received began with another number. */
static __always_inline bool is_socket_of(const struct flow *f, struct sock *sk)
{
	__u32 nxt = BPF_CORE_READ((struct tcp_sock *)sk, rcv_nxt);
	__u32 received = BPF_CORE_READ((struct tcp_sock *)sk, bytes_received);
	__u32 isn = f->mode == FLOW_OBSERVED ? f->client.isn : f->splice.instream;
	return nxt - received == isn + 1;
}

/* After a half-close (shutdown(2)) a server may read on. A replay still has record for that server, and no other path would ever
 * deliver the record. So the half-close of a later life is no end. A close that follows changes no state, but the tracepoint
 * tells a close like a change. */
static __always_inline bool reads_on(struct flow *f, struct sock *sk, int new_state)
{
	bool reads = !(sk->sk_shutdown & RCV_SHUTDOWN);
	if (new_state == TCP_FIN_WAIT2)
		return reads || f->server_closing != HALF_CLOSED;
	if (new_state != TCP_FIN_WAIT1 || !reads || f->mode != FLOW_SPLICED)
		return false;
	f->server_closing = HALF_CLOSED;
	return true;
}

static __always_inline void connection_closed(struct service *s, const struct flow_key *key,
					      struct flow *f, bool orderly)
{
	/* A spliced connection's TIME_WAIT and late segments still need translation; with a log link
	 * the client may have to be told what was received: the sweep takes it later. */
	if (linked(s, f)) {
		f->closed_ns = bpf_ktime_get_ns();
		close_record(f, !orderly);
		return;
	}
	mirror_marker(f, MIRROR_CLOSED, CLOSED_FINISHED, 0);
	/* The RST that follows is not one to a stray, which a recovery drops. */
	bool reaches_client = orderly || !strays_dropped(s);
	if (f->mode == FLOW_OBSERVED && reaches_client) {
		bpf_map_delete_elem(&flows, key);
		return;
	}
	f->closed_ns = bpf_ktime_get_ns();
}

SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(on_state, struct sock *sk, int old_state, int new_state)
{
	struct service *s = the_service();
	if (!s || sk->sk_protocol != IPPROTO_TCP)
		return 0;
	if (sk->__sk_common.skc_net.net->net_cookie != s->netns_cookie)
		return 0;
	struct flow_key key = {};
	bool v6 = sk->__sk_common.skc_family == AF_INET6;
	/* skc_num is 0 already when a socket is closed with unread data: inet_sport is not. */
	key.server_port = BPF_CORE_READ((struct inet_sock *)sk, inet_sport);
	struct in6_addr a6;
	BPF_CORE_READ_INTO(&a6, sk, __sk_common.skc_v6_rcv_saddr);
	socket_address(key.server, &a6, sk->__sk_common.skc_rcv_saddr, v6);
	if (new_state == TCP_LISTEN) {
		if (is_listener(key.server_port, key.server))
			emit_event(s, EVENT_LISTENING, NULL, NULL, 0, 0);
		return 0;
	}
	if (new_state != TCP_FIN_WAIT1 && new_state != TCP_FIN_WAIT2 && new_state != TCP_LAST_ACK &&
	    new_state != TCP_CLOSING && new_state != TCP_CLOSE)
		return 0;
	if (came_second(sk, old_state, new_state))
		return 0;
	BPF_CORE_READ_INTO(&a6, sk, __sk_common.skc_v6_daddr);
	socket_address(key.client, &a6, sk->__sk_common.skc_daddr, v6);
	key.client_port = sk->__sk_common.skc_dport;
	struct flow *f = bpf_map_lookup_elem(&flows, &key);
	/* Gated: it is the death that closes it, or the removal of what it left. */
	if (!f || flow_gated(s, f) || f->mode == FLOW_SPLICING || !is_socket_of(f, sk))
		return 0;
	if (reads_on(f, sk, new_state))
		return 0;
	bool orderly = f->server_closing; /* else one of the two has reset it */
	if (!is_closing(f))
		f->server_closing = new_state == TCP_CLOSE && !orderly ? CLOSED_BY_RST : CLOSES_BY_FIN;
	if (new_state == TCP_CLOSE && !f->closed_ns)
		connection_closed(s, &key, f, orderly);
	return 0;
}
