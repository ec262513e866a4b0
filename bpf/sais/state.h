/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The maps, and what all parts need of them.
 */
#ifndef EVENKEEL_SAIS_STATE_H
#define EVENKEEL_SAIS_STATE_H

/*
 * Only sockets of this host make entries, never packets: nobody outside can fill it.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_FLOWS);
	__type(key, struct sais_flow_key);
	__type(value, struct sais_flow);
} flows SEC(".maps");

/* A kernel thread on each core that may be used: it does a packet's softirq there. */
struct {
	__uint(type, BPF_MAP_TYPE_CPUMAP);
	__uint(max_entries, 1);		/* set to the number of possible CPUs at load */
	__type(key, u32);
	__type(value, struct bpf_cpumap_val);
} threads SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct sais_cpu);
} cpus SEC(".maps");

const volatile struct sais_settings settings SEC(".rodata.settings");
struct sais_live live SEC(".data.live");

/* Only where softirqs cannot interrupt: in one, or where they are off. */
static __always_inline void count(enum sais_counter counter, u64 number)
{
	u32 first = 0;
	struct sais_cpu *c = bpf_map_lookup_elem(&cpus, &first);

	if (c)
		c->counters[counter] += number;
}

static __always_inline bool is_allowed(u32 core)
{
	return core < MAX_CPUS && live.allowed[core / 64] >> (core % 64) & 1;
}

#endif
