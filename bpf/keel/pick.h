/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The pick: which task runs next on a CPU. The keel offers the order policy up to four candidates:
 * the task that has run so far, the queue's head, the best waiting sibling of the CPU's own space (in
 * the mode `rounds` the space that has its turn here, in the mode `paper` that of the task that ran),
 * and on a slave the best waiting sibling of the space that its master published. order_pick()
 * (policy/order.h, rules (1) to (4)) picks one of them. keel_dispatch() (queue.h) calls serve_cpu()
 * here. A pick never takes a task from another CPU's queue, except that a slave may fetch a sibling
 * from its master's (fetch.h).
 */
#ifndef EVENKEEL_KEEL_PICK_H
#define EVENKEEL_KEEL_PICK_H

/* The first task of the queue of a new iterator, as a candidate. */
static __always_inline struct order_candidate peek_iterator(struct bpf_iter_scx_dsq *queue)
{
	struct task_struct *p = bpf_iter_scx_dsq_next(queue);
	struct order_candidate head = {};

	if (p) {
		head.exists = true;
		head.vruntime = p->scx.dsq_vtime;
	}
	return head;
}

/* The first task of a CPU's queue, as a candidate. */
static __always_inline struct order_candidate peek_head(u32 cpu)
{
	struct bpf_iter_scx_dsq queue;
	struct order_candidate head;

	bpf_iter_scx_dsq_new(&queue, cpu, 0);
	head = peek_iterator(&queue);
	bpf_iter_scx_dsq_destroy(&queue);
	return head;
}

/*
 * Gives the CPU to a sibling that the index named; false: it was not there. If it does not wait as
 * the index says, it is removed from the index. `queue`: an iterator of the CPU's queue.
 */
static __always_inline bool dispatch_sibling(struct bpf_iter_scx_dsq *queue, u32 own,
					     const struct known_space *wanted, u64 vruntime, u32 pid)
{
	struct task_struct *p = bpf_task_from_pid(pid);
	bool is_taken = false, is_listed = false;

	if (p) {
		/* Another task may have this pid by now. */
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
		remove_row_entry(own, wanted->key, pid);
	return is_taken;
}

/*
 * Under `ias`: finds the siblings that are candidates for the CPU beside the queue's head and the task
 * that ran. There is none where the head passes the turn of an address space.
 */
KEEL_PART int find_candidates(struct cpu_state *c, u32 own)
{
	struct order_params params = order_params();
	struct publication *publication;
	u64 head, space, follow = 0;
	bool is_master;
	u32 role;

	if (!c)
		return 0;
	c->found[KNOWN_RUNNING].as.exists = c->found[KNOWN_PUBLISHED].as.exists = false;
	head = c->pick.head.vruntime;
	c->pick.passes = takes_turns() && c->pick.head.exists &&
			 order_passes_turn(head, c->clock, c->woken);
	c->woken = 0;
	c->pick.role = role = get_role(own);
	c->pick.space = space = get_space_in_turn(c, &params);
	c->pick.follow = 0;
	if (!c->pick.head.exists || c->pick.passes)
		return 0;
	c->pick.fair = order_should_keep_prev(&c->pick.prev, &c->pick.head) ? c->pick.prev.vruntime :
									      head;
	if (space || !takes_turns())
		find_sibling(&c->found[KNOWN_RUNNING], get_known_space(c, KNOWN_RUNNING, space), own,
			     c->pick.fair, c->quantum_ns);
	publication = find_publication_of(role, &is_master);
	if (publication && !is_master)
		c->pick.follow = follow = read_publication(publication, role);
	if (follow && follow != space)
		find_sibling(&c->found[KNOWN_PUBLISHED], get_known_space(c, KNOWN_PUBLISHED, follow),
			     own, c->pick.fair, c->quantum_ns);
	return 0;
}

/* Publishes what a master aggregates by its pick, in the mode `paper`. */
static __always_inline void publish_pick(u32 own, struct cpu_state *c)
{
	struct publication *publication;
	bool is_master, aggregates;

	publication = find_publication_of(c->pick.role, &is_master);
	aggregates = order_should_publish(c->pick.choice, &c->found[KNOWN_RUNNING].as);
	c->pick.begins_to_publish = publication && is_master &&
				    publish_space(publication, own, aggregates ? c->pick.space : 0);
}

/* Picks among the candidates. A function of its own: the stacks of all callees add up. */
KEEL_PART int pick_next(struct cpu_state *c, u32 own)
{
	struct order_params params = { .kind = ORDER_IAS };
	u64 follow;
	u32 choice;

	if (!c)
		return 0;
	choice = order_pick(&params, &c->pick.prev, &c->pick.head, &c->found[KNOWN_RUNNING].as,
			    &c->found[KNOWN_PUBLISHED].as);
	follow = c->pick.follow;
	c->pick.choice = choice;
	if (follow == c->pick.space)
		c->pick.should_fetch = follow && choice == CHOOSE_HEAD;
	else
		c->pick.should_fetch = follow && !c->found[KNOWN_PUBLISHED].as.exists;
	c->pick.begins_to_publish = 0;
	if (!takes_turns())
		publish_pick(own, c);
	else
		c->turn_goes_on = choice == CHOOSE_SIBLING ||
				  (choice == CHOOSE_HEAD && c->pick.passes && c->pick.space) ||
				  (choice == CHOOSE_PUBLISHED && follow == c->turn_space);
	return 0;
}

/* The sibling that was picked; without one, the sibling that a fetched task would have to precede. */
static __always_inline const struct sibling *picked_sibling(struct cpu_state *c)
{
	return &c->found[c->pick.choice == CHOOSE_PUBLISHED ? KNOWN_PUBLISHED : KNOWN_RUNNING];
}

/* Gives the CPU to the head of its queue; false: the queue was empty. */
static __always_inline bool dispatch_head(u32 own, struct cpu_state *c)
{
	if (!scx_bpf_dsq_move_to_local(own))
		return false;
	count_on(c, COUNT_SWITCH);
	return true;
}

/*
 * Gives the CPU to the task that was picked from its queue; false: there was none. `keeps`: the
 * task that ran may go on if the picked one is gone.
 */
static __always_inline bool dispatch_pick(struct bpf_iter_scx_dsq *queue, u32 own, struct cpu_state *c,
					  bool keeps)
{
	if (settings.order == ORDER_IAS && c->pick.choice >= CHOOSE_SIBLING) {
		bool follows = c->pick.choice == CHOOSE_PUBLISHED;
		struct known_space *wanted = &c->known[follows ? KNOWN_PUBLISHED : KNOWN_RUNNING];
		const struct sibling *sibling = picked_sibling(c);

		if (dispatch_sibling(queue, own, wanted, sibling->as.vruntime, sibling->pid)) {
			count_on(c, follows ? COUNT_FOLLOW : COUNT_AGGREGATE);
			note_space_switch(own, c, wanted->space);
			c->preferred++;
			c->is_out_of_turn = is_vruntime_before(c->pick.fair, sibling->as.vruntime);
			return true;
		}
		if (keeps)
			return false;
		c->turn_goes_on = 0;
	}
	return dispatch_head(own, c);
}

enum served {
	SERVED_NONE,
	SERVED,
	FETCH_FIRST,	/* no pick yet: the slave fetches a sibling */
};

/* The vruntime before which a fetched sibling would have to run. */
static __always_inline u64 find_fetch_bound(struct cpu_state *c)
{
	const struct order_candidate *sibling = &picked_sibling(c)->as;

	return sibling->exists && is_vruntime_before(sibling->vruntime, c->pick.fair) ?
		       sibling->vruntime : c->pick.fair;
}

/*
 * Picks a task and gives it the CPU, unless the task that ran goes on (`keeps`, with this
 * vruntime). A function of its own: the stacks of all callees add up.
 */
KEEL_PART int serve_cpu_once(u32 own, bool keeps, u64 vruntime, bool may_fetch)
{
	struct cpu_state *c = cpu_state(own);
	struct bpf_iter_scx_dsq queue;
	bool goes_on, is_served;

	if (!c)
		return SERVED_NONE;
	/*
	 * One iterator to see the head and to take a sibling: the kernel looks the queue up for
	 * each.
	 */
	bpf_iter_scx_dsq_new(&queue, own, 0);
	c->pick.prev = (struct order_candidate){ .exists = keeps, .vruntime = vruntime };
	c->pick.head = peek_iterator(&queue);
	if (may_aggregate()) {
		find_candidates(c, own);
		pick_next(c, own);
		if (may_fetch && c->pick.should_fetch) {
			c->fetch = find_fetch_candidate(own, find_fetch_bound(c));
			if (c->fetch) {
				bpf_iter_scx_dsq_destroy(&queue);
				return FETCH_FIRST;
			}
		}
	} else {
		struct order_params params = order_params();
		struct order_candidate none = {};

		params.kind = ORDER_FAIR;
		c->pick.choice = order_pick(&params, &c->pick.prev, &c->pick.head, &none, &none);
	}
	goes_on = c->pick.choice <= CHOOSE_PREV;
	is_served = !goes_on && dispatch_pick(&queue, own, c, keeps);
	bpf_iter_scx_dsq_destroy(&queue);
	if (settings.order == ORDER_IAS && !takes_turns() && c->pick.begins_to_publish)
		kick_slaves(own, c->running_space);
	if (goes_on || is_served)
		return is_served ? SERVED : SERVED_NONE;
	if (takes_turns())
		c->turn_goes_on = 0;
	/* Another CPU was faster, or the head may not run here. */
	if (has_waiters(c, keeps))
		send_strays_back(own);
	return SERVED_NONE;
}

/*
 * Gives the CPU to the next task from its queue where no sibling is a candidate; false: none, or the
 * task that ran goes on. Takes the head at once where it has no rival.
 */
static __always_inline bool serve_cpu_in_order(u32 own, struct cpu_state *c, bool keeps, u64 vruntime,
					       struct order_params params)
{
	struct order_candidate prev = { .exists = keeps, .vruntime = vruntime };

	params.kind = ORDER_FAIR;
	if (!order_is_head_next(&params, prev))
		return serve_cpu_once(own, keeps, vruntime, false) == SERVED;
	if (dispatch_head(own, c))
		return true;
	if (has_waiters(c, 0))
		send_strays_back(own);
	return false;
}

/* The same where siblings are candidates. Fetches one first where the order asks for it. */
KEEL_PART bool serve_cpu_by_pick(struct cpu_state *c, u32 own, bool keeps, u64 vruntime)
{
	int served;

	if (!c)
		return false;
	/* No space has its turn, here or on the master. */
	if (takes_turns() && !c->turn_space && !get_followed_space(own))
		return serve_cpu_in_order(own, c, keeps, vruntime, order_params());
	served = serve_cpu_once(own, keeps, vruntime, true);
	if (served != FETCH_FIRST)
		return served == SERVED;
	c = cpu_state(own);
	if (c)
		fetch_sibling(own, c->fetch);
	return serve_cpu_once(own, keeps, vruntime, false) == SERVED;
}

/* Gives the CPU to the next task from its queue; false: none, or the task that ran goes on. */
static __always_inline bool serve_cpu(u32 own, struct cpu_state *c, bool keeps, u64 vruntime)
{
	struct order_params params = order_params();

	if (may_aggregate())
		return serve_cpu_by_pick(c, own, keeps, vruntime);
	return serve_cpu_in_order(own, c, keeps, vruntime, params);
}

#endif
