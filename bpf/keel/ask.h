/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Asking the gate: what it is told, who counts and remembers what it said, and which
 * moves it is not asked about.
 */
#ifndef EVENKEEL_KEEL_ASK_H
#define EVENKEEL_KEEL_ASK_H

_Static_assert(COUNT_GATE_PRIZED - COUNT_GATE_OPEN == GATE_VERDICTS - 1, "a counter a verdict");

/* What the gate gets to see of a move of this task away from the CPU `source`. */
static __always_inline struct gate_view gate_view(u32 source, struct task_state *t, u32 reason,
						  u64 now)
{
	struct gate_params params = gate_params();
	struct cpu_state *from = cpu_state(source);
	struct gate_view view = { .reason = reason };

	if (params.kind == GATE_ALWAYS || !from)
		return view;
	view.source_utilisation = utilisation_of(from, now);
	view.mean_utilisation = READ_ONCE(machine.utilisation);
	/* It waits or sleeps: that share falls. Clocks of two CPUs may differ a little. */
	view.task_share = share_of(decayed_share(
		t->run_share, now > t->share_since_ns ? now - t->share_since_ns : 0, false));
	if (t->above_since_ns && now > t->above_since_ns)
		view.task_above_ns = now - t->above_since_ns;
	return view;
}

/*
 * What asks the gate is a part of its own: the verifier would follow each of its answers through all
 * turns of the loops in which it is asked.
 */
KEEL_PART bool would_gate_open(struct task_struct *p __arg_trusted, u32 source, u32 reason, u64 now)
{
	struct gate_params params = gate_params();
	struct task_state *t = task_state(p);
	struct gate_view view;

	if (!t)
		return 0;
	view = gate_view(source, t, reason, now);
	return gate_may(&params, &view) < GATE_REFUSALS;
}

/* Whether a move would be allowed, for who has not found yet where to. */
static __always_inline bool would_open(u32 source, struct task_struct *p, u32 reason, u64 now)
{
	return settings.gate == GATE_ALWAYS || would_gate_open(p, source, reason, now);
}

/* Keeps an answer for whoever asks why, with the CPU that executes this, as counters are. */
static __always_inline void remember(struct cpu_state *c, u32 source, struct task_struct *p,
				     const struct gate_view *view, u32 verdict, u64 now)
{
	struct keel_decision *decision;

	decision = &c->decision[BOUNDED(c->decided, MAX_DECISIONS)];
	decision->at_ns = now;
	decision->above_ns = view->task_above_ns;
	decision->pid = p->pid;
	decision->source = source;
	decision->reason = view->reason;
	decision->verdict = verdict;
	decision->source_utilisation = view->source_utilisation;
	decision->mean_utilisation = view->mean_utilisation;
	decision->task_share = view->task_share;
	c->decided++;
}

/* Asks the gate for a move away from `source`, and counts the answer. */
KEEL_PART bool ask_gate(struct task_struct *p __arg_trusted, u32 source, u32 reason, u64 now)
{
	struct cpu_state *c = cpu_state(bpf_get_smp_processor_id());
	struct gate_params params = gate_params();
	struct task_state *t = task_state(p);
	enum gate_verdict verdict;
	struct gate_view view;
	bool open;

	if (!c || !t)
		return 0;
	view = gate_view(source, t, reason, now);
	verdict = gate_may(&params, &view);
	open = verdict < GATE_REFUSALS;
	/* Not by count(): each call to the kernel would have all of the view lie on the stack. */
	c->counters[BOUNDED(COUNT_GATE_OPEN + verdict, MAX_COUNTERS)]++;
	c->counters[BOUNDED((open ? COUNT_MOVE_WAKE : COUNT_REFUSE_WAKE) + reason, MAX_COUNTERS)]++;
	remember(c, source, p, &view, verdict, now);
	return open;
}

/* The same; a gate that never refuses is not asked. */
static __always_inline bool may_move(u32 source, struct task_struct *p, u32 reason, u64 now)
{
	if (settings.gate != GATE_ALWAYS)
		return ask_gate(p, source, reason, now);
	count(COUNT_GATE_OPEN);
	count(COUNT_MOVE_WAKE + reason);
	return true;
}

/* Liveness: who has waited for so long goes to a CPU that idles, whatever the gate says. */
static __always_inline bool is_overdue(struct task_state *t, u64 now)
{
	u64 since = t->waiting_since_ns;

	return now > since && now - since > READ_ONCE(tunables.max_idle_wait_ns);
}

/* A move that the gate is not asked about. */
static __always_inline void count_ungated(u32 reason)
{
	count(COUNT_UNGATED);
	count(COUNT_MOVE_WAKE + reason);
}

/* Whether who is new may be placed elsewhere. */
static __always_inline bool may_place(u32 source, struct task_struct *p, enum move_reason reason,
				      u64 now)
{
	if (settings.gate == GATE_ALWAYS ||
	    gate_concerns(reason, READ_ONCE(tunables.max_idle_wait_ns)))
		return may_move(source, p, reason, now);
	count_ungated(reason);
	return true;
}

#endif
