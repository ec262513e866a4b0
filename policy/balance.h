/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What is load, which tasks move, and where to?
 *
 * Domains are nested: SMT siblings in a core, cores in an LLC, LLCs in a node, nodes by distance. A
 * domain consists of groups. When a CPU balances a domain, the keel (bpf/keel) folds over the CPUs
 * of each group (balance_add_cpu), compares the groups (balance_is_busier), and pulls from the
 * busiest CPU of the busiest group as much as balance_pull_quota says, the tasks of the best
 * balance_score_task first. A waking task goes to the best of a few candidates
 * (balance_is_better_for_waking). A new task descends into the least loaded group, domain by
 * domain.
 *
 * `count`: CPUs are equal. This is the balancer of classic Linux as papers 002 and 004 describe it
 * (002, sections 1 and 2; kernel: kernel/sched/fair.c until 6.5). Load is the sum of weights. A
 * busy CPU pulls half the difference from a CPU with a load that exceeds its own by a quarter, or
 * by an eighth where they share caches, because a move is cheap there. An idle CPU pulls one task
 * whenever any task waits, as preemptible kernels do. Siblings of what runs there go first, then
 * tasks with cold caches.
 *
 * `count` departs from classic Linux where that keeps statistics: group loads are the sums at this
 * moment, not averages over time; and an idle CPU looks from the lowest domain up for *waiting*
 * tasks without an estimate whether the search is worth its time, because here it is skipped when
 * no task waits anywhere.
 *
 * `capability`: paper 002, section 4.1 and Algorithm 1, for any capabilities rather than two kinds
 * of cores:
 *
 * - Load is load per capability: the load of a core twice as fast counts half (lines 10, 15, 40).
 * - A pull leaves both CPUs with the same load per capability, so that in the paper's example a
 *   normal core takes 2 of 8 and not 4 (4.1.1).
 * - CPU-bound tasks go to faster CPUs first, I/O-bound tasks to slower ones (4.1.2).
 * - An idle CPU pulls none while there are no more tasks than CPUs faster than it (4.1.3, lines 2,
 *   3).
 * - New and waking tasks go where one task more makes the least load per capability, so to an idle
 *   fast CPU before an idle slow one.
 *
 * The paper leaves open where a new task goes and how strict line 40 is: PART_PLAIN places as
 * `count` does, PART_BARE pulls at any difference. "All threads of a particular process are kept on
 * similar cores, speed cores if possible" (4.1.2 ii), but the paper does not say how: PART_SIMILAR
 * exchanges two tasks that each have a CPU for themselves, where that gives the program with more
 * of the faster CPUs still more of them. PART_ACTIVE is lines 24 and 35 of Algorithm 1: a task that
 * runs alone on a slow CPU leaves for an idle CPU on which it gets more. Without it only waiting
 * tasks migrate.
 *
 * Three parts are ours:
 *
 * - PART_HOME: a CPU far from a task's memory counts for less, in proportion to the distance that
 *   the firmware reports. New and waking tasks go where they get most, and tasks that come nearer
 *   to their memory are pulled first.
 * - PART_COST: a busy CPU does not pull a task that would get less there than its turns are worth
 *   where it waits. (An idle CPU does: its time is lost otherwise, and another task's turns come
 *   sooner.)
 * - PART_TURNS: threads of one program that each have a CPU for themselves take turns on the faster
 *   ones, so that a barrier waits for the average and not for the slowest CPU.
 *
 * PART_ACTIVE and PART_TURNS together serve programs with barriers, and programs of more threads
 * than there are similar CPUs, as PART_SIMILAR serves the others (lab/sim/tests/turns.rs).
 *
 * `capability` departs from the paper where it leaves more than one reading: the threshold of a
 * quarter (an eighth) stays, where line 40 has a bare "<". Rules that make it Algorithm 1 to the
 * letter are the laboratory's (balance_paper.h).
 */
#ifndef EVENKEEL_BALANCE_H
#define EVENKEEL_BALANCE_H

#include "views.h"
#include "balance_paper.h"

enum balance_kind {
	BALANCE_COUNT,
	BALANCE_CAPABILITY,
	BALANCE_KINDS,
};

/* What `capability` does in addition or differently. */
enum balance_part {
	PART_HOME = 1,	/* the distance of a task's memory counts */
	PART_COST = 2,	/* no pull that costs a task more than it gains */
	PART_PLAIN = 4,	/* new and waking tasks are placed as if CPUs were equal */
	PART_BARE = 8,	/* a busy CPU pulls at any difference of loads */
	PART_ACTIVE = 16,	/* a task that runs alone leaves for a faster idle CPU */
	PART_TURNS = 32,	/* threads of a program that run alone take turns on unequal CPUs */
	PART_SIMILAR = 64,	/* threads of two programs are exchanged until each has similar CPUs */
};
/* The parts that exchange two running tasks. */
#define PARTS_CHANGE (PART_TURNS | PART_SIMILAR)

struct balance_params {
	u32 kind;	/* enum balance_kind */
	u32 parts;	/* of enum balance_part, in the laboratory also of enum paper_rule */
	u32 faster;	/* how many CPUs have more capability than the balancing one */
	u32 tasks;	/* how many run or wait, on all CPUs */
};

/* No CPU. */
#define NO_CPU (~0U)
/* A busy CPU pulls from a CPU with a load of more than this percentage of its own. */
#define IMBALANCE_PCT 125
#define IMBALANCE_SHARED_PCT 112
/* A task that ran less than this ago is cache-hot (sysctl_sched_migration_cost). */
#define CACHE_HOT_NS 500000ULL
/* A running task migrates only to a CPU faster by a quarter: that pays for the caches it leaves. */
#define ACTIVE_PCT 125
/*
 * How long a turn is where no other task wants the CPU. Far longer than a move, far shorter than
 * most phases.
 */
#define TURN_NS 16000000ULL
/*
 * Loads above this count as this. Real ones are far smaller (1024 CPUs, each a million nice-0
 * tasks).
 */
#define MAX_LOAD (1ULL << 55)
/* The same for one CPU. */
#define MAX_CPU_LOAD (MAX_LOAD >> 10)
/* A task is CPU-bound when it ran for more than this share of the time that it did not wait. */
#define BOUND_PCT 60U
/* It stays CPU-bound while the share is more than this. */
#define UNBOUND_PCT 40U

/* The sum of a group of CPUs. Start from GROUP_NONE. */
struct group_view {
	u64 load;
	u32 cpus;
	u32 runnable;
	u32 waiting;
	u32 capability;		/* the sum */
	u32 first;		/* the first of its CPUs, or NO_CPU */
	u32 busiest;		/* the busiest of its CPUs where a task waits, or NO_CPU */
	u32 busiest_waiting;
	u32 busiest_capability;
	u64 busiest_load;
};

#define GROUP_NONE ((struct group_view){ .first = NO_CPU, .busiest = NO_CPU })

/* A CPU's capability as the policy counts it. */
POLICY u32 balance_capability(const struct balance_params *params, u32 capability)
{
	if (params->kind == BALANCE_COUNT || capability > FULL)
		return FULL;
	return capability ? capability : 1;
}

/* Whether the policy has this part. */
POLICY bool balance_has_part(const struct balance_params *params, enum balance_part part)
{
	return params->kind != BALANCE_COUNT && params->parts & part;
}

/* What a task gets of a CPU that it has for itself, with or without its memory's distance. */
POLICY u32 balance_pace(const struct balance_params *params, const struct cpu_view *cpu, bool far)
{
	u32 pace = balance_capability(params, cpu->capability);

	if (!far || cpu->far <= NEAR)
		return pace;
	pace = pace * NEAR / cpu->far;
	return pace ? pace : 1;
}

/* The parameters for the placement of new and waking tasks. */
POLICY struct balance_params balance_placing_params(const struct balance_params *params)
{
	struct balance_params placing = *params;

	if (balance_has_part(params, PART_PLAIN))
		placing.kind = BALANCE_COUNT;
	return placing;
}

/* Whether load a on capability a is more, per capability, than load b on capability b. */
POLICY bool balance_is_denser(u64 load_a, u32 capability_a, u64 load_b, u32 capability_b)
{
	return min_u64(load_a, MAX_CPU_LOAD) * capability_b >
	       min_u64(load_b, MAX_CPU_LOAD) * capability_a;
}

/* Adds a CPU to its group. */
POLICY void balance_add_cpu(const struct balance_params *params, struct group_view *group,
			    const struct cpu_view *cpu)
{
	u32 capability = balance_capability(params, cpu->capability);

	group->load += min_u64(cpu->load, MAX_CPU_LOAD);
	group->capability += capability;
	group->cpus++;
	group->runnable += cpu->runnable;
	group->waiting += cpu->waiting;
	if (group->first == NO_CPU)
		group->first = cpu->cpu;
	if (cpu->waiting &&
	    (group->busiest == NO_CPU || balance_is_denser(cpu->load, capability, group->busiest_load,
							   group->busiest_capability))) {
		group->busiest = cpu->cpu;
		group->busiest_capability = capability;
		group->busiest_load = cpu->load;
		group->busiest_waiting = cpu->waiting;
	}
}

/* Whether a carries more load per capability than b, with so much more load on each. */
POLICY bool balance_is_denser_group(const struct group_view *a, const struct group_view *b, u64 more)
{
	if (!a->cpus || !b->cpus)
		return a->cpus && !b->cpus;
	/* Loads are bounded, and groups have at most 1024 CPUs of at most FULL: no overflow. */
	return (min_u64(a->load + more, MAX_LOAD - 1) >> 11) * b->capability >
	       (min_u64(b->load + more, MAX_LOAD - 1) >> 11) * a->capability;
}

/*
 * Whether a carries more load per capability than b, for a task that is to be placed, which counts on
 * both. An empty group carries none. Capabilities matter while all CPUs are idle, too: then the
 * heavier group is the one on which one more task would get less.
 */
POLICY bool balance_is_heavier(const struct balance_params *params, const struct group_view *a,
			       const struct group_view *b)
{
	return balance_is_denser_group(a, b, params->kind == BALANCE_COUNT ? 0 : NICE_0_WEIGHT);
}

/*
 * The same for a pull: by the load that is there, without a task that arrives (lines 10, 15 and 40).
 */
POLICY bool balance_is_busier(const struct group_view *a, const struct group_view *b)
{
	return balance_is_denser_group(a, b, 0);
}

/*
 * Whether an idle CPU leaves waiting tasks where they are: the faster CPUs have room for all of
 * them (paper 002, 4.1.3; Algorithm 1, lines 2 and 3).
 */
POLICY bool balance_should_abstain(const struct balance_params *params)
{
	return params->kind == BALANCE_CAPABILITY && params->faster && params->tasks <= params->faster;
}

/*
 * How much load the CPU `own` pulls from the busiest CPU of a group; 0: none. `shared`: both share
 * a cache.
 */
POLICY u64 balance_pull_quota(const struct balance_params *params, const struct group_view *busiest,
			      const struct cpu_view *own, bool shared)
{
	u64 own_capability = balance_capability(params, own->capability);
	u64 src_capability = busiest->busiest_capability;
	/* Each load is multiplied by the other CPU's capability. */
	u64 src_scaled = min_u64(busiest->busiest_load, MAX_CPU_LOAD) * own_capability;
	u64 own_scaled = min_u64(own->load, MAX_CPU_LOAD) * src_capability;
	u64 even;

	if (busiest->busiest == NO_CPU || busiest->busiest == own->cpu)
		return 0;
	even = src_scaled > own_scaled ?
	       (src_scaled - own_scaled) / (src_capability + own_capability) : 0;
	if (!own->idle) {
		u64 pct = shared ? IMBALANCE_SHARED_PCT : IMBALANCE_PCT;

		return balance_has_part(params, PART_BARE) || src_scaled * 100 > own_scaled * pct ?
		       even : 0;
	}
	/*
	 * A task waits there although this CPU is idle: pull at least that one, unless its turns
	 * there are worth more.
	 */
	return even || own_capability < src_capability ? even : 1;
}

/*
 * Whether the balancing CPU pulls all tasks that wait on a CPU of `src_capability` (lines 22 to 24):
 * that one is slower, and there are no more tasks than speed cores. `fast` of all CPUs have at least
 * its own capability.
 */
POLICY bool balance_takes_all(const struct balance_params *params, u32 fast, u32 src_capability,
			      u32 own_capability)
{
	return paper_has_rule(params->parts, RULE_RATIO) && params->kind == BALANCE_CAPABILITY &&
	       balance_capability(params, own_capability) > src_capability && params->tasks <= fast;
}

/*
 * Whether `candidate` rather than `best`, which comes before it, balances for their group (4.1.4,
 * lines 8 and 14): an idle CPU before a busy one, of idle ones the faster. The first CPU stays where
 * none is idle.
 */
POLICY bool balance_is_better_leader(const struct balance_params *params, const struct cpu_view *best,
				     const struct cpu_view *candidate)
{
	if (candidate->idle != best->idle)
		return candidate->idle;
	return candidate->idle && balance_capability(params, candidate->capability) >
				  balance_capability(params, best->capability);
}

/*
 * Whether a task of this weight fits into what is left of a quota. The first task (nothing is
 * `taken` yet) may be twice as large, so that 3 tasks on 2 CPUs take turns.
 */
POLICY bool balance_may_take(const struct balance_params *params, u64 quota, u64 weight, bool taken)
{
	(void)params;
	return quota && (taken ? weight : weight / 2) <= quota;
}

/*
 * What is left of a quota after a task of this weight. An idle CPU takes one task, and looks again
 * when that sleeps: a second one would only wait there, and its next migration would cost more.
 */
POLICY u64 balance_reduce_quota(const struct balance_params *params, u64 quota, u64 weight, bool idle)
{
	bool is_one = idle && !paper_has_rule(params->parts, RULE_SEVERAL);

	return is_one || quota < weight ? 0 : quota - weight;
}

enum task_score {
	SCORE_STAY,		/* does not move */
	SCORE_SECOND,		/* moves if the others do not fill the quota */
	SCORE_FIRST,
	SCORE_SIBLING,		/* a sibling of what the pulling CPU's group runs */
};

/*
 * A task's share of run time in the time that it does not wait, over about a second: the mean of
 * the first BOUND_NS (`known_ns` of it so far), then a decayed share. Returns `value` after `ns`
 * more in which the task ran or slept; both in the unit of decay_share().
 */
#define BOUND_SHIFT 5
#define BOUND_NS (1ULL << (HALF_LIFE_SHIFT + BOUND_SHIFT))
POLICY u32 balance_update_bound_share(u32 value, u64 known_ns, u64 ns, bool ran)
{
	u64 full = (u64)FULL << 10;
	u64 known = min_u64(known_ns, BOUND_NS), first = min_u64(ns, BOUND_NS - known);
	u64 mean = min_u64(value, full);

	if (first)
		mean = (mean * known + (ran ? full * first : 0)) / (known + first);
	return decay_share((u32)mean, (ns - first) >> BOUND_SHIFT, ran);
}

/*
 * Whether a task is CPU-bound, by its share of run time in the time that it does not wait. With
 * hysteresis: `bound` is the answer so far.
 */
POLICY bool balance_is_cpu_bound(u32 share, bool bound)
{
	return share * 100 > (bound ? UNBOUND_PCT : BOUND_PCT) * FULL;
}

/* Which waiting tasks to pull first, from a CPU of `src_capability` to one of `dst_capability`. */
POLICY enum task_score balance_score_task(const struct balance_params *params,
					  const struct task_view *task, u32 src_capability,
					  u32 dst_capability)
{
	if (task->sibling)
		return SCORE_SIBLING;
	if (balance_has_part(params, PART_HOME) && task->far_src != task->far_dst)
		return task->far_dst < task->far_src ? SCORE_FIRST : SCORE_SECOND;
	if (params->kind == BALANCE_CAPABILITY && src_capability != dst_capability)
		return task->bound == (dst_capability > src_capability) ? SCORE_FIRST : SCORE_SECOND;
	return task->rested_ns < CACHE_HOT_NS ? SCORE_SECOND : SCORE_FIRST;
}

/*
 * Whether a task of this weight that waits on `src` gets at least as much on `dst` as its turns on
 * `src` are worth.
 */
POLICY bool balance_should_pull(const struct balance_params *params, const struct cpu_view *src,
				const struct cpu_view *dst, u64 weight)
{
	if (!balance_has_part(params, PART_COST))
		return true;
	return min_u64(src->load, MAX_CPU_LOAD) * balance_pace(params, dst, true) >=
	       min_u64(dst->load + weight, MAX_CPU_LOAD) * balance_pace(params, src, true);
}

/*
 * Whether a new task is better off on `candidate` than on `best`. An idle CPU wins, because it
 * would pull the task anyway. Of two idle CPUs, or two busy ones, the one that gives the task more wins;
 * in a tie `best` stays.
 */
POLICY bool balance_is_better_for_new(const struct balance_params *params, const struct cpu_view *best,
				      const struct cpu_view *candidate)
{
	bool far = balance_has_part(params, PART_HOME);
	u64 best_scaled = min_u64(best->load + NICE_0_WEIGHT, MAX_CPU_LOAD) *
		    balance_pace(params, candidate, far);
	u64 candidate_scaled = min_u64(candidate->load + NICE_0_WEIGHT, MAX_CPU_LOAD) *
		   balance_pace(params, best, far);

	if (candidate->idle != best->idle)
		return candidate->idle;
	return candidate_scaled < best_scaled;
}

/*
 * Whether a waking task is better off on `candidate` than on `best`, the best CPU so far (at first
 * the one that it ran on last). An idle CPU wins unless it is slower than the task's turns on the
 * busy one; of two idle ones the faster, then the nearer; a busy one must have less load by a
 * quarter.
 */
POLICY bool balance_is_better_for_waking(const struct balance_params *params,
					 const struct cpu_view *best,
					 const struct cpu_view *candidate)
{
	u64 more = params->kind == BALANCE_COUNT ? 0 : NICE_0_WEIGHT;
	bool far = balance_has_part(params, PART_HOME);
	u64 best_scaled = min_u64(best->load + more, MAX_CPU_LOAD) *
			  balance_pace(params, candidate, far);
	u64 candidate_scaled = min_u64(candidate->load + more, MAX_CPU_LOAD) *
			       balance_pace(params, best, far);

	if (candidate->idle != best->idle) {
		if (params->kind == BALANCE_COUNT)
			return candidate->idle;
		return candidate->idle ? candidate_scaled <= best_scaled :
					 candidate_scaled < best_scaled;
	}
	if (!candidate->idle)
		return candidate_scaled * IMBALANCE_PCT < best_scaled * 100;
	if (params->kind == BALANCE_CAPABILITY && candidate_scaled != best_scaled)
		return candidate_scaled < best_scaled;
	return candidate->sibling > best->sibling ||
	       (candidate->sibling == best->sibling && candidate->distance < best->distance);
}

/*
 * Whether a task that runs alone is better off on `candidate` than on `best`, the best CPU so far
 * (at first the one that it runs on, the only one that is not idle).
 */
POLICY bool balance_is_better_for_running(const struct balance_params *params,
					  const struct cpu_view *best,
					  const struct cpu_view *candidate)
{
	u64 best_pace = balance_pace(params, best, true);
	u64 candidate_pace = balance_pace(params, candidate, true);

	return candidate->idle && candidate_pace * 100 > best_pace * (best->idle ? 100 : ACTIVE_PCT);
}

/* Whether a CPU is so much faster that a running task migrates for it. */
POLICY bool balance_is_faster(const struct balance_params *params, const struct cpu_view *fast,
			      const struct cpu_view *slow)
{
	u64 slow_capability = balance_capability(params, slow->capability);
	u64 fast_capability = balance_capability(params, fast->capability);

	return fast_capability * 100 > slow_capability * ACTIVE_PCT;
}

/* Whether the tasks that run alone on these two CPUs are exchanged, to take turns. */
POLICY bool balance_should_take_turns(const struct balance_params *params, const struct cpu_view *a,
				      const struct cpu_view *b)
{
	return balance_has_part(params, PART_TURNS) && a->runnable == 1 && b->runnable == 1 &&
	       (balance_is_faster(params, b, a) || balance_is_faster(params, a, b));
}

/*
 * Whether the task that runs alone on `own` is exchanged with a thread of another program that runs
 * alone on `fast`. Of the CPUs that are faster than `own`, the task's program has `ours` and the other
 * program has `theirs`. No ping-pong: the sum of the squares of such numbers grows with each exchange.
 * Where two programs have equally many, `first` is true for one of them only.
 */
POLICY bool balance_should_gather(const struct balance_params *params, const struct cpu_view *own,
				  const struct cpu_view *fast, u32 ours, u32 theirs, bool first)
{
	return balance_has_part(params, PART_SIMILAR) && own->runnable == 1 && fast->runnable == 1 &&
	       balance_is_faster(params, fast, own) && (ours > theirs || (ours == theirs && first));
}

/*
 * How long a turn is on a CPU to which `unlike` of `cpus` are unequal (faster ones, or slower ones
 * for the fastest). Where many tasks want the places of few, a turn is longer by that ratio.
 */
POLICY u64 balance_turn_ns(const struct balance_params *params, u32 unlike, u32 cpus)
{
	u32 alike = cpus > unlike ? cpus - unlike : 0;

	(void)params;
	return unlike && alike > unlike ? TURN_NS * (alike / unlike) : TURN_NS;
}

#endif
