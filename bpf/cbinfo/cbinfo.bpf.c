// SPDX-License-Identifier: GPL-2.0-only
/*
 * cbinfo: where each CPU's time goes, and what each followed task got of it. The
 * paper's kernel module (000, section 3.3) as BPF. product/cbinfo loads it, attaches
 * it and reads its accounts; it changes nothing in the kernel.
 *
 * 1. Stretches. Accounting by ticks does not see an interrupt that runs between two
 *    ticks. So the time between two events is a stretch, measured by timestamps, and
 *    belongs to one activity: what the CPU did in it (enum cpu_activity). Each event
 *    ends a stretch and begins the next (begin_stretch). The sums of a CPU's
 *    stretches are its whole time.
 *
 * 2. Nesting. Interrupts nest over softirqs, and softirqs over tasks. An entry begins
 *    a stretch of its own activity; an exit returns to what was below: the softirq,
 *    if one is open (in_softirq), else the current task. So the time that an
 *    interrupt takes is never its task's. What the task is, and what the hypervisor took,
 *    is read at switches, and at exits at most once a millisecond (look_at_task). What an
 *    interrupt costs outside its tracepoints is measured by user space
 *    (interrupt_cost_ns), and moved from the task to the interrupt.
 *
 * 3. Beginnings that were missed. The programs may be attached in the middle of an
 *    interrupt. Every context switch starts from a clean state: without PREEMPT_RT no
 *    kernel switches tasks inside an interrupt or a softirq.
 *
 * 4. Steal. Time of a virtual CPU that the hypervisor gave to others has no event. It
 *    is what the kernel's clock of the runqueue left out (prev_steal_time_rq), only
 *    as exact as what the hypervisor tells, and as of the last look (looked_ns).
 *
 * 5. Followed tasks. A task is followed if it has an account in the kernel's task
 *    storage, which ends with the task. At a switch, the task that leaves is charged
 *    what the CPU gave to followed tasks since the task was switched in, less steal;
 *    and the task that arrives ends its waiting, which began at its wake-up or
 *    preemption.
 *
 * 6. Forks. A child of a followed task is followed from its fork on. Forks, execs and
 *    exits go to user space through a ring buffer, because a child inherits the
 *    affinity of its parent and may have to be freed from it. On request
 *    (urgent_events), a fork or exec wakes user space at once.
 *
 * 7. Reading. User space maps the accounts of the CPUs. Each is written only by its
 *    own CPU, with an odd sequence number meanwhile, so a reader sees if it read in
 *    the middle of a write and reads again. The accounts of tasks are written out by
 *    an iterator (list_tasks), which adds what a running task got since its switch.
 *
 * In the order of a task's life: on_fork, on_wakeup_new, on_switch, on_wakeup,
 * on_exec, on_exit. Interrupts: irq_entry, irq_exit, softirq_entry, softirq_exit. From
 * user space: follow_tasks, list_tasks, forget_tasks.
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
#define LOOK_AGAIN_NS 1000000	/* how old the figures of a running task may be at an exit */

/* The fields of the kernel's types that are read here; relocated at load time. */
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
	unsigned int on_cpu;	/* unsigned, so that any length can be read: a byte from 7.2 on */
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
	unsigned int h_nr_runnable;	/* since 6.14: runnable tasks */
	struct rq *rq;
};

/* Until 6.13 the count has another name; in 6.12 and 6.13 it includes tasks that sleep
 * but are not dequeued yet ("delayed"). */
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

/* The kernel promises BPF programs that the beginnings of these two do not change, so they
 * need no relocation. */
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

static __always_inline struct cpu_account *this_cpu_account(void)
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
 * The time from `then` to `now`; 0 if `now` is earlier, because what lies before `then`
 * is accounted already. Readings of the clock need not be in order: a softirq may be
 * interrupted after it has read the clock, the clock of another CPU may be ahead, and
 * the kernel may adjust the clock back by some ns.
 */
static __always_inline u64 elapsed_ns(u64 then, u64 now)
{
	return now > then ? now - then : 0;
}

/* Sums the stretch that ends now, and begins the next one. Call inside a write. */
static __always_inline void begin_stretch(struct cpu_account *c, u64 activity, u64 now)
{
	u64 old = c->activity;

	if (now < c->since_ns)
		now = c->since_ns;
	/* The mask proves to the verifier that the index is in bounds. */
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
	/* By probing reads: for each pointer that is followed directly, the verifier searches all
	 * types of the kernel, which takes a millisecond. */
	return BPF_CORE_READ(task, se.cfs_rq, rq);
}

static __always_inline u64 steal_ns(const struct rq *rq)
{
	if (!bpf_core_field_exists(rq->prev_steal_time_rq))
		return 0;
	return BPF_CORE_READ(rq, prev_steal_time_rq);
}

static __always_inline void update_steal(struct cpu_account *c, u64 steal)
{
	/* A base of zero is right, too: then there was no steal before. */
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

static __always_inline u64 count_fair_runnable(const struct rq *rq)
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

static __always_inline u64 classify_task(struct task_struct *task, bool followed)
{
	if (!task->pid)
		return CPU_IDLE;
	if (task->prio < MAX_RT_PRIO)
		return CPU_RT;
	return followed ? CPU_FOLLOWED : CPU_FOREIGN;
}

/*
 * Reads what the exit of an interrupt needs of the current task. That seldom changes while
 * one task runs, and to read it at each interrupt of a busy network card costs much.
 */
static __always_inline void look_at_task(struct cpu_account *c, u64 now)
{
	struct task_struct *task = bpf_get_current_task_btf();

	c->task_activity = classify_task(task, bpf_task_storage_get(&tasks, task, 0, 0));
	update_steal(c, steal_ns(rq_of(task)));
	/* No switch was seen yet: the task that ran when this was attached may run for long. */
	if (!c->switched_ns)
		c->current_tid = task->pid;
	c->looked_ns = now;
}

/* Adds to `t` what its task got on this CPU since it was switched in: `followed`, `stolen` and
 * `steal` are the sums of the CPU now. */
static __always_inline void charge(struct task_account *t, const struct cpu_account *c,
				   u64 followed, u64 stolen, u64 steal)
{
	u64 run = followed - c->followed_at_switch_ns;

	/* If the switch was not seen, its steal is unknown: charge none. */
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

static __always_inline void count_sleep(struct task_account *t, u64 now)
{
	if (!t->awake_since_ns || elapsed_ns(t->awake_since_ns, now) < ONE_SLEEP_NS)
		return;
	t->sleeps++;
	t->awake_since_ns = 0;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, bool preempt, struct task_struct *prev, struct task_struct *next,
	     unsigned int prev_state)
{
	const struct rq *rq = rq_of(next);
	struct task_account *leaving, *arriving;
	struct cpu_account *c = this_cpu_account();
	u64 now = bpf_ktime_get_ns();
	u64 rt, fair;

	if (!c)
		return 0;
	leaving = bpf_task_storage_get(&tasks, prev, 0, 0);
	arriving = bpf_task_storage_get(&tasks, next, 0, 0);

	begin_write(c);
	c->task_activity = classify_task(next, arriving);
	c->looked_ns = now;
	begin_stretch(c, c->task_activity, now);

	rt = BPF_CORE_READ(rq, rt.rt_nr_running) + BPF_CORE_READ(rq, dl.dl_nr_running);
	fair = count_fair_runnable(rq);
	/* ksoftirqd's time counts as softirq, so ksoftirqd must not count as a task as well. */
	if (fair && is_ksoftirqd(next))
		fair--;
	if (c->switched_ns) {
		c->fair_runnable_ns += c->fair_runnable * elapsed_ns(c->switched_ns, now);
		c->rt_runnable_ns += c->rt_runnable * elapsed_ns(c->switched_ns, now);
	}
	c->fair_runnable = fair;
	c->rt_runnable = rt;
	c->switched_ns = now;

	if (leaving) {
		charge(leaving, c, c->sum_ns[CPU_FOLLOWED], stolen_ns(c), steal_ns(rq));
		if (preempt || !prev_state) {
			leaving->waiting_since_ns = now;
		} else {
			leaving->waiting_since_ns = 0;
			count_sleep(leaving, now);
		}
	}
	if (arriving) {
		if (arriving->waiting_since_ns)
			arriving->wait_ns += elapsed_ns(arriving->waiting_since_ns, now);
		arriving->waiting_since_ns = 0;
		if (!arriving->awake_since_ns)
			arriving->awake_since_ns = now;
	}
	c->followed_at_switch_ns = c->sum_ns[CPU_FOLLOWED];
	c->stolen_at_switch_ns = stolen_ns(c);
	c->steal_at_switch_ns = steal_ns(rq);
	update_steal(c, c->steal_at_switch_ns);
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
 * When the CPU left its task for the interrupt that is at its entry tracepoint now. The
 * cost includes the way back to the task, so that is counted here as well.
 */
static __always_inline u64 estimate_interrupt_start_ns(const struct cpu_account *c, u64 now)
{
	u64 open = elapsed_ns(c->since_ns, now);
	u64 cost = settings.interrupt_cost_ns;

	return now - (cost < open ? cost : open);
}

static __always_inline int account_interrupt(u64 activity, bool entry)
{
	struct cpu_account *c = this_cpu_account();
	u64 now = bpf_ktime_get_ns();

	if (!c)
		return 0;
	begin_write(c);
	/* In a softirq or another interrupt there is no task to take the cost from. */
	if (entry && activity == CPU_IRQ && c->activity < CPU_SOFTIRQ)
		now = estimate_interrupt_start_ns(c, now);
	if (activity == CPU_SOFTIRQ)
		c->in_softirq = entry;
	if (!entry) {
		if (elapsed_ns(c->looked_ns, now) >= LOOK_AGAIN_NS)
			look_at_task(c, now);
		activity = c->in_softirq ? CPU_SOFTIRQ : c->task_activity;
	}
	begin_stretch(c, activity, now);
	end_write(c);
	return 0;
}

/*
 * Raw tracepoints, so that one verified program serves all tracepoints of its kind. User
 * space attaches them, because it knows which tracepoints this architecture has.
 */
SEC("raw_tp")
int softirq_entry(void *ctx)
{
	return account_interrupt(CPU_SOFTIRQ, true);
}

SEC("raw_tp")
int softirq_exit(void *ctx)
{
	return account_interrupt(CPU_SOFTIRQ, false);
}

SEC("raw_tp")
int irq_entry(void *ctx)
{
	return account_interrupt(CPU_IRQ, true);
}

SEC("raw_tp")
int irq_exit(void *ctx)
{
	return account_interrupt(CPU_IRQ, false);
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(on_fork, struct task_struct *parent, struct task_struct *child)
{
	struct task_account *of_parent = bpf_task_storage_get(&tasks, parent, 0, 0);
	struct task_account account = {};
	struct cpu_account *c = this_cpu_account();

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
	struct cpu_account *c = this_cpu_account();

	if (c && bpf_task_storage_get(&tasks, task, 0, 0))
		send_event(c, TASK_EXEC, task->pid, task->tgid, 0);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(on_exit, struct task_struct *task)
{
	struct cpu_account *c = this_cpu_account();

	if (c && bpf_task_storage_get(&tasks, task, 0, 0))
		send_event(c, TASK_EXIT, task->pid, task->tgid, 0);
	return 0;
}

/* Follows the tasks of process `settings.follow_tgid`, and writes the id of each. */
SEC("iter/task")
int follow_tasks(struct bpf_iter__task *ctx)
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

/* Stops following the tasks of program `settings.follow_program`. */
SEC("iter/task")
int forget_tasks(struct bpf_iter__task *ctx)
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

/* How often an account is read that its CPU writes at the same time. */
#define MAX_READS 8

/*
 * Copies the account of a task and adds what the task got on its CPU since it was switched
 * in there. That CPU goes on meanwhile: a reading is valid if the CPU wrote nothing in
 * between. False if no reading was valid, for example because a virtual CPU is stopped in
 * mid-write: then the copy lacks the time since the switch.
 */
static __always_inline bool read_account(struct task_struct *task, const struct task_account *t,
					 const struct cpu_account *c, u64 now,
					 struct task_account *account)
{
	int i;

	for (i = 0; i < MAX_READS; i++) {
		u64 before = *(const volatile u64 *)&c->sequence;
		u64 followed = c->sum_ns[CPU_FOLLOWED], stolen = stolen_ns(c);
		u64 open = elapsed_ns(c->since_ns, now);

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
	*account = *t;
	return false;
}

/* Writes a struct task_reading for each followed task. */
SEC("iter/task")
int list_tasks(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct task_reading reading = {};
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
	reading.tid = task->pid;
	reading.tgid = task->tgid;
	reading.start_boottime_ns = task->start_boottime;
	reading.running = task->on_cpu != 0;
	reading.runnable = reading.running || !task->__state;
	reading.vruntime = task->se.vruntime;
	reading.now_ns = now;
	cpu = task->thread_info.cpu;
	reading.cpu = cpu;
	c = bpf_map_lookup_elem(&cpus, &cpu);
	/* The account of a running task lacks the time since its switch. */
	reading.whole = true;
	if (reading.running && c)
		reading.whole = read_account(task, t, c, now, &reading.account);
	else
		reading.account = *t;
	if (t->waiting_since_ns && !reading.running)
		reading.account.wait_ns += elapsed_ns(t->waiting_since_ns, now);
	bpf_seq_write(ctx->meta->seq, &reading, sizeof(reading));
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
