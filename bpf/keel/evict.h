/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Evicting tasks from a CPU that was shielded: a waiting task leaves at the CPU's next tick, and so
 * does the running task if another one is to run there. The kernel does not deschedule a task that
 * is alone: the keel notes that (`lodges`), and user space has a thread of its own run there for a
 * moment (product/keel/src/shield.rs).
 */
#ifndef EVENKEEL_KEEL_EVICT_H
#define EVENKEEL_KEEL_EVICT_H

/* The CPU for a task that the shield keeps off `own`: an idle one near it, or the least loaded. */
static __always_inline u32 place_off_shield(struct task_struct *p, struct task_state *t, u32 own)
{
	u32 idle = find_open_cpu(p, own, true), open;

	count(COUNT_SHIELD);
	if (idle != NO_CPU)
		return idle;
	open = find_open_cpu(p, own, false);
	return open == NO_CPU ? own : place_new(p, t, open);
}

/*
 * Moves the tasks in this CPU's queue that the shield keeps off to an idle CPU, or else to the
 * nearest one; balancing does the rest. (A search for the least loaded CPU takes more stack than
 * there is here.)
 */
KEEL_PART int evict_waiters(u32 own)
{
	u64 budget = READ_ONCE(tunables.scan_limit);
	struct task_struct *p;

	bpf_for_each(scx_dsq, p, own, 0) {
		struct task_state *t;
		u32 idle, cpu;

		if (!budget)
			break;
		budget--;
		t = task_state(p);
		if (!t)
			continue;
		refresh_barred(p, t);
		if (!is_closed(t, own))
			continue;
		idle = find_open_cpu(p, own, true);
		cpu = idle == NO_CPU ? find_open_cpu(p, own, false) : idle;
		if (cpu == NO_CPU)
			continue;
		if (!move_waiter(THIS_ITERATOR, p, t, own, cpu)) {
			/*
			 * Claimed but not used: without a kick the CPU would stay idle and claimed.
			 */
			if (idle != NO_CPU)
				scx_bpf_kick_cpu(idle, SCX_KICK_IDLE);
			continue;
		}
		count(COUNT_SHIELD);
		set_bit(&waiting_cpus, cpu);
		scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
	}
	return 0;
}

/* At the tick: ends the slice of a task that is to leave this shielded CPU. */
static __always_inline void evict_running(struct task_struct *p, struct task_state *t, u32 own)
{
	if (!is_shielded(own))
		return;
	refresh_barred(p, t);
	if (t->barred)
		set_slice(p, 0);
}

#endif
