/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * The maps of replay.bpf.c, and programs that do nothing: these are loaded in a moment, for tests that adopt a service
 * some hundred times (src/object/adoption/tests.rs).
 */
#include "../../bpf/replay/state.h"

SEC("tcx/ingress")
int ingress(struct __sk_buff *skb)
{
	return TCX_NEXT;
}

SEC("tcx/egress")
int egress(struct __sk_buff *skb)
{
	return TCX_NEXT;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(on_exit, struct task_struct *task)
{
	return 0;
}

SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(on_state, struct sock *sk, int old_state, int new_state)
{
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
