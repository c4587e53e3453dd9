/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Heads of HTTP/1 messages, as objects/head.h reads these.
 */
#pragma once

#include "../lib/kernel.h"

/* Longest head, bytes. */
#define HEAD_LEN_MAX 8192
/* In place of a length that the response does not tell. */
#define LENGTH_UNKNOWN (~0ULL)

enum head_verdict {
	HEAD_WHOLE = 0,
	HEAD_PARTIAL = 1, /* the end is not within the bytes */
	HEAD_DOUBT = 2, /* no head of HTTP/1, or a head that two programs could understand differently */
};

enum head_method {
	METHOD_GET = 0,
	METHOD_HEAD = 1,
	METHOD_OTHER = 2, /* never CONNECT: such a head is in doubt */
};

/* How the end of a body is found (RFC 9112, 6.3). */
enum head_body {
	BODY_BYTES = 0,
	BODY_CHUNKED = 1,
	BODY_UNTIL_CLOSE = 2,
};

/* Which validators of two responses must be equal (http1::version::VersionCheck). */
enum version_check {
	CHECK_ETAG = 0,
	CHECK_MODIFIED = 1,
	CHECK_LENGTH = 2,
	CHECK_OFF = 3,
};

enum request_flag {
	REQUEST_HTTP10 = 1,
	REQUEST_CLOSE = 2, /* Connection: close */
	REQUEST_RANGE = 4,
	REQUEST_RANGES = 8, /* several: the response has several parts */
	REQUEST_CREDENTIALS = 16, /* Authorization, or cookies */
	REQUEST_UPGRADE = 32,
	REQUEST_EXPECT = 64,
	REQUEST_SUFFIX = 128, /* one range: the last bytes of an object */
	REQUEST_INPUTS = 256, /* X-TRODS */
};

enum response_flag {
	RESPONSE_HTTP10 = 1,
	RESPONSE_CLOSE = 2, /* Connection: close */
	RESPONSE_PART = 4, /* 206, and the range is known */
	RESPONSE_PARTS = 8, /* 206, multipart/byteranges */
	RESPONSE_COMPARABLE = 16, /* another response can be known to be of the same version */
	RESPONSE_INPUTS = 32, /* X-TRODS: inputs of a dynamic response */
};

/* All 0 but the verdict, unless the head is whole. */
struct request_head {
	__u64 body_len; /* with BODY_BYTES */
	__u32 len; /* of the head, with the empty line */
	__u8 verdict; /* enum head_verdict */
	__u8 method; /* enum head_method */
	__u8 body; /* enum head_body */
	__u8 pad;
	__u16 flags; /* enum request_flag */
	__u8 more_pad[6];
};

/* All 0 but the verdict, unless the head is whole. */
struct response_head {
	__u64 body_len; /* with BODY_BYTES */
	__u64 range_first; /* with RESPONSE_PART */
	__u64 range_last; /* included */
	__u64 complete_len; /* of the object; or LENGTH_UNKNOWN */
	__u32 version; /* hash: equal for responses of one version of an object */
	__u16 len; /* of the head, with the empty line */
	__u16 status;
	__u8 verdict; /* enum head_verdict */
	__u8 body; /* enum head_body */
	__u8 flags; /* enum response_flag */
	__u8 pad[5];
};
