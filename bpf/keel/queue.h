/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A CPU's queue: enqueue puts a task into it, and dispatch gives the CPU its next task. The queue
 * is the DSQ with the CPU's number, in the order of vruntime. The kernel calls keel_enqueue() and
 * keel_dispatch(). Which task is next, pick.h says; which CPU a waking task goes to, place.h.
 */
#ifndef EVENKEEL_KEEL_QUEUE_H
#define EVENKEEL_KEEL_QUEUE_H

/*
 * After an enqueue: kicks the CPU if it is idle, and preempts its running task if the woken one is
 * ahead by enough and would get the CPU.
 */
static __always_inline void kick_or_preempt(u32 cpu, struct cpu_state *c, struct task_state *t,
					    u64 flags, u64 now)
{
	struct order_params params = order_params();
	bool is_own = cpu == bpf_get_smp_processor_id();
	bool is_kept = settings.gate != GATE_ALWAYS && t->kept;
	u64 since_ns, running;

	if (is_kept)
		t->kept = 0;
	/*
	 * Atomic for the barrier, against a lost wake-up: either a CPU that is about to idle sees
	 * the task in its queue, or this CPU sees that no task runs there.
	 */
	if (!__sync_fetch_and_add(&c->running_weight, 0)) {
		/*
		 * The executing CPU turns to its queue by itself, unless this enqueue was the last
		 * thing it did before idling (SCX_ENQ_LAST). No other CPU does, not even the one
		 * that the kernel enqueues on: the kernel reschedules that CPU only for a task that
		 * wakes there.
		 */
		if (!is_own || flags & SCX_ENQ_LAST)
			scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
		return;
	}
	if (!(flags & SCX_ENQ_WAKEUP))
		return;
	since_ns = READ_ONCE(c->running_since_ns);
	running = get_running_vruntime(c, now);
	if (is_kept ? !order_should_preempt_kept(t->vruntime, running) :
	    !order_should_preempt(&params, t->vruntime, running))
		return;
	if (settings.order == ORDER_IAS && !takes_turns() && is_passed_over(cpu, t->vruntime, now))
		return;
	/* The running task woke it, unless an interrupt did. */
	if (is_own && order_is_protected(&params, now - since_ns) && !in_interrupt()) {
		c->deferred_ns = since_ns;
		return;
	}
	if (takes_turns())
		WRITE_ONCE(c->woken, t->vruntime | 1);
	count(COUNT_PREEMPT);
	scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
}

/*
 * The CPU for a task at the end of its slice, under a gate that may refuse, while CPUs idle. The rule is
 * that for a waking task: an idle CPU of its own cache, or one of another cache if waiting would cost
 * more than the move.
 */
KEEL_PART u32 place_by_gate(struct task_struct *p __arg_trusted, u32 own, u64 now)
{
	struct cpu_state *c = cpu_state(own);
	struct task_state *t = task_state(p);
	u32 verdict, idle = NO_CPU;
	bool is_near;

	if (!c || !t)
		return own;
	verdict = ask_gate(p, own, c, MOVE_IDLE, now);
	if (is_gate_strict() && !is_open(verdict))
		return own;
	if (!is_gate_strict()) {
		idle = claim_idle_in_cache(p, own);
		if (idle == NO_CPU && should_stay(p, own, now, is_open(verdict)))
			return own;
	}
	is_near = idle != NO_CPU;
	if (!is_near) {
		idle = claim_idle(p, t, own);
		/* A CPU that is just coming online, as below. */
		if ((s32)idle < 0 || idle == own || cpu_at(position_of(idle)) != idle)
			return own;
		idle = claim_better_idle(p, memory_node_of(p, t), idle);
	}
	c = cpu_state(bpf_get_smp_processor_id());
	if (!c || !is_better_off_on(p, t, own, idle)) {
		scx_bpf_kick_cpu(idle, SCX_KICK_IDLE);
		return own;
	}
	if (is_near)
		count_ungated_move(MOVE_IDLE);
	else
		count_allowed_move(c, MOVE_IDLE, is_open(verdict) ? verdict : GATE_WORTH);
	return idle;
}

/*
 * The keel was loaded again, and the kernel takes all CPUs for idle at first: so the task stays where
 * its caches are. If it waits there while a CPU does idle, that CPU pulls it.
 */
static __always_inline void kick_for_kept(struct task_struct *p, struct task_state *t, u32 own)
{
	s32 claimed = claim_idle(p, t, own);

	if (claimed >= 0)
		scx_bpf_kick_cpu(claimed, SCX_KICK_IDLE);
}

/*
 * The CPU for a task that the kernel enqueues without select_cpu: at the end of its slice, after an
 * exec, after a change of its affinity, class or cgroup, or because a real-time task took its CPU.
 */
static __always_inline u32 place_at_enqueue(struct task_struct *p, struct task_state *t, u32 own,
					    bool pushed_off, u64 now)
{
	s32 idle;
	u32 cpu;

	if (p->nr_cpus_allowed == 1)
		return own;
	if (is_closed(t, own)) {
		t->space = space_of(p);
		return place_off_shield(p, t, own);
	}
	if (t->is_new == IS_KEPT) {
		kick_for_kept(p, t, own);
		return own;
	}
	if (t->space != space_of(p)) {
		t->space = space_of(p);
		/* The memory of the old program is gone, and the new one has run for less than a tick. */
		if (t->seen_space != t->space)
			t->memory = 0;
		cpu = place_new(p, t, own);
		if (cpu == own || !may_place(own, p, MOVE_EXEC, now))
			return own;
		/* Idle or not: the kick below finds out. */
		scx_bpf_test_and_clear_cpu_idle(cpu);
		return cpu;
	}
	if (!has_any_bit(&idle_cpus))
		return own;
	/*
	 * A task that was pushed off needs no gate: nothing is worse than to wait for a real-time
	 * task.
	 */
	if (settings.gate != GATE_ALWAYS && !pushed_off)
		return place_by_gate(p, own, now);
	idle = claim_idle(p, t, own);
	/*
	 * A CPU that is just coming online does not look into its queue before the keel is loaded
	 * anew.
	 */
	if (idle < 0 || idle == own || cpu_at(position_of(idle)) != (u32)idle)
		return own;
	idle = claim_better_idle(p, memory_node_of(p, t), idle);
	if (pushed_off)
		count_ungated_move(MOVE_IDLE);
	else if (!is_better_off_on(p, t, own, idle) || !may_move(own, p, MOVE_IDLE, now)) {
		scx_bpf_kick_cpu(idle, SCX_KICK_IDLE);
		return own;
	}
	return idle;
}

/* A task without state, or without a CPU: it goes to the kernel's global queue. */
static __always_inline void enqueue_globally(struct task_struct *p, u32 own, u64 flags)
{
	count(COUNT_NO_STATE);
	scx_bpf_dsq_insert(p, SCX_DSQ_GLOBAL, READ_ONCE(tunables.slice_ns), flags);
	/* Its CPU is about to idle, and looks there when it does. */
	if (flags & SCX_ENQ_LAST)
		scx_bpf_kick_cpu(own, SCX_KICK_IDLE);
}

void KEEL_OPS(keel_enqueue, struct task_struct *p, u64 flags)
{
	struct task_state *t = task_state(p);
	u32 own = scx_bpf_task_cpu(p), cpu = own;
	u64 now = scx_bpf_now();
	bool pushed_off, is_turn;
	struct cpu_state *dst;

	if (!t) {
		enqueue_globally(p, own, flags);
		return;
	}
	note_wakeup(t, now);
	refresh_barred(p, t);
	pushed_off = flags & SCX_ENQ_REENQ || t->pushed_off;
	t->pushed_off = 0;
	is_turn = t->is_turn;
	t->is_turn = 0;
	if (t->migrate_to) {
		cpu = t->migrate_to - 1;
		t->migrate_to = 0;
	} else if (!(flags & SCX_ENQ_CPU_SELECTED) || is_closed(t, own))
		cpu = place_at_enqueue(p, t, own, pushed_off, now);
	dst = cpu_state(cpu);
	if (!dst) {
		enqueue_globally(p, own, flags);
		return;
	}
	place_vruntime(p, t, cpu, dst, flags & SCX_ENQ_WAKEUP ? PLACE_WAKE : PLACE_ARRIVE);
	if (settings.parts & PARTS_CHANGE && is_turn)
		place_at_clock(t, cpu);
	count_task(p, t, cpu, dst);
	if (pushed_off)
		count(COUNT_THIEF);
	else
		note_dequeued(p, t);
	t->waiting_since_ns = now;
	count(COUNT_ENQUEUE);
	index_insert(p, t, cpu);
	scx_bpf_dsq_insert_vtime(p, cpu, READ_ONCE(tunables.slice_ns), t->vruntime, flags);
	set_bit(&waiting_cpus, cpu);
	kick_or_preempt(cpu, dst, t, flags, now);
	if (settings.parts & PARTS_CHANGE && is_turn)
		kick_exchange_partner(own, cpu);
}

/* What a busy CPU does from time to time; sets when that is due again. */
static __always_inline void balance_and_rescue(u32 own, struct cpu_state *c, u64 now)
{
	c->look_at_ns = now + SCAN_INTERVAL_NS;
	c->search.arrived = 0;
	balance_periodic(own, now);
	if (c->search.arrived)
		note_arrivals(own, c, now);
	rescue_waiter(own, now);
	c->look_at_ns = min_u64(c->look_at_ns, c->rescue_at_ns);
}

void KEEL_OPS(keel_dispatch, s32 own, struct task_struct *prev)
{
	struct cpu_state *c = cpu_state(own);
	struct task_state *t = NULL;
	u64 now = 0, yielder, vruntime = 0;
	bool keeps = false;

	if (!c)
		return;
	/*
	 * The kernel calls dispatch before it asks the higher classes. If no task of ours is
	 * preempted, a task that was put onto the CPU would stay behind the higher class's task, out
	 * of reach of other CPUs, and the kernel would not call cpu_release.
	 */
	if (!prev && is_awaited_by_higher_class())
		return;
	note_returned(c);
	/* It may be left from a task that was picked and did not run. */
	c->turn_goes_on = 0;
	yielder = c->yielder;
	c->yielder = 0;
	refresh_mean();
	if (c->balance_due) {
		c->balance_due = 0;
		now = scx_bpf_now();
		if (is_shielded(own))
			evict_waiters(own);
		if (now >= c->look_at_ns)
			balance_and_rescue(own, c, now);
		/*
		 * A second task would wait behind the rescued one for a slice, out of reach of
		 * other CPUs.
		 */
		if (c->rescued) {
			c->rescued = 0;
			note_served(own, c, 1);
			return;
		}
	}
	if (prev && prev->scx.flags & SCX_TASK_QUEUED) {
		now = scx_bpf_now();
		note_quantum(prev, c, now);
		/* The task that yields is no candidate; it is charged when it stops. */
		if (yielder == (u32)prev->pid && has_waiters(c, 1) && serve_cpu(own, c, false, 0)) {
			note_served(own, c, 1);
			return;
		}
		t = task_state(prev);
	}
	if (t) {
		charge_task(prev, t, own, c);
		if (should_migrate(prev, t, c) ||
		    (settings.parts & PARTS_CHANGE && c->change_with &&
		     should_exchange(prev, own, now))) {
			end_turn(own, c);
			note_idle(own, c);
			return;
		}
		keeps = !is_closed(t, own);
		vruntime = t->vruntime;
	}
	/* If no task waits here, look elsewhere; not if the task that ran can go on. */
	if (has_waiters(c, t != NULL) || (!t && balance_idle(own))) {
		if (serve_cpu(own, c, keeps, vruntime)) {
			note_served(own, c, 1);
			return;
		}
	}
	/*
	 * While tasks were moved, the runqueue's lock may have been dropped, and `prev` dequeued or
	 * changed to another class.
	 */
	if (t && !(prev->scx.flags & SCX_TASK_QUEUED))
		return;
	note_served(own, c, t != NULL);
	if (t) {
		count_on(c, COUNT_KEEP);
		note_running(c, t, now);
		WRITE_ONCE(c->lodges, !keeps);
		set_slice(prev, READ_ONCE(tunables.slice_ns));
	} else {
		end_turn(own, c);
		note_idle(own, c);
	}
}

#endif
