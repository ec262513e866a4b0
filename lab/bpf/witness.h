/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What witness.bpf.c reports to lab/witness: one struct of fixed size for each event. Its Rust twin is
 * lab/witness/src/raw_event.rs.
 */
#ifndef EVENKEEL_WITNESS_H
#define EVENKEEL_WITNESS_H

enum witness_kind {
	WITNESS_SWITCH,		/* task left the CPU to other */
	WITNESS_WAKEUP,
	WITNESS_MIGRATE,	/* to CPU other */
	WITNESS_AFFINITY,	/* other: 1 + the CPU that it is about to wake on, or 0 */
	WITNESS_FORK,		/* other is the child */
	WITNESS_EXIT,
};

/* How the task left the CPU. */
enum witness_left {
	WITNESS_RUNNABLE,
	WITNESS_ASLEEP,
	WITNESS_DEAD,
};

struct witness_event {
	u64 time_ns;
	/* From here to static_prio: of `other` in a switch or fork, of `task` in all other events. */
	u64 allowed;		/* the first 64 CPUs of its mask */
	u64 group;		/* its cgroup, as a number that only tells groups apart */
	u32 policy;
	u32 prio;		/* in effect now */
	u32 static_prio;	/* 120 + nice */
	u32 cpu;
	u32 kind;		/* enum witness_kind */
	u32 task;
	u32 other;
	u32 left;		/* of a switch: enum witness_left */
	u64 charged_ns;		/* of a switch: CPU time of task in all */
};

#endif
