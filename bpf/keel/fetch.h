/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Fetching a sibling. A slave without a waiting task of the space that its master aggregates
 * fetches the next one from the master's queue, and gives another task of a similar weight in
 * exchange, so that neither CPU gets more load. Otherwise a slave could follow only where a
 * program's threads happen to wait on both CPUs: balancing counts tasks, not spaces. Each of the
 * two tasks keeps its distance from the mean vruntime of its queue, within the vruntimes that wait
 * there (order_place_exchanged()), so that neither gains or loses by the exchange.
 */
#ifndef EVENKEEL_KEEL_FETCH_H
#define EVENKEEL_KEEL_FETCH_H

/* A slave looks at so many tasks, from its queue's head on, for one that it can give. */
#define MAX_OFFERED 4

/*
 * The vruntime that a task of this weight gets in the queue of `dst` when it comes from the queue of
 * `src` by an exchange. No task there is further above the clock than a sibling's bonus and a slice.
 */
static __always_inline u64 place_exchanged(const struct known_space *wanted, struct cpu_state *src,
					   struct cpu_state *dst, u64 vruntime, u64 weight)
{
	struct order_params params = bonus_params();
	u64 bonus_ns = order_calc_bonus(&params, &wanted->aggregation, READ_ONCE(dst->quantum_ns), 0);
	u64 bonus = order_weigh_bonus(&wanted->aggregation, bonus_ns, weight);
	/* Read one after the other, as in convert_vruntime(). */
	u64 src_mean = READ_ONCE(src->mean);
	u64 dst_mean = READ_ONCE(dst->mean);
	u64 dst_clock = READ_ONCE(dst->clock);

	return order_place_exchanged(vruntime, src_mean, dst_mean, dst_clock,
				     order_charge(bonus, READ_ONCE(tunables.slice_ns), weight));
}

/* The master from which the slave `own` may fetch siblings; `own` itself: none. */
static __always_inline u32 find_master(u32 own)
{
	bool is_master;
	struct publication *publication = find_publication(own, &is_master);
	u32 master = publication ? READ_ONCE(publication->master) : own;

	/*
	 * Roles may have changed meanwhile. And while a higher class has the master, a task that was
	 * given to it would wait for that class.
	 */
	return is_slave_of(own, master) && !is_cpu_taken(master) ? master : own;
}

/* What is set for the space that the master of `own` aggregates. */
static __always_inline struct known_space *get_followed_known(u32 own, struct cpu_state *c)
{
	u64 follow = get_followed_space(own);

	return get_known_space(c, follow == get_preferred_space(c) ? KNOWN_RUNNING : KNOWN_PUBLISHED,
			       follow);
}

/* Whether a task still is a sibling that waits on the master, and may run on the slave `own`. */
static __always_inline bool may_fetch(const struct known_space *wanted, struct task_struct *p,
				      struct task_state *t, u32 own, u32 master)
{
	return space_of(p) == wanted->space && READ_ONCE(t->listed_on) == master + 1 &&
	       may_run_on(p, own) && !is_closed(t, own);
}

/*
 * The weight of the sibling with this pid; 0: it does not wait on the master any more, or may not run
 * on the slave `own`.
 */
KEEL_PART u64 weigh_fetch_candidate(const struct known_space *wanted, u32 own, u32 master, u32 pid)
{
	struct task_struct *p = bpf_task_from_pid(pid);
	struct task_state *t;
	u64 weight = 0;

	if (!p)
		return 0;
	t = task_state(p);
	if (t && wanted && may_fetch(wanted, p, t, own, master))
		weight = READ_ONCE(t->weight);
	bpf_task_release(p);
	return weight;
}

/*
 * The pid of the sibling that, if it were fetched, would run on the slave before vruntime `before`;
 * 0: none. Its weight is kept in the slave's `fetch_weight`.
 */
KEEL_PART u32 find_fetch_candidate(u32 own, u64 before)
{
	u32 master = find_master(own), looked;
	struct cpu_state *master_state = cpu_state(master), *slave_state = cpu_state(own);
	struct order_candidate candidate = { .exists = true };
	struct keel_row *master_row, *slave_row;
	struct known_space *wanted;
	struct row_entry entry;
	u64 bonus_ns;

	if (!master_state || !slave_state || master == own)
		return 0;
	wanted = get_followed_known(own, slave_state);
	bonus_ns = get_bonus_ns(slave_state, wanted, slave_state->quantum_ns);
	if (!bonus_ns)
		return 0;
	master_row = find_row(master, wanted->key);
	slave_row = find_row(own, wanted->key);
	/* Without room in the slave's index, the sibling would not be found there: fetched in vain. */
	if (!master_row || !slave_row ||
	    READ_ONCE(slave_row->row.count) >= min_u64(READ_ONCE(tunables.sibling_window), ROW_PLACES))
		return 0;
	entry = row_find_first(&master_row->row, tag_of(wanted->key), &looked);
	count_search(looked);
	if (!entry.pid)
		return 0;
	slave_state->fetch_weight = weigh_fetch_candidate(wanted, own, master, entry.pid);
	if (!slave_state->fetch_weight)
		return 0;
	candidate.bonus =
		order_weigh_bonus(&wanted->aggregation, bonus_ns, slave_state->fetch_weight);
	candidate.vruntime = place_exchanged(wanted, master_state, slave_state, entry.vruntime,
					 slave_state->fetch_weight);
	if (!order_is_preferred(&candidate, before) ||
	    !may_prefer(slave_state, wanted, bonus_ns, before))
		return 0;
	return entry.pid;
}

/* Moves this sibling from the master's queue to that of `own`. */
KEEL_PART bool move_sibling(const struct known_space *wanted, u32 own, u32 master, u32 pid)
{
	struct cpu_state *master_state = cpu_state(master), *slave_state = cpu_state(own);
	struct bpf_iter_scx_dsq queue;
	struct task_struct *p;
	struct task_state *t;
	bool moved = false;

	if (!wanted || !master_state || !slave_state)
		return 0;
	p = bpf_task_from_pid(pid);
	if (!p)
		return 0;
	t = task_state(p);
	bpf_iter_scx_dsq_new(&queue, master, 0);
	/* Another task may have this pid by now, and another slave may have fetched the sibling. */
	if (t && may_fetch(wanted, p, t, own, master) &&
	    may_move(master, p, MOVE_AGGREGATE, scx_bpf_now()))
		moved = move_waiter_at(&queue, p, t, master, own,
				       place_exchanged(wanted, master_state, slave_state, t->vruntime,
						       t->weight));
	bpf_iter_scx_dsq_destroy(&queue);
	bpf_task_release(p);
	return moved;
}

/*
 * Fetches this sibling from the master's queue. Gives in exchange the first task of its own queue that
 * may go and has a similar weight.
 */
KEEL_PART int fetch_sibling(u32 own, u32 pid)
{
	u32 master = find_master(own), offered = MAX_OFFERED;
	struct cpu_state *slave_state = cpu_state(own), *master_state = cpu_state(master);
	struct known_space *wanted;
	struct task_struct *p;

	if (!slave_state || !master_state || master == own)
		return 0;
	wanted = get_followed_known(own, slave_state);
	bpf_for_each(scx_dsq, p, own, 0) {
		struct task_state *t = task_state(p);
		u64 now = scx_bpf_now();

		if (!offered--)
			break;
		if (!t || space_of(p) == wanted->space ||
		    !order_is_similar_weight(t->weight, slave_state->fetch_weight) ||
		    !may_run_on(p, master) || is_closed(t, master) ||
		    !may_move_uncounted(own, p, MOVE_AGGREGATE, now))
			continue;
		if (move_sibling(wanted, own, master, pid) &&
		    may_move(own, p, MOVE_AGGREGATE, now) &&
		    move_waiter_at(THIS_ITERATOR, p, t, own, master,
				   place_exchanged(wanted, slave_state, master_state, t->vruntime,
						   t->weight))) {
			set_bit(&waiting_cpus, master);
			scx_bpf_kick_cpu(master, SCX_KICK_IDLE);
		}
		break;
	}
	return 0;
}

#endif
