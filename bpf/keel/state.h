/* SPDX-License-Identifier: GPL-2.0-only */
/* The keel's data: what user space sets, and the state of CPUs and tasks. */
#ifndef EVENKEEL_KEEL_STATE_H
#define EVENKEEL_KEEL_STATE_H

const volatile struct keel_settings settings SEC(".rodata.settings");
const volatile struct keel_topology topology SEC(".rodata.topology");
struct keel_tunables tunables SEC(".data.tunables") = {
	.slice_ns = 4000000,
	.scan_limit = 64,
};
struct keel_exit exit_report SEC(".data.exit");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_CPUS);	/* set to the number of CPUs at load */
	__type(key, u32);
	__type(value, struct cpu_state);
} cpus SEC(".maps");

/* A task's state. Who touches it holds the lock of the task's runqueue, unless said otherwise. */
struct task_state {
	u64 vruntime;		/* by the clock of `home` */
	u64 weight;		/* what it weighs now, the shares of its cgroups included */
	u64 counted_weight;	/* what it adds to a CPU's load */
	u64 grouped_weight;	/* what it adds to its cgroup */
	u64 executed_ns;	/* the kernel's sum_exec_runtime, up to which it is charged */
	u64 waiting_since_ns;	/* 0: is in no queue */
	u64 rested_since_ns;	/* when it last stopped running */
	u64 run_share;		/* decayed_share() as of share_since_ns */
	u64 share_since_ns;
	u64 space;		/* its address space when it was last placed */
	u32 home;		/* the CPU whose queue it is or was in last */
	u32 counted_on;		/* 1 + the CPU whose load it adds to; 0: sleeps; atomic */
	u32 group;		/* its cgroup's slot */
	u32 is_new;		/* not placed in any queue yet */
	u32 yields;		/* gave the CPU up for this once */
	u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task_state);
} tasks SEC(".maps");

/* CPUs with somebody waiting in their queue: a hint that saves looking at all of them. */
u64 waiting_cpus[MAX_CPUS / 64];

static __always_inline struct cpu_state *cpu_state(u32 cpu)
{
	return bpf_map_lookup_elem(&cpus, &cpu);
}

static __always_inline struct task_state *task_state(struct task_struct *p)
{
	return bpf_task_storage_get(&tasks, p, 0, 0);
}

/* By the CPU that executes this, so that no two ever count in one place. */
static __always_inline void count(u32 counter)
{
	struct cpu_state *c = cpu_state(bpf_get_smp_processor_id());

	if (c)
		c->counters[BOUNDED(counter, MAX_COUNTERS)]++;
}

static __always_inline struct order_params order_params(void)
{
	return (struct order_params){
		.kind = settings.order,
		.slice_ns = READ_ONCE(tunables.slice_ns),
	};
}

static __always_inline struct balance_params balance_params(void)
{
	return (struct balance_params){ .kind = settings.balance };
}

/* An address space's identity; 0: a kernel thread. */
static __always_inline u64 space_of(struct task_struct *p)
{
	return (u64)p->mm;
}

#endif
