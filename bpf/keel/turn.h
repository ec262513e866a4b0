/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The turns of address spaces on a CPU (the mode `rounds`), and the kicks of slaves in both modes: a
 * master that begins to aggregate an address space kicks its slaves, which would otherwise see it
 * only at their next pick. An idle slave comes to pull a waiting sibling, as idle CPUs pull. A busy
 * slave picks again if the pick would be a sibling.
 */
#ifndef EVENKEEL_KEEL_TURN_H
#define EVENKEEL_KEEL_TURN_H

/* Whether `cpu` is a slave of this master. */
static __always_inline bool is_slave_of(u32 cpu, u32 master)
{
	u32 role = READ_ONCE(roles.role[BOUNDED(master, MAX_CPUS)]);

	return cpu != master && !(role & 1) &&
	       READ_ONCE(roles.role[BOUNDED(cpu, MAX_CPUS)]) == (role | 1);
}

/* Kicks one idle slave for each sibling that waits here, while there are both. */
KEEL_PART int kick_idle_slaves(u32 own, u64 space)
{
	struct keel_space *wanted = find_space(space);
	u64 budget = READ_ONCE(tunables.sibling_window);
	struct task_struct *p;
	u32 next = 0, position;

	if (!wanted)
		return 0;
	bpf_for_each(scx_dsq, p, own, 0) {
		if (!budget || next >= settings.online)
			break;
		budget--;
		if (!is_sibling(p, space, wanted->process))
			continue;
		bpf_for(position, next, settings.online) {
			u32 cpu = cpu_at(position);

			next = position + 1;
			if (!is_slave_of(cpu, own) || !has_bit(&idle_cpus, cpu) || !may_run_on(p, cpu))
				continue;
			count(COUNT_KICK_IDLE);
			scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
			break;
		}
	}
	return 0;
}

/* The vruntime of the task that runs on a CPU, charged up to now. */
static __always_inline u64 get_running_vruntime(struct cpu_state *c, u64 now)
{
	u64 since_ns = READ_ONCE(c->running_since_ns);
	u64 vruntime = READ_ONCE(c->running_vruntime);
	u64 weight = READ_ONCE(c->running_weight);

	/* Clocks of two CPUs may differ a little. */
	return order_charge(vruntime, now > since_ns ? now - since_ns : 0, weight);
}

/*
 * Kicks the busy slaves that run another space, and would now pick a sibling from their own queue.
 */
KEEL_PART int kick_busy_slaves(u32 own, u64 space, u64 now)
{
	struct cpu_state *master = cpu_state(own);
	struct known_space *wanted;
	u32 position;

	if (!master)
		return 0;
	wanted = get_known_space(master, KNOWN_RUNNING, space);
	bpf_for(position, 0, settings.online) {
		struct sibling sibling = {};
		u32 cpu = cpu_at(position);
		struct cpu_state *c = cpu_state(cpu);
		u64 since_ns;

		if (!c || !is_slave_of(cpu, own) || !READ_ONCE(c->running_weight) ||
		    READ_ONCE(c->running_space) == space || !has_waiters(c, 1))
			continue;
		since_ns = READ_ONCE(c->running_since_ns);
		find_sibling(&sibling, wanted, cpu, get_running_vruntime(c, now),
			     now > since_ns ? now - since_ns : 0);
		if (!sibling.as.exists)
			continue;
		count(COUNT_KICK_BUSY);
		scx_bpf_kick_cpu(cpu, SCX_KICK_PREEMPT);
	}
	return 0;
}

static __always_inline void kick_slaves(u32 own, u64 space)
{
	u64 kick = READ_ONCE(tunables.sibling_kick);

	if (kick >= KICK_IDLE && has_any_bit(&idle_cpus))
		kick_idle_slaves(own, space);
	if (kick >= KICK_BUSY)
		kick_busy_slaves(own, space, scx_bpf_now());
}

/* The space gets its turn on this CPU (0: one that does not aggregate). A master publishes it. */
KEEL_PART int begin_turn(u32 own, u64 space, u64 now)
{
	struct cpu_state *c = cpu_state(own);
	struct publication *publication;
	bool is_master;

	if (!c)
		return 0;
	if (c->turn_space != space)
		c->preferred = 0;
	c->turn_space = space;
	c->turn_began_ns = now;
	publication = find_publication(own, &is_master);
	if (publication && is_master && publish_space(publication, own, space))
		kick_slaves(own, space);
	return 0;
}

/*
 * The task gets the CPU: a turn of its space begins, unless the pick said that the present turn goes on.
 * A kernel thread has no space.
 */
static __always_inline void note_turn(struct task_struct *p, struct task_state *t, u32 cpu,
				      struct cpu_state *c, u64 now)
{
	u64 space = t->seen_space, goes_on;

	if (!takes_turns() || !may_aggregate())
		return;
	goes_on = c->turn_goes_on;
	c->turn_goes_on = 0;
	if (goes_on || !space)
		return;
	if (!aggregates(p, t))
		space = 0;
	if (space || c->turn_space)
		begin_turn(cpu, space, now);
}

/*
 * Ends a turn that is over while a task of another space runs: it passed the turn, and if it runs on
 * alone, no pick follows that would end the turn. Slaves of a master would follow for as long.
 */
static __always_inline void end_passed_turn(struct task_state *t, u32 own, struct cpu_state *c, u64 now)
{
	struct order_params params;

	if (!takes_turns() || !c->turn_space || t->seen_space == c->turn_space)
		return;
	params = order_params();
	if (order_is_turn_over(&params, now - c->turn_began_ns))
		begin_turn(own, 0, now);
}

#endif
