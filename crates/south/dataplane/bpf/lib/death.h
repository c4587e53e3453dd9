/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Deaths of a server's processes, and the gate that a death shuts.
 */
#pragma once

#include "kernel.h"
#include "../intf/crash.h"

/* One thread's own end is not the process's. */
static __always_inline bool ends_process(struct task_struct *task)
{
	return !task->signal->live.counter || (task->signal->flags & SIGNAL_GROUP_EXIT);
}

static __always_inline bool is_crash(struct task_struct *task, __u32 number, __u32 main_pid, __u32 policy)
{
	__u32 signal = task->exit_code & 0x7f, status = (task->exit_code >> 8) & 0xff;
	bool main = number && number == main_pid;
	if (main)
		return signal || status;
	if (policy == CRASH_MAIN)
		return false;
	if (signal)
		return signal != SIGPIPE;
	return status && policy == CRASH_ANY;
}

/* Sets the flag of one byte. Whether the flag was unset: of several threads that end on several processors, one sets
 * the flag. The kernel's atomic operations have at least four bytes: the others of the word stay as they are. */
static __always_inline bool set_flag(void *structure, __u32 at)
{
	_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the lowest byte of a word is the first");
	__u32 *word = structure + (at & ~3);
	__u32 bit = 1u << (at & 3) * 8;
	return !(__sync_fetch_and_or(word, bit) & bit);
}
