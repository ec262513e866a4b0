/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Whether a real-time task is about to run on this idle CPU, by the kernel's runqueue. The runqueue
 * is reached through the idle task, because its symbol is hidden where the kernel lacks
 * KALLSYMS_ALL.
 */
#ifndef EVENKEEL_REALTIME_H
#define EVENKEEL_REALTIME_H

/* The fields of the kernel's own types that are read; relocated at load time. */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct rt_rq___realtime {
	int rt_queued;	/* 1: there are tasks, and they may run */
};

struct rq___realtime {
	struct rt_rq___realtime rt;
};

struct cfs_rq___realtime {
	struct rq___realtime *rq;
};

struct sched_entity___realtime {
	struct cfs_rq___realtime *cfs_rq;
};

struct task_struct___realtime {
	int pid;
	struct sched_entity___realtime se;
};

#pragma clang attribute pop

static __always_inline bool is_awaited_by_real_time(void)
{
	struct task_struct___realtime *current = (void *)bpf_get_current_task_btf();

	if (!bpf_core_field_exists(struct sched_entity___realtime, cfs_rq) ||
	    !bpf_core_field_exists(struct rt_rq___realtime, rt_queued))
		return false;
	/*
	 * Only on an idle CPU. On one that a real-time task has, the kernel may still call for the
	 * sched_ext task that is to have a little of it.
	 */
	return !current->pid && current->se.cfs_rq->rq->rt.rt_queued;
}

#endif
