/* SPDX-License-Identifier: GPL-2.0-only */
/* Placement: the CPU for a task that wakes, is new, or has become a new program. */
#ifndef EVENKEEL_KEEL_PLACE_H
#define EVENKEEL_KEEL_PLACE_H

/*
 * The policies' view of a CPU that a task may be placed on. False: it may not. Of the best CPU so
 * far loops keep only the number, and view it again: the verifier would follow each field that they
 * kept through every turn.
 */
KEEL_PART bool view_allowed_cpu(struct task_struct *p __arg_trusted, u32 memory, u32 cpu,
				struct cpu_view *view)
{
	if (!view || !may_run_on(p, cpu) || !view_cpu(cpu, view))
		return false;
	view->far = distance_of(memory, cpu);
	return true;
}

/* The CPU on which a new task or program gets most, with its memory's distance. */
KEEL_PART u32 place_new_by_memory(struct task_struct *p __arg_trusted, u32 start_cpu)
{
	struct balance_params params = balance_params();
	struct task_state *t = task_state(p);
	u32 position, memory, best_cpu = start_cpu;

	if (!t)
		return start_cpu;
	memory = memory_node_of(p, t);
	if (!may_run_on(p, start_cpu))
		return start_cpu;
	bpf_for(position, 0, settings.online) {
		struct cpu_view best, view;

		if (!is_closed(t, cpu_at(position)) && view_allowed_cpu(p, memory, best_cpu, &best) &&
		    view_allowed_cpu(p, memory, cpu_at(position), &view) &&
		    balance_is_better_for_new(&params, &best, &view))
			best_cpu = view.cpu;
	}
	return best_cpu;
}

/*
 * The CPU for a new task or program: from the largest domain down, into the least loaded group each
 * time; its own group where that is as good.
 */
KEEL_PART u32 place_new(struct task_struct *p __arg_trusted, struct task_state *t, u32 start_cpu)
{
	struct balance_params params = balance_params(), placing = balance_placing_params(&params);
	u32 cpu = start_cpu, step, i;

	if (settings.parts & PART_HOME)
		return place_new_by_memory(p, start_cpu);
	bpf_for(step, 0, settings.levels) {
		struct keel_domain domain = domain_of(cpu, settings.levels - 1 - step);
		struct group_view least = GROUP_NONE;
		u32 least_cpu = cpu;

		bpf_for(i, 0, domain.ranges) {
			struct cpu_range range = range_at(domain.first_range + i);
			struct group_view group;
			bool is_own = has_position(range, position_of(cpu));

			sum_group(&group, range.first, range.count, p, t);
			if (!group.cpus)
				continue;
			if (!least.cpus || balance_is_heavier(&placing, &least, &group) ||
			    (is_own && !balance_is_heavier(&placing, &group, &least))) {
				least = group;
				least_cpu = is_own ? cpu : group.first;
			}
		}
		cpu = least_cpu;
	}
	return cpu;
}

/* Replaces `best` by another CPU if a waking task is better off there. */
static __always_inline void consider_cpu(struct cpu_view *best, u32 cpu, u32 memory, bool idle,
					 u64 relief)
{
	struct balance_params params = balance_params(), placing = balance_placing_params(&params);
	struct cpu_view view;

	if (cpu == best->cpu || !view_cpu(cpu, &view))
		return;
	view.distance = 1;
	view.far = distance_of(memory, cpu);
	view.idle = idle;
	view.load -= min_u64(view.load, relief);
	if (balance_is_better_for_waking(&placing, best, &view))
		*best = view;
}

/* The idle CPU that is best for a task, among those that it may use; `first` if none is better. */
KEEL_PART u32 find_best_idle(struct task_struct *p __arg_trusted, u32 first)
{
	struct balance_params params = balance_params();
	struct task_state *t = task_state(p);
	u32 position, memory, best_cpu = first;

	if (!t)
		return first;
	memory = memory_node_of(p, t);
	if (!may_run_on(p, first))
		return first;
	bpf_for(position, 0, settings.online) {
		struct cpu_view best, view;

		if (is_closed(t, cpu_at(position)) || !view_allowed_cpu(p, memory, best_cpu, &best) ||
		    !view_allowed_cpu(p, memory, cpu_at(position), &view) || !view.idle)
			continue;
		best.idle = true;
		if (balance_is_better_for_waking(&params, &best, &view))
			best_cpu = view.cpu;
	}
	return best_cpu;
}

/* Replaces a claimed idle CPU by a better one for the task, whatever the placement. */
static __always_inline u32 claim_best_idle(struct task_struct *p, u32 memory, u32 claimed)
{
	u32 better;

	if (!count_faster(claimed) &&
	    (!(settings.parts & PART_HOME) || distance_of(memory, claimed) <= NEAR))
		return claimed;
	better = find_best_idle(p, claimed);
	if (better == claimed || !scx_bpf_test_and_clear_cpu_idle(better))
		return claimed;
	scx_bpf_kick_cpu(claimed, SCX_KICK_IDLE);
	return better;
}

/* Replaces a claimed idle CPU by a better one, if there is any. */
static __always_inline u32 claim_better_idle(struct task_struct *p, u32 memory, u32 claimed)
{
	if (settings.balance == BALANCE_COUNT || settings.parts & PART_PLAIN || claimed == NO_CPU)
		return claimed;
	return claim_best_idle(p, memory, claimed);
}

/* Whether a task that would wait on CPU `own` is better off on an idle one. */
static __always_inline bool is_better_off_on(struct task_struct *p, struct task_state *t, u32 own,
					     u32 idle)
{
	u32 memory = memory_node_of(p, t);
	struct cpu_view best;

	if (!view_cpu(own, &best))
		return true;
	best.idle = false;
	best.far = distance_of(memory, own);
	/*
	 * The task is a part of the load that it would leave behind, unless it is not counted there
	 * now.
	 */
	if (READ_ONCE(t->counted_on) == own + 1)
		best.load -= min_u64(best.load, t->counted_weight);
	consider_cpu(&best, idle, memory, true, 0);
	return best.cpu == idle;
}

/* An idle CPU near `prev`, claimed (then `is_free` is set), or another CPU. */
static __always_inline s32 claim_idle_near(struct task_struct *p, struct task_state *t, s32 prev,
					   u64 wake_flags, bool *is_free)
{
	s32 idle;

	/* The kernel's own choice knows nothing of the shield. */
	if (!t->barred)
		return scx_bpf_select_cpu_dfl(p, prev, wake_flags, is_free);
	idle = claim_idle(p, t, prev);
	*is_free = idle >= 0;
	return *is_free ? idle : prev;
}

/*
 * Under --compact, while there is little work: claims the CPU where the task ran if it idles and is
 * among those that are enough, else the first one that idles, whole cores first; NO_CPU: compaction
 * decides nothing.
 */
KEEL_PART u32 claim_compact(struct task_struct *p __arg_trusted, u32 prev)
{
	u32 enough = READ_ONCE(machine.enough), position, round;
	struct task_state *t = task_state(p);

	if (!t || enough >= settings.online)
		return NO_CPU;
	if (position_of(prev) < enough && has_bit(&idle_cpus, prev) && !is_closed(t, prev) &&
	    may_run_on(p, prev) && scx_bpf_test_and_clear_cpu_idle(prev))
		return prev;
	bpf_for(round, 0, 2) {
		bpf_for(position, 0, settings.online) {
			u32 cpu = cpu_at(position);

			if (!has_bit(&idle_cpus, cpu) || (is_closed(t, cpu) | !may_run_on(p, cpu)))
				continue;
			if (settings.smt && !round && !is_core_idle(cpu))
				continue;
			if (scx_bpf_test_and_clear_cpu_idle(cpu))
				return cpu;
		}
		if (!settings.smt)
			break;
	}
	return NO_CPU;
}

/*
 * What becomes of a waking task while CPUs idle, under a gate that may refuse. The gate is asked before
 * any CPU of another cache is claimed, so that none is claimed in vain.
 */
enum wake_choice {
	WAKE_ANYWHERE,	/* the gate lets it go to another cache, or is not asked */
	WAKE_NEAR,	/* an idle CPU of its cache was claimed */
	WAKE_STAY,	/* refused */
};

/* The choice, and the verdict behind it in `verdict`; an idle CPU that was claimed in `claimed`. */
static __always_inline enum wake_choice choose_wake(struct task_struct *p, struct task_state *t,
						    s32 prev, struct cpu_state *src,
						    struct cpu_state *waker, u32 *verdict, u32 *claimed)
{
	u64 now = cheap_now(waker);

	*verdict = ask_gate(p, prev, src, MOVE_WAKE, now);
	if (is_gate_strict()) {
		if (is_open(*verdict))
			return WAKE_ANYWHERE;
	} else {
		*claimed = claim_idle_in_cache(p, prev);
		if (*claimed != NO_CPU)
			return WAKE_NEAR;
		if (!should_stay(p, prev, now, is_open(*verdict))) {
			if (!is_open(*verdict))
				*verdict = GATE_WORTH;
			return WAKE_ANYWHERE;
		}
		if (is_open(*verdict))
			*verdict = GATE_CHEAP;
		t->kept = 1;
	}
	count_refusal(waker, p, prev, MOVE_WAKE, *verdict, now);
	return WAKE_STAY;
}

/*
 * The CPU for a waking task: the one that it ran on, an idle one near it (the kernel's choice), or
 * the waker's. `claimed`: the idle CPU that was claimed, NO_CPU if there is none.
 *
 * The gate is asked at most once, and only about tasks that could do better than stay: where CPUs are
 * idle, or the waker's CPU is better. It is not asked where a higher class has the task's CPU: a longer
 * wait there is worse than any migration, and without a tick no other CPU would be woken to pull
 * the task.
 */
static __always_inline u32 place_waking(struct task_struct *p, struct task_state *t, s32 prev,
					u64 wake_flags, u32 *claimed)
{
	u32 waker = bpf_get_smp_processor_id(), memory = memory_node_of(p, t), verdict = GATE_VERDICTS;
	struct cpu_state *waker_state = cpu_state(waker), *src = cpu_state(prev);
	bool is_any_idle = has_any_bit(&idle_cpus), is_free = false, is_src_taken;
	enum wake_choice choice = WAKE_ANYWHERE;
	struct cpu_view best;
	s32 near;

	*claimed = NO_CPU;
	if (!waker_state || !src)
		return prev;
	if (settings.compact && is_any_idle) {
		*claimed = claim_compact(p, prev);
		if (*claimed != NO_CPU) {
			if (*claimed != prev)
				count_ungated_move(MOVE_WAKE);
			return *claimed;
		}
	}
	is_src_taken = settings.gate != GATE_ALWAYS && READ_ONCE(src->taken_since_ns);
	if (settings.gate != GATE_ALWAYS && !is_src_taken && is_any_idle && may_run_on(p, prev)) {
		/*
		 * Where CPUs share cores, a core that idles as a whole is better than an idle CPU
		 * beside a busy one: choose_wake() looks for one, in the task's own cache.
		 */
		if ((!settings.smt || is_gate_strict()) && READ_ONCE(src->idles) &&
		    scx_bpf_test_and_clear_cpu_idle(prev)) {
			*claimed = prev;
			return prev;
		}
		choice = choose_wake(p, t, prev, src, waker_state, &verdict, claimed);
		if (choice == WAKE_STAY)
			return prev;
	}
	if (settings.gate != GATE_ALWAYS && choice == WAKE_NEAR) {
		near = *claimed;
		*claimed = NO_CPU;
		is_free = true;
	} else {
		/* Without idle CPUs, the kernel would search in vain. */
		near = is_any_idle ? claim_idle_near(p, t, prev, wake_flags, &is_free) : prev;
	}
	if (!view_cpu(prev, &best))
		return near;
	best.idle = false;
	best.far = distance_of(memory, prev);
	/* The kernel calls the CPU of a waker that is about to sleep free, too: it is not yet. */
	if (is_free && (near != waker || is_idle(waker_state)))
		*claimed = claim_better_idle(p, memory, near);
	if (*claimed == prev)
		return prev;
	if (*claimed != NO_CPU)
		consider_cpu(&best, *claimed, memory, true, 0);
	else if (may_run_on(p, waker) && !is_closed(t, waker))
		consider_cpu(&best, waker, memory, false,
			     wake_flags & SCX_WAKE_SYNC ? waker_state->running_weight : 0);
	/* A task that may not stay must go. */
	if (best.cpu == prev || !may_run_on(p, prev))
		return best.cpu;
	if (settings.gate == GATE_ALWAYS) {
		count_open_move(waker_state, MOVE_WAKE);
		return best.cpu;
	}
	if (is_src_taken || (shares_cache(prev, best.cpu) && !is_gate_strict())) {
		count_ungated_move(MOVE_WAKE);
		return best.cpu;
	}
	if (verdict == GATE_VERDICTS)
		verdict = ask_gate(p, prev, src, MOVE_WAKE, cheap_now(waker_state));
	if (is_open(verdict)) {
		count_allowed_move(waker_state, MOVE_WAKE, verdict);
		return best.cpu;
	}
	count_refusal(waker_state, p, prev, MOVE_WAKE, verdict, cheap_now(waker_state));
	return prev;
}

/*
 * The CPU where the task stays unless it is placed: this one, or the nearest that is not closed to
 * it.
 */
static __always_inline u32 find_unshielded(struct task_struct *p, struct task_state *t, u32 cpu)
{
	u32 open;

	if (!is_closed(t, cpu))
		return cpu;
	open = find_open_cpu(p, cpu, false);
	if (open == NO_CPU)
		return cpu;
	count(COUNT_SHIELD);
	return open;
}

s32 KEEL_OPS(keel_select_cpu, struct task_struct *p, s32 prev, u64 wake_flags)
{
	struct task_state *t = task_state(p);
	u32 cpu, claimed = NO_CPU;
	struct cpu_state *c;

	if (!t)
		return prev;
	refresh_barred(p, t);
	prev = find_unshielded(p, t, prev);
	if (wake_flags & SCX_WAKE_FORK)
		claimed = settings.compact ? claim_compact(p, prev) : NO_CPU;
	if (claimed != NO_CPU) {
		if (claimed != prev)
			count_ungated_move(MOVE_FORK);
		cpu = claimed;
	} else if (wake_flags & SCX_WAKE_FORK) {
		cpu = place_new(p, t, prev);
		c = cpu_state(prev);
		if (c && cpu != prev && !may_place(prev, p, MOVE_FORK, cheap_now(c)))
			cpu = prev;
		if (scx_bpf_test_and_clear_cpu_idle(cpu))
			claimed = cpu;
	} else {
		cpu = place_waking(p, t, prev, wake_flags, &claimed);
	}
	if (claimed != NO_CPU && claimed != cpu) {
		/* Claimed but not used: without a kick the CPU would stay idle and claimed. */
		scx_bpf_kick_cpu(claimed, SCX_KICK_IDLE);
		return cpu;
	}
	c = cpu_state(cpu);
	if (claimed == NO_CPU || !c)
		return cpu;
	place_vruntime(p, t, cpu, c, PLACE_WAKE);
	count_task(p, t, cpu, c);
	count(COUNT_WAKE_IDLE);
	scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, READ_ONCE(tunables.slice_ns), 0);
	return cpu;
}

#endif
