/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Which task runs next on this CPU?
 *
 * Every task has a vruntime: the time that it ran, divided by its weight. Each CPU
 * has a queue in the order of vruntime and a clock, the smallest vruntime that it
 * has let run, which never goes back. What a task is ahead or behind is only known
 * relative to the clock of its queue, and that difference is what it takes along
 * to another CPU.
 *
 * `fair`: the smallest vruntime runs. This is the fair scheduler of classic Linux
 * (until 6.5), in the words of its source: a new task starts late by its share of a
 * slice (START_DEBIT), so that forking does not pay; a waking one is at most half a
 * slice ahead of the queue (GENTLE_FAIR_SLEEPERS), so that sleeping is rewarded
 * but cannot be saved up; it preempts who runs if it is the wake-up granularity
 * ahead of that one: so who has slept for long always does, and tasks that wake
 * each other do not take turns faster than they get work done.
 *
 * It departs from classic Linux in four places. Who yields gives way only after it has had the
 * CPU for as long as a switch takes (ORDER_YIELD_NS; sched_yield(2) leaves it open). Whom a task
 * wakes itself cannot take its CPU before it has had that for the wake-up granularity
 * (ORDER_GRANULARITY_NS): else who wakes many others is stopped by each of them in turn. Such a
 * one is looked at again at the next tick; whom an interrupt wakes does not wait. How far a task
 * may be behind the clock, and so wait, is bounded (ORDER_BOUND_NS), because a kernel that hosts
 * schedulers takes those down that let a task wait for 30 s. And a task that has
 * used up its slice is a candidate with what it would be charged: the queue's head
 * runs only if it really is behind it. (A scheduler that always takes the head
 * gives two tasks of weights 3:1 turns 1:1.)
 *
 * `ias`: paper 003, section 2.2. Threads of one address space are siblings, and run
 * one after the other on a CPU, and at the same time on the CPUs of a group, as far
 * as a bonus lets them. With B what `fair` would run, C the best sibling of who ran,
 * E who ran on a slave, F, G, H the same and the best of the space that the group's
 * master has published:
 *
 *     (1) C runs if  B.vruntime > C.vruntime - bonus
 *     (2) H runs if  F.vruntime > H.vruntime - bonus  and
 *     (3)            G.vruntime > H.vruntime - bonus  (true without a G)
 *     (4) else G if  F.vruntime > G.vruntime - bonus, else F
 *
 * The bonus is what set_ias_agg has set for the address space that would get it
 * (section 3.1): a number of ns of vruntime, or so many times what who ran last on this
 * CPU was charged; nothing for a space that nobody set, or that has been preferred `limit`
 * times in a row here. So nobody falls behind by more than bonus and slice, and
 * without a bonus every pick is that of `fair`.
 *
 * It departs from the paper in five places. B and F may be the task that has run so
 * far: paper and classic Linux put it back into the queue before they choose. It is
 * nobody's sibling then, since it is a bonus for one's own that would let a lone
 * thread run on for ever longer. The bonus is bounded, as everything is here. What ran
 * last counts by its vruntime, which is its time where tasks have nice 0 and no cgroup;
 * where they weigh less, time would be no bonus beside their vruntimes. And a
 * slave that has no H fetches it from its master's queue, and gives another task for
 * it, because the paper leaves it to chance whose siblings wait where.
 */
#ifndef EVENKEEL_ORDER_H
#define EVENKEEL_ORDER_H

#include "views.h"

enum order_kind {
	ORDER_FAIR,
	ORDER_IAS,
	ORDER_KINDS,
};

struct order_params {
	u32 kind;	/* enum order_kind */
	u64 slice_ns;
};

/* How far from its queue's clock a task can be, either way. */
#define ORDER_BOUND_NS 10000000000ULL
/* The longest run that is charged at once; longer ones are a clock that jumped. */
#define ORDER_MAX_RUN_NS (1ULL << 40)
/* A task has to be this much further ahead than who runs to take the CPU from it. */
#define ORDER_GRANULARITY_NS 1000000ULL

/* Who yields has had the CPU for this long before it gives way: about what a switch takes. */
#define ORDER_YIELD_NS 10000ULL

enum order_place {
	PLACE_WAKE,	/* slept */
	PLACE_ARRIVE,	/* runnable, and moved here */
};

/* How far ahead of its queue's clock a task is at most that has slept. */
POLICY u64 order_credit_ns(const struct order_params *params)
{
	return min_u64(params->slice_ns, ORDER_BOUND_NS) / 2;
}

/*
 * Where in the queue with this clock a task goes that was forked, or comes from another scheduling
 * class; it is one of `tasks` on the CPU. A whole slice each would make it wait for as many slices.
 */
POLICY u64 order_place_new(const struct order_params *params, u64 clock, u64 tasks)
{
	return clock + min_u64(params->slice_ns, ORDER_BOUND_NS) / (tasks ? tasks : 1);
}

/* Where in the queue whose clock is `to` a task goes that was at `vruntime` by the clock `from`. */
POLICY u64 order_place(const struct order_params *params, u64 vruntime, u64 src_clock, u64 dst_clock,
		       enum order_place place)
{
	u64 credit = place == PLACE_WAKE ? order_credit_ns(params) : ORDER_BOUND_NS;
	u64 placed = dst_clock + (vruntime - src_clock);

	if (is_vruntime_before(placed, dst_clock - credit))
		return dst_clock - credit;
	if (is_vruntime_before(dst_clock + ORDER_BOUND_NS, placed))
		return dst_clock + ORDER_BOUND_NS;
	return placed;
}

/* The vruntime of a task of this weight after it ran for `run_ns`. */
POLICY u64 order_charge(u64 vruntime, u64 run_ns, u64 weight)
{
	u64 run = min_u64(run_ns, ORDER_MAX_RUN_NS);

	if (weight == NICE_0_WEIGHT)
		return vruntime + run;
	if (weight < MIN_WEIGHT)
		weight = MIN_WEIGHT;
	return vruntime + run * NICE_0_WEIGHT / weight;
}

/*
 * How far those on a CPU have come on the average, which is between the least and the most, after one of so
 * many was `charged`. Where siblings go first, queues are spread out, and their clocks stand still and then
 * leap: two clocks do not tell which of two queues is further.
 */
POLICY u64 order_update_mean(u64 mean, u64 charged, u64 tasks, u64 least, u64 most)
{
	u64 come = mean + charged / (tasks ? tasks : 1);

	if (is_vruntime_before(come, least))
		return least;
	return is_vruntime_before(most, come) ? most : come;
}

/*
 * Where in a queue a task goes that changes places with one of it: as far before or behind the mean `to` as
 * it was where the mean is `from`, and among those that are there, none of whom is more than `spread`
 * ahead of the clock.
 */
POLICY u64 order_place_exchanged(u64 vruntime, u64 src_mean, u64 dst_mean, u64 dst_clock, u64 spread)
{
	u64 placed = dst_mean + (vruntime - src_mean);

	if (is_vruntime_before(placed, dst_clock))
		return dst_clock;
	return is_vruntime_before(dst_clock + spread, placed) ? dst_clock + spread : placed;
}

/*
 * Whether two tasks may change places, so that no CPU has more to do than before: to a quarter, because what a
 * task gets of its cgroup's share is known as of when it was charged last.
 */
POLICY bool order_is_similar_weight(u64 weight, u64 other)
{
	return weight <= other + other / 4 && other <= weight + weight / 4;
}

enum bonus_type {
	BONUS_VRUNTIME,	/* bonus_value is in ns of vruntime */
	BONUS_QUANTUM,	/* it multiplies what ran last, in vruntime */
};

/* What set_ias_agg sets for an address space; without it, nothing is aggregated. */
struct aggregation {
	u64 bonus_value;
	u64 limit;	/* preferred at most so often in a row on a CPU; 0: no limit */
	u32 bonus_type;	/* enum bonus_type */
	u32 agg;	/* 1: aggregate; 0: do not */
};

/*
 * The bonus of a space's siblings on a CPU where they have been preferred `preferred`
 * times in a row, and where who ran last was charged `quantum`. That is in ns of vruntime, as all that it is
 * compared with: by that siblings differ, whatever they weigh (paper 003, section 3.1, the first of its four
 * reasons).
 */
POLICY u64 order_calc_bonus(const struct aggregation *space, u64 quantum, u64 preferred)
{
	if (!space->agg || (space->limit && preferred >= space->limit))
		return 0;
	if (space->bonus_type == BONUS_VRUNTIME)
		return min_u64(space->bonus_value, ORDER_BOUND_NS);
	if (quantum && space->bonus_value > ORDER_BOUND_NS / quantum)
		return ORDER_BOUND_NS;
	return space->bonus_value * quantum;
}

struct order_candidate {
	bool exists;
	u64 vruntime;
	u64 bonus;	/* of siblings: order_calc_bonus() */
};

/* Whether a candidate runs before what has this vruntime, with its bonus. */
POLICY bool order_is_preferred(const struct order_candidate *candidate, u64 vruntime)
{
	return candidate->exists &&
	       is_vruntime_before(candidate->vruntime - candidate->bonus, vruntime);
}

enum order_choice {
	CHOOSE_NONE,
	CHOOSE_PREV,		/* who runs goes on */
	CHOOSE_HEAD,		/* the queue's head */
	CHOOSE_SIBLING,		/* the best sibling of who ran, on this CPU */
	CHOOSE_PUBLISHED,	/* the best sibling, on this CPU, of what the group's master runs */
};

/* Whether who runs goes on under `fair`. It is charged already, and wins a tie: a switch costs. */
POLICY bool order_should_keep_prev(struct order_candidate prev, struct order_candidate head)
{
	return prev.exists && !(head.exists && is_vruntime_before(head.vruntime, prev.vruntime));
}

/*
 * Whether the queue's head runs next, whoever that is: then nobody needs to look at it. (Under
 * `ias` there may be others to choose from.)
 */
POLICY bool order_is_head_next(const struct order_params *params, struct order_candidate prev)
{
	return params->kind == ORDER_FAIR && !prev.exists;
}

/* Who runs next. */
POLICY enum order_choice order_pick(const struct order_params *params,
				    struct order_candidate prev, struct order_candidate head,
				    struct order_candidate sibling,
				    struct order_candidate published)
{
	bool keep = order_should_keep_prev(prev, head);
	u64 fair = keep ? prev.vruntime : head.vruntime;

	if (!head.exists)
		return keep ? CHOOSE_PREV : CHOOSE_NONE;
	if (params->kind == ORDER_FAIR)
		return keep ? CHOOSE_PREV : CHOOSE_HEAD;
	if (order_is_preferred(&published, fair) &&
	    (!sibling.exists || order_is_preferred(&published, sibling.vruntime)))
		return CHOOSE_PUBLISHED;
	/* Who runs is of the same space as its siblings, and need not make room for them. */
	if (!keep && order_is_preferred(&sibling, fair))
		return CHOOSE_SIBLING;
	return keep ? CHOOSE_PREV : CHOOSE_HEAD;
}

/* Whether a master that chose so aggregates, so that its slaves are to follow. */
POLICY bool order_should_publish(enum order_choice choice, struct order_candidate sibling)
{
	return choice == CHOOSE_SIBLING ||
	       (choice == CHOOSE_PREV && sibling.exists && sibling.bonus);
}

/* How much of a slice makes a difference when a task wakes. */
POLICY u64 order_granularity_ns(const struct order_params *params)
{
	return min_u64(params->slice_ns / 4, ORDER_GRANULARITY_NS);
}

/*
 * Whether who yields gives way after it has had the CPU for so long. Else tasks that yield all the
 * time would switch all the time, and that takes longer than what they do in between.
 */
POLICY bool order_should_yield(u64 ran_ns)
{
	return ran_ns >= ORDER_YIELD_NS;
}

/* Whether a task that wakes is to take the CPU from who runs there (charged up to now). */
POLICY bool order_should_preempt(const struct order_params *params, u64 waking, u64 running)
{
	return is_vruntime_before(waking + order_granularity_ns(params), running);
}

/*
 * The same for whom the gate keeps here although another CPU idles, where it would run now: while CPUs
 * idle, to switch sooner costs nobody his turn.
 */
POLICY bool order_should_preempt_kept(u64 waking, u64 running)
{
	return is_vruntime_before(waking, running);
}

/* Whether who has had the CPU for so long keeps it, for now, from whom it has just woken itself. */
POLICY bool order_is_protected(const struct order_params *params, u64 ran_ns)
{
	return ran_ns < order_granularity_ns(params);
}

/*
 * How much a task belongs with what runs on a CPU or is published there, by their
 * address spaces (0: not at all, or none).
 */
POLICY u32 order_affinity(const struct order_params *params, u64 task_space, u64 running_space)
{
	return params->kind == ORDER_IAS && task_space && task_space == running_space;
}

#endif
