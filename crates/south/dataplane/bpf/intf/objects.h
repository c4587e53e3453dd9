/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * One member of a pool: its settings, its connections, and what user space hears of both.
 */
#pragma once

#include "../lib/kernel.h"
#include "../lib/packet.h"
#include "encapsulation.h"
#include "head.h"
#include "tuple.h"

/* Counts from the first release of the mode on. */
#define OBJECTS_LAYOUT_VERSION 1

/* Entries of the table of echoes; half of the values of an index. */
#define ECHO_ENTRIES 32
/* The scale of each window that a member offers. A member that revives a connection cannot ask for the scale. */
#define POOL_WINDOW_SCALE 7

struct pool_key {
	__u64 k0;
	__u64 k1;
};

/* Settings, and the life of the server. Written by `member_control` alone, but for `gated`. */
struct member {
	__u64 netns_cookie;
	__u64 cgroup_id;
	__u64 lease_until_ns;      /* CLOCK_BOOTTIME: nothing leaves from then on; 0: nothing ever leaves */
	__u64 quiescence_until_ns; /* CLOCK_BOOTTIME: the pool changed a short time ago until then */
	__u64 withhold_ns;         /* longest time for which a request stays unacknowledged */
	__u64 unix_offset_ns;      /* Unix time less CLOCK_BOOTTIME */
	__u64 gated_ns;
	struct pool_key keys[2]; /* the present key, and the key before */
	__u32 key_count;
	__u32 cgroup_level;
	__u32 crash_policy;
	__u32 mark; /* the first of MARKS (service.h) */
	__u32 incarnation; /* of the server */
	__u32 main_pid;
	__u32 pid_namespace;
	__u32 changes; /* of the pool, counted */
	__u8 gated;
	__u8 stopping;
	__u8 version_check; /* enum version_check */
	__u8 is_immutable;  /* the operator says that objects never change */
	__u8 accepts;       /* connections may begin here */
	__u8 store;         /* enum store_kind */
	__u8 takes_inputs;  /* responses may have inputs: X-TRODS */
	__u8 encapsulates;  /* packets between hosts of the pool are in UDP (encapsulation.h) */
	__u8 takes_chunks;  /* every server sends the same chunks of the same response */
	__u8 queue_round;   /* grows when user space has taken the bytes that wait: see QUEUED_MOST */
	__u16 strays;       /* segments of unknown connections that the kernel got in this round: see STRAYS_MOST */
	__u8 pad[4];
	__u8 address[16];   /* of this member, to which such packets come */
};

/* The store of the pool. */
enum store_kind {
	STORE_NONE = 0,      /* none, or no answer */
	STORE_UNINDEXED = 1, /* nobody can list the records of a dead member: a client must keep its request to be heard of */
	STORE_INDEXED = 2,   /* clients of a dead member are called: a request whose record is stored is acknowledged */
};

enum object_phase {
	OBJECT_IDLE = 0,  /* no request is under way */
	OBJECT_ASKED = 1, /* the server has a request, and has said nothing yet */
	OBJECT_BODY = 2,  /* the head of the response has left */
};

enum object_mode {
	OBJECT_SERVED = 0,   /* the server's socket and the client talk */
	OBJECT_REVIVING = 1, /* user space asks the server for the rest; nothing passes */
	OBJECT_FOREIGN = 2,  /* with keys of its own (MD5, AO): passes untouched */
};

/* Why a connection is not protected. Same codes as objects::Reason. */
enum unprotected_object {
	OBJECT_PROTECTED = 0,
	OBJECT_NO_TIMESTAMPS = 1,
	OBJECT_NOT_HTTP = 2,
	OBJECT_METHOD = 3,
	OBJECT_UPGRADED = 4,
	OBJECT_SPLIT_REQUEST = 5,
	OBJECT_PIPELINED = 6,
	OBJECT_HEADER = 7,
	OBJECT_CHUNKED = 8,
	OBJECT_LATER_RESPONSE = 9,
	OBJECT_WITHHELD_TOO_LONG = 10,
	OBJECT_SERVER = 11,
	OBJECT_MULTIPART = 12,
	OBJECT_OWN_RANGE = 13,
	OBJECT_TOO_LONG = 14,
};

/* The next byte of a body in chunks. Same codes as http1::chunks::Chunks. */
enum chunk_place {
	CHUNK_NONE = 0, /* not in chunks, or behind the last */
	CHUNK_FIRST_DIGIT = 1,
	CHUNK_DIGIT = 2, /* or the end of the length */
	CHUNK_EXTENSION = 3,
	CHUNK_LENGTH_END = 4,
	CHUNK_DATA = 5,
	CHUNK_DATA_RETURN = 6,
	CHUNK_DATA_END = 7,
	CHUNK_LAST_RETURN = 8, /* of the empty line at the end, or a trailer */
	CHUNK_LAST = 9,
	CHUNK_DONE = 10,
	CHUNK_TRAILER = 11,
	CHUNK_TRAILER_END = 12,
};

enum chunk_constant {
	CHUNK_STEPS_MOST = 8192, /* for a segment: a byte between two chunks, or all bytes of a chunk */
};

/* A request and its response. Numbers of the request are the client's; of the response, those that the client sees. */
struct object_turn {
	__u64 response_len; /* head and body; ~0: up to the FIN, or up to the last chunk */
	__u64 chunk_left;   /* in chunks: the length as far as it is read, or the bytes that the chunk still has */
	__u64 acked;        /* bytes of the response that the client has acknowledged */
	__u64 sent;         /* bytes of the response that have left */
	__u64 asked_ns;
	__u32 request_start;
	__u32 request_end;
	__u32 response_start;
	__u32 number;    /* of the turn, from 0 */
	__u32 ended;     /* turns that are over: equal to `number`, but while a processor ends the turn */
	__u32 turn_pad;
	__u32 head_end;  /* with inputs: of the head of the response */
	__u32 chunk_next; /* in chunks: the first byte that is not read */
	__u8 phase;      /* enum object_phase */
	__u8 method;     /* enum head_method */
	__u8 is_guarded; /* the request stays unacknowledged until the client has the response */
	__u8 has_inputs; /* the head of the response has inputs, which the client must not get */
	__u8 has_range;  /* the client asked for a part */
	__u8 repeats;    /* how often the client has sent the request again since it was last told something */
	__u8 released;   /* bytes of the guarded request that the client was told to have arrived */
	__u8 chunk_place; /* enum chunk_place */
};

/* The server's timestamps behind the indexes (objects::timestamp::index). */
struct echo_table {
	__u32 tsvals[ECHO_ENTRIES];
	__u32 newest_tsval;
	__u32 scaled_round_trip; /* eighths of a tick; written at ingress */
	__u8 newest;
	__u8 echoed; /* written at ingress */
	__u8 has_echo; /* the client has echoed an index that this server gave; written at ingress */
	__u8 pad[1];
};

struct object_flow {
	struct object_turn turn;
	struct echo_table echoes;
	__u32 incarnation;
	__u32 ifindex;    /* where the client's packets arrive */
	__u32 client_isn;
	__u32 client_nxt; /* end of the highest segment of the client */
	__u32 client_ack; /* what the client has acknowledged, as it sees the numbers */
	__u32 client_tsval;
	__u32 isn;        /* the server's, as the client sees it */
	__u32 nxt;        /* end of what the client was sent */
	__u32 delta;      /* client's view = number of the server's socket + delta */
	__u32 floor;      /* nothing before this number leaves: another server has sent it */
	__u32 told;       /* what the client was told to have arrived */
	__u32 received;   /* what the server's TCP has */
	__u32 wnd_edge;   /* right edge of the window that the client was offered */
	__u32 state;      /* kind and state of the newest timestamp: its lower 26 bits */
	__u32 body_state; /* the same, of the response under way */
	__u32 agreed;     /* the same, while no response is under way */
	__u32 bare;       /* the same, without protection */
	__u32 stored;     /* the same, of the turn of `stored_turn` */
	/* Each the number of a turn and 1, so that the end of the turn ends it; 0: none. */
	__u32 exposed_turn;  /* the timestamps cannot tell the position in the response: written at egress */
	__u32 stored_turn;   /* the record is in the store: written by `store_confirmed` */
	__u32 released_turn; /* the client has echoed that, and the request is acknowledged: written at ingress */
	__u16 client_window;
	__u8 client_window_scale;
	__u8 server_window_scale; /* or WINDOW_SCALE_ABSENT */
	__u8 slot;
	__u8 options;    /* 3 bits, objects::timestamp::ClientOptions */
	__u8 mode;       /* enum object_mode */
	__u8 unprotected; /* enum unprotected_object */
	__u8 has_timestamps;
	__u8 owes_ack;   /* the next pure ACK leaves: a segment of the client needs an answer */
	__u8 has_sack;
	__u8 has_queue;  /* bytes of the client have waited for their turn: user space hears of each turn */
	__u8 queue_round; /* in which `queued` counts */
	__u8 queued;     /* small copies that user space has got of bytes that wait; a large copy counts as QUEUED_LARGE */
	__u16 segment_size; /* the client's largest */
};

/* A handshake under way. */
struct object_embryo {
	__u64 began_ns;
	__u32 client_isn;
	__u32 client_tsval;
	__u32 isn;   /* the server's, as the client sees it */
	__u32 delta;
	__u32 tsval; /* of the server's newest SYN-ACK */
	__u32 wnd_edge;
	__u32 incarnation;
	__u32 changes; /* of the pool before */
	__u16 segment_size;
	__u8 client_window_scale;
	__u8 server_window_scale;
	__u8 slot;
	__u8 has_timestamps;
	__u8 has_sack;
	__u8 is_answered;
	__u8 is_foreign;
	__u8 pad[3];
};

/* What is left of a connection that is over. */
struct object_tombstone {
	__u64 closed_ns;
	__u32 delta;
	__u32 tsval; /* of the server's newest segment: what an echo is translated to */
	__u32 value; /* the timestamp that the client sees */
	__u8 slot;
	__u8 pad[3];
};

/* Where the segments of a connection go that another member serves: a neighbour; with encapsulation, the route. */
struct next_hop {
	__u32 family; /* AF_INET or AF_INET6 */
	__u32 address[4]; /* network order; IPv4: the first alone */
	struct outer_route route;
};

enum object_event_kind {
	OBJECT_DEATH = 1,     /* the server crashed: the gate is shut */
	OBJECT_LISTENING = 2, /* the server listens */
	OBJECT_UNPROTECTED = 3,
	OBJECT_REPEATED = 4, /* the client has sent a guarded request again */
	OBJECT_ANSWERED = 5, /* the response has left, and bytes of the client may wait for their turn */
	OBJECT_TURN_OVER = 6, /* the turn is over, and bytes of the client may wait for their turn */
	OBJECT_DIVERGED = 7, /* the response ends before the client's position: the client has a part of another one */
};

struct object_event {
	__u64 timestamp_ns;
	struct flow_key key;
	__u32 kind;
	__u32 pid;
	__u32 status; /* as wait(2) gives it */
	__u32 reason; /* enum unprotected_object */
	__u32 incarnation;
	__u32 seq; /* of the repetition */
};

/* Bytes of a segment that are copied for user space: an IP packet, or its beginning. */
#define OBJECT_COPY_SMALL 1792
#define OBJECT_COPY_MOST 16384
#define OBJECT_TURN_COPY_MOST 4096 /* of a segment that begins a turn or a response */

enum object_copy_kind {
	COPY_UNKNOWN = 1, /* of a client, to a connection that nobody here knows */
	COPY_CLIENT = 2,  /* of a client whose connection is being revived */
	COPY_PARKED = 3,  /* of the server, to such a client */
	COPY_REQUEST = 4,  /* of a client: a guarded request */
	COPY_RESPONSE = 5, /* of the server: the head of its response */
	COPY_DEFERRED = 6, /* of the server: before the record is stored, or a head with inputs */
	COPY_QUEUED = 7,   /* of a client: bytes behind the request under way, or a part of a request */
};

struct object_copy {
	__u64 timestamp_ns;
	struct flow_key key;
	__u32 kind;
	__u32 ifindex;
	__u32 packet_len; /* of the IP packet */
	__u32 copied_len; /* of that, here */
};

/* Bytes of a client that wait for their turn, in a round of user space: more than user space keeps, so that a client
 * repeats, and one client does not fill the ring. */
#define QUEUED_MOST 240
#define QUEUED_LARGE 8
/* Segments of unknown connections that the kernel gets in a round, and answers with a RST. The client of a connection
 * that is gone sends again, and gets its RST then. A flood costs no more than these, and is reflected to nobody. */
#define STRAYS_MOST 64

enum object_counter {
	OBJECTS_TRANSLATED_IN = 0,
	OBJECTS_TRANSLATED_OUT,
	OBJECTS_WITHHELD,     /* acknowledgements that the client shall not have yet */
	OBJECTS_ACKS_MADE,    /* acknowledgements of requests whose responses are whole */
	OBJECTS_FENCED,       /* packets that did not leave, because the lease was over */
	OBJECTS_GATED,        /* packets dropped by the gate */
	OBJECTS_UNKNOWN,      /* segments of unknown connections, given to user space */
	OBJECTS_STRAY,        /* segments of unknown connections, given to the kernel */
	OBJECTS_FORGED,       /* segments of unknown connections whose echo no member has written */
	OBJECTS_PARKED,       /* segments of the server that wait for a verdict */
	OBJECTS_COPIES_LOST,  /* copies that found no room, or were beyond the budget of their connection */
	OBJECTS_SELF_ACKS,    /* segments before the floor, acknowledged in the client's name */
	OBJECTS_EXHAUSTED,    /* segments that waited for an index */
	OBJECTS_EDIT_FAILED,
	OBJECTS_TABLE_FULL,
	OBJECTS_EVENTS_LOST,
	OBJECTS_FORWARDED,    /* segments of connections that other members serve */
	OBJECTS_DEFERRED,         /* segments of the server that wait for the store */
	OBJECTS_QUEUED,       /* segments of clients that wait for their turn */
	OBJECTS_UNWRAPPED,        /* packets that came in UDP, through routers */
	OBJECTS_MISWRAPPED,       /* dropped: UDP to the port of such packets, and not of this pool */
	OBJECTS_NOT_WRAPPED,      /* dropped, and not forwarded in UDP: forwarded once before, or too long */
	OBJECTS_STRAYS_DROPPED,   /* segments of unknown connections, more than the kernel gets in a round */
	OBJECTS_COUNTERS,
};

enum member_op {
	MEMBER_LEASE = 1,       /* argument: lease_until_ns */
	MEMBER_QUIESCENCE = 2,  /* argument: quiescence_until_ns */
	MEMBER_GATE = 3,        /* shut the gate now */
	MEMBER_INCARNATION = 4, /* a new server: opens the gate */
	MEMBER_MAIN = 5,        /* argument: pid of the main process */
	MEMBER_STOPPING = 6,    /* argument: whether the server was asked to end */
	MEMBER_CLOCK = 7,       /* argument: unix_offset_ns */
	MEMBER_ACCEPTS = 8,     /* argument: whether connections may begin here */
	MEMBER_STORE = 9,       /* argument: enum store_kind */
	MEMBER_QUEUE_ROUND = 10, /* clients may wait with more bytes again */
	MEMBER_STRAY_ROUND = 11, /* the kernel gets segments of unknown connections again */
};

/* The store has confirmed the record of a turn, or will never. */
struct store_confirmation {
	struct flow_key key;
	__u32 number;        /* of the turn */
	__u32 request_start; /* the same as in the turn, or the record is of another */
	__u32 state;         /* kind and state of timestamps from now on */
	__u32 has_record;    /* 0: the turn gets no record, and goes on without protection */
	__s32 result;        /* 0, or -ENOENT: the turn is over */
};

struct member_control {
	__u32 op;
	__s32 result;
	__u64 argument;
};
