/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * HintMessager (paper 001, section IV): tells the server on which core the data is wanted, in a
 * TCP option of every packet that goes to a peer.
 *
 * The hint is made when the consumer's core becomes known (consumer.h), and only put into
 * packets here: these are written in any context, often in a softirq on another core. So the
 * very first request goes without one.
 */
#ifndef EVENKEEL_SAIS_MESSAGER_H
#define EVENKEEL_SAIS_MESSAGER_H

/*
 * The connections that carry our hints: those that were made from here. One that was accepted may
 * carry its client's back, where a server's part runs on the same machine.
 */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, u32);
} carriers SEC(".maps");

static __always_inline u32 tag_of(const struct sais_flow_key *key, u16 core, u16 number)
{
	return sip_hash(settings.hint_key[0], settings.hint_key[1], key, core, number);
}

/* A new hint where the policy has chosen a new core. */
static __always_inline void issue(struct sais_flow *flow, const struct sais_flow_key *key)
{
	struct sais_hint hint = hint_fields(flow->hint);
	u16 core = BE16(flow->core);
	u32 before;

	if (flow->core == NO_CORE || (flow->hint && hint.core == core))
		return;
	/* In the paper's byte there is no room for a tag: its place keeps the core before. */
	before = flow->hint ? BE16(hint.core) : NO_CORE;
	hint.core = core;
	hint.number = BE16(BE16(hint.number) + 1);
	/* 0 is none. */
	if (!hint.number)
		hint.number = BE16(1);
	hint.tag = settings.wire == WIRE_PAPER ? before
					       : tag_of(key, hint.core, hint.number);
	flow->hint = hint_word(hint);
}

static __always_inline bool key_of_writer(struct bpf_sock_ops *ops, struct sais_flow_key *key)
{
	struct bpf_sock *sk = ops->sk;
	struct tcp_sock *tcp;

	if (!sk)
		return false;
	tcp = bpf_skc_to_tcp_sock(sk);
	return tcp && key_of(&tcp->inet_conn.icsk_inet.sk, key);
}

static __always_inline u64 hint_of_writer(struct bpf_sock_ops *ops)
{
	struct sais_flow_key key = {};
	struct sais_flow *flow;

	if (!ops->sk || !bpf_sk_storage_get(&carriers, ops->sk, 0, 0) ||
	    !key_of_writer(ops, &key))
		return 0;
	flow = bpf_map_lookup_elem(&flows, &key);
	return flow ? flow->hint : 0;
}

SEC("sockops")
int message(struct bpf_sock_ops *ops)
{
	struct hint_option option = {
		.kind = HINT_KIND,
		.bytes = sizeof(option),
		.experiment = HINT_EXPERIMENT,
	};
	struct sais_flow_key key = {};

	switch (ops->op) {
	case BPF_SOCK_OPS_TCP_CONNECT_CB:
		/* The server must leave room for what is put into its packets behind its back. */
		if (settings.wire == WIRE_PAPER && key_of_writer(ops, &key) && is_peer(key.remote))
			bpf_setsockopt(ops, SOL_TCP, TCP_MAXSEG, (void *)&settings.paper_segment,
				       sizeof(settings.paper_segment));
		break;
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
		if (key_of_writer(ops, &key) && is_peer(key.remote) && ops->sk &&
		    bpf_sk_storage_get(&carriers, ops->sk, 0, BPF_SK_STORAGE_GET_F_CREATE))
			bpf_sock_ops_cb_flags_set(ops, ops->bpf_sock_ops_cb_flags |
						  BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG);
		break;
	case BPF_SOCK_OPS_HDR_OPT_LEN_CB:
		/* Beside time stamps and three SACK blocks there is no room: that one goes without. */
		if (hint_of_writer(ops))
			bpf_reserve_hdr_opt(ops, sizeof(option), 0);
		break;
	case BPF_SOCK_OPS_WRITE_HDR_OPT_CB:
		option.hint = hint_of_writer(ops);
		if (option.hint && !bpf_store_hdr_opt(ops, &option, sizeof(option), 0))
			count_anywhere(COUNT_HINTS_SENT);
		break;
	}
	return 1;
}

#endif
