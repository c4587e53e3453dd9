/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * TCP options.
 */
#pragma once

#include "kernel.h"
#include "bytes.h"
#include "packet.h"
#include "edit.h"

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
#define WINDOW_SCALE_MAX 14 /* RFC 7323 2.3: a larger shift is taken for this */
#define WINDOW_SCALE_ABSENT 0xff

struct options {
	__u8 timestamps; /* offset of the option in the TCP header; 0: absent */
	__u8 sack;
	__u8 sack_len;
	__u8 sack_permitted;
	__u8 mss;
	__u8 window_scale; /* at most WINDOW_SCALE_MAX, or WINDOW_SCALE_ABSENT */
	__u8 authenticated; /* MD5 or AO */
	__u8 stripped;
	__u8 multipath;
	__u8 window_scale_at; /* offset of the option; 0: absent */
};

struct option_walk {
	struct header_edit *h;
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
	struct header_edit *h = w->h;
	__u32 i = w->i;
	if (i >= w->header_len || i >= TCP_HEADER_MAX)
		return 1;
	__u8 kind = h->tcp[in_header(i)];
	if (kind == OPTION_END)
		return 1;
	if (kind == OPTION_NOP) {
		w->i = i + 1;
		return 0;
	}
	if (i + 1 >= w->header_len)
		return 1;
	__u8 len = h->tcp[in_header(i + 1)];
	if (len < 2 || i + len > w->header_len)
		return 1;
	if (kind == OPTION_TIMESTAMPS && len == 10)
		w->o.timestamps = i;
	else if (kind == OPTION_MSS && len == 4)
		w->o.mss = i;
	else if (kind == OPTION_WINDOW_SCALE && len == 3) {
		__u8 shift = h->tcp[in_header(i + 2)];
		w->o.window_scale = shift > WINDOW_SCALE_MAX ? WINDOW_SCALE_MAX : shift;
		w->o.window_scale_at = i;
	} else if (kind == OPTION_SACK_PERMITTED && len == 2)
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
			h->edit[in_header(i + j)] = OPTION_NOP;
		}
		w->o.stripped = 1;
		w->o.multipath |= kind == OPTION_MPTCP;
	}
	w->i = i + len;
	return 0;
}

/* Find the options of the header in `h->tcp`; with `strip`, blank those that we cannot carry
 * in `h->edit`. Malformed options end the walk: what came before them counts. A function of its own for the verifier,
 * which would follow each option's way through all that comes behind. */
__noinline int walk_options(struct header_edit *h, __u32 header_len, int strip, struct options *found)
{
	struct option_walk w = {
		.h = h, .header_len = header_len, .i = TCP_HEADER_MIN, .strip = strip,
		.o = { .window_scale = WINDOW_SCALE_ABSENT },
	};
	if (!h || !found)
		return 0;
	/* What nearly every data segment carries: NOP, NOP, timestamps (RFC 7323 appendix A). */
	if (header_len >= 32 && *(__u32 *)&h->tcp[TCP_HEADER_MIN] == bpf_htonl(0x0101080a)) {
		w.o.timestamps = TCP_HEADER_MIN + 2;
		w.i = 32;
	}
	if (w.i < header_len)
		bpf_loop(TCP_OPTIONS_MAX, walk_option, &w, 0);
	*found = w.o;
	return 0;
}

static __always_inline struct options find_options(struct header_edit *h, const struct packet *p, bool strip)
{
	struct options found = {};
	walk_options(h, p->header_len, strip, &found);
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
	return o->window_scale == WINDOW_SCALE_ABSENT ? 0 : o->window_scale;
}
