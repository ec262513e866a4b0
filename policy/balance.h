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
 * the difference; an idle CPU pulls whenever somebody waits, and one task, as preemptible
 * kernels do; tasks whose caches have gone cold go first, and before them those that
 * belong with what runs there.
 *
 * It departs from classic Linux where that keeps statistics of its own: group loads
 * are the sums at this moment, not averages over time; and an idle CPU looks from
 * the lowest domain up for *waiting* tasks, without estimating whether a search is
 * worth its time, because here it is skipped when nobody waits anywhere.
 *
 * `capability`: paper 002, section 4.1 and Algorithm 1, for any capabilities rather
 * than two kinds of cores. Load is load per capability: that of a core twice as fast
 * counts half (lines 10, 15). A pull leaves both CPUs with the same of it, so that
 * in the paper's example a normal core takes 2 of 8 and not 4 (4.1.1). Who goes to a
 * faster CPU is bound by the CPU, who goes to a slower one waits for I/O (4.1.2).
 * While there are no more tasks than CPUs faster than this one, it takes none when it
 * idles (4.1.3, lines 2 and 3). New and waking tasks go where one task more makes the
 * least load, so to an idle fast CPU before an idle slow one.
 *
 * The paper leaves open where a new task goes and how strict line 40 is: PART_PLAIN
 * places as `count` does, PART_BARE pulls at any difference. Two parts are ours.
 * PART_HOME: a task gets less of a CPU that is far from its memory, in proportion to
 * the distance as firmware has it; new and waking tasks go where they get most, and
 * who comes nearer to its memory is pulled first. PART_COST: a busy CPU pulls nobody
 * who would get less there than its turns are worth where it waits. (An idle one
 * does: its time is lost otherwise, and somebody's turns come sooner.)
 * PART_ACTIVE: who runs alone on a slow CPU leaves for one that idles and on which it
 * gets more (lines 24 and 35 of Algorithm 1); without it only tasks that wait are moved.
 * PART_TURNS: threads of one program that each have a CPU for themselves take turns on
 * the faster ones: who waits for all of them at a barrier waits for the average and not
 * the slowest.
 *
 * "All threads of a particular process are kept on similar cores, speed cores if possible"
 * (4.1.2 ii), and the paper does not say how: PART_SIMILAR has two who each have a CPU for
 * themselves change places where that leaves the program that has more on the faster ones
 * with more still. With PART_ACTIVE, PART_TURNS do the same for programs with barriers, and
 * for a program of more threads than there are similar CPUs (lab/sim/tests/turns.rs).
 *
 * It departs from the paper where that leaves more than one reading: the threshold
 * of a quarter (an eighth) stays, where line 40 has a bare "<".
 */
#ifndef EVENKEEL_BALANCE_H
#define EVENKEEL_BALANCE_H

#include "views.h"

enum balance_kind {
	BALANCE_COUNT,
	BALANCE_CAPABILITY,
	BALANCE_KINDS,
};

/* What `capability` does besides, or otherwise. */
enum balance_part {
	PART_HOME = 1,	/* memory's distance counts */
	PART_COST = 2,	/* no pull that costs a task more than it gains */
	PART_PLAIN = 4,	/* new and waking tasks are placed as if CPUs were equal */
	PART_BARE = 8,	/* a busy CPU pulls at any difference of loads */
	PART_ACTIVE = 16,	/* who runs alone leaves for a faster CPU that idles */
	PART_TURNS = 32,	/* threads of a program that run alone take turns on unequal CPUs */
	PART_SIMILAR = 64,	/* those of two programs change places until each has similar CPUs */
};
/* The parts by which who runs alone changes places. */
#define PARTS_CHANGE (PART_TURNS | PART_SIMILAR)

struct balance_params {
	u32 kind;	/* enum balance_kind */
	u32 parts;	/* of enum balance_part */
	u32 faster;	/* CPUs of more capability than the one that balances */
	u32 tasks;	/* that run or wait, on all CPUs */
};

/* No CPU. */
#define NO_CPU (~0U)
/* A busy CPU pulls from one with this many percent of its own load or more. */
#define IMBALANCE_PCT 125
#define IMBALANCE_SHARED_PCT 112
/* Who ran less than this ago still has its data in the caches (sysctl_sched_migration_cost). */
#define CACHE_HOT_NS 500000ULL
/* Who runs moves only where it is faster by a quarter: that pays for what it leaves in caches. */
#define ACTIVE_PCT 125
/* A turn on a CPU for which nobody queues. Far longer than a move, far shorter than most phases. */
#define TURN_NS 16000000ULL
/* Loads are far smaller (1024 CPUs, each a million nice-0 tasks); larger ones count as this. */
#define MAX_LOAD (1ULL << 55)
/* The same for one CPU. */
#define MAX_CPU_LOAD (MAX_LOAD >> 10)
/* Who has been running for more than this share of the time that it did not wait is bound by the CPU. */
#define BOUND_PCT 60U
/* And stays so until it is less than this. */
#define UNBOUND_PCT 40U

/* A group of CPUs, summed up. Start from GROUP_NONE. */
struct group_view {
	u64 load;
	u32 cpus;
	u32 runnable;
	u32 waiting;
	u32 capability;		/* summed */
	u32 first;		/* the first of its CPUs, or NO_CPU */
	u32 busiest;		/* of its CPUs with somebody waiting, or NO_CPU */
	u32 busiest_waiting;
	u32 busiest_capability;
	u64 busiest_load;
};

#define GROUP_NONE ((struct group_view){ .first = NO_CPU, .busiest = NO_CPU })

/* What a CPU can do, in the policy's eyes. */
POLICY u32 balance_capability(const struct balance_params *params, u32 capability)
{
	if (params->kind == BALANCE_COUNT || capability > FULL)
		return FULL;
	return capability ? capability : 1;
}

/* Whether the policy does this, too. */
POLICY bool balance_has_part(const struct balance_params *params, enum balance_part part)
{
	return params->kind != BALANCE_COUNT && params->parts & part;
}

/* What a task gets of a CPU that it has for itself, its memory's distance counted or not. */
POLICY u32 balance_pace(const struct balance_params *params, const struct cpu_view *cpu, bool far)
{
	u32 pace = balance_capability(params, cpu->capability);

	if (!far || cpu->far <= NEAR)
		return pace;
	pace = pace * NEAR / cpu->far;
	return pace ? pace : 1;
}

/* As what kind of CPUs new and waking tasks see them. */
POLICY struct balance_params balance_placing_params(const struct balance_params *params)
{
	struct balance_params placing = *params;

	if (balance_has_part(params, PART_PLAIN))
		placing.kind = BALANCE_COUNT;
	return placing;
}

/* Whether load a on capability a is more than load b on capability b. */
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

/*
 * Whether a carries more load than b, by what their CPUs can do. An empty group
 * carries none. Capabilities matter while nobody has anything to do, too: then the
 * group that would carry one task more worse is the heavier one.
 */
POLICY bool balance_is_heavier(const struct balance_params *params, const struct group_view *a,
			    const struct group_view *b)
{
	u64 more = params->kind == BALANCE_COUNT ? 0 : NICE_0_WEIGHT;

	if (!a->cpus || !b->cpus)
		return a->cpus && !b->cpus;
	/* Loads are bounded, and groups have at most 1024 CPUs of at most FULL: no overflow. */
	return (min_u64(a->load + more, MAX_LOAD - 1) >> 11) * b->capability >
	       (min_u64(b->load + more, MAX_LOAD - 1) >> 11) * a->capability;
}

/*
 * Whether an idle CPU leaves those who wait where they are: there is room for all on faster ones
 * (paper 002, 4.1.3; Algorithm 1, lines 2 and 3).
 */
POLICY bool balance_should_abstain(const struct balance_params *params)
{
	return params->kind == BALANCE_CAPABILITY && params->faster && params->tasks <= params->faster;
}

/*
 * How much load the CPU `own` pulls from the busiest CPU of a group; 0: none.
 * `shared`: both share a cache.
 */
POLICY u64 balance_pull_quota(const struct balance_params *params, const struct group_view *busiest,
			 const struct cpu_view *own, bool shared)
{
	u64 own_capability = balance_capability(params, own->capability), src_capability = busiest->busiest_capability;
	/* Each multiplied by what the other one can do. */
	u64 src_scaled = min_u64(busiest->busiest_load, MAX_CPU_LOAD) * own_capability;
	u64 own_scaled = min_u64(own->load, MAX_CPU_LOAD) * src_capability;
	u64 even;

	if (busiest->busiest == NO_CPU || busiest->busiest == own->cpu)
		return 0;
	even = src_scaled > own_scaled ? (src_scaled - own_scaled) / (src_capability + own_capability) : 0;
	if (!own->idle) {
		u64 pct = shared ? IMBALANCE_SHARED_PCT : IMBALANCE_PCT;

		return balance_has_part(params, PART_BARE) || src_scaled * 100 > own_scaled * pct ? even : 0;
	}
	/*
	 * Somebody waits there although this CPU has nothing to do: at least the one, unless
	 * its turns there are worth more.
	 */
	return even || own_capability < src_capability ? even : 1;
}

/*
 * Whether a task of this weight fits into what is left of a quota. The first one
 * (nothing is `taken` yet) may be twice as large, so that 3 tasks on 2 CPUs take turns.
 */
POLICY bool balance_may_take(const struct balance_params *params, u64 quota, u64 weight, bool taken)
{
	(void)params;
	return quota && (taken ? weight : weight / 2) <= quota;
}

/*
 * What is left of a quota after a task of this weight. An idle CPU takes one and looks again when that
 * sleeps: the next would only wait there, and has it dearer to come from another CPU.
 */
POLICY u64 balance_reduce_quota(const struct balance_params *params, u64 quota, u64 weight, bool idle)
{
	(void)params;
	return idle || quota < weight ? 0 : quota - weight;
}

enum task_score {
	SCORE_STAY,		/* not to be moved */
	SCORE_SECOND,		/* if the quota is not reached otherwise */
	SCORE_FIRST,
	SCORE_SIBLING,		/* belongs with what the pulling CPU's group runs */
};

/*
 * The share of running in the time that a task does not wait, over about a second: of all that there was
 * of it (`known_ns`) until that is so long, then of what is lately. `value` after `ns` more in which it
 * ran or slept; both in the unit of decay_share().
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
 * Whether a task is bound by the CPU, given its share of running in the time that it
 * does not wait, and whether it was so far.
 */
POLICY bool balance_is_cpu_bound(u32 share, bool bound)
{
	return share * 100 > (bound ? UNBOUND_PCT : BOUND_PCT) * FULL;
}

/* Which waiting tasks to take first, from a CPU that can do `from` to one that can do `to`. */
POLICY enum task_score balance_score_task(const struct balance_params *params,
					  const struct task_view *task, u32 src_capability, u32 dst_capability)
{
	if (task->affinity)
		return SCORE_SIBLING;
	if (balance_has_part(params, PART_HOME) && task->far_src != task->far_dst)
		return task->far_dst < task->far_src ? SCORE_FIRST : SCORE_SECOND;
	if (params->kind == BALANCE_CAPABILITY && src_capability != dst_capability)
		return task->bound == (dst_capability > src_capability) ? SCORE_FIRST : SCORE_SECOND;
	return task->rested_ns < CACHE_HOT_NS ? SCORE_SECOND : SCORE_FIRST;
}

/*
 * Whether a task of this weight that waits on `from` gets at least as much on `to` as its
 * turns are worth where it is.
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
 * Whether a new task is better off on `candidate` than on `best`: an idle CPU would pull it
 * anyway; of two idle or two busy ones the one where it gets most; of two such ones the first.
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
 * Whether a waking task is better off on `candidate` than on `best`, the better one
 * so far (at first the CPU that it ran on last). An idle CPU is, as long as it is not
 * slower than its turns on the other; of two idle ones the faster, then the nearer;
 * a busy one must have less to do by a quarter.
 */
POLICY bool balance_is_better_for_waking(const struct balance_params *params, const struct cpu_view *best,
			 const struct cpu_view *candidate)
{
	u64 more = params->kind == BALANCE_COUNT ? 0 : NICE_0_WEIGHT;
	bool far = balance_has_part(params, PART_HOME);
	u64 best_scaled = min_u64(best->load + more, MAX_CPU_LOAD) * balance_pace(params, candidate, far);
	u64 candidate_scaled = min_u64(candidate->load + more, MAX_CPU_LOAD) * balance_pace(params, best, far);

	if (candidate->idle != best->idle) {
		if (params->kind == BALANCE_COUNT)
			return candidate->idle;
		return candidate->idle ? candidate_scaled <= best_scaled : candidate_scaled < best_scaled;
	}
	if (!candidate->idle)
		return candidate_scaled * IMBALANCE_PCT < best_scaled * 100;
	if (params->kind == BALANCE_CAPABILITY && candidate_scaled != best_scaled)
		return candidate_scaled < best_scaled;
	return candidate->affinity > best->affinity ||
	       (candidate->affinity == best->affinity && candidate->distance < best->distance);
}

/*
 * Whether who runs alone is better off on `candidate` than on `best`, the better one so far (at
 * first the CPU that it runs on, the only one that does not idle).
 */
POLICY bool balance_is_better_for_running(const struct balance_params *params, const struct cpu_view *best,
			   const struct cpu_view *candidate)
{
	u64 here = balance_pace(params, best, true);
	u64 there = balance_pace(params, candidate, true);

	return candidate->idle && there * 100 > here * (best->idle ? 100 : ACTIVE_PCT);
}

/* Whether a CPU is faster by so much that who runs is moved for it. */
POLICY bool balance_is_faster(const struct balance_params *params, const struct cpu_view *fast,
			      const struct cpu_view *slow)
{
	u64 here = balance_capability(params, slow->capability);
	u64 there = balance_capability(params, fast->capability);

	return there * 100 > here * ACTIVE_PCT;
}

/* Whether who runs alone on one of two CPUs and who does on the other are to change places. */
POLICY bool balance_should_take_turns(const struct balance_params *params, const struct cpu_view *a,
			   const struct cpu_view *b)
{
	return balance_has_part(params, PART_TURNS) && a->runnable == 1 && b->runnable == 1 &&
	       (balance_is_faster(params, b, a) || balance_is_faster(params, a, b));
}

/*
 * Whether who runs alone on `own` is to change places with a thread of another program that does on
 * `fast`: of those that are faster than this one, its program has `ours`, and the other one has `theirs`.
 * Never back: the sum of the squares of such numbers grows with each change. Of two programs that have as
 * many, just one comes first.
 */
POLICY bool balance_should_gather(const struct balance_params *params, const struct cpu_view *own,
			   const struct cpu_view *fast, u32 ours, u32 theirs, bool first)
{
	return balance_has_part(params, PART_SIMILAR) && own->runnable == 1 && fast->runnable == 1 &&
	       balance_is_faster(params, fast, own) && (ours > theirs || (ours == theirs && first));
}

/*
 * How long a turn is on a CPU than which `unlike` of `cpus` can do more, or less: where many want
 * the places of few, or go there, it takes as many turns until each was there.
 */
POLICY u64 balance_turn_ns(const struct balance_params *params, u32 unlike, u32 cpus)
{
	u32 alike = cpus > unlike ? cpus - unlike : 0;

	(void)params;
	return unlike && alike > unlike ? TURN_NS * (alike / unlike) : TURN_NS;
}

#endif
