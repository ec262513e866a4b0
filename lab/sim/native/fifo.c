// SPDX-License-Identifier: GPL-2.0-only
/*
 * A trivial scheduler, loaded like the keel: one queue for all CPUs, first come, first served. Tests use
 * it because its schedule can be computed by hand; `sim bench` uses it to measure the engine alone.
 */
#include <kernel.h>

#define SLICE_NS 4000000

static s32 fifo_select_cpu(struct task_struct *p, s32 prev, u64 wake_flags)
{
	bool is_idle = false;
	s32 cpu = scx_bpf_select_cpu_dfl(p, prev, wake_flags, &is_idle);

	if (is_idle)
		scx_bpf_dsq_insert(p, SCX_DSQ_LOCAL, SLICE_NS, 0);
	return cpu;
}

static void fifo_enqueue(struct task_struct *p, u64 flags)
{
	scx_bpf_dsq_insert(p, SCX_DSQ_GLOBAL, SLICE_NS, flags);
}

struct sched_ext_ops fifo_ops = {
	.select_cpu = fifo_select_cpu,
	.enqueue = fifo_enqueue,
	.timeout_ms = 30000,
	.name = "fifo",
};
