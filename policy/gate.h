/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * When may load be balanced?
 *
 * A migration costs the time of the search, cold caches, and latency of other tasks. The keel asks
 * the gate before every optional move, with its reason, and the gate may refuse. The keel does not
 * ask where liveness needs the move: for a task that lost its CPU to a real-time task or to
 * hotplug, a task with a new affinity mask, or a task that waited too long (bpf/keel/ask_gate.h,
 * migrate.h). So no gate can starve a task. Unless the gate is strict, the keel does not ask for
 * new tasks and programs either: they leave no warm caches and no queue behind.
 *
 * `always`: yes. This is classic Linux, and what the other gates are measured against.
 *
 * `zone`: paper 004, section 3. Load is balanced only where the utilisation exceeds the limit of
 * the configured level:
 *
 *     0 cold zone        30 %
 *     1 warm low spot    30 %    scores
 *     2 warm mid spot    50 %    scores
 *     3 warm high spot   80 %    scores
 *     4 hot zone         80 %
 *
 * The utilisation is that of the source CPU (in the paper's example "local CPU1" is the one that a
 * task leaves) or, if so configured, the mean of all CPUs, in which idle CPUs count or not. In the
 * warm zone it is shifted by the task's score (3.1.3, figure 5). A task that used its CPU above the
 * limit for 5 s keeps it: 5 points less, a prize. A task that was above it for a shorter time
 * migrates more easily: 5 points more, a punishment. A score shifts nothing out of the band from 30
 * to 80 %, and nothing outside of it.
 *
 * So no score changes an answer at the high spot: what is at most 80 % stays at most 80 %, and the
 * limit is 80 %. Levels 3 and 4 answer alike; the paper says as much ("the task of high spot cannot
 * go up any more").
 *
 * `zone` departs from the paper in four places:
 *
 * 1. The paper reads its 5 s from the task's entry in /proc. Here, a share that halves every 33.6
 *    ms stays above the limit for as long, also while the task does not stop. A rest in which a
 *    whole share would fall to the limit ends that (gate_ends_above()).
 * 2. The times of prize and punishment are two knobs, as in the paper; a task between both gets no
 *    points.
 * 3. In the quiet zone the paper never balances: no new tasks (section 3), and no waiting task
 *    while a CPU idles. That is `--strict` here. Otherwise new tasks are placed as with `always`,
 *    because in the quiet zone they stay where they are placed, and `--max-idle-wait` bounds the
 *    waiting time.
 * 4. A waking task that the gate keeps from an idle CPU preempts on its own CPU as soon as the
 *    running task is behind it (order_should_preempt_kept()), so that urgent tasks do not pay for
 *    saved moves.
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

/* The warm zone, in percent: scores shift within it. */
#define WARM_MIN_PCT 30U
#define WARM_MID_PCT 50U
#define WARM_MAX_PCT 80U

/* The knobs of `zone`; they may change while the scheduler runs. */
struct zone_knobs {
	u32 level;		/* enum zone_level */
	u32 use_mean;		/* 1: the mean of all CPUs counts; 0: the source CPU */
	u32 count_idle;		/* 1: idle CPUs count in the mean */
	u32 weigh;		/* 1: scores count */
	u32 prize_score_pct;	/* taken off, in points of utilisation */
	u32 punish_score_pct;	/* put on top */
	u64 prize_time_ns;	/* above the limit for at least so long: prize */
	u64 punish_time_ns;	/* above the limit for less: punishment */
};

struct gate_params {
	u32 kind;			/* enum gate_kind */
	const struct zone_knobs *zone;	/* GATE_ZONE only */
};

struct gate_view {
	u32 reason;		/* enum move_reason */
	u32 source_utilisation;	/* of the source CPU, 0..=FULL */
	u32 mean_utilisation;	/* of the CPUs that count, if gate_is_by_mean(), 0..=FULL */
	/* The task, if gate_has_scores(): */
	u32 task_share;		/* its share of run time, 0..=FULL */
	u64 task_above_ns;	/* how long that share has been above the limit; 0: it is not */
};

/* The answer and its reason in one code; codes from GATE_REFUSALS on are refusals. */
enum gate_verdict {
	GATE_OPEN,		/* always */
	GATE_BUSY,		/* the utilisation is above the limit */
	GATE_PUNISHED,		/* with the points the utilisation is above the limit */
	GATE_REFUSALS,
	GATE_QUIET = GATE_REFUSALS,	/* the utilisation is not above the limit */
	GATE_PRIZED,		/* the utilisation is above the limit, with the points it is not */
	GATE_VERDICTS,
};

/* The sum of all CPUs' utilisation. Start from zeros. */
struct gate_mean {
	u32 utilisation;
	u32 cpus;
};

/* The `max_idle_wait_ns` of a strict gate: a task may wait for ever. */
#define IDLE_WAIT_NEVER (~0ULL)

/* Whether the keel asks the gate about moves for this reason. */
POLICY bool gate_is_asked(u32 reason, u64 max_idle_wait_ns)
{
	return max_idle_wait_ns == IDLE_WAIT_NEVER || (reason != MOVE_FORK && reason != MOVE_EXEC);
}

/* The percentage above which the gate opens. */
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
 * Whether scores can change an answer: in the warm zone except at its upper border. There no score
 * lifts a utilisation over the limit, and none pushes a higher one below.
 */
POLICY bool zone_has_scores(const struct zone_knobs *zone)
{
	return zone->weigh && (zone->level == ZONE_WARM_LOW || zone->level == ZONE_WARM_MID);
}

/* Whether the gate needs the task's own share. */
POLICY bool gate_has_scores(const struct gate_params *params)
{
	return params->kind == GATE_ZONE && zone_has_scores(params->zone);
}

/* Whether the gate needs the mean of the CPUs. */
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

/* The mean of no CPUs is 0: all idle. */
POLICY u32 gate_calc_mean(const struct gate_mean *mean)
{
	return mean->cpus ? mean->utilisation / mean->cpus : 0;
}

/*
 * Since when a task's share of run time has been above the limit; 0: it is not. Called when the task
 * stops, because then its share is at its highest, and at each tick until it is above: a task that
 * never stops is above, too.
 */
POLICY u64 gate_update_above_since(const struct gate_params *params, u64 since_ns, u32 share, u64 now)
{
	if (params->kind == GATE_ALWAYS || !zone_is_above(params->zone, share))
		return 0;
	return since_ns ? since_ns : now;
}

/*
 * Whether a task that did not run for so long is above the limit no more: even a whole share has
 * fallen to it.
 */
POLICY bool gate_ends_above(const struct gate_params *params, u64 rest_ns)
{
	return params->kind == GATE_ALWAYS ||
	       !zone_is_above(params->zone, share_of(decay_share(FULL << 10, rest_ns, false)));
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
	/* The task may have slept since it was above. */
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
