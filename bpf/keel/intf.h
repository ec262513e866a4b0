/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the keel and crates/keel say to each other. Records consist of fields of one
 * size or are padded by hand, so that C and Rust agree without packing rules.
 */
#ifndef EVENKEEL_KEEL_INTF_H
#define EVENKEEL_KEEL_INTF_H

/*
 * Limits are powers of two, so that an index is bounded by a mask: compilers remove
 * comparisons that the verifier would need.
 */
#define BOUNDED(index, limit) ((index) & ((limit) - 1))
/* The most CPUs: the one limit that everything else follows. */
#define MAX_CPUS 1024
/* SMT, cache, node, and the distances between nodes. */
#define MAX_LEVELS 8
/* The groups of all domains together. */
#define MAX_RANGES 16384

/* Fixed at load: what is not chosen is pruned by the verifier. */
struct keel_settings {
	u32 order;	/* enum order_kind */
	u32 gate;	/* enum gate_kind */
	u32 balance;	/* enum balance_kind */
	u32 cpus;	/* CPU numbers are below this */
	u32 levels;	/* of domains, at most MAX_LEVELS */
	u32 pad;
};

/* May be changed while the keel runs. */
struct keel_tunables {
	u64 slice_ns;
	u64 scan_limit;	/* entries of a queue that are looked at in one search */
};

/* CPUs at consecutive positions. */
struct cpu_range {
	u16 first;
	u16 count;
};

/*
 * A CPU's domain at one level: groups, which are ranges of positions. Without ranges
 * where it would be a single group (a core without SMT siblings).
 */
struct keel_domain {
	u16 first_range;
	u16 ranges;
	u16 cpus;
	u16 shared;	/* 1: its CPUs share a cache */
};

/* Where a CPU stands. */
struct keel_cpu {
	u16 position;
	u16 capability;	/* 0..=1024 */
	u16 present;	/* 1: online when the keel was loaded */
	u16 pad;
	struct keel_domain domain[MAX_LEVELS];	/* the smallest first */
};

/*
 * The machine. CPUs are numbered by position as well: those of a core, a cache, a
 * node are neighbours, so that every group is a range.
 */
struct keel_topology {
	u16 cpu_at[MAX_CPUS];
	struct keel_cpu cpu[MAX_CPUS];
	struct cpu_range range[MAX_RANGES];
};

/* What is counted, each by the CPU that does it. crates/keel names them in this order. */
enum keel_counter {
	COUNT_WAKE_IDLE,	/* woken straight onto an idle CPU */
	COUNT_ENQUEUE,		/* put into a queue */
	COUNT_LEAVE,		/* left a queue without a turn: it was changed, moved or killed */
	COUNT_SWITCH,		/* the queue's head was given the CPU */
	COUNT_KEEP,		/* who ran used up a slice and runs on */
	COUNT_PREEMPT,		/* a waking task took the CPU from who ran */
	COUNT_MOVE_WAKE,	/* moved: by enum move_reason */
	COUNT_MOVE_FORK,
	COUNT_MOVE_EXEC,
	COUNT_MOVE_IDLE,
	COUNT_MOVE_PERIODIC,
	COUNT_REFUSE_WAKE,	/* refused by the gate: by enum move_reason */
	COUNT_REFUSE_FORK,
	COUNT_REFUSE_EXEC,
	COUNT_REFUSE_IDLE,
	COUNT_REFUSE_PERIODIC,
	COUNT_TRY_IDLE,		/* an idle CPU looked for work */
	COUNT_TRY_PERIODIC,	/* a busy CPU looked for work, once a domain */
	COUNT_RESCUE,		/* taken although no policy asked for it: waited too long */
	COUNT_SEND_BACK,	/* moved back to its own CPU, the only one that it may use */
	COUNT_THIEF,		/* a higher class took the CPU, and its task was let go */
	COUNT_NO_STATE,		/* a task without state of ours: the global queue takes it */
	COUNT_UNLIMITED,	/* a cgroup was given a cpu.max, which the keel does not enforce */
	COUNTERS,
};
/* Room for them, in a power of two. */
#define MAX_COUNTERS 32

/* A CPU's state; written by itself unless said otherwise. */
struct cpu_state {
	u64 clock;		/* smallest vruntime that the queue has let run */
	u64 load;		/* weights of its runnable tasks; atomic */
	u64 runnable;		/* how many they are; atomic */
	u64 running_vruntime;	/* of who runs, as of running_since_ns */
	u64 running_weight;	/* 0: nobody of ours runs */
	u64 running_since_ns;
	u64 running_space;	/* its address space */
	u64 taken_since_ns;	/* a higher class has the CPU since then; 0: none */
	u64 busy_share;		/* decayed_share() as of busy_since_ns */
	u64 busy_since_ns;
	u64 mean_utilisation;	/* of the machine, when it last looked */
	u64 balance_at_ns[MAX_LEVELS];
	u64 balance_due;	/* set by the tick, done in dispatch */
	u64 rescue_at_ns;
	u64 counters[MAX_COUNTERS];
};

/* Why the keel ended, as the kernel says. */
#define REASON_BYTES 128
#define MESSAGE_BYTES 1024
#define DUMP_BYTES 32768

struct keel_exit {
	u64 code;	/* of a request to end */
	u32 kind;	/* the kernel's enum scx_exit_kind; written last; 0: it runs */
	u32 pad;
	char reason[REASON_BYTES];
	char message[MESSAGE_BYTES];
	char dump[DUMP_BYTES];
};

#endif
