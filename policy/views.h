/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What a policy sees of the machine: values, copied for one decision.
 *
 * The three policies (order.h, gate.h, balance.h) are freestanding integer C. The same files are
 * compiled to BPF, natively into the simulator, and natively under sanitizers and property tests.
 * So they keep to what all four allow: unsigned arithmetic, no loop, no call into a kernel, no
 * global, no allocation, and no unguarded division or shift. Loops over CPUs and tasks belong to
 * the keel around them (bpf/keel); a policy does one step of a fold.
 *
 * Units: times and vruntime in ns; weights in 1/NICE_0_WEIGHT of a nice-0 task; capability and
 * utilisation in 0..=FULL.
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
/*
 * The minimum weight of a task, however deep its cgroup: it bounds what a ns of run time charges.
 */
#define MIN_WEIGHT (1ULL << 10)
/* The maximum weight of a task: of cpu.weight 10000, where 100 is that of nice 0. */
#define MAX_WEIGHT (100 * NICE_0_WEIGHT)
/* The distance of a node's memory from its own CPUs, by the firmware (kernel: LOCAL_DISTANCE). */
#define NEAR 10U
/* A whole CPU: as capability, the kernel's scale of cpu_capacity; as utilisation, 100 %. */
#define FULL 1024U

/* Why a task may migrate. The gate answers and counts by reason. */
enum move_reason {
	MOVE_WAKE,	/* a waking task finds a better CPU */
	MOVE_FORK,	/* a new task is placed */
	MOVE_EXEC,	/* a new program is placed: its old caches are worth nothing */
	MOVE_IDLE,	/* an idle CPU pulls */
	MOVE_PERIODIC,	/* a busy CPU pulls, once an interval */
	MOVE_AGGREGATE,	/* a CPU fetches a sibling of what its group runs */
	MOVE_ACTIVE,	/* a task that runs alone leaves for an idle CPU on which it gets more */
	MOVE_REASONS,
};

/* A CPU and its load. */
struct cpu_view {
	u64 load;	/* weights of its runnable tasks, the running one included */
	u32 cpu;	/* CPU number */
	u32 runnable;	/* tasks that run or wait here */
	u32 waiting;	/* of these, the tasks that wait in the queue */
	u32 capability;	/* 0..=FULL */
	u32 distance;	/* domain levels to the CPU that decides; 0: the same CPU */
	u32 sibling;	/* order_is_sibling() of the task in question and of what runs here */
	u32 far;	/* distance of the memory of the task in question; 0: not known */
	bool idle;
};

/* A task that waits for a CPU. */
struct task_view {
	u64 weight;
	u64 rested_ns;	/* since it last ran: the longer, the colder its caches */
	bool bound;	/* balance_is_cpu_bound(): CPU-bound, not I/O-bound */
	u32 sibling;	/* order_is_sibling() of the task and of what the pulling CPU's group runs */
	u32 far_src;	/* distance of its memory from the CPU where it waits; 0: not known */
	u32 far_dst;	/* distance of its memory from the CPU that pulls; 0: not known */
};

/* Whether a is before b. vruntimes wrap, so the shorter way round decides. */
POLICY bool is_vruntime_before(u64 a, u64 b)
{
	return (a - b) >> 63;
}

POLICY u64 min_u64(u64 a, u64 b)
{
	return a < b ? a : b;
}

POLICY u64 max_u64(u64 a, u64 b)
{
	return a > b ? a : b;
}

/*
 * A share that halves every 33.6 ms (about the half-life of the kernel's PELT, 32 ms): `value`
 * after `ns` more in which the CPU was busy (or the task ran) or not. Between whole half-lives it
 * is interpolated linearly, at most 6 % off the curve.
 */
#define HALF_LIFE_SHIFT 25	/* 2^25 ns = 33.6 ms */

POLICY u32 decay_share(u32 value, u64 ns, bool busy)
{
	u64 halvings = ns >> HALF_LIFE_SHIFT;
	u64 part = ns & ((1ULL << HALF_LIFE_SHIFT) - 1);
	u64 full = (u64)FULL << 10;	/* ten more bits, so that short stretches count */
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
