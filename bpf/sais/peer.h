/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The peers that hints are exchanged with.
 */
#ifndef EVENKEEL_SAIS_PEER_H
#define EVENKEEL_SAIS_PEER_H

/* Addresses by their first bits. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_PEERS);
	__type(key, struct sais_peer);
	__type(value, u32);
} peers SEC(".maps");

static __always_inline bool is_peer(const u32 address[4])
{
	struct sais_peer peer = { .prefix_bits = 128 };

	__builtin_memcpy(peer.address, address, sizeof(peer.address));
	return bpf_map_lookup_elem(&peers, &peer);
}

/* The address at the other end of a socket of IP. */
static __always_inline void remote_address(const struct sock_common *common, u32 address[4])
{
	if (common->skc_family == AF_INET) {
		address[0] = 0;
		address[1] = 0;
		address[2] = MAPPED;
		address[3] = common->skc_daddr;
	} else {
		/* IPv4 on such a socket is in the mapped form already. */
		address[0] = common->skc_v6_daddr.in6_u.u6_addr32[0];
		address[1] = common->skc_v6_daddr.in6_u.u6_addr32[1];
		address[2] = common->skc_v6_daddr.in6_u.u6_addr32[2];
		address[3] = common->skc_v6_daddr.in6_u.u6_addr32[3];
	}
}

#endif
