/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What a policy sees of the machine: values, copied for one decision.
 *
 * The three policies (order.h, gate.h, balance.h) are freestanding integer C. The
 * same files are compiled to BPF, natively into the simulator, and natively under
 * sanitizers and property tests, so they keep to what all four can do: unsigned
 * arithmetic, no loop, no call into a kernel, no global, no allocation, and no
 * division or shift that is not guarded. Loops over CPUs and tasks are the core's
 * (bpf/keel); a policy does one step of a fold.
 *
 * Units: times and vruntime in ns; weights in 1/NICE_0_WEIGHT of a nice-0 task;
 * capability and utilisation in 0..=FULL.
 */
#ifndef EVENKEEL_VIEWS_H
#define EVENKEEL_VIEWS_H

#include <stdbool.h>

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define POLICY static inline __attribute__((always_inline, unused))

/* The weight of a nice-0 task alone in its cgroup; the kernel's NICE_0_LOAD. */
#define NICE_0_WEIGHT (1ULL << 20)
/* No task weighs less, however deep its cgroup: bounds what a ns of run time charges. */
#define MIN_WEIGHT (1ULL << 10)
/* How far a node's memory is from its own CPUs, as firmware has it (kernel: LOCAL_DISTANCE). */
#define NEAR 10U
/* A whole CPU: of capability like the kernel's cpu_capacity, of utilisation 100 %. */
#define FULL 1024U

/* Why a task may go to another CPU than its own. The gate answers and counts by it. */
enum move_reason {
	MOVE_WAKE,	/* a waking task finds a better CPU */
	MOVE_FORK,	/* a new task is placed */
	MOVE_EXEC,	/* a new program is placed: its old caches are worth nothing */
	MOVE_IDLE,	/* an idle CPU pulls */
	MOVE_PERIODIC,	/* a busy CPU pulls, once an interval */
	MOVE_AGGREGATE,	/* a CPU fetches a sibling of what its group runs */
	MOVE_ACTIVE,	/* who runs alone leaves for a CPU that idles and on which it gets more */
	MOVE_REASONS,
};

/* A CPU and what it has to do. */
struct cpu_view {
	u64 load;	/* weights of its runnable tasks, running one included */
	u32 cpu;	/* its number */
	u32 runnable;	/* its tasks that run or wait */
	u32 waiting;	/* of these, those that wait in its queue */
	u32 capability;	/* what it can do, 0..=FULL */
	u32 distance;	/* domain levels between it and the CPU that asks; 0: the same CPU */
	u32 affinity;	/* order_affinity() of the task in question and what runs there */
	u32 far;	/* how far the memory of the task in question is from it; 0: not known */
	bool idle;
};

/* A task that waits for a CPU. */
struct task_view {
	u64 weight;
	u64 rested_ns;	/* since it last ran: the longer, the colder its caches */
	bool bound;	/* balance_is_cpu_bound(): by the CPU, and not by I/O */
	u32 affinity;	/* order_affinity() of the task and what the pulling CPU's group runs */
	u32 far_src;	/* how far its memory is from the CPU where it waits; 0: not known */
	u32 far_dst;	/* and from the one that pulls */
};

/* Whether a comes before b. vruntimes wrap: all that counts is which way is shorter. */
POLICY bool is_vruntime_before(u64 a, u64 b)
{
	return (a - b) >> 63;
}

POLICY u64 min_u64(u64 a, u64 b)
{
	return a < b ? a : b;
}

/*
 * A share that halves every 32 ms (the half-life of the kernel's PELT): `value`
 * after `ns` more in which the CPU was busy (or the task ran) or not. Between whole
 * half-lives it is interpolated along a line, at most 6 % off the curve.
 */
#define HALF_LIFE_SHIFT 25	/* 2^25 ns = 33.6 ms */

POLICY u32 decay_share(u32 value, u64 ns, bool busy)
{
	u64 halvings = ns >> HALF_LIFE_SHIFT;
	u64 part = ns & ((1ULL << HALF_LIFE_SHIFT) - 1);
	u64 full = (u64)FULL << 10;	/* ten bits more, so that short stretches count */
	u64 away = value > full ? 0 : busy ? full - value : value;

	away = halvings < 32 ? away >> halvings : 0;
	away -= (away * part) >> (HALF_LIFE_SHIFT + 1);
	return (u32)(busy ? full - away : away);
}

/* The share that decay_share() keeps, in 0..=FULL. */
POLICY u32 share_of(u32 value)
{
	return value >> 10;
}

#endif
