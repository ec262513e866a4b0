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
static __always_inline struct published *published_at(u32 cpu, bool *is_master)
{
	u32 role = READ_ONCE(roles.role[BOUNDED(cpu, MAX_CPUS)]);

	*is_master = !(role & 1);
	return role == NO_ROLE ? NULL : &ia_mm[BOUNDED(role >> 1, MAX_CPUS)];
}

/* The space that the master of this CPU's group aggregates, for its slaves; 0: none. */
static __always_inline u64 published_to(u32 cpu)
{
	struct published *at;
	bool is_master;

	if (settings.order != ORDER_IAS)
		return 0;
	at = published_at(cpu, &is_master);
	return at && !is_master ? READ_ONCE(at->space) : 0;
}

/*
 * A master tells its slaves what it aggregates; 0: nothing. Returns whether there is something that it did
 * not aggregate before.
 */
static __always_inline bool publish_at(struct published *at, u32 cpu, u64 space)
{
	if (READ_ONCE(at->space) == space && READ_ONCE(at->master) == cpu)
		return false;
	WRITE_ONCE(at->master, cpu);
	WRITE_ONCE(at->space, space);
	return space;
}

/* A CPU that idles aggregates nothing. */
static __always_inline void publish_nothing(u32 cpu)
{
	struct published *at;
	bool is_master;

	if (settings.order != ORDER_IAS)
		return;
	at = published_at(cpu, &is_master);
	if (at && is_master)
		publish_at(at, cpu, 0);
}

/*
 * How long who has the CPU has had it, by its vruntime; kept when it gives it up. A kernel thread uses the
 * address space that it finds: for siblings it has not been there.
 */
static __always_inline void note_quantum(struct task_struct *p, struct cpu_state *c, u64 now)
{
	if (settings.order == ORDER_IAS && space_of(p))
		c->quantum = order_charge(0, now - c->running_since_ns, c->running_weight);
}

/* A task of this space runs from now on; 0: a kernel thread. Another one ends the preference of the last. */
static __always_inline void note_space(u32 cpu, struct cpu_state *c, u64 space)
{
	struct published *at;
	bool is_master;

	if (!space || c->running_space == space)
		return;
	count(COUNT_SPACE_SWITCH);
	c->running_space = space;
	c->preferred = 0;
	if (settings.order != ORDER_IAS)
		return;
	/* What came past our queue is no aggregation. */
	at = published_at(cpu, &is_master);
	if (at && is_master && READ_ONCE(at->space) && READ_ONCE(at->space) != space)
		WRITE_ONCE(at->space, 0);
}

/* Who may run next because it is a sibling. */
struct sibling {
	struct order_candidate as;
	u32 pid;
	u32 pad;
};

/* Looks up what is set for a space; where nothing is, its siblings have no bonus. */
KEEL_PART int learn_space(struct known_space *known, u64 space, u64 as_of)
{
	struct keel_space *set = space_state(space);

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

/* What is set for a space, as far as this CPU knows, which is `c`. */
static __always_inline struct known_space *known_space(struct cpu_state *c, enum known_which which,
						       u64 space)
{
	struct known_space *known = &c->known[which];
	u64 as_of = READ_ONCE(spaces_set);

	if (known->space != space || known->as_of != as_of)
		learn_space(known, space, as_of);
	return known;
}

/* How far siblings of a space may run ahead on a CPU. */
static __always_inline u64 bonus_on(struct cpu_state *c, const struct known_space *wanted)
{
	return order_bonus(&wanted->aggregation, c->quantum,
			   wanted->space == c->running_space ? c->preferred : 0);
}

/*
 * The sibling with the smallest vruntime that waits for a CPU, if its bonus lets it run before `fair`.
 * `found` is of nobody before.
 */
KEEL_PART int find_sibling(struct sibling *found, const struct known_space *wanted, u32 cpu, u64 fair)
{
	struct cpu_state *c = cpu_state(cpu);
	struct order_candidate best = {};
	struct row_entry entry;
	struct keel_row *row;
	u32 looked;

	if (!found || !wanted || !c)
		return 0;
	best.bonus = bonus_on(c, wanted);
	if (!best.bonus)
		return 0;
	row = row_of(cpu, wanted->key);
	if (!row)
		return 0;
	entry = row_best(&row->row, tag_of(wanted->key), &looked);
	count_search(looked);
	best.exists = entry.pid;
	best.vruntime = entry.vruntime;
	if (!order_beats(&best, fair))
		return 0;
	found->as = best;
	found->pid = entry.pid;
	return 0;
}

/*
 * Gives the CPU to a sibling that the index has named; whether it was there. One that does not wait
 * as it says, the index forgets. `queue`: an iterator of the CPU's queue.
 */
static __always_inline bool take_sibling(struct bpf_iter_scx_dsq *queue, u32 own,
					 const struct known_space *wanted, u64 vruntime, u32 pid)
{
	struct task_struct *p = bpf_task_from_pid(pid);
	bool is_taken = false, is_listed = false;

	if (p) {
		/* Another task may have its number by now. */
		if (space_of(p) == wanted->space && p->scx.dsq_vtime == vruntime && may_run_on(p, own))
			is_taken = scx_bpf_dsq_move(queue, p, SCX_DSQ_LOCAL, 0);
		if (!is_taken) {
			struct task_state *t = task_state(p);

			is_listed = t && READ_ONCE(t->listed_on) == own + 1 &&
				    t->listed_as == wanted->key && t->vruntime == vruntime;
		}
		bpf_task_release(p);
	}
	if (!is_taken && !is_listed)
		leave_row(own, wanted->key, pid);
	return is_taken;
}

/* Who runs next on a CPU. */
struct selection {
	enum order_choice choice;
	u64 fair;	/* the vruntime of who would by the order `fair` */
	struct sibling sibling;
	bool is_alone;	/* a slave has nobody who may follow its master */
	bool is_news;	/* a master has published its running space, and not before */
};

static __always_inline struct selection choose(u32 own, struct cpu_state *c,
					       struct order_candidate runs,
					       struct order_candidate head)
{
	struct sibling sibling = {}, published = {};
	struct order_params params = order_params();
	struct selection selection;
	struct published *at = NULL;
	u64 follow = 0, fair = 0;
	bool is_master = false;

	if (settings.order == ORDER_IAS)
		at = published_at(own, &is_master);
	if (settings.order == ORDER_IAS && head.exists) {
		fair = order_keeps(runs, head) ? runs.vruntime : head.vruntime;
		find_sibling(&sibling, known_space(c, KNOWN_RUNNING, c->running_space), own, fair);
		follow = at && !is_master ? READ_ONCE(at->space) : 0;
		if (follow && follow != c->running_space)
			find_sibling(&published, known_space(c, KNOWN_PUBLISHED, follow), own, fair);
	}
	selection.fair = fair;
	selection.choice = order_pick(&params, runs, head, sibling.as, published.as);
	selection.is_alone = follow && (follow == c->running_space ? selection.choice == CHOOSE_HEAD :
								      !published.as.exists);
	selection.sibling = selection.choice == CHOOSE_PUBLISHED ? published : sibling;
	selection.is_news = at && is_master &&
			    publish_at(at, own, order_publishes(selection.choice, sibling.as) ?
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
		bool follows = selection.choice == CHOOSE_PUBLISHED;
		struct known_space *wanted = &c->known[follows ? KNOWN_PUBLISHED : KNOWN_RUNNING];

		if (take_sibling(queue, own, wanted, selection.sibling.as.vruntime,
				 selection.sibling.pid)) {
			count_on(c, follows ? COUNT_FOLLOW : COUNT_AGGREGATE);
			note_space(own, c, wanted->space);
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
