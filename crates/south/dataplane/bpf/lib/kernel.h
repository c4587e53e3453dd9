/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
 *
 * The part of the kernel's interface that our programs use, written down here so that the
 * build needs neither system headers nor a vmlinux.h of some build host:
 *
 *  - constants and structures of the stable UAPI (their values never change);
 *  - kernel-internal structures, with only the fields that we read. They are CO-RE shadows:
 *    libbpf relocates each access against the running kernel's BTF, so the offsets written
 *    here do not matter and a missing field is named when the object is loaded.
 */
#pragma once

typedef unsigned char __u8;
typedef signed char __s8;
typedef unsigned short __u16;
typedef short __s16;
typedef unsigned int __u32;
typedef int __s32;
typedef unsigned long long __u64;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u64 __be64;
typedef __u16 __sum16;
typedef __u32 __wsum;
typedef _Bool bool;
#define true 1
#define false 0
#define NULL ((void *)0)
#define offsetof(type, member) __builtin_offsetof(type, member)

/* linux/bpf.h */
enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PROG_ARRAY = 3,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_ARRAY_OF_MAPS = 12,
	BPF_MAP_TYPE_RINGBUF = 27,
};
#define BPF_ANY 0
#define BPF_NOEXIST 1

#define ENOENT 2
#define EFAULT 14
#define EEXIST 17
#define EINVAL 22
#define ENOSPC 28
#define BPF_F_NO_PREALLOC (1U << 0)
#define BPF_F_MMAPABLE (1U << 10)
#define BPF_F_INGRESS (1ULL << 0)
#define BPF_F_RECOMPUTE_CSUM (1ULL << 0)
#define BPF_ADJ_ROOM_NET 0
#define BPF_ADJ_ROOM_MAC 1
#define BPF_F_ADJ_ROOM_FIXED_GSO (1ULL << 0)
#define BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 (1ULL << 1)
#define BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 (1ULL << 2)
#define BPF_F_ADJ_ROOM_ENCAP_L4_UDP (1ULL << 4)
#define BPF_RB_NO_WAKEUP (1ULL << 0)
#define BPF_RB_FORCE_WAKEUP (1ULL << 1)
#define BPF_RB_AVAIL_DATA 0
#define BPF_RB_CONS_POS 2
#define BPF_RB_PROD_POS 3

struct bpf_dynptr {
	__u64 opaque[2];
} __attribute__((aligned(8)));

/* linux/bpf.h: up to the last field that is read */
struct bpf_sock {
	__u32 bound_dev_if;
	__u32 family;
	__u32 type;
	__u32 protocol;
};

struct bpf_tcp_sock {
	__u32 snd_cwnd;
	__u32 srtt_us;
	__u32 rtt_min;
	__u32 snd_ssthresh;
	__u32 rcv_nxt;
	__u32 snd_nxt;
};

struct __sk_buff {
	__u32 len;
	__u32 pkt_type;
	__u32 mark;
	__u32 queue_mapping;
	__u32 protocol;
	__u32 vlan_present;
	__u32 vlan_tci;
	__u32 vlan_proto;
	__u32 priority;
	__u32 ingress_ifindex;
	__u32 ifindex;
	__u32 tc_index;
	__u32 cb[5];
	__u32 hash;
	__u32 tc_classid;
	__u32 data;
	__u32 data_end;
	__u32 napi_id;
	__u32 family;
	__u32 remote_ip4;
	__u32 local_ip4;
	__u32 remote_ip6[4];
	__u32 local_ip6[4];
	__u32 remote_port;
	__u32 local_port;
	__u32 data_meta;
	__u64 flow_keys;
	__u64 tstamp;
	__u32 wire_len;
	__u32 gso_segs;
	struct bpf_sock *sk;
	__u32 gso_size;
};

struct xdp_md {
	__u32 data;
	__u32 data_end;
	__u32 data_meta;
	__u32 ingress_ifindex;
	__u32 rx_queue_index;
	__u32 egress_ifindex;
};

struct bpf_redir_neigh {
	__u32 nh_family;
	union {
		__be32 ipv4_nh;
		__u32 ipv6_nh[4];
	};
};

/* linux/skbuff.h */
#define CHECKSUM_PARTIAL 3

/* linux/pkt_cls.h: TCX_NEXT lets the programs after ours run, and means "continue" to clsact too. */
#define TCX_NEXT (-1)
#define TCX_PASS 0
#define TCX_DROP 2

/* linux/bpf.h, enum xdp_action */
#define XDP_PASS 2
#define XDP_TX 3

/* linux/net.h */
#define SOCK_STREAM 1

/* linux/if_ether.h, linux/in.h, linux/socket.h */
#define ETH_HLEN 14
#define ETH_ALEN 6
#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86DD
#define IPPROTO_HOPOPTS 0
#define IPPROTO_TCP 6
#define IPPROTO_UDP 17
#define AF_INET 2
#define AF_INET6 10

/* linux/tcp_states.h */
enum {
	TCP_ESTABLISHED = 1,
	TCP_SYN_RECV = 3,
	TCP_FIN_WAIT1 = 4,
	TCP_FIN_WAIT2 = 5,
	TCP_CLOSE = 7,
	TCP_LAST_ACK = 9,
	TCP_LISTEN = 10,
	TCP_CLOSING = 11,
};

/* net/sock.h */
#define RCV_SHUTDOWN 1

/* linux/pid.h, linux/pid_namespace.h: namespaces within each other */
#define PIDTYPE_TGID 1
#define PID_LEVELS_MOST 33

/* linux/sched.h, linux/sched/signal.h, signal.h */
#define SIGNAL_GROUP_EXIT 0x00000004
#define SIGPIPE 13

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct sk_buff {
	__u8 ip_summed : 2;
};
struct net {
	__u64 net_cookie;
};
typedef struct {
	struct net *net;
} possible_net_t;
struct in6_addr {
	union {
		__u8 u6_addr8[16];
		__be32 u6_addr32[4];
	} in6_u;
};
struct sock_common {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	__u16 skc_num;
	unsigned short skc_family;
	possible_net_t skc_net;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
};
struct sock {
	struct sock_common __sk_common;
	__u8 sk_shutdown;
	__u16 sk_protocol;
};
struct inet_sock {
	struct sock sk;
	__be16 inet_sport;
};
struct inet_bind_bucket;
struct inet_connection_sock {
	struct inet_sock icsk_inet;
	struct inet_bind_bucket *icsk_bind_hash;
};
/* linux/win_minmax.h */
struct minmax_sample {
	__u32 t;
	__u32 v;
};
struct minmax {
	struct minmax_sample s[3];
};
struct tcp_sock {
	struct inet_connection_sock inet_conn;
	__u64 bytes_received;
	__u32 rcv_nxt;
	__u32 srtt_us;
	struct minmax rtt_min;
};
struct seq_file;
struct bpf_iter_meta {
	struct seq_file *seq;
};
struct bpf_iter__tcp {
	struct bpf_iter_meta *meta;
	struct sock_common *sk_common;
};
typedef struct {
	int counter;
} atomic_t;
struct ns_common {
	unsigned int inum;
};
struct pid_namespace {
	struct ns_common ns;
};
struct upid {
	int nr;
	struct pid_namespace *ns;
};
struct pid {
	unsigned int level;
	struct upid numbers[1];
};
struct signal_struct {
	atomic_t live;
	unsigned int flags;
	struct pid *pids[4];
};
struct task_struct {
	int pid;
	int tgid;
	int exit_code;
	struct signal_struct *signal;
};
#pragma clang attribute pop

/* The helpers, which need the types above. */
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>
