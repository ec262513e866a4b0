/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Asking the gate: what it is told, who counts and remembers what it said, and which
 * moves it is not asked about.
 */
#ifndef EVENKEEL_KEEL_ASK_H
#define EVENKEEL_KEEL_ASK_H

_Static_assert(COUNT_GATE_PRIZED - COUNT_GATE_OPEN == GATE_VERDICTS - 1, "a counter a verdict");

/* A question to the gate, with its answer: what has to be remembered if that counts. */
struct gate_answer {
	struct gate_view view;
	u64 now;
	u32 verdict;	/* enum gate_verdict */
	u32 level;	/* enum zone_level */
};

/*
 * The time for who asks at a wake-up. The kernel knows it there only by looking at the clock, which
 * costs more than all else about an answer: a CPU of ours that is busy takes its last tick or switch
 * for it instead.
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

/* What the gate gets to see of a move of this task away from a CPU. */
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
	/* It waits or sleeps: its share falls. Clocks of two CPUs may differ a little. */
	view.task_share = share_of(decay_share(
		t->run_share, now > t->share_since_ns ? now - t->share_since_ns : 0, false));
	if (t->above_since_ns && now > t->above_since_ns)
		view.task_above_ns = now - t->above_since_ns;
	return view;
}

/* Asks the gate for a move away from a CPU. */
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
 * Lets an answer count, and keeps it for whoever asks why: with the CPU that executes this. (Not by
 * count(): each call to the kernel would have all of the answer lie on the stack.)
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
 * What asks the gate in a loop is a part of its own: the verifier would follow each of its answers
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

/* Whether a move would be allowed, for who has not found yet where to. */
static __always_inline bool may_move_uncounted(u32 src_cpu, struct task_struct *p, u32 reason, u64 now)
{
	return settings.gate == GATE_ALWAYS || ask_gate_uncounted(p, src_cpu, reason, now);
}

/* Whether nothing is to make up for what the gate refuses. */
static __always_inline bool is_gate_strict(void)
{
	return READ_ONCE(tunables.max_idle_wait_ns) == IDLE_WAIT_NEVER;
}

/*
 * Where a gate that does not look at the task has refused one, it would refuse all of that queue, and whoever
 * goes through it need not ask again: what is left to look for is who is overdue, if anybody can be. Here and
 * not where they are gone through, because little of the stack is left there; nobody else reads it.
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

/* Asks the gate for a move away from `source`, and lets the answer count. */
KEEL_PART bool ask_gate_counted(struct task_struct *p __arg_trusted, u32 src_cpu, u32 reason, u64 now)
{
	struct cpu_state *c, *src = cpu_state(src_cpu);
	struct task_state *t = task_state(p);
	struct gate_answer answer;

	if (!src || !t)
		return 0;
	answer = judge_move(src, t, reason, now);
	/* Last, because there is little stack here, and everything before would have to lie on it. */
	c = cpu_state(bpf_get_smp_processor_id());
	if (!c)
		return 0;
	count_answer(c, src_cpu, p, &answer);
	if (is_answer_open(&answer))
		return 1;
	narrow_search(c, reason);
	return 0;
}

/* A move that a gate allows which never refuses any; `c` is of the CPU that executes this. */
static __always_inline void count_open_move(struct cpu_state *c, u32 reason)
{
	c->counters[COUNT_GATE_OPEN]++;
	c->counters[BOUNDED(COUNT_MOVE_WAKE + reason, MAX_COUNTERS)]++;
}

/* The same; a gate that never refuses is not asked. */
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

/* Liveness: who has waited for so long goes to a CPU that idles, whatever the gate says. */
static __always_inline bool is_overdue(struct task_state *t, u64 now)
{
	u64 since = t->waiting_since_ns;

	return now > since && now - since > READ_ONCE(tunables.max_idle_wait_ns);
}

/* A move that the gate is not asked about. */
static __always_inline void count_ungated_move(u32 reason)
{
	count(COUNT_UNGATED);
	count(COUNT_MOVE_WAKE + reason);
}

/* Whether who is new may be placed elsewhere. */
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
