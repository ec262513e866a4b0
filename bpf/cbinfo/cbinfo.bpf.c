// SPDX-License-Identifier: GPL-2.0-only
/*
 * cbinfo: where each CPU's time goes, and what each followed task got of it.
 *
 * The paper's kernel module (000, section 3.3) as BPF. Tick-based accounting
 * cannot see a thief that hides between ticks, so every stretch of time between
 * two events is summed by timestamp, under what the CPU was doing in it. A stretch
 * belongs to one activity only; interrupts nest over softirqs over tasks, and
 * what they take is not the task's. Time of a virtual machine's CPU that the
 * hypervisor gave to others ("steal") has no event: it is what the kernel's own
 * clock of the runqueue left out, and only as good as what the hypervisor tells.
 *
 * Nothing here relies on having seen the beginning of a thing: the programs may
 * be attached in mid-interrupt, and every context switch starts from a clean
 * state (no kernel without PREEMPT_RT switches tasks inside irq or softirq).
 */
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

typedef __u32 u32;
typedef __u64 u64;
#include "cbinfo.h"

#define MAX_RT_PRIO 100		/* kernel: include/linux/sched/prio.h */
#define PF_KTHREAD 0x00200000	/* kernel: include/linux/sched.h */
#define TASK_COMM_LEN 16

/* The fields of the kernel's own types that we read; relocated at load time. */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct cfs_rq;

struct sched_entity {
	u64 vruntime;
	struct cfs_rq *cfs_rq;
};

struct thread_info {
	u32 cpu;
};

struct task_struct {
	struct thread_info thread_info;
	int pid;
	int tgid;
	int prio;
	int on_cpu;
	unsigned int flags;
	unsigned int __state;
	char comm[TASK_COMM_LEN];
	u64 start_boottime;
	struct sched_entity se;
};

struct rt_rq {
	unsigned int rt_nr_running;
};

struct dl_rq {
	unsigned int dl_nr_running;
};

struct cfs_rq {
	unsigned int h_nr_runnable;	/* since 6.14: tasks that want to run */
	struct rq *rq;
};

/* Until 6.13 the same under another name; 6.12 and 6.13 count in it tasks that
 * have gone to sleep and wait to be taken off ("delayed"). */
struct cfs_rq___until_6_13 {
	unsigned int h_nr_running;
	unsigned int h_nr_delayed;
};

struct rq {
	struct cfs_rq cfs;
	struct rt_rq rt;
	struct dl_rq dl;
	u64 prev_steal_time_rq;		/* PARAVIRT_TIME_ACCOUNTING */
};

#pragma clang attribute pop

struct seq_file;

/* The beginnings of these two do not change (a promise of the kernel to BPF programs), so they need
 * no relocation. */
struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);		/* set to the number of possible CPUs at load */
	__type(key, u32);
	__type(value, struct cpu_account);
} cpus SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task_account);
} tasks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 256 * 1024);
} events SEC(".maps");

struct cbinfo_settings settings;

static __always_inline struct cpu_account *this_cpu(void)
{
	u32 cpu = bpf_get_smp_processor_id();

	return bpf_map_lookup_elem(&cpus, &cpu);
}

static __always_inline void begin_write(struct cpu_account *c)
{
	__sync_fetch_and_add(&c->sequence, 1);
}

static __always_inline void end_write(struct cpu_account *c)
{
	__sync_fetch_and_add(&c->sequence, 1);
}

/*
 * The time between two readings of the clock, which need not come in their order: a softirq that has
 * read it may be interrupted, other CPUs' clocks may be ahead, and where the kernel adjusts the clock
 * it may go back by some ns. What lies before `then` is accounted already.
 */
static __always_inline u64 passed_ns(u64 then, u64 now)
{
	return now > then ? now - then : 0;
}

/* Sums the stretch that ends now and begins the next one. Call inside a write. */
static __always_inline void turn_to(struct cpu_account *c, u64 activity, u64 now)
{
	u64 old = c->activity;

	if (now < c->since_ns)
		now = c->since_ns;
	/* The mask tells the verifier what the enum says. */
	if (c->since_ns && old < CPU_ACTIVITIES)
		c->sum_ns[old & 7] += now - c->since_ns;
	c->since_ns = now;
	c->activity = activity;
	c->events++;
}

static __always_inline u64 stolen_ns(const struct cpu_account *c)
{
	return c->sum_ns[CPU_SOFTIRQ] + c->sum_ns[CPU_IRQ];
}

/*
 * The runqueue that the task is on or was on last. Reached through the task because
 * the per-CPU symbol itself is hidden where the kernel lacks KALLSYMS_ALL.
 */
static __always_inline const struct rq *rq_of(const struct task_struct *task)
{
	/* By probing reads: for each pointer that is followed otherwise, the verifier searches all
	 * types of the kernel, a millisecond each time. */
	return BPF_CORE_READ(task, se.cfs_rq, rq);
}

static __always_inline u64 steal_ns(const struct rq *rq)
{
	if (!bpf_core_field_exists(rq->prev_steal_time_rq))
		return 0;
	return BPF_CORE_READ(rq, prev_steal_time_rq);
}

static __always_inline void note_steal(struct cpu_account *c, u64 steal)
{
	/* Zero is as good a base as any: then there was none before. */
	if (!c->steal_base_ns)
		c->steal_base_ns = steal;
	c->steal_ns = steal - c->steal_base_ns;
}

static __always_inline bool is_ksoftirqd(const struct task_struct *task)
{
	static const char name[] = "ksoftirqd";
	int i;

	if (!(task->flags & PF_KTHREAD))
		return false;
	for (i = 0; i < (int)sizeof(name) - 1; i++)
		if (task->comm[i] != name[i])
			return false;
	return true;
}

static __always_inline u64 fair_runnable(const struct rq *rq)
{
	const struct cfs_rq___until_6_13 *old;
	u64 running;

	if (bpf_core_field_exists(rq->cfs.h_nr_runnable))
		return BPF_CORE_READ(rq, cfs.h_nr_runnable);
	old = (const void *)&rq->cfs;
	running = BPF_CORE_READ(old, h_nr_running);
	if (bpf_core_field_exists(old->h_nr_delayed))
		running -= BPF_CORE_READ(old, h_nr_delayed);
	return running;
}

static __always_inline u64 task_activity(struct task_struct *task, bool followed)
{
	if (!task->pid)
		return CPU_IDLE;
	if (task->prio < MAX_RT_PRIO)
		return CPU_RT;
	return followed ? CPU_FOLLOWED : CPU_FOREIGN;
}

/* Adds to `t` what its task got on this CPU since it was switched in. */
static __always_inline void charge(struct task_account *t, const struct cpu_account *c,
				   u64 followed, u64 stolen, u64 steal)
{
	u64 run = followed - c->followed_at_switch_ns;

	/* Switched in before we looked: what was stolen before is nothing to this task. */
	steal = c->steal_at_switch_ns ? steal - c->steal_at_switch_ns : 0;
	if (steal > run)
		steal = run;
	run -= steal;
	t->run_ns += run;
	t->stolen_ns += stolen - c->stolen_at_switch_ns + steal;
	t->received_ns += run * c->speed / 1024;
}

static __always_inline void send_event(struct cpu_account *c, u64 kind, u64 tid, u64 tgid,
				       u64 parent_tid)
{
	struct task_event event = {
		.kind = kind, .tid = tid, .tgid = tgid, .parent_tid = parent_tid,
	};
	u64 wake = settings.urgent_events && kind != TASK_EXIT ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP;

	if (bpf_ringbuf_output(&events, &event, sizeof(event), wake))
		c->lost_events++;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, bool preempt, struct task_struct *prev, struct task_struct *next,
	     unsigned int prev_state)
{
	const struct rq *rq = rq_of(next);
	struct task_account *leaving, *arriving;
	struct cpu_account *c = this_cpu();
	u64 now = bpf_ktime_get_ns();
	u64 rt, fair;

	if (!c)
		return 0;
	leaving = bpf_task_storage_get(&tasks, prev, 0, 0);
	arriving = bpf_task_storage_get(&tasks, next, 0, 0);

	begin_write(c);
	turn_to(c, task_activity(next, arriving), now);

	rt = BPF_CORE_READ(rq, rt.rt_nr_running) + BPF_CORE_READ(rq, dl.dl_nr_running);
	fair = fair_runnable(rq);
	/* ksoftirqd's time is counted as softirq; it must not count as a competitor too. */
	if (fair && is_ksoftirqd(next))
		fair--;
	if (c->switched_ns) {
		c->fair_runnable_ns += c->fair_runnable * passed_ns(c->switched_ns, now);
		c->rt_runnable_ns += c->rt_runnable * passed_ns(c->switched_ns, now);
	}
	c->fair_runnable = fair;
	c->rt_runnable = rt;
	c->switched_ns = now;

	if (leaving) {
		charge(leaving, c, c->sum_ns[CPU_FOLLOWED], stolen_ns(c), steal_ns(rq));
		/* Preempted, not asleep: it waits from now on. */
		leaving->waiting_since_ns = preempt || !prev_state ? now : 0;
	}
	if (arriving) {
		if (arriving->waiting_since_ns)
			arriving->wait_ns += passed_ns(arriving->waiting_since_ns, now);
		arriving->waiting_since_ns = 0;
		arriving->switches++;
	}
	c->followed_at_switch_ns = c->sum_ns[CPU_FOLLOWED];
	c->stolen_at_switch_ns = stolen_ns(c);
	c->steal_at_switch_ns = steal_ns(rq);
	note_steal(c, c->steal_at_switch_ns);
	c->current_tid = next->pid;
	c->in_softirq = 0;
	end_write(c);
	return 0;
}

static __always_inline void start_waiting(struct task_struct *task)
{
	struct task_account *t = bpf_task_storage_get(&tasks, task, 0, 0);

	if (t && !t->waiting_since_ns && !task->on_cpu)
		t->waiting_since_ns = bpf_ktime_get_ns();
}

SEC("tp_btf/sched_wakeup")
int BPF_PROG(on_wakeup, struct task_struct *task)
{
	start_waiting(task);
	return 0;
}

SEC("tp_btf/sched_wakeup_new")
int BPF_PROG(on_wakeup_new, struct task_struct *task)
{
	start_waiting(task);
	return 0;
}

/*
 * When the CPU left what it was doing for the interrupt whose tracepoint is hit now. The way back,
 * which is part of the cost, is counted here, too.
 */
static __always_inline u64 interrupt_start_ns(const struct cpu_account *c, u64 now)
{
	u64 open = passed_ns(c->since_ns, now);
	u64 cost = settings.interrupt_cost_ns;

	return now - (cost < open ? cost : open);
}

static __always_inline int interrupt(u64 activity, bool entry)
{
	struct cpu_account *c = this_cpu();
	u64 now = bpf_ktime_get_ns();

	if (!c)
		return 0;
	begin_write(c);
	/* One that interrupts a softirq or an interrupt takes nothing that is not counted so. */
	if (entry && activity == CPU_IRQ && c->activity < CPU_SOFTIRQ)
		now = interrupt_start_ns(c, now);
	if (activity == CPU_SOFTIRQ)
		c->in_softirq = entry;
	if (!entry) {
		struct task_struct *task = bpf_get_current_task_btf();

		activity = c->in_softirq ? CPU_SOFTIRQ :
			task_activity(task, bpf_task_storage_get(&tasks, task, 0, 0));
		note_steal(c, steal_ns(rq_of(task)));
		/* No switch has told yet who runs here: who did when we came may stay for long. */
		if (!c->switched_ns)
			c->current_tid = task->pid;
	}
	turn_to(c, activity, now);
	end_write(c);
	return 0;
}

/*
 * Raw tracepoints, so that one verified program serves all tracepoints of its kind;
 * user space attaches them (and knows which tracepoints this architecture has).
 */
SEC("raw_tp")
int softirq_entry(void *ctx)
{
	return interrupt(CPU_SOFTIRQ, true);
}

SEC("raw_tp")
int softirq_exit(void *ctx)
{
	return interrupt(CPU_SOFTIRQ, false);
}

SEC("raw_tp")
int irq_entry(void *ctx)
{
	return interrupt(CPU_IRQ, true);
}

SEC("raw_tp")
int irq_exit(void *ctx)
{
	return interrupt(CPU_IRQ, false);
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(on_fork, struct task_struct *parent, struct task_struct *child)
{
	struct task_account *of_parent = bpf_task_storage_get(&tasks, parent, 0, 0);
	struct task_account account = {};
	struct cpu_account *c = this_cpu();

	if (!of_parent || !c)
		return 0;
	account.program = of_parent->program;
	bpf_task_storage_get(&tasks, child, &account, BPF_LOCAL_STORAGE_GET_F_CREATE);
	send_event(c, TASK_FORK, child->pid, child->tgid, parent->pid);
	return 0;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(on_exec, struct task_struct *task)
{
	struct cpu_account *c = this_cpu();

	if (c && bpf_task_storage_get(&tasks, task, 0, 0))
		send_event(c, TASK_EXEC, task->pid, task->tgid, 0);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(on_exit, struct task_struct *task)
{
	struct cpu_account *c = this_cpu();

	if (c && bpf_task_storage_get(&tasks, task, 0, 0))
		send_event(c, TASK_EXIT, task->pid, task->tgid, 0);
	return 0;
}

/* Marks the tasks of process `settings.follow_tgid`, and writes each one's id. */
SEC("iter/task")
int follow(struct bpf_iter__task *ctx)
{
	struct task_account account = { .program = settings.follow_program };
	struct task_struct *task = ctx->task;
	u64 tid;

	if (!task || task->tgid != settings.follow_tgid)
		return 0;
	tid = task->pid;
	if (bpf_task_storage_get(&tasks, task, &account, BPF_LOCAL_STORAGE_GET_F_CREATE))
		bpf_seq_write(ctx->meta->seq, &tid, sizeof(tid));
	return 0;
}

/* Ends the accounting of every task of program `settings.follow_program`. */
SEC("iter/task")
int forget(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct task_account *t;

	if (!task)
		return 0;
	t = bpf_task_storage_get(&tasks, task, 0, 0);
	if (t && t->program == settings.follow_program)
		bpf_task_storage_delete(&tasks, task);
	return 0;
}

/* Another CPU that is read while it writes is read again, at most so often. */
#define MAX_READS 8

/*
 * The account of a task, with what it got on its CPU since it was switched in there. That
 * CPU goes on meanwhile: what was read counts if it wrote nothing in between. False where it never
 * held still, as a virtual CPU that is stopped in mid-write does not.
 */
static __always_inline bool read_account(struct task_struct *task, const struct task_account *t,
					 const struct cpu_account *c, u64 now,
					 struct task_account *account)
{
	int i;

	for (i = 0; i < MAX_READS; i++) {
		u64 before = *(const volatile u64 *)&c->sequence;
		u64 followed = c->sum_ns[CPU_FOLLOWED], stolen = stolen_ns(c);
		u64 open = passed_ns(c->since_ns, now);

		*account = *t;
		if (c->activity == CPU_FOLLOWED)
			followed += open;
		else if (c->activity == CPU_SOFTIRQ || c->activity == CPU_IRQ)
			stolen += open;
		if (c->current_tid == (u64)task->pid)
			charge(account, c, followed, stolen, steal_ns(rq_of(task)));
		if (!(before & 1) && *(const volatile u64 *)&c->sequence == before)
			return true;
	}
	/* What is known for sure. */
	*account = *t;
	return false;
}

/* Writes one struct task_record for each followed task. */
SEC("iter/task")
int list_tasks(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct task_record record = {};
	struct task_account *t;
	struct cpu_account *c;
	u32 cpu;
	u64 now;

	if (!task)
		return 0;
	t = bpf_task_storage_get(&tasks, task, 0, 0);
	if (!t)
		return 0;
	now = bpf_ktime_get_ns();
	record.tid = task->pid;
	record.tgid = task->tgid;
	record.start_boottime_ns = task->start_boottime;
	record.running = task->on_cpu != 0;
	record.runnable = record.running || !task->__state;
	record.vruntime = task->se.vruntime;
	record.now_ns = now;
	cpu = task->thread_info.cpu;
	record.cpu = cpu;
	c = bpf_map_lookup_elem(&cpus, &cpu);
	/* Of a task that runs now, the account lacks the time since its switch. */
	record.whole = true;
	if (record.running && c)
		record.whole = read_account(task, t, c, now, &record.account);
	else
		record.account = *t;
	if (t->waiting_since_ns && !record.running)
		record.account.wait_ns += passed_ns(t->waiting_since_ns, now);
	bpf_seq_write(ctx->meta->seq, &record, sizeof(record));
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
