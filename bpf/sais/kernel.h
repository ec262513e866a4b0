/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * All that SAIs uses of the kernel: the fields of its types that are read (relocated at
 * load time), and its functions.
 */
#ifndef EVENKEEL_SAIS_KERNEL_H
#define EVENKEEL_SAIS_KERNEL_H

#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

typedef __u8 u8;
typedef __u16 u16;
typedef __u32 u32;
typedef __u64 u64;
typedef __s16 s16;
typedef __s32 s32;

/* include/linux/socket.h */
#define AF_INET 2
#define AF_INET6 10
/* include/uapi/linux/bpf.h, since 6.6: hands the socket to the next program. */
#define TCX_NEXT -1
/* include/uapi/asm-generic/errno.h */
#define ENOMSG 42
/* include/uapi/linux/tcp.h, include/linux/socket.h */
#define TCP_MAXSEG 2
#define SOL_TCP 6
/* include/net/tcp_states.h */
#define TCP_SYN_RECV 3
#define TCP_CLOSE 7
#define TCP_LISTEN 10

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct net {
	u64 net_cookie;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct in6_addr {
	union {
		u32 u6_addr32[4];
	} in6_u;
};

struct sock_common {
	u32 skc_daddr;
	u32 skc_rcv_saddr;
	u16 skc_dport;
	unsigned short skc_family;
	possible_net_t skc_net;
	int skc_incoming_cpu;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
};

struct sock {
	struct sock_common __sk_common;
};

struct inet_sock {
	struct sock sk;
	u16 inet_sport;
};

struct inet_connection_sock {
	struct inet_sock icsk_inet;
};

struct tcp_sock {
	struct inet_connection_sock inet_conn;
	u32 rcv_nxt;
};

struct thread_info {
	u32 cpu;
};

struct task_struct {
	struct thread_info thread_info;
	struct task_struct *group_leader;
	u64 start_boottime;
};

#pragma clang attribute pop

/* Of a thread by its number, NULL when it is gone; to be given back. */
struct task_struct *bpf_task_from_pid(s32 pid) __ksym;
void bpf_task_release(struct task_struct *task) __ksym;

#endif
