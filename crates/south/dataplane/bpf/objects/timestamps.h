/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Keyed initial sequence numbers, and timestamps that carry the state of a download. The crate `objects` is the model:
 * `isn`, `timestamp`, `timestamp::index`.
 */
#pragma once

#include "../lib/kernel.h"
#include "../lib/siphash.h"
#include "../intf/objects.h"
#include "state.h"

#define SLOT_NS (16ULL * 1000 * 1000 * 1000)
#define SLOT_SHIFT 28
#define SLOTS_AHEAD_MAX 3
#define INDEX_SHIFT 26
#define KIND_SHIFT 24
#define INDEX_MASK 63
#define MAX_LEAD 30
#define AHEAD_MOST 2 /* an echo of the last index of a server that died */
#define SCARCE_LEAD 16
#define LONGEST_ROUND_TRIP (1U << 28)
/* The header of a first response must be shorter to travel in a timestamp. */
#define HEADER_MOST (1U << 11)
/* How far behind the beginning of a later body an acknowledgement still tells the beginning. */
#define NEAR_POSITIONS (1U << 15)
#define NEAR_LIMIT (24U << 10)
#define FIRST_LIMIT (3ULL << 30)
#define FAR_POSITIONS (1U << 19)
#define FAR_LIMIT (FAR_POSITIONS - (64U << 10))

enum hash_use { USE_ISN = 0, USE_AGREED = 1, USE_FIRST = 2, USE_LATER = 3, USE_UNPROTECTED = 4, USE_STORED = 5 };
enum timestamp_kind { KIND_AGREED = 0, KIND_FIRST = 1, KIND_LATER = 2, KIND_STORED = 3 };

/* objects::PoolKey::hash. */
static __always_inline __u32 keyed_hash(struct object_scratch *s, const struct pool_key *key, __u32 use,
					const struct flow_key *flow, __u32 a, __u32 b, __u32 c, __u32 d)
{
	__builtin_memcpy(s->sip.words, flow->client, 32);
	s->sip.words[4] = (__u64)flow->client_port | (__u64)flow->server_port << 16 | (__u64)use << 32;
	s->sip.words[5] = a | (__u64)b << 32;
	s->sip.words[6] = c | (__u64)d << 32;
	return siphash(&s->sip, 7, key->k0, key->k1);
}

static __always_inline __u8 slot_now(const struct member *m)
{
	return ((bpf_ktime_get_boot_ns() + m->unix_offset_ns) / SLOT_NS) & 15;
}

/* objects::isn::Slot::behind: the slot of a connection of the same addresses as a connection of the slot `last`. */
static __always_inline __u8 slot_behind(__u8 now, __u8 last)
{
	return ((last - now) & 15) < SLOTS_AHEAD_MAX ? (last + 1) & 15 : now;
}

static __always_inline __u32 keyed_isn(struct object_scratch *s, const struct member *m, const struct flow_key *flow,
				       __u8 slot)
{
	return keyed_hash(s, &m->keys[0], USE_ISN, flow, 0, 0, 0, 0) + ((__u32)slot << SLOT_SHIFT);
}

/* objects::timestamp::number_bits. */
static __always_inline __u32 number_bits(__u32 told)
{
	return told * 0x9e3779b1U >> 15;
}

/* The lower 26 bits while no response is under way, with or without protection. With protection, the tag is also of the
 * number at which the next request begins: `number_bits` is added. */
static __always_inline __u32 agreed_state(struct object_scratch *s, const struct pool_key *key, __u32 use,
					  const struct flow_key *flow, __u8 slot, __u8 options)
{
	__u32 tag = keyed_hash(s, key, use, flow, slot, options, 0, 0) & 0x1ffff;
	return (__u32)KIND_AGREED << KIND_SHIFT | (__u32)slot << 20 | (__u32)options << 17 | tag;
}

/* The same, of the turn of this number (modulo 8), whose record is in the store. */
static __always_inline __u32 stored_state(struct object_scratch *s, const struct pool_key *key,
					  const struct flow_key *flow, __u8 slot, __u8 options, __u8 turn)
{
	__u32 tag = keyed_hash(s, key, USE_STORED, flow, slot, options, turn, 0) & 0x3fff;
	return (__u32)KIND_STORED << KIND_SHIFT | (__u32)slot << 20 | (__u32)options << 17 | (__u32)turn << 14 | tag;
}

/* objects::timestamp::version_word. */
static __always_inline __u32 version_word(__u32 version, __u64 first)
{
	return version + (__u32)first * 0x9e3779b1U + (__u32)(first >> 32) * 0x85ebca77U;
}

static __always_inline __u32 first_state(struct object_scratch *s, const struct member *m, const struct flow_key *flow,
					 const struct object_flow *f, __u32 header_len, __u32 version)
{
	__u32 tag = keyed_hash(s, &m->keys[0], USE_FIRST, flow, f->slot, f->options, header_len, version) & 63;
	return (__u32)KIND_FIRST << KIND_SHIFT | (__u32)f->slot << 20 | (__u32)f->options << 17 |
	       (header_len & (HEADER_MOST - 1)) << 6 | tag;
}

static __always_inline __u32 later_state(struct object_scratch *s, const struct member *m, const struct flow_key *flow,
					 const struct object_flow *f, __u32 body_start, __u32 version)
{
	__u32 distance = body_start - f->isn + ((__u32)f->slot << SLOT_SHIFT);
	__u32 state = (__u32)KIND_LATER << KIND_SHIFT | (__u32)f->options << 21 | (f->turn.number & 1) << 19;
	if (m->is_immutable)
		return state | (distance & (FAR_POSITIONS - 1));
	distance &= NEAR_POSITIONS - 1;
	__u32 tag = keyed_hash(s, &m->keys[0], USE_LATER, flow, f->options, distance, version, 0) & 15;
	return state | 1U << 20 | distance << 4 | tag;
}

/* The client's window scale and segment size, rounded down: 3 bits (objects::timestamp::ClientOptions). */
static __always_inline __u8 client_options(__u8 scale, __u16 segment_size)
{
	__u8 rounded = scale >= 8 ? 3 : scale == 7 ? 2 : scale == 6 ? 1 : 0;
	return rounded << 1 | (segment_size >= 1440);
}

#define SEGMENT_SIZE_LEAST 1300

/* Most bytes of a guarded request that are acknowledged: "GET ". Behind it the path begins with a slash, and one byte fewer
 * or more is seen. */
#define RELEASED_MOST 4

enum assigned { INDEX_NEW, INDEX_SAME, INDEX_EXHAUSTED };

/* `is_alone`: the segment has bytes, and the client has acknowledged all bytes before. */
static __always_inline enum assigned assign_index(struct echo_table *t, __u32 tsval, bool is_retransmission,
						  bool has_new_state, bool is_alone)
{
	__u8 lead = (t->newest - t->echoed) & INDEX_MASK;
	__u32 elapsed = tsval - t->tsvals[t->newest & (ECHO_ENTRIES - 1)];
	__u32 duration = t->scaled_round_trip / 8 / (lead < SCARCE_LEAD ? 16 : 4);
	t->newest_tsval = tsval;
	if (!has_new_state && !(is_retransmission && elapsed) && elapsed < (duration ? duration : 1))
		return INDEX_SAME;
	if (lead < MAX_LEAD + is_alone) {
		__u8 index = (t->newest + 1) & INDEX_MASK;
		t->tsvals[index & (ECHO_ENTRIES - 1)] = tsval;
		t->newest = index;
		return INDEX_NEW;
	}
	if (is_retransmission)
		t->tsvals[t->newest & (ECHO_ENTRIES - 1)] = tsval;
	return INDEX_EXHAUSTED;
}

/* What the server's TCP must read in the place of an echo. */
static __always_inline __u32 on_echo(struct echo_table *t, __u8 index, bool has_old_ack)
{
	__u8 ahead = (index - t->newest) & INDEX_MASK;
	if (!t->has_echo && ahead && ahead <= AHEAD_MOST && !has_old_ack) {
		t->newest = index;
		t->tsvals[index & (ECHO_ENTRIES - 1)] = t->newest_tsval;
	}
	__u8 behind = (t->newest - index) & INDEX_MASK;
	if (has_old_ack || behind > MAX_LEAD) {
		__u8 known = behind < MAX_LEAD ? behind : MAX_LEAD;
		return t->tsvals[(t->newest - known) & (ECHO_ENTRIES - 1)];
	}
	if (behind < ((t->newest - t->echoed) & INDEX_MASK)) {
		t->echoed = index;
		t->has_echo = 1;
	}
	__u32 tsval = t->tsvals[index & (ECHO_ENTRIES - 1)];
	__u32 sample = t->newest_tsval - tsval;
	if (sample > LONGEST_ROUND_TRIP)
		sample = LONGEST_ROUND_TRIP;
	__u32 scaled = t->scaled_round_trip;
	t->scaled_round_trip = scaled ? scaled - scaled / 8 + sample : sample * 8;
	return tsval;
}

/* Did a member of this pool write the timestamp for these two ends? Of the kinds with a full tag; with what meaning. */
enum echo_verdict { ECHO_FORGED, ECHO_AGREED, ECHO_BARE, ECHO_STORED, ECHO_WEAK };

static __always_inline enum echo_verdict judge_echo(struct object_scratch *s, const struct member *m,
						    const struct flow_key *flow, __u32 echo, __u32 seq)
{
	__u32 state = echo & ((1U << INDEX_SHIFT) - 1);
	__u8 kind = state >> KIND_SHIFT;
	if (kind != KIND_AGREED && kind != KIND_STORED)
		return ECHO_WEAK;
	__u8 slot = (state >> 20) & 15, options = (state >> 17) & 7;
	for (__u32 i = 0; i < 2; i++) {
		if (i >= m->key_count)
			break;
		if (kind == KIND_STORED) {
			if (stored_state(s, &m->keys[i], flow, slot, options, (state >> 14) & 7) == state)
				return ECHO_STORED;
			continue;
		}
		__u32 told = agreed_state(s, &m->keys[i], USE_AGREED, flow, slot, options) ^ state;
		/* Before the next request lies a keep-alive, and behind, with some bytes released, the rest of the request. */
		for (__u32 back = 0; back < 2 + RELEASED_MOST; back++)
			if (number_bits(seq + 1 - back) == told)
				return ECHO_AGREED;
		if (agreed_state(s, &m->keys[i], USE_UNPROTECTED, flow, slot, options) == state)
			return ECHO_BARE;
	}
	return ECHO_FORGED;
}
