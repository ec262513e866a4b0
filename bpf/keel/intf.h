/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the keel and product/keel say to each other. Records consist of fields of one
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
/* Where a node has a higher number, no distances are known. */
#define MAX_NODES 64

/* Fixed at load: what is not chosen is pruned by the verifier. */
struct keel_settings {
	u32 order;	/* enum order_kind */
	u32 gate;	/* enum gate_kind */
	u32 balance;	/* enum balance_kind */
	u32 cpus;	/* CPU numbers are below this */
	u32 levels;	/* of domains, at most MAX_LEVELS */
	u32 online;	/* positions are below this */
	u32 parts;	/* of enum balance_part */
	u32 pad;
};

/* May be changed while the keel runs. */
struct keel_tunables {
	u64 slice_ns;
	u64 scan_limit;	/* entries of a queue that are looked at in one search */
	u64 max_idle_wait_ns;	/* who waits longer while a CPU idles goes there, ungated */
	u64 sibling_window;	/* tasks that a row of the index holds, and that a search in another queue looks at */
	u64 sibling_kick;	/* enum sibling_kick */
	u64 zone_at;	/* which of the two holds; the other is written, then this is changed */
	struct zone_knobs zone[2];
	u64 shielded;	/* how many CPUs are */
	u64 shield[MAX_CPUS / 64];	/* a bit a CPU: it takes only who may run nowhere else */
};

/* Which slaves are told at once that their master aggregates another address space. */
enum sibling_kick {
	KICK_NOBODY,
	KICK_IDLE,	/* those that idle while a sibling waits in the master's queue */
	KICK_BUSY,	/* and those that would run a sibling of their own queue now */
};

/*
 * The groups of CPUs that aggregate together (set_ias_alloc): 2k is the master of
 * group k, 2k+1 a slave. May be changed while the keel runs.
 */
#define NO_ROLE 0xffff
struct keel_roles {
	u16 role[MAX_CPUS];
};
/* Address spaces that may aggregate at a time. */
#define MAX_SPACES 1024
/* Rows of a CPU in the index of siblings. */
#define CPU_ROWS 64

/* By address space: what set_ias_agg set, and for whom. */
struct keel_space {
	struct aggregation aggregation;
	u32 process;	/* whose space it is: a number may come again for another one */
	u32 pad;
};

/* What a CPU remembers of that, so that it need not look it up at every turn. */
struct known_space {
	u64 space;
	u64 as_of;	/* `spaces_set` at that time */
	u64 key;	/* of its siblings in the index */
	struct aggregation aggregation;
};

/* Which one a CPU remembers. */
enum known_which {
	KNOWN_RUNNING,
	KNOWN_PUBLISHED,
	KNOWN_SPACES,
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
	u16 node;	/* its number */
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
	u8 distance[MAX_NODES][MAX_NODES];	/* of memory, by number; 0: not known */
};

/*
 * What a CPU can do now, which changes: less than what it is made for where interrupts,
 * real-time tasks or a hypervisor take a part of its time.
 */
struct cpu_capability {
	u16 now;	/* 0..=1024 */
	u16 faster;	/* how many CPUs can do more */
	u16 slower;	/* how many can do less */
	u16 pad;
};

struct keel_capabilities {
	struct cpu_capability cpu[MAX_CPUS];
};

/* What is counted, each by the CPU that does it. product/keel names them in this order. */
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
	COUNT_MOVE_AGGREGATE,
	COUNT_MOVE_ACTIVE,
	COUNT_REFUSE_WAKE,	/* refused by the gate: by enum move_reason */
	COUNT_REFUSE_FORK,
	COUNT_REFUSE_EXEC,
	COUNT_REFUSE_IDLE,
	COUNT_REFUSE_PERIODIC,
	COUNT_REFUSE_AGGREGATE,
	COUNT_REFUSE_ACTIVE,
	COUNT_TRY_IDLE,		/* an idle CPU looked for work */
	COUNT_TRY_PERIODIC,	/* a busy CPU looked for work, once a domain */
	COUNT_RESCUE,		/* taken although no policy asked for it: waited too long */
	COUNT_SEND_BACK,	/* moved back to its own CPU, the only one that it may use */
	COUNT_THIEF,		/* a higher class took the CPU, and its task was let go */
	COUNT_NO_STATE,		/* a task without state of ours: the global queue takes it */
	COUNT_UNLIMITED,	/* a cgroup was given a cpu.max, which the keel does not enforce */
	COUNT_GATE_OPEN,	/* the gate's answers: by enum gate_verdict */
	COUNT_GATE_BUSY,
	COUNT_GATE_PUNISHED,
	COUNT_GATE_QUIET,
	COUNT_GATE_PRIZED,
	COUNT_UNGATED,		/* moved without asking the gate: a matter of life */
	COUNT_AGGREGATE,	/* a sibling of who ran was preferred to the queue's head */
	COUNT_FOLLOW,		/* a sibling of what the group's master runs was */
	COUNT_WINDOW,		/* a task found no room in the index of siblings, or another one lost its own to it */
	COUNT_SPACE_SWITCH,	/* another address space than before runs */
	COUNT_SEARCH,		/* the index was asked for a sibling */
	COUNT_SEARCHED,		/* an entry was looked at for that */
	COUNT_KICK_IDLE,	/* a slave that idled was told what its master aggregates */
	COUNT_KICK_BUSY,	/* one that ran something else was */
	COUNT_SHIELD,		/* sent off a shielded CPU, or kept off it */
	COUNTERS,
};
/* Room for them, in a power of two. */
#define MAX_COUNTERS 64

/* One answer of the gate and what it was made from. */
struct keel_decision {
	u64 at_ns;
	u64 above_ns;
	u32 pid;
	u32 source;		/* the CPU that would be relieved */
	u32 reason;		/* enum move_reason */
	u32 verdict;		/* enum gate_verdict */
	u32 source_utilisation;
	u32 mean_utilisation;
	u32 task_share;
	u16 level;		/* enum zone_level */
	u16 limit_pct;
};
/* How many each CPU keeps; a power of two. */
#define MAX_DECISIONS 8

/*
 * How far a CPU has got in a search for tasks to take. In memory, because the verifier follows what
 * is on the stack through every turn of a loop, for each value that it can have.
 */
struct keel_search {
	u64 budget;	/* tasks that it may still look at */
	u64 quota;	/* load that it still wants */
	u64 follow;	/* the space that its group's master aggregates; 0: none */
	u64 others;	/* tasks of another choice that it has seen */
	u64 taken;	/* tasks that it has taken */
	u64 ungated;	/* 1: no gate is asked about whom it takes */
	u64 overdue;	/* 1: it takes only who has waited for too long */
};

/* A CPU's state; written by itself unless said otherwise. */
struct cpu_state {
	u64 clock;		/* smallest vruntime that the queue has let run in its turn */
	u64 load;		/* weights of its runnable tasks; atomic */
	u64 runnable;		/* how many they are; atomic */
	u64 running_vruntime;	/* of who runs, as of running_since_ns */
	u64 running_weight;	/* 0: nobody of ours runs */
	u64 running_since_ns;
	u64 deferred_ns;	/* the same of who has kept one waiting that it woke itself; 0: nobody */
	u64 running_space;	/* its address space, or that of who had one and ran last */
	u64 quantum;		/* what that one was charged for it at a stretch, in ns of vruntime */
	u64 preferred;		/* how often in a row siblings of that space were preferred */
	u64 mean;		/* how far those on it have come on the average: order_update_mean() */
	u64 furthest;		/* and who has come furthest */
	u64 is_ahead;		/* 1: who runs next is preferred to others that wait */
	u64 taken_since_ns;	/* a higher class has the CPU since then; 0: none */
	u64 yielder;		/* who of ours gives up the CPU for this once; 0: nobody */
	u64 idles;		/* 1: nobody of ours runs, and nobody was found */
	u64 busy_share;		/* decay_share() as of busy_since_ns */
	u64 busy_since_ns;
	u64 balance_at_ns[MAX_LEVELS];
	u64 balance_due;	/* set by the tick, done in dispatch */
	u64 rescue_at_ns;
	u64 rescued;		/* 1: somebody has been given the CPU for that, once */
	u64 look_at_ns;		/* the next of these two: before, a tick needs no look at them */
	u64 active_at_ns;	/* when who runs here may look for a CPU on which it gets more */
	u64 leave_to;		/* 1 + the CPU that the tick found for who runs here; 0: none */
	u64 lodges;		/* 1: who runs here is to leave, and cannot: nobody takes its place */
	u64 turn_at_ns;		/* when who runs here may look for one to change places with */
	u64 turn_until_ns;	/* its turn lasts at least until then; written by who changes, too */
	u64 change_with;	/* 1 + the CPU that the tick found for that; 0: none */
	u64 change_space;	/* the address space of who ran there then */
	u64 gather_from;	/* the position from which on it looks for another program's next */
	u64 running_cpus;	/* so many CPUs may who runs here, or ran last, use; 0: a kernel thread */
	u64 overdue_on;		/* 1 + the CPU on which somebody is overdue, for a CPU that idles; atomic */
	/* What balancing sums up: too large for the stack. */
	struct group_view group, ours, busiest;
	struct keel_search search;
	u64 fetch;		/* whom a slave fetches from its master's queue: a pid */
	u64 fetch_weight;	/* and what it weighs */
	struct known_space known[KNOWN_SPACES];
	u64 counters[MAX_COUNTERS];
	u64 decided;		/* decisions so far */
	struct keel_decision decision[MAX_DECISIONS];	/* the last ones */
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
