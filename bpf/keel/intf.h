/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The interface between the keel and product/keel. Each struct consists of fields of one size or is
 * padded by hand, so that C and Rust agree without packing rules. product/keel/src/layout.rs has
 * the Rust twins.
 */
#ifndef EVENKEEL_KEEL_INTF_H
#define EVENKEEL_KEEL_INTF_H

/*
 * Limits are powers of two, so that a mask bounds an index: compilers remove comparisons that the
 * verifier would need.
 */
#define BOUNDED(index, limit) ((index) & ((limit) - 1))
/* The maximum number of CPUs; the other limits follow from it. */
#define MAX_CPUS 1024
/* SMT, LLC, node, and the distances between nodes. */
#define MAX_LEVELS 8
/* The maximum number of groups, of all domains together. */
#define MAX_RANGES 16384
/* Distances of nodes with higher numbers are not known. */
#define MAX_NODES 64

/* Fixed at load: the verifier prunes what is not chosen. */
struct keel_settings {
	u32 order;	/* enum order_kind */
	u32 gate;	/* enum gate_kind */
	u32 balance;	/* enum balance_kind */
	u32 cpus;	/* CPU numbers are below this */
	u32 levels;	/* levels of domains, at most MAX_LEVELS */
	u32 online;	/* positions are below this */
	u32 parts;	/* of enum balance_part */
	u32 smt;	/* 1: the domains of level 0 are cores of several hardware threads */
	u32 ias_mode;	/* enum ias_mode */
	u32 compact;	/* 1: while there is little work, it gathers on few CPUs */
};

/* These may change while the keel runs. */
struct keel_tunables {
	u64 slice_ns;
	u64 scan_limit;	/* entries of a queue that one search looks at */
	u64 max_idle_wait_ns;	/* while a CPU idles, a task that waits longer goes there, ungated */
	/* entries of a row of the index, and of a search in another CPU's queue */
	u64 sibling_window;
	u64 sibling_kick;	/* enum sibling_kick */
	u64 turn_ns;	/* the longest turn of an address space */
	u64 zone_at;	/* the index of the valid one; the other is written, then this changes */
	struct zone_knobs zone[2];
	u64 shielded;	/* how many CPUs are shielded */
	/* one bit for each CPU: 1: it takes only tasks that may run nowhere else */
	u64 shield[MAX_CPUS / 64];
};

/* Which slaves the master kicks when it begins to aggregate another address space. */
enum sibling_kick {
	KICK_NONE,
	KICK_IDLE,	/* idle ones, while a sibling waits in the master's queue */
	KICK_BUSY,	/* also busy ones that would run a sibling from their own queue now */
};

/*
 * The groups of CPUs that aggregate together (set_ias_alloc): 2k is the master of group k, 2k+1 a
 * slave of it. May change while the keel runs.
 */
#define NO_ROLE 0xffff
struct keel_roles {
	u16 role[MAX_CPUS];
};
/* The maximum number of address spaces that aggregate at a time. */
#define MAX_SPACES 1024
/* A CPU's rows in the index of siblings. */
#define CPU_ROWS 64

/* By address space: what set_ias_agg set, and for which process. */
struct keel_space {
	struct aggregation aggregation;
	u32 process;	/* the process of this space: another process may get the same address later */
	u32 pad;
};

/* A CPU's copy of keel_space, so that it need not look that up at every pick. */
struct known_space {
	u64 space;
	u64 as_of;	/* the value of `spaces_set` when it was copied */
	u64 key;	/* the key of the space's siblings in the index */
	struct aggregation aggregation;
};

/* The spaces of which a CPU keeps a copy. */
enum known_which {
	KNOWN_RUNNING,
	KNOWN_PUBLISHED,
	KNOWN_ELSEWHERE,	/* what another CPU runs or follows, on which this CPU enqueues a task */
	KNOWN_SPACES,
};

/* A sibling as a candidate, and its pid. */
struct sibling {
	struct order_candidate as;
	u32 pid;
	u32 pad;
};

/* The policy's pick on a CPU, with what is needed to dispatch it. */
struct keel_pick {
	struct order_candidate prev;	/* the task that has run so far */
	struct order_candidate head;	/* the queue's head */
	u64 fair;	/* the vruntime of the task that `fair` would pick */
	u64 space;	/* siblings of this space go first on this CPU; 0: none */
	u64 follow;	/* the space that the group's master published; 0: none */
	u32 choice;	/* enum order_choice */
	u32 role;	/* the CPU's: get_role() */
	u16 passes;	/* 1: the queue's head passes the turn */
	u16 should_fetch;	/* 1: a slave has no task to follow its master with */
	u16 begins_to_publish;	/* 1: a master has just published its running space */
	u16 pad;
};

/* CPUs at consecutive positions. */
struct cpu_range {
	u16 first;
	u16 count;
};

/*
 * A CPU's domain at one level: its groups, which are ranges of positions. It has no ranges where it
 * would be a single group (a core without SMT siblings).
 */
struct keel_domain {
	u16 first_range;
	u16 ranges;
	u16 cpus;
	u16 shared;	/* 1: its CPUs share a cache */
};

/* A CPU's place in the machine. */
struct keel_cpu {
	u16 position;
	u16 node;	/* the number of its NUMA node */
	u16 cache;	/* the number of its last-level cache, below the number of CPUs */
	u16 pad;
	struct keel_domain domain[MAX_LEVELS];	/* the smallest domain first */
};

/*
 * The machine. CPUs are also numbered by position: the CPUs of a core, an LLC, a node are
 * neighbours, so that every group is a range.
 */
struct keel_topology {
	u16 cpu_at[MAX_CPUS];
	struct keel_cpu cpu[MAX_CPUS];
	struct cpu_range range[MAX_RANGES];
	u8 distance[MAX_NODES][MAX_NODES];	/* distance of memory, by node number; 0: not known */
	struct cpu_range cache[MAX_CPUS];	/* the CPUs of each last-level cache, by position */
	u64 cache_cpus[MAX_CPUS][MAX_CPUS / 64];	/* the same, one bit for each CPU number */
};

/*
 * A CPU's capability. It changes: interrupts, real-time tasks and a hypervisor take time of a CPU.
 */
struct cpu_capability {
	u16 now;	/* 0..=1024 */
	u16 faster;	/* how many CPUs have more */
	u16 slower;	/* how many CPUs have less */
	u16 pad;
};

struct keel_capabilities {
	struct cpu_capability cpu[MAX_CPUS];
};

/* The counters; each CPU counts what it does itself. product/keel names them in this order. */
enum keel_counter {
	COUNT_WAKE_IDLE,	/* a waking task was put straight onto an idle CPU */
	COUNT_ENQUEUE,		/* a task was put into a queue */
	COUNT_LEAVE,		/* a task left a queue without a turn: it was changed, moved or killed */
	COUNT_SWITCH,		/* the queue's head got the CPU */
	COUNT_KEEP,		/* the running task used up a slice and goes on */
	COUNT_PREEMPT,		/* a waking task preempted the running one */
	COUNT_MOVE_WAKE,	/* migrations, by enum move_reason */
	COUNT_MOVE_FORK,
	COUNT_MOVE_EXEC,
	COUNT_MOVE_IDLE,
	COUNT_MOVE_PERIODIC,
	COUNT_MOVE_AGGREGATE,
	COUNT_MOVE_ACTIVE,
	COUNT_REFUSE_WAKE,	/* migrations that the gate refused, by enum move_reason */
	COUNT_REFUSE_FORK,
	COUNT_REFUSE_EXEC,
	COUNT_REFUSE_IDLE,
	COUNT_REFUSE_PERIODIC,
	COUNT_REFUSE_AGGREGATE,
	COUNT_REFUSE_ACTIVE,
	COUNT_TRY_IDLE,		/* an idle CPU looked for work */
	COUNT_TRY_PERIODIC,	/* a busy CPU looked for work, once for each domain */
	COUNT_RESCUE,		/* a task ran out of turn because it had waited too long */
	COUNT_SEND_BACK,	/* a task migrated back to its own CPU, the only one that it may use */
	COUNT_THIEF,		/* a higher class took the CPU, and its task was enqueued again */
	COUNT_NO_STATE,		/* a task without task_state went to the global queue */
	COUNT_UNLIMITED,	/* a cgroup was given a cpu.max, which the keel does not enforce */
	COUNT_GATE_OPEN,	/* the gate's answers, by enum gate_verdict */
	COUNT_GATE_BUSY,
	COUNT_GATE_PUNISHED,
	COUNT_GATE_CROWDED,
	COUNT_GATE_WORTH,
	COUNT_GATE_QUIET,
	COUNT_GATE_PRIZED,
	COUNT_GATE_CHEAP,
	COUNT_UNGATED,		/* a migration without asking the gate: for liveness, or within a cache */
	COUNT_AGGREGATE,	/* a sibling of the task that ran was preferred to the queue's head */
	COUNT_FOLLOW,		/* a sibling of what the group's master runs was preferred */
	COUNT_WINDOW,		/* a row of the index was full, and one task is not in it */
	COUNT_SPACE_SWITCH,	/* the CPU switched to another address space */
	COUNT_SEARCH,		/* a sibling was looked for in the index */
	COUNT_SEARCHED,		/* an entry was looked at in such a search */
	COUNT_KICK_IDLE,	/* the master kicked an idle slave */
	COUNT_KICK_BUSY,	/* the master kicked a busy slave */
	COUNT_SHIELD,		/* a task was sent off a shielded CPU, or kept off it */
	COUNT_REPAY,		/* a sibling was not preferred: others had fallen behind too far */
	COUNT_SLOTLESS,		/* a new cgroup counts as its ancestor: too deep, or no slot for it */
	COUNTERS,
};
/* Room for them, a power of two. */
#define MAX_COUNTERS 64

/* One refusal of the gate and its inputs. */
struct keel_decision {
	u64 at_ns;
	u64 above_ns;
	u32 pid;
	u32 source;		/* the CPU that the task would leave */
	u32 reason;		/* enum move_reason */
	u32 verdict;		/* enum gate_verdict */
	u32 source_utilisation;
	u32 mean_utilisation;
	u32 task_share;
	u16 level;		/* enum zone_level */
	u16 limit_pct;
};
/* How many of them each CPU keeps; a power of two. */
#define MAX_DECISIONS 8
/* Of the refusals in so many ns a CPU keeps the first one. */
#define DECISION_SAMPLE_NS 4000000ULL

/*
 * The state of a CPU's search for tasks to pull. It is in a map and not on the stack, because the
 * verifier follows each value on the stack through every turn of a loop.
 */
struct keel_search {
	u64 budget;	/* tasks that the search may still look at */
	u64 quota;	/* load that the CPU still wants */
	u64 follow;	/* the space that its group's master aggregates; 0: none */
	u64 others;	/* tasks of another score that the search has seen */
	u64 taken;	/* tasks that it has pulled */
	u64 arrived;	/* the same of all searches of one balance */
	u64 ungated;	/* 1: the gate is not asked */
	u64 overdue;	/* 1: only overdue tasks are pulled */
	u64 reason;	/* enum move_reason */
	u64 wanted;	/* the balance policy's score of the tasks that it is looking for */
	u64 why;	/* enum move_reason by which it would take the task it looked at last */
};

/* A CPU's state; only the CPU itself writes it, unless said otherwise. */
struct cpu_state {
	u64 clock;		/* the largest vruntime with which a task got the CPU in its turn */
	u64 load;		/* weights of its runnable tasks; atomic */
	u64 runnable;		/* how many tasks these are; atomic */
	u64 running_vruntime;	/* of the running task, as of running_since_ns */
	u64 running_weight;	/* 0: no task of our class runs */
	u64 running_since_ns;
	/* running_since_ns of a task that deferred its own wakee's preemption; 0: none */
	u64 deferred_ns;
	/* the running task's address space; of a kernel thread, the last one before */
	u64 running_space;
	u64 quantum_ns;		/* how long a task of that space ran last */
	/* how often in a row siblings of that space, or of the space that has its turn, were preferred */
	u64 preferred;
	u64 turn_space;		/* the space that has its turn; 0: one that does not aggregate */
	u64 turn_began_ns;
	u64 turn_goes_on;	/* 1: the next task to run begins no turn of its space */
	u64 woken;		/* of a task that preempts as it wakes: order_passes_turn() */
	u64 mean;		/* mean vruntime of the tasks on this CPU: order_update_mean() */
	u64 furthest;		/* the largest vruntime that was charged here */
	u64 fair_clock;		/* order_update_fair_clock() */
	u64 is_out_of_turn;	/* 1: the next task to run has a larger vruntime than others that wait */
	u64 taken_since_ns;	/* since when a higher class has the CPU; 0: none has */
	u64 yielder;		/* pid of the task that yields, for one dispatch; 0: none */
	u64 idles;		/* 1: no task of our class runs, and none was found */
	u64 busy_share;		/* decay_share() as of busy_since_ns */
	u64 busy_since_ns;
	u64 balance_at_ns[MAX_LEVELS];
	u64 balance_due;	/* set by the tick, served by dispatch */
	u64 rescue_at_ns;
	u64 rescued;		/* 1: rescue_waiter() gave the CPU to a task; cleared by dispatch */
	u64 look_at_ns;		/* the next periodic balancing or rescue is not before this */
	u64 active_at_ns;	/* when the running task may look for a CPU on which it gets more */
	u64 leave_to;		/* 1 + the CPU that the tick found for the running task; 0: none */
	u64 lodges;		/* 1: the running task is to leave a shielded CPU, and is alone here */
	u64 turn_at_ns;		/* when the running task may look for an exchange */
	/* the turn lasts at least until then; an exchanging CPU writes it, too */
	u64 turn_until_ns;
	u64 change_with;	/* 1 + the CPU that the tick found for an exchange; 0: none */
	u64 change_space;	/* the address space that ran on that CPU then */
	u64 gather_from;	/* the position where the next search for another program's CPU begins */
	u64 running_cpus;	/* how many CPUs the last running task may use; 0: a kernel thread */
	u64 overdue_on;		/* 1 + the CPU where a task is overdue, for an idle CPU; atomic */
	u64 opening;		/* gate_judge_cpu() as of the last tick or edge of idling */
	u64 burst_ns;		/* how long tasks run here at a time: gate_update_burst() */
	/* The sums of balancing: too large for the stack. */
	struct group_view group, ours, busiest;
	struct keel_search search;
	u64 fetch;		/* pid of the task that a slave fetches from its master's queue */
	u64 fetch_weight;	/* the weight of that task */
	struct known_space known[KNOWN_SPACES];
	/* The siblings among which a pick chooses, by KNOWN_RUNNING and KNOWN_PUBLISHED; the pick. */
	struct sibling found[2];
	struct keel_pick pick;
	u64 counters[MAX_COUNTERS];
	u64 decided;		/* how many decisions it has kept so far */
	struct keel_decision decision[MAX_DECISIONS];	/* the latest ones */
};

/* Why the keel ended, by the kernel's words. */
#define REASON_BYTES 128
#define MESSAGE_BYTES 1024
#define DUMP_BYTES 32768

struct keel_exit {
	u64 code;	/* of a request to end the scheduler */
	u32 kind;	/* the kernel's enum scx_exit_kind; written last; 0: the keel runs */
	u32 pad;
	char reason[REASON_BYTES];
	char message[MESSAGE_BYTES];
	char dump[DUMP_BYTES];
};

#endif
