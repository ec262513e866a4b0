// SPDX-License-Identifier: GPL-2.0-only
/*
 * The keel: one sched_ext scheduler, three policies. policy/ decides (values in, a value out); this
 * folder holds the queues, the loops and the state, and guarantees what no policy can veto. This
 * file names the callbacks; the others implement them.
 *
 * 1. Queues and clocks. Each CPU has a dispatch queue (DSQ; the CPU's number is its id) in the
 * order of vruntime, and a clock: the largest vruntime with which a task of the queue got the CPU
 * in its turn (note_running() in task.h). A task that migrates keeps its distance from the clock,
 * not its vruntime (convert_vruntime() in task.h). A task is charged by its run time when it stops
 * and when dispatch considers it again, never by slices. The weight is the task's share within its
 * cgroups.
 *
 * 2. Place. A waking task goes to the CPU that it ran on, to an idle one near it, or to the waker's
 * (place.h). A new task or program descends from the machine into the least loaded group. An idle
 * CPU is claimed before a task is placed on it; a CPU that is claimed but not used is kicked,
 * because the claim cleared its bit in the kernel's idle mask. On a claimed CPU the task goes
 * straight to the local DSQ, otherwise into the CPU's queue.
 *
 * 3. Pick. Dispatch charges the task that ran, and the order policy picks between that task, the
 * queue's head and, under `ias`, two siblings (pick.h). Siblings come from an index beside the
 * queues (index.h), which is only a hint: the task is checked when it is taken. They are preferred
 * until the task that `fair` would run is behind its fair share by more than bonus and slice or, in the
 * mode `rounds`, by more than a slice and a turn (may_prefer() in sibling.h). In the mode `rounds`,
 * address spaces take turns: note_turn() in turn.h begins them, and a master publishes the space that
 * has its turn. A waking task that is far enough ahead preempts the running one (kick_or_preempt() in
 * queue.h). In the mode `rounds` it passes the turn, which then goes on; in the mode `paper` it does not
 * preempt where a sibling would get the CPU instead.
 *
 * 4. Migrate. Balancing pulls: a CPU that finds no task pulls one, smallest domain first; a busy
 * CPU pulls in dispatch, at intervals that grow with the domain (migrate.h). Three paths do not pull
 * for balance: active migration takes a running task to an idle or unequal CPU (active.h), a slave
 * exchanges a task for a sibling from its master's queue (fetch.h), and eviction pushes tasks off a
 * shielded CPU (evict.h).
 *
 * 5. Gate. Each CPU keeps the gate policy's verdict about the tasks that would leave it: its tick
 * and the edges of its idling compute it (update_opening() in load.h). Before an optional migration
 * the verdict is read and counted, and a sample of the refusals is kept for `explain` (ask_gate.h). A
 * CPU looks for tasks only where the gate lets tasks leave (has_source()). The gate is not asked about a
 * move for liveness. Unless it is strict, it is not asked about a new task either, nor, within a
 * last-level cache, about a waking task, a task at the end of its slice or an idle CPU's pull. All of
 * these are counted as ungated.
 *
 * 6. Liveness. No task moves outside its mask: each move checks it, and a task that was pinned
 * while it moved is sent back (send_strays_back() in migrate.h). A task that waited for 5 s runs
 * next (rescue.h); one that waited for `max_idle_wait_ns` while a CPU idles goes there. A
 * task that a higher class pushes off its CPU is enqueued again, and a CPU that was taken for 10 ms
 * looks heavier than any other. Tasks that may run elsewhere stay off shielded CPUs (shield.h).
 *
 * 7. Cgroups. A group competes in its parent like one task of its cpu.weight, however deep it is
 * (group.h). Only tasks have a vruntime, so a new task of a group pays for its first slice before it
 * runs (place_new_vruntime() in task.h): forks would be free otherwise. No user's cgroups take the
 * slots of others. cpu.max is not enforced, only counted.
 *
 * 8. Hotplug. The keel has no hotplug callbacks, so the kernel ends it with a request to restart
 * when a CPU comes or goes. product/keel reads the machine again and reloads the keel. Offline CPUs have
 * a queue too, for tasks that run on a new CPU before that. The new load gets the states of tasks, and
 * how busy each CPU was (keep_history() in task.h, keel_init() here). Waiting tasks stay on their CPUs:
 * the kernel takes all CPUs for idle then, and would scatter them.
 *
 * 9. Traps of sched_ext:
 *
 * - Dispatch is called with the previous task still queued when its slice is used up. If no other
 *   task is dispatched, the kernel lets it go on. So it is a candidate of the pick, and gets its
 *   slice there.
 * - With SCX_OPS_ENQ_LAST (set for active migration) the kernel instead enqueues the last task of a
 *   CPU, unless dispatch refilled its slice. That CPU is about to idle, and must be kicked to see
 *   its queue.
 * - An idle CPU does not call dispatch until it is kicked. So an enqueue kicks (after a barrier
 *   against a lost wake-up), and the tick of a CPU where tasks wait kicks idle CPUs
 *   (kick_idle_cpus() in tick.h).
 * - A slice ends at a tick only: one that is nearly used up at a tick would last until the next.
 * - A task that a higher class preempts with a slice left goes to the head of the local DSQ, out of
 *   reach of other CPUs. Without a slice it is enqueued: so its slice is set to 0 when it stops.
 * - cpu_release is not called where the higher class finds the CPU idle, or the running task
 *   changes class. update_idle and disable tell instead (tick.h).
 * - Dispatch is called before the higher classes are asked. A task put onto the CPU then would be
 *   stuck behind a task of a higher class (is_awaited_by_higher_class()).
 * - Moving tasks from other queues can drop the runqueue's lock: the previous task may be gone
 *   afterwards.
 * - A task that waits for `timeout_ms` ends the scheduler, so vruntimes are bounded
 *   (ORDER_BOUND_NS).
 *
 * Names: `own` is the CPU that decides, `src` and `dst` are the CPUs of a migration; `p` is the
 * kernel's task, `t` our state of it, `c` our state of a CPU. A KEEL_PART is a function that the
 * verifier checks on its own.
 *
 * The callbacks, in the order of a task's life:
 *
 *     keel_init                      here        creates the queues
 *     keel_cgroup_init, _exit        group.h     a cgroup gets a slot, and loses it
 *     keel_init_task, keel_enable    task.h      a task appears, and joins the class
 *     keel_select_cpu                place.h     a task wakes, or is new: chooses its CPU
 *     keel_enqueue                   queue.h     a task goes into a queue; kicks or preempts its CPU
 *     keel_dispatch                  queue.h     a CPU needs a task: pick.h, migrate.h, active.h
 *     keel_running                   task.h      a task gets the CPU
 *     keel_tick                      tick.h      each tick: active.h, evict.h, deferred preemption
 *     keel_yield                     task.h      sched_yield(2)
 *     keel_stopping                  task.h      a task gives up the CPU: charges it
 *     keel_quiescent                 task.h      a task sleeps, or is changed
 *     keel_cpu_release, _acquire     tick.h      a higher class takes the CPU, and returns it
 *     keel_update_idle               tick.h      a CPU becomes idle, or busy
 *     keel_cgroup_move, _set_weight, _set_bandwidth
 *                                    group.h     a task changes groups; a group changes
 *     keel_disable                   tick.h      a task leaves the class
 *     keel_exit_task                 task.h      a task ends
 *     keel_dump, _dump_cpu, _dump_task, keel_exit
 *                                    report.h    what the keel tells about its end
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
#include "turn.h"
#include "task.h"
#include "ask_gate.h"
#include "shield.h"
#include "migrate.h"
#include "rescue.h"
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

		/* Offline CPUs, too: a new CPU runs tasks before the keel is reloaded. */
		if (!c)
			continue;
		/* User space has passed on how busy an earlier load of the keel found this CPU. */
		if (c->busy_since_ns) {
			c->taken_since_ns = TAKEN_UNKNOWN;
			refresh_opening(cpu);
			open_for_liveness(cpu);
		} else {
			c->busy_since_ns = now;
			c->idles = 1;
			if (settings.gate != GATE_ALWAYS)
				c->opening = GATE_QUIET;
		}
		error = scx_bpf_create_dsq(cpu, -1);
		if (error)
			return error;
	}
	/* CPUs that never run a task of our class are idle, as far as the keel knows. */
	bpf_for(cpu, 0, settings.online) {
		struct cpu_state *c = cpu_state(cpu_at(cpu));

		if (c && c->idles)
			set_bit(&idle_cpus, cpu_at(cpu));
	}
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
