// SPDX-License-Identifier: GPL-2.0-only
/*
 * The witness: reports what happens to tasks and CPUs, for the checkers in
 * lab/invariants. lab/witness/src/tracer.rs loads it and reads its ring buffer. It
 * never changes a decision. Events that find the buffer full are counted.
 *
 * All CPUs share one ring buffer, so that its order is the order in which things
 * happened: each event is written while the kernel holds the lock of the runqueue
 * or of the task that the event is about.
 */
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

typedef __u32 u32;
typedef __u64 u64;
#include "witness.h"

#define TASK_DEAD 0x80		/* kernel: include/linux/sched.h */
#define TASK_WAKING 0x200
#define ON_RQ_QUEUED 1		/* kernel: kernel/sched/sched.h */

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct cpumask {
	unsigned long bits[1];
};

struct sched_entity {
	u64 sum_exec_runtime;
	unsigned char sched_delayed;	/* since 6.12 */
};

struct thread_info {
	u32 cpu;
};

struct task_struct {
	struct thread_info thread_info;
	unsigned int __state;
	int pid;
	int prio;
	int static_prio;
	unsigned int policy;
	int on_rq;
	const struct cpumask *cpus_ptr;
	struct task_group *sched_task_group;
	struct sched_entity se;
};
#pragma clang attribute pop

struct affinity_context;

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);	/* set at load */
} events SEC(".maps");

u64 lost;

/* `subject` is the task that the mask, group and priorities are of: see witness_event. */
static __always_inline struct witness_event *begin(u32 kind, const struct task_struct *task,
						   const struct task_struct *subject)
{
	struct witness_event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);

	if (!event) {
		__sync_fetch_and_add(&lost, 1);
		return 0;
	}
	event->time_ns = bpf_ktime_get_ns();
	event->cpu = bpf_get_smp_processor_id();
	event->kind = kind;
	event->task = BPF_CORE_READ(task, pid);
	event->other = 0;
	event->left = 0;
	event->charged_ns = 0;
	event->allowed = BPF_CORE_READ(subject, cpus_ptr, bits[0]);
	event->group = (u64)BPF_CORE_READ(subject, sched_task_group);
	event->policy = BPF_CORE_READ(subject, policy);
	event->prio = BPF_CORE_READ(subject, prio);
	event->static_prio = BPF_CORE_READ(subject, static_prio);
	return event;
}

static __always_inline void end(struct witness_event *event)
{
	bpf_ringbuf_submit(event, BPF_RB_NO_WAKEUP);
}

/* The state alone does not tell: a task that was about to sleep stays queued if a signal is pending. */
static __always_inline u32 how_it_left(const struct task_struct *prev, unsigned int state)
{
	bool delayed = bpf_core_field_exists(prev->se.sched_delayed) &&
		       BPF_CORE_READ(prev, se.sched_delayed);

	if (state & TASK_DEAD)
		return WITNESS_DEAD;
	/* An int until 7.1, a byte since 7.2: read in the running kernel's width. */
	return BPF_CORE_READ_BITFIELD_PROBED(prev, on_rq) == ON_RQ_QUEUED && !delayed ?
		       WITNESS_RUNNABLE :
		       WITNESS_ASLEEP;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, bool preempt, struct task_struct *prev, struct task_struct *next,
	     unsigned int prev_state)
{
	struct witness_event *event = begin(WITNESS_SWITCH, prev, next);

	if (!event)
		return 0;
	event->other = BPF_CORE_READ(next, pid);
	event->left = how_it_left(prev, prev_state);
	event->charged_ns = BPF_CORE_READ(prev, se.sum_exec_runtime);
	end(event);
	return 0;
}

static __always_inline int report(u32 kind, const struct task_struct *task, u32 other)
{
	struct witness_event *event = begin(kind, task, task);

	if (event) {
		event->other = other;
		end(event);
	}
	return 0;
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(on_wakeup, struct task_struct *task)
{
	return report(WITNESS_WAKEUP, task, 0);
}

SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(on_wakeup_new, struct task_struct *task)
{
	return report(WITNESS_WAKEUP, task, 0);
}

SEC("tp_btf/sched_migrate_task")
int BPF_PROG(on_migrate, struct task_struct *task, int to)
{
	return report(WITNESS_MIGRATE, task, to);
}

/* All scheduling classes store a new mask there. */
SEC("fexit/set_cpus_allowed_common")
int BPF_PROG(on_affinity, struct task_struct *task, struct affinity_context *how)
{
	u32 wakes_on = 0;

	/* Then it waits in its CPU's list of wake-ups (kernel: ttwu_queue_wakelist()). */
	if (BPF_CORE_READ(task, __state) == TASK_WAKING)
		wakes_on = 1 + BPF_CORE_READ(task, thread_info.cpu);
	return report(WITNESS_AFFINITY, task, wakes_on);
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(on_fork, struct task_struct *parent, struct task_struct *child)
{
	struct witness_event *event = begin(WITNESS_FORK, parent, child);

	if (event) {
		event->other = BPF_CORE_READ(child, pid);
		end(event);
	}
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(on_exit, struct task_struct *task)
{
	return report(WITNESS_EXIT, task, 0);
}

char LICENSE[] SEC("license") = "GPL";
