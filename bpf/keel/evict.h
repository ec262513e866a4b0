/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Who is on a CPU when that is shielded leaves it: who waits, at the CPU's next tick; who runs, then
 * too if anybody else is to run there. The kernel lets nobody go who is alone: that is noted, and user
 * space has a thread of its own run there for a moment (product/keel/src/shield.rs).
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
 * Those in this CPU's queue whom the shield keeps off it go to an idle CPU or else to the nearest;
 * balancing does the rest. (Looking for the least loaded one takes more stack than there is here.)
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
			/* Claimed and not wanted: it must look itself, or it would be forgotten as idle. */
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

/* At the tick: who runs on a shielded CPU ends its slice if it is to leave. */
static __always_inline void evict_running(struct task_struct *p, struct task_state *t, u32 own)
{
	if (!is_shielded(own))
		return;
	refresh_barred(p, t);
	if (t->barred)
		set_slice(p, 0);
}

#endif
