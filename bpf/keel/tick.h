/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What happens without a request from a task: the tick, and higher classes that take the CPU and
 * return it.
 */
#ifndef EVENKEEL_KEEL_TICK_H
#define EVENKEEL_KEEL_TICK_H

/* Smaller priorities are real-time (kernel: include/linux/sched/prio.h). */
#define MAX_RT_PRIO 100
/* The rest of a slice that is not worth another tick. */
#define SLICE_REST_NS 500000

/*
 * At the tick of a CPU where tasks wait, under a gate that may refuse and is not strict: kicks one idle
 * CPU of its cache, and any idle CPU for each overdue task.
 */
KEEL_PART int kick_idle_cpus_gated(u32 own, u64 now)
{
	u64 budget = READ_ONCE(tunables.scan_limit);
	struct cpu_state *idle_state;
	struct task_struct *p;
	bool was_kicked = false;

	bpf_for_each(scx_dsq, p, own, 0) {
		struct task_state *t;
		u32 idle = NO_CPU;

		if (!budget)
			break;
		budget--;
		t = task_state(p);
		if (!t)
			continue;
		refresh_barred(p, t);
		if (!was_kicked)
			idle = claim_idle_in_cache(p, own);
		was_kicked |= idle != NO_CPU;
		if (idle == NO_CPU) {
			if (!is_overdue(t, now))
				continue;
			idle = claim_idle(p, t, own);
			if ((s32)idle < 0)
				continue;
			idle_state = cpu_state(idle);
			if (idle_state)
				WRITE_ONCE(idle_state->overdue_on, own + 1);
		}
		scx_bpf_kick_cpu(idle, SCX_KICK_IDLE);
	}
	return 0;
}

/*
 * Idle CPUs do not search by themselves: the tick of a CPU where tasks wait kicks one idle CPU, if
 * a task may leave, and one for each overdue task.
 */
static __always_inline void kick_idle_cpus(u32 own, u64 now)
{
	struct task_struct *p;
	struct cpu_state *idle_state;
	bool was_kicked = false;
	u32 seen = 0;

	if (settings.gate != GATE_ALWAYS && !is_gate_strict()) {
		kick_idle_cpus_gated(own, now);
		return;
	}
	/* With a strict gate an idle CPU pulls only in the worst case. */
	if (settings.gate != GATE_ALWAYS && !has_bit(&crowded_cpus, own))
		return;
	/* An overdue task may stand behind many tasks that the gate keeps here. */
	bpf_for_each(scx_dsq, p, own, 0) {
		struct task_state *t;
		bool overdue;
		s32 idle;

		if (++seen > READ_ONCE(tunables.scan_limit))
			break;
		t = task_state(p);
		if (t)
			refresh_barred(p, t);
		overdue = t && is_overdue(t, now);
		if (!t || (!overdue && (was_kicked || !may_move_uncounted(own, p, MOVE_IDLE, now))))
			continue;
		idle = claim_idle(p, t, own);
		if (idle < 0)
			continue;
		/* Paper 002, 4.1.4: an idle speed core balances, wherever tasks are placed. */
		if (HAS_PAPER_RULE(RULE_LEADER))
			idle = claim_best_idle(p, memory_node_of(p, t), idle);
		else
			idle = claim_better_idle(p, memory_node_of(p, t), idle);
		idle_state = cpu_state(idle);
		/*
		 * On its own an idle CPU looks only at the busiest CPU, and the gate may keep the
		 * tasks there.
		 */
		if (idle_state && overdue)
			WRITE_ONCE(idle_state->overdue_on, own + 1);
		else
			was_kicked = true;
		scx_bpf_kick_cpu(idle, SCX_KICK_IDLE);
	}
}

/* Preempts the running task, if a preemption by its own wakee was deferred and still is due. */
static __always_inline void preempt_deferred(struct task_struct *p, u32 own, struct cpu_state *c,
					     u64 now)
{
	struct order_params params = order_params();
	struct order_candidate head = peek_head(own);

	c->deferred_ns = 0;
	if (!head.exists || !order_should_preempt(&params, head.vruntime, get_running_vruntime(c, now)))
		return;
	if (settings.order == ORDER_IAS && !takes_turns() && is_passed_over(own, head.vruntime, now))
		return;
	if (takes_turns())
		c->woken = head.vruntime | 1;
	count(COUNT_PREEMPT);
	set_slice(p, 0);
}

/* Frequency follows utilisation with a quarter to spare, as with the kernel's schedutil. */
static __always_inline void set_frequency(u32 cpu, struct cpu_state *c)
{
	u32 wanted = share_of(c->busy_share) * 5 / 4;

	scx_bpf_cpuperf_set(cpu, wanted < FULL ? wanted : FULL);
}

void KEEL_OPS(keel_tick, struct task_struct *p)
{
	u32 own = scx_bpf_task_cpu(p);
	struct cpu_state *c = cpu_state(own);
	struct task_state *t;
	u64 now = scx_bpf_now();

	if (!c)
		return;
	t = task_state(p);
	if (t) {
		/* A program that called exec has its memory here, if it has not left since. */
		note_first_node(t, space_of(p), own);
		t->seen_space = space_of(p);
		note_running_on(t, now);
		end_passed_turn(t, own, c, now);
		check_active_migration(p, t, own, c, now);
		evict_running(p, t, own);
		check_exchange(p, t, own, c, now);
	}
	update_utilisation(c, now, true);
	refresh_opening(own);
	if (settings.gate != GATE_ALWAYS && is_shielded(own))
		open_for_liveness(own);
	set_frequency(own, c);
	c->balance_due = 1;
	/*
	 * Slices end only at ticks: a slice that is all but used up would last for another whole
	 * tick.
	 */
	if (p->scx.slice < SLICE_REST_NS)
		set_slice(p, 0);
	if (c->deferred_ns == c->running_since_ns)
		preempt_deferred(p, own, c, now);
	if (has_waiters(c, 1) && has_any_bit(&idle_cpus))
		kick_idle_cpus(own, now);
}

/*
 * A higher class takes the CPU. A task that was about to run is in the local queue, out of reach of
 * other CPUs: it is enqueued again.
 */
void KEEL_OPS(keel_cpu_release, s32 cpu, struct scx_cpu_release_args *args)
{
	struct cpu_state *c = cpu_state(cpu);
	u64 now = scx_bpf_now();

	if (!c)
		return;
	note_taken(c, now);
	open_for_liveness(cpu);
	scx_bpf_reenqueue_local();
}

/*
 * The CPU becomes idle, or busy. If it becomes busy with a task of our class, keel_running()
 * follows; otherwise a higher class has it until then, or until it is idle again.
 */
void KEEL_OPS(keel_update_idle, s32 cpu, bool idle)
{
	struct cpu_state *c = cpu_state(cpu);

	if (!c)
		return;
	if (idle) {
		note_returned(c);
		refresh_opening(cpu);
	} else {
		note_taken(c, scx_bpf_now());
		open_for_liveness(cpu);
	}
}

/*
 * A task leaves our class. If it became real-time while it ran, it has taken its CPU, and the
 * kernel does not call cpu_release: it was not preempted.
 */
void KEEL_OPS(keel_disable, struct task_struct *p)
{
	u32 cpu = scx_bpf_task_cpu(p);
	struct cpu_state *c = cpu_state(cpu);

	if (!c || !p->on_cpu || p->prio >= MAX_RT_PRIO)
		return;
	note_taken(c, scx_bpf_now());
	open_for_liveness(cpu);
}

void KEEL_OPS(keel_cpu_acquire, s32 cpu, struct scx_cpu_acquire_args *args)
{
	struct cpu_state *c = cpu_state(cpu);

	if (c)
		note_returned(c);
}

#endif
