// SPDX-License-Identifier: GPL-2.0-only
/*
 * The policies as functions for the tests: the same headers that the keel is made of, compiled
 * natively, with undefined behaviour and all out-of-range shifts and divisions made traps. The
 * structs are those of policy/, passed by pointer.
 */
#define LABORATORY 1
#define can_loop true
#include "../../../policy/order.h"
#include "../../../policy/gate.h"
#include "../../../policy/balance.h"
#include "../../../bpf/keel/row.h"

u64 test_order_place(u64 slice_ns, u64 vruntime, u64 src_clock, u64 dst_clock, u32 place)
{
	struct order_params params = { .kind = ORDER_FAIR, .slice_ns = slice_ns };

	return order_place(&params, vruntime, src_clock, dst_clock, (enum order_place)place);
}

u64 test_order_place_new(u64 slice_ns, u64 clock, u64 tasks, u64 parent_late, u64 paid_ns, u64 weight)
{
	struct order_params params = { .kind = ORDER_FAIR, .slice_ns = slice_ns };

	return order_place_new(&params, clock, tasks, parent_late, paid_ns, weight);
}

u64 test_order_calc_debt(u64 vruntime, u64 clock, u64 weight)
{
	return order_calc_debt(vruntime, clock, weight);
}

u64 test_order_calc_prepayment(u64 slice_ns, u64 prepaid_ns)
{
	struct order_params params = { .kind = ORDER_FAIR, .slice_ns = slice_ns };

	return order_calc_prepayment(&params, prepaid_ns);
}

bool test_order_keeps_prepaid(u64 slice_ns, u64 prepaid_ns, u64 change_ns)
{
	struct order_params params = { .kind = ORDER_FAIR, .slice_ns = slice_ns };

	return order_keeps_prepaid(&params, prepaid_ns, change_ns);
}

u64 test_order_charge(u64 vruntime, u64 run_ns, u64 weight)
{
	return order_charge(vruntime, run_ns, weight);
}

/* prev, head, sibling, published */
u32 test_order_pick(u32 kind, const struct order_candidate *candidates)
{
	struct order_params params = { .kind = kind, .slice_ns = 4000000 };

	return order_pick(&params, &candidates[0], &candidates[1], &candidates[2], &candidates[3]);
}

u32 test_order_is_head_next(u32 kind, const struct order_candidate *prev)
{
	struct order_params params = { .kind = kind, .slice_ns = 4000000 };

	return order_is_head_next(&params, *prev);
}

/* The order `ias` in this mode (enum ias_mode), with slices of 4 ms and turns of 20 ms. */
static struct order_params in_mode(u32 mode)
{
	return (struct order_params){
		.kind = ORDER_IAS, .mode = mode, .slice_ns = 4000000, .turn_ns = 20000000,
	};
}

u64 test_order_calc_bonus(u32 mode, const struct aggregation *space, u64 quantum_ns, u64 preferred)
{
	struct order_params params = in_mode(mode);

	return order_calc_bonus(&params, space, quantum_ns, preferred);
}

u32 test_order_is_turn_over(u64 slice_ns, u64 turn_ns, u64 ns)
{
	struct order_params params = in_mode(IAS_ROUNDS);

	params.slice_ns = slice_ns;
	params.turn_ns = turn_ns;
	return order_is_turn_over(&params, ns);
}

u32 test_order_passes_turn(u64 head, u64 clock, u64 woken)
{
	return order_passes_turn(head, clock, woken);
}

u64 test_order_update_fair_clock(u64 fair_clock, u64 clock, u64 vruntime, u64 run_ns, u64 load,
				 u64 tasks)
{
	return order_update_fair_clock(fair_clock, clock, vruntime, run_ns, load, tasks);
}

u32 test_order_may_prefer(u32 mode, const struct aggregation *space, u64 bonus_ns, u64 fair_clock,
			  u64 fair, u64 load, u64 tasks)
{
	struct order_params params = in_mode(mode);

	return order_may_prefer(&params, space, bonus_ns, fair_clock, fair, load, tasks);
}

u64 test_order_weigh_bonus(const struct aggregation *space, u64 bonus_ns, u64 weight)
{
	return order_weigh_bonus(space, bonus_ns, weight);
}

u64 test_order_update_mean(u64 mean, u64 charged, u64 tasks, u64 least, u64 most)
{
	return order_update_mean(mean, charged, tasks, least, most);
}

u64 test_order_place_exchanged(u64 vruntime, u64 src_mean, u64 dst_mean, u64 dst_clock, u64 spread)
{
	return order_place_exchanged(vruntime, src_mean, dst_mean, dst_clock, spread);
}

u32 test_order_is_similar_weight(u64 weight, u64 other)
{
	return order_is_similar_weight(weight, other);
}

u32 test_order_should_publish(u32 choice, const struct order_candidate *sibling)
{
	return order_should_publish((enum order_choice)choice, sibling);
}

u32 test_order_is_sibling(u32 kind, u64 task_space, u64 running_space)
{
	struct order_params params = { .kind = kind, .slice_ns = 4000000 };

	return order_is_sibling(&params, task_space, running_space);
}

u32 test_order_should_preempt(u64 slice_ns, u64 waking, u64 running)
{
	struct order_params params = { .kind = ORDER_FAIR, .slice_ns = slice_ns };

	return order_should_preempt(&params, waking, running);
}

u32 test_order_should_preempt_kept(u64 waking, u64 running)
{
	return order_should_preempt_kept(waking, running);
}

u32 test_order_should_yield(u64 ran_ns)
{
	return order_should_yield(ran_ns);
}

u32 test_order_is_protected(u64 slice_ns, u64 ran_ns)
{
	struct order_params params = { .kind = ORDER_FAIR, .slice_ns = slice_ns };

	return order_is_protected(&params, ran_ns);
}

u32 test_gate_judge_task(u32 kind, const struct zone_knobs *zone, const struct gate_view *view)
{
	struct gate_params params = { .kind = kind, .zone = zone };

	return gate_judge_task(&params, view);
}

u32 test_gate_judge_cpu(u32 kind, const struct zone_knobs *zone, const struct gate_view *view)
{
	struct gate_params params = { .kind = kind, .zone = zone };

	return gate_judge_cpu(&params, view);
}

u32 test_gate_enough_cpus(u32 mean_utilisation, u32 online)
{
	return gate_enough_cpus(mean_utilisation, online);
}

u64 test_gate_max_wait(const struct zone_knobs *zone, u64 burst_ns)
{
	struct gate_params params = { .kind = GATE_ZONE, .zone = zone };

	return gate_max_wait(&params, burst_ns);
}

u32 test_gate_should_stay(const struct zone_knobs *zone, const struct gate_stay *stay)
{
	struct gate_params params = { .kind = GATE_ZONE, .zone = zone };

	return gate_should_stay(&params, stay);
}

u64 test_gate_update_burst(u64 mean_ns, u64 ns)
{
	return gate_update_burst(mean_ns, ns);
}

u32 test_gate_has_scores(u32 kind, const struct zone_knobs *zone)
{
	struct gate_params params = { .kind = kind, .zone = zone };

	return gate_has_scores(&params);
}

u32 test_gate_is_asked(u32 reason, u64 max_idle_wait_ns)
{
	return gate_is_asked(reason, max_idle_wait_ns);
}

u32 test_gate_calc_mean(const struct zone_knobs *zone, const u32 *cpus, const unsigned char *idle, u32 n)
{
	struct gate_params params = { .kind = GATE_ZONE, .zone = zone };
	struct gate_mean mean = { 0 };
	u32 i;

	for (i = 0; i < n; i++)
		gate_add_cpu(&params, &mean, cpus[i], idle[i]);
	return gate_calc_mean(&mean);
}

u64 test_gate_update_above_since(const struct zone_knobs *zone, u64 since_ns, u32 share, u64 now)
{
	struct gate_params params = { .kind = GATE_ZONE, .zone = zone };

	return gate_update_above_since(&params, since_ns, share, now);
}

u32 test_gate_ends_above(const struct zone_knobs *zone, u64 rest_ns)
{
	struct gate_params params = { .kind = GATE_ZONE, .zone = zone };

	return gate_ends_above(&params, rest_ns);
}

void test_balance_sum(const struct balance_params *params, struct group_view *group,
		      const struct cpu_view *cpus, u32 count)
{
	u32 i;

	*group = GROUP_NONE;
	for (i = 0; i < count; i++)
		balance_add_cpu(params, group, &cpus[i]);
}

u32 test_balance_is_heavier(const struct balance_params *params, const struct group_view *a,
			    const struct group_view *b)
{
	return balance_is_heavier(params, a, b);
}

u64 test_balance_pull_quota(const struct balance_params *params, const struct group_view *busiest,
			    const struct cpu_view *own, u32 shared)
{
	return balance_pull_quota(params, busiest, own, shared);
}

u32 test_balance_may_take(u64 quota, u64 weight, u32 taken)
{
	struct balance_params params = { .kind = BALANCE_COUNT };

	return balance_may_take(&params, quota, weight, taken);
}

u64 test_balance_reduce_quota(const struct balance_params *params, u64 quota, u64 weight, u32 idle)
{
	return balance_reduce_quota(params, quota, weight, idle);
}

u32 test_balance_is_busier(const struct group_view *a, const struct group_view *b)
{
	return balance_is_busier(a, b);
}

u32 test_balance_takes_all(const struct balance_params *params, u32 fast, u32 src_capability,
			   u32 own_capability)
{
	return balance_takes_all(params, fast, src_capability, own_capability);
}

u32 test_balance_is_better_leader(const struct balance_params *params, const struct cpu_view *best,
				  const struct cpu_view *candidate)
{
	return balance_is_better_leader(params, best, candidate);
}

u32 test_balance_update_bound_share(u32 value, u64 known_ns, u64 ns, u32 ran)
{
	return balance_update_bound_share(value, known_ns, ns, ran);
}

u32 test_balance_should_abstain(const struct balance_params *params)
{
	return balance_should_abstain(params);
}

u32 test_balance_is_cpu_bound(u32 share, u32 bound)
{
	return balance_is_cpu_bound(share, bound);
}

u32 test_balance_score_task(const struct balance_params *params, const struct task_view *task,
			    u32 src_capability, u32 dst_capability)
{
	return balance_score_task(params, task, src_capability, dst_capability);
}

u32 test_balance_is_better_for_waking(const struct balance_params *params, const struct cpu_view *best,
				      const struct cpu_view *candidate)
{
	return balance_is_better_for_waking(params, best, candidate);
}

u32 test_balance_is_better_for_new(const struct balance_params *params, const struct cpu_view *best,
				   const struct cpu_view *candidate)
{
	return balance_is_better_for_new(params, best, candidate);
}

u32 test_balance_should_pull(const struct balance_params *params, const struct cpu_view *src,
			     const struct cpu_view *dst, u64 weight)
{
	return balance_should_pull(params, src, dst, weight);
}

u32 test_balance_is_better_for_running(const struct balance_params *params, const struct cpu_view *best,
				       const struct cpu_view *candidate)
{
	return balance_is_better_for_running(params, best, candidate);
}

u32 test_balance_should_gather(const struct balance_params *params, const struct cpu_view *own,
			       const struct cpu_view *fast, u32 ours, u32 theirs, u32 first)
{
	return balance_should_gather(params, own, fast, ours, theirs, first);
}

u32 test_balance_should_take_turns(const struct balance_params *params, const struct cpu_view *a,
				   const struct cpu_view *b)
{
	return balance_should_take_turns(params, a, b);
}

u64 test_balance_turn_ns(u32 unlike, u32 cpus)
{
	struct balance_params params = { .kind = BALANCE_CAPABILITY };

	return balance_turn_ns(&params, unlike, cpus);
}

u32 test_balance_placing_params(const struct balance_params *params)
{
	return balance_placing_params(params).kind;
}

u32 test_decay_share(u32 value, u64 ns, u32 busy)
{
	return decay_share(value, ns, busy);
}

u32 test_row_insert(struct sibling_row *row, const struct row_entry *task, u32 room)
{
	return row_insert(row, *task, room);
}

void test_row_remove(struct sibling_row *row, u32 pid)
{
	row_remove(row, pid);
}

/* Returns how many entries it looked at. */
u32 test_row_find_first(const struct sibling_row *row, u32 tag, struct row_entry *best)
{
	u32 looked;

	*best = row_find_first(row, tag, &looked);
	return looked;
}
