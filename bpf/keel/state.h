/* SPDX-License-Identifier: GPL-2.0-only */
/* The keel's data: what user space sets, and the state of CPUs and tasks. */
#ifndef EVENKEEL_KEEL_STATE_H
#define EVENKEEL_KEEL_STATE_H

const volatile struct keel_settings settings SEC(".rodata.settings");
const volatile struct keel_topology topology SEC(".rodata.topology");
struct keel_tunables tunables SEC(".data.tunables") = {
	.slice_ns = 4000000,
	.scan_limit = 64,
	.max_idle_wait_ns = 10000000,
	.sibling_window = 128,
	.sibling_kick = KICK_IDLE,
};
struct keel_capabilities capabilities SEC(".data.capabilities") = {};
struct keel_roles roles SEC(".data.roles") = {
	.role = { [0 ... MAX_CPUS - 1] = NO_ROLE },
};
struct keel_exit exit_report SEC(".data.exit");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_CPUS);	/* set to the number of CPUs at load */
	__type(key, u32);
	__type(value, struct cpu_state);
} cpus SEC(".maps");

/* The address spaces that aggregate, written by user space. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_SPACES);
	__type(key, u64);
	__type(value, struct keel_space);
} spaces SEC(".maps");

/* Counts how often user space has changed any of them, after it has. */
u64 spaces_set SEC(".data.spaces_set");

/* What a group's master aggregates, 0: nothing, and which CPU that was when it said so last. */
struct published {
	u64 space;
	u64 master;
};
/* Of each group. Only masters write it. */
struct published ia_mm[MAX_CPUS];

/* A task's state. Who touches it holds the lock of the task's runqueue, unless said otherwise. */
struct task_state {
	u64 seen_space;		/* its address space as of the last tick or start */
	u64 vruntime;		/* by the clock of `home` */
	u64 weight;		/* what it weighs now, the shares of its cgroups included */
	u64 counted_weight;	/* what it adds to a CPU's load */
	u64 grouped_weight;	/* what it adds to its cgroup */
	u64 executed_ns;	/* the kernel's sum_exec_runtime, up to which it is charged */
	u64 waiting_since_ns;	/* 0: is in no queue */
	u64 rested_since_ns;	/* when it last stopped running */
	u64 run_share;		/* decay_share() as of share_since_ns */
	u64 share_since_ns;
	u64 bound_share;	/* the same of the time that it does not wait: balance_update_bound_share() */
	u64 bound_known_ns;	/* how much of that time there was, up to BOUND_NS */
	u64 slept_since_ns;	/* it sleeps since then, for bound_share; 0: it does not */
	u64 above_since_ns;	/* that share is above the gate's limit; 0: it is not */
	u64 space;		/* its address space when it was last placed */
	u64 listed_as;		/* the key by which it stands in the index of siblings */
	u32 home;		/* the CPU whose queue it is or was in last */
	u32 counted_on;		/* 1 + the CPU whose load it adds to; 0: sleeps; atomic */
	u32 group;		/* its cgroup's slot */
	u32 is_new;		/* not placed in any queue yet */
	u32 bound;		/* balance_is_cpu_bound() */
	u32 memory;		/* 1 + the node on which its program first ran; 0: it has not yet */
	u32 pushed_off;		/* a higher class took its CPU */
	u32 leaves_to;		/* 1 + the CPU that it was taken off its own for; 0: none */
	u32 is_turn;		/* and that to change places with who runs there */
	u32 kept;		/* as it wakes, the gate keeps it from a CPU that idles */
	u32 barred;		/* may run on CPUs that are not shielded, and so on no shielded one */
	u32 listings;		/* how often it was entered there */
	u32 listed_on;		/* 1 + the CPU in whose queue it waits, by the index of siblings; 0: none; atomic */
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task_state);
} tasks SEC(".maps");

/* A bit a CPU. Hints that save looking at all of them. */
struct cpu_bits {
	u64 word[MAX_CPUS / 64];
};

/* CPUs with somebody waiting in their queue. */
struct cpu_bits waiting_cpus;
/* CPUs that idle. */
struct cpu_bits idle_cpus;

static __always_inline void set_bit(struct cpu_bits *bits, u32 cpu)
{
	u64 *word = &bits->word[BOUNDED(cpu, MAX_CPUS) / 64], bit = 1ULL << (cpu & 63);

	if (!(READ_ONCE(*word) & bit))
		__sync_fetch_and_or(word, bit);
}

static __always_inline void clear_bit(struct cpu_bits *bits, u32 cpu)
{
	u64 *word = &bits->word[BOUNDED(cpu, MAX_CPUS) / 64], bit = 1ULL << (cpu & 63);

	if (READ_ONCE(*word) & bit)
		__sync_fetch_and_and(word, ~bit);
}

static __always_inline bool has_bit(struct cpu_bits *bits, u32 cpu)
{
	return READ_ONCE(bits->word[BOUNDED(cpu, MAX_CPUS) / 64]) & 1ULL << (cpu & 63);
}

/* Unrolled, because the verifier takes out what is beyond the machine's CPUs. */
static __always_inline bool has_any_bit(struct cpu_bits *bits)
{
	u64 words = 0;

	/* On most machines: of the words that the verifier takes out, it leaves the comparisons. */
	if (settings.cpus <= 64)
		return READ_ONCE(bits->word[0]);
#pragma GCC unroll 16
	for (u32 i = 0; i < MAX_CPUS / 64; i++)
		if (i * 64 < settings.cpus)
			words |= READ_ONCE(bits->word[i]);
	return words;
}

static __always_inline struct cpu_state *cpu_state(u32 cpu)
{
	return bpf_map_lookup_elem(&cpus, &cpu);
}

static __always_inline struct task_state *task_state(struct task_struct *p)
{
	return bpf_task_storage_get(&tasks, p, 0, 0);
}

/* For who has the state of the CPU that executes this at hand, as a CPU's own dispatch does. */
static __always_inline void count_on(struct cpu_state *c, u32 counter)
{
	c->counters[BOUNDED(counter, MAX_COUNTERS)]++;
}

/* By the CPU that executes this, so that no two ever count in one place. */
static __always_inline void count(u32 counter)
{
	struct cpu_state *c = cpu_state(bpf_get_smp_processor_id());

	if (c)
		count_on(c, counter);
}

/* A search in the index of siblings that looked at so many entries. */
static __always_inline void count_search(u32 looked)
{
	struct cpu_state *c = cpu_state(bpf_get_smp_processor_id());

	if (!c)
		return;
	count_on(c, COUNT_SEARCH);
	c->counters[COUNT_SEARCHED] += looked;
}

static __always_inline struct order_params order_params(void)
{
	return (struct order_params){
		.kind = settings.order,
		.slice_ns = READ_ONCE(tunables.slice_ns),
	};
}

static __always_inline struct gate_params gate_params(void)
{
	return (struct gate_params){
		.kind = settings.gate,
		.zone = &tunables.zone[READ_ONCE(tunables.zone_at) & 1],
	};
}

static __always_inline struct balance_params balance_params(void)
{
	return (struct balance_params){ .kind = settings.balance, .parts = settings.parts };
}

/* The position of a CPU, and back. */
static __always_inline u32 position_of(u32 cpu)
{
	return topology.cpu[BOUNDED(cpu, MAX_CPUS)].position;
}

static __always_inline u32 cpu_at(u32 position)
{
	return topology.cpu_at[BOUNDED(position, MAX_CPUS)];
}

static __always_inline u32 node_of(u32 cpu)
{
	return topology.cpu[BOUNDED(cpu, MAX_CPUS)].node;
}

/* The node that a task's memory is on: the kernel's word, or else where it first ran. */
#define NO_NODE (~0U)
static __always_inline u32 memory_node_of(struct task_struct *p, struct task_state *t)
{
	s32 preferred;

	if (!(settings.parts & (PART_HOME | PART_COST)))
		return NO_NODE;
	preferred = preferred_node(p);
	return preferred >= 0 ? preferred : t->memory - 1;
}

/* How far that is from a CPU; 0: not known. */
static __always_inline u32 distance_of(u32 memory, u32 cpu)
{
	u32 node = node_of(cpu);

	/* No comparison with the limit: the compiler would drop the mask, which the verifier needs. */
	if (memory == NO_NODE)
		return 0;
	return topology.distance[BOUNDED(memory, MAX_NODES)][BOUNDED(node, MAX_NODES)];
}

/*
 * A part of its own: each time that the verifier meets a pointer of the kernel's that is read from another
 * it searches the kernel's types by name, which took half of the time to load.
 */
KEEL_PART bool may_run_on(struct task_struct *p __arg_trusted, u32 cpu)
{
	return bpf_cpumask_test_cpu(cpu, p->cpus_ptr);
}

/* An address space's identity; 0: a kernel thread. */
static __always_inline u64 space_of(struct task_struct *p)
{
	return (u64)p->mm;
}

#endif
