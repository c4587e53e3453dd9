/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Requests of user space. User space writes whole flows itself; the fields of `member` change one by one, here.
 */
#pragma once

#include "../lib/kernel.h"
#include "../lib/process.h"
#include "../intf/objects.h"
#include "state.h"

SEC("syscall")
int member_control(struct member_control *c)
{
	struct member *m = the_member();
	if (!m)
		return 0;
	c->result = 0;
	switch (c->op) {
	case MEMBER_LEASE:
		*(volatile __u64 *)&m->lease_until_ns = c->argument;
		break;
	case MEMBER_QUIESCENCE:
		*(volatile __u64 *)&m->quiescence_until_ns = c->argument;
		m->changes++;
		break;
	case MEMBER_GATE:
		m->gated = 1;
		break;
	case MEMBER_INCARNATION:
		m->incarnation = c->argument;
		m->main_pid = 0;
		m->stopping = 0;
		m->gated = 0;
		break;
	case MEMBER_MAIN:
		m->pid_namespace = own_pid_namespace();
		m->main_pid = c->argument;
		break;
	case MEMBER_STOPPING:
		m->stopping = c->argument;
		break;
	case MEMBER_CLOCK:
		m->unix_offset_ns = c->argument;
		break;
	case MEMBER_STORE:
		m->store = c->argument;
		break;
	case MEMBER_ACCEPTS:
		m->accepts = c->argument;
		break;
	case MEMBER_QUEUE_ROUND:
		m->queue_round++;
		break;
	case MEMBER_STRAY_ROUND:
		m->strays = 0;
		break;
	default:
		c->result = -EINVAL;
	}
	return 0;
}

/* The state comes before the number of the turn: the programs read the state only with the number. */
SEC("syscall")
int store_confirmed(struct store_confirmation *c)
{
	struct flow_key key = c->key;
	struct object_flow *f = bpf_map_lookup_elem(&object_flows, &key);
	c->result = -ENOENT;
	if (!f || f->mode != OBJECT_SERVED || f->unprotected || f->turn.number != c->number ||
	    f->turn.phase != OBJECT_BODY || f->turn.request_start != c->request_start)
		return 0;
	if (!c->has_record) {
		f->turn.is_guarded = 0;
		c->result = 0;
		return 0;
	}
	*(volatile __u32 *)&f->stored = c->state;
	barrier();
	*(volatile __u32 *)&f->stored_turn = c->number + 1;
	c->result = 0;
	return 0;
}
