/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * Each header of bpf/lib alone, on packets: tests/it/lib_headers.rs compares the findings with the crate `wire`.
 */
#include "lib/kernel.h"
#include "lib/siphash.h"
#include "lib/sequence.h"
#include "lib/bytes.h"
#include "lib/packet.h"
#include "lib/edit.h"
#include "lib/options.h"
#include "lib/checksum.h"
#include "lib/process.h"

struct findings {
	__u32 is_segment;
	__u32 seq;
	__u32 ack;
	__u32 window;
	__u32 flags;
	__u32 payload_len;
	__u32 sequence_len;
	__u32 tsval;
	__u32 tsecr;
	__u32 mss; /* offset of the option */
	__u32 window_scale;
	__u32 sack_permitted;
	__u32 sack_len;
	__u32 stripped;
	__u32 header_checksum; /* of the header as a segment without payload, in the order of the wire */
	__u32 is_after_ack;
	__u32 own_pid_namespace;
	__u32 pad;
	__u64 hash;
	__u8 source[16];
	__u8 destination[16];
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct findings);
} found SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct header_edit);
} headers SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sip_input);
} words SEC(".maps");

SEC("tc") int parse(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct findings *f = bpf_map_lookup_elem(&found, &zero);
	struct header_edit *h = bpf_map_lookup_elem(&headers, &zero);
	struct packet p = {};
	if (!f || !h)
		return TCX_DROP;
	__builtin_memset(f, 0, sizeof(*f));
	if (!parse_ip(skb, &p, f->source, f->destination) || !parse_tcp(skb, &p, h->tcp))
		return TCX_PASS;
	f->is_segment = 1;
	f->seq = p.seq;
	f->ack = p.ack;
	f->window = p.window;
	f->flags = p.flags;
	f->payload_len = p.payload_len;
	f->sequence_len = sequence_len(&p);
	f->is_after_ack = after(p.seq, p.ack);
	begin_edit(h);
	struct options o = find_options(h, &p, true);
	if (o.timestamps) {
		f->tsval = option_tsval(h->tcp, &o);
		f->tsecr = option_tsecr(h->tcp, &o);
	}
	f->mss = o.mss;
	f->window_scale = scale_of(&o);
	f->sack_permitted = o.sack_permitted;
	f->sack_len = o.sack_len;
	f->stripped = o.stripped;
	if (store_edit(skb, h, &p))
		return TCX_DROP;
	begin_edit(h);
	h->edit[TCP_CHECKSUM] = h->edit[TCP_CHECKSUM + 1] = 0;
	seal(h->edit, p.header_len, f->source, f->destination, true);
	f->header_checksum = (__u32)h->edit[TCP_CHECKSUM] << 8 | h->edit[TCP_CHECKSUM + 1];
	return TCX_PASS;
}

/* The sequence number and the acknowledgement, exchanged. */
SEC("tc") int exchange(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct findings *f = bpf_map_lookup_elem(&found, &zero);
	struct header_edit *h = bpf_map_lookup_elem(&headers, &zero);
	struct packet p = {};
	if (!f || !h || !parse_ip(skb, &p, f->source, f->destination) || !parse_tcp(skb, &p, h->tcp))
		return TCX_DROP;
	begin_edit(h);
	write32(h->edit + TCP_SEQ, read32(h->tcp + TCP_ACK_SEQ));
	write32(h->edit + TCP_ACK_SEQ, read32(h->tcp + TCP_SEQ));
	return store_edit(skb, h, &p) ? TCX_DROP : TCX_PASS;
}

SEC("tc") int hash(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct findings *f = bpf_map_lookup_elem(&found, &zero);
	struct sip_input *input = bpf_map_lookup_elem(&words, &zero);
	if (!f || !input)
		return TCX_DROP;
	f->hash = siphash(input, SIPHASH_WORDS, 7, 11);
	return TCX_PASS;
}

/* The PID namespace of the process that runs this program. */
SEC("syscall") int pid_namespace_number(void *context)
{
	__u32 zero = 0;
	struct findings *f = bpf_map_lookup_elem(&found, &zero);
	struct task_struct *task = (void *)bpf_get_current_task();
	if (!f)
		return -EINVAL;
	f->own_pid_namespace = own_pid_namespace();
	return process_number(task, f->own_pid_namespace);
}

char LICENSE[] SEC("license") = "GPL";
