/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Everything that the programs in the kernel and the Rust side share. Rust never copies this
 * by hand: the loader's types are generated from the compiled object's BTF. A change of any
 * layout here needs a new LAYOUT_VERSION, because pinned maps outlive the process that made
 * them.
 *
 * Sequence numbers are in host byte order. "Client space" means: as the client sees it, for
 * the whole life of the connection. "Server space" means: as the present server socket sees
 * it. The instream has the same numbers in both; the outstream differs by splice.delta_seq.
 */
#pragma once

/* Counts from the first release on. */
#define LAYOUT_VERSION 14
/* Addresses of a service, each port of a range counted. */
#define MOST_ADDRESSES 1024

/* Options of a TCP header: at most 40 bytes (RFC 9293 3.1). */
#define TCP_OPTIONS_MAX 40
/* Outstream bytes compared in one step, see verify.h. */
#define EXPECT_CHUNK 512

/* A connection, by its two ends. Addresses are IPv6 or v4-mapped, ports in network order. */
struct flow_key {
	__u8 client[16];
	__u8 server[16];
	__be16 client_port;
	__be16 server_port;
};

/* An address:port under protection. */
struct endpoint {
	__u8 address[16];
	__be16 port;
	__u16 pad;
};

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
	__u32 spoken; /* server.nxt when its newest byte came: what is said from there on answers it */
};

/* What the client was told. Written at egress only; client space. */
struct server_half {
	__u64 sent; /* sequence numbers after the ISN's that were sent so far: nxt without its bounds */
	__u32 isn;
	__u32 nxt;  /* end of the outstream sent so far */
	__u32 ack;  /* instream acknowledged so far */
	__u32 edge; /* right edge of the window offered (RCV.NXT + RCV.WND) */
	__u32 tsval;
	__u8 window_scale;
	__u8 timestamps; /* the option was agreed in the handshake */
	__u8 sack;       /* so was this one */
	__u8 answered;   /* its SYN-ACK was seen */
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
	__u32 edge;      /* right edge of its window */
	__u8 window_scale;
	__u8 renewed; /* how often its socket has begun anew, see renew.h */
	__u8 held; /* an acknowledgement is held back from the server, see no_room.h */
	__u8 pad[1];
	__u32 renewed_at; /* end of what the client had been sent when its socket began anew first; client space */
};

/* What the server has said since the client spoke last. */
enum said {
	SAID_NOTHING = 0, /* or an interim response, or what may become one: the request goes on */
	SAID_ANSWER = 1,
	SAID_OTHER_PROTOCOL = 2, /* 101: all that follows belongs together */
};

/* Comparison of a replayed outstream with its record; client space. */
struct verify_half {
	__u64 head_sent; /* server.sent when this turn began */
	__u32 head_next; /* where the record of this turn's output goes on */
	__u32 head_left; /* bytes of it still to be recorded */
	__u32 heads_to;  /* where what was to be recorded last ended */
	__u32 asked;     /* how far the client had sent when this answer began */
	__u32 end;       /* compare up to here */
	__u32 compared;  /* bytes compared and equal */
	__u32 tolerated; /* bytes that differed where they may (a Date header) */
	__u32 unverified; /* bytes below `end` for which there was no record */
	__u32 behind;    /* of those compared, what lies behind what a digest is compared of */
	__u32 diverged_at; /* first byte that differed, or the FIN that came too early */
	__u8 ended_early;
	__u8 said; /* enum said; with a log link only */
	__u8 by_digest; /* something before `diverged_at` differed */
	__u8 pad[1];
};

/* Outstream bytes that a digest folds at once, aligned in client space; where it only samples, so many of each so many
 * (digest.h). */
#define DIGEST_CHUNK 512
#define DIGEST_SAMPLE 64
#define DIGEST_UNIT 32768
/* A logger on another machine is told a digest at least once in so many bytes, for a host that takes over. */
#define DIGEST_TOLD 65536

/* Of the outstream from `base` up to before `next`, client space. Equal ones with the same ends are of equal bytes. */
struct digest {
	__u64 folded; /* of whole chunks */
	__u64 sum;    /* of the chunk that `next` is in */
	__u32 base;
	__u32 next;
};

enum digest_comparison {
	COMPARES_NOT = 0,
	COMPARES = 1, /* `now` has to become what `acked` and `sent` are */
	HAS_COMPARED = 2, /* it has become `sent` */
};

enum sampling {
	SAMPLED = 1,
	TURN_SAMPLED = 2,
};

/* What the server says, and has to say again (digest.h). */
struct digest_half {
	struct digest now; /* of what it has said; in a replay it begins anew */
	__u32 sampled_from; /* what lies before it is digested whole */
	__u8 taken;    /* this flow has digests */
	__u8 sampled;  /* enum sampling: `sampled_from` is set; and this turn began behind that */
	__u8 comparison; /* enum digest_comparison */
	__u8 held;     /* how often the server has repeated what waits for that */
	struct digest newer; /* what becomes of `acked` when the client has acknowledged more */
	struct digest acked; /* of what earlier servers have said, as far as the client is known to have acknowledged it */
	struct digest sent;  /* of all that they have said */
	struct digest turn;  /* where this turn begins */
	struct digest wanted; /* of what they had said before a request of the client, which waits for that */
	__u32 wants; /* `wanted` is still to be compared. Set from outside, reset at egress */
	__u32 told;  /* end of what a logger on another machine was told of when the client had heard that */
	__u32 changes; /* of `now`: odd while it is under way, for readers on other processors */
	__u32 pad;
};

/* Unknown to those whose bytes are digested. */
struct digest_key {
	__u64 point; /* less than 2^61 - 1 */
	__u64 place_factor;
	__u64 place_offset;
	__u64 factors[DIGEST_CHUNK / 4];
	__u64 seed[2]; /* what all that is made of: for a host that takes over */
};

/* What may be digested whole: so much on each processor. */
struct digest_budget {
	__u64 filled_ns;
	__u64 left; /* bytes */
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
/* Pure ACKs that the strategy "lazy" holds; of more, the newest take each other's place. */
#define HELD_ACKS 8

/* A flow whose host has died, made anew from its record (restored.h). */
enum restored {
	RESTORED_NOT = 0,    /* this host knows all that the client was sent */
	RESTORED_SILENT = 1, /* what the client had heard, and that the record is whole, is not known */
	RESTORED_HEARD = 2,  /* the client has said all that; what was on its way then comes later */
	RESTORED_TOLD = 3,   /* as silent; but what the client has behind a hole is known */
	RESTORED_UNTOLD = 4, /* the client has shown that the record is whole, and has not said what it has behind
			      * a hole; without selective acknowledgements it never will */
};

/* With a log link: what the logger has of the instream, and what the server's TCP has, so that the
 * client is told of no more than both (clamp.h, link.h). */
struct log_half {
	__u64 counter; /* of the newest acknowledgement */
	__u64 meetings; /* see clamp.h; of no meaning */
	__u64 copied_ns; /* when the newest copy left */
	__u64 hasty_ns; /* when the server's TCP said last by itself that it has what the logger had not (notes.h) */
	__u32 stable;  /* stable_seq: the lowest number that the logger is not known to have */
	__u32 ack;     /* what the server's TCP acknowledged; after a splice, the new server's */
	__u32 edge;    /* right edge of its window */
	__u32 tsecr;   /* what the client's timestamps are echoed with: TS.Recent (RFC 7323 4.3) of one who
			* has received what the client was told */
	__u32 ifindex; /* where its segments leave */
	__u32 told;    /* what the logger was told that the client has acknowledged */
	__u32 copied;  /* end of the newest copy of its instream */
	__u32 note;    /* which of the notes is this flow's, from 1; 0: none is known (notes.h) */
	struct range ranges[LINK_RANGES]; /* what the logger has beyond `stable` */
	struct range blocks[SERVER_BLOCKS]; /* what the server has beyond `ack` */
	__u32 held[HELD_ACKS];
	__u8 l2[14]; /* link header of the server's newest segment */
	__u8 ttl;    /* its TTL or hop limit */
	__u8 ece;    /* its ECE flag */
	__u8 range_count;
	__u8 block_count;
	__u8 held_count;
	__u8 withheld; /* a block was kept from the client since it was last told */
	__u8 ended;    /* there is no record any more, and nothing to be recovered */
	__u8 restored; /* enum restored */
	__u8 stateful; /* of a restored flow: its server replays a record of its own, see restored.h */
	__u8 ahead;    /* its client has sent more than is recorded, and none of that again yet */
	__u32 answered; /* the highest `ack` of its earlier servers: what is before it may have been answered */
	__u32 heard; /* of a restored flow: what the client had of its dead host, also behind a hole */
	__u32 reach; /* and what it had room for then: the end of what the dead host may have sent */
	__u32 doubt; /* if is_doubtful: what the client says from there on may have been answered by the dead
		      * host, without a record of that */
	__u8 unfound; /* its socket was not found once, see egress.h */
	__u8 caught_up; /* the newest that its server has said acknowledges all that its client has */
	__u8 is_doubtful; /* of a restored flow: heads of answers are recorded */
	__u8 is_lacking; /* of what the client has heard, what lies from `lacks` on is recorded by nobody */
	__u32 lacks;
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

enum crash_policy {
	CRASH_SIGNAL = 0, /* any process by signal, the main process also by its status */
	CRASH_ANY = 1,    /* a non-zero status of any process too */
	CRASH_MAIN = 2,   /* of the main process alone: what becomes of another is its parent's affair */
};

/* One service, its settings and its life. Settings are written once, before anything is
 * attached; the rest by the programs. */
struct service {
	__u64 netns_cookie;
	__u64 cgroup_id;
	__u64 heartbeat_timeout_ns;
	__u32 cgroup_level;
	__u32 crash_policy;
	__u32 mark; /* base of the three marks below */
	__u32 verify_head; /* outstream bytes recorded after the beginning of each turn */

	__u64 heartbeat_ns; /* of `serve`, CLOCK_MONOTONIC */
	__u64 speak_until_ns; /* CLOCK_BOOTTIME: nothing leaves from then on; 0: no lease is needed */
	__u64 gated_ns;
	__u64 next_flow_id;
	__u64 copies_since_ns; /* of what was counted in `copies` */
	__u32 copies; /* segments that need none */
	__u32 spare_copies; /* if no more than these come in a tenth of a second, none is left out (notes.h) */
	__u32 incarnation;
	__u32 main_pid;      /* as `serve` numbers processes */
	__u32 pid_namespace; /* the one of `serve` */
	__u8 gated;      /* nothing of the service leaves or enters */
	__u8 recovering; /* segments of unknown connections are dropped, not reset */
	__u8 stopping;   /* asked to end: deaths are not crashes */
	__u8 link;       /* the record is kept at the other end of a log link, not behind the ring */
	__u8 link_up;    /* there is a logger there */
	__u8 notes;      /* its server notes what it reads, and the logger has that */
	__u8 copies_few; /* in the tenth of a second before no more came */
	__u8 digests;  /* what the server says is digested */
	__u32 digest_rate; /* bytes in a microsecond that each processor may digest whole; 0: none, 2^32 - 1: all */
};

/* Marks of packets that we made ourselves; offsets from service.mark. A mark cannot come in
 * from the network, and setting one needs CAP_NET_ADMIN. */
#define MARK_CLIENT_SPACE 0 /* for the server, to be translated like the client's own */
#define MARK_SERVER_SPACE 1 /* for the server, as it is */
#define MARK_TO_CLIENT 2    /* for the client, as it is */
#define MARK_SEGMENT 3      /* a copy of a segment for the logger, still to be wrapped */
#define MARK_TO_LOGGER 4    /* for the logger, as it is */
#define MARKS 5

enum counter {
	COUNT_MIRRORED = 0,      /* instream segments recorded */
	COUNT_MIRROR_FULL,       /* instream segments dropped because the ring was full */
	COUNT_HEADS,             /* outstream heads recorded */
	COUNT_HEADS_LOST,        /* outstream heads not recorded because the ring was full */
	COUNT_GATED_OUT,         /* packets of the service dropped by the gate */
	COUNT_GATED_IN,          /* client packets dropped by the gate */
	COUNT_SELF_ACKS,         /* replayed segments acknowledged for the client */
	COUNT_TRANSLATED_OUT,
	COUNT_TRANSLATED_IN,
	COUNT_UNTRACKED,         /* segments of connections that are not protected */
	COUNT_STRIPPED,          /* TCP options removed from a SYN */
	COUNT_TABLE_FULL,        /* connections that found no room in the table */
	COUNT_EVENTS_LOST,
	COUNT_EDIT_FAILED,       /* packets dropped because they could not be rewritten */
	COUNT_LINK_ACKS,         /* acknowledgements of the logger, each counted once */
	COUNT_LINK_FORGED,       /* packets that pretended to be one */
	COUNT_LINK_HEADS,        /* beginnings of answers that went to the logger at once */
	COUNT_LINK_OPENS,        /* SYN-ACKs that took the detour through the logger */
	COUNT_ACKS_CLAMPED,      /* segments that told the client less than the server's TCP had */
	COUNT_ACKS_WITHHELD,     /* pure ACKs that would have brought nothing new */
	COUNT_ACKS_MADE,         /* ACKs made from acknowledgements of the logger */
	COUNT_FENCED,            /* packets dropped because the lease was over */
	COUNT_LEFT_TO_NOTES,     /* segments that no copy was made of */
	COUNT_REPLAY_HELD,       /* replayed segments that waited for what is compared behind them */
	COUNT_SAMPLED,           /* connections of which only samples are digested from then on */
	COUNTERS,
};

/* Mirror frame: what the logger reads from the ring. The format is protocol::mirror's, and a
 * test decodes frames of the one with the code of the other. */
#define MIRROR_MAGIC 0x4c54554f
#define MIRROR_VERSION 3 /* of digests and of the outstream; frames of other kinds are of the version before */
enum mirror_kind {
	MIRROR_INSTREAM = 1,
	MIRROR_OUTSTREAM = 2,
	MIRROR_BARRIER = 3,
	MIRROR_OPENED = 4,
	MIRROR_CLOSED = 5,
	MIRROR_DIGEST = 6,
};
enum closed_reason {
	CLOSED_FINISHED = 1,
	CLOSED_EVICTED = 4,
};
struct mirror_header {
	__u32 magic;
	__u8 version;
	__u8 kind;
	__u8 reason;
	__u8 unfinished; /* the checksum field holds only the pseudo-header's sum; the kernel vouches */
	__u64 flow_id;
	__u64 timestamp_ns;
	__u32 server_nxt;
	__u32 server_ack;
	__u32 packet_len;
	__u32 captured_len;
	__u64 token;
};
/* What follows in a frame that tells a digest. */
struct mirror_digest {
	struct mirror_header header;
	struct digest digest;
};

/* ---- The log link: UDP to a logger on another machine. The formats are protocol::link's; tests
 * read what one side writes with the code of the other. Little endian, where it is not the
 * client's own packet. ---- */
#define LINK_MAGIC 0x6b4c4ff1
#define LINK_VERSION 7
enum link_kind {
	LINK_OPEN = 1, /* a SYN-ACK waits for this to be recorded */
	LINK_ACK = 3,
};
/* In place of a segment's TTL or hop limit: its kind, and flags. */
enum segment_kind {
	SEGMENT_PLAIN = 0,
	SEGMENT_HEARD_ALL = 1, /* the client had heard everything: what is said next is a head */
	SEGMENT_TURN = 2,      /* the same, and the server waits for this */
	SEGMENT_FORMER_HEAD = 3, /* as SEGMENT_HEAD, without how far the client had sent */
	SEGMENT_NOTED = 4,     /* what lies before it by a given distance is noted */
	SEGMENT_HEAD = 5,      /* not the client's: the beginning of what the server says */
	SEGMENT_DOUBTED = 6,   /* a host that is dead may have answered it, see restored.h */
	SEGMENT_SAID = 7,      /* the digest of all that the client was sent, and has heard */
};
#define SEGMENT_KINDS 0x07
#define SEGMENT_UNFINISHED 0x08 /* as mirror_header.unfinished */
#define SEGMENT_SLOT 0x10       /* which of the two keys */
#define SEGMENT_VERSION (LINK_VERSION << 5)

enum ack_strategy {
	ACK_BASIC = 0,
	ACK_LAZY = 1,
	ACK_EAGER = 2,
	ACK_CONDITIONAL = 3,
};

/* Of SipHash-2-4. */
struct link_key {
	__u64 k0;
	__u64 k1;
};

/* The two ends of the link and its keys. Written from outside; a new key goes into the slot that is
 * not in use before `slot` names it. */
struct link {
	__u8 local[16]; /* IPv6 or v4-mapped */
	__u8 remote[16];
	__be16 local_port;
	__be16 remote_port;
	__u16 mtu; /* largest IP packet that it carries */
	__u8 strategy;
	__u8 slot; /* of the keys in use */
	__u8 v6;
	__u8 former; /* the logger knows nothing of doubts: see SEGMENT_FORMER_HEAD */
	__u8 digests; /* it takes digests */
	__u8 pad[6];
	struct link_key up[2];   /* to the logger */
	struct link_key down[2]; /* from it */
};

/* The way to the logger, as the kernel's routing last sent one of `serve`'s probes. */
struct link_path {
	__u32 ifindex;
	__u8 l2[14];
	__u16 pad;
	__u32 seen; /* how many probes passed */
};

struct link_head {
	__u32 magic;
	__u8 version;
	__u8 kind;
	__u8 slot;
	__u8 count; /* of ranges */
	__u64 flow_id;
	__u64 counter;
};
/* What was agreed on: all that a host that did not see it has to know. */
struct link_handshake {
	__u32 tsval; /* of the SYN-ACK */
	__u16 syn_window;
	__u8 syn_flags;
	__u8 syn_options_len;
	__u8 scales; /* of windows: the server's, and in the high half the client's */
	__u8 agreed;
	__u8 syn_options[TCP_OPTIONS_MAX];
	__u16 pad;
};
#define AGREED_TIMESTAMPS 1
#define AGREED_SACK 2
#define AGREED_WHOLE_SEGMENTS 4
struct link_open {
	struct link_head head;
	struct flow_key key;
	__u32 client_isn;
	__u32 server_isn;
	struct link_handshake handshake;
	__u64 tag;
};
/* One behind the other in a datagram, up to LINK_ACKS. */
#define LINK_ACKS 5
struct link_ack {
	struct link_head head;
	struct flow_key key;
	__u32 stable;
	struct range ranges[LINK_RANGES];
	__u64 tag;
};

/* How far the server's process has read a connection, and its logger knows what (notes.h). Processes of the
 * service write these from outside; `flow_id` is the programs'. */
struct note {
	struct flow_key key;
	__u32 isn;     /* the client's */
	__u64 flow_id; /* whose it is, if that was found; 0: it was not */
	__u32 seq;     /* what lies before it is noted */
	__u32 taken;   /* enum taken; written last, and reset first */
	__u32 left;    /* the programs' as well: where the newest segment ended that no copy was made of */
	__u32 pad;
};
enum taken {
	NOTE_FREE = 0,
	NOTE_TAKEN = 1, /* by a connection */
	NOTE_BUSY = 2,  /* it is being taken */
	NOTE_DEAD = 3,  /* its process has not gone on with it: nothing is believed of it any more */
};
#define NOTES 65536
/* From the one that a connection's numbers lead to, this many may be its. */
#define NOTE_PROBES 4

enum event_kind {
	EVENT_DEATH = 1,     /* a process of the service crashed: the gate is shut */
	EVENT_LISTENING = 2, /* the server listens on a protected port */
	EVENT_UNPROTECTED = 3,
	EVENT_DIVERGED = 4,
	EVENT_LATE = 5, /* a handshake of an earlier incarnation was completed, or a restored flow's client
			 * was heard: splice it too */
	EVENT_REPROTECTED = 6, /* recorded again, from instream `seq` and `outstream` on */
};
struct event {
	__u64 timestamp_ns;
	__u64 flow_id;
	struct flow_key key;
	__u32 kind;
	__u32 pid;
	__u32 status; /* as wait(2) gives it */
	__u32 reason; /* enum unprotected */
	__u32 seq;
	__u32 incarnation;
	__u32 outstream; /* end of what the client was sent on this flow */
};

/* What the replayed outstream must look like: 512 bytes of it, aligned in client space. */
struct expect_key {
	__u64 flow_id;
	__u32 chunk; /* sequence number / EXPECT_CHUNK */
	__u32 pad;
};
struct expect {
	__u8 bytes[EXPECT_CHUNK];
	__u8 strict[EXPECT_CHUNK]; /* 0xff: must be equal; 0: no record, or tolerated */
	__u8 soft[EXPECT_CHUNK];   /* 0xff: may differ, counted */
} __attribute__((aligned(8)));

enum control_op {
	CONTROL_HEARTBEAT = 1,
	CONTROL_GATE = 2,      /* shut the gate now */
	CONTROL_INCARNATION = 3, /* a new life: opens the gate for it alone */
	CONTROL_RECOVERED = 4,
	CONTROL_STOPPING = 5,  /* argument: whether it is asked to end */
	CONTROL_MAIN = 6,      /* argument: pid of the main process */
	CONTROL_SPLICE = 7,
	CONTROL_ABANDON = 8,   /* forget the flow */
	CONTROL_UNPROTECT = 9, /* argument: enum unprotected */
	CONTROL_BARRIER = 10,  /* argument: token */
	CONTROL_SWEEP = 11,    /* forget flows closed for longer than `argument` ns */
	CONTROL_LINK_UP = 12,  /* argument: whether there is a logger */
	CONTROL_REPROTECT = 13, /* record the flow again from its next turn on */
	CONTROL_NUMBERS = 14,  /* argument: flows are numbered from here on */
	CONTROL_SPEAK = 15,    /* argument: service.speak_until_ns */
	CONTROL_GRAFT = 16,    /* as SPLICE, to a socket that is there already; argument: its window, bytes */
	CONTROL_NUMBER = 17,   /* fills in a number for a flow, and in `argument` the present incarnation */
	CONTROL_OPENED = 18,   /* the flow was not hatched: have its record opened, if it is not behind a link */
	CONTROL_WANT = 19,     /* the next request waits until the server has said again what `digest` is of */
	CONTROL_REFUSE = 20,   /* the logger takes no record of the handshake `flow_id`; argument: enum unprotected. Fills in
				* `key` */
	CONTROL_SAID = 21,     /* the flow's client was sent what `digest` is of by another host, and `turn` is of what a replay leaves out */
};
struct control {
	__u32 op;
	__s32 result; /* 0 or -errno */
	__u64 argument;
	__u64 flow_id; /* the flow's number: `key` alone may name a later connection */
	struct flow_key key;
	__u32 instream;
	__u32 outstream;
	__u32 verify_end;
	__u64 swept;
	struct digest digest;
	struct digest turn;
};
