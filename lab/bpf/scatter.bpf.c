// SPDX-License-Identifier: GPL-2.0-only
/*
 * A contestant of `evenkeel-lab bench sais`: each packet goes to the core after that of the packet
 * before it, wherever its consumer is. So each connection is spread over all cores.
 */
#include "../../bpf/sais/kernel.h"
#include "../../bpf/sais/intf.h"

struct {
	__uint(type, BPF_MAP_TYPE_CPUMAP);
	__uint(max_entries, MAX_CPUS);
	__type(key, u32);
	__type(value, struct bpf_cpumap_val);
} threads SEC(".maps");

/* Set at load: the cores, and how many they are. */
const volatile struct {
	u32 cores[MAX_CPUS];
	u32 number;
} order SEC(".rodata.order");

/* Not atomic: where two CPUs take packets at once, they may take the same turn. That does no harm. */
u32 turn SEC(".data.turn");

SEC("xdp")
int scatter(struct xdp_md *ctx)
{
	u32 number = order.number;

	if (!number)
		return XDP_PASS;
	return bpf_redirect_map(&threads, order.cores[turn++ % number & (MAX_CPUS - 1)], XDP_PASS);
}

char LICENSE[] SEC("license") = "GPL";
