/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The kernel's part, for compiling the keel natively: the twin of
 * bpf/keel/kernel/kernel.h, with the same names and nothing behind them. That this
 * compiles proves that the keel uses nothing else, and nothing that only BPF has.
 */
#ifndef EVENKEEL_KERNEL_H
#define EVENKEEL_KERNEL_H

#include <stdbool.h>
#include <stddef.h>

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

#define SEC(name)
#define __uint(name, value) int (*name)[value]
#define __type(name, value) value *name
#define __always_inline inline __attribute__((always_inline))
#define __arg_trusted
#define __arg_nullable

#define KEEL_OPS(name, args...) name(args)
#define KEEL_OPS_S(name, args...) name(args)
#define KEEL_PART static __attribute__((noinline, unused))

#define READ_ONCE(x) (*(volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, value) (*(volatile typeof(x) *)&(x) = (value))

struct cpumask;
struct mm_struct;

struct sched_entity {
	u64 sum_exec_runtime;
};

struct sched_ext_entity {
	u32 flags;
	u32 weight;
	u64 slice;
};

struct task_struct {
	int pid;
	int tgid;
	int nr_cpus_allowed;
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

struct bpf_iter_scx_dsq {
	u64 state[6];
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
	s32 (*init_task)(struct task_struct *, struct scx_init_task_args *);
	void (*exit_task)(struct task_struct *, struct scx_exit_task_args *);
	void (*enable)(struct task_struct *);
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
#define SCX_WAKE_FORK 4
#define SCX_WAKE_SYNC 16
#define SCX_KICK_IDLE 1
#define SCX_KICK_PREEMPT 2
#define SCX_DSQ_ITER_REV (1 << 16)
#define SCX_TASK_QUEUED 1

void *bpf_map_lookup_elem(const void *map, const void *key);
long bpf_map_update_elem(const void *map, const void *key, const void *value, u64 flags);
long bpf_map_delete_elem(const void *map, const void *key);
void *bpf_task_storage_get(const void *map, struct task_struct *task, void *value, u64 flags);
u64 bpf_ktime_get_ns(void);
u32 bpf_get_smp_processor_id(void);
long bpf_probe_read_kernel_str(void *to, u32 size, const void *from);
bool bpf_cpumask_test_cpu(u32 cpu, const struct cpumask *cpumask);
struct cgroup *bpf_cgroup_ancestor(struct cgroup *cgrp, int level);
void bpf_cgroup_release(struct cgroup *cgrp);
int bpf_iter_scx_dsq_new(struct bpf_iter_scx_dsq *it, u64 dsq_id, u64 flags);
struct task_struct *bpf_iter_scx_dsq_next(struct bpf_iter_scx_dsq *it);
void bpf_iter_scx_dsq_destroy(struct bpf_iter_scx_dsq *it);
s32 scx_bpf_create_dsq(u64 dsq_id, s32 node);
s32 scx_bpf_dsq_nr_queued(u64 dsq_id);
s32 scx_bpf_select_cpu_dfl(struct task_struct *p, s32 prev_cpu, u64 wake_flags, bool *is_idle);
s32 scx_bpf_pick_idle_cpu(const struct cpumask *cpus_allowed, u64 flags);
bool scx_bpf_test_and_clear_cpu_idle(s32 cpu);
void scx_bpf_kick_cpu(s32 cpu, u64 flags);
s32 scx_bpf_task_cpu(const struct task_struct *p);
void scx_bpf_cpuperf_set(s32 cpu, u32 perf);
u64 scx_bpf_now(void);
bool scx_bpf_dsq_move(struct bpf_iter_scx_dsq *it, struct task_struct *p, u64 dsq_id,
		      u64 enq_flags);
void scx_bpf_dsq_move_set_slice(struct bpf_iter_scx_dsq *it, u64 slice);
void scx_bpf_dsq_move_set_vtime(struct bpf_iter_scx_dsq *it, u64 vtime);
bool scx_bpf_dsq_move_vtime(struct bpf_iter_scx_dsq *it, struct task_struct *p, u64 dsq_id,
			    u64 enq_flags);
void scx_bpf_dsq_insert(struct task_struct *p, u64 dsq_id, u64 slice, u64 enq_flags);
void scx_bpf_dsq_insert_vtime(struct task_struct *p, u64 dsq_id, u64 slice, u64 vtime,
			      u64 enq_flags);
bool scx_bpf_dsq_move_to_local(u64 dsq_id);
void scx_bpf_reenqueue_local(void);
void set_slice(struct task_struct *p, u64 slice);
void scx_bpf_dump_text(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#define scx_bpf_dump(fmt, args...) scx_bpf_dump_text(fmt, ##args)
#define THIS_ITERATOR (&___it)

/* Iterators are cleaned up however the loop is left. */
#define bpf_for_each(type, cur, args...)                                                           \
	for (struct bpf_iter_##type ___it __attribute__((cleanup(bpf_iter_##type##_destroy))),     \
	     *___once __attribute__((unused)) = (bpf_iter_##type##_new(&___it, args), &___it);     \
	     ((cur) = bpf_iter_##type##_next(&___it));)

#define bpf_for(i, start, end) for (i = (start); i < (typeof(i))(end); i++)

#endif
