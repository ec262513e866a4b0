/* SPDX-License-Identifier: GPL-2.0-only */
/* Reports: the keel's state for the kernel's dump, and why the keel ended. */
#ifndef EVENKEEL_KEEL_REPORT_H
#define EVENKEEL_KEEL_REPORT_H

void KEEL_OPS(keel_dump, struct scx_dump_ctx *dump)
{
	scx_bpf_dump("keel: order=%u gate=%u balance=%u slice_ns=%llu\n", settings.order,
		     settings.gate, settings.balance, tunables.slice_ns);
}

void KEEL_OPS(keel_dump_cpu, struct scx_dump_ctx *dump, s32 cpu, bool idle)
{
	struct cpu_state *c = cpu_state(cpu);

	if (!c || (idle && !c->runnable))
		return;
	scx_bpf_dump("keel: clock=%llu load=%llu runnable=%llu queued=%d\n", c->clock, c->load,
		     c->runnable, scx_bpf_dsq_nr_queued(cpu));
	scx_bpf_dump("keel: running_vruntime=%llu running_weight=%llu taken_since_ns=%llu busy=%u\n",
		     c->running_vruntime, c->running_weight, c->taken_since_ns, share_of(c->busy_share));
}

void KEEL_OPS(keel_dump_task, struct scx_dump_ctx *dump, struct task_struct *p)
{
	struct task_state *t = task_state(p);

	if (!t)
		return;
	scx_bpf_dump("keel: home=%u counted_on=%d vruntime=%llu weight=%llu group=%u\n", t->home,
		     (int)t->counted_on - 1, t->vruntime, t->weight, t->group);
	scx_bpf_dump("keel: waiting_since_ns=%llu (now %llu)\n", t->waiting_since_ns, dump->at_ns);
}

void KEEL_OPS(keel_exit, struct scx_exit_info *info)
{
	bpf_probe_read_kernel_str(exit_report.reason, REASON_BYTES, info->reason);
	bpf_probe_read_kernel_str(exit_report.message, MESSAGE_BYTES, info->msg);
	bpf_probe_read_kernel_str(exit_report.dump, DUMP_BYTES, info->dump);
	exit_report.code = info->exit_code;
	__sync_lock_test_and_set(&exit_report.kind, info->kind);
}

#endif
