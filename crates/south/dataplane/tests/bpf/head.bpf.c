/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * The scanner of heads alone, on frames: tests/it/heads.rs compares the findings with the crate `objects`.
 */
#include "objects/head.h"

struct head_input {
	__u32 offset;
	__u32 len;
	__u32 method; /* enum head_method */
	__u32 check; /* enum version_check */
	__u32 is_response; /* for `sent` */
	__u32 linear_payload; /* written by `sent`: bytes of payload before the fragments */
};
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct head_input);
} inputs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct request_head);
} requests SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct response_head);
} responses SEC(".maps");

SEC("tc") int request(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct head_input *input = bpf_map_lookup_elem(&inputs, &zero);
	struct request_head *found = bpf_map_lookup_elem(&requests, &zero);
	if (!input || !found)
		return TCX_DROP;
	return scan_request(skb, input->offset, input->len, found);
}

SEC("tc") int response(struct __sk_buff *skb)
{
	__u32 zero = 0;
	struct head_input *input = bpf_map_lookup_elem(&inputs, &zero);
	struct response_head *found = bpf_map_lookup_elem(&responses, &zero);
	if (!input || !found)
		return TCX_DROP;
	return scan_response(skb, input->offset, input->len, input->method, input->check, found);
}

/* The same on segments to port 80, at egress: the payload is in fragments. */
SEC("tc") int sent(struct __sk_buff *skb)
{
	__u8 source[16], destination[16], tcp[TCP_HEADER_MIN + 64]; /* for the verifier of Linux 6.1 */
	struct packet p = {};
	__u32 zero = 0;
	struct head_input *input = bpf_map_lookup_elem(&inputs, &zero);
	struct request_head *req = bpf_map_lookup_elem(&requests, &zero);
	struct response_head *resp = bpf_map_lookup_elem(&responses, &zero);
	if (!input || !req || !resp || !parse_ip(skb, &p, source, destination) || !parse_tcp(skb, &p, tcp))
		return TCX_NEXT;
	if (tcp[2] || tcp[3] != 80 || !p.payload_len)
		return TCX_NEXT;
	__u32 offset = p.tcp_offset + p.header_len, linear = skb->data_end - skb->data;
	input->linear_payload = linear > offset ? linear - offset : 0;
	if (input->is_response)
		scan_response(skb, offset, p.payload_len, input->method, input->check, resp);
	else
		scan_request(skb, offset, p.payload_len, req);
	return TCX_NEXT;
}

char LICENSE[] SEC("license") = "GPL";
