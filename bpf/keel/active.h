/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Active migration: moves a *running* task (idle CPUs pull only waiting ones). A task that runs
 * alone on a CPU that is not the fastest leaves for an idle CPU on which it gets more, or is
 * exchanged with a task that runs alone on an unequal CPU: in turns, or so that each program has
 * similar CPUs. The tick finds the CPU, dispatch lets the task go, and enqueue puts it there.
 */
#ifndef EVENKEEL_KEEL_ACTIVE_H
#define EVENKEEL_KEEL_ACTIVE_H

/*
 * The idle CPU that is best for the task running on `own`, from the smallest domain up; `own`:
 * none.
 */
KEEL_PART u32 find_active_target(struct task_struct *p __arg_trusted, u32 own)
{
	struct balance_params params = balance_params();
	struct task_state *t = task_state(p);
	struct cpu_view best;
	u32 level, position, memory;

	if (!t || !view_cpu(own, &best))
		return own;
	memory = memory_node_of(p, t);
	best.far = distance_of(memory, own);
	bpf_for(level, 0, settings.levels) {
		struct keel_domain domain = domain_of(own, level);
		u32 first = range_at(domain.first_range).first;

		if (!domain.ranges)
			continue;
		bpf_for(position, first, first + domain.cpus) {
			u32 cpu = cpu_at(position);
			struct cpu_view view;

			if (is_closed(t, cpu) || !view_allowed_cpu(p, memory, cpu, &view))
				continue;
			if (balance_is_better_for_running(&params, &best, &view))
				best = view;
		}
		if (best.cpu != own)
			break;
	}
	return best.cpu;
}

/*
 * Whether the task that runs on another CPU could come here in exchange: it belongs to the program
 * `space`, and its turn there is over. In p's own program, `mine`, it may use as many CPUs as p; in
 * another one all.
 */
static __always_inline bool may_exchange(struct task_struct *p, struct cpu_state *other, u64 space,
					 u64 mine, u64 now)
{
	u64 cpus = READ_ONCE(other->running_cpus);

	return READ_ONCE(other->running_space) == space && now >= READ_ONCE(other->turn_until_ns) &&
	       (space == mine ? cpus == (u64)p->nr_cpus_allowed : cpus >= settings.online);
}

/*
 * The CPU for an exchange in turns with the task that runs on `own`: the one where the turn ended
 * first, from the smallest domain up.
 */
KEEL_PART u32 find_turn_target(struct task_struct *p __arg_trusted, u32 own, u64 now)
{
	struct balance_params params = balance_params();
	struct task_state *t = task_state(p);
	struct cpu_view own_view, view;
	u32 level, position, best_cpu = own;
	u64 mine = space_of(p);

	if (!t || !view_cpu(own, &own_view))
		return own;
	bpf_for(level, 0, settings.levels) {
		struct keel_domain domain = domain_of(own, level);
		u32 first = range_at(domain.first_range).first;

		if (!domain.ranges)
			continue;
		bpf_for(position, first, first + domain.cpus) {
			u32 cpu = cpu_at(position);
			struct cpu_state *other = cpu_state(cpu), *best = cpu_state(best_cpu);
			u64 theirs, least;

			if (!other || !best || (is_closed(t, cpu) | !may_run_on(p, cpu)) ||
			    !may_exchange(p, other, mine, mine, now) || !view_cpu(cpu, &view) ||
			    !balance_should_take_turns(&params, &own_view, &view))
				continue;
			theirs = READ_ONCE(other->turn_until_ns);
			least = READ_ONCE(best->turn_until_ns);
			if (best_cpu == own || theirs < least)
				best_cpu = cpu;
		}
		if (best_cpu != own)
			break;
	}
	return best_cpu;
}

/*
 * How many threads of the program that runs on `program_cpu` run on CPUs that are faster than
 * `own`.
 */
KEEL_PART u32 count_program_on_faster(u32 program_cpu, u32 own)
{
	struct balance_params params = balance_params();
	struct cpu_state *program_state = cpu_state(program_cpu);
	struct cpu_view own_view, view;
	u32 position, found = 0;
	u64 space;

	if (!program_state || !view_cpu(own, &own_view))
		return 0;
	space = READ_ONCE(program_state->running_space);
	bpf_for(position, 0, settings.online) {
		u32 cpu = cpu_at(position);
		struct cpu_state *c = cpu_state(cpu);

		if (c && READ_ONCE(c->running_weight) && READ_ONCE(c->running_space) == space &&
		    view_cpu(cpu, &view) && balance_is_faster(&params, &view, &own_view))
			found++;
	}
	return found;
}

/*
 * The CPU for an exchange between programs, so that each gets more similar CPUs. One program is
 * examined at a time, and the next one the next time.
 */
KEEL_PART u32 find_gather_target(struct task_struct *p __arg_trusted, u32 own, u64 now)
{
	struct balance_params params = balance_params();
	struct cpu_state *c = cpu_state(own);
	struct task_state *t = task_state(p);
	struct cpu_view own_view, view;
	u32 step, ours, theirs;
	u64 mine = space_of(p);

	if (!c || !t || is_shielded(own) || !view_cpu(own, &own_view))
		return own;
	ours = count_program_on_faster(own, own);
	bpf_for(step, 0, settings.online) {
		u32 position = (c->gather_from + step) % settings.online, cpu = cpu_at(position);
		struct cpu_state *other = cpu_state(cpu);
		u64 space;

		if (!other)
			continue;
		space = READ_ONCE(other->running_space);
		if (space == mine || (is_closed(t, cpu) | !may_run_on(p, cpu)) ||
		    READ_ONCE(other->running_weight) > t->weight ||
		    !may_exchange(p, other, space, mine, now) || !view_cpu(cpu, &view) ||
		    !balance_is_faster(&params, &view, &own_view))
			continue;
		c->gather_from = position + 1;
		theirs = count_program_on_faster(cpu, own);
		return balance_should_gather(&params, &own_view, &view, ours, theirs, mine < space) ?
			cpu : own;
	}
	return own;
}

/* At the tick: has the running task leave if it is alone and better off on an idle CPU. */
static __always_inline void check_active_migration(struct task_struct *p, struct task_state *t, u32 own,
						   struct cpu_state *c, u64 now)
{
	u32 cpu;

	if (!(settings.parts & PART_ACTIVE) || !count_faster(own) || now < c->active_at_ns ||
	    has_waiters(c, 1) || !has_any_bit(&idle_cpus))
		return;
	if (HAS_PAPER_RULE(RULE_RATIO)) {
		struct balance_params params = get_idle_params(own);

		if (!balance_should_abstain(&params))
			return;
	}
	c->active_at_ns = now + ACTIVE_INTERVAL_NS;
	cpu = find_active_target(p, own);
	if (cpu == own || !may_move(own, p, MOVE_ACTIVE, now))
		return;
	c->leave_to = cpu + 1;
	set_slice(p, 0);
}

/*
 * At the tick: has the running task exchanged if it is alone, and a turn is due or its program
 * gains similar CPUs.
 */
static __always_inline void check_exchange(struct task_struct *p, struct task_state *t, u32 own,
					   struct cpu_state *c, u64 now)
{
	struct cpu_state *other;
	u32 cpu = own;

	if (!(settings.parts & PARTS_CHANGE) || now < c->turn_until_ns || now < c->turn_at_ns ||
	    c->leave_to || has_waiters(c, 1))
		return;
	c->turn_at_ns = now + ACTIVE_INTERVAL_NS / 2;
	if (settings.parts & PART_TURNS)
		cpu = find_turn_target(p, own, now);
	if (settings.parts & PART_SIMILAR && cpu == own && space_of(p) && count_faster(own))
		cpu = find_gather_target(p, own, now);
	other = cpu_state(cpu);
	if (cpu == own || !other || !may_move_uncounted(own, p, MOVE_ACTIVE, now))
		return;
	c->change_space = READ_ONCE(other->running_space);
	c->change_with = cpu + 1;
	set_slice(p, 0);
}

/*
 * Whether the task that ran migrates to the idle CPU that the tick found, now claimed. If so it is
 * not kept here, and the kernel enqueues it.
 */
static __always_inline bool should_migrate(struct task_struct *p, struct task_state *t,
					   struct cpu_state *c)
{
	u64 dst = c->leave_to;

	if (!(settings.parts & PART_ACTIVE) || !dst)
		return false;
	c->leave_to = 0;
	/* Since the tick all of this may have changed: mask, shield, and other tasks. */
	if (has_waiters(c, 1) || !may_run_on(p, dst - 1) || is_closed(t, dst - 1) ||
	    !scx_bpf_test_and_clear_cpu_idle(dst - 1))
		return false;
	t->migrate_to = dst;
	return true;
}

/*
 * Whether the task that ran here is exchanged, as the tick found; then a new turn begins on both
 * CPUs. A function of its own: its stack does not add to that of dispatch.
 */
KEEL_PART bool should_exchange(struct task_struct *p __arg_trusted, u32 own, u64 now)
{
	struct balance_params params = balance_params();
	struct cpu_state *c = cpu_state(own), *other;
	struct task_state *t = task_state(p);
	u64 with;

	if (!c || !t)
		return false;
	with = c->change_with;
	c->change_with = 0;
	other = cpu_state(with - 1);
	if (!other || has_waiters(c, 1) || READ_ONCE(other->runnable) != 1 ||
	    !may_run_on(p, with - 1) || is_closed(t, with - 1) ||
	    !may_exchange(p, other, c->change_space, space_of(p), now) ||
	    !may_move(own, p, MOVE_ACTIVE, now))
		return false;
	c->turn_until_ns = now + balance_turn_ns(&params, count_unlike(own), settings.online);
	WRITE_ONCE(other->turn_until_ns,
		   now + balance_turn_ns(&params, count_unlike(with - 1), settings.online));
	t->migrate_to = with;
	t->is_turn = 1;
	return true;
}

/* Puts an exchanged task before the task that runs there, which has run since the clock was set. */
static __always_inline void place_at_clock(struct task_state *t, u32 cpu)
{
	struct cpu_state *c = cpu_state(cpu);
	u64 clock;

	if (!c)
		return;
	clock = READ_ONCE(c->clock);
	if (is_vruntime_before(clock, t->vruntime))
		t->vruntime = clock;
}

/* The exchanged task preempts the one that runs there, and that one comes here. */
static __always_inline void kick_exchange_partner(u32 own, u32 cpu)
{
	struct cpu_state *other = cpu_state(cpu);

	if (!other)
		return;
	/* If no task of our class runs there, this CPU pulls the task that waits there. */
	if (READ_ONCE(other->running_weight))
		scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
	else
		scx_bpf_kick_cpu(own, 0);
}

#endif
