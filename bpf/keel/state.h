/* SPDX-License-Identifier: GPL-2.0-only */
/* The keel's data: what user space sets, the state of CPUs and tasks, and their counters. */
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
	.turn_ns = 20000000,
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

/* The address spaces that aggregate; user space writes them. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_SPACES);
	__type(key, u64);
	__type(value, struct keel_space);
} spaces SEC(".maps");

/* Incremented by user space after each change of `spaces`. */
u64 spaces_set SEC(".data.spaces_set");

/* The space that a group's master aggregates (0: none), and which CPU was the master then. */
struct publication {
	u64 space;
	u64 master;
};
/* One for each group. Only masters write it. */
struct publication publications[MAX_CPUS];

enum newness {
	NOT_NEW,
	IS_NEW,		/* in no queue yet; `vruntime`: how late the task that forked it was */
	IS_FORKED,	/* the same, and not in our class yet */
	IS_KEPT,	/* in no queue yet; an earlier load had it: it stays on its CPU */
};

/*
 * A task's state. Code that touches it holds the lock of the task's runqueue, unless said
 * otherwise. It outlives a restart for CPUs that come or go: keep_history() in task.h says what of it.
 */
struct task_state {
	u64 seen_space;		/* the address space as of the last tick or start */
	u64 vruntime;		/* by the clock of CPU `home` */
	u64 weight;		/* current weight, the shares of its cgroups included */
	u64 counted_weight;	/* what the task adds to a CPU's load */
	u64 grouped_weight;	/* what the task adds to its cgroup */
	u64 executed_ns;	/* the kernel's sum_exec_runtime as of the last charge */
	u64 debt_ns;		/* order_calc_debt() when the task last slept, in a cgroup */
	u64 waiting_since_ns;	/* 0: the task is in no queue */
	u64 rested_since_ns;	/* when the task last stopped running */
	u64 run_share;		/* decay_share() as of share_since_ns */
	u64 share_since_ns;
	/* share of run time in the time without waiting: balance_update_bound_share() */
	u64 bound_share;
	u64 bound_known_ns;	/* how much of that time there was, at most BOUND_NS */
	u64 slept_since_ns;	/* since when the task sleeps, for bound_share; 0: it does not */
	u64 above_since_ns;	/* since when run_share is above the gate's limit; 0: it is not */
	u64 space;		/* the address space when the task was last placed */
	u64 listed_as;		/* its key in the index of siblings */
	u32 home;		/* the CPU of the queue where the task is or last was */
	u32 counted_on;		/* 1 + the CPU where it counts as load; 0: it sleeps; atomic */
	u32 group;		/* its cgroup's slot */
	u32 is_new;		/* enum newness */
	u32 has_prepaid;	/* for its first slice: place_new_vruntime() */
	u32 bound;		/* balance_is_cpu_bound() */
	u32 memory;		/* 1 + the node on which its program first ran; 0: not known */
	u32 pushed_off;		/* a higher class took its CPU */
	u32 migrate_to;		/* 1 + the destination of an active migration; 0: none */
	u32 is_turn;		/* 1: that is an exchange with the task that runs there */
	u32 kept;		/* the gate keeps the waking task from an idle CPU */
	u32 barred;		/* the shield applies: the task may use CPUs that are not shielded */
	u32 listings;		/* how often the task was inserted into the index */
	u32 listed_on;		/* 1 + the CPU under which the index has the task; 0: none; atomic */
	u64 burst_ns;		/* how long it runs at a time: gate_update_burst() */
	u64 known_space;	/* the space of which `aggregates` is known ... */
	u64 known_as_of;	/* ... and the value of `spaces_set` then */
	u64 aggregates;		/* 1: that space is set to aggregate with a bonus */
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task_state);
} tasks SEC(".maps");

/* One bit for each CPU. Hints that save looking at all CPUs. */
struct cpu_bits {
	u64 word[MAX_CPUS / 64];
};

/* CPUs where a task waits in the queue. */
struct cpu_bits waiting_cpus;
/* Idle CPUs. */
struct cpu_bits idle_cpus;
/* CPUs that tasks may leave, as far as the gate goes; some of them perhaps only by their points. */
struct cpu_bits open_cpus;
/* Of these, the CPUs with a load above 100 %. */
struct cpu_bits crowded_cpus;

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

/* Unrolled, because the verifier removes the words beyond the machine's CPUs. */
static __always_inline bool has_any_bit(struct cpu_bits *bits)
{
	u64 words = 0;

	/* On most machines. Of the words that the verifier removes, the comparisons would stay. */
	if (settings.cpus <= 64)
		return READ_ONCE(bits->word[0]);
#pragma GCC unroll 16
	for (u32 i = 0; i < MAX_CPUS / 64; i++)
		if (i * 64 < settings.cpus)
			words |= READ_ONCE(bits->word[i]);
	return words;
}

/* One word of a set of CPUs that share a last-level cache. */
static __always_inline u64 get_cache_word(u32 cpu, u32 word)
{
	u32 cache = topology.cpu[BOUNDED(cpu, MAX_CPUS)].cache;

	return topology.cache_cpus[BOUNDED(cache, MAX_CPUS)][BOUNDED(word, MAX_CPUS / 64)];
}

/* How many bits are set (Warren, Hacker's Delight, 5-1). */
static __always_inline u32 count_word(u64 word)
{
	word -= word >> 1 & 0x5555555555555555ULL;
	word = (word & 0x3333333333333333ULL) + (word >> 2 & 0x3333333333333333ULL);
	return ((word + (word >> 4)) & 0x0f0f0f0f0f0f0f0fULL) * 0x0101010101010101ULL >> 56;
}

/* How many CPUs of the last-level cache of `cpu` are in a set. */
static __always_inline u32 count_in_cache(struct cpu_bits *bits, u32 cpu)
{
	u32 count = 0;

	if (settings.cpus <= 64)
		return count_word(READ_ONCE(bits->word[0]) & get_cache_word(cpu, 0));
#pragma GCC unroll 16
	for (u32 i = 0; i < MAX_CPUS / 64; i++)
		if (i * 64 < settings.cpus)
			count += count_word(READ_ONCE(bits->word[i]) & get_cache_word(cpu, i));
	return count;
}

/* Whether two CPUs share a last-level cache. */
static __always_inline bool shares_cache(u32 a, u32 b)
{
	return topology.cpu[BOUNDED(a, MAX_CPUS)].cache == topology.cpu[BOUNDED(b, MAX_CPUS)].cache;
}

static __always_inline struct cpu_state *cpu_state(u32 cpu)
{
	return bpf_map_lookup_elem(&cpus, &cpu);
}

static __always_inline struct task_state *task_state(struct task_struct *p)
{
	return bpf_task_storage_get(&tasks, p, 0, 0);
}

/* For code that has the state of the executing CPU at hand, such as a CPU's own dispatch. */
static __always_inline void count_on(struct cpu_state *c, u32 counter)
{
	c->counters[BOUNDED(counter, MAX_COUNTERS)]++;
}

/* On the executing CPU, so that no two CPUs ever write the same counter. */
static __always_inline void count(u32 counter)
{
	struct cpu_state *c = cpu_state(bpf_get_smp_processor_id());

	if (c)
		count_on(c, counter);
}

/* Counts a search in the index of siblings that looked at so many entries. */
static __always_inline void count_search(u32 looked)
{
	struct cpu_state *c = cpu_state(bpf_get_smp_processor_id());

	if (!c)
		return;
	count_on(c, COUNT_SEARCH);
	c->counters[COUNT_SEARCHED] += looked;
}

/* Whether address spaces take turns (the mode `rounds` of the order `ias`). */
static __always_inline bool takes_turns(void)
{
	return settings.order == ORDER_IAS && settings.ias_mode == IAS_ROUNDS;
}

/*
 * Whether siblings have to be looked after. In the mode `rounds` only once an address space was set to
 * aggregate: until then the keel costs what it costs under `fair`.
 */
static __always_inline bool may_aggregate(void)
{
	return settings.order == ORDER_IAS && (!takes_turns() || READ_ONCE(spaces_set));
}

static __always_inline struct order_params order_params(void)
{
	return (struct order_params){
		.kind = settings.order,
		.mode = settings.ias_mode,
		.slice_ns = READ_ONCE(tunables.slice_ns),
		.turn_ns = takes_turns() ? READ_ONCE(tunables.turn_ns) : 0,
	};
}

/* The same for a bonus: in the mode `paper` it does not depend on the slice. */
static __always_inline struct order_params bonus_params(void)
{
	if (takes_turns())
		return order_params();
	return (struct order_params){ .kind = ORDER_IAS, .mode = IAS_PAPER };
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

/*
 * Whether the keel has a rule of policy/balance_paper.h: never in a kernel. A macro, because for a
 * function's argument the volatile settings would be read.
 */
#define HAS_PAPER_RULE(rule) (LABORATORY && settings.parts & (rule))

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

/* The node of a task's memory: the kernel's word, or else the node where its program first ran. */
#define NO_NODE (~0U)
static __always_inline u32 memory_node_of(struct task_struct *p, struct task_state *t)
{
	s32 preferred;

	if (!(settings.parts & (PART_HOME | PART_COST)))
		return NO_NODE;
	preferred = preferred_node(p);
	return preferred >= 0 ? preferred : t->memory - 1;
}

/* The distance of that node from a CPU; 0: not known. */
static __always_inline u32 distance_of(u32 memory, u32 cpu)
{
	u32 node = node_of(cpu);

	/*
	 * No comparison with the limit: the compiler would drop the mask, which the verifier needs.
	 */
	if (memory == NO_NODE)
		return 0;
	return topology.distance[BOUNDED(memory, MAX_NODES)][BOUNDED(node, MAX_NODES)];
}

/*
 * A function of its own: for each pointer read through another of the kernel's pointers, the
 * verifier searches the kernel's types by name. That took half of the load time.
 */
KEEL_PART bool may_run_on(struct task_struct *p __arg_trusted, u32 cpu)
{
	return bpf_cpumask_test_cpu(cpu, p->cpus_ptr);
}

/* The identity of an address space; 0: a kernel thread. */
static __always_inline u64 space_of(struct task_struct *p)
{
	return (u64)p->mm;
}

#endif
