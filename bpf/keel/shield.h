/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The shield: CPUs that take only tasks that may run nowhere else, so that what is pinned there,
 * above all a real-time task, has them for itself. It is not a policy: it holds whatever the
 * policies say. It strands no task: a task that may use shielded CPUs only runs there as if there
 * were no shield.
 */
#ifndef EVENKEEL_KEEL_SHIELD_H
#define EVENKEEL_KEEL_SHIELD_H

/* 0 or 1, for is_closed(). */
static __always_inline u32 is_shielded(u32 cpu)
{
	return READ_ONCE(tunables.shield[BOUNDED(cpu, MAX_CPUS) / 64]) >> (cpu & 63) & 1;
}

/*
 * The nearest unshielded CPU that the task may use, searched from `near` upwards by position;
 * NO_CPU: there is none. `claims`: only an idle one, and claims it.
 */
KEEL_PART u32 find_open_cpu(struct task_struct *p __arg_trusted, u32 near, bool claims)
{
	u32 first = position_of(near), online = settings.online, i;

	bpf_for(i, 0, online) {
		u32 position = first + i;
		u32 cpu = cpu_at(position < online ? position : position - online);

		if (is_shielded(cpu) || !may_run_on(p, cpu))
			continue;
		if (!claims || (has_bit(&idle_cpus, cpu) && scx_bpf_test_and_clear_cpu_idle(cpu)))
			return cpu;
	}
	return NO_CPU;
}

/* Finds out whether the task may use any unshielded CPU: then shielded ones are closed to it. */
KEEL_PART int update_barred(struct task_struct *p __arg_trusted)
{
	struct task_state *t = task_state(p);

	if (t)
		t->barred = p->nr_cpus_allowed > 1 && find_open_cpu(p, 0, false) != NO_CPU;
	return 0;
}

/* Repeated, because the task's mask and the shield may change. */
static __always_inline void refresh_barred(struct task_struct *p, struct task_state *t)
{
	if (READ_ONCE(tunables.shielded))
		update_barred(p);
	else
		t->barred = 0;
}

/*
 * Whether the shield keeps the task off a CPU, as of the last refresh_barred(). (Without a branch:
 * the verifier would follow both ways through all turns of a loop.)
 */
static __always_inline u32 is_closed(struct task_state *t, u32 cpu)
{
	return t->barred & is_shielded(cpu);
}

/* Claims an idle CPU for the task, near `near`; negative: there is none. */
static __always_inline s32 claim_idle(struct task_struct *p, struct task_state *t, u32 near)
{
	return t->barred ? (s32)find_open_cpu(p, near, true) : scx_bpf_pick_idle_cpu(p->cpus_ptr, 0);
}

/* Whether all hardware threads of a CPU's core are idle. */
static __always_inline bool is_core_idle(u32 cpu)
{
	struct keel_domain core = topology.cpu[BOUNDED(cpu, MAX_CPUS)].domain[0];
	u32 first = topology.range[BOUNDED(core.first_range, MAX_RANGES)].first, i;

	bpf_for(i, 0, core.cpus) {
		if (!has_bit(&idle_cpus, topology.cpu_at[BOUNDED(first + i, MAX_CPUS)]))
			return false;
	}
	return true;
}

/*
 * Claims an idle CPU of the last-level cache of `near`: `near` itself or another one, whole cores first;
 * NO_CPU: there is none.
 */
KEEL_PART u32 claim_idle_in_cache(struct task_struct *p __arg_trusted, u32 near)
{
	struct cpu_range cache = topology.cache[BOUNDED(topology.cpu[BOUNDED(near, MAX_CPUS)].cache,
							MAX_CPUS)];
	struct task_state *t = task_state(p);
	u32 i, count = cache.count, from = position_of(near) - cache.first, other = NO_CPU;

	if (!t || !count_in_cache(&idle_cpus, near))
		return NO_CPU;
	bpf_for(i, 0, count) {
		u32 step = from + i, cpu = cpu_at(cache.first + (step < count ? step : step - count));

		if (!has_bit(&idle_cpus, cpu) || (is_closed(t, cpu) | !may_run_on(p, cpu)))
			continue;
		if (settings.smt && !is_core_idle(cpu)) {
			other = cpu;
			continue;
		}
		if (scx_bpf_test_and_clear_cpu_idle(cpu))
			return cpu;
	}
	/* No whole core idles: the caches of `near` are warm. (Not in the loop, for the verifier.) */
	if (settings.smt && has_bit(&idle_cpus, near) && !(is_closed(t, near) | !may_run_on(p, near)) &&
	    scx_bpf_test_and_clear_cpu_idle(near))
		return near;
	return other != NO_CPU && scx_bpf_test_and_clear_cpu_idle(other) ? other : NO_CPU;
}

#endif
