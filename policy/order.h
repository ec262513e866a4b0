/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Which task runs next on this CPU?
 *
 * Every task has a vruntime: the time that it ran, divided by its weight. Each CPU has a queue in
 * the order of vruntime, and a clock: the largest vruntime with which a task of the queue got the
 * CPU in its turn; it never goes back. A task with a smaller vruntime than another is *ahead* of it in
 * the queue: it runs first, because it got less. A task with a vruntime below the fair clock
 * (order_update_fair_clock()) is *behind its fair share*. Vruntimes compare only within a queue; a task
 * keeps its distance from the clock when it migrates to another CPU.
 *
 * `fair`: the task with the smallest vruntime runs. This is the fair scheduler of classic Linux
 * (until 6.5), in the words of its source:
 *
 * - A new task starts late by its share of a slice (START_DEBIT), and no earlier than the task that
 *   forks it could go on, so that forking does not pay.
 * - A waking task is at most half a slice ahead of its queue (GENTLE_FAIR_SLEEPERS), so that sleep
 *   is rewarded but cannot be saved up.
 * - A waking task preempts the running task if it is ahead of it by the wake-up granularity. So a
 *   task that slept for long always preempts, and tasks that wake each other do not switch faster
 *   than they get work done.
 *
 * `fair` departs from classic Linux in five places:
 *
 * 1. A task that yields gives way only after it had the CPU for as long as a switch takes
 *    (ORDER_YIELD_NS). sched_yield(2) leaves this open.
 * 2. A task cannot be preempted by its own wakee before it had the CPU for the wake-up granularity
 *    (ORDER_GRANULARITY_NS): otherwise each wakee in turn would stop a task that wakes many. The
 *    next tick decides again. A task that an interrupt wakes does not wait.
 * 3. The distance between a task and its queue's clock is bounded (ORDER_BOUND_NS), and with it the
 *    waiting time: the kernel ends a scheduler that lets a task wait for 30 s.
 * 4. A task that used up its slice is a candidate with its charged vruntime: the queue's head runs
 *    only if its vruntime is smaller. (A scheduler that always takes the head gives two tasks of weights
 *    3:1 turns of 1:1.)
 * 5. A new task of a cgroup pays for its first slice before it runs. What it has not used when it
 *    first sleeps or ends, the next new task of the cgroup need not pay (order_calc_prepayment()). In
 *    classic Linux the cgroup itself has a vruntime. Here only tasks have one, and short tasks would end
 *    before they pay.
 *
 * `ias`: paper 003, section 2.2. Threads of one address space are siblings. As far as a bonus
 * allows, siblings run one after the other on a CPU, and at the same time on the CPUs of a group.
 * There are two modes. In the mode `paper`, with
 *
 *     B  the task that `fair` would run
 *     C  the best sibling of the task that ran
 *     E  the task that ran on a slave
 *     F  the task that `fair` would run on the slave
 *     G  the best sibling of E
 *     H  the best task of the space that the group's master published
 *
 * the rules are
 *
 *     (1) C runs if  B.vruntime > C.vruntime - bonus
 *     (2) H runs if  F.vruntime > H.vruntime - bonus  and
 *     (3)            G.vruntime > H.vruntime - bonus  (true without a G)
 *     (4) else G if  F.vruntime > G.vruntime - bonus, else F
 *
 * The bonus is what set_ias_agg set for the preferred address space (section 3.1): ns of vruntime,
 * or a multiple of the time that the last task on this CPU ran. It is 0 for a space that was never
 * set, or that was preferred `limit` times in a row on this CPU. Without a bonus every pick is that
 * of `fair`.
 *
 * The mode `rounds`, the default, keeps the gain and leaves waits about as they are. A large bonus
 * lets a program run until it is done, and all others wait meanwhile. Here address spaces take turns:
 *
 * - A turn begins when a task gets the CPU because `fair` would run it, and belongs to that task's
 *   space. It lasts for about T (`turn_ns`, a few slices; order_is_turn_over()). On a slave that follows
 *   the same space, it lasts for as long as the master publishes that.
 * - In a turn, the space's siblings run one after the other, each for a slice at most: the bonus is
 *   half a slice of vruntime at most, so a sibling of the usual weight that has just run is no
 *   candidate. All vruntimes advance by a slice within a rotation of all tasks. So the order within a
 *   rotation changes, by half of it at most, and its length does not.
 * - A task that is behind its fair share by a slice and by T of the CPU's time goes first
 *   (order_may_prefer()).
 * - A waking task that `fair` would run at once passes the turn, which then goes on
 *   (order_passes_turn()).
 * - A master publishes the space that has its turn, even if that has a single thread there. Slaves
 *   follow by rules (2) to (4), where G is the best sibling of the space that has its turn on the slave.
 *
 * A bonus bounds what other tasks wait as long as the same threads compete. Threads that slept come
 * without a debt and have the bonus anew. So no sibling is preferred while the task that `fair` would
 * run is behind its fair share by more than bonus and slice (in the mode `rounds`: by a slice and T;
 * order_may_prefer()): siblings make a CPU's tasks together wait for bonus and slice times their number
 * at most, and in the long run take at most a ninth of the CPU out of turn, whatever threads come and
 * go. What an ordinary user sets has a largest bonus, and a longest time that all others wait together.
 *
 * `ias` departs from the paper in seven places, in both modes:
 *
 * 1. B and F may be the task that has run so far: paper and classic Linux put that task back into
 *    the queue before they pick.
 * 2. In that case it gets no bonus as a sibling: a bonus for itself would let a lone thread run
 *    longer and longer.
 * 3. The bonus is bounded (ORDER_BOUND_NS).
 * 4. A multiple of the last run is converted to vruntime by the weight of the sibling that gets the
 *    bonus. For a task of nice 0 outside cgroups that changes nothing. A task of less weight moves
 *    on in vruntime faster, and a bonus in time would be nothing beside its vruntime. The weight of
 *    the task that ran does not count: one of nice 19 would give its siblings 68 times the bonus.
 * 5. A slave that has no H fetches it from its master's queue and gives another task in exchange:
 *    the paper leaves it to chance which siblings wait where.
 * 6. A waking task that would be passed over for a sibling does not preempt (in the mode `rounds` none
 *    is passed over). The paper does not say when tasks preempt; each such switch would be in vain.
 * 7. Other tasks' wait is bounded, as said above. The paper's `limit` bounds it only if it is set.
 */
#ifndef EVENKEEL_ORDER_H
#define EVENKEEL_ORDER_H

#include "views.h"

enum order_kind {
	ORDER_FAIR,
	ORDER_IAS,
	ORDER_KINDS,
};

/* How the order `ias` aggregates. */
enum ias_mode {
	IAS_ROUNDS,	/* address spaces take turns of bounded length */
	IAS_PAPER,	/* siblings go first as far as the bonus allows */
};

struct order_params {
	u32 kind;	/* enum order_kind */
	u32 mode;	/* enum ias_mode */
	u64 slice_ns;
	u64 turn_ns;	/* the longest turn of an address space, in the mode `rounds` */
};

/* How far from its queue's clock a task can be, either way. */
#define ORDER_BOUND_NS 10000000000ULL
/* The longest run that is charged at once; a longer one is a clock that jumped. */
#define ORDER_MAX_RUN_NS (1ULL << 40)
/* More tasks than a CPU ever has, so that products do not overflow. */
#define ORDER_TASKS (1ULL << 23)
/* A waking task must be ahead of the running one by this much to preempt it. */
#define ORDER_GRANULARITY_NS 1000000ULL

/* A task that yields gives way after it had the CPU for this long: about what a switch takes. */
#define ORDER_YIELD_NS 10000ULL

enum order_place {
	PLACE_WAKE,	/* the task slept */
	PLACE_ARRIVE,	/* the task is runnable and migrated here */
};

/* How far ahead of its queue's clock a task is at most after it slept. */
POLICY u64 order_credit_ns(const struct order_params *params)
{
	return min_u64(params->slice_ns, ORDER_BOUND_NS) / 2;
}

/* The vruntime in the destination queue of a task that had `vruntime` in the source queue. */
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

/* How far a task is behind its queue's clock; 0: it is ahead. */
POLICY u64 order_calc_lateness(u64 vruntime, u64 clock)
{
	return is_vruntime_before(clock, vruntime) ? min_u64(vruntime - clock, ORDER_BOUND_NS) : 0;
}

/* The debt of a task: the run time that it had before its turn, in ns. */
POLICY u64 order_calc_debt(u64 vruntime, u64 clock, u64 weight)
{
	return order_calc_lateness(vruntime, clock) * min_u64(weight, MAX_WEIGHT) / NICE_0_WEIGHT;
}

/* A cgroup keeps at most so many slices for which ended tasks have paid. */
#define ORDER_MAX_PREPAID 16

/*
 * Whether what a cgroup has prepaid changes by `change_ns`, which is signed, too. At the limit it does
 * not: neither can a cgroup save up more, nor does a longer debt count.
 */
POLICY bool order_keeps_prepaid(const struct order_params *params, u64 prepaid_ns, u64 change_ns)
{
	u64 most_ns = ORDER_MAX_PREPAID * min_u64(params->slice_ns, ORDER_BOUND_NS);

	if (change_ns >> 63)
		return !is_vruntime_before(prepaid_ns, -most_ns);
	return is_vruntime_before(prepaid_ns, most_ns);
}

/*
 * The run time that a new task of a cgroup pays for before it runs: a slice, less what tasks of the
 * cgroup have paid for and not used (`prepaid_ns`). That is negative where they have used more than
 * they paid for: then the new task pays more than a slice, but two at most, because the debt is not its
 * own.
 */
POLICY u64 order_calc_prepayment(const struct order_params *params, u64 prepaid_ns)
{
	u64 slice_ns = min_u64(params->slice_ns, ORDER_BOUND_NS);

	if (is_vruntime_before(slice_ns, prepaid_ns))
		return 0;
	return min_u64(slice_ns - prepaid_ns, 2 * slice_ns);
}

/*
 * The vruntime, by this queue's clock, of a task that was forked or comes from another scheduling
 * class, as one of `tasks` on the CPU. It begins as late as the largest of these says:
 *
 * - its share of a slice. With a whole slice of debit each, a task would wait for as many slices as
 *   tasks were forked;
 * - `parent_late`: how far the task that forks it was behind its clock;
 * - `paid_ns`: what it pays before it runs, by its weight (order_calc_prepayment()).
 */
POLICY u64 order_place_new(const struct order_params *params, u64 clock, u64 tasks, u64 parent_late,
			   u64 paid_ns, u64 weight)
{
	u64 debit = min_u64(params->slice_ns, ORDER_BOUND_NS) / (tasks ? tasks : 1);
	u64 paid = order_charge(0, paid_ns, weight);
	u64 late = max_u64(max_u64(debit, parent_late), paid);

	return clock + min_u64(late, ORDER_BOUND_NS);
}

/*
 * The mean vruntime of the `tasks` tasks on a CPU, bounded by the smallest and the largest, after the
 * vruntime of one of them grew by `charged`. Where siblings go first, vruntimes spread, and clocks
 * stand still and then leap: two clocks do not tell which of two queues is further.
 */
POLICY u64 order_update_mean(u64 mean, u64 charged, u64 tasks, u64 least, u64 most)
{
	u64 updated = mean + charged / (tasks ? tasks : 1);

	if (is_vruntime_before(updated, least))
		return least;
	return is_vruntime_before(most, updated) ? most : updated;
}

/*
 * The vruntime in the destination queue of a task that is exchanged: as far from the mean there as
 * from the mean in the source queue, and within the vruntimes there, which reach from the clock to
 * `spread` above it.
 */
POLICY u64 order_place_exchanged(u64 vruntime, u64 src_mean, u64 dst_mean, u64 dst_clock, u64 spread)
{
	u64 placed = dst_mean + (vruntime - src_mean);

	if (is_vruntime_before(placed, dst_clock))
		return dst_clock;
	return is_vruntime_before(dst_clock + spread, placed) ? dst_clock + spread : placed;
}

/*
 * Whether two tasks may be exchanged without more load for either CPU. A difference of a quarter is
 * allowed, because a task's share of its cgroup is known only as of its last charge.
 */
POLICY bool order_is_similar_weight(u64 weight, u64 other)
{
	return weight <= other + other / 4 && other <= weight + weight / 4;
}

enum bonus_type {
	BONUS_VRUNTIME,	/* bonus_value is in ns of vruntime */
	BONUS_QUANTUM,	/* bonus_value multiplies the time of the last run */
};

/* What set_ias_agg sets for an address space; without it, nothing is aggregated. */
struct aggregation {
	u64 bonus_value;
	u64 bonus_max_ns;	/* the bonus is no larger than this */
	u64 turn_max_ns;	/* its siblings make all others together wait no longer than this */
	u64 limit;	/* preferred at most so often in a row on a CPU; 0: no limit */
	u32 bonus_type;	/* enum bonus_type */
	u32 agg;	/* 1: aggregate; 0: do not */
};

/*
 * The bonus, in ns, of a space's siblings on a CPU where they were preferred `preferred` times in a
 * row and the last task ran for `quantum_ns`.
 */
POLICY u64 order_calc_bonus(const struct order_params *params, const struct aggregation *space,
			    u64 quantum_ns, u64 preferred)
{
	u64 most_ns;

	if (!space->agg || (space->limit && preferred >= space->limit))
		return 0;
	most_ns = min_u64(space->bonus_max_ns, ORDER_BOUND_NS);
	/* Within a rotation of all tasks vruntimes advance by a slice. */
	if (params->mode == IAS_ROUNDS)
		quantum_ns = most_ns = min_u64(most_ns, params->slice_ns / 2);
	if (space->bonus_type == BONUS_VRUNTIME)
		return min_u64(space->bonus_value, most_ns);
	if (quantum_ns && space->bonus_value > most_ns / quantum_ns)
		return most_ns;
	return space->bonus_value * quantum_ns;
}

/* That bonus for a sibling of this weight, in ns of vruntime. */
POLICY u64 order_weigh_bonus(const struct aggregation *space, u64 bonus_ns, u64 weight)
{
	if (space->bonus_type == BONUS_VRUNTIME)
		return bonus_ns;
	return min_u64(order_charge(0, bonus_ns, weight), ORDER_BOUND_NS);
}

/* One part in so many of a run that is in its turn does not count: so the fair clock forgets. */
#define ORDER_FORGOTTEN_PART 8

/*
 * The fair clock of a CPU after a task that began at `vruntime` ran for `run_ns`. It advances as the
 * vruntime of each task would if the CPU were shared fairly at each moment. The queue's clock stands
 * still while siblings are preferred, so the difference of the two is how far the others have fallen
 * behind, whichever threads, programs or users ran meanwhile.
 *
 * A task ahead of the clock uses up the credit for its sleep, which moves neither clock. A run in its
 * turn counts for a little less, so that what threads owed when they ended is forgotten: otherwise
 * aggregation would end for good where many threads come and go.
 */
POLICY u64 order_update_fair_clock(u64 fair_clock, u64 clock, u64 vruntime, u64 run_ns, u64 load,
				   u64 tasks)
{
	u64 advance;

	/* No other task waits. */
	if (tasks <= 1)
		return clock;
	if (!is_vruntime_before(vruntime, clock)) {
		advance = order_charge(0, run_ns, load);
		fair_clock += vruntime == clock ? advance - advance / ORDER_FORGOTTEN_PART : advance;
	}
	if (is_vruntime_before(fair_clock, clock))
		return clock;
	return is_vruntime_before(clock + ORDER_BOUND_NS, fair_clock) ? clock + ORDER_BOUND_NS :
									  fair_clock;
}

/*
 * Whether siblings with this bonus may still be preferred to the task that `fair` would run. `fair` is
 * its vruntime, `load` the weight of all `tasks` tasks of the CPU. In the mode `paper` the task may fall
 * behind the fair clock by a bonus and a slice for each task; in the mode `rounds` by a slice for each
 * task, as under `fair`, and by one turn. In both it may not fall behind by more than `turn_max_ns` of
 * the CPU's time. Without this, threads that come and go would each have the bonus anew.
 */
POLICY bool order_may_prefer(const struct order_params *params, const struct aggregation *space,
			     u64 bonus_ns, u64 fair_clock, u64 fair, u64 load, u64 tasks)
{
	u64 each_ns = min_u64(params->slice_ns, ORDER_BOUND_NS), wait_ns;

	tasks = min_u64(tasks, ORDER_TASKS);
	if (params->mode == IAS_ROUNDS)
		wait_ns = each_ns * tasks + min_u64(params->turn_ns, ORDER_BOUND_NS);
	else
		wait_ns = (bonus_ns + each_ns) * tasks;
	wait_ns = min_u64(wait_ns, space->turn_max_ns);
	return !is_vruntime_before(fair + order_charge(0, wait_ns, load), fair_clock);
}

/*
 * Whether the turn of an address space is over, so long after it began. Slices end only at ticks: less
 * than half a slice would become a whole one. A turn has room for two slices, however short it is set:
 * with one, no sibling would ever follow another.
 */
POLICY bool order_is_turn_over(const struct order_params *params, u64 ns)
{
	u64 slice_ns = min_u64(params->slice_ns, ORDER_BOUND_NS);

	return ns + slice_ns / 2 >= max_u64(params->turn_ns, 2 * slice_ns);
}

/*
 * Whether the queue's head, with vruntime `head`, passes the turn of an address space: it slept and has
 * its credit left, or it preempted when it woke. `woken`: the vruntime of the last such task, with bit
 * 0 set; 0: none since the last pick.
 */
POLICY bool order_passes_turn(u64 head, u64 clock, u64 woken)
{
	return is_vruntime_before(head, clock) || (woken && !is_vruntime_before(woken, head));
}

struct order_candidate {
	bool exists;
	u64 vruntime;
	u64 bonus;	/* of siblings: order_weigh_bonus() */
};

/* Whether a candidate, with its bonus, runs before this vruntime. */
POLICY bool order_is_preferred(const struct order_candidate *candidate, u64 vruntime)
{
	return candidate->exists &&
	       is_vruntime_before(candidate->vruntime - candidate->bonus, vruntime);
}

enum order_choice {
	CHOOSE_NONE,
	CHOOSE_PREV,		/* the running task goes on */
	CHOOSE_HEAD,		/* the queue's head */
	CHOOSE_SIBLING,		/* on this CPU, the best sibling of its own space: C or G above */
	CHOOSE_PUBLISHED,	/* on a slave, the best task of the space that its master published: H */
};

/*
 * Whether the running task goes on under `fair`. It is charged already, and wins a tie: a switch
 * costs.
 */
POLICY bool order_should_keep_prev(const struct order_candidate *prev,
				   const struct order_candidate *head)
{
	return prev->exists && !(head->exists && is_vruntime_before(head->vruntime, prev->vruntime));
}

/*
 * Whether the queue's head runs next, whatever its vruntime: then the keel need not look at it.
 * (Under `ias` there may be other candidates.)
 */
POLICY bool order_is_head_next(const struct order_params *params, struct order_candidate prev)
{
	return params->kind == ORDER_FAIR && !prev.exists;
}

/* Picks the next task. */
POLICY enum order_choice order_pick(const struct order_params *params,
				    const struct order_candidate *prev,
				    const struct order_candidate *head,
				    const struct order_candidate *sibling,
				    const struct order_candidate *published)
{
	bool keep = order_should_keep_prev(prev, head);
	u64 fair = keep ? prev->vruntime : head->vruntime;

	if (!head->exists)
		return keep ? CHOOSE_PREV : CHOOSE_NONE;
	if (params->kind == ORDER_FAIR)
		return keep ? CHOOSE_PREV : CHOOSE_HEAD;
	if (order_is_preferred(published, fair) &&
	    (!sibling->exists || order_is_preferred(published, sibling->vruntime)))
		return CHOOSE_PUBLISHED;
	/*
	 * A running task that fair would keep goes on. In the mode paper it is of the siblings' own space; in
	 * the mode rounds it may be of another one, which has passed the turn.
	 */
	if (!keep && order_is_preferred(sibling, fair))
		return CHOOSE_SIBLING;
	return keep ? CHOOSE_PREV : CHOOSE_HEAD;
}

/* Whether a master with this choice aggregates, so that its slaves are to follow. */
POLICY bool order_should_publish(enum order_choice choice, const struct order_candidate *sibling)
{
	return choice == CHOOSE_SIBLING ||
	       (choice == CHOOSE_PREV && sibling->exists && sibling->bonus);
}

/* The lead by which a waking task preempts, at most a quarter of a slice. */
POLICY u64 order_granularity_ns(const struct order_params *params)
{
	return min_u64(params->slice_ns / 4, ORDER_GRANULARITY_NS);
}

/*
 * Whether a task that yields gives way after it had the CPU for so long. Otherwise tasks that
 * always yield would switch all the time, which takes longer than their work in between.
 */
POLICY bool order_should_yield(u64 ran_ns)
{
	return ran_ns >= ORDER_YIELD_NS;
}

/* Whether a waking task preempts the running one (charged up to now). */
POLICY bool order_should_preempt(const struct order_params *params, u64 waking, u64 running)
{
	return is_vruntime_before(waking + order_granularity_ns(params), running);
}

/*
 * Preemption check for a task that the gate kept local although an idle CPU could run it now.
 * It needs no granularity: while CPUs idle, an early switch costs no task its turn.
 */
POLICY bool order_should_preempt_kept(u64 waking, u64 running)
{
	return is_vruntime_before(waking, running);
}

/*
 * Whether a task that has had the CPU for `ran_ns` keeps it, for now, from a task that it woke itself.
 */
POLICY bool order_is_protected(const struct order_params *params, u64 ran_ns)
{
	return ran_ns < order_granularity_ns(params);
}

/*
 * 1: the task is a sibling of the task that runs on a CPU, or of what the CPU follows. Tells by the
 * address spaces; 0 is no space.
 */
POLICY u32 order_is_sibling(const struct order_params *params, u64 task_space, u64 running_space)
{
	return params->kind == ORDER_IAS && task_space && task_space == running_space;
}

#endif
