/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Numbers of processes. A process has a number in its own PID namespace and another one in each
 * namespace above (pid_namespaces(7)). The kernel's programs see the number of the outermost
 * namespace, `serve` the number of its own: in a container the two differ.
 */
#pragma once

#include "kernel.h"

static __always_inline struct upid *number_at(struct pid *pid, __u32 level)
{
	return (void *)pid + bpf_core_field_offset(struct pid, numbers) +
	       level * bpf_core_type_size(struct upid);
}

/* The number of a task's process in a PID namespace; 0 if the process is not to be seen there. */
static __always_inline __u32 process_number(struct task_struct *task, __u32 namespace)
{
	struct pid *pid = BPF_CORE_READ(task, signal, pids[PIDTYPE_TGID]);
	__u32 level = BPF_CORE_READ(pid, level);
	for (__u32 i = 0; i < PID_LEVELS_MOST && i <= level; i++) {
		struct upid *number = number_at(pid, level - i);
		if (BPF_CORE_READ(number, ns, ns.inum) == namespace)
			return BPF_CORE_READ(number, nr);
	}
	return 0;
}

/* The PID namespace of the process that runs this program. */
static __always_inline __u32 own_pid_namespace(void)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct pid *pid = BPF_CORE_READ(task, signal, pids[PIDTYPE_TGID]);
	__u32 level = BPF_CORE_READ(pid, level);
	struct upid *number = number_at(pid, level);
	return BPF_CORE_READ(number, ns, ns.inum);
}
