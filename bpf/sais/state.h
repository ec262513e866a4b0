/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The maps, and what all parts need: counting, and a socket's connection.
 */
#ifndef EVENKEEL_SAIS_STATE_H
#define EVENKEEL_SAIS_STATE_H

/*
 * The connections that were made from here, and those that existed when the programs were attached. Only
 * sockets of this host make entries, never packets: no remote host can fill it.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_FLOWS);
	__type(key, struct sais_flow_key);
	__type(value, struct sais_flow);
} flows SEC(".maps");

/* The connections that were accepted: a remote host can make many, which evict only each other. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_ACCEPTED);
	__type(key, struct sais_flow_key);
	__type(value, struct sais_flow);
} accepted_flows SEC(".maps");

/* Has an entry for each socket that was accepted since the programs were attached. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, u32);
} accepted SEC(".maps");

/* The threads that wait for data: only where threads are held. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_READERS);
	__type(key, u32);
	__type(value, struct sais_reader);
} readers SEC(".maps");

/* A kernel thread on each core that may be used: it does a packet's softirq there. */
struct {
	__uint(type, BPF_MAP_TYPE_CPUMAP);
	__uint(max_entries, 1);		/* set to the number of possible CPUs at load */
	__type(key, u32);
	__type(value, struct bpf_cpumap_val);
} threads SEC(".maps");

const volatile struct sais_settings settings SEC(".rodata.settings");
struct sais_live live SEC(".data.live");

/* By CPU: an element is found by an addition, which a per-CPU map takes a lookup for. */
struct sais_cpu cpus[MAX_CPUS] __attribute__((aligned(64)));

/* Only where softirqs cannot interrupt: in one, or where they are off. */
static __always_inline void count(enum sais_counter counter, u64 number)
{
	cpus[bpf_get_smp_processor_id() & (MAX_CPUS - 1)].counters[counter] += number;
}

/* The same wherever it is: a softirq may come in between. */
static __always_inline void count_anywhere(enum sais_counter counter)
{
	u32 here = bpf_get_smp_processor_id() & (MAX_CPUS - 1);

	__sync_fetch_and_add(&cpus[here].counters[counter], 1);
}

/* False: not a TCP connection in the namespace of the device. */
static __always_inline bool key_of(struct sock *sk, struct sais_flow_key *key)
{
	const struct sock_common *common = &sk->__sk_common;
	u16 family = common->skc_family;
	struct tcp_sock *tcp;

	if (family != AF_INET && family != AF_INET6)
		return false;
	tcp = bpf_skc_to_tcp_sock(sk);
	if (!tcp || common->skc_net.net->net_cookie != settings.netns_cookie)
		return false;
	remote_address(common, key->remote);
	if (family == AF_INET) {
		key->local[2] = MAPPED;
		key->local[3] = common->skc_rcv_saddr;
	} else {
		key->local[0] = common->skc_v6_rcv_saddr.in6_u.u6_addr32[0];
		key->local[1] = common->skc_v6_rcv_saddr.in6_u.u6_addr32[1];
		key->local[2] = common->skc_v6_rcv_saddr.in6_u.u6_addr32[2];
		key->local[3] = common->skc_v6_rcv_saddr.in6_u.u6_addr32[3];
	}
	key->remote_port = common->skc_dport;
	/* skc_num is 0 already when a connection is closed. */
	key->local_port = tcp->inet_conn.icsk_inet.inet_sport;
	return key->remote_port != 0;
}

#endif
