/* SPDX-License-Identifier: GPL-2.0-only */
/* What callback.bpf.c and lab/bench say to each other. */
#ifndef EVENKEEL_CALLBACK_H
#define EVENKEEL_CALLBACK_H

/*
 * No callback takes this long; where one seems to, another CPU was executed meanwhile. (The longest
 * look at all of a long queue, at a hundred instructions a task.)
 */
#define LONGEST_CALL_NS (LENGTHS * LENGTH_STEP_NS)
/* Calls are told apart by steps as long as this. */
#define LENGTH_STEP_NS 20ULL
#define LENGTHS 512

/* The calls on one CPU. */
struct callback {
	__u64 begun_ns;		/* the one that runs now, or the last */
	__u64 calls;
	__u64 total_ns;
	__u64 interrupted;	/* calls that calls and total_ns leave out */
	__u32 by_length[LENGTHS];	/* the calls that they count, by their length in steps */
};

#endif
