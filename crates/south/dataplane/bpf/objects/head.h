/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * A scanner of HTTP/1 heads (RFC 9112). Where the scanner finds a whole head, the crate http1 finds the same head with
 * the same meaning (tests/it/heads.rs). The scanner refuses more heads than http1 (HEAD_DOUBT). All of these are rare:
 *
 *  - an empty line before the head, and the method CONNECT;
 *  - bytes above 127 in the target, or in a value whose bytes matter here (enum head_field, up to TEXT_FIELDS);
 *  - a transfer coding other than "chunked" alone;
 *  - two fields Connection or Content-Type;
 *  - numbers of more than DIGIT_COUNT_MAX digits, and other values that matter of more than VALUE_LEN_MAX bytes;
 *  - white space within Content-Range, other than one space behind the unit.
 *
 * The first pass splits the head into names and values. Most bytes cost one look at a table of the bytes that do not
 * end the current part. The second pass reads the few values that matter. The order of bytes in words is of
 * little-endian machines.
 */
#pragma once

#include "../lib/kernel.h"
#include "../lib/packet.h"
#include "../intf/head.h"

/* Bytes of a head that are loaded at once, and bytes that one call looks at: powers of two. */
#define HEAD_CHUNK 512
#define HEAD_PIECE 64
/* Bytes before the chunk that are read, too: a name that ends in the chunk is compared whole. */
#define NAME_LEN_MAX 24
/* Longest value whose bytes matter. */
#define VALUE_LEN_MAX 256
#define FIELD_COUNT_MAX 100
/* All numbers of so many digits have 64 bits. */
#define DIGIT_COUNT_MAX 19
/* Of "HTTP/1.1", and the bit by which "HTTP/1.0" differs. */
#define PROTOCOL_LEN 8
#define MINOR_VERSION_BIT (1ULL << 56)

enum head_field {
	FIELD_CONTENT_LENGTH,
	FIELD_TRANSFER_ENCODING,
	FIELD_CONNECTION,
	FIELD_RANGE,
	FIELD_CONTENT_RANGE,
	FIELD_CONTENT_TYPE,
	FIELD_CONTENT_ENCODING,
	FIELD_ETAG,
	FIELD_LAST_MODIFIED,
	TEXT_FIELDS, /* of the fields from here on, only the presence matters */
	FIELD_CREDENTIALS = TEXT_FIELDS,
	FIELD_UPGRADE,
	FIELD_EXPECT,
	FIELD_INPUTS,
	FIELD_OTHER,
	HEAD_FIELDS = 16, /* a power of two for the verifier */
};
#define FIELD_BIT(field) (1U << (field))

/* Of Content-Range: bytes first-last/complete */
enum range_part { RANGE_FIRST, RANGE_LAST, RANGE_COMPLETE, RANGE_END };

/* Parts of a head: each ends with a byte that the part cannot have. */
enum head_part {
	IN_METHOD,
	IN_TARGET,
	IN_PROTOCOL, /* the bytes of a target are allowed, and compared at the end */
	IN_STATUS,
	IN_REASON,
	BEFORE_LF,
	IN_NAME,
	BEFORE_VALUE,
	IN_VALUE,
	BEFORE_LAST_LF,
};

/* Kinds of bytes (RFC 9110, 5.6.2 and 5.5; RFC 3986). */
enum byte_kind {
	TOKEN = 1,
	TARGET = 2,
	BLANK = 4,
	TEXT = 8, /* of a value, without bytes above 127 */
	OBS_TEXT = 16,
	BETWEEN = 32, /* the words of a list */
	NO_BYTE = 128,
};
#define TOKEN_BYTE (TOKEN | TARGET | TEXT)
#define OTHER_BYTE (TARGET | TEXT)

static const __u8 byte_kinds[256] = {
	['\0'] = BETWEEN, ['\t'] = BLANK | TEXT | BETWEEN, [' '] = BLANK | TEXT | BETWEEN,
	['!'] = TOKEN_BYTE, ['"'] = OTHER_BYTE, ['#' ... '\''] = TOKEN_BYTE, ['(' ... ')'] = OTHER_BYTE,
	['*' ... '+'] = TOKEN_BYTE, [','] = OTHER_BYTE | BETWEEN, ['-' ... '.'] = TOKEN_BYTE, ['/'] = OTHER_BYTE,
	['0' ... '9'] = TOKEN_BYTE, [':' ... '@'] = OTHER_BYTE, ['A' ... 'Z'] = TOKEN_BYTE, ['[' ... ']'] = OTHER_BYTE,
	['^' ... 'z'] = TOKEN_BYTE, ['{'] = OTHER_BYTE, ['|'] = TOKEN_BYTE, ['}'] = OTHER_BYTE, ['~'] = TOKEN_BYTE,
	[128 ... 255] = OBS_TEXT,
};

struct field_value {
	__u16 at; /* from the start of the head */
	__u16 len; /* with white space behind the value */
};

/* Too large for the stack. */
struct head_scan {
	__u32 offset; /* of the head in the frame */
	__u32 len;
	__u32 at; /* of the chunk, from the start of the head */
	__u32 count; /* bytes of the chunk */
	__u32 part_at;
	__u32 head_len; /* 0: no end so far */
	__u32 lines;
	__u32 seen; /* FIELD_BITs */
	__u32 repeated;
	__u32 value_len;
	__u32 range_part; /* enum range_part */
	__u32 digits; /* of that part */
	__u16 status;
	__u8 is_response;
	__u8 part; /* enum head_part */
	__u8 allowed; /* enum byte_kind: bytes that do not end the part */
	__u8 field; /* enum head_field */
	__u8 method; /* enum head_method */
	__u8 is_http10;
	__u64 numbers[4];
	struct field_value values[HEAD_FIELDS];
	__u64 window[(NAME_LEN_MAX + HEAD_CHUNK) / 8];
	__u64 value[VALUE_LEN_MAX / 8 + 1]; /* and zeros up to a whole word */
};

/* Requests and responses are scanned in different directions of a CPU: see `scratches` of replay/state.h. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct head_scan);
} head_scans SEC(".maps");

/* The compiler reads memory again. The verifier does not know the numbers there, and need not follow each of these
 * through a loop. */
static __always_inline void forget_registers(void)
{
	asm volatile("" ::: "memory");
}

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "words of text begin with the lowest byte");
/* A word of text anywhere in a buffer of bytes. */
typedef __u64 __attribute__((may_alias)) text_word;
#define LOWER_CASE 0x2020202020202020ULL

/* Up to 8 bytes of a constant as a word of memory: the first byte is the lowest. */
static __always_inline __u64 constant_word(const char *text, __u32 from, __u32 to)
{
	__u64 word = 0;
#pragma unroll
	for (__u32 i = 0; i < 8; i++)
		if (from + i < to)
			word |= (__u64)(__u8)text[from + i] << 8 * i;
	return word;
}

/* The words before the end of a name, and the length of the name. */
struct name {
	__u64 words[3];
	__u32 len;
};

/* Names of our fields have letters and hyphens only. No other byte of a token becomes one of these in lower case, so
 * equal words are equal names (RFC 9110, 5.1). */
static __always_inline struct name name_before(const __u8 *end, __u32 len)
{
	const text_word *words = (const text_word *)(end - NAME_LEN_MAX);
	return (struct name){ { words[0] | LOWER_CASE, words[1] | LOWER_CASE, words[2] | LOWER_CASE }, len };
}

/* The length is compared before. */
static __always_inline bool is_named(const struct name *name, const char *text, __u32 len)
{
	__u32 last = len < 8 ? len : 8, middle = len < 16 ? len - last : 8, first = len - last - middle;
	if (name->words[2] >> 8 * (8 - last) != constant_word(text, len - last, len))
		return false;
	if (middle && name->words[1] >> 8 * ((8 - middle) & 7) != constant_word(text, first, first + middle))
		return false;
	return !first || name->words[0] >> 8 * ((8 - first) & 7) == constant_word(text, 0, first);
}
#define IS_NAMED(name, text) is_named(name, text, sizeof(text) - 1)

static __always_inline __u32 field_of(const struct name *name)
{
	switch (name->len) {
	case 4:
		return IS_NAMED(name, "etag") ? FIELD_ETAG : FIELD_OTHER;
	case 5:
		return IS_NAMED(name, "range") ? FIELD_RANGE : FIELD_OTHER;
	case 6:
		return IS_NAMED(name, "cookie") ? FIELD_CREDENTIALS : IS_NAMED(name, "expect") ? FIELD_EXPECT : FIELD_OTHER;
	case 7:
		return IS_NAMED(name, "upgrade") ? FIELD_UPGRADE : IS_NAMED(name, "x-trods") ? FIELD_INPUTS : FIELD_OTHER;
	case 10:
		return IS_NAMED(name, "connection") ? FIELD_CONNECTION : FIELD_OTHER;
	case 12:
		return IS_NAMED(name, "content-type") ? FIELD_CONTENT_TYPE : FIELD_OTHER;
	case 13:
		return IS_NAMED(name, "content-range") ? FIELD_CONTENT_RANGE :
		       IS_NAMED(name, "last-modified") ? FIELD_LAST_MODIFIED :
		       IS_NAMED(name, "authorization") ? FIELD_CREDENTIALS : FIELD_OTHER;
	case 14:
		return IS_NAMED(name, "content-length") ? FIELD_CONTENT_LENGTH : FIELD_OTHER;
	case 16:
		return IS_NAMED(name, "content-encoding") ? FIELD_CONTENT_ENCODING : FIELD_OTHER;
	case 17:
		return IS_NAMED(name, "transfer-encoding") ? FIELD_TRANSFER_ENCODING : FIELD_OTHER;
	default:
		return FIELD_OTHER;
	}
}

/* Methods have case. */
static __always_inline bool set_method(struct head_scan *s, const __u8 *end, __u32 len)
{
	__u64 word = *(const text_word *)(end - 8);
	s->method = METHOD_OTHER;
	if (len == 3 && word >> 40 == constant_word("GET", 0, 3))
		s->method = METHOD_GET;
	else if (len == 4 && word >> 32 == constant_word("HEAD", 0, 4))
		s->method = METHOD_HEAD;
	return len != 7 || word >> 8 != constant_word("CONNECT", 0, 7);
}

static __always_inline bool set_protocol(struct head_scan *s, const __u8 *end, __u32 len)
{
	__u64 word = *(const text_word *)(end - PROTOCOL_LEN);
	s->is_http10 = !(word & MINOR_VERSION_BIT);
	return len == PROTOCOL_LEN && (word & ~MINOR_VERSION_BIT) == constant_word("HTTP/1.0", 0, PROTOCOL_LEN);
}

static __always_inline bool add_status_digit(struct head_scan *s, __u8 byte)
{
	__u8 digit = byte - '0';
	s->status = s->status * 10 + digit;
	return digit <= 9;
}

static __always_inline __u32 begin_part(struct head_scan *s, enum head_part part, __u32 at, __u32 allowed)
{
	s->part = part;
	s->part_at = at;
	return allowed;
}

/* At the end of a name. */
static __always_inline __u32 begin_value(struct head_scan *s, const __u8 *end, __u32 at)
{
	struct name name = name_before(end, at - s->part_at);
	__u32 field = field_of(&name), bit = FIELD_BIT(field);
	s->field = field;
	s->repeated |= s->seen & bit;
	s->seen |= bit;
	if (field < TEXT_FIELDS)
		return begin_part(s, BEFORE_VALUE, at + 1, BLANK);
	return begin_part(s, IN_VALUE, at + 1, TEXT | OBS_TEXT);
}

static __always_inline __u32 end_value(struct head_scan *s, __u32 at)
{
	struct field_value *value = &s->values[s->field & (HEAD_FIELDS - 1)];
	value->at = s->part_at;
	value->len = at - s->part_at;
	return begin_part(s, BEFORE_LF, at + 1, NO_BYTE);
}

static __always_inline __u32 end_line(struct head_scan *s, __u32 at)
{
	return ++s->lines > 1 + FIELD_COUNT_MAX ? 0 : begin_part(s, IN_NAME, at + 1, TOKEN);
}

/* Goes on behind byte `at` of the chunk, which ends a part of the head. Returns the kinds of bytes of the next part, or 0
 * at the end of the head, or in doubt. A function of its own for the verifier, which would follow it for each byte. */
__noinline int end_part(struct head_scan *s, __u32 at)
{
	if (!s)
		return 0;
	at &= HEAD_CHUNK - 1;
	const __u8 *byte = (const __u8 *)s->window + NAME_LEN_MAX + at;
	at += s->at;
	__u32 len = at - s->part_at;
	switch (s->part) {
	case IN_NAME:
		if (*byte == ':' && len)
			return begin_value(s, byte, at);
		return *byte == '\r' && !len ? begin_part(s, BEFORE_LAST_LF, at + 1, NO_BYTE) : 0;
	case BEFORE_VALUE:
		if (*byte == '\r')
			return end_value(s, at);
		return byte_kinds[*byte] & TEXT ? begin_part(s, IN_VALUE, at, TEXT) : 0;
	case BEFORE_LAST_LF:
		s->head_len = *byte == '\n' ? at + 1 : 0;
		return 0;
	case IN_METHOD:
		if (*byte != ' ' || !len || !set_method(s, byte, len))
			return 0;
		return begin_part(s, IN_TARGET, at + 1, TARGET);
	case IN_TARGET:
		return *byte == ' ' && len ? begin_part(s, IN_PROTOCOL, at + 1, TARGET) : 0;
	case IN_PROTOCOL:
		if (!set_protocol(s, byte, len))
			return 0;
		if (s->is_response)
			return *byte == ' ' ? begin_part(s, IN_STATUS, at + 1, NO_BYTE) : 0;
		return *byte == '\r' ? begin_part(s, BEFORE_LF, at + 1, NO_BYTE) : 0;
	case IN_STATUS:
		if (len < 3)
			return add_status_digit(s, *byte) ? NO_BYTE : 0;
		if (*byte == ' ')
			return begin_part(s, IN_REASON, at + 1, TEXT | OBS_TEXT);
		return *byte == '\r' ? begin_part(s, BEFORE_LF, at + 1, NO_BYTE) : 0;
	case IN_REASON:
		return *byte == '\r' ? begin_part(s, BEFORE_LF, at + 1, NO_BYTE) : 0;
	default:
		return 0;
	}
}

struct head_reader {
	struct __sk_buff *skb;
	struct head_scan *s;
};

/* Whether a word of a value has only bytes that do not end the value. */
static __always_inline bool is_text(__u64 word, __u32 allowed)
{
	__u64 each = 0x0101010101010101ULL, no_delete = word ^ 0x7f * each;
	__u64 below_space = (word - 0x20 * each) & ~word, delete = (no_delete - each) & ~no_delete;
	__u64 obs_text = allowed & OBS_TEXT ? 0 : word;
	return allowed & TEXT && !((below_space | delete | obs_text) & 0x80 * each);
}

/* Goes on behind byte `at` of the chunk, which ends a part. The two most frequent ends are without a call. */
static __always_inline __u32 next_part(struct head_scan *s, __u8 byte, __u32 at)
{
	if (s->part == IN_VALUE && byte == '\r')
		return end_value(s, s->at + at);
	if (s->part == BEFORE_LF && byte == '\n')
		return end_line(s, s->at + at);
	return end_part(s, at);
}

/* Looks at the piece of the chunk that begins at `at`. Returns the kinds of bytes that may come next, or 0. A function of
 * its own for the verifier, as above. */
__noinline int scan_piece(struct head_scan *s, __u32 at)
{
	if (!s)
		return 0;
	at &= HEAD_CHUNK - HEAD_PIECE;
	const __u8 *bytes = (const __u8 *)s->window + NAME_LEN_MAX + at;
	__u32 count = s->count - at, allowed = s->allowed, j = 0;
	while (j < HEAD_PIECE && j < count) {
		asm volatile("" : "+r"(j)); /* one register, or the compiler keeps several sums in step with it */
		if (!(j & 7) && is_text(*(const text_word *)(bytes + j), allowed)) {
			j += 8;
			continue;
		}
		__u8 byte = bytes[j];
		if (!(byte_kinds[byte] & allowed)) {
			allowed = next_part(s, byte, at + j);
			if (!allowed)
				return 0;
		}
		j++;
	}
	return allowed;
}

static long scan_chunk(__u32 i, void *context)
{
	struct head_reader *reader = context;
	struct head_scan *s = reader->s;
	__u32 at = s->at + s->count, left = s->len - at;
	if (at >= s->len)
		return 1;
	__u32 count = at_least_1(left < HEAD_CHUNK ? left : HEAD_CHUNK, HEAD_CHUNK - 1);
	s->at = at;
	s->count = count;
	if (bpf_skb_load_bytes(reader->skb, s->offset + at - NAME_LEN_MAX, s->window, NAME_LEN_MAX + count))
		s->allowed = 0;
#pragma clang loop unroll(disable)
	for (__u32 piece = 0; piece < HEAD_CHUNK && piece < count && s->allowed; piece += HEAD_PIECE)
		s->allowed = scan_piece(s, piece);
	return !s->allowed;
}

/* The beginning of a protocol's name that is not there whole yet. */
static __always_inline bool begins_protocol(struct __sk_buff *skb, struct head_scan *s)
{
	__u32 len = s->len - s->part_at;
	if (!len || len > PROTOCOL_LEN)
		return !len;
	s->value[0] = 0;
	if (bpf_skb_load_bytes(skb, s->offset + s->part_at, s->value, at_least_1(len, PROTOCOL_LEN - 1)))
		return false;
	__u64 difference = s->value[0] ^ constant_word("HTTP/1.0", 0, PROTOCOL_LEN);
	return !((difference & ~MINOR_VERSION_BIT) << 8 * ((PROTOCOL_LEN - len) & 7));
}

/* The first pass. A function of its own for the verifier. */
__noinline int split_head(struct __sk_buff *skb, struct head_scan *s)
{
	if (!s)
		return HEAD_DOUBT;
	struct head_reader reader = { skb, s };
	bpf_loop(HEAD_LEN_MAX / HEAD_CHUNK, scan_chunk, &reader, 0);
	if (s->head_len)
		return HEAD_WHOLE;
	if (!s->allowed || s->len >= HEAD_LEN_MAX)
		return HEAD_DOUBT;
	return s->part != IN_PROTOCOL || begins_protocol(skb, s) ? HEAD_PARTIAL : HEAD_DOUBT;
}

/* Splits the head. NULL if this is not a whole head: the verdict is in `verdict`. */
static __always_inline struct head_scan *scan_head(struct __sk_buff *skb, __u32 offset, __u32 len, __u32 is_response,
						   __u8 *verdict)
{
	struct head_scan *s = bpf_map_lookup_elem(&head_scans, &is_response);
	*verdict = HEAD_DOUBT;
	if (!s || offset < NAME_LEN_MAX)
		return NULL;
	s->offset = offset;
	s->len = len < HEAD_LEN_MAX ? len : HEAD_LEN_MAX;
	s->at = s->count = s->part_at = s->head_len = s->lines = s->seen = s->repeated = s->status = 0;
	s->is_response = is_response;
	s->part = is_response ? IN_PROTOCOL : IN_METHOD;
	s->allowed = is_response ? TARGET : TOKEN;
	*verdict = split_head(skb, s);
	return *verdict == HEAD_WHOLE ? s : NULL;
}

/* Reads the value of a field, without white space behind. False if the value is too long. */
__noinline int take_value(struct __sk_buff *skb, struct head_scan *s, __u32 field)
{
	if (!s)
		return false;
	__u8 *bytes = (__u8 *)s->value;
	struct field_value *value = &s->values[field & (HEAD_FIELDS - 1)];
	__u32 len = value->len;
	if (len > VALUE_LEN_MAX)
		return false;
	if (len && bpf_skb_load_bytes(skb, s->offset + value->at, bytes, at_least_1(len, VALUE_LEN_MAX - 1)))
		return false;
	s->value_len = len;
#pragma unroll
	for (__u32 i = 0; i < 8; i++)
		bytes[len + i] = 0;
	for (__u32 i = 0; i < VALUE_LEN_MAX && s->value_len; i++) {
		__u8 *last = &bytes[(s->value_len - 1) & (VALUE_LEN_MAX - 1)];
		if (!(byte_kinds[*last] & BLANK))
			break;
		*last = 0;
		s->value_len--;
		forget_registers();
	}
	return true;
}

/* Whether the value begins with a text, without regard to case. The text has letters and other bytes that lower case
 * makes of no other byte of a value. */
static __always_inline bool value_begins(const struct head_scan *s, const char *text, __u32 len)
{
#pragma unroll
	for (__u32 i = 0; i < 3; i++) {
		__u32 count = len < 8 * i + 8 ? len - 8 * i : 8;
		if (8 * i < len && (s->value[i] | LOWER_CASE) << 8 * ((8 - count) & 7) !=
		    constant_word(text, 8 * i, len) << 8 * ((8 - count) & 7))
			return false;
	}
	return s->value_len >= len;
}
#define VALUE_BEGINS(s, text) value_begins(s, text, sizeof(text) - 1)
#define VALUE_IS(s, text) (s->value_len == sizeof(text) - 1 && VALUE_BEGINS(s, text))

/* Whether the value is a number without a sign. The number is in `s->numbers`. */
__noinline int take_number(struct head_scan *s)
{
	__u64 sum = 0;
	if (!s)
		return false;
	const __u8 *bytes = (const __u8 *)s->value;
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < DIGIT_COUNT_MAX && i < s->value_len; i++) {
		__u8 digit = bytes[i] - '0';
		if (digit > 9)
			return false;
		sum = sum * 10 + digit;
	}
	s->numbers[0] = sum;
	return s->value_len && s->value_len <= DIGIT_COUNT_MAX;
}

/* How the end of the body is found. False if the length is ambiguous. */
static __always_inline bool find_body(struct __sk_buff *skb, struct head_scan *s, bool is_bodyless, __u8 *body,
				      __u64 *body_len)
{
	__u32 lengths = FIELD_BIT(FIELD_CONTENT_LENGTH), codings = FIELD_BIT(FIELD_TRANSFER_ENCODING);
	*body = s->is_response && !is_bodyless ? BODY_UNTIL_CLOSE : BODY_BYTES;
	*body_len = 0;
	if (s->repeated & (lengths | codings))
		return false;
	if (s->seen & lengths) {
		if (!take_value(skb, s, FIELD_CONTENT_LENGTH) || !take_number(s))
			return false;
		if (!is_bodyless) {
			*body = BODY_BYTES;
			*body_len = s->numbers[0];
		}
	}
	if (s->seen & codings) {
		if (s->is_http10 || !take_value(skb, s, FIELD_TRANSFER_ENCODING) || !VALUE_IS(s, "chunked"))
			return false;
		if (!is_bodyless)
			*body = BODY_CHUNKED;
		return is_bodyless || !(s->seen & lengths);
	}
	return true;
}

/* Whether a list has the word "close" (RFC 9110, 7.6.1). */
__noinline int has_close(struct head_scan *s)
{
	if (!s)
		return false;
	const __u8 *bytes = (const __u8 *)s->value;
	/* The last bytes in lower case, with 0 for bytes between words. There is a 0 behind the value, too. */
	__u64 last = 0, close = constant_word("\0esolc", 0, 6);
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i <= VALUE_LEN_MAX && i <= s->value_len; i++) {
		__u32 is_between = (byte_kinds[bytes[i]] & BETWEEN) / BETWEEN;
		asm volatile("" : "+r"(is_between)); /* or a branch, and the verifier would follow all sequences */
		last = last << 8 | ((bytes[i] | 0x20) & (is_between - 1));
		if (last << 8 == close << 8)
			return true;
	}
	return false;
}

/* Sets `is_close` if the connection ends behind the message. */
static __always_inline bool find_close(struct __sk_buff *skb, struct head_scan *s, bool *is_close)
{
	*is_close = false;
	if (!(s->seen & FIELD_BIT(FIELD_CONNECTION)))
		return true;
	if (s->repeated & FIELD_BIT(FIELD_CONNECTION) || !take_value(skb, s, FIELD_CONNECTION))
		return false;
	*is_close = !VALUE_IS(s, "keep-alive") && has_close(s);
	return true;
}

/* Whether a list has several members. */
__noinline int has_comma(struct head_scan *s)
{
	if (!s)
		return false;
	const __u8 *bytes = (const __u8 *)s->value;
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < VALUE_LEN_MAX && i < s->value_len; i++)
		if (bytes[i] == ',')
			return true;
	return false;
}

/* Whether a range is of the last bytes of an object: `bytes=-500`. */
__noinline int has_suffix(struct head_scan *s)
{
	if (!s)
		return false;
	const __u8 *bytes = (const __u8 *)s->value;
#pragma clang loop unroll(disable)
	for (__u32 i = 1; i < VALUE_LEN_MAX && i < s->value_len; i++)
		if (bytes[i - 1] == '=' && bytes[i] == '-')
			return true;
	return false;
}

static __always_inline bool find_request_flags(struct __sk_buff *skb, struct head_scan *s, __u16 *flags)
{
	bool is_close;
	if (!find_close(skb, s, &is_close))
		return false;
	*flags = (s->is_http10 ? REQUEST_HTTP10 : 0) | (is_close ? REQUEST_CLOSE : 0) |
		 (s->seen & FIELD_BIT(FIELD_CREDENTIALS) ? REQUEST_CREDENTIALS : 0) |
		 (s->seen & FIELD_BIT(FIELD_UPGRADE) ? REQUEST_UPGRADE : 0) |
		 (s->seen & FIELD_BIT(FIELD_EXPECT) ? REQUEST_EXPECT : 0) |
		 (s->seen & FIELD_BIT(FIELD_INPUTS) ? REQUEST_INPUTS : 0);
	if (!(s->seen & FIELD_BIT(FIELD_RANGE)))
		return true;
	if (!take_value(skb, s, FIELD_RANGE))
		return false;
	*flags |= REQUEST_RANGE;
	if (s->repeated & FIELD_BIT(FIELD_RANGE) || has_comma(s))
		*flags |= REQUEST_RANGES;
	else if (has_suffix(s))
		*flags |= REQUEST_SUFFIX;
	return true;
}

/* Reads the head of a request: `len` bytes of payload at `offset` in the frame. Returns the verdict. */
__noinline int scan_request(struct __sk_buff *skb, __u32 offset, __u32 len, struct request_head *out)
{
	if (!out)
		return HEAD_DOUBT;
	*out = (struct request_head){};
	struct head_scan *s = scan_head(skb, offset, len, false, &out->verdict);
	if (!s)
		return out->verdict;
	out->len = s->head_len;
	out->method = s->method;
	if (!find_body(skb, s, false, &out->body, &out->body_len) || !find_request_flags(skb, s, &out->flags))
		*out = (struct request_head){ .verdict = HEAD_DOUBT };
	return out->verdict;
}

#define RANGE_UNIT "bytes "
#define RANGE_UNIT_LEN (sizeof(RANGE_UNIT) - 1)
#define RANGE_LEN_MAX (RANGE_UNIT_LEN + 3 * DIGIT_COUNT_MAX + 2)

/* One byte of Content-Range behind the unit. */
static __always_inline bool step_range(struct head_scan *s, __u8 byte)
{
	__u8 digit = byte - '0';
	__u32 part = s->range_part;
	if (digit <= 9 && part < RANGE_END) {
		__u64 *number = &s->numbers[part & 3];
		*number = *number * 10 + digit;
		return ++s->digits <= DIGIT_COUNT_MAX;
	}
	if (byte == '*' && part == RANGE_COMPLETE && !s->digits) {
		s->numbers[RANGE_COMPLETE] = LENGTH_UNKNOWN;
		s->range_part = RANGE_END;
		return true;
	}
	if (!s->digits || part >= RANGE_COMPLETE || byte != (part == RANGE_FIRST ? '-' : '/'))
		return false;
	s->range_part = part + 1;
	s->digits = 0;
	return true;
}

/* The numbers of Content-Range, in `s->numbers`. */
__noinline int split_range(struct head_scan *s)
{
	if (!s)
		return false;
	const __u8 *bytes = (const __u8 *)s->value;
	s->range_part = RANGE_FIRST;
	s->digits = s->numbers[RANGE_FIRST] = s->numbers[RANGE_LAST] = s->numbers[RANGE_COMPLETE] = 0;
#pragma clang loop unroll(disable)
	for (__u32 i = RANGE_UNIT_LEN; i < RANGE_LEN_MAX && i < s->value_len; i++) {
		forget_registers();
		if (!step_range(s, bytes[i]))
			return false;
	}
	return s->value_len <= RANGE_LEN_MAX &&
	       (s->range_part == RANGE_END || (s->range_part == RANGE_COMPLETE && s->digits));
}

/* The part of the object that the response has, and the length of the object. */
static __always_inline bool find_range(struct __sk_buff *skb, struct head_scan *s, struct response_head *out)
{
	out->complete_len = LENGTH_UNKNOWN;
	if (s->status == 200 && out->body == BODY_BYTES)
		out->complete_len = out->body_len;
	if (s->status != 206)
		return true;
	if (s->seen & FIELD_BIT(FIELD_CONTENT_TYPE)) {
		if (s->repeated & FIELD_BIT(FIELD_CONTENT_TYPE) || !take_value(skb, s, FIELD_CONTENT_TYPE))
			return false;
		if (VALUE_BEGINS(s, "multipart/byteranges"))
			out->flags |= RESPONSE_PARTS;
	}
	if (!(s->seen & FIELD_BIT(FIELD_CONTENT_RANGE)))
		return true;
	if (!take_value(skb, s, FIELD_CONTENT_RANGE) || !VALUE_BEGINS(s, RANGE_UNIT) || !split_range(s))
		return false;
	out->flags |= RESPONSE_PART;
	out->range_first = s->numbers[RANGE_FIRST];
	out->range_last = s->numbers[RANGE_LAST];
	out->complete_len = s->numbers[RANGE_COMPLETE];
	return out->range_first <= out->range_last && out->range_last < out->complete_len;
}

/* Odd, and half of the bits are 1. */
#define VERSION_FACTOR 0x9e3779b97f4a7c15ULL
/* From zero on, the length zero would leave no trace. */
#define VERSION_SEED (1ULL << 63)

/* Different words have different results. The shift brings the upper bits of a product to the lower bits of the next. */
static __always_inline __u64 add_word(__u64 hash, __u64 word)
{
	hash = (hash ^ word) * VERSION_FACTOR;
	return hash ^ hash >> 32;
}

enum version_label { LABEL_ENCODING = 1, LABEL_ETAG = 2, LABEL_MODIFIED = 3 };

/* Adds the value. Label and length come first, so bytes cannot move to another field. */
__noinline __u64 add_value(const struct head_scan *s, __u32 label, __u64 hash)
{
	if (!s)
		return hash;
	hash = add_word(hash, (__u64)label << 32 | s->value_len);
#pragma clang loop unroll(disable)
	for (__u32 i = 0; i < VALUE_LEN_MAX / 8 && 8 * i < s->value_len; i++)
		hash = add_word(hash, s->value[i]);
	return hash;
}

static __always_inline bool add_field(struct __sk_buff *skb, struct head_scan *s, __u32 field, __u32 label, __u64 *hash)
{
	if (!take_value(skb, s, field))
		return false;
	*hash = add_value(s, label, *hash);
	return true;
}

/* Sets `is_strong` if the response has a strong entity tag (RFC 9110, 8.8.3). Then the tag is the value. */
static __always_inline bool find_strong_etag(struct __sk_buff *skb, struct head_scan *s, bool *is_strong)
{
	*is_strong = false;
	if (!(s->seen & FIELD_BIT(FIELD_ETAG)))
		return true;
	if (!take_value(skb, s, FIELD_ETAG))
		return false;
	*is_strong = (s->value[0] & 0xff) == '"';
	return true;
}

/* The hash has what ObjectVersion::compare of http1 compares. The order of the fields in the head does not matter. */
static __always_inline bool find_version(struct __sk_buff *skb, struct head_scan *s, __u32 check,
					 struct response_head *out)
{
	__u32 validators = FIELD_BIT(FIELD_CONTENT_RANGE) | FIELD_BIT(FIELD_CONTENT_ENCODING) | FIELD_BIT(FIELD_ETAG) |
			   FIELD_BIT(FIELD_LAST_MODIFIED);
	__u64 hash = add_word(VERSION_SEED, out->complete_len);
	bool is_strong = false, is_comparable = out->complete_len != LENGTH_UNKNOWN;
	if (s->repeated & validators)
		return false;
	if (check == CHECK_OFF) {
		out->flags |= RESPONSE_COMPARABLE;
		return true;
	}
	if (s->seen & FIELD_BIT(FIELD_CONTENT_ENCODING) &&
	    !add_field(skb, s, FIELD_CONTENT_ENCODING, LABEL_ENCODING, &hash))
		return false;
	if (check == CHECK_ETAG && !find_strong_etag(skb, s, &is_strong))
		return false;
	if (is_strong) {
		hash = add_value(s, LABEL_ETAG, hash);
	} else if (check != CHECK_LENGTH) {
		if (!(s->seen & FIELD_BIT(FIELD_LAST_MODIFIED)))
			is_comparable = false;
		else if (!add_field(skb, s, FIELD_LAST_MODIFIED, LABEL_MODIFIED, &hash))
			return false;
	}
	out->flags |= is_comparable ? RESPONSE_COMPARABLE : 0;
	out->version = hash;
	return true;
}

static __always_inline bool is_bodyless(__u32 status, __u32 method)
{
	return (status >= 100 && status < 200) || status == 204 || status == 304 || method == METHOD_HEAD;
}

/* The head of a response to a request with the method in the lowest byte of `rules`. The version has what the
 * enum version_check in the next byte compares: a function of BPF has at most five arguments. */
__noinline int scan_response_by(struct __sk_buff *skb, __u32 offset, __u32 len, __u32 rules, struct response_head *out)
{
	bool is_close;
	if (!out)
		return HEAD_DOUBT;
	*out = (struct response_head){};
	struct head_scan *s = scan_head(skb, offset, len, true, &out->verdict);
	if (!s)
		return out->verdict;
	out->len = s->head_len;
	out->status = s->status;
	if (find_body(skb, s, is_bodyless(s->status, rules & 0xff), &out->body, &out->body_len) &&
	    find_close(skb, s, &is_close) && find_range(skb, s, out) && find_version(skb, s, rules >> 8, out))
		out->flags |= (s->is_http10 ? RESPONSE_HTTP10 : 0) | (is_close ? RESPONSE_CLOSE : 0) |
			      (s->seen & FIELD_BIT(FIELD_INPUTS) ? RESPONSE_INPUTS : 0);
	else
		*out = (struct response_head){ .verdict = HEAD_DOUBT };
	return out->verdict;
}

/* Reads the head of a response: `len` bytes of payload at `offset` in the frame. Returns the verdict. */
static __always_inline int scan_response(struct __sk_buff *skb, __u32 offset, __u32 len, enum head_method method,
					 enum version_check check, struct response_head *out)
{
	return scan_response_by(skb, offset, len, method | check << 8, out);
}
