/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Connections: what either side was told, and the state of a replay and of a record.
 */
#pragma once

#include "../lib/kernel.h"
#include "../lib/packet.h"
#include "digest.h"
#include "tuple.h"

enum flow_mode {
	FLOW_OBSERVED = 0, /* its server socket is the one that the client opened */
	FLOW_SPLICING = 1, /* fabricated SYN is out, the SYN-ACK of the new server is awaited */
	FLOW_SPLICED = 2,  /* bound to a later server's socket: everything is translated */
	FLOW_DIVERGED = 3, /* replay differed from what the client was sent: nothing leaves */
};

/* Why a flow has no complete record. Same codes as protocol::UnprotectedReason. */
enum unprotected {
	PROTECTED = 0,
	UNPROTECTED_CONNECTION_LIMIT = 1,
	UNPROTECTED_TOTAL_LIMIT = 2,
	UNPROTECTED_MIRROR_LOST = 3,
	UNPROTECTED_LOGGER_RESTARTED = 4,
	UNPROTECTED_TOO_MANY_CONNECTIONS = 5,
	UNPROTECTED_HANDSHAKE_NOT_SEEN = 6,
	UNPROTECTED_UNSUPPORTED_OPTION = 7,
	UNPROTECTED_LOGGER_LOST = 8,
	UNPROTECTED_AWAITS_TURN = 9, /* recorded again from the client's next turn on */
};

/* What the client told us. Written at ingress only. */
struct client_half {
	__u32 isn;
	__u32 nxt;   /* end of the highest segment seen (its SND.NXT) */
	__u32 ack;   /* outstream that it has acknowledged, client space */
	__u32 tsval; /* newest TSval; 0 of one that the server has opened, and that has not spoken since */
	__u16 window; /* newest window field, unscaled */
	__u8 window_scale;
	__u8 reset; /* it sent a RST while nobody served it */
	__u32 response_start; /* server.nxt when its newest byte came: the response to that byte begins there */
};

/* What the client was told. Written at egress only; client space. */
struct server_half {
	__u64 sent; /* sequence numbers after the ISN's that were sent so far: nxt without its bounds */
	__u32 isn;
	__u32 nxt;  /* end of the outstream sent so far */
	__u32 ack;  /* instream acknowledged so far */
	__u32 rcv_wnd_edge; /* right edge of the window offered (RCV.NXT + RCV.WND) */
	__u32 tsval;
	__u8 window_scale;
	__u8 timestamps; /* the option was agreed in the handshake */
	__u8 sack;       /* so was this one */
	__u8 synack_seen;
};

/* The binding to a later server's socket. Written by control while splicing, then at egress. */
struct splice_half {
	__u32 instream;  /* sequence number of the fabricated SYN: replay begins one after it */
	__u32 outstream; /* client-space number of the first byte that the new server will send */
	__u32 delta_seq; /* client space = server space + delta_seq */
	__u32 ts_delta;  /* client's view of TSval = server's TSval + ts_delta */
	__u32 first_tsval; /* of the SYN-ACK, server space: nothing older may be echoed */
	__u32 isn;       /* the new server's ISN */
	__u32 nxt;       /* end of what the new server sent, server space */
	__u32 una;       /* newest acknowledgement that the new server has read, server space */
	__u32 ack;       /* instream acknowledged by the new server */
	__u32 rcv_wnd_edge; /* right edge of its window */
	__u8 window_scale;
	__u8 renewed; /* how often its socket has begun anew, see renew.h */
	__u8 ack_withheld; /* an acknowledgement is withheld from the server, see zero_window.h */
	__u8 pad[1];
	__u32 renewed_at; /* end of what the client had been sent when its socket began anew first; client space */
};

/* The server's output since the client's newest byte. */
enum response {
	RESPONSE_NONE = 0, /* or an interim response, or what may become one: the request goes on */
	RESPONSE_BEGUN = 1,
	RESPONSE_OTHER_PROTOCOL = 2, /* 101: all that follows belongs together */
};

/* Comparison of a replayed outstream with its record; client space. */
struct verify_half {
	__u64 head_sent; /* server.sent when this turn began */
	__u32 head_next; /* where the record of this turn's output goes on */
	__u32 head_left; /* bytes of it still to be recorded */
#ifdef OUTLIVE_NEXT_VERSION
	__u64 next_version;
#endif
	__u32 heads_to;  /* where what was to be recorded last ended */
	__u32 request_end; /* how far the client had sent when this response began */
	__u32 end;       /* compare up to here */
	__u32 compared;  /* bytes compared and equal */
	__u32 tolerated; /* bytes that differed where they may (a Date header) */
	__u32 unverified; /* bytes below `end` for which there was no record */
	__u32 behind;    /* of those compared, what lies behind what a digest is compared of */
	__u32 diverged_at; /* first byte that differed, or the FIN that came too early */
	__u8 ended_early;
	__u8 response; /* enum response; with a log link only */
	__u8 by_digest; /* something before `diverged_at` differed */
	__u8 pad[1];
};

/* Sequence numbers from `start` up to before `end`. */
struct range {
	__u32 start;
	__u32 end;
};

/* Ranges in an acknowledgement of the logger. */
#define LINK_RANGES 3
/* SACK blocks in one header (RFC 2018 3). */
#define SERVER_BLOCKS 4
/* Pure ACKs that the strategy "lazy" defers; of more, the newest take each other's place. */
#define DEFERRED_ACKS 8

/* A flow whose host has died, made anew from its record (restored.h). */
enum restored {
	RESTORED_NOT = 0,         /* this host knows all that the client was sent */
	RESTORED_UNCONFIRMED = 1, /* how far the client has received, and that the record is whole, is not known */
	RESTORED_CONFIRMED = 2,   /* the client has shown both; segments that were on their way then come later */
	RESTORED_GAP_KNOWN = 3,   /* as unconfirmed; but what the client has behind a gap is known */
	RESTORED_GAP_UNKNOWN = 4, /* the client has shown that the record is whole, and not what it has behind a gap;
				   * without selective acknowledgements it never will */
};

/* With a log link: what the logger has of the instream, and what the server's TCP has, so that the
 * client is told of no more than both (clamp.h, link.h). */
struct log_half {
	__u64 counter; /* of the newest acknowledgement */
	__u64 meetings; /* see clamp.h; of no meaning */
	__u64 copied_ns; /* when the newest copy left */
	__u64 early_ack_ns; /* when a pure ACK of the server's TCP last acknowledged bytes that the logger lacked (read_cursors.h) */
	__u32 stable;  /* stable_seq: the lowest number that the logger is not known to have */
	__u32 ack;     /* what the server's TCP acknowledged; after a splice, the new server's */
	__u32 rcv_wnd_edge; /* right edge of its window */
	__u32 tsecr;   /* what the client's timestamps are echoed with: TS.Recent (RFC 7323 4.3) of one who
			* has received what the client was told */
	__u32 ifindex; /* where its segments leave */
	__u32 copied_ack; /* the client's acknowledgement in the newest copy */
	__u32 copied;  /* end of the newest copy of its instream */
	__u32 read_cursor; /* number of this flow's read cursor, from 1; 0: none is known (read_cursors.h) */
	struct range ranges[LINK_RANGES]; /* what the logger has beyond `stable` */
	struct range blocks[SERVER_BLOCKS]; /* what the server has beyond `ack` */
	__u32 deferred[DEFERRED_ACKS]; /* pure ACKs that wait for the logger */
	__u8 l2[14]; /* link header of the server's newest segment */
	__u8 ttl;    /* its TTL or hop limit */
	__u8 ece;    /* its ECE flag */
	__u8 range_count;
	__u8 block_count;
	__u8 deferred_count;
	__u8 withheld; /* a block was kept from the client since it was last told */
	__u8 ended;    /* there is no record any more, and nothing to be recovered */
	__u8 restored; /* enum restored */
	__u8 stateful; /* of a restored flow: its server replays a record of its own, see restored.h */
	__u8 snd_beyond_stable; /* its client has sent beyond `stable`, and has not retransmitted from there yet */
	__u32 former_ack; /* the highest `ack` of its earlier servers: bytes before it may have been answered */
	__u32 client_received; /* of a restored flow: end of what the client has of its dead host, also behind a gap */
	__u32 client_wnd_edge; /* right edge of the client's window then: the dead host may have sent up to here */
	__u32 doubt; /* if is_doubtful: what the client says from there on may have been answered by the dead
		      * host, without a record of that */
	__u8 lookup_missed; /* its socket was not found once, see egress.h */
	__u8 all_acked; /* the server's newest payload acknowledges all that its client has sent */
	__u8 is_doubtful; /* of a restored flow: heads of answers are recorded */
	__u8 is_unrecorded; /* nobody has recorded what the client has received from `unrecorded_from` on */
	__u32 unrecorded_from;
};

/* What has become of the socket of a living server: the kernel finishes it, no gate stops that. */
enum closing {
	NOT_CLOSING = 0,
	CLOSES_BY_FIN = 1,
	CLOSED_BY_RST = 2, /* of one of the two, without the server's FIN */
	HALF_CLOSED = 3, /* by a later life of the server, which may read on: no end yet (latch.h) */
};

struct flow {
	__u64 id; /* in the order of the handshakes */
	__u64 closed_ns; /* the server's socket is gone since then; 0: it lives */
	__u64 given_ns; /* when it was last given to a server: its SYN, or to a later one, to be spliced */
#ifdef OUTLIVE_NEXT_VERSION
	__u64 next_version;
#endif
	__u32 incarnation; /* the life of the server that owns the socket */
	__u32 ifindex; /* where the client's packets arrive */
	__u8 mode;
	__u8 unprotected;
	__u8 server_closing; /* enum closing */
	__u8 syn_flags; /* with TCP_ACK: it is the server that has opened the connection */
	__u16 syn_window;
	__u8 syn_options_len;
	__u8 whole_segments; /* it may not be sent what it has in part (see egress.h) */
	struct client_half client;
	struct server_half server;
	struct splice_half splice;
	struct verify_half verify;
	struct digest_half digest;
	struct log_half log;
	__u8 syn_options[TCP_OPTIONS_MAX];
};
