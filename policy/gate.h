/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * When may load be balanced?
 *
 * A migration costs the time of the search, cold caches, and latency of other tasks. Before an optional
 * move the keel asks the gate about the CPU that the task would leave, and the gate may refuse. The keel
 * does not ask where liveness needs the move: for a task that lost its CPU to a real-time task or to
 * hotplug, a task with a new affinity mask, or a task that waited too long (bpf/keel/ask_gate.h,
 * migrate.h). So no gate can starve a task.
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
 * warm zone it is shifted by the task's score (3.1.3, figure 5). For a task that used its CPU above the
 * limit for 5 s, 5 points are taken off (the paper's prize): it keeps its CPU. For a task that was above
 * it for a shorter time, 5 points are added (a punishment): it migrates more easily. A utilisation
 * between 30 and 80 % stays there whatever the score is; outside, the score does not count.
 *
 * Where the utilisation is not above the limit of the level, that is the quiet zone, in which the paper
 * lets no task migrate.
 *
 * So no score changes an answer at the high spot: what is at most 80 % stays at most 80 %, and the
 * limit is 80 %. Levels 3 and 4 answer alike; the paper says as much ("the task of high spot cannot
 * go up any more").
 *
 * The design, in three points:
 *
 * 1. The answer is a property of a CPU. Except where a score matters, it is the same for all tasks of
 *    a CPU. So it is computed at the CPU's tick and when the CPU becomes idle or busy
 *    (gate_judge_cpu()), and a question only reads it. Only where the points of a task could change
 *    the answer is the task itself judged (gate_judge_task()).
 *
 * 2. The worst case. "It controls the worst-case scenario: one CPU load exceeds 100 % even though
 *    other CPUs are not fully utilized" (section 3). By a CPU's own utilisation each level opens there.
 *    By the mean it may not, so a CPU that is busy all the time while a task waits opens on its own
 *    (gate_is_crowded()).
 *
 * 3. Two ways to use the answer. `--strict` is the paper's: in the quiet zone no task migrates, not even
 *    a new one or one that waits for long while a CPU idles, and a CPU that idles or is about to idle
 *    does not run load_balance() at all ("when a task in idle, newidle, or noactive state is
 *    rescheduled, we can make the case that does not execute load_balance() routine"), except in the
 *    worst case. Busy CPUs still balance where the answer allows it.
 *
 *    The default weighs wait against refill. A refused move saves what it would cost to refill
 *    caches, at most about 0.6 ms on the machine of docs/results/refill.md; a task that is kept from an
 *    idle CPU may wait for many ms. So
 *
 *    - a waking task takes an idle CPU of its own last-level cache, and a CPU of that cache that becomes
 *      idle pulls a task that waits there: the gate is not asked;
 *    - to another cache a waking task moves only if staying would cost more than the refill times the
 *      patience of the level. Where the utilisation is above the limit, half of that patience counts
 *      (gate_should_stay()). Staying costs the predicted wait: the bursts of the tasks that run or wait
 *      before it, spread over the CPUs of the cache. A task that would preempt at once does not wait;
 *      then staying costs at most its own burst, for which the preempted task waits;
 *    - a task that has waited for the refill times the patience goes to an idle CPU of any cache
 *      (gate_max_wait()). If a wait ends once it has cost as much as the move would, both together cost
 *      at most twice the cheaper of the two (the ski rental problem). The tick of the CPU where the task
 *      waits finds it;
 *    - new tasks and programs are placed as with `always`: they leave no warm caches and no queue
 *      behind, and in the quiet zone they stay where they are placed;
 *    - busy CPUs balance where the answer allows it, and idle ones pull from other caches in the worst
 *      case.
 *
 * `zone` departs from the paper in two more places:
 *
 * - The paper reads its 5 s from the task's entry in /proc. Here, a share that halves every 33.6
 *   ms stays above the limit for as long, also while the task does not stop. A rest in which a
 *   whole share would fall to the limit ends that (gate_ends_above()).
 * - The times of prize and punishment are two knobs, as in the paper; a task between both gets no
 *   points.
 *
 * A waking task that the default gate keeps from an idle CPU preempts on its own CPU as soon as the
 * running task is behind it (order_should_preempt_kept()), so that tasks that sleep most do not pay for
 * saved moves.
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
	u32 source_waits;	/* 1: a task waits there */
	u32 mean_utilisation;	/* of the CPUs that count, if gate_is_by_mean(), 0..=FULL */
	/* The task, if gate_has_scores(): */
	u32 task_share;		/* its share of run time, 0..=FULL */
	u64 task_above_ns;	/* how long that share has been above the limit; 0: it is not */
};

/* The answer and its reason in one code; codes from GATE_REFUSALS on are refusals. */
enum gate_verdict {
	GATE_OPEN,		/* always */
	GATE_BUSY,		/* the utilisation is above the limit */
	GATE_PUNISHED,		/* the utilisation is not above the limit, but with the points it is */
	GATE_CROWDED,	/* the mean is not above the limit, but the source CPU's load is above 100 % */
	GATE_WORTH,	/* the utilisation is not above the limit, but to stay would cost more than to go */
	GATE_REFUSALS,
	GATE_QUIET = GATE_REFUSALS,	/* the utilisation is not above the limit */
	GATE_PRIZED,		/* the utilisation is above the limit, but with the points it is not */
	GATE_CHEAP,	/* the utilisation is above the limit, but to stay costs less than to go */
	GATE_VERDICTS,
};

/* No verdict yet: the points of the task decide. */
#define GATE_BY_TASK GATE_VERDICTS

/* From this utilisation on a CPU counts as busy all the time: the share comes near to 100 % slowly. */
#define CROWDED_PCT 99U

/* What waits for a waking task in the cache where it ran, if no CPU idles there. */
struct gate_stay {
	u64 burst_ns;		/* how long the task runs at a time */
	u64 cpu_burst_ns;	/* how long tasks on its CPU run at a time */
	u32 waiters;		/* CPUs of the cache where tasks wait */
	u32 cpus;		/* CPUs of the cache */
	u32 preempts;		/* 1: the task would preempt the running one at once */
	u32 open;		/* 1: the utilisation of its CPU is above the limit */
};

/*
 * What it costs to refill a core's own caches after a migration, by the model that is fitted to
 * measurements (docs/results/refill.md): for the CPU, for each KiB, and for how many KiB at most.
 */
#define REFILL_CPU_NS 1248ULL
#define REFILL_KIB_NS 290ULL
#define REFILL_MAX_KIB 2048ULL

/* The sum of all CPUs' utilisation. Start from zeros. */
struct gate_mean {
	u32 utilisation;
	u32 cpus;
};

/* The `max_idle_wait_ns` of a strict gate: a task may wait for ever. */
#define IDLE_WAIT_NEVER (~0ULL)

/*
 * Compaction (`--compact`): while the machine as a whole is in the cold zone, the work gathers on few
 * CPUs, so that the others idle for long at a time and sleep deeply. As many are enough as the work
 * keeps busy for half of the time, and one more, since bursts overlap. Waking and new tasks go to the
 * first CPU that idles, in the order of the caches; so no task waits while any CPU idles, and the CPUs
 * at the end of the order are used only while all before them are busy.
 */
#define COMPACT_PCT 50U

/* How many CPUs of `online` are enough, by the mean utilisation of all; all of them: no compaction. */
POLICY u32 gate_enough_cpus(u32 mean_utilisation, u32 online)
{
	u64 enough = (u64)online * mean_utilisation * 100 / (COMPACT_PCT * FULL) + 2;

	if ((u64)mean_utilisation * 100 > WARM_MIN_PCT * FULL || enough > online)
		return online;
	return enough;
}

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
 * stops, because then its share is at its highest, and at each tick until the share is above: so a
 * task that never stops is noticed, too.
 */
POLICY u64 gate_update_above_since(const struct gate_params *params, u64 since_ns, u32 share, u64 now)
{
	if (params->kind == GATE_ALWAYS || !zone_is_above(params->zone, share))
		return 0;
	return since_ns ? since_ns : now;
}

/* Whether a rest ends the time above the limit: even a whole share would fall to the limit in it. */
POLICY bool gate_ends_above(const struct gate_params *params, u64 rest_ns)
{
	return params->kind == GATE_ALWAYS ||
	       !zone_is_above(params->zone, share_of(decay_share(FULL << 10, rest_ns, false)));
}

/* The utilisation that is compared with the limit, in percent times FULL. */
POLICY u64 zone_calc_points(const struct zone_knobs *zone, const struct gate_view *view)
{
	return (u64)(zone->use_mean ? view->mean_utilisation : view->source_utilisation) * 100;
}

/*
 * The worst case: the load of the source CPU is above 100 %. The paper also asks that other CPUs are not
 * fully utilised. That need not be checked: if all are, no CPU has room for a task of this one.
 */
POLICY bool gate_is_crowded(const struct gate_view *view)
{
	return view->source_waits && view->source_utilisation * 100ULL >= CROWDED_PCT * FULL;
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

/* The verdict about one task, where its points may matter. */
POLICY enum gate_verdict gate_judge_task(const struct gate_params *params, const struct gate_view *view)
{
	const struct zone_knobs *zone = params->zone;
	u64 points, shifted, limit;

	if (params->kind == GATE_ALWAYS)
		return GATE_OPEN;
	limit = zone_limit_pct(zone->level) * FULL;
	points = zone_calc_points(zone, view);
	shifted = zone_shift_by_score(zone, points, view);
	if (shifted > limit)
		return points > limit ? GATE_BUSY : GATE_PUNISHED;
	if (gate_is_crowded(view))
		return GATE_CROWDED;
	return points > limit ? GATE_PRIZED : GATE_QUIET;
}

/*
 * The verdict about all tasks of a CPU, as of its last tick; GATE_BY_TASK: it depends on the task. The
 * view need not say anything of a task.
 */
POLICY u32 gate_judge_cpu(const struct gate_params *params, const struct gate_view *view)
{
	const struct zone_knobs *zone = params->zone;
	u64 points, limit, lowest = WARM_MIN_PCT * FULL, highest = WARM_MAX_PCT * FULL, prize, punish;

	if (params->kind == GATE_ALWAYS)
		return GATE_OPEN;
	limit = zone_limit_pct(zone->level) * FULL;
	points = zone_calc_points(zone, view);
	if (points <= limit && gate_is_crowded(view))
		return GATE_CROWDED;
	if (!zone_has_scores(zone) || points < lowest || points > highest)
		return points > limit ? GATE_BUSY : GATE_QUIET;
	prize = (u64)zone->prize_score_pct * FULL;
	punish = (u64)zone->punish_score_pct * FULL;
	if (points > limit)
		return points - min_u64(prize, points - lowest) > limit || gate_is_crowded(view) ?
			       GATE_BUSY : GATE_BY_TASK;
	return min_u64(points + punish, highest) > limit ? GATE_BY_TASK : GATE_QUIET;
}

/* How many times the cost of refilling caches a wait may cost: the later a level opens, the more. */
POLICY u32 zone_get_patience(u32 level)
{
	if (level == ZONE_WARM_HIGH || level == ZONE_HOT)
		return 4;
	return level == ZONE_WARM_MID ? 2 : 1;
}

/*
 * What a task that runs for so long at a time would refill after it migrated to another cache. Its
 * working set is not known: it is at most what the caches hold, and what the task can walk over in a
 * burst, for which it needs about as long as the refill takes.
 */
POLICY u64 gate_predict_refill(u64 burst_ns)
{
	return REFILL_CPU_NS + min_u64(burst_ns, REFILL_MAX_KIB * REFILL_KIB_NS);
}

/* How long such a task waits before it goes to an idle CPU of any cache, in ns. */
POLICY u64 gate_max_wait(const struct gate_params *params, u64 burst_ns)
{
	return gate_predict_refill(burst_ns) * zone_get_patience(params->zone->level);
}

/* What it costs a waking task, or the one that it preempts, to stay in its cache, in ns. */
POLICY u64 gate_predict_wait(const struct gate_stay *stay)
{
	u64 wait_ns = stay->cpu_burst_ns * (stay->waiters + 1ULL) / (stay->cpus ? stay->cpus : 1);

	return stay->preempts ? min_u64(wait_ns, stay->burst_ns) : wait_ns;
}

/*
 * Whether a waking task stays in its cache although a CPU of another one idles. Above the limit of the
 * level there is half the patience.
 */
POLICY bool gate_should_stay(const struct gate_params *params, const struct gate_stay *stay)
{
	u64 most_ns = gate_max_wait(params, stay->burst_ns);

	return gate_predict_wait(stay) < (stay->open ? most_ns / 2 : most_ns);
}

/* The mean length of bursts after one more of `ns`: each counts for an eighth. 0: none so far. */
POLICY u64 gate_update_burst(u64 mean_ns, u64 ns)
{
	return mean_ns ? mean_ns - mean_ns / 8 + ns / 8 : ns;
}

#endif
