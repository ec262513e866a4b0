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
 * (until 6.5), in the words of its source: a new task starts a slice late
 * (START_DEBIT), so that forking does not pay; a waking one is at most half a
 * slice ahead of the queue (GENTLE_FAIR_SLEEPERS), so that sleeping is rewarded
 * but cannot be saved up; it preempts who runs if it is the wake-up granularity
 * ahead of that one: so who has slept for long always does, and tasks that wake
 * each other do not take turns faster than they get work done.
 *
 * It departs from classic Linux in two places. How far a task may be behind the
 * clock, and so wait, is bounded (ORDER_BOUND_NS), because a kernel that hosts
 * schedulers takes those down that let a task wait for 30 s. And a task that has
 * used up its slice is a candidate with what it would be charged: the queue's head
 * runs only if it really is behind it. (A scheduler that always takes the head
 * gives two tasks of weights 3:1 turns 1:1.)
 *
 * Paper 003 adds candidates: the sibling (same address space) of who just ran, and
 * a sibling of what another CPU runs. `pick` is given both; under `fair` they do
 * not count, and `affinity` is nothing.
 */
#ifndef EVENKEEL_ORDER_H
#define EVENKEEL_ORDER_H

#include "views.h"

enum order_kind {
	ORDER_FAIR,
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

enum order_place {
	PLACE_NEW,	/* forked, or from another scheduling class */
	PLACE_WAKE,	/* slept */
	PLACE_ARRIVE,	/* runnable, and moved here */
};

/* How far ahead of its queue's clock a task is at most that has slept. */
POLICY u64 order_credit_ns(const struct order_params *params)
{
	return min_u64(params->slice_ns, ORDER_BOUND_NS) / 2;
}

/* Where in the queue whose clock is `to` a task goes that was at `vruntime` by the clock `from`. */
POLICY u64 order_place(const struct order_params *params, u64 vruntime, u64 from, u64 to,
		       enum order_place place)
{
	u64 credit = place == PLACE_WAKE ? order_credit_ns(params) : ORDER_BOUND_NS;
	u64 placed = to + (vruntime - from);

	if (place == PLACE_NEW)
		return to + min_u64(params->slice_ns, ORDER_BOUND_NS);
	if (vruntime_before(placed, to - credit))
		return to - credit;
	if (vruntime_before(to + ORDER_BOUND_NS, placed))
		return to + ORDER_BOUND_NS;
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

struct order_candidate {
	bool exists;
	u64 vruntime;
};

enum order_choice {
	CHOOSE_NONE,
	CHOOSE_PREV,		/* who runs goes on */
	CHOOSE_HEAD,		/* the queue's head */
	CHOOSE_SIBLING,		/* the best sibling of who ran, on this CPU */
	CHOOSE_PUBLISHED,	/* the best sibling, on this CPU, of what the group's master runs */
};

/* Who runs next. `prev` is charged already, and wins a tie: a switch costs something. */
POLICY enum order_choice order_pick(const struct order_params *params,
				    struct order_candidate prev, struct order_candidate head,
				    struct order_candidate sibling,
				    struct order_candidate published)
{
	(void)params, (void)sibling, (void)published;
	if (!head.exists)
		return prev.exists ? CHOOSE_PREV : CHOOSE_NONE;
	if (!prev.exists || vruntime_before(head.vruntime, prev.vruntime))
		return CHOOSE_HEAD;
	return CHOOSE_PREV;
}

/* Whether a task that wakes takes the CPU from who runs there (charged up to now). */
POLICY bool order_preempt(const struct order_params *params, u64 waking, u64 running)
{
	u64 granularity = min_u64(params->slice_ns / 4, ORDER_GRANULARITY_NS);

	return vruntime_before(waking + granularity, running);
}

/* How much a task belongs with what runs on a CPU, by their address spaces (0: none). */
POLICY u32 order_affinity(const struct order_params *params, u64 task_space, u64 running_space)
{
	(void)params, (void)task_space, (void)running_space;
	return 0;
}

#endif
