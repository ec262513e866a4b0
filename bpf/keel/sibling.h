/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Siblings: threads of one address space. Keeps which space a CPU runs and prefers, and what a
 * group's master publishes, and finds the best sibling for a pick. pick.h picks.
 */
#ifndef EVENKEEL_KEEL_SIBLING_H
#define EVENKEEL_KEEL_SIBLING_H

/* What set_ias_agg set for the space, if anything. */
static __always_inline struct keel_space *find_space(u64 space)
{
	return space ? bpf_map_lookup_elem(&spaces, &space) : NULL;
}

static __always_inline bool is_sibling(struct task_struct *p, u64 space, u32 process)
{
	return space_of(p) == space && (u32)p->tgid == process;
}

/* The role that set_ias_alloc gave a CPU; NO_ROLE: it is in no group. */
static __always_inline u32 get_role(u32 cpu)
{
	return READ_ONCE(roles.role[BOUNDED(cpu, MAX_CPUS)]);
}

/*
 * Where the group of a CPU with this role publishes, and whether that CPU is its master; NULL: the CPU
 * is in no group.
 */
static __always_inline struct publication *find_publication_of(u32 role, bool *is_master)
{
	*is_master = !(role & 1);
	return role == NO_ROLE ? NULL : &publications[BOUNDED(role >> 1, MAX_CPUS)];
}

/* The same of this CPU. */
static __always_inline struct publication *find_publication(u32 cpu, bool *is_master)
{
	return find_publication_of(get_role(cpu), is_master);
}

/*
 * The space that the master of a slave with this role publishes; 0: none. What another CPU published
 * before the roles changed does not count where masters publish by turns; by the mode `paper` they
 * publish with each pick.
 */
static __always_inline u64 read_publication(struct publication *publication, u32 role)
{
	if (takes_turns() && get_role(READ_ONCE(publication->master)) != (role & ~1u))
		return 0;
	return READ_ONCE(publication->space);
}

/* The space that this slave's master aggregates; 0: none, or not a slave. */
static __always_inline u64 get_followed_space(u32 cpu)
{
	struct publication *publication;
	bool is_master;
	u32 role;

	if (settings.order != ORDER_IAS)
		return 0;
	role = get_role(cpu);
	publication = find_publication_of(role, &is_master);
	return publication && !is_master ? read_publication(publication, role) : 0;
}

/*
 * Publishes what a master aggregates (0: nothing). Returns whether that is a space, and a change.
 */
static __always_inline bool publish_space(struct publication *publication, u32 cpu, u64 space)
{
	if (READ_ONCE(publication->space) == space && READ_ONCE(publication->master) == cpu)
		return false;
	WRITE_ONCE(publication->master, cpu);
	WRITE_ONCE(publication->space, space);
	return space;
}

/*
 * The CPU is about to idle: no space has its turn there any more, and a master aggregates nothing. A
 * turn that went on would let a task of its space run without being published.
 */
static __always_inline void end_turn(u32 cpu, struct cpu_state *c)
{
	struct publication *publication;
	bool is_master;

	if (settings.order != ORDER_IAS)
		return;
	if (takes_turns())
		WRITE_ONCE(c->turn_space, 0);
	publication = find_publication(cpu, &is_master);
	if (publication && is_master)
		publish_space(publication, cpu, 0);
}

/*
 * Keeps how long the running task had its CPU, for a bonus in multiples of that. A kernel thread
 * borrows the address space that it finds, and does not count.
 */
static __always_inline void note_quantum(struct task_struct *p, struct cpu_state *c, u64 now)
{
	if (settings.order == ORDER_IAS && !takes_turns() && space_of(p))
		c->quantum_ns = now - c->running_since_ns;
}

/*
 * A task of this space runs from now on (0: a kernel thread). Another space ends the preference of
 * the last.
 */
static __always_inline void note_space_switch(u32 cpu, struct cpu_state *c, u64 space)
{
	struct publication *publication;
	bool is_master;

	if (!space || c->running_space == space)
		return;
	count(COUNT_SPACE_SWITCH);
	c->running_space = space;
	/* A turn goes on after a task that passes it. */
	if (takes_turns())
		return;
	c->preferred = 0;
	if (settings.order != ORDER_IAS)
		return;
	/* A task of another space, that did not come by a pick, ends the aggregation. */
	publication = find_publication(cpu, &is_master);
	if (publication && is_master && READ_ONCE(publication->space) && READ_ONCE(publication->space) != space)
		WRITE_ONCE(publication->space, 0);
}

/* The preferred space of a CPU: siblings of it go first, if they have a bonus. */
static __always_inline u64 get_preferred_space(struct cpu_state *c)
{
	return takes_turns() ? READ_ONCE(c->turn_space) : c->running_space;
}

/* The same for a pick; 0: none, because the turn is over. */
static __always_inline u64 get_space_in_turn(struct cpu_state *c, const struct order_params *params)
{
	if (!takes_turns())
		return c->running_space;
	if (!c->turn_space || order_is_turn_over(params, scx_bpf_now() - c->turn_began_ns))
		return 0;
	return c->turn_space;
}

/* Copies what is set for a space; where nothing is set, its siblings have no bonus. */
KEEL_PART int look_up_space(struct known_space *known, u64 space, u64 as_of)
{
	struct keel_space *set = find_space(space);

	if (!known)
		return 0;
	known->space = space;
	known->as_of = as_of;
	known->aggregation.agg = 0;
	if (!set)
		return 0;
	known->key = sibling_key(space, set->process);
	known->aggregation = set->aggregation;
	return 0;
}

/* What is set for a space, from the copy of this CPU, `c`. */
static __always_inline struct known_space *get_known_space(struct cpu_state *c, enum known_which which,
							   u64 space)
{
	struct known_space *known = &c->known[which];
	u64 as_of = READ_ONCE(spaces_set);

	if (known->space != space || known->as_of != as_of)
		look_up_space(known, space, as_of);
	return known;
}

/* The bonus of siblings of a space on a CPU where the last task ran for `quantum_ns`, in ns. */
static __always_inline u64 get_bonus_ns(struct cpu_state *c, const struct known_space *wanted,
					u64 quantum_ns)
{
	struct order_params params = bonus_params();

	return order_calc_bonus(&params, &wanted->aggregation, quantum_ns,
				wanted->space == get_preferred_space(c) ? c->preferred : 0);
}

/* Whether siblings with this bonus may be preferred to the task that `fair` would run on a CPU. */
static __always_inline bool may_prefer(struct cpu_state *c, const struct known_space *wanted,
				       u64 bonus_ns, u64 fair)
{
	struct order_params params = order_params();

	if (order_may_prefer(&params, &wanted->aggregation, bonus_ns, READ_ONCE(c->fair_clock), fair,
			     READ_ONCE(c->load), READ_ONCE(c->runnable)))
		return true;
	count(COUNT_REPAY);
	return false;
}

/*
 * Finds the sibling with the smallest vruntime that waits in a CPU's queue, if its bonus lets it
 * run before vruntime `fair`. Otherwise `found`, empty before, stays so. `quantum_ns`: how long the last
 * task ran there.
 */
KEEL_PART int find_sibling(struct sibling *found, const struct known_space *wanted, u32 cpu, u64 fair,
			   u64 quantum_ns)
{
	struct cpu_state *c = cpu_state(cpu);
	struct order_candidate best = {};
	struct row_entry entry;
	struct keel_row *row;
	u64 bonus_ns;
	u32 looked;

	if (!found || !wanted || !c)
		return 0;
	bonus_ns = get_bonus_ns(c, wanted, quantum_ns);
	if (!bonus_ns)
		return 0;
	row = find_row(cpu, wanted->key);
	if (!row)
		return 0;
	entry = row_find_first(&row->row, tag_of(wanted->key), &looked);
	count_search(looked);
	best.exists = entry.pid;
	best.vruntime = entry.vruntime;
	best.bonus = order_weigh_bonus(&wanted->aggregation, bonus_ns, entry.weight);
	if (!order_is_preferred(&best, fair) || !may_prefer(c, wanted, bonus_ns, fair))
		return 0;
	found->as = best;
	found->pid = entry.pid;
	return 0;
}

/* Whether a sibling of `space` on a CPU goes before a task with this vruntime only by its bonus. */
static __always_inline bool has_preferred(struct cpu_state *own, u32 cpu, u64 space, u64 vruntime,
					  u64 quantum_ns)
{
	struct sibling sibling = {};

	if (!space)
		return false;
	find_sibling(&sibling, get_known_space(own, KNOWN_ELSEWHERE, space), cpu, vruntime, quantum_ns);
	return sibling.as.exists && is_vruntime_before(vruntime, sibling.as.vruntime);
}

/*
 * In the mode `paper`: whether a waiting task would be passed over, by a sibling of what runs on its
 * CPU or is followed there, if the CPU picked now. Then it does not preempt: the switch would be in
 * vain.
 */
KEEL_PART bool is_passed_over(u32 cpu, u64 vruntime, u64 now)
{
	struct cpu_state *c = cpu_state(cpu), *own = cpu_state(bpf_get_smp_processor_id());
	u64 quantum_ns, since_ns;

	if (!c || !own)
		return 0;
	since_ns = READ_ONCE(c->running_since_ns);
	/* Clocks of two CPUs may differ a little. */
	quantum_ns = now > since_ns ? now - since_ns : 0;
	return has_preferred(own, cpu, READ_ONCE(c->running_space), vruntime, quantum_ns) ||
	       has_preferred(own, cpu, get_followed_space(cpu), vruntime, quantum_ns);
}

#endif
