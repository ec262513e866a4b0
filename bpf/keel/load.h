/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Load and utilisation of CPUs: which tasks count where, and what the policies see of a CPU.
 * Functions that need the time only sometimes ask for it only then: it costs as much as the rest of
 * a short callback.
 */
#ifndef EVENKEEL_KEEL_LOAD_H
#define EVENKEEL_KEEL_LOAD_H

/*
 * Liveness: a CPU that a higher class has had for longer than this counts as gone. It looks heavier
 * than any other, so that busy CPUs pull what waits there, and the gate is not asked.
 */
#define MAX_TAKEN_NS 10000000ULL
#define TAKEN_LOAD (MAX_LOAD >> 10)
/*
 * In taken_since_ns after a restart, until the CPU asks for a task or runs one: a higher class may have
 * it, and would not say so. A time long ago, so that the CPU counts as gone at once.
 */
#define TAKEN_UNKNOWN 1

static __always_inline void add_load(struct cpu_state *c, u64 weight)
{
	__sync_fetch_and_add(&c->load, weight);
	__sync_fetch_and_add(&c->runnable, 1);
}

static __always_inline void sub_load(u32 cpu, u64 weight)
{
	struct cpu_state *c = cpu_state(cpu);

	if (!c)
		return;
	__sync_fetch_and_sub(&c->load, weight);
	__sync_fetch_and_sub(&c->runnable, 1);
}

/* Removes the task from the load of its CPU. */
static __always_inline void uncount_task(struct task_state *t)
{
	u32 on = __sync_lock_test_and_set(&t->counted_on, 0);

	if (!on)
		return;
	sub_load(on - 1, t->counted_weight);
	uncount_in_group(t);
}

/* Adds the runnable task to the load of this CPU and of no other. */
static __always_inline void count_task(struct task_struct *p, struct task_state *t, u32 cpu,
				       struct cpu_state *c)
{
	u32 on = READ_ONCE(t->counted_on);

	if (on == cpu + 1)
		return;
	if (on) {
		on = __sync_lock_test_and_set(&t->counted_on, cpu + 1);
		if (on)
			sub_load(on - 1, t->counted_weight);
	} else {
		count_in_group(p, t);
		refresh_weight(p, t);
		t->counted_weight = t->weight;
		__sync_lock_test_and_set(&t->counted_on, cpu + 1);
	}
	add_load(c, t->counted_weight);
}

/*
 * The same for a task that was moved from the queue of `src_cpu` without the lock of its runqueue.
 * A CPU with that lock may have dequeued it since; then it is counted correctly already.
 */
static __always_inline void recount_task(struct task_state *t, u32 src_cpu, u32 dst_cpu)
{
	struct cpu_state *c = cpu_state(dst_cpu);
	u64 weight;

	if (!c || __sync_val_compare_and_swap(&t->counted_on, src_cpu + 1, dst_cpu + 1) != src_cpu + 1)
		return;
	weight = READ_ONCE(t->counted_weight);
	sub_load(src_cpu, weight);
	add_load(c, weight);
}

/*
 * Updates the load by a running task's present weight: its share of its cgroup changes as other
 * tasks of the group come and go.
 */
static __always_inline void recount_weight(struct task_state *t, u32 cpu, struct cpu_state *c)
{
	u64 counted = t->counted_weight;

	if (t->weight == counted || READ_ONCE(t->counted_on) != cpu + 1)
		return;
	t->counted_weight = t->weight;
	__sync_fetch_and_add(&c->load, t->weight - counted);
}

/*
 * Counts the time up to now as busy or idle. Called by the CPU itself. The kernel may tell the
 * later of two callbacks an earlier time.
 */
static __always_inline void update_utilisation(struct cpu_state *c, u64 now, bool busy)
{
	if (now <= c->busy_since_ns)
		return;
	c->busy_share = decay_share(c->busy_share, now - c->busy_since_ns, busy);
	c->busy_since_ns = now;
}

/* Sums over all CPUs. Written by the CPU that finds them too old. */
struct machine_state {
	u64 at_ns;		/* atomic */
	u32 utilisation;
	u32 tasks;
	u32 enough;		/* under --compact: how many CPUs, the first by position, are enough */
	u32 pad;
} machine;

/*
 * Computes the gate's verdict about this CPU anew, from its utilisation as of now. Called by the CPU
 * itself at its tick, and when it becomes idle or busy.
 */
KEEL_PART int update_opening(u32 cpu)
{
	struct gate_params params = gate_params();
	struct cpu_state *c = cpu_state(cpu);
	struct gate_view view = {};
	u32 opening;

	if (!c)
		return 0;
	view.source_utilisation = share_of(c->busy_share);
	view.source_waits = READ_ONCE(c->runnable) > 1;
	if (gate_is_by_mean(&params))
		view.mean_utilisation = READ_ONCE(machine.utilisation);
	opening = gate_judge_cpu(&params, &view);
	WRITE_ONCE(c->opening, opening);
	if (opening < GATE_REFUSALS || opening == GATE_BY_TASK)
		set_bit(&open_cpus, cpu);
	else
		clear_bit(&open_cpus, cpu);
	if (gate_is_crowded(&view))
		set_bit(&crowded_cpus, cpu);
	else
		clear_bit(&crowded_cpus, cpu);
	return 0;
}

/* The same, if there is a gate. */
static __always_inline void refresh_opening(u32 cpu)
{
	if (settings.gate != GATE_ALWAYS)
		update_opening(cpu);
}

/*
 * Liveness: tasks that wait on this CPU may be pulled from now until the next verdict, because a higher
 * class has it or it is shielded. Such pulls do not ask the gate.
 */
static __always_inline void open_for_liveness(u32 cpu)
{
	if (settings.gate == GATE_ALWAYS)
		return;
	set_bit(&open_cpus, cpu);
	set_bit(&crowded_cpus, cpu);
}

/* A higher class has the CPU from now on. Called by the CPU itself, or with its runqueue lock. */
static __always_inline void note_taken(struct cpu_state *c, u64 now)
{
	if (READ_ONCE(c->taken_since_ns))
		return;
	update_utilisation(c, now, !c->idles);
	WRITE_ONCE(c->taken_since_ns, now);
}

/* The higher class has left the CPU. */
static __always_inline void note_returned(struct cpu_state *c)
{
	u64 since = READ_ONCE(c->taken_since_ns);

	if (!since)
		return;
	update_utilisation(c, scx_bpf_now(), since != TAKEN_UNKNOWN || !c->idles);
	WRITE_ONCE(c->taken_since_ns, 0);
}

static __always_inline u32 utilisation_of(struct cpu_state *c, u64 now)
{
	u64 since = READ_ONCE(c->busy_since_ns);
	bool busy = !READ_ONCE(c->idles) || READ_ONCE(c->taken_since_ns);

	/* The CPU may have updated the share meanwhile: then no time has passed. */
	return share_of(decay_share(c->busy_share, now > since ? now - since : 0, busy));
}

/*
 * A cheap variant for the gate: of a CPU that is busy with tasks of our class, as of its last tick
 * or switch, without a look at the clock and without arithmetic.
 */
static __always_inline u32 utilisation_as_of_tick(struct cpu_state *c, u64 now)
{
	if (READ_ONCE(c->idles) || READ_ONCE(c->taken_since_ns))
		return utilisation_of(c, now);
	return share_of(READ_ONCE(c->busy_share));
}

static __always_inline bool is_idle(struct cpu_state *c)
{
	return !READ_ONCE(c->runnable) && !READ_ONCE(c->taken_since_ns);
}

/* Whether a higher class has the CPU. */
static __always_inline bool is_cpu_taken(u32 cpu)
{
	struct cpu_state *c = cpu_state(cpu);

	return c && READ_ONCE(c->taken_since_ns);
}

static __always_inline bool is_cpu_gone(struct cpu_state *c)
{
	u64 since = READ_ONCE(c->taken_since_ns), now;

	if (!since)
		return false;
	now = scx_bpf_now();
	return now > since && now - since > MAX_TAKEN_NS;
}

/* The maximum age of the sums over all CPUs: a quarter of the half-life of utilisation. */
#define MACHINE_INTERVAL_NS (1ULL << (HALF_LIFE_SHIFT - 2))

struct machine_sum {
	struct gate_mean mean;	/* of the CPUs that count for the gate */
	u32 tasks;		/* how many run or wait */
	u32 used;		/* under --compact: the utilisation of all CPUs together */
};

/* Adds a CPU to the sums. A function of its own, as add_cpu_to_sum() in migrate.h is. */
KEEL_PART int add_cpu_to_machine(struct machine_sum *sum, u32 cpu, u64 now)
{
	struct gate_params params = gate_params();
	struct cpu_state *c = cpu_state(cpu);
	u32 utilisation;
	bool idle;

	if (!sum || !c)
		return 0;
	/* One after the other, as in convert_vruntime(). */
	idle = is_idle(c);
	utilisation = utilisation_of(c, now);
	gate_add_cpu(&params, &sum->mean, utilisation, idle);
	sum->tasks += READ_ONCE(c->runnable);
	if (settings.compact)
		sum->used += utilisation;
	return 0;
}

/*
 * Sums up the CPUs. (Through a pointer: the verifier would count values on the stack up to 1024.)
 */
KEEL_PART int sum_machine(struct machine_sum *sum, u64 now)
{
	u32 position;

	if (!sum)
		return 0;
	bpf_for(position, 0, settings.online)
		add_cpu_to_machine(sum, cpu_at(position), now);
	return 0;
}

/* Updates the sums over all CPUs, if they are too old. */
KEEL_PART int refresh_machine(void)
{
	u64 at = READ_ONCE(machine.at_ns), now = scx_bpf_now();
	struct machine_sum sum = {};

	if (now <= at || now - at < MACHINE_INTERVAL_NS ||
	    __sync_val_compare_and_swap(&machine.at_ns, at, now) != at)
		return 0;
	sum_machine(&sum, now);
	WRITE_ONCE(machine.utilisation, gate_calc_mean(&sum.mean));
	WRITE_ONCE(machine.tasks, sum.tasks);
	if (settings.compact && settings.online)
		WRITE_ONCE(machine.enough,
			   gate_enough_cpus(sum.used / settings.online, settings.online));
	return 0;
}

/* The same, if the gate goes by the mean, or compaction by the utilisation of all. */
static __always_inline void refresh_mean(void)
{
	struct gate_params params;

	if (settings.gate == GATE_ALWAYS)
		return;
	params = gate_params();
	if (gate_is_by_mean(&params) || settings.compact)
		refresh_machine();
}

static __always_inline u32 capability_of(u32 cpu)
{
	return READ_ONCE(capabilities.cpu[BOUNDED(cpu, MAX_CPUS)].now);
}

/* How many CPUs have more capability. */
static __always_inline u32 count_faster(u32 cpu)
{
	return READ_ONCE(capabilities.cpu[BOUNDED(cpu, MAX_CPUS)].faster);
}

/* How many CPUs have more capability or, for the fastest ones, less. */
static __always_inline u32 count_unlike(u32 cpu)
{
	u32 faster = count_faster(cpu);

	return faster ? faster : READ_ONCE(capabilities.cpu[BOUNDED(cpu, MAX_CPUS)].slower);
}

/* The policies' view of a CPU that no higher class has had for long, from that CPU. */
static __always_inline void view_cpu_state(u32 cpu, struct cpu_state *c, struct cpu_view *view)
{
	view->cpu = cpu;
	view->load = READ_ONCE(c->load);
	view->runnable = READ_ONCE(c->runnable);
	view->waiting = view->runnable - (view->runnable && READ_ONCE(c->running_weight));
	view->capability = capability_of(cpu);
	view->distance = 0;
	view->sibling = 0;
	view->far = 0;
	view->idle = is_idle(c);
}

/* The policies' view of any CPU. False: there is no such CPU. */
static __always_inline bool view_cpu(u32 cpu, struct cpu_view *view)
{
	struct cpu_state *c = cpu_state(cpu);

	if (!c)
		return false;
	view_cpu_state(cpu, c, view);
	if (is_cpu_gone(c))
		view->load = TAKEN_LOAD;
	return true;
}

/*
 * Whether a task waits in the CPU's queue, or is about to: `runs` (0 or 1) of the CPU's tasks do
 * not wait. Cheaper than the queue's length, which the kernel looks up by the queue's number.
 */
static __always_inline bool has_waiters(struct cpu_state *c, u32 runs)
{
	return READ_ONCE(c->runnable) > runs;
}

/* Clears the hint that tasks wait. Called by the CPU that owns the queue. */
static __always_inline void note_served(u32 cpu, struct cpu_state *c, u32 runs)
{
	if (!has_bit(&waiting_cpus, cpu) || has_waiters(c, runs))
		return;
	clear_bit(&waiting_cpus, cpu);
	/* A task may have come in between, and its enqueue may have seen the hint still set. */
	if (has_waiters(c, runs))
		set_bit(&waiting_cpus, cpu);
}

/*
 * The same by a CPU that pulled the last task that waited there: otherwise other CPUs would look there
 * until the CPU itself dispatches. A task that is enqueued meanwhile is counted before its hint is set.
 */
KEEL_PART int note_pulled(u32 cpu)
{
	struct cpu_state *c = cpu_state(cpu);

	if (c)
		note_served(cpu, c, READ_ONCE(c->running_weight) ? 1 : 0);
	return 0;
}

/* The CPU has nothing to run. */
static __always_inline void note_idle(u32 cpu, struct cpu_state *c)
{
	if (c->idles)
		return;
	update_utilisation(c, scx_bpf_now(), true);
	WRITE_ONCE(c->idles, 1);
	set_bit(&idle_cpus, cpu);
}

/* The CPU runs a task of our class again. */
static __always_inline void note_busy(u32 cpu, struct cpu_state *c, u64 now)
{
	if (!c->idles)
		return;
	update_utilisation(c, now, c->taken_since_ns);
	WRITE_ONCE(c->idles, 0);
	clear_bit(&idle_cpus, cpu);
	refresh_opening(cpu);
}

#endif
