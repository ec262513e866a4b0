/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The kernel's interface for compiling the keel natively: the twin of
 * bpf/keel/kernel/kernel.h, with the same names and the simulator behind them. That the
 * keel compiles against it proves that the keel uses nothing else, and nothing that only
 * BPF has.
 *
 * A scheduler becomes a shared object, and each simulation loads its own copy, so that
 * global variables are private to it. Its only way out is `sim_host`, which the simulator
 * sets. lab/sim/src/abi.rs holds the Rust twins of the structs here.
 */
#ifndef EVENKEEL_KERNEL_H
#define EVENKEEL_KERNEL_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

/* Adds the rules of policy/balance_paper.h. Without their bits the keel decides as in a kernel. */
#define LABORATORY 1

typedef unsigned char u8;
typedef unsigned short u16;
typedef int s32;
typedef unsigned int u32;
typedef long long s64;
typedef unsigned long long u64;

#define BPF_MAP_TYPE_HASH 1
#define BPF_MAP_TYPE_ARRAY 2
#define BPF_MAP_TYPE_TASK_STORAGE 29
#define BPF_F_NO_PREALLOC 1
#define BPF_LOCAL_STORAGE_GET_F_CREATE 1
#define BPF_ANY 0
#define ENOMEM 12

/* Every map variable begins with this: what the simulator keeps of the map. */
struct sim_map {
	char *storage;
	u32 entries;	/* set at load; 0: max_entries of the source */
	u32 count;	/* how many entries the scheduler has made; of a hash */
};

#define SEC(name)
#define __uint(name, value) __uint_##name(value)
#define __uint_type(value) struct sim_map kernel; int (*type)[value]
#define __uint_max_entries(value) int (*max_entries)[value]
#define __uint_map_flags(value) int (*map_flags)[value]
#define __type(name, value) value *name
#define __always_inline inline __attribute__((always_inline))
#define __arg_trusted
#define __arg_nullable

#define KEEL_OPS(name, args...) name(args)
#define KEEL_OPS_S(name, args...) name(args)
#define KEEL_PART static __attribute__((noinline, unused))
#define can_loop true

/* One bit for each CPU, as in the kernel. */
#define SIM_CPUS 1024
struct cpumask {
	u64 bits[SIM_CPUS / 64];
};
struct mm_struct;

struct sched_entity {
	u64 sum_exec_runtime;
};

struct sched_ext_entity {
	u32 flags;
	u32 weight;
	u64 slice;
	u64 dsq_vtime;
};

struct task_struct {
	int pid;
	int tgid;
	int prio;
	int on_cpu;
	int nr_cpus_allowed;
	int numa_preferred_nid;
	const struct cpumask *cpus_ptr;
	struct mm_struct *mm;
	struct sched_entity se;
	struct sched_ext_entity scx;
	/* Only in the simulator: */
	void *storage;
	u32 cpu;
	u32 index;
};

struct kernfs_node {
	u64 id;
};

struct cgroup {
	int level;
	struct kernfs_node *kn;
	/* Only in the simulator: */
	struct cgroup *parent;
};

struct scx_init_task_args {
	bool fork;
	struct cgroup *cgroup;
};

struct scx_cgroup_init_args {
	u32 weight;
	u64 bw_period_us;
	u64 bw_quota_us;
};

enum scx_exit_kind {
	SCX_EXIT_NONE,
};

struct scx_exit_info {
	enum scx_exit_kind kind;
	s64 exit_code;
	const char *reason;
	char *msg;
	char *dump;
};

struct scx_dump_ctx {
	u64 at_ns;
};

struct scx_exit_task_args;
struct scx_cpu_acquire_args;
struct scx_cpu_release_args;

struct bpf_iter_num {
	s32 next, end;
};

/* The position of an iteration: behind (vtime, seq), an entry that may have been removed. */
struct bpf_iter_scx_dsq {
	u64 dsq_id;
	u64 flags;
	u64 vtime, seq;
	u64 last_seq;	/* later insertions are skipped */
	u64 slice, new_vtime;
	u32 begun, set;
};

struct sched_ext_ops {
	s32 (*select_cpu)(struct task_struct *, s32, u64);
	void (*enqueue)(struct task_struct *, u64);
	void (*dispatch)(s32, struct task_struct *);
	void (*tick)(struct task_struct *);
	void (*running)(struct task_struct *);
	void (*stopping)(struct task_struct *, bool);
	void (*quiescent)(struct task_struct *, u64);
	bool (*yield)(struct task_struct *, struct task_struct *);
	void (*cpu_acquire)(s32, struct scx_cpu_acquire_args *);
	void (*cpu_release)(s32, struct scx_cpu_release_args *);
	void (*update_idle)(s32, bool);
	s32 (*init_task)(struct task_struct *, struct scx_init_task_args *);
	void (*exit_task)(struct task_struct *, struct scx_exit_task_args *);
	void (*enable)(struct task_struct *);
	void (*disable)(struct task_struct *);
	void (*dump)(struct scx_dump_ctx *);
	void (*dump_cpu)(struct scx_dump_ctx *, s32, bool);
	void (*dump_task)(struct scx_dump_ctx *, struct task_struct *);
	s32 (*cgroup_init)(struct cgroup *, struct scx_cgroup_init_args *);
	void (*cgroup_exit)(struct cgroup *);
	void (*cgroup_move)(struct task_struct *, struct cgroup *, struct cgroup *);
	void (*cgroup_set_weight)(struct cgroup *, u32);
	void (*cgroup_set_bandwidth)(struct cgroup *, u64, u64, u64);
	s32 (*init)(void);
	void (*exit)(struct scx_exit_info *);
	u64 flags;
	u32 timeout_ms;
	u32 exit_dump_len;
	char name[128];
	u64 hotplug_seq;
};

#define SCX_DSQ_GLOBAL 0x8000000000000001ULL
#define SCX_DSQ_LOCAL 0x8000000000000002ULL
#define SCX_ENQ_WAKEUP 1ULL
#define SCX_ENQ_CPU_SELECTED (1ULL << 20)
#define SCX_ENQ_REENQ (1ULL << 40)
#define SCX_ENQ_LAST (1ULL << 41)
#define SCX_WAKE_FORK 4
#define SCX_WAKE_SYNC 16
#define SCX_KICK_IDLE 1
#define SCX_KICK_PREEMPT 2
#define SCX_DSQ_ITER_REV (1 << 16)
#define SCX_TASK_QUEUED 1

#define preferred_node(p) ((p)->numa_preferred_nid)

/* What the simulator provides: data that are read directly, and functions. */
struct sim_host {
	void *context;
	u64 now_ns;
	u64 calls;	/* of kernel functions, counted in this header */
	u64 scanned;	/* entries of DSQs that were visited */
	u32 cpu;	/* on which the callback runs */
	u32 hazards;	/* 1: calls may fail; 2: callbacks interleave */
	u32 in_interrupt;	/* 1: an interrupt causes the callback, not a task */
	u32 awaited_by_higher_class;	/* 1: a higher class is about to take the CPU */
	bool (*fails)(void *);
	void (*pause)(void *);
	void *(*allocate)(void *, u64 bytes);
	void *(*hash)(void *, const void *map, u64 key, u64 value_bytes, u32 what);
	s32 (*create_dsq)(void *, u64 id);
	s32 (*nr_queued)(void *, u64 id);
	s32 (*select_cpu_dfl)(void *, struct task_struct *, s32, u64, bool *);
	s32 (*pick_idle_cpu)(void *, const struct cpumask *);
	bool (*test_and_clear_idle)(void *, s32);
	void (*kick_cpu)(void *, s32, u64);
	void (*cpuperf_set)(void *, s32, u32);
	void (*dsq_insert)(void *, struct task_struct *, u64 dsq, u64 slice, u64 vtime, u64 flags,
			   bool ordered);
	bool (*dsq_move)(void *, struct bpf_iter_scx_dsq *, struct task_struct *, u64 dsq,
			 bool ordered);
	bool (*move_to_local)(void *, u64 id);
	void (*reenqueue_local)(void *);
	struct task_struct *(*iter_next)(void *, struct bpf_iter_scx_dsq *);
	u64 (*dsq_seq)(void *, u64 id);
	struct task_struct *(*find_task)(void *, s32 pid);
	void (*dump)(void *, const char *);
};

struct sim_host *sim_host;

static inline void sim_pause(void)
{
	if (__builtin_expect(sim_host->hazards & 2, 0))
		sim_host->pause(sim_host->context);
}

/* Before every call that may fail. */
static inline bool sim_fails(void)
{
	return __builtin_expect(sim_host->hazards & 1, 0) && sim_host->fails(sim_host->context);
}

/* A call of the kernel function `f`. */
#define SIM_CALL(f, args...) (sim_pause(), sim_host->calls++, sim_host->f(sim_host->context, ##args))

#define READ_ONCE(x) (*({ sim_pause(); (volatile typeof(x) *)&(x); }))
#define WRITE_ONCE(x, value) (*({ sim_pause(); (volatile typeof(x) *)&(x); }) = (value))
#define __sync_fetch_and_add(p, v) ({ sim_pause(); __sync_fetch_and_add(p, v); })
#define __sync_fetch_and_sub(p, v) ({ sim_pause(); __sync_fetch_and_sub(p, v); })
#define __sync_fetch_and_or(p, v) ({ sim_pause(); __sync_fetch_and_or(p, v); })
#define __sync_fetch_and_and(p, v) ({ sim_pause(); __sync_fetch_and_and(p, v); })
#define __sync_lock_test_and_set(p, v) ({ sim_pause(); __sync_lock_test_and_set(p, v); })
#define __sync_val_compare_and_swap(p, a, b) \
	({ sim_pause(); __sync_val_compare_and_swap(p, a, b); })

#define SIM_COUNT(pointer) (sizeof(*(pointer)) / sizeof(int))
#define bpf_map_lookup_elem(map, wanted)                                                           \
	((typeof((map)->value))(SIM_COUNT((map)->type) == BPF_MAP_TYPE_ARRAY ?                     \
		sim_array(&(map)->kernel, *(u32 *)(wanted), SIM_COUNT((map)->max_entries),         \
			  sizeof(*(map)->value)) :                                                 \
		sim_hash(&(map)->kernel, (wanted), sizeof(*(map)->key), sizeof(*(map)->value), 0, 0)))
#define bpf_map_update_elem(map, wanted, from, flags)                                              \
	({                                                                                         \
		void *___to = sim_hash(&(map)->kernel, (wanted), sizeof(*(map)->key),              \
				       sizeof(*(map)->value), 1,                                   \
				       SIM_COUNT((map)->max_entries));                             \
		if (___to)                                                                         \
			__builtin_memcpy(___to, (from), sizeof(*(map)->value));                              \
		(long)(___to ? 0 : -ENOMEM);                                                       \
	})
#define bpf_map_delete_elem(map, wanted)                                                           \
	sim_hash(&(map)->kernel, (wanted), sizeof(*(map)->key), sizeof(*(map)->value), 2, 0)

static inline void *sim_array(struct sim_map *map, u32 index, u32 entries, u64 bytes)
{
	if (map->entries)
		entries = map->entries;
	if (index >= entries || sim_fails())
		return NULL;
	if (!map->storage)
		map->storage = sim_host->allocate(sim_host->context, entries * bytes);
	return map->storage + index * bytes;
}

/*
 * Looks up (0), creates (1) or deletes (2) an entry; a map has room for so many. Keys have at most
 * eight bytes.
 */
static inline void *sim_hash(struct sim_map *map, const void *wanted, u64 key_bytes,
			     u64 value_bytes, u32 what, u32 room)
{
	u64 key = 0;
	bool exists;

	__builtin_memcpy(&key, wanted, key_bytes);
	if (what != 2 && sim_fails())
		return NULL;
	if (!what)
		return SIM_CALL(hash, map, key, value_bytes, what);
	exists = sim_host->hash(sim_host->context, map, key, value_bytes, 0);
	if (what == 1 && !exists && map->count >= room)
		return NULL;
	map->count += what == 1 ? !exists : -(u32)exists;
	return SIM_CALL(hash, map, key, value_bytes, what);
}

#define bpf_task_storage_get(map, p, first, flags)                                                 \
	((typeof((map)->value))sim_storage((p), sizeof(*(map)->value), (flags)))

static inline void *sim_storage(struct task_struct *p, u64 bytes, u64 flags)
{
	if (sim_fails())
		return NULL;
	if (!p->storage && flags & BPF_LOCAL_STORAGE_GET_F_CREATE)
		p->storage = sim_host->allocate(sim_host->context, bytes);
	return p->storage;
}

static inline u64 bpf_ktime_get_ns(void)
{
	return sim_host->now_ns;
}

static inline u64 scx_bpf_now(void)
{
	sim_pause();
	sim_host->calls++;
	return sim_host->now_ns;
}

static inline u32 bpf_get_smp_processor_id(void)
{
	return sim_host->cpu;
}

static inline bool in_interrupt(void)
{
	return sim_host->in_interrupt;
}

static inline bool is_awaited_by_higher_class(void)
{
	return sim_host->awaited_by_higher_class;
}

static inline s32 scx_bpf_task_cpu(const struct task_struct *p)
{
	sim_host->calls++;
	return p->cpu;
}

static inline long bpf_probe_read_kernel_str(void *to, u32 size, const void *from)
{
	return __builtin_snprintf(to, size, "%s", from ? (const char *)from : "");
}

static inline bool bpf_cpumask_test_cpu(u32 cpu, const struct cpumask *cpumask)
{
	sim_host->calls++;
	return cpu < SIM_CPUS && cpumask->bits[cpu / 64] >> (cpu & 63) & 1;
}

static inline u64 id_of_cgroup(const struct cgroup *cgrp)
{
	return cgrp->kn->id;
}

static inline struct cgroup *parent_of_cgroup(const struct cgroup *cgrp)
{
	return cgrp->parent;
}

static inline struct task_struct *bpf_task_from_pid(s32 pid)
{
	return sim_fails() ? NULL : SIM_CALL(find_task, pid);
}

static inline void bpf_task_release(struct task_struct *p)
{
	(void)p;
}

/* The keel calls nothing that pauses while it holds a spin lock, so these need no code. */
struct bpf_spin_lock {
	u32 val;
};

static inline void bpf_spin_lock(struct bpf_spin_lock *lock)
{
	(void)lock;
}

static inline void bpf_spin_unlock(struct bpf_spin_lock *lock)
{
	(void)lock;
}

static inline s32 scx_bpf_create_dsq(u64 dsq_id, s32 node)
{
	(void)node;
	return sim_fails() ? -ENOMEM : SIM_CALL(create_dsq, dsq_id);
}

static inline s32 scx_bpf_dsq_nr_queued(u64 dsq_id)
{
	return SIM_CALL(nr_queued, dsq_id);
}

static inline s32 scx_bpf_select_cpu_dfl(struct task_struct *p, s32 prev_cpu, u64 wake_flags,
					 bool *is_idle)
{
	if (sim_fails()) {
		*is_idle = false;
		return prev_cpu;
	}
	return SIM_CALL(select_cpu_dfl, p, prev_cpu, wake_flags, is_idle);
}

static inline s32 scx_bpf_pick_idle_cpu(const struct cpumask *cpus_allowed, u64 flags)
{
	(void)flags;
	return sim_fails() ? -16 : SIM_CALL(pick_idle_cpu, cpus_allowed);
}

static inline bool scx_bpf_test_and_clear_cpu_idle(s32 cpu)
{
	return sim_fails() ? false : SIM_CALL(test_and_clear_idle, cpu);
}

static inline void scx_bpf_kick_cpu(s32 cpu, u64 flags)
{
	SIM_CALL(kick_cpu, cpu, flags);
}

static inline void scx_bpf_cpuperf_set(s32 cpu, u32 perf)
{
	SIM_CALL(cpuperf_set, cpu, perf);
}

static inline void scx_bpf_dsq_insert(struct task_struct *p, u64 dsq_id, u64 slice, u64 enq_flags)
{
	SIM_CALL(dsq_insert, p, dsq_id, slice, 0, enq_flags, false);
}

static inline void scx_bpf_dsq_insert_vtime(struct task_struct *p, u64 dsq_id, u64 slice,
					    u64 vtime, u64 enq_flags)
{
	SIM_CALL(dsq_insert, p, dsq_id, slice, vtime, enq_flags, true);
}

static inline bool scx_bpf_dsq_move_to_local(u64 dsq_id)
{
	return sim_fails() ? false : SIM_CALL(move_to_local, dsq_id);
}

static inline void scx_bpf_reenqueue_local(void)
{
	SIM_CALL(reenqueue_local);
}

static inline void set_slice(struct task_struct *p, u64 slice)
{
	sim_host->calls++;
	p->scx.slice = slice;
}

/* Iterators. A set slice or vtime holds for the next move only. */
#define SIM_SET_SLICE 1
#define SIM_SET_VTIME 2

static inline int bpf_iter_scx_dsq_new(struct bpf_iter_scx_dsq *it, u64 dsq_id, u64 flags)
{
	*it = (struct bpf_iter_scx_dsq){ .dsq_id = dsq_id, .flags = flags };
	it->last_seq = SIM_CALL(dsq_seq, dsq_id);
	return 0;
}

static inline struct task_struct *bpf_iter_scx_dsq_next(struct bpf_iter_scx_dsq *it)
{
	sim_host->scanned++;
	return SIM_CALL(iter_next, it);
}

static inline void bpf_iter_scx_dsq_destroy(struct bpf_iter_scx_dsq *it)
{
	it->begun = 0;
}

static inline void scx_bpf_dsq_move_set_slice(struct bpf_iter_scx_dsq *it, u64 slice)
{
	it->slice = slice;
	it->set |= SIM_SET_SLICE;
}

static inline void scx_bpf_dsq_move_set_vtime(struct bpf_iter_scx_dsq *it, u64 vtime)
{
	it->new_vtime = vtime;
	it->set |= SIM_SET_VTIME;
}

static inline bool scx_bpf_dsq_move(struct bpf_iter_scx_dsq *it, struct task_struct *p, u64 dsq_id,
				    u64 enq_flags)
{
	(void)enq_flags;
	return sim_fails() ? false : SIM_CALL(dsq_move, it, p, dsq_id, false);
}

static inline bool scx_bpf_dsq_move_vtime(struct bpf_iter_scx_dsq *it, struct task_struct *p,
					  u64 dsq_id, u64 enq_flags)
{
	bool moved;

	(void)enq_flags;
	moved = sim_fails() ? false : SIM_CALL(dsq_move, it, p, dsq_id, true);
	/* From now on other CPUs see the task there. */
	sim_pause();
	return moved;
}

static inline __attribute__((format(printf, 1, 2))) void scx_bpf_dump(const char *fmt, ...)
{
	char text[256];
	va_list args;

	va_start(args, fmt);
	__builtin_vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	sim_host->dump(sim_host->context, text);
}

#define THIS_ITERATOR (&___it)

/* Iterators are destroyed however the loop is left. */
#define bpf_for_each(type, cur, args...)                                                           \
	for (struct bpf_iter_##type ___it __attribute__((cleanup(bpf_iter_##type##_destroy))),     \
	     *___once __attribute__((unused)) = (bpf_iter_##type##_new(&___it, args), &___it);     \
	     ((cur) = bpf_iter_##type##_next(&___it));)

#define bpf_for(i, start, end) for (i = (start); i < (typeof(i))(end); i++)

#endif
