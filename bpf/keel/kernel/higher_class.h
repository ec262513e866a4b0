/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Whether a task of a higher class (stopper, deadline, real-time) is about to run on this idle CPU, by
 * the kernel's runqueue. The runqueue is reached through the idle task, because its symbol is hidden
 * where the kernel lacks KALLSYMS_ALL.
 *
 * The runqueue's count of all runnable tasks is compared with that of sched_ext. The counts of each
 * higher class would not do: that of deadline tasks includes deadline servers, which run tasks of lower
 * classes, from Linux 7.0 on sched_ext's own. Neither count includes tasks that are throttled.
 */
#ifndef EVENKEEL_HIGHER_CLASS_H
#define EVENKEEL_HIGHER_CLASS_H

/* The fields of the kernel's own types that are read; relocated at load time. */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct scx_rq___higher {
	unsigned int nr_running;
};

struct rq___higher {
	unsigned int nr_running;
	struct scx_rq___higher scx;
};

struct cfs_rq___higher {
	struct rq___higher *rq;
};

struct sched_entity___higher {
	struct cfs_rq___higher *cfs_rq;
};

struct task_struct___higher {
	int pid;
	struct sched_entity___higher se;
};

#pragma clang attribute pop

static __always_inline bool is_awaited_by_higher_class(void)
{
	struct task_struct___higher *current = (void *)bpf_get_current_task_btf();
	struct rq___higher *rq;

	if (!bpf_core_field_exists(struct sched_entity___higher, cfs_rq) ||
	    !bpf_core_field_exists(struct rq___higher, scx))
		return false;
	/*
	 * Only on an idle CPU. On one that a higher class has, the kernel may still call for the
	 * sched_ext task that is to have a little of it.
	 */
	if (current->pid)
		return false;
	rq = current->se.cfs_rq->rq;
	return rq->nr_running > rq->scx.nr_running;
}

#endif
