// SPDX-License-Identifier: GPL-2.0-only
/*
 * The keel: one scheduler, three policies.
 *
 * Each CPU has a queue ordered by vruntime (a dispatch queue whose id is the CPU's
 * number). A task goes into the queue of the CPU that is chosen for it (place.h,
 * queue.h), waits there unless another CPU pulls it over (migrate.h), and is given
 * the CPU by `dispatch` (queue.h), which asks the order policy to choose between
 * the queue's head and who has run so far.
 *
 * What must never go wrong is done here, and no policy can veto it: affinity,
 * re-enqueueing what a real-time task pushed off its CPU, waking idle CPUs, and
 * that nobody waits for ever. Policies (policy/) see values and return values.
 *
 * CPU hotplug: the kernel ends a scheduler that does not handle it itself with a
 * request to be restarted, and product/keel does so, with the machine read anew.
 */
#include <kernel.h>

#include "../../policy/order.h"
#include "../../policy/gate.h"
#include "../../policy/balance.h"

#include "intf.h"
#include "state.h"
#include "group.h"
#include "load.h"
#include "index.h"
#include "sibling.h"
#include "task.h"
#include "ask_gate.h"
#include "shield.h"
#include "migrate.h"
#include "kick_slaves.h"
#include "fetch.h"
#include "place.h"
#include "active.h"
#include "evict.h"
#include "pick.h"
#include "queue.h"
#include "tick.h"
#include "report.h"

char _license[] SEC("license") = "GPL";

s32 KEEL_OPS_S(keel_init)
{
	u64 now = scx_bpf_now();
	u32 cpu;

	bpf_for(cpu, 0, settings.cpus) {
		struct cpu_state *c = cpu_state(cpu);
		s32 error;

		/* Offline ones, too: one that comes runs tasks before the keel is loaded anew. */
		if (!c)
			continue;
		c->busy_since_ns = now;
		c->idles = 1;
		error = scx_bpf_create_dsq(cpu, -1);
		if (error)
			return error;
	}
	/* Those that never run anything of ours do nothing, for all that we know. */
	bpf_for(cpu, 0, settings.online)
		set_bit(&idle_cpus, cpu_at(cpu));
	return 0;
}

SEC(".struct_ops.link")
struct sched_ext_ops keel_ops = {
	.select_cpu = (void *)keel_select_cpu,
	.enqueue = (void *)keel_enqueue,
	.dispatch = (void *)keel_dispatch,
	.tick = (void *)keel_tick,
	.running = (void *)keel_running,
	.stopping = (void *)keel_stopping,
	.quiescent = (void *)keel_quiescent,
	.yield = (void *)keel_yield,
	.cpu_acquire = (void *)keel_cpu_acquire,
	.cpu_release = (void *)keel_cpu_release,
	.update_idle = (void *)keel_update_idle,
	.init_task = (void *)keel_init_task,
	.exit_task = (void *)keel_exit_task,
	.enable = (void *)keel_enable,
	.disable = (void *)keel_disable,
	.dump = (void *)keel_dump,
	.dump_cpu = (void *)keel_dump_cpu,
	.dump_task = (void *)keel_dump_task,
	.cgroup_init = (void *)keel_cgroup_init,
	.cgroup_exit = (void *)keel_cgroup_exit,
	.cgroup_move = (void *)keel_cgroup_move,
	.cgroup_set_weight = (void *)keel_cgroup_set_weight,
	.cgroup_set_bandwidth = (void *)keel_cgroup_set_bandwidth,
	.init = (void *)keel_init,
	.exit = (void *)keel_exit,
	.timeout_ms = 30000,
	.exit_dump_len = DUMP_BYTES,
	.name = "evenkeel",
};
