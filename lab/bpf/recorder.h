/* SPDX-License-Identifier: GPL-2.0-only */
/* The entries of a tape: lab/tape/src/tape.rs documents them, in the same order. */
#ifndef EVENKEEL_RECORDER_H
#define EVENKEEL_RECORDER_H

enum tape_kind {
	TAPE_ENTER,
	TAPE_TASK,
	TAPE_CALL,
	TAPE_NOW,
	TAPE_LEAVE,
};

enum tape_callback {
	CB_SELECT_CPU,
	CB_ENQUEUE,
	CB_DISPATCH,
	CB_TICK,
	CB_RUNNING,
	CB_STOPPING,
	CB_QUIESCENT,
	CB_YIELD,
	CB_CPU_ACQUIRE,
	CB_CPU_RELEASE,
	CB_INIT_TASK,
	CB_EXIT_TASK,
	CB_ENABLE,
	CB_DISABLE,
	CB_CGROUP_INIT,
	CB_CGROUP_EXIT,
	CB_CGROUP_MOVE,
	CB_CGROUP_SET_WEIGHT,
	CB_INIT,
	CB_UPDATE_IDLE,
};

enum tape_function {
	FN_CREATE_DSQ,
	FN_NR_QUEUED,
	FN_SELECT_CPU_DEFAULT,
	FN_PICK_IDLE,
	FN_CLAIM_IDLE,
	FN_KICK,
	FN_SET_FREQUENCY,
	FN_INSERT,
	FN_MOVE,
	FN_MOVE_TO_LOCAL,
	FN_REENQUEUE_LOCAL,
	FN_ITER_NEXT,
	FN_FIND_TASK,
};

#define TAPE_VALUES 7
#define TAPE_LAST (TAPE_VALUES - 1)

struct tape_entry {
	__u8 kind;
	__u8 id;
	__u16 cpu;
	__u32 pad;
	__u64 task;	/* its address; lab/tape replaces it by a number */
	__u64 values[TAPE_VALUES];
};

#endif
