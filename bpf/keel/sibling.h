/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Siblings: threads of one address space. Which space a CPU prefers, what its group's
 * master publishes, and who runs next for that.
 */
#ifndef EVENKEEL_KEEL_SIBLING_H
#define EVENKEEL_KEEL_SIBLING_H

/* What set_ias_agg set for the space, if that still is of the process it was set for. */
static __always_inline struct keel_space *space_state(u64 space)
{
	return space ? bpf_map_lookup_elem(&spaces, &space) : NULL;
}

static __always_inline bool is_sibling(struct task_struct *p, u64 space, u32 process)
{
	return space_of(p) == space && (u32)p->tgid == process;
}

/* Where the CPU's group publishes, and whether the CPU is its master; NULL: in no group. */
static __always_inline u64 *published_at(u32 cpu, bool *is_master)
{
	u32 role = READ_ONCE(roles.role[BOUNDED(cpu, MAX_CPUS)]);

	*is_master = !(role & 1);
	return role == NO_ROLE ? NULL : &ia_mm[BOUNDED(role >> 1, MAX_CPUS)];
}

/* The space that the master of this CPU's group aggregates, for its slaves; 0: none. */
static __always_inline u64 published_to(u32 cpu)
{
	bool is_master;
	u64 *at;

	if (settings.order != ORDER_IAS)
		return 0;
	at = published_at(cpu, &is_master);
	return at && !is_master ? READ_ONCE(*at) : 0;
}

/*
 * A master tells its slaves what it aggregates; 0: nothing. Slaves do not. Returns whether there is
 * something that it did not aggregate before.
 */
static __always_inline bool publish(u32 cpu, u64 space)
{
	bool is_master;
	u64 *at;

	if (settings.order != ORDER_IAS)
		return false;
	at = published_at(cpu, &is_master);
	if (!at || !is_master || READ_ONCE(*at) == space)
		return false;
	WRITE_ONCE(*at, space);
	return space;
}

/*
 * How long who has the CPU has had it; kept when it gives it up. A kernel thread uses the address space
 * that it finds: for siblings it has not been there.
 */
static __always_inline void note_quantum(struct task_struct *p, struct cpu_state *c, u64 now)
{
	if (space_of(p))
		c->quantum_ns = now - c->running_since_ns;
}

/* A task of this space runs from now on; 0: a kernel thread. Another one ends the preference of the last. */
static __always_inline void note_space(u32 cpu, struct cpu_state *c, u64 space)
{
	bool is_master;
	u64 *at;

	if (!space || c->running_space == space)
		return;
	count(COUNT_SPACE_SWITCH);
	c->running_space = space;
	c->preferred = 0;
	if (settings.order != ORDER_IAS)
		return;
	/* What came past our queue is no aggregation. */
	at = published_at(cpu, &is_master);
	if (at && is_master && READ_ONCE(*at) && READ_ONCE(*at) != space)
		WRITE_ONCE(*at, 0);
}

/* Who may run next because it is a sibling. */
struct sibling {
	struct order_candidate as;
	u64 key;
	u32 pid;
	u32 pad;
};

/* The sibling with the smallest vruntime that waits for a CPU, if its bonus lets it run before `fair`. */
KEEL_PART int find_sibling(struct sibling *found, u32 cpu, u64 space, u64 fair)
{
	struct keel_space *wanted = space_state(space);
	struct cpu_state *c = cpu_state(cpu);
	struct sibling best = {};
	struct row_entry entry;
	struct keel_row *row;
	u32 looked;

	if (!found)
		return 0;
	*found = best;
	if (!wanted || !c)
		return 0;
	best.as.bonus = order_bonus(&wanted->aggregation, c->quantum_ns,
				    space == c->running_space ? c->preferred : 0);
	if (!best.as.bonus)
		return 0;
	best.key = sibling_key(space, wanted->process);
	row = row_of(cpu, best.key);
	if (!row)
		return 0;
	entry = row_best(&row->row, tag_of(best.key), &looked);
	count_search(looked);
	best.as.exists = entry.pid;
	best.as.vruntime = entry.vruntime;
	best.pid = entry.pid;
	if (order_beats(&best.as, fair))
		*found = best;
	return 0;
}

/*
 * Gives the CPU to a sibling that the index has named; whether it was there. One that does not wait
 * as it says, the index forgets. `queue`: an iterator of the CPU's queue.
 */
static __always_inline bool take_sibling(struct bpf_iter_scx_dsq *queue, u32 own, u64 space, u64 key,
					 u64 vruntime, u32 pid)
{
	struct task_struct *p = bpf_task_from_pid(pid);
	bool is_taken = false, is_listed = false;

	if (p) {
		/* Another task may have its number by now. */
		if (space_of(p) == space && p->scx.dsq_vtime == vruntime && may_run_on(p, own))
			is_taken = scx_bpf_dsq_move(queue, p, SCX_DSQ_LOCAL, 0);
		if (!is_taken) {
			struct task_state *t = task_state(p);

			is_listed = t && READ_ONCE(t->listed_on) == own + 1 && t->listed_as == key &&
				    t->vruntime == vruntime;
		}
		bpf_task_release(p);
	}
	if (!is_taken && !is_listed)
		leave_row(own, key, pid);
	return is_taken;
}

/* Who runs next on a CPU, and for siblings the space that they are of. */
struct selection {
	enum order_choice choice;
	u64 space;
	u64 fair;	/* the vruntime of who would by the order `fair` */
	struct sibling sibling;
	bool is_news;	/* a master has published its running space, and not before */
};

static __always_inline struct selection choose(u32 own, struct cpu_state *c,
					       struct order_candidate runs,
					       struct order_candidate head)
{
	struct sibling sibling = {}, published = {};
	struct order_params params = order_params();
	struct selection selection;
	u64 follow = 0, fair = 0;

	if (settings.order == ORDER_IAS && head.exists) {
		fair = order_keeps(runs, head) ? runs.vruntime : head.vruntime;
		find_sibling(&sibling, own, c->running_space, fair);
		follow = published_to(own);
		if (follow && follow != c->running_space)
			find_sibling(&published, own, follow, fair);
	}
	selection.fair = fair;
	selection.choice = order_pick(&params, runs, head, sibling.as, published.as);
	selection.space = selection.choice == CHOOSE_PUBLISHED ? follow : c->running_space;
	selection.sibling = selection.choice == CHOOSE_PUBLISHED ? published : sibling;
	selection.is_news = publish(own, order_publishes(selection.choice, sibling.as) ?
						 c->running_space : 0);
	return selection;
}

/* Gives the CPU to the head of its queue; whether anybody was there. */
static __always_inline bool take_head(u32 own, struct cpu_state *c)
{
	if (!scx_bpf_dsq_move_to_local(own))
		return false;
	count_on(c, COUNT_SWITCH);
	return true;
}

/*
 * Gives the CPU to who was chosen from its queue; whether anybody was there. `keeps`:
 * who ran may go on if somebody else was faster.
 */
static __always_inline bool take(struct bpf_iter_scx_dsq *queue, u32 own, struct cpu_state *c,
				 struct selection selection, bool keeps)
{
	if (selection.choice == CHOOSE_SIBLING || selection.choice == CHOOSE_PUBLISHED) {
		if (take_sibling(queue, own, selection.space, selection.sibling.key,
				 selection.sibling.as.vruntime, selection.sibling.pid)) {
			count_on(c, selection.choice == CHOOSE_SIBLING ? COUNT_AGGREGATE : COUNT_FOLLOW);
			note_space(own, c, selection.space);
			c->preferred++;
			c->is_ahead = vruntime_before(selection.fair, selection.sibling.as.vruntime);
			return true;
		}
		if (keeps)
			return false;
	}
	return take_head(own, c);
}

#endif
