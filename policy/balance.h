/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What is load, which tasks move, and where to?
 *
 * Domains are nested: SMT siblings in a core, cores in a cache domain, cache
 * domains in a node, nodes by distance. A domain consists of groups. When a CPU
 * balances a domain, the core (bpf/keel) folds over the CPUs of each group
 * (`cpu_step`), compares the groups (`group_step`), and pulls from the busiest CPU
 * of the busiest group as much as `quota` says, the tasks of the best `task_score`
 * first. Where a waking task goes, `home` decides, one candidate after the other;
 * a new one descends into the least loaded group, domain by domain.
 *
 * `count`: CPUs are equal. This is the balancer of classic Linux as papers 002 and
 * 004 describe it (002, sections 1 and 2; kernel: kernel/sched/fair.c until 6.5):
 * load is the sum of weights; a CPU pulls from one whose load exceeds its own by a
 * quarter (an eighth where caches are shared, because a move there is cheap), half
 * the difference; an idle CPU pulls whenever somebody waits; tasks whose caches
 * have gone cold go first, and with them those that belong with what runs there.
 *
 * It departs from classic Linux where that keeps statistics of its own: group loads
 * are the sums at this moment, not averages over time; and an idle CPU looks from
 * the lowest domain up for *waiting* tasks, without estimating whether a search is
 * worth its time, because here it is skipped when nobody waits anywhere.
 *
 * Paper 002 asks the same questions with capabilities: all views carry them.
 */
#ifndef EVENKEEL_BALANCE_H
#define EVENKEEL_BALANCE_H

#include "views.h"

enum balance_kind {
	BALANCE_COUNT,
	BALANCE_KINDS,
};

struct balance_params {
	u32 kind;	/* enum balance_kind */
};

/* No CPU. */
#define NO_CPU (~0U)
/* A busy CPU pulls from one with this many percent of its own load or more. */
#define IMBALANCE_PCT 125
#define IMBALANCE_SHARED_PCT 112
/* Who ran less than this ago still has its data in the caches (sysctl_sched_migration_cost). */
#define CACHE_HOT_NS 500000ULL
/* Loads are far smaller (1024 CPUs, each a million nice-0 tasks); larger ones count as this. */
#define MAX_LOAD (1ULL << 55)

/* A group of CPUs, summed up. Start from GROUP_NONE. */
struct group_view {
	u64 load;
	u32 cpus;
	u32 runnable;
	u32 waiting;
	u32 first;		/* the first of its CPUs, or NO_CPU */
	u32 busiest;		/* of its CPUs with somebody waiting, or NO_CPU */
	u32 busiest_waiting;
	u64 busiest_load;
};

#define GROUP_NONE ((struct group_view){ .first = NO_CPU, .busiest = NO_CPU })

/* Adds a CPU to its group. */
POLICY void balance_cpu_step(const struct balance_params *params, struct group_view *group,
			     const struct cpu_view *cpu)
{
	(void)params;
	group->load += min_u64(cpu->load, MAX_LOAD >> 10);
	group->cpus++;
	group->runnable += cpu->runnable;
	group->waiting += cpu->waiting;
	if (group->first == NO_CPU)
		group->first = cpu->cpu;
	if (cpu->waiting && (group->busiest == NO_CPU || cpu->load > group->busiest_load)) {
		group->busiest = cpu->cpu;
		group->busiest_load = cpu->load;
		group->busiest_waiting = cpu->waiting;
	}
}

/* Whether a carries more load than b, by their CPUs. An empty group carries none. */
POLICY bool balance_heavier(const struct balance_params *params, const struct group_view *a,
			    const struct group_view *b)
{
	(void)params;
	if (!a->cpus || !b->cpus)
		return a->cpus && !b->cpus;
	/* Loads are bounded and groups have at most a few thousand CPUs: no overflow. */
	return (min_u64(a->load, MAX_LOAD) >> 10) * b->cpus >
	       (min_u64(b->load, MAX_LOAD) >> 10) * a->cpus;
}

/*
 * How much load the CPU `own` pulls from the busiest CPU of a group; 0: none.
 * `shared`: both share a cache.
 */
POLICY u64 balance_quota(const struct balance_params *params, const struct group_view *busiest,
			 const struct cpu_view *own, bool shared)
{
	u64 pct = shared ? IMBALANCE_SHARED_PCT : IMBALANCE_PCT;
	u64 theirs = min_u64(busiest->busiest_load, MAX_LOAD);
	u64 ours = min_u64(own->load, MAX_LOAD);

	(void)params;
	if (busiest->busiest == NO_CPU || busiest->busiest == own->cpu)
		return 0;
	/* Somebody waits there although this CPU has nothing to do: at least the one. */
	if (own->idle)
		return theirs > ours + 1 ? (theirs - ours) / 2 : 1;
	if (theirs * 100 <= ours * pct)
		return 0;
	return (theirs - ours) / 2;
}

/*
 * Whether a task of this weight fits into what is left of a quota. The first one
 * (nothing is `taken` yet) may be twice as large, so that 3 tasks on 2 CPUs take turns.
 */
POLICY bool balance_fits(const struct balance_params *params, u64 quota, u64 weight, bool taken)
{
	(void)params;
	return quota && (taken ? weight : weight / 2) <= quota;
}

enum task_score {
	SCORE_STAY,		/* not to be moved */
	SCORE_SECOND,		/* if the quota is not reached otherwise */
	SCORE_FIRST,
};

/* Which waiting tasks to take first. */
POLICY enum task_score balance_task_score(const struct balance_params *params,
					  const struct task_view *task)
{
	(void)params;
	if (task->affinity)
		return SCORE_FIRST;
	return task->rested_ns < CACHE_HOT_NS ? SCORE_SECOND : SCORE_FIRST;
}

/*
 * Whether a waking task is better off on `candidate` than on `best`, the better one
 * so far (at first the CPU that it ran on last). An idle CPU is; of two equal ones
 * the nearer; a busy one must have less to do by a quarter.
 */
POLICY bool balance_home(const struct balance_params *params, const struct cpu_view *best,
			 const struct cpu_view *candidate)
{
	(void)params;
	if (candidate->idle != best->idle)
		return candidate->idle;
	if (candidate->idle)
		return candidate->affinity > best->affinity ||
		       (candidate->affinity == best->affinity &&
			candidate->distance < best->distance);
	return min_u64(candidate->load, MAX_LOAD) * IMBALANCE_PCT <
	       min_u64(best->load, MAX_LOAD) * 100;
}

#endif
