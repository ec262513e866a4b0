/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What witness.bpf.c tells lab/witness: one record for each event, all of a size.
 */
#ifndef EVENKEEL_WITNESS_H
#define EVENKEEL_WITNESS_H

enum witness_kind {
	WITNESS_SWITCH,		/* task left the CPU to other */
	WITNESS_WAKEUP,
	WITNESS_MIGRATE,	/* to CPU other */
	WITNESS_AFFINITY,
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
	/* Of the one who goes on from here: other of a switch or fork, task of all else. */
	u64 allowed;		/* the first 64 CPUs of its mask */
	u64 group;		/* its task group, as a number without a meaning */
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
