// SPDX-License-Identifier: GPL-2.0-only
/*
 * What is taken off the cost of bpf/sais/sais.bpf.c: a program that does nothing, and programs that do
 * nothing but call one of the kernel's functions that it calls.
 */
#include "../../bpf/sais/kernel.h"
#include "../../bpf/sais/intf.h"

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_FLOWS);
	__type(key, struct sais_flow_key);
	__type(value, struct sais_flow);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_CPUMAP);
	__uint(max_entries, MAX_CPUS);
	__type(key, u32);
	__type(value, struct bpf_cpumap_val);
} threads SEC(".maps");

const volatile struct sais_flow_key key SEC(".rodata.key");

/* Set before each is run. */
struct {
	u32 core;
	u32 tid;
} wanted SEC(".data.wanted");

SEC("xdp")
int nothing(struct xdp_md *ctx)
{
	return XDP_PASS;
}

SEC("xdp")
int find(struct xdp_md *ctx)
{
	return bpf_map_lookup_elem(&flows, (const void *)&key) ? XDP_PASS : XDP_ABORTED;
}

SEC("xdp")
int redirect(struct xdp_md *ctx)
{
	return bpf_redirect_map(&threads, wanted.core, XDP_PASS);
}

SEC("xdp")
int ask(struct xdp_md *ctx)
{
	struct task_struct *task = bpf_task_from_pid(wanted.tid);

	if (!task)
		return XDP_ABORTED;
	bpf_task_release(task);
	return XDP_PASS;
}

char LICENSE[] SEC("license") = "GPL";
