/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Rescue: liveness for tasks with so little weight that their turn does not come, and for any task
 * that waits for too long for another reason. A task that has waited for MAX_WAIT_NS is starving. A
 * CPU with starving tasks in its queue runs one every calc_rescue_interval(), the longest waiting
 * first.
 *
 * The queue is in the order of vruntime, and says nothing of waiting times. So the CPU walks through
 * its whole queue, lists the tasks that have waited longest, and walks again when it has run these, or
 * they have migrated. While no task starves it walks when the first one could, at the latest after
 * SCAN_INTERVAL_NS, and when it has pulled tasks while it was busy.
 */
#ifndef EVENKEEL_KEEL_RESCUE_H
#define EVENKEEL_KEEL_RESCUE_H

/* A task that waited longer than this runs next, whatever the order says. */
#define MAX_WAIT_NS 5000000000ULL
/* How long a rescued task runs. */
#define RESCUE_SLICE_NS 4000000ULL
/* How often a CPU rescues one: starving tasks get a quarter of the CPU then. */
#define RESCUE_INTERVAL_NS (4 * RESCUE_SLICE_NS)
/*
 * In a round each starving task runs once. Where rounds would take longer than this, rescues come more
 * often, until starving tasks get half of the CPU.
 */
#define RESCUE_ROUND_NS 2500000000ULL
/*
 * No round takes longer than this, whatever part of the CPU that takes: the kernel ends a scheduler that
 * lets a task wait for 30 s.
 */
#define MAX_ROUND_NS 20000000000ULL
/* The times between two walks while no task starves. */
#define SCAN_INTERVAL_NS 1000000000ULL
#define MIN_SCAN_INTERVAL_NS 100000000ULL
/* A walk looks at so many times `scan_limit` tasks. */
#define SCAN_FACTOR 64
/* How many starving tasks a walk lists. */
#define MAX_LISTED 16

struct starving_task {
	u64 since_ns;	/* since when it waits */
	u64 pid;
};

/* The starving tasks of a CPU's queue as of the last walk; only the CPU itself writes them. */
struct starving_list {
	u64 tasks;	/* how many starve, or have waited for half of the time */
	u64 listed;	/* how many starving tasks are listed */
	u64 served;	/* how many of these had their turn, or have left */
	u64 next_ns;	/* when the next one could starve */
	u64 budget;	/* how many tasks the walk may still look at */
	struct starving_task task[MAX_LISTED];	/* the longest waiting first */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_CPUS);
	__type(key, u32);
	__type(value, struct starving_list);
} starving SEC(".maps");

/* Lists a starving task, unless MAX_LISTED others wait longer. */
KEEL_PART int list_starving(struct starving_list *list, u64 since_ns, u64 pid)
{
	u32 i;

	if (!list)
		return 0;
	if (list->listed < MAX_LISTED)
		list->listed++;
	else if (list->task[MAX_LISTED - 1].since_ns <= since_ns)
		return 0;
	for (i = MAX_LISTED - 1; i > 0; i--) {
		if (i >= list->listed)
			continue;
		if (list->task[i - 1].since_ns <= since_ns)
			break;
		list->task[i] = list->task[i - 1];
	}
	list->task[i].since_ns = since_ns;
	list->task[i].pid = pid;
	return 0;
}

/* Walks through the queue and lists its starving tasks. */
KEEL_PART int find_starving(u32 own, u64 now)
{
	struct starving_list *list = bpf_map_lookup_elem(&starving, &own);
	u64 limit = READ_ONCE(tunables.scan_limit);
	struct task_struct *p;

	if (!list)
		return 0;
	list->tasks = list->listed = list->served = 0;
	list->next_ns = now + SCAN_INTERVAL_NS;
	/*
	 * Not in a variable: its lowest bits would be known, and the verifier, which tells the rounds of
	 * the walk apart by them, would take as long for this walk as for all else.
	 */
	list->budget = limit * SCAN_FACTOR;
	/* From the tail, because starving tasks are behind those that get their turn. */
	bpf_for_each(scx_dsq, p, own, SCX_DSQ_ITER_REV) {
		struct task_state *t = task_state(p);
		u64 since_ns;

		if (!list->budget)
			break;
		list->budget--;
		if (!t)
			continue;
		since_ns = READ_ONCE(t->waiting_since_ns);
		if (now > since_ns + MAX_WAIT_NS / 2)
			list->tasks++;
		if (now < since_ns + MAX_WAIT_NS)
			list->next_ns = min_u64(list->next_ns, since_ns + MAX_WAIT_NS);
		else if (may_run_on(p, own))
			list_starving(list, since_ns, p->pid);
	}
	return 0;
}

/*
 * Gives the CPU to a task that was listed, if it still waits. It is placed at the queue's clock: it
 * may be far behind, and if the clock advanced to that, tasks that arrive would be placed behind all
 * others.
 */
KEEL_PART bool dispatch_starving(u32 own, u64 pid, u64 since_ns)
{
	struct task_struct *p = bpf_task_from_pid(pid);
	struct cpu_state *c = cpu_state(own);
	struct bpf_iter_scx_dsq queue;
	bool is_taken = false;
	struct task_state *t;

	if (!p)
		return 0;
	t = task_state(p);
	bpf_iter_scx_dsq_new(&queue, own, 0);
	/* Another task may have this pid by now. */
	if (c && t && READ_ONCE(t->waiting_since_ns) == since_ns && may_run_on(p, own)) {
		scx_bpf_dsq_move_set_slice(&queue, min_u64(READ_ONCE(tunables.slice_ns),
							   RESCUE_SLICE_NS));
		is_taken = scx_bpf_dsq_move(&queue, p, SCX_DSQ_LOCAL, 0);
	}
	bpf_iter_scx_dsq_destroy(&queue);
	if (is_taken && c && t) {
		t->home = own;
		if (is_vruntime_before(c->clock, t->vruntime))
			t->vruntime = c->clock;
		count_on(c, COUNT_RESCUE);
		c->rescued = 1;
	}
	bpf_task_release(p);
	return is_taken;
}

/* The time between two rescues while so many tasks starve: all have their turn within a round. */
static __always_inline u64 calc_rescue_interval(u64 tasks)
{
	if (tasks <= RESCUE_ROUND_NS / RESCUE_INTERVAL_NS)
		return RESCUE_INTERVAL_NS;
	if (tasks <= 2 * RESCUE_ROUND_NS / RESCUE_INTERVAL_NS)
		return RESCUE_ROUND_NS / tasks;
	return min_u64(RESCUE_INTERVAL_NS / 2, MAX_ROUND_NS / tasks);
}

/* Gives the CPU to the first listed task that still waits here; false: there is none. */
KEEL_PART bool dispatch_listed(u32 own)
{
	struct starving_list *list = bpf_map_lookup_elem(&starving, &own);
	u32 i;

	if (!list)
		return 0;
	bpf_for(i, 0, MAX_LISTED) {
		u64 at = list->served;
		struct starving_task *task = &list->task[BOUNDED(at, MAX_LISTED)];

		if (at >= list->listed)
			break;
		list->served = at + 1;
		if (dispatch_starving(own, task->pid, task->since_ns))
			return 1;
	}
	return 0;
}

/* Liveness: the task that starves longest in this CPU's queue runs next; then `rescued` is set. */
KEEL_PART int rescue_waiter(u32 own, u64 now)
{
	struct starving_list *list = bpf_map_lookup_elem(&starving, &own);
	struct cpu_state *c = cpu_state(own);

	if (!c || !list || now < c->rescue_at_ns)
		return 0;
	/* All listed tasks had their turn, or balancing has moved them to another CPU. */
	if (!dispatch_listed(own)) {
		send_strays_back(own);
		find_starving(own, now);
		dispatch_listed(own);
	}
	/* Half a slice early: dispatch asks only at the ends of slices, which are not exact. */
	if (list->listed)
		c->rescue_at_ns = now + calc_rescue_interval(list->tasks) - RESCUE_SLICE_NS / 2;
	else
		c->rescue_at_ns = max_u64(list->next_ns, now + MIN_SCAN_INTERVAL_NS);
	return 0;
}

/*
 * Tasks came from another CPU, and may have waited there for long. While none starves here, the CPU
 * would look for them only up to SCAN_INTERVAL_NS later.
 */
static __always_inline void note_arrivals(u32 own, struct cpu_state *c, u64 now)
{
	struct starving_list *list = bpf_map_lookup_elem(&starving, &own);

	if (list && !list->listed)
		c->rescue_at_ns = now;
}

#endif
