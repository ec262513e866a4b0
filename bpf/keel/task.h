/* SPDX-License-Identifier: GPL-2.0-only */
/* The life of a task: it appears, gets a place in a queue, runs, stops, sleeps, ends. */
#ifndef EVENKEEL_KEEL_TASK_H
#define EVENKEEL_KEEL_TASK_H

/*
 * The task sleeps, ends or is changed: notes its debt, which becomes the group's if the task ends now.
 * The first time the group takes over the debt at once, and gets back what the task paid for its first
 * slice.
 */
static __always_inline void settle_debt(struct task_state *t, struct cpu_state *c, u64 weight)
{
	u64 debt_ns = order_calc_debt(t->vruntime, c->clock, weight);

	if (t->has_prepaid) {
		t->has_prepaid = 0;
		change_prepaid(t->group, READ_ONCE(tunables.slice_ns) - debt_ns);
		debt_ns = 0;
		if (is_vruntime_before(c->clock, t->vruntime))
			t->vruntime = c->clock;
	}
	t->debt_ns = debt_ns;
}

/*
 * The task was there before this load of the keel. If an earlier load had it too, `t` is what that load
 * left: of that the task keeps how it behaves and where its memory is. All else, such as vruntimes and
 * counts, ended with that load. The time between the two loads counts neither as run time nor as rest.
 */
static __always_inline void keep_history(struct task_struct *p, struct task_state *t)
{
	u64 rested_since_ns = t->rested_since_ns, above_since_ns = t->above_since_ns;
	u64 run_share = t->run_share, burst_ns = t->burst_ns;
	u64 bound_share = t->bound_share, bound_known_ns = t->bound_known_ns;
	/* Meanwhile it may have become another program. */
	u32 memory = t->seen_space == space_of(p) ? t->memory : 0;
	u32 bound = t->bound;
	/* A task that did not run between two restarts has no weight. */
	bool was_known = t->weight || t->is_new == IS_KEPT;

	__builtin_memset(t, 0, sizeof(*t));
	if (!was_known)
		return;
	t->rested_since_ns = rested_since_ns;
	t->run_share = run_share;
	t->share_since_ns = scx_bpf_now();
	t->above_since_ns = above_since_ns;
	t->bound_share = bound_share;
	t->bound_known_ns = bound_known_ns;
	t->bound = bound;
	t->memory = memory;
	t->burst_ns = burst_ns;
	t->is_new = IS_KEPT;
}

s32 KEEL_OPS_S(keel_init_task, struct task_struct *p, struct scx_init_task_args *args)
{
	struct task_state *t = bpf_task_storage_get(&tasks, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!t)
		return -ENOMEM;
	if (args->fork)
		t->is_new = IS_FORKED;
	else
		keep_history(p, t);
	join_group(t, find_slot(args->cgroup));
	return 0;
}

/* How far the task that runs on the executing CPU is behind its queue's clock. */
static __always_inline u64 calc_parent_lateness(void)
{
	struct cpu_state *c = cpu_state(bpf_get_smp_processor_id());
	u64 vruntime;

	if (!c || !READ_ONCE(c->running_weight))
		return 0;
	vruntime = get_running_vruntime(c, scx_bpf_now());
	return order_calc_lateness(vruntime, READ_ONCE(c->clock));
}

/* The task joins our class: it is new, or comes from another class. */
void KEEL_OPS(keel_enable, struct task_struct *p)
{
	struct task_state *t = task_state(p);

	if (!t)
		return;
	/* The kernel enables a new task on the CPU that forks it. */
	t->vruntime = t->is_new == IS_FORKED ? calc_parent_lateness() : 0;
	if (t->is_new != IS_KEPT)
		t->is_new = IS_NEW;
	t->space = t->seen_space = space_of(p);
	t->executed_ns = p->se.sum_exec_runtime;
}

/* The task is in no queue any more. If it waited, the kernel took it out without a turn. */
static __always_inline void note_dequeued(struct task_struct *p, struct task_state *t)
{
	if (t->waiting_since_ns)
		count(COUNT_LEAVE);
	index_remove(p, t);
	t->waiting_since_ns = 0;
}

void KEEL_OPS(keel_exit_task, struct task_struct *p, struct scx_exit_task_args *args)
{
	struct task_state *t = task_state(p);

	if (!t)
		return;
	uncount_task(t);
	change_prepaid(t->group, -t->debt_ns);
	join_group(t, ROOT_GROUP);
}

/*
 * Converts a vruntime by the clock of `src` to one by the clock of `dst`. The clocks are read one
 * after the other: compilers differ in the order of arguments, and a simulation must not.
 */
static __always_inline u64 convert_vruntime(struct cpu_state *src, struct cpu_state *dst, u64 vruntime,
					    enum order_place place)
{
	struct order_params params = order_params();
	u64 src_clock = READ_ONCE(src->clock);
	u64 dst_clock = READ_ONCE(dst->clock);

	return order_place(&params, vruntime, src_clock, dst_clock, place);
}

/* Gives a new task its place in the queue of `cpu`, and counts it there: its weight decides. */
KEEL_PART int place_new_vruntime(struct task_struct *p __arg_trusted, struct task_state *t, u32 cpu)
{
	struct order_params params = order_params();
	struct cpu_state *c = cpu_state(cpu);
	u64 clock, tasks, late, paid_ns = 0;

	if (!t || !c)
		return 0;
	count_task(p, t, cpu, c);
	late = t->vruntime;
	if (t->group != ROOT_GROUP)
		paid_ns = order_calc_prepayment(&params, get_prepaid_ns(t->group));
	/* One after the other, as in convert_vruntime(). */
	clock = READ_ONCE(c->clock);
	tasks = READ_ONCE(c->runnable);
	t->vruntime = order_place_new(&params, clock, tasks, late, paid_ns, t->weight);
	/* A task may begin late for another reason, too: that lateness also pays. */
	change_prepaid(t->group, order_calc_debt(t->vruntime, clock, t->weight) - params.slice_ns);
	t->has_prepaid = t->group != ROOT_GROUP;
	return 0;
}

/*
 * Gives the task a vruntime for the queue of `cpu`: relative to the clock there what it was to the
 * clock at home.
 */
static __always_inline void place_vruntime(struct task_struct *p, struct task_state *t, u32 cpu,
					   struct cpu_state *dst, enum order_place place)
{
	struct cpu_state *src = t->home == cpu ? dst : cpu_state(t->home);

	if (!src)
		return;
	if (t->is_new)
		place_new_vruntime(p, t, cpu);
	else
		t->vruntime = convert_vruntime(src, dst, t->vruntime, place);
	t->is_new = NOT_NEW;
	t->home = cpu;
}

/* Charges the task, which runs on this CPU, for its run time since the last charge. */
static __always_inline void charge_task(struct task_struct *p, struct task_state *t, u32 cpu,
					struct cpu_state *c)
{
	u64 executed = p->se.sum_exec_runtime, before = t->vruntime;
	u64 ran_ns = executed - t->executed_ns;

	t->vruntime = order_charge(before, ran_ns, t->weight);
	t->executed_ns = executed;
	if (may_aggregate()) {
		u64 load = READ_ONCE(c->load), tasks = READ_ONCE(c->runnable);

		WRITE_ONCE(c->fair_clock,
			   order_update_fair_clock(c->fair_clock, c->clock, before, ran_ns, load,
						   tasks));
		if (is_vruntime_before(c->furthest, t->vruntime))
			WRITE_ONCE(c->furthest, t->vruntime);
		WRITE_ONCE(c->mean, order_update_mean(c->mean, t->vruntime - before,
						      tasks, c->clock, c->furthest));
	}
	refresh_weight(p, t);
	recount_weight(t, cpu, c);
}

/* Counts `ns` in which the task ran or slept. */
static __always_inline void note_bound_time(struct task_state *t, u64 ns, bool ran)
{
	t->bound_share = balance_update_bound_share(t->bound_share, t->bound_known_ns, ns, ran);
	t->bound_known_ns = min_u64(t->bound_known_ns + ns, BOUND_NS);
}

/* Counts the time up to now as sleep, if the task slept. */
static __always_inline void note_wakeup(struct task_state *t, u64 now)
{
	u64 since = t->slept_since_ns;

	if (settings.balance != BALANCE_CAPABILITY || !since)
		return;
	t->slept_since_ns = 0;
	note_bound_time(t, now > since ? now - since : 0, false);
}

/* Counts run time for a balance policy that tells CPU-bound tasks. */
static __always_inline void note_run_time(struct task_state *t, u64 ran_ns)
{
	if (settings.balance != BALANCE_CAPABILITY)
		return;
	note_bound_time(t, ran_ns, true);
	t->bound = balance_is_cpu_bound(share_of(t->bound_share), t->bound);
}

/* The task runs from now on: counts the time up to now as rest, for a gate that looks at it. */
static __always_inline void note_rest(struct task_state *t, u64 now)
{
	/* The task may have run on another CPU, and clocks of two CPUs may differ a little. */
	u64 rest_ns = now > t->share_since_ns ? now - t->share_since_ns : 0;
	struct gate_params gate;

	t->share_since_ns = now;
	if (settings.gate == GATE_ALWAYS)
		return;
	gate = gate_params();
	t->run_share = decay_share(t->run_share, rest_ns, false);
	if (t->above_since_ns && gate_ends_above(&gate, rest_ns))
		t->above_since_ns = 0;
}

/* Counts the time up to now as run time, for all policies that look at it. */
static __always_inline void note_run(struct task_state *t, u64 now)
{
	u64 ran_ns = now - t->share_since_ns;

	note_run_time(t, ran_ns);
	if (settings.gate != GATE_ALWAYS)
		t->run_share = decay_share(t->run_share, ran_ns, true);
	t->share_since_ns = now;
}

/* The task stops running on this CPU. */
static __always_inline void note_stop(struct task_state *t, struct cpu_state *c, u64 now)
{
	struct gate_params gate;
	u64 burst_ns;

	note_run(t, now);
	if (settings.gate == GATE_ALWAYS)
		return;
	burst_ns = now - c->running_since_ns;
	t->burst_ns = gate_update_burst(t->burst_ns, burst_ns);
	WRITE_ONCE(c->burst_ns, gate_update_burst(c->burst_ns, burst_ns));
	gate = gate_params();
	t->above_since_ns = gate_update_above_since(&gate, t->above_since_ns, share_of(t->run_share),
						    now);
}

/*
 * At the tick: a task that never stops would otherwise look as if it had slept since it began to run.
 */
static __always_inline void note_running_on(struct task_state *t, u64 now)
{
	struct gate_params gate;

	if (settings.gate == GATE_ALWAYS)
		return;
	gate = gate_params();
	note_run(t, now);
	if (!t->above_since_ns)
		t->above_since_ns = gate_update_above_since(&gate, 0, share_of(t->run_share), now);
}

/*
 * The task has the CPU from now on. The queue's clock advances to its vruntime, unless it was
 * preferred to others that wait. Otherwise tasks that arrive, which are placed by the clock, would
 * be behind all of these.
 */
static __always_inline void note_running(struct cpu_state *c, struct task_state *t, u64 now)
{
	if (!c->is_out_of_turn && is_vruntime_before(c->clock, t->vruntime))
		WRITE_ONCE(c->clock, t->vruntime);
	c->is_out_of_turn = 0;
	c->running_vruntime = t->vruntime;
	c->running_since_ns = now;
	WRITE_ONCE(c->running_weight, t->weight);
}

/* Notes a program's memory as being on the node where the program first runs. */
static __always_inline void note_first_node(struct task_state *t, u64 space, u32 cpu)
{
	if (settings.parts & (PART_HOME | PART_COST) && (!t->memory || t->seen_space != space))
		t->memory = node_of(cpu) + 1;
}

/*
 * How long a task that runs alone has its CPU before it looks for another, and between two looks.
 */
#define ACTIVE_INTERVAL_NS 8000000ULL

void KEEL_OPS(keel_running, struct task_struct *p)
{
	struct task_state *t = task_state(p);
	u32 cpu = scx_bpf_task_cpu(p);
	struct cpu_state *c = cpu_state(cpu);
	u64 now = scx_bpf_now();

	if (!t || !c)
		return;
	/* Some tasks come past our queues: by the kernel's local or global queue. */
	if (t->home != cpu || t->is_new)
		place_vruntime(p, t, cpu, c, PLACE_ARRIVE);
	count_task(p, t, cpu, c);
	t->executed_ns = p->se.sum_exec_runtime;
	t->waiting_since_ns = 0;
	index_remove(p, t);
	note_wakeup(t, now);
	note_rest(t, now);
	note_returned(c);
	note_busy(cpu, c, now);
	/* The task that it preempted may have left for an idle CPU since the pick. */
	if (settings.gate != GATE_ALWAYS)
		note_served(cpu, c, 1);
	note_first_node(t, space_of(p), cpu);
	/* The tick found that for the task that ran before. */
	if (settings.parts & PART_ACTIVE) {
		c->active_at_ns = now + ACTIVE_INTERVAL_NS;
		c->leave_to = 0;
	}
	if (settings.parts & PARTS_CHANGE) {
		c->change_with = 0;
		WRITE_ONCE(c->running_cpus, space_of(p) ? p->nr_cpus_allowed : 0);
	}
	t->seen_space = space_of(p);
	note_space_switch(cpu, c, t->seen_space);
	note_turn(p, t, cpu, c, now);
	note_running(c, t, now);
}

void KEEL_OPS(keel_stopping, struct task_struct *p, bool runnable)
{
	struct task_state *t = task_state(p);
	u32 cpu = scx_bpf_task_cpu(p);
	struct cpu_state *c = cpu_state(cpu);
	u64 now = scx_bpf_now(), weight;

	if (!t || !c)
		return;
	note_quantum(p, c, now);
	weight = t->weight;
	charge_task(p, t, cpu, c);
	if (!runnable)
		settle_debt(t, c, weight);
	t->rested_since_ns = now;
	note_stop(t, c, now);
	WRITE_ONCE(c->running_weight, 0);
	WRITE_ONCE(c->lodges, 0);
	/*
	 * With a slice left, the kernel puts the task at the head of the local queue, where no
	 * other CPU can get at it, and it does not always call cpu_release then. Without a slice,
	 * the kernel enqueues it.
	 */
	if (runnable && p->scx.slice) {
		t->pushed_off = 1;
		set_slice(p, 0);
	}
}

/* The task sleeps, or leaves the queues for a moment while the kernel changes it. */
void KEEL_OPS(keel_quiescent, struct task_struct *p, u64 flags)
{
	struct task_state *t = task_state(p);

	if (!t)
		return;
	note_dequeued(p, t);
	uncount_task(t);
	if (settings.balance == BALANCE_CAPABILITY)
		t->slept_since_ns = scx_bpf_now();
}

/*
 * sched_yield(2): the waiting tasks go first, unless it is too early; without any, the task runs
 * on.
 */
bool KEEL_OPS(keel_yield, struct task_struct *p, struct task_struct *to)
{
	struct cpu_state *c = cpu_state(scx_bpf_task_cpu(p));

	if (!c || !has_waiters(c, 1) ||
	    !order_should_yield(scx_bpf_now() - c->running_since_ns))
		return false;
	c->yielder = p->pid;
	set_slice(p, 0);
	return false;
}

#endif
