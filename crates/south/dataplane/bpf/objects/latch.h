/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * The death latch: as for the mode `replay`, the gate is shut before the sockets of a server that dies are closed. And
 * the ends of connections: what is left of one stays for a while, so that a late packet of the client is not taken for a
 * packet of a connection that another member served.
 */
#pragma once

#include "../lib/kernel.h"
#include "../lib/packet.h"
#include "../lib/death.h"
#include "../lib/process.h"
#include "../lib/socket.h"
#include "../intf/objects.h"
#include "state.h"
#include "timestamps.h"

SEC("tp_btf/sched_process_exit")
int BPF_PROG(on_exit, struct task_struct *task)
{
	struct member *m = the_member();
	if (!m || !m->cgroup_id || m->stopping || m->gated)
		return 0;
	if (bpf_get_current_ancestor_cgroup_id(m->cgroup_level) != m->cgroup_id)
		return 0;
	if (!ends_process(task))
		return 0;
	__u32 number = process_number(task, m->pid_namespace);
	if (!is_crash(task, number, m->main_pid, m->crash_policy))
		return 0;
	if (!set_flag(m, offsetof(struct member, gated)))
		return 0;
	m->gated_ns = bpf_ktime_get_ns();
	struct object_event *e = bpf_ringbuf_reserve(&object_events, sizeof(*e), 0);
	if (!e) {
		count(OBJECTS_EVENTS_LOST);
		return 0;
	}
	__builtin_memset(e, 0, sizeof(*e));
	e->timestamp_ns = m->gated_ns;
	e->kind = OBJECT_DEATH;
	e->pid = number;
	e->status = task->exit_code;
	e->incarnation = m->incarnation;
	bpf_ringbuf_submit(e, BPF_RB_FORCE_WAKEUP);
	return 0;
}

static __always_inline void bury(const struct flow_key *key, const struct object_flow *f)
{
	struct object_tombstone t = {
		.closed_ns = bpf_ktime_get_ns(),
		.delta = f->delta,
		.slot = f->slot,
		.tsval = f->echoes.newest_tsval,
		.value = (((__u32)f->echoes.newest + 1) & INDEX_MASK) << INDEX_SHIFT | f->bare,
	};
	if (f->mode == OBJECT_SERVED)
		bpf_map_update_elem(&tombstones, key, &t, BPF_ANY);
	bpf_map_delete_elem(&object_flows, key);
}

SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(on_state, struct sock *sk, int old_state, int new_state)
{
	struct member *m = the_member();
	if (!m || sk->sk_protocol != IPPROTO_TCP)
		return 0;
	if (sk->__sk_common.skc_net.net->net_cookie != m->netns_cookie)
		return 0;
	if (new_state != TCP_LISTEN && new_state != TCP_CLOSE)
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
			tell(m, OBJECT_LISTENING, NULL, 0, 0);
		return 0;
	}
	if (m->gated || came_second(sk, old_state, new_state))
		return 0;
	BPF_CORE_READ_INTO(&a6, sk, __sk_common.skc_v6_daddr);
	socket_address(key.client, &a6, sk->__sk_common.skc_daddr, v6);
	key.client_port = sk->__sk_common.skc_dport;
	struct object_flow *f = bpf_map_lookup_elem(&object_flows, &key);
	if (f && f->mode != OBJECT_REVIVING && f->incarnation == m->incarnation)
		bury(&key, f);
	return 0;
}
