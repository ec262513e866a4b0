/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * When may load be balanced?
 *
 * Moving a task costs time to look for it, cold caches, and the latency of others.
 * The gate is asked before every move that is optional, with its reason, and may
 * refuse it. It is not asked where a move is a matter of life: a task whose CPU was
 * taken by a real-time task or went offline, whose affinity changed, or that has
 * waited too long (see bpf/keel/migrate.h). So no gate can let a task starve. Nor is it
 * asked, unless it is strict, where nothing is moved: a new task or program leaves no warm
 * caches and no queue behind.
 *
 * `always`: yes. This is classic Linux, and what the other policies are measured
 * against.
 *
 * `zone`: paper 004, section 3. Load is balanced only where the utilisation exceeds
 * the limit of the level that was chosen:
 *
 *     0 cold zone        30 %
 *     1 warm low spot    30 %    scores
 *     2 warm mid spot    50 %    scores
 *     3 warm high spot   80 %    scores
 *     4 hot zone         80 %
 *
 * What is compared is the utilisation of the CPU that would be relieved (in the
 * paper's example "local CPU1" is the one that a task leaves), or, if so chosen, the
 * mean of all CPUs, in which idle ones count or do not. In the warm zone it is
 * shifted by the task's score (3.1.3, figure 5): a task whose own use of its CPU has
 * been above the limit for 5 s keeps its CPU (5 points less: a prize), one that has
 * been so for a shorter time is moved more easily (5 points more: a punishment). A
 * score shifts nothing out of the band from 30 to 80 %, nor what lies outside.
 *
 * From that band follows that no score changes an answer at the high spot: what is
 * at most 80 % stays at most 80 %, and the limit is 80 %. So levels 3 and 4 answer
 * alike; the paper says as much ("the task of high spot cannot go up any more").
 *
 * Departures: the paper reads its 5 s from the task's entry in /proc, we let a share
 * that halves every 32 ms stay above the limit for as long. The times of prize and
 * punishment are two knobs there, as here; a task between both gets no points. And
 * the paper does not balance at all in the quiet zone, not even new tasks (section 3),
 * nor while somebody waits and a CPU idles: that is `--strict` here. Else new tasks are
 * placed as with `always`, because where they once are they stay in the quiet zone, and
 * waiting is bounded by `--max-idle-wait`. And whom the gate keeps, as it wakes, from a CPU that idles
 * takes its own from whoever is behind it at once (order_should_preempt_kept()), so that it is not the urgent
 * ones who pay for moves that are saved.
 */
#ifndef EVENKEEL_GATE_H
#define EVENKEEL_GATE_H

#include "views.h"

enum gate_kind {
	GATE_ALWAYS,
	GATE_ZONE,
	GATE_KINDS,
};

/* The paper's numbers of balance_level. */
enum zone_level {
	ZONE_COLD,
	ZONE_WARM_LOW,
	ZONE_WARM_MID,
	ZONE_WARM_HIGH,
	ZONE_HOT,
};

/* The warm zone, in percent: scores stay within. */
#define WARM_MIN_PCT 30U
#define WARM_MID_PCT 50U
#define WARM_MAX_PCT 80U

/* What can be set of the zones while the scheduler runs. */
struct zone_knobs {
	u32 level;		/* enum zone_level */
	u32 use_mean;		/* 1: the mean of all CPUs counts; 0: the CPU to be relieved */
	u32 count_idle;		/* 1: idle CPUs count in the mean */
	u32 weigh;		/* 1: scores count */
	u32 prize_score_pct;	/* taken off, in points of utilisation */
	u32 punish_score_pct;	/* put on top */
	u64 prize_time_ns;	/* above the limit for so long or longer: prize */
	u64 punish_time_ns;	/* above the limit for less: punishment */
};

struct gate_params {
	u32 kind;			/* enum gate_kind */
	const struct zone_knobs *zone;	/* GATE_ZONE only */
};

struct gate_view {
	u32 reason;		/* enum move_reason */
	u32 source_utilisation;	/* of the CPU that would be relieved, 0..=FULL */
	u32 mean_utilisation;	/* of the CPUs that count, if gate_is_by_mean(), 0..=FULL */
	/* Of the task, if gate_has_scores(): */
	u32 task_share;		/* its share of running, 0..=FULL */
	u64 task_above_ns;	/* how long that has been above the limit; 0: it was not */
};

/* The answer and its reason in one code; what is not below GATE_REFUSALS is a refusal. */
enum gate_verdict {
	GATE_OPEN,		/* always */
	GATE_BUSY,		/* the utilisation is above the limit */
	GATE_PUNISHED,		/* it is with the task's points */
	GATE_REFUSALS,
	GATE_QUIET = GATE_REFUSALS,	/* the utilisation is not above the limit */
	GATE_PRIZED,		/* it is, but not without the task's points */
	GATE_VERDICTS,
};

/* All CPUs' utilisation, summed up. Start from zeros. */
struct gate_mean {
	u32 utilisation;
	u32 cpus;
};

/* `max_idle_wait_ns` of who may wait for ever: the gate is strict. */
#define IDLE_WAIT_NEVER (~0ULL)

/* Whether the gate is asked about such moves, or they are none. */
POLICY bool gate_is_asked(u32 reason, u64 max_idle_wait_ns)
{
	return max_idle_wait_ns == IDLE_WAIT_NEVER || (reason != MOVE_FORK && reason != MOVE_EXEC);
}

/* Above how many percent the gate opens. */
POLICY u32 zone_limit_pct(u32 level)
{
	if (level == ZONE_WARM_MID)
		return WARM_MID_PCT;
	return level == ZONE_WARM_HIGH || level == ZONE_HOT ? WARM_MAX_PCT : WARM_MIN_PCT;
}

/* Whether a share is above the limit. Exact: 30 % is no whole number of 1024ths. */
POLICY bool zone_is_above(const struct zone_knobs *zone, u32 share)
{
	return (u64)share * 100 > zone_limit_pct(zone->level) * FULL;
}

/*
 * Whether scores can change an answer: in the warm zone, its upper border excepted, to which none lifts
 * anything over the limit, and below which none pushes what is above.
 */
POLICY bool zone_has_scores(const struct zone_knobs *zone)
{
	return zone->weigh && (zone->level == ZONE_WARM_LOW || zone->level == ZONE_WARM_MID);
}

/* Whether the gate looks at the task's own share. */
POLICY bool gate_has_scores(const struct gate_params *params)
{
	return params->kind == GATE_ZONE && zone_has_scores(params->zone);
}

/* Whether the gate looks at the mean of the CPUs at all. */
POLICY bool gate_is_by_mean(const struct gate_params *params)
{
	return params->kind == GATE_ZONE && params->zone->use_mean;
}

/* Adds a CPU to the mean. */
POLICY void gate_add_cpu(const struct gate_params *params, struct gate_mean *mean,
			  u32 utilisation, bool idle)
{
	if (params->kind == GATE_ALWAYS || (idle && !params->zone->count_idle))
		return;
	mean->utilisation += utilisation < FULL ? utilisation : FULL;
	mean->cpus++;
}

/* The mean of none is nothing: everybody idles. */
POLICY u32 gate_calc_mean(const struct gate_mean *mean)
{
	return mean->cpus ? mean->utilisation / mean->cpus : 0;
}

/*
 * Since when a task's share of running has been above the limit, 0 if it is not; asked
 * whenever the task stops running, because then its share is as high as it gets.
 */
POLICY u64 gate_update_above_since(const struct gate_params *params, u64 since_ns, u32 share, u64 now)
{
	if (params->kind == GATE_ALWAYS || !zone_is_above(params->zone, share))
		return 0;
	return since_ns ? since_ns : now;
}

/* The utilisation in percent times FULL, shifted by the task's score. */
POLICY u64 zone_shift_by_score(const struct zone_knobs *zone, u64 points, const struct gate_view *view)
{
	u64 prize = (u64)zone->prize_score_pct * FULL, punish = (u64)zone->punish_score_pct * FULL;
	u64 lowest = WARM_MIN_PCT * FULL, highest = WARM_MAX_PCT * FULL;

	if (!zone_has_scores(zone))
		return points;
	if (points < lowest || points > highest)
		return points;
	/* It may have slept since it was above. */
	if (!view->task_above_ns || !zone_is_above(zone, view->task_share))
		return points;
	if (view->task_above_ns >= zone->prize_time_ns)
		return points - lowest > prize ? points - prize : lowest;
	if (view->task_above_ns < zone->punish_time_ns)
		return min_u64(points + punish, highest);
	return points;
}

POLICY enum gate_verdict gate_judge_move(const struct gate_params *params, const struct gate_view *view)
{
	const struct zone_knobs *zone = params->zone;
	u64 points, shifted, limit;

	if (params->kind == GATE_ALWAYS)
		return GATE_OPEN;
	limit = zone_limit_pct(zone->level) * FULL;
	points = (u64)(zone->use_mean ? view->mean_utilisation : view->source_utilisation) * 100;
	shifted = zone_shift_by_score(zone, points, view);
	if (shifted > limit)
		return points > limit ? GATE_BUSY : GATE_PUNISHED;
	return points > limit ? GATE_PRIZED : GATE_QUIET;
}

#endif
