/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * HintCapsuler (paper 001, section IV), on the server: puts the hint that a client sent last
 * into every packet that goes back to it. What it means is the client's business.
 */
#ifndef EVENKEEL_SAIS_CAPSULER_H
#define EVENKEEL_SAIS_CAPSULER_H

/* Of each connection, the hint that was heard last. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, u64);
} heard SEC(".maps");

static __always_inline bool is_of_peer(struct bpf_sock_ops *ops)
{
	struct bpf_sock *sk = ops->sk;
	struct tcp_sock *tcp = sk ? bpf_skc_to_tcp_sock(sk) : 0;
	u32 address[4];

	if (!tcp)
		return false;
	remote_address(&tcp->inet_conn.icsk_inet.sk.__sk_common, address);
	return is_peer(address);
}

static __always_inline void hear(struct bpf_sock_ops *ops)
{
	struct hint_option option = {
		.kind = HINT_KIND,
		/* What is searched for: kind, length and the experiment's number. */
		.bytes = offsetof(struct hint_option, hint),
		.experiment = HINT_EXPERIMENT,
	};
	long bytes = bpf_load_hdr_opt(ops, &option, sizeof(option), 0);
	struct bpf_sock *sk = ops->sk;
	u64 *hint;

	if (bytes == -ENOMSG)
		return;
	if (bytes != sizeof(option) || option.bytes != sizeof(option)) {
		count_anywhere(SERVED_MALFORMED);
		return;
	}
	if (!sk)
		return;
	hint = bpf_sk_storage_get(&heard, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!hint)
		return;
	*hint = option.hint;
	count_anywhere(SERVED_HEARD);
}

static __always_inline u64 last_heard(struct bpf_sock_ops *ops)
{
	struct bpf_sock *sk = ops->sk;
	u64 *hint = sk ? bpf_sk_storage_get(&heard, sk, 0, 0) : 0;

	return hint ? *hint : 0;
}

SEC("sockops")
int capsule(struct bpf_sock_ops *ops)
{
	struct hint_option option = {
		.kind = HINT_KIND,
		.bytes = sizeof(option),
		.experiment = HINT_EXPERIMENT,
	};
	int flags;

	switch (ops->op) {
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		if (is_of_peer(ops)) {
			flags = ops->bpf_sock_ops_cb_flags |
				BPF_SOCK_OPS_PARSE_UNKNOWN_HDR_OPT_CB_FLAG;
			if (settings.wire == WIRE_TCP)
				flags |= BPF_SOCK_OPS_WRITE_HDR_OPT_CB_FLAG;
			bpf_sock_ops_cb_flags_set(ops, flags);
			count_anywhere(SERVED_CONNECTIONS);
		}
		break;
	case BPF_SOCK_OPS_PARSE_HDR_OPT_CB:
		hear(ops);
		break;
	case BPF_SOCK_OPS_HDR_OPT_LEN_CB:
		/* Where there is no room (three SACK blocks), that packet goes without. */
		if (last_heard(ops))
			bpf_reserve_hdr_opt(ops, sizeof(option), 0);
		break;
	case BPF_SOCK_OPS_WRITE_HDR_OPT_CB:
		option.hint = last_heard(ops);
		if (option.hint && !bpf_store_hdr_opt(ops, &option, sizeof(option), 0))
			count_anywhere(SERVED_ECHOED);
		break;
	}
	return 1;
}

/*
 * The paper's wire format, behind TCP's back: on the device by which packets leave, in IPv4
 * packets without other options. A packet that comes in one piece from TCP is cut into segments
 * later, each with the byte.
 */
SEC("tcx/egress")
int capsule_byte(struct __sk_buff *skb)
{
	struct paper_option option = {};
	struct bpf_sock *sk = skb->sk;
	struct ipv4_header ip;
	struct sais_hint hint;
	u64 *last;
	u16 core;

	sk = sk ? bpf_sk_fullsock(sk) : 0;
	if (!sk || skb->protocol != ETHERTYPE_IPV4)
		return TCX_NEXT;
	last = bpf_sk_storage_get(&heard, sk, 0, 0);
	if (!last || bpf_skb_load_bytes(skb, sizeof(struct ethernet_header), &ip, sizeof(ip)) ||
	    ip.version_length != USUAL_IPV4 || ip.protocol != PROTOCOL_TCP)
		return TCX_NEXT;
	hint = hint_fields(*last);
	core = BE16(hint.core);
	if (core > PAPER_CORE_MASK || BE16(ip.total_bytes) + sizeof(option) > 0xffff ||
	    bpf_skb_adjust_room(skb, sizeof(option), BPF_ADJ_ROOM_NET, BPF_F_ADJ_ROOM_FIXED_GSO)) {
		count_anywhere(SERVED_NO_ROOM);
		return TCX_NEXT;
	}
	option.core = PAPER_CLASS | core;
	ip.version_length = PAPER_IPV4;
	ip.total_bytes = BE16(BE16(ip.total_bytes) + sizeof(option));
	ip.checksum = 0;
	ip.checksum = header_checksum(&ip, BE16(option.core << 8));
	bpf_skb_store_bytes(skb, sizeof(struct ethernet_header), &ip, sizeof(ip), 0);
	bpf_skb_store_bytes(skb, sizeof(struct ethernet_header) + sizeof(ip), &option, sizeof(option),
			    0);
	count_anywhere(SERVED_ECHOED);
	return TCX_NEXT;
}

#endif
