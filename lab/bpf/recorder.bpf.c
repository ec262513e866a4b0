// SPDX-License-Identifier: GPL-2.0-only
/*
 * Records the keel on a real kernel, as a tape that the simulator replays: programs
 * before and after each of the keel's callbacks, and after each kernel function that
 * the keel calls. lab/tape attaches them. The keel does not know of them, and they
 * change nothing. Entries that find the buffer full are counted in `lost`.
 */
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

#include <interrupt.h>
#include <higher_class.h>

#include "recorder.h"

typedef __u32 u32;
typedef __s32 s32;
typedef __u64 u64;

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct cpumask {
	unsigned long bits[1];
};

struct thread_info {
	u32 cpu;
};

struct sched_entity {
	u64 sum_exec_runtime;
};

struct sched_ext_entity {
	u32 flags;
	u32 weight;
	u64 slice;
};

struct task_struct {
	struct thread_info thread_info;
	int pid;
	int tgid;
	int prio;
	u32 on_cpu;	/* unsigned, so that any length can be read: a byte from 7.2 on */
	int nr_cpus_allowed;
	int numa_preferred_nid;
	const struct cpumask *cpus_ptr;
	struct mm_struct *mm;
	struct sched_entity se;
	struct sched_ext_entity scx;
};

struct kernfs_node {
	u64 id;
};

struct cgroup {
	int level;
	struct kernfs_node *kn;
	struct cgroup *ancestors[];
};

struct scx_init_task_args {
	bool fork;
	struct cgroup *cgroup;
};

struct scx_cgroup_init_args {
	u32 weight;
	u64 bw_quota_us;
};
#pragma clang attribute pop

struct bpf_iter_scx_dsq;

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 25);
} entries SEC(".maps");

/* The callback that a CPU is in. */
struct here {
	u64 callbacks;	/* begun and not ended */
	u64 queue;	/* the queue of the iteration */
	u64 flags;	/* of that iteration */
	u64 set;	/* what was set for the next move: 1: slice, 2: vtime */
	u64 slice;
	u64 vtime;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct here);
} own SEC(".maps");

u64 lost;

static __always_inline struct here *here(void)
{
	u32 key = 0;

	return bpf_map_lookup_elem(&own, &key);
}

static __always_inline struct tape_entry *begin(u32 kind, u32 id, u64 task)
{
	struct tape_entry *entry = bpf_ringbuf_reserve(&entries, sizeof(*entry), 0);

	if (!entry) {
		__sync_fetch_and_add(&lost, 1);
		return NULL;
	}
	__builtin_memset(entry, 0, sizeof(*entry));
	entry->kind = kind;
	entry->id = id;
	entry->cpu = bpf_get_smp_processor_id();
	entry->task = task;
	return entry;
}

static __always_inline void end(struct tape_entry *entry)
{
	bpf_ringbuf_submit(entry, BPF_RB_NO_WAKEUP);
}

static __always_inline u64 pair(u32 low, u32 high)
{
	return low | (u64)high << 32;
}

/* Notes what the keel can see of a task. */
static __always_inline void note_task(const struct task_struct *p)
{
	struct tape_entry *entry = p ? begin(TAPE_TASK, 0, (u64)p) : NULL;
	int node = -1;

	if (!entry)
		return;
	if (bpf_core_field_exists(p->numa_preferred_nid))
		node = BPF_CORE_READ(p, numa_preferred_nid);
	entry->values[0] = pair(BPF_CORE_READ(p, pid), BPF_CORE_READ(p, tgid));
	entry->values[1] = (u64)BPF_CORE_READ(p, nr_cpus_allowed) |
			   (u64)BPF_CORE_READ(p, thread_info.cpu) << 16 |
			   (u64)BPF_CORE_READ(p, prio) << 32 |
			   (u64)(BPF_CORE_READ(p, on_cpu) & 0xff) << 48 | (u64)(node & 0xff) << 56;
	entry->values[2] = (u64)BPF_CORE_READ(p, mm);
	entry->values[3] = BPF_CORE_READ(p, se.sum_exec_runtime);
	entry->values[4] = pair(BPF_CORE_READ(p, scx.flags), BPF_CORE_READ(p, scx.weight));
	entry->values[5] = BPF_CORE_READ(p, scx.slice);
	entry->values[6] = BPF_CORE_READ(p, cpus_ptr, bits[0]);
	end(entry);
}

/* The arguments of a callback, of which there are at most three. */
struct arguments {
	u64 is[3];
};

/* The callback is a BPF program, whose only argument is the address of its arguments. */
static __always_inline struct arguments arguments(u64 *context)
{
	struct arguments all = {};

	bpf_probe_read_kernel(&all, sizeof(all), (void *)context[0]);
	return all;
}

static __always_inline u64 group_id(const struct cgroup *group)
{
	return BPF_CORE_READ(group, kn, id);
}

/* Fills in the arguments of a callback besides the task. */
static __always_inline void fill(u32 id, struct tape_entry *entry, const struct arguments *all)
{
	const struct scx_init_task_args *made = (void *)all->is[1];
	const struct scx_cgroup_init_args *formed = (void *)all->is[1];
	const struct cgroup *group = (void *)all->is[0];
	int level;

	switch (id) {
	case CB_SELECT_CPU:
		entry->values[0] = (u32)all->is[1];
		entry->values[1] = all->is[2];
		break;
	case CB_STOPPING:
	case CB_UPDATE_IDLE:
		/* A bool: the bytes above it are undefined. */
		entry->values[0] = (bool)(all->is[1] & 0xff);
		break;
	case CB_DISPATCH:
		entry->values[0] = is_awaited_by_higher_class();
		break;
	case CB_ENQUEUE:
		entry->values[0] = all->is[1];
		entry->values[1] = in_interrupt();
		break;
	case CB_QUIESCENT:
		entry->values[0] = all->is[1];
		break;
	case CB_INIT_TASK:
		entry->values[0] = BPF_CORE_READ(made, fork);
		entry->values[1] = group_id(BPF_CORE_READ(made, cgroup));
		break;
	case CB_CGROUP_INIT:
		level = BPF_CORE_READ(group, level);
		entry->values[0] = group_id(group);
		entry->values[1] = level;
		if (level > 0) {
			const struct cgroup *parent = NULL;

			bpf_core_read(&parent, sizeof(parent), &group->ancestors[level - 1]);
			entry->values[2] = group_id(parent);
		}
		entry->values[3] = BPF_CORE_READ(formed, weight);
		entry->values[4] = BPF_CORE_READ(formed, bw_quota_us);
		break;
	case CB_CGROUP_MOVE:
		entry->values[0] = group_id((void *)all->is[1]);
		entry->values[1] = group_id((void *)all->is[2]);
		break;
	case CB_CGROUP_SET_WEIGHT:
		entry->values[1] = (u32)all->is[1];
		/* fall through */
	case CB_CGROUP_EXIT:
		entry->values[0] = group_id(group);
		break;
	default:
		break;
	}
}

/* The task that a callback is about. */
static __always_inline u64 task_of(u32 id, const struct arguments *all)
{
	switch (id) {
	case CB_DISPATCH:
		return all->is[1];
	case CB_INIT:
	case CB_CPU_ACQUIRE:
	case CB_CPU_RELEASE:
	case CB_UPDATE_IDLE:
	case CB_CGROUP_INIT:
	case CB_CGROUP_EXIT:
	case CB_CGROUP_SET_WEIGHT:
		return 0;
	default:
		return all->is[0];
	}
}

static __always_inline int note_enter(u64 *context, u32 id)
{
	struct arguments all = arguments(context);
	u64 task = task_of(id, &all);
	struct tape_entry *entry;
	struct here *h = here();

	if (!h)
		return 0;
	h->callbacks++;
	entry = begin(TAPE_ENTER, id, task);
	if (!entry)
		return 0;
	fill(id, entry, &all);
	entry->values[TAPE_LAST] = bpf_ktime_get_ns();
	end(entry);
	note_task((void *)task);
	return 0;
}

static __always_inline int note_leave(u64 *context, u32 id, u64 returned)
{
	struct arguments all = arguments(context);
	u64 task = task_of(id, &all);
	struct tape_entry *entry;
	struct here *h = here();

	/* The callback began before the recorder was attached. */
	if (!h || !h->callbacks)
		return 0;
	h->callbacks--;
	entry = begin(TAPE_LEAVE, id, task);
	if (!entry)
		return 0;
	entry->values[0] = returned;
	if (task)
		entry->values[1] = BPF_CORE_READ((struct task_struct *)task, scx.slice);
	end(entry);
	return 0;
}

#define CALLBACK(name, id, result)                                                                 \
	SEC("fentry")                                                                              \
	int enter_##name(u64 *context)                                                             \
	{                                                                                          \
		return note_enter(context, id);                                                    \
	}                                                                                          \
	SEC("fexit")                                                                               \
	int leave_##name(u64 *context)                                                             \
	{                                                                                          \
		return note_leave(context, id, result);                                            \
	}

/* Through the helper: the kernel itself decides how many arguments a BPF program has. */
static __always_inline u32 returned(u64 *context)
{
	u64 value = 0;

	bpf_get_func_ret(context, &value);
	return value;
}

#define RETURNED returned(context)

CALLBACK(select_cpu, CB_SELECT_CPU, RETURNED)
CALLBACK(enqueue, CB_ENQUEUE, 0)
CALLBACK(dispatch, CB_DISPATCH, 0)
CALLBACK(tick, CB_TICK, 0)
CALLBACK(running, CB_RUNNING, 0)
CALLBACK(stopping, CB_STOPPING, 0)
CALLBACK(quiescent, CB_QUIESCENT, 0)
CALLBACK(yield, CB_YIELD, RETURNED)
CALLBACK(cpu_acquire, CB_CPU_ACQUIRE, 0)
CALLBACK(cpu_release, CB_CPU_RELEASE, 0)
CALLBACK(init_task, CB_INIT_TASK, RETURNED)
CALLBACK(exit_task, CB_EXIT_TASK, 0)
CALLBACK(enable, CB_ENABLE, 0)
CALLBACK(disable, CB_DISABLE, 0)
CALLBACK(cgroup_init, CB_CGROUP_INIT, RETURNED)
CALLBACK(cgroup_exit, CB_CGROUP_EXIT, 0)
CALLBACK(cgroup_move, CB_CGROUP_MOVE, 0)
CALLBACK(cgroup_set_weight, CB_CGROUP_SET_WEIGHT, 0)
CALLBACK(init, CB_INIT, RETURNED)
CALLBACK(update_idle, CB_UPDATE_IDLE, 0)

/* Begins an entry for a call, if the keel makes the call. */
static __always_inline struct tape_entry *begin_call(u32 id, const void *task)
{
	struct here *h = here();

	return h && h->callbacks ? begin(TAPE_CALL, id, (u64)task) : NULL;
}

static __always_inline int note_call(u32 id, const void *task, u64 first, u64 second, u64 answer)
{
	struct tape_entry *entry = begin_call(id, task);

	if (!entry)
		return 0;
	entry->values[0] = first;
	entry->values[1] = second;
	entry->values[TAPE_LAST] = answer;
	end(entry);
	return 0;
}

SEC("fexit/scx_bpf_now")
int BPF_PROG(on_now, u64 now)
{
	struct here *h = here();
	struct tape_entry *entry = h && h->callbacks ? begin(TAPE_NOW, 0, 0) : NULL;

	if (!entry)
		return 0;
	entry->values[TAPE_LAST] = now;
	end(entry);
	return 0;
}

SEC("fexit/scx_bpf_create_dsq")
int BPF_PROG(on_create_dsq, u64 queue, s32 node, s32 answer)
{
	return note_call(FN_CREATE_DSQ, NULL, queue, 0, (u32)answer);
}

SEC("fexit/scx_bpf_dsq_nr_queued")
int BPF_PROG(on_nr_queued, u64 queue, s32 answer)
{
	return note_call(FN_NR_QUEUED, NULL, queue, 0, (u32)answer);
}

SEC("fexit/scx_bpf_select_cpu_dfl")
int BPF_PROG(on_select_cpu_dfl, struct task_struct *p, s32 prev, u64 flags, bool *is_idle, s32 cpu)
{
	bool idles = false;

	bpf_probe_read_kernel(&idles, sizeof(idles), is_idle);
	return note_call(FN_SELECT_CPU_DEFAULT, p, (u32)prev, flags, pair(cpu, idles));
}

SEC("fexit/scx_bpf_pick_idle_cpu")
int BPF_PROG(on_pick_idle, const struct cpumask *allowed, u64 flags, s32 cpu)
{
	return note_call(FN_PICK_IDLE, NULL, BPF_CORE_READ(allowed, bits[0]), 0, (u32)cpu);
}

SEC("fexit/scx_bpf_test_and_clear_cpu_idle")
int BPF_PROG(on_claim_idle, s32 cpu, bool was_idle)
{
	return note_call(FN_CLAIM_IDLE, NULL, (u32)cpu, 0, was_idle);
}

SEC("fexit/scx_bpf_kick_cpu")
int BPF_PROG(on_kick, s32 cpu, u64 flags)
{
	return note_call(FN_KICK, NULL, (u32)cpu, flags, 0);
}

SEC("fexit/scx_bpf_cpuperf_set")
int BPF_PROG(on_cpuperf_set, s32 cpu, u32 perf)
{
	return note_call(FN_SET_FREQUENCY, NULL, (u32)cpu, perf, 0);
}

static __always_inline int note_insert(struct task_struct *p, u64 queue, u64 slice, u64 vtime,
				       u64 flags, bool by_vtime)
{
	struct tape_entry *entry = begin_call(FN_INSERT, p);

	if (!entry)
		return 0;
	entry->values[0] = queue;
	entry->values[1] = slice;
	entry->values[2] = vtime;
	entry->values[3] = flags;
	entry->values[4] = by_vtime;
	end(entry);
	return 0;
}

SEC("fexit/scx_bpf_dsq_insert")
int BPF_PROG(on_insert, struct task_struct *p, u64 queue, u64 slice, u64 flags)
{
	return note_insert(p, queue, slice, 0, flags, false);
}

SEC("fexit/scx_bpf_dsq_insert_vtime")
int BPF_PROG(on_insert_vtime, struct task_struct *p, u64 queue, u64 slice, u64 vtime, u64 flags)
{
	return note_insert(p, queue, slice, vtime, flags, true);
}

SEC("fexit/scx_bpf_dsq_move_set_slice")
int BPF_PROG(on_move_set_slice, struct bpf_iter_scx_dsq *it, u64 slice)
{
	struct here *h = here();

	if (h) {
		h->slice = slice;
		h->set |= 1;
	}
	return 0;
}

SEC("fexit/scx_bpf_dsq_move_set_vtime")
int BPF_PROG(on_move_set_vtime, struct bpf_iter_scx_dsq *it, u64 vtime)
{
	struct here *h = here();

	if (h) {
		h->vtime = vtime;
		h->set |= 2;
	}
	return 0;
}

static __always_inline int note_move(struct task_struct *p, u64 dst, bool by_vtime, bool moved)
{
	struct tape_entry *entry = begin_call(FN_MOVE, p);
	struct here *h = here();

	if (entry && h) {
		entry->values[0] = h->queue;
		entry->values[1] = dst;
		entry->values[2] = h->set;
		entry->values[3] = h->set & 1 ? h->slice : 0;
		entry->values[4] = h->set & 2 ? h->vtime : 0;
		entry->values[5] = by_vtime;
		entry->values[TAPE_LAST] = moved;
	}
	if (h)
		h->set = 0;
	if (entry)
		end(entry);
	return 0;
}

SEC("fexit/scx_bpf_dsq_move")
int BPF_PROG(on_move, struct bpf_iter_scx_dsq *it, struct task_struct *p, u64 dst, u64 flags,
	     bool moved)
{
	return note_move(p, dst, false, moved);
}

SEC("fexit/scx_bpf_dsq_move_vtime")
int BPF_PROG(on_move_vtime, struct bpf_iter_scx_dsq *it, struct task_struct *p, u64 dst, u64 flags,
	     bool moved)
{
	return note_move(p, dst, true, moved);
}

SEC("fexit/scx_bpf_dsq_move_to_local")
int BPF_PROG(on_move_to_local, u64 queue, bool moved)
{
	return note_call(FN_MOVE_TO_LOCAL, NULL, queue, 0, moved);
}

SEC("fexit/scx_bpf_reenqueue_local")
int BPF_PROG(on_reenqueue_local)
{
	return note_call(FN_REENQUEUE_LOCAL, NULL, 0, 0, 0);
}

SEC("fexit/bpf_iter_scx_dsq_new")
int BPF_PROG(on_iter_new, struct bpf_iter_scx_dsq *it, u64 queue, u64 flags)
{
	struct here *h = here();

	if (h) {
		h->queue = queue;
		h->flags = flags;
		h->set = 0;
	}
	return 0;
}

SEC("fexit/bpf_iter_scx_dsq_next")
int BPF_PROG(on_iter_next, struct bpf_iter_scx_dsq *it, struct task_struct *found)
{
	struct here *h = here();

	if (!h || !h->callbacks)
		return 0;
	note_task(found);
	return note_call(FN_ITER_NEXT, found, h->queue, h->flags, 0);
}

SEC("fexit/bpf_task_from_pid")
int BPF_PROG(on_find_task, s32 pid, struct task_struct *found)
{
	struct here *h = here();

	if (!h || !h->callbacks)
		return 0;
	note_task(found);
	return note_call(FN_FIND_TASK, found, (u32)pid, 0, 0);
}

char LICENSE[] SEC("license") = "GPL";
