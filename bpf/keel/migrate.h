/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Migration of waiting tasks: which CPU looks where and how often, and what migrates for liveness.
 * The balance policy decides how much and which tasks, the gate whether.
 */
#ifndef EVENKEEL_KEEL_MIGRATE_H
#define EVENKEEL_KEEL_MIGRATE_H

/* An idle CPU that has seen so many tasks with another score than it wants first takes any task. */
#define MAX_SECOND_CHOICES 4
/*
 * A busy CPU balances a domain every so many ms, times the number of its CPUs (kernel:
 * sd->busy_factor).
 */
#define BUSY_FACTOR 16
#define NS_PER_MS 1000000ULL

/* The policy's parameters when an idle CPU looks for work. */
static __always_inline struct balance_params get_idle_params(u32 own)
{
	struct balance_params params = balance_params();

	if (params.kind == BALANCE_COUNT)
		return params;
	refresh_machine();
	/*
	 * Some of the faster CPUs may be shielded, so all shielded ones are subtracted: this may
	 * undercount.
	 */
	params.faster = count_faster(own);
	params.faster -= min_u64(params.faster, READ_ONCE(tunables.shielded));
	params.tasks = READ_ONCE(machine.tasks);
	return params;
}

static __always_inline bool has_position(struct cpu_range range, u32 position)
{
	return position - range.first < range.count;
}

/* The CPU's domain at a level; an empty one where it has none. */
static __always_inline struct keel_domain domain_of(u32 cpu, u32 level)
{
	return topology.cpu[BOUNDED(cpu, MAX_CPUS)].domain[BOUNDED(level, MAX_LEVELS)];
}

static __always_inline struct cpu_range range_at(u32 index)
{
	return topology.range[BOUNDED(index, MAX_RANGES)];
}

/*
 * Adds a CPU to its group's sum. For a task that is to be placed, only CPUs that it may use count.
 * Otherwise a shielded CPU counts only while a task waits there: it takes no other part in
 * balancing. A function of its own: within a loop the verifier would follow each of its paths through
 * the next turns.
 */
KEEL_PART int add_cpu_to_sum(struct group_view *sum, u32 cpu,
			     struct task_struct *p __arg_trusted __arg_nullable, struct task_state *t)
{
	struct balance_params params = balance_params();
	struct cpu_view view;

	if (!sum || (p && (!may_run_on(p, cpu) || (t && is_closed(t, cpu)))))
		return 0;
	if (p)
		params = balance_placing_params(&params);
	if (view_cpu(cpu, &view) && (p || view.waiting || !is_shielded(cpu)))
		balance_add_cpu(&params, sum, &view);
	return 0;
}

/* Sums up a group, for a task that is to be placed or (NULL) for a pull. */
KEEL_PART int sum_group(struct group_view *sum, u32 first, u32 count,
			struct task_struct *p __arg_trusted __arg_nullable, struct task_state *t)
{
	u32 position;

	if (!sum)
		return 0;
	*sum = GROUP_NONE;
	/* The most frequent case: the beginning and end of a loop are calls to the kernel. */
	if (count == 1) {
		add_cpu_to_sum(sum, cpu_at(first), p, t);
		return 0;
	}
	bpf_for(position, first, first + count)
		add_cpu_to_sum(sum, cpu_at(position), p, t);
	return 0;
}

/* Sums up the CPUs of a group from which `own` may pull, under a gate that may refuse. */
KEEL_PART int sum_sources(struct group_view *sum, u32 first, u32 count, u32 own, bool idles)
{
	u32 position;

	if (!sum)
		return 0;
	*sum = GROUP_NONE;
	bpf_for(position, first, first + count) {
		u32 cpu = cpu_at(position);

		if (is_source(own, cpu, idles))
			add_cpu_to_sum(sum, cpu, NULL, NULL);
	}
	return 0;
}

/*
 * Whether a waiting task of this weight gets at least as much on `dst_cpu`. A function of its own:
 * its stack does not add to that of the search.
 */
KEEL_PART bool should_pull_task(u64 weight, u32 far_src, u32 far_dst, u32 src_cpu, u32 dst_cpu)
{
	struct balance_params params = balance_params();
	struct cpu_state *dst = cpu_state(dst_cpu), *src = cpu_state(src_cpu);
	struct cpu_view src_view, dst_view;

	if (!dst || !src)
		return 1;
	src_view.load = READ_ONCE(src->load);
	src_view.capability = capability_of(src_cpu);
	src_view.far = far_src;
	dst_view.load = READ_ONCE(dst->load);
	dst_view.capability = capability_of(dst_cpu);
	dst_view.far = far_dst;
	return balance_should_pull(&params, &src_view, &dst_view, weight);
}

/*
 * Notes that a task waits in the queue of `dst_cpu` from now on, with this vruntime; false: another
 * CPU is moving it. Called before the move: as soon as the move is made, another CPU can run the task,
 * and note something else. This and the next two are functions of their own, because Linux 6.18's
 * verifier loses track of registers in a loop with all of this.
 */
KEEL_PART bool note_move(struct task_state *t, u32 src_cpu, u32 dst_cpu, u64 vruntime)
{
	if (!t || __sync_val_compare_and_swap(&t->home, src_cpu, dst_cpu) != src_cpu)
		return 0;
	WRITE_ONCE(t->vruntime, vruntime);
	return 1;
}

/* The move failed: another CPU has taken the task. What that CPU has noted since then stays. */
KEEL_PART int revert_move(struct task_state *t, u32 src_cpu, u32 dst_cpu, u64 vruntime, u64 before)
{
	if (!t)
		return 0;
	__sync_val_compare_and_swap(&t->vruntime, vruntime, before);
	__sync_val_compare_and_swap(&t->home, dst_cpu, src_cpu);
	return 0;
}

/* The move was made: counts the task where it is. */
KEEL_PART int complete_move(struct task_state *t, u32 pid, u32 src_cpu, u32 dst_cpu)
{
	if (!t)
		return 0;
	if (settings.order == ORDER_IAS)
		index_move(t, pid, src_cpu, dst_cpu);
	recount_task(t, src_cpu, dst_cpu);
	return 0;
}

/*
 * Moves a waiting task from the queue of `src_cpu`, over which `iterator` walks, to the queue of
 * `dst_cpu`, with this vruntime.
 */
static __always_inline bool move_waiter_at(struct bpf_iter_scx_dsq *iterator, struct task_struct *p,
					   struct task_state *t, u32 src_cpu, u32 dst_cpu, u64 vruntime)
{
	u64 before = READ_ONCE(t->vruntime);

	if (!note_move(t, src_cpu, dst_cpu, vruntime))
		return false;
	scx_bpf_dsq_move_set_vtime(iterator, vruntime);
	if (!scx_bpf_dsq_move_vtime(iterator, p, dst_cpu, 0)) {
		revert_move(t, src_cpu, dst_cpu, vruntime, before);
		return false;
	}
	complete_move(t, p->pid, src_cpu, dst_cpu);
	return true;
}

/* The same, with the vruntime that keeps its distance from the queue's clock. */
static __always_inline bool move_waiter(struct bpf_iter_scx_dsq *iterator, struct task_struct *p,
					struct task_state *t, u32 src_cpu, u32 dst_cpu)
{
	struct cpu_state *src = cpu_state(src_cpu), *dst = cpu_state(dst_cpu);

	if (!src || !dst)
		return false;
	return move_waiter_at(iterator, p, t, src_cpu, dst_cpu,
			      convert_vruntime(src, dst, t->vruntime, PLACE_ARRIVE));
}

/* What a search wants of a waiting task. */
enum wish {
	NOT_WANTED,
	WANTED,
	WANTED_UNGATED,	/* whatever the gate says */
};

/*
 * Whether the search of `own` wants this task, which waits in the queue of `src_cpu`. The search keeps
 * what it has seen, and why it wants the task.
 */
KEEL_PART int look_at_waiter(struct task_struct *p __arg_trusted, struct task_state *t, u32 own,
			     u32 src_cpu, u64 now)
{
	struct balance_params params = balance_params();
	struct order_params order = order_params();
	struct cpu_state *c = cpu_state(own);
	struct keel_search *search;
	struct task_view view;
	u32 reason, memory;

	if (!c || !t)
		return NOT_WANTED;
	search = &c->search;
	reason = search->reason;
	if ((search->overdue && !is_overdue(t, now)) || (is_closed(t, own) | !may_run_on(p, own)))
		return NOT_WANTED;
	view.weight = t->counted_weight;
	/* Its CPU's clock may be a little ahead: then it has just stopped. */
	view.rested_ns = now > t->rested_since_ns ? now - t->rested_since_ns : 0;
	view.bound = t->bound;
	memory = memory_node_of(p, t);
	view.far_src = distance_of(memory, src_cpu);
	view.far_dst = distance_of(memory, own);
	view.sibling = order_is_sibling(&order, space_of(p), search->follow);
	search->why = reason == MOVE_IDLE && view.sibling ? MOVE_AGGREGATE : reason;
	if (balance_score_task(&params, &view, capability_of(src_cpu), capability_of(own)) !=
	    search->wanted) {
		search->others++;
		if (reason != MOVE_IDLE || search->wanted != SCORE_FIRST ||
		    search->others < MAX_SECOND_CHOICES || HAS_PAPER_RULE(RULE_SEVERAL))
			return NOT_WANTED;
	}
	if (!balance_may_take(&params, search->quota, view.weight, search->taken))
		return NOT_WANTED;
	if (search->ungated || (reason == MOVE_IDLE && is_overdue(t, now)))
		return WANTED_UNGATED;
	if (reason != MOVE_IDLE && settings.parts & PART_COST &&
	    !should_pull_task(view.weight, view.far_src, view.far_dst, src_cpu, own))
		return NOT_WANTED;
	return WANTED;
}

/* Pulls the tasks of one score; the CPU's `search` keeps how far it gets. */
KEEL_PART int pull_by_score(u32 own, u32 src_cpu, u32 wanted)
{
	struct balance_params params = balance_params();
	struct cpu_state *dst = cpu_state(own), *src = cpu_state(src_cpu);
	struct keel_search *search;
	u64 now = scx_bpf_now();
	struct task_struct *p;
	u32 reason;

	if (!dst || !src)
		return 0;
	search = &dst->search;
	search->wanted = wanted;
	reason = search->reason;
	/*
	 * Where a higher class has a CPU there is no tick that would make another CPU look again
	 * later.
	 */
	search->ungated = is_cpu_gone(src) || is_shielded(src_cpu) ||
			  (settings.gate != GATE_ALWAYS && is_cpu_taken(src_cpu)) ||
			  is_pull_ungated(own, src_cpu, reason);
	bpf_for_each(scx_dsq, p, src_cpu, SCX_DSQ_ITER_REV) {
		struct task_state *t;
		u64 weight;
		u32 wish;

		if (!search->budget || !search->quota)
			break;
		search->budget--;
		t = task_state(p);
		if (!t)
			continue;
		wish = look_at_waiter(p, t, own, src_cpu, now);
		if (wish == NOT_WANTED)
			continue;
		if (wish == WANTED_UNGATED)
			count_ungated_move(search->why);
		else if (!may_move(src_cpu, p, search->why, now))
			continue;
		weight = t->counted_weight;
		if (!move_waiter(THIS_ITERATOR, p, t, src_cpu, own))
			continue;
		search->quota = balance_reduce_quota(&params, search->quota, weight,
						     reason == MOVE_IDLE);
		search->taken++;
	}
	return 0;
}

/*
 * Pulls waiting tasks from the queue of `src_cpu` to that of `own`, or only one that is overdue;
 * false: there was none. A function of its own, because Linux 6.18's verifier loses track of
 * registers where it is inlined three times.
 */
KEEL_PART bool pull_tasks(u32 own, u32 src_cpu, u64 quota, u32 reason, bool overdue)
{
	struct cpu_state *c = cpu_state(own);

	if (!c)
		return 0;
	/* Field by field: a whole struct would be on the stack, of which there is little. */
	c->search.quota = quota;
	c->search.follow = get_followed_space(own);
	c->search.others = 0;
	c->search.taken = 0;
	c->search.overdue = overdue;
	c->search.reason = reason;
	/*
	 * Tasks that are no siblings get a search of their own: a CPU must not stay idle for want
	 * of siblings.
	 */
	if (settings.order == ORDER_IAS && c->search.follow) {
		c->search.budget = READ_ONCE(tunables.sibling_window);
		pull_by_score(own, src_cpu, SCORE_SIBLING);
		c->search.others = 0;
	}
	c->search.budget = READ_ONCE(tunables.scan_limit);
	pull_by_score(own, src_cpu, SCORE_FIRST);
	if (c->search.others && (!c->search.taken || HAS_PAPER_RULE(RULE_SEVERAL)))
		pull_by_score(own, src_cpu, SCORE_SECOND);
	if (!c->search.taken)
		return 0;
	set_bit(&waiting_cpus, own);
	return 1;
}

/* Algorithm 1 to the letter, lines 22 to 24: the speed core takes all from the CPU that was found. */
static __always_inline bool should_take_all(u32 own, struct cpu_state *c,
					    const struct balance_params *params)
{
	u32 slower = READ_ONCE(capabilities.cpu[BOUNDED(own, MAX_CPUS)].slower);

	return balance_takes_all(params, settings.online - slower, c->busiest.busiest_capability,
				 capability_of(own));
}

/* Algorithm 1 to the letter, lines 2 and 3: a CPU that is not to balance does not even search. */
static __always_inline bool should_not_search(u32 own)
{
	struct balance_params params;

	if (!HAS_PAPER_RULE(RULE_NO_SEARCH))
		return false;
	params = get_idle_params(own);
	return balance_should_abstain(&params);
}

/*
 * Algorithm 1 to the letter goes on after a pull, now as a busy CPU; the classic balancer does not, nor
 * does the keel.
 */
static __always_inline bool should_go_on(const struct balance_params *params)
{
	return HAS_PAPER_RULE(RULE_SEVERAL) && params->kind == BALANCE_CAPABILITY;
}

/* An idle CPU looks for work, in the smallest domain first; false: it found none. */
KEEL_PART bool balance_idle(u32 own)
{
	struct balance_params params;
	struct cpu_state *c = cpu_state(own);
	u64 overdue_on, quota;
	struct cpu_view view;
	bool abstains, taken = false, has_pulled = false;
	u32 level, i, domains = 0;

	if (!c || (should_not_search(own) && !READ_ONCE(c->overdue_on)))
		return 0;
	if (!has_any_bit(&waiting_cpus)) {
		if (HAS_PAPER_RULE(RULE_EAGER))
			count_on(c, COUNT_TRY_IDLE);
		return 0;
	}
	/* The gate keeps all tasks where they wait, and none is overdue. */
	if (settings.gate != GATE_ALWAYS && !has_source(own, true) && !READ_ONCE(c->overdue_on))
		return 0;
	count_on(c, COUNT_TRY_IDLE);
	/* Liveness, whatever the policy says: one overdue task, and only that. */
	overdue_on = __sync_lock_test_and_set(&c->overdue_on, 0);
	if (overdue_on && pull_tasks(own, overdue_on - 1, MAX_LOAD, MOVE_IDLE, true))
		return 1;
	params = get_idle_params(own);
	view_cpu_state(own, c, &view);
	view.idle = true;
	/*
	 * It searches all the same, for overdue tasks: a CPU that a higher class has does not kick
	 * any CPU.
	 */
	abstains = balance_should_abstain(&params);
	bpf_for(level, 0, settings.levels) {
		struct keel_domain domain = domain_of(own, level);

		/* The classic balancer's idle CPU begins above the lowest domain. */
		if (HAS_PAPER_RULE(RULE_PARENT) && domain.ranges && !domains++)
			continue;
		c->busiest = GROUP_NONE;
		bpf_for(i, 0, domain.ranges) {
			struct cpu_range range = range_at(domain.first_range + i);

			if (has_position(range, position_of(own)))
				continue;
			if (range.count == 1 && !has_bit(&waiting_cpus, cpu_at(range.first)))
				continue;
			if (settings.gate != GATE_ALWAYS)
				sum_sources(&c->group, range.first, range.count, own, true);
			else
				sum_group(&c->group, range.first, range.count, NULL, NULL);
			if (c->group.busiest != NO_CPU && balance_is_busier(&c->group, &c->busiest))
				c->busiest = c->group;
		}
		quota = balance_pull_quota(&params, &c->busiest, &view, domain.shared);
		if (HAS_PAPER_RULE(RULE_RATIO) && quota && should_take_all(own, c, &params))
			quota = MAX_LOAD;
		if (quota)
			taken = pull_tasks(own, c->busiest.busiest, quota, MOVE_IDLE,
					   abstains && !is_cpu_taken(c->busiest.busiest));
		if (settings.gate != GATE_ALWAYS && taken)
			note_pulled(c->busiest.busiest);
		if (taken && !should_go_on(&params))
			break;
		if (taken && should_go_on(&params)) {
			has_pulled = true;
			taken = false;
			view_cpu_state(own, c, &view);
			view.idle = false;
		}
	}
	return taken || has_pulled;
}

/* The CPU that balances for the whole group of `own`: the first that is busy and not shielded. */
KEEL_PART u32 find_leader(u32 first, u32 count, u32 own)
{
	u32 position;

	bpf_for(position, first, first + count) {
		u32 cpu = cpu_at(position);
		struct cpu_state *c = cpu_state(cpu);

		if (cpu == own || (c && READ_ONCE(c->running_weight) &&
				   !READ_ONCE(c->taken_since_ns) && !is_shielded(cpu)))
			return cpu;
	}
	return own;
}

/*
 * Whether another CPU balances for the group of `own` in a domain, by 4.1.4 of paper 002 to the letter:
 * the first idle speed core, an idle core, or else the first one. An idle one is kicked to do so.
 */
static __always_inline bool leaves_to_leader(u32 own, u32 first_range, u32 ranges)
{
	struct balance_params params = balance_params();
	u32 i, position, leader = own;
	struct cpu_view best, view;

	bpf_for(i, 0, ranges) {
		struct cpu_range range = range_at(first_range + i);

		if (!has_position(range, position_of(own)))
			continue;
		leader = cpu_at(range.first);
		bpf_for(position, range.first + 1, range.first + range.count) {
			if (view_cpu(leader, &best) && view_cpu(cpu_at(position), &view) &&
			    balance_is_better_leader(&params, &best, &view))
				leader = view.cpu;
		}
	}
	if (leader == own)
		return false;
	if (has_any_bit(&waiting_cpus) && scx_bpf_test_and_clear_cpu_idle(leader))
		scx_bpf_kick_cpu(leader, SCX_KICK_IDLE);
	return true;
}

/*
 * A busy CPU looks for more load than its own, in each domain that is due. In a group of
 * several CPUs only the first busy one does so: idle CPUs look by themselves, and have no tick.
 */
KEEL_PART int balance_periodic(u32 own, u64 now)
{
	struct balance_params params = balance_params();
	struct cpu_state *c = cpu_state(own);
	struct cpu_view view;
	u32 level, i;

	if (!c)
		return 0;
	/* All of this is due when the shield ends. */
	if (is_shielded(own)) {
		c->look_at_ns = now;
		return 0;
	}
	/* The gate keeps all tasks where they wait, or Algorithm 1 does; that may soon change. */
	if ((settings.gate != GATE_ALWAYS && !has_source(own, false)) || should_not_search(own)) {
		c->look_at_ns = min_u64(c->look_at_ns, now + BUSY_FACTOR * NS_PER_MS);
		return 0;
	}
	if (HAS_PAPER_RULE(RULE_RATIO))
		params = get_idle_params(own);
	bpf_for(level, 0, settings.levels) {
		struct keel_domain domain = domain_of(own, level);
		u32 leader = own;
		u64 quota, at;

		if (!domain.ranges)
			continue;
		at = c->balance_at_ns[BOUNDED(level, MAX_LEVELS)];
		if (now < at) {
			c->look_at_ns = min_u64(c->look_at_ns, at);
			continue;
		}
		at = now + domain.cpus * BUSY_FACTOR * NS_PER_MS;
		c->balance_at_ns[BOUNDED(level, MAX_LEVELS)] = at;
		c->look_at_ns = min_u64(c->look_at_ns, at);
		if (HAS_PAPER_RULE(RULE_LEADER) &&
		    leaves_to_leader(own, domain.first_range, domain.ranges))
			continue;
		count_on(c, COUNT_TRY_PERIODIC);
		c->busiest = c->ours = GROUP_NONE;
		bpf_for(i, 0, domain.ranges) {
			struct cpu_range range = range_at(domain.first_range + i);

			if (settings.gate != GATE_ALWAYS && !has_position(range, position_of(own)))
				sum_sources(&c->group, range.first, range.count, own, false);
			else
				sum_group(&c->group, range.first, range.count, NULL, NULL);
			if (has_position(range, position_of(own))) {
				c->ours = c->group;
				leader = find_leader(range.first, range.count, own);
			} else if (c->group.busiest != NO_CPU &&
				   balance_is_busier(&c->group, &c->busiest)) {
				c->busiest = c->group;
			}
		}
		if (HAS_PAPER_RULE(RULE_LEADER))
			leader = own;
		if (leader != own || !balance_is_busier(&c->busiest, &c->ours))
			continue;
		view_cpu_state(own, c, &view);
		quota = balance_pull_quota(&params, &c->busiest, &view, domain.shared);
		if (!quota)
			continue;
		if (HAS_PAPER_RULE(RULE_RATIO) && should_take_all(own, c, &params))
			quota = MAX_LOAD;
		pull_tasks(own, c->busiest.busiest, quota, MOVE_PERIODIC, false);
		/* Not a local sum: the stack of `ias` is full. */
		c->search.arrived += c->search.taken;
	}
	return 0;
}

/* A stray was sent back to this CPU. A function of its own for the same reason as note_move(). */
KEEL_PART int kick_home_cpu(u32 cpu)
{
	count(COUNT_SEND_BACK);
	set_bit(&waiting_cpus, cpu);
	scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
	return 0;
}

/*
 * Liveness: moves waiting tasks that may not run here back to their own CPU. The kernel can pin a
 * task to its CPU (migrate_disable()) at the moment when another CPU pulls it.
 */
KEEL_PART int send_strays_back(u32 own)
{
	u64 budget = READ_ONCE(tunables.scan_limit);
	struct task_struct *p;

	bpf_for_each(scx_dsq, p, own, 0) {
		u32 cpu = scx_bpf_task_cpu(p);
		struct task_state *t;

		if (!budget)
			break;
		budget--;
		/* Nearly all tasks belong here: for these nothing is looked up. */
		if (cpu == own || may_run_on(p, own))
			continue;
		t = task_state(p);
		if (t && move_waiter(THIS_ITERATOR, p, t, own, cpu))
			kick_home_cpu(cpu);
	}
	return 0;
}

#endif
