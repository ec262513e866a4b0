/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The layouts that the BPF programs here and product/cbinfo (layout.rs) share. All fields are
 * 64-bit words, or pairs of 32-bit words, so that C and Rust agree without packing
 * rules. Times named _ns are ns of CLOCK_MONOTONIC or sums of them.
 */
#ifndef EVENKEEL_CBINFO_H
#define EVENKEEL_CBINFO_H

/* What a CPU is doing in a stretch of time between two events. */
enum cpu_activity {
	CPU_IDLE,
	CPU_FOREIGN,	/* a fair-class task that is not followed */
	CPU_FOLLOWED,	/* a fair-class task of a followed program */
	CPU_RT,		/* a real-time, deadline or stop-class task */
	CPU_SOFTIRQ,	/* in any task's context, ksoftirqd's included */
	CPU_IRQ,
	CPU_ACTIVITIES,
};

/*
 * One CPU's account, in an array map that user space maps and reads. Written only
 * by its own CPU; `sequence` is odd while it is being written.
 */
struct cpu_account {
	u64 sequence;
	u64 since_ns;		/* start of the stretch that is not yet summed */
	u64 activity;		/* enum cpu_activity of that stretch */
	u64 current_tid;	/* 0: idle */
	u64 sum_ns[CPU_ACTIVITIES];
	/* Runnable tasks integrated over time: task-nanoseconds by class. */
	u64 fair_runnable_ns;
	u64 rt_runnable_ns;
	u64 fair_runnable;	/* the value in force since switched_ns */
	u64 rt_runnable;
	u64 switched_ns;	/* last context switch */
	/* The sums when the current task was switched in. */
	u64 followed_at_switch_ns;
	u64 stolen_at_switch_ns;
	u64 steal_at_switch_ns;
	u64 steal_ns;		/* as of looked_ns, since steal_base_ns */
	u64 steal_base_ns;	/* the kernel's figure (since boot) when it was first read */
	u64 in_softirq;		/* 1: a softirq is open */
	u64 events;		/* tracepoint hits handled on this CPU */
	u64 lost_events;	/* task events that found the ring buffer full */
	u64 speed;		/* relative speed, 1..=1024; written by user space */
	u64 task_activity;	/* enum cpu_activity of the current task, as of looked_ns */
	u64 looked_ns;
	u64 pad[6];		/* to 256 bytes: CPUs share no cache line */
};

/*
 * Where a parallel region ends and the next one begins, a task sleeps twice within a moment: sleeps with
 * less than this in between are one.
 */
#define ONE_SLEEP_NS 5000000

/* One followed task, kept in the kernel's task-local storage. */
struct task_account {
	u64 program;		/* the number that user space gave to the followed program */
	u64 run_ns;		/* on a CPU, what irq, softirq and steal took excluded */
	u64 stolen_ns;		/* irq, softirq and steal while it was on a CPU */
	u64 received_ns;	/* run_ns weighted with the CPU's speed / 1024 */
	u64 wait_ns;		/* runnable, but not on a CPU */
	u64 waiting_since_ns;	/* 0: not waiting */
	u64 awake_since_ns;	/* end of the last sleep that counts; 0: none, or asleep in one */
	u64 sleeps;		/* times that it went to sleep, ONE_SLEEP_NS or more after another one */
	/* What waiting.bpf.c saw, while it was attached. */
	u64 samples;		/* how often it was found on a CPU while its process had wait_ranges */
	u64 spun;		/* in how many of these samples it waited */
	u64 changes;		/* samples that found otherwise than the one before */
	u64 spins;		/* 1: the last one found it waiting */
};

/* What list_tasks writes for each followed task. */
struct task_reading {
	u64 tid;
	u64 tgid;
	u64 start_boottime_ns;
	u64 cpu;
	u64 running;		/* 1: on a CPU now */
	u64 runnable;		/* 1: running or waiting for a CPU */
	u64 vruntime;		/* of the fair class, in ns */
	u64 now_ns;		/* when this was read */
	u64 whole;		/* 0: the account lacks the time since the last switch */
	struct task_account account;
};

/* Written by user space, read by the programs. */
struct cbinfo_settings {
	u32 follow_tgid;	/* follow_tasks: the process */
	u32 follow_program;	/* follow_tasks, forget_tasks: the program */
	u32 urgent_events;	/* wake user space at once for a fork or exec */
	u32 interrupt_cost_ns;	/* what an interrupt takes outside its tracepoints */
};

#define MAX_WAIT_RANGES 16

/* The text in which the threads of a process wait: user addresses, from user space. */
struct wait_ranges {
	u64 count;
	struct wait_range {
		u64 start;
		u64 end;	/* the first address after it */
	} ranges[MAX_WAIT_RANGES];
};

/* Where a sample found a task of a process with wait_ranges. */
struct sampled_place {
	u64 address;	/* in user space; of a system call, where it was made */
	u32 tid;
	u32 cpu;
};

/* A process of which the barriers are counted; from user space. */
struct barrier_process {
	u64 program;
	u64 words;	/* its words in `wakes`: one process must not fill that for all */
};

/* A word of a process at which its threads wait. */
struct wake_word {
	u64 address;
	u32 tgid;
	u32 program;
};

enum task_event_kind {
	TASK_FORK,
	TASK_EXEC,
	TASK_EXIT,
};

/* What the ring buffer carries. */
struct task_event {
	u64 kind;		/* enum task_event_kind */
	u64 tid;
	u64 tgid;
	u64 parent_tid;		/* of a fork; otherwise 0 */
};

#endif
