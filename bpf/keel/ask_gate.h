/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Asking the gate about a migration: reads the verdict about the CPU that the task would leave, counts
 * the answer and keeps a sample of the refusals for `explain`. It also says which migrations need no
 * answer: those for liveness and, unless the gate is strict, those of new tasks and an idle CPU's pulls
 * within its last-level cache.
 *
 * The verdict about a CPU is computed by update_opening() (load.h), and the rules are in policy/gate.h.
 */
#ifndef EVENKEEL_KEEL_ASK_GATE_H
#define EVENKEEL_KEEL_ASK_GATE_H

_Static_assert(COUNT_GATE_CHEAP - COUNT_GATE_OPEN == GATE_VERDICTS - 1, "a counter a verdict");

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

/* Whether the user chose that no waiting time overrides the gate (`--strict`). */
static __always_inline bool is_gate_strict(void)
{
	return READ_ONCE(tunables.max_idle_wait_ns) == IDLE_WAIT_NEVER;
}

/* The gate's view of a migration of this task away from `src`. */
static __always_inline struct gate_view make_gate_view(const struct gate_params *params,
						       struct cpu_state *src, struct task_state *t,
						       u32 reason, u64 now)
{
	struct gate_view view = { .reason = reason };

	view.source_utilisation = utilisation_as_of_tick(src, now);
	view.source_waits = READ_ONCE(src->runnable) > 1;
	if (gate_is_by_mean(params))
		view.mean_utilisation = READ_ONCE(machine.utilisation);
	/*
	 * The task waits or sleeps, so its share falls, unless it is to leave while it runs. Clocks of
	 * two CPUs may differ a little.
	 */
	view.task_share = share_of(decay_share(t->run_share,
					       now > t->share_since_ns ? now - t->share_since_ns : 0,
					       reason == MOVE_ACTIVE));
	if (gate_has_scores(params) && t->above_since_ns && now > t->above_since_ns)
		view.task_above_ns = now - t->above_since_ns;
	return view;
}

/* The verdict about one task, where its points may matter. */
KEEL_PART u32 judge_task(struct task_struct *p __arg_trusted, u32 src_cpu, u32 reason, u64 now)
{
	struct gate_params params = gate_params();
	struct cpu_state *src = cpu_state(src_cpu);
	struct task_state *t = task_state(p);
	struct gate_view view;

	if (!src || !t)
		return GATE_QUIET;
	view = make_gate_view(&params, src, t, reason, now);
	return gate_judge_task(&params, &view);
}

/* The gate's verdict about a migration away from `src`, uncounted: an enum gate_verdict. */
static __always_inline u32 ask_gate(struct task_struct *p, u32 src_cpu, struct cpu_state *src,
				    u32 reason, u64 now)
{
	u32 opening = READ_ONCE(src->opening);

	return opening == GATE_BY_TASK ? judge_task(p, src_cpu, reason, now) : opening;
}

static __always_inline bool is_open(u32 verdict)
{
	return verdict < GATE_REFUSALS;
}

/*
 * Counts a verdict. To the compiler it comes from nowhere: otherwise it would know that a verdict is
 * small, and drop the mask that the verifier needs.
 */
static __always_inline void count_verdict(struct cpu_state *c, u32 verdict)
{
	u32 counter = COUNT_GATE_OPEN + verdict;

	asm volatile("" : "+r"(counter));
	c->counters[BOUNDED(counter, MAX_COUNTERS)]++;
}

/* Counts a migration that the gate allowed; `c` is the executing CPU's. */
static __always_inline void count_allowed_move(struct cpu_state *c, u32 reason, u32 verdict)
{
	count_verdict(c, verdict);
	c->counters[BOUNDED(COUNT_MOVE_WAKE + reason, MAX_COUNTERS)]++;
}

/* Keeps a refusal for `explain`, on the executing CPU. */
KEEL_PART int keep_refusal(struct task_struct *p __arg_trusted, u32 src_cpu, u32 reason, u32 verdict,
			   u64 now)
{
	struct cpu_state *c, *src = cpu_state(src_cpu);
	struct gate_params params = gate_params();
	struct task_state *t = task_state(p);
	struct keel_decision *decision;
	struct gate_view view;

	if (!src || !t)
		return 0;
	view = make_gate_view(&params, src, t, reason, now);
	c = cpu_state(bpf_get_smp_processor_id());
	if (!c)
		return 0;
	decision = &c->decision[BOUNDED(c->decided, MAX_DECISIONS)];
	decision->at_ns = now;
	decision->above_ns = view.task_above_ns;
	decision->pid = p->pid;
	decision->source = src_cpu;
	decision->reason = reason;
	decision->verdict = verdict;
	decision->source_utilisation = view.source_utilisation;
	decision->mean_utilisation = view.mean_utilisation;
	decision->task_share = view.task_share;
	decision->level = params.zone->level;
	decision->limit_pct = zone_limit_pct(params.zone->level);
	c->decided++;
	return 0;
}

/* Counts a refused migration; `c` is the executing CPU's. Of the refusals in a while it keeps one. */
static __always_inline void count_refusal(struct cpu_state *c, struct task_struct *p, u32 src_cpu,
					  u32 reason, u32 verdict, u64 now)
{
	u64 at_ns;

	count_verdict(c, verdict);
	c->counters[BOUNDED(COUNT_REFUSE_WAKE + reason, MAX_COUNTERS)]++;
	at_ns = c->decision[BOUNDED(c->decided - 1, MAX_DECISIONS)].at_ns;
	/* A cheap clock may be behind the last record. */
	if (now > at_ns && now - at_ns >= DECISION_SAMPLE_NS)
		keep_refusal(p, src_cpu, reason, verdict, now);
}

/*
 * A function of its own, as all that asks the gate in a loop: the verifier would follow each answer
 * through all turns.
 */
KEEL_PART bool ask_gate_uncounted(struct task_struct *p __arg_trusted, u32 src_cpu, u32 reason, u64 now)
{
	struct cpu_state *src = cpu_state(src_cpu);

	return src && is_open(ask_gate(p, src_cpu, src, reason, now));
}

/* Whether a migration would be allowed, before its destination is known. */
static __always_inline bool may_move_uncounted(u32 src_cpu, struct task_struct *p, u32 reason, u64 now)
{
	return settings.gate == GATE_ALWAYS || ask_gate_uncounted(p, src_cpu, reason, now);
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
	struct cpu_state *c = cpu_state(bpf_get_smp_processor_id()), *src = cpu_state(src_cpu);
	u32 verdict;

	if (!src || !c)
		return 0;
	verdict = ask_gate(p, src_cpu, src, reason, now);
	if (is_open(verdict)) {
		count_allowed_move(c, reason, verdict);
		return 1;
	}
	count_refusal(c, p, src_cpu, reason, verdict, now);
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

/*
 * How long a task that runs for so long at a time may wait before it goes to an idle CPU, whatever the
 * gate says. A function of its own: there is little stack in the search for tasks.
 */
KEEL_PART u64 get_max_wait(u64 burst_ns)
{
	u64 max_ns = READ_ONCE(tunables.max_idle_wait_ns);
	struct gate_params params = gate_params();

	return max_ns == IDLE_WAIT_NEVER ? max_ns : min_u64(max_ns, gate_max_wait(&params, burst_ns));
}

/* Liveness: a task that waited for so long goes to an idle CPU, whatever the gate says. */
static __always_inline bool is_overdue(struct task_state *t, u64 now)
{
	u64 since = t->waiting_since_ns;

	if (settings.gate != GATE_ALWAYS)
		return now > since && now - since > get_max_wait(READ_ONCE(t->burst_ns));
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

/* Whether a pull from `src_cpu` to `own` stays within a cache, where only a strict gate is asked. */
static __always_inline bool is_pull_ungated(u32 own, u32 src_cpu, u32 reason)
{
	return settings.gate != GATE_ALWAYS && reason == MOVE_IDLE && shares_cache(own, src_cpu) &&
	       !is_gate_strict();
}

/*
 * The CPUs from which a CPU may pull, one word of their set: tasks wait there, and the gate lets them
 * leave. But an idle CPU pulls only in the worst case, from CPUs with a load above 100 %, and unless
 * the gate is strict within its cache, where that is not asked. (It is told of overdue tasks:
 * kick_idle_cpus_gated().)
 */
static __always_inline u64 get_source_word(u32 own, u32 word, bool idles, bool strict)
{
	u64 open = READ_ONCE((idles ? &crowded_cpus : &open_cpus)->word[BOUNDED(word, MAX_CPUS / 64)]);

	if (idles && !strict)
		open |= get_cache_word(own, word);
	return READ_ONCE(waiting_cpus.word[BOUNDED(word, MAX_CPUS / 64)]) & open;
}

/* Whether there is any CPU from which `own` may pull. */
KEEL_PART bool has_source(u32 own, bool idles)
{
	bool strict = is_gate_strict();
	u64 words = 0;

	if (settings.cpus <= 64)
		return get_source_word(own, 0, idles, strict) & ~(1ULL << (own & 63));
#pragma GCC unroll 16
	for (u32 i = 0; i < MAX_CPUS / 64; i++) {
		if (i * 64 < settings.cpus)
			words |= get_source_word(own, i, idles, strict) &
				 ~(own / 64 == i ? 1ULL << (own & 63) : 0);
	}
	return words;
}

/* Whether `own` may pull from this CPU. */
static __always_inline bool is_source(u32 own, u32 cpu, bool idles)
{
	return get_source_word(own, cpu / 64, idles, is_gate_strict()) >> (cpu & 63) & 1;
}

/* Whether the waking task would preempt the task that runs on its CPU. */
static __always_inline bool would_preempt(struct task_state *t, u32 cpu, struct cpu_state *src, u64 now)
{
	struct order_params params = order_params();
	u64 clock = READ_ONCE(src->clock);
	u64 vruntime = order_place(&params, t->vruntime, clock, clock, PLACE_WAKE);

	return t->home == cpu && READ_ONCE(src->running_weight) &&
	       order_should_preempt_kept(vruntime, get_running_vruntime(src, now));
}

/*
 * Whether a task that becomes runnable stays in the cache of its CPU, where no CPU idles that it could
 * take, although one of another cache does. `open`: the gate would let it leave.
 */
KEEL_PART bool should_stay(struct task_struct *p __arg_trusted, u32 cpu, u64 now, bool open)
{
	struct gate_params params = gate_params();
	struct cpu_state *src = cpu_state(cpu);
	struct task_state *t = task_state(p);
	struct gate_stay stay;
	u64 since;

	if (!src || !t)
		return false;
	/* A cheap clock may be behind. A task that has run for longer than others is no longer like them. */
	since = READ_ONCE(src->running_since_ns);
	now = max_u64(now, since);
	stay.burst_ns = t->burst_ns;
	stay.cpu_burst_ns = max_u64(READ_ONCE(src->burst_ns), now - since);
	stay.waiters = count_in_cache(&waiting_cpus, cpu);
	stay.cpus = topology.cache[BOUNDED(topology.cpu[BOUNDED(cpu, MAX_CPUS)].cache, MAX_CPUS)].count;
	stay.preempts = would_preempt(t, cpu, src, now);
	stay.open = open;
	return gate_should_stay(&params, &stay);
}

#endif
