/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The pick: which task runs next on a CPU. The keel offers the order policy up to four candidates:
 * the task that has run so far, the queue's head, and the best waiting siblings of what ran here
 * and of what the group's master published. Then it gives the CPU to the task that the policy
 * picks. keel_dispatch() (queue.h) calls serve_cpu() here. A pick never takes a task from another
 * CPU's queue, except that a slave may fetch a sibling from its master's (fetch.h).
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

/* The policy's pick on a CPU, with what is needed to dispatch it. */
struct selection {
	enum order_choice choice;
	u64 fair;	/* the vruntime of the task that `fair` would pick */
	struct sibling sibling;
	bool should_fetch;	/* a slave has no task to follow its master with */
	bool begins_to_publish;	/* a master has just published its running space */
};

static __always_inline struct selection pick_next(u32 own, struct cpu_state *c,
						  struct order_candidate prev,
						  struct order_candidate head)
{
	struct sibling sibling = {}, followed = {};
	struct order_params params = order_params();
	struct selection selection;
	struct publication *publication = NULL;
	u64 follow = 0, fair = 0;
	bool is_master = false;

	if (settings.order == ORDER_IAS)
		publication = find_publication(own, &is_master);
	if (settings.order == ORDER_IAS && head.exists) {
		fair = order_should_keep_prev(prev, head) ? prev.vruntime : head.vruntime;
		find_sibling(&sibling, get_known_space(c, KNOWN_RUNNING, c->running_space), own, fair,
			     c->quantum_ns);
		follow = publication && !is_master ? READ_ONCE(publication->space) : 0;
		if (follow && follow != c->running_space)
			find_sibling(&followed, get_known_space(c, KNOWN_PUBLISHED, follow), own, fair,
				     c->quantum_ns);
	}
	selection.fair = fair;
	selection.choice = order_pick(&params, prev, head, sibling.as, followed.as);
	selection.should_fetch = follow && (follow == c->running_space ?
					    selection.choice == CHOOSE_HEAD :
					    !followed.as.exists);
	selection.sibling = selection.choice == CHOOSE_PUBLISHED ? followed : sibling;
	selection.begins_to_publish = false;
	if (publication && is_master) {
		u64 space = order_should_publish(selection.choice, sibling.as) ? c->running_space : 0;

		selection.begins_to_publish = publish_space(publication, own, space);
	}
	return selection;
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
static __always_inline bool dispatch_selection(struct bpf_iter_scx_dsq *queue, u32 own,
					       struct cpu_state *c, struct selection selection,
					       bool keeps)
{
	if (selection.choice == CHOOSE_SIBLING || selection.choice == CHOOSE_PUBLISHED) {
		bool follows = selection.choice == CHOOSE_PUBLISHED;
		struct known_space *wanted = &c->known[follows ? KNOWN_PUBLISHED : KNOWN_RUNNING];

		if (dispatch_sibling(queue, own, wanted, selection.sibling.as.vruntime,
				     selection.sibling.pid)) {
			count_on(c, follows ? COUNT_FOLLOW : COUNT_AGGREGATE);
			note_space_switch(own, c, wanted->space);
			c->preferred++;
			c->is_out_of_turn = is_vruntime_before(selection.fair, selection.sibling.as.vruntime);
			return true;
		}
		if (keeps)
			return false;
	}
	return dispatch_head(own, c);
}

enum served {
	SERVED_NONE,
	SERVED,
	FETCH_FIRST,	/* no pick yet: the slave fetches a sibling */
};

/* The vruntime before which a fetched sibling would have to run. */
static __always_inline u64 find_fetch_bound(const struct selection *selection)
{
	const struct order_candidate *sibling = &selection->sibling.as;

	return sibling->exists && is_vruntime_before(sibling->vruntime, selection->fair) ?
		       sibling->vruntime : selection->fair;
}

/*
 * Picks a task and gives it the CPU, unless the task that ran goes on (`keeps`, with this
 * vruntime). A function of its own: the stacks of all callees add up.
 */
KEEL_PART int serve_cpu_once(u32 own, bool keeps, u64 vruntime, bool may_fetch)
{
	struct order_candidate prev = { .exists = keeps, .vruntime = vruntime };
	struct cpu_state *c = cpu_state(own);
	struct bpf_iter_scx_dsq queue;
	struct selection selection;
	bool goes_on, is_served;

	if (!c)
		return SERVED_NONE;
	/*
	 * One iterator to see the head and to take a sibling: the kernel looks the queue up for
	 * each.
	 */
	bpf_iter_scx_dsq_new(&queue, own, 0);
	selection = pick_next(own, c, prev, peek_iterator(&queue));
	if (settings.order == ORDER_IAS && may_fetch && selection.should_fetch) {
		c->fetch = find_fetch_candidate(own, find_fetch_bound(&selection));
		if (c->fetch) {
			bpf_iter_scx_dsq_destroy(&queue);
			return FETCH_FIRST;
		}
	}
	goes_on = selection.choice <= CHOOSE_PREV;
	is_served = !goes_on && dispatch_selection(&queue, own, c, selection, keeps);
	bpf_iter_scx_dsq_destroy(&queue);
	if (selection.begins_to_publish)
		kick_slaves(own, c->running_space);
	if (goes_on || is_served)
		return is_served ? SERVED : SERVED_NONE;
	/* Another CPU was faster, or the head may not run here. */
	if (has_waiters(c, keeps))
		send_strays_back(own);
	return SERVED_NONE;
}

/* The same, and fetches a sibling first where the order asks for it. */
KEEL_PART bool serve_cpu_by_pick(u32 own, bool keeps, u64 vruntime)
{
	int served = serve_cpu_once(own, keeps, vruntime, true);
	struct cpu_state *c;

	if (served != FETCH_FIRST)
		return served == SERVED;
	c = cpu_state(own);
	if (c)
		fetch_sibling(own, c->fetch);
	return serve_cpu_once(own, keeps, vruntime, false) == SERVED;
}

/*
 * Gives the CPU to the next task from its queue; false: none, or the task that ran goes on. Takes
 * the head at once where there is no other candidate.
 */
static __always_inline bool serve_cpu(u32 own, struct cpu_state *c, bool keeps, u64 vruntime)
{
	struct order_candidate prev = { .exists = keeps, .vruntime = vruntime };
	struct order_params params = order_params();

	if (settings.order == ORDER_IAS)
		return serve_cpu_by_pick(own, keeps, vruntime);
	if (!order_is_head_next(&params, prev))
		return serve_cpu_once(own, keeps, vruntime, false) == SERVED;
	if (dispatch_head(own, c))
		return true;
	if (has_waiters(c, 0))
		send_strays_back(own);
	return false;
}

#endif
