/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Active migration: who runs alone leaves its CPU for a more capable one that idles. Nobody else
 * moves it, because CPUs that idle look for tasks that wait. The tick finds the CPU, `dispatch`
 * lets the task go, and `enqueue` puts it there.
 */
#ifndef EVENKEEL_KEEL_ACTIVE_H
#define EVENKEEL_KEEL_ACTIVE_H

/* The CPU that who runs on `own` is best off on, from the smallest domain up. */
KEEL_PART u32 active_target(struct task_struct *p __arg_trusted, u32 own, u64 now)
{
	struct balance_params params = balance_params();
	struct task_state *t = task_state(p);
	struct cpu_view best;
	u32 level, position;

	if (!t || !view_cpu(own, now, &best))
		return own;
	bpf_for(level, 0, settings.levels) {
		struct keel_domain domain = domain_of(own, level);
		u32 first = range_at(domain.first_range).first;

		if (!domain.ranges)
			continue;
		bpf_for(position, first, first + domain.cpus) {
			u32 cpu = cpu_at(position);
			struct cpu_view view;

			if (may_run_on(p, cpu) && !is_closed(t, cpu) && view_cpu(cpu, now, &view) &&
			    balance_active(&params, &best, &view))
				best = view;
		}
		if (best.cpu != own)
			break;
	}
	return best.cpu;
}

/* Has who runs here leave if it is alone and better off elsewhere. */
static __always_inline void look_for_better(struct task_struct *p, struct task_state *t, u32 own,
					    struct cpu_state *c, u64 now)
{
	u32 cpu;

	if (!(settings.parts & PART_ACTIVE) || !faster_than(own) || now < c->active_at_ns ||
	    is_anybody_waiting_on(c, 1) || !is_any(&idle_cpus))
		return;
	c->active_at_ns = now + ACTIVE_INTERVAL_NS;
	cpu = active_target(p, own, now);
	if (cpu == own || !may_move(own, p, t, MOVE_ACTIVE, now))
		return;
	c->leave_to = cpu + 1;
	set_slice(p, 0);
}

/* Whether who ran is let go; then nobody keeps it here, and it is enqueued. */
static __always_inline bool lets_go(struct task_struct *p, struct task_state *t,
				    struct cpu_state *c)
{
	u64 to = c->leave_to;

	if (!(settings.parts & PART_ACTIVE) || !to)
		return false;
	c->leave_to = 0;
	if (is_anybody_waiting_on(c, 1) || !may_run_on(p, to - 1) ||
	    !scx_bpf_test_and_clear_cpu_idle(to - 1))
		return false;
	t->leaves_to = to;
	return true;
}

#endif
