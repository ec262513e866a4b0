/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Asking the gate: builds its view of a move, counts and keeps its answers, and says which moves it
 * is not asked about.
 */
#ifndef EVENKEEL_KEEL_ASK_GATE_H
#define EVENKEEL_KEEL_ASK_GATE_H

_Static_assert(COUNT_GATE_PRIZED - COUNT_GATE_OPEN == GATE_VERDICTS - 1, "a counter a verdict");

/* A question to the gate and its answer, kept until it is known whether the answer counts. */
struct gate_answer {
	struct gate_view view;
	u64 now;
	u32 verdict;	/* enum gate_verdict */
	u32 level;	/* enum zone_level */
};

/*
 * A cheap clock for the wake-up path. There scx_bpf_now() has to read the hardware clock, which
 * costs more than the rest of an answer. A CPU that is busy with our tasks takes its last tick or
 * switch instead.
 */
static __always_inline u64 cheap_now(struct cpu_state *c)
{
	u64 ticked, switched;

	if (c->idles || c->taken_since_ns)
		return scx_bpf_now();
	ticked = c->busy_since_ns;
	switched = c->running_since_ns;
	return ticked > switched ? ticked : switched;
}

/* The gate's view of a migration of this task away from `src`. */
static __always_inline struct gate_view make_gate_view(const struct gate_params *params,
						       struct cpu_state *src, struct task_state *t,
						       u32 reason, u64 now)
{
	struct gate_view view = { .reason = reason };

	view.source_utilisation = utilisation_as_of_tick(src, now);
	if (gate_is_by_mean(params))
		view.mean_utilisation = READ_ONCE(machine.utilisation);
	view.task_share = share_of(t->run_share);
	if (!gate_has_scores(params))
		return view;
	/*
	 * The task waits or sleeps, so its share falls, unless it is to leave while it runs. Clocks of
	 * two CPUs may differ a little.
	 */
	view.task_share = share_of(decay_share(t->run_share,
					       now > t->share_since_ns ? now - t->share_since_ns : 0,
					       reason == MOVE_ACTIVE));
	if (t->above_since_ns && now > t->above_since_ns)
		view.task_above_ns = now - t->above_since_ns;
	return view;
}

/* Asks the gate about a migration away from `src`, without counting the answer. */
static __always_inline struct gate_answer judge_move(struct cpu_state *src, struct task_state *t,
						     u32 reason, u64 now)
{
	struct gate_params params = gate_params();
	struct gate_answer answer = { .view = make_gate_view(&params, src, t, reason, now), .now = now };

	answer.verdict = gate_judge_move(&params, &answer.view);
	answer.level = params.zone->level;
	return answer;
}

static __always_inline bool is_answer_open(const struct gate_answer *answer)
{
	return answer->verdict < GATE_REFUSALS;
}

/*
 * Counts an answer and keeps it for `explain`, on the executing CPU. (Not with count(): each call
 * to the kernel would put the whole answer on the stack.)
 */
static __always_inline void count_answer(struct cpu_state *c, u32 src_cpu, struct task_struct *p,
					 const struct gate_answer *answer)
{
	u32 moves = is_answer_open(answer) ? COUNT_MOVE_WAKE : COUNT_REFUSE_WAKE;
	const struct gate_view *view = &answer->view;
	struct keel_decision *decision;

	c->counters[BOUNDED(COUNT_GATE_OPEN + answer->verdict, MAX_COUNTERS)]++;
	c->counters[BOUNDED(moves + view->reason, MAX_COUNTERS)]++;
	decision = &c->decision[BOUNDED(c->decided, MAX_DECISIONS)];
	decision->at_ns = answer->now;
	decision->above_ns = view->task_above_ns;
	decision->pid = p->pid;
	decision->source = src_cpu;
	decision->reason = view->reason;
	decision->verdict = answer->verdict;
	decision->source_utilisation = view->source_utilisation;
	decision->mean_utilisation = view->mean_utilisation;
	decision->task_share = view->task_share;
	decision->level = answer->level;
	decision->limit_pct = zone_limit_pct(answer->level);
	c->decided++;
}

/*
 * A function of its own, as all that asks the gate in a loop: the verifier would follow each answer
 * through all turns.
 */
KEEL_PART bool ask_gate_uncounted(struct task_struct *p __arg_trusted, u32 src_cpu, u32 reason, u64 now)
{
	struct cpu_state *src = cpu_state(src_cpu);
	struct task_state *t = task_state(p);
	struct gate_answer answer;

	if (!src || !t)
		return 0;
	answer = judge_move(src, t, reason, now);
	return is_answer_open(&answer);
}

/* Whether a migration would be allowed, before its destination is known. */
static __always_inline bool may_move_uncounted(u32 src_cpu, struct task_struct *p, u32 reason, u64 now)
{
	return settings.gate == GATE_ALWAYS || ask_gate_uncounted(p, src_cpu, reason, now);
}

/* Whether the user chose that no waiting time overrides the gate (`--strict`). */
static __always_inline bool is_gate_strict(void)
{
	return READ_ONCE(tunables.max_idle_wait_ns) == IDLE_WAIT_NEVER;
}

/*
 * Narrows the CPU's search after a refusal. A gate that does not look at the task would refuse
 * every task of that queue, so the search does not ask again: it goes on only for overdue tasks, if
 * there can be any. Here and not in the loop over the queue, because little stack is left there.
 */
static __always_inline void narrow_search(struct cpu_state *c, u32 reason)
{
	struct gate_params params = gate_params();

	if (gate_has_scores(&params))
		return;
	if (reason == MOVE_PERIODIC || is_gate_strict())
		c->search.quota = 0;
	else
		c->search.overdue = 1;
}

/* Asks the gate about a migration away from `src_cpu`, and counts the answer. */
KEEL_PART bool ask_gate_counted(struct task_struct *p __arg_trusted, u32 src_cpu, u32 reason, u64 now)
{
	struct cpu_state *c, *src = cpu_state(src_cpu);
	struct task_state *t = task_state(p);
	struct gate_answer answer;

	if (!src || !t)
		return 0;
	answer = judge_move(src, t, reason, now);
	/*
	 * Last, because there is little stack, and all that comes before would have to lie on it.
	 */
	c = cpu_state(bpf_get_smp_processor_id());
	if (!c)
		return 0;
	count_answer(c, src_cpu, p, &answer);
	if (is_answer_open(&answer))
		return 1;
	narrow_search(c, reason);
	return 0;
}

/* Counts a migration under a gate that never refuses; `c` is the executing CPU's. */
static __always_inline void count_open_move(struct cpu_state *c, u32 reason)
{
	c->counters[COUNT_GATE_OPEN]++;
	c->counters[BOUNDED(COUNT_MOVE_WAKE + reason, MAX_COUNTERS)]++;
}

/* Asks the gate and counts the answer, except under a gate that never refuses. */
static __always_inline bool may_move(u32 src_cpu, struct task_struct *p, u32 reason, u64 now)
{
	struct cpu_state *c;

	if (settings.gate != GATE_ALWAYS)
		return ask_gate_counted(p, src_cpu, reason, now);
	c = cpu_state(bpf_get_smp_processor_id());
	if (c)
		count_open_move(c, reason);
	return true;
}

/* Liveness: a task that waited for so long goes to an idle CPU, whatever the gate says. */
static __always_inline bool is_overdue(struct task_state *t, u64 now)
{
	u64 since = t->waiting_since_ns;

	return now > since && now - since > READ_ONCE(tunables.max_idle_wait_ns);
}

/* Counts a migration that the gate is not asked about. */
static __always_inline void count_ungated_move(u32 reason)
{
	count(COUNT_UNGATED);
	count(COUNT_MOVE_WAKE + reason);
}

/* Whether a new task or program may be placed elsewhere. */
static __always_inline bool may_place(u32 src_cpu, struct task_struct *p, enum move_reason reason,
				      u64 now)
{
	if (settings.gate == GATE_ALWAYS ||
	    gate_is_asked(reason, READ_ONCE(tunables.max_idle_wait_ns)))
		return may_move(src_cpu, p, reason, now);
	count_ungated_move(reason);
	return true;
}

#endif
