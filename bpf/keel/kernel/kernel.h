/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * All that the keel uses of the kernel: types (only the fields that are read, relocated at load
 * time), constants and functions. Differences between kernels, from 6.18 on, stay in here.
 *
 * A program that hosts the keel elsewhere (the simulator) puts a kernel.h of its own before this
 * one on the include path. A name that it lacks fails to compile.
 */
#ifndef EVENKEEL_KERNEL_H
#define EVENKEEL_KERNEL_H

#include <stdbool.h>
#include <linux/types.h>

typedef __u8 u8;
typedef __u16 u16;
typedef __s32 s32;
typedef __u32 u32;
typedef __s64 s64;
typedef __u64 u64;

/* The numbers of the kernel's include/uapi/linux/bpf.h that the keel needs. */
#define BPF_MAP_TYPE_HASH 1
#define BPF_MAP_TYPE_ARRAY 2
#define BPF_MAP_TYPE_TASK_STORAGE 29
#define BPF_F_NO_PREALLOC 1
#define BPF_LOCAL_STORAGE_GET_F_CREATE 1
#define BPF_ANY 0

struct bpf_iter_num {
	__u64 __opaque[1];
} __attribute__((aligned(8)));

#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

#include "interrupt.h"
#include "higher_class.h"

#define KEEL_OPS(name, args...) SEC("struct_ops/" #name) BPF_PROG(name, ##args)
/* For callbacks that may sleep. */
#define KEEL_OPS_S(name, args...) SEC("struct_ops.s/" #name) BPF_PROG(name, ##args)

/*
 * A function that the verifier checks on its own, for any arguments, and not again for each call:
 * without such borders it would follow all paths through nested loops.
 */
#define KEEL_PART __attribute__((noinline)) __weak

/*
 * A condition of a loop that ends where the data says so: with it, the verifier follows the loop until
 * no state is new, and not each turn. The kernel makes it false where a loop goes on for too long (a
 * quarter of a second, or 8 million turns). Its instruction, may_goto, is written as bytes, because
 * clang knows it from version 19 on only; the offset is in 4 of them, because clang takes 2 that it
 * does not know yet for a jump's.
 */
#define can_loop								\
	({									\
		__label__ ended, out;						\
		bool goes_on = true;						\
										\
		asm volatile goto("1: .byte 0xe5, 0\n"				\
				  ".4byte (%l[ended] - 1b - 8) / 8 & 0xffff\n"	\
				  ".2byte 0\n"					\
				  : : : : ended);				\
		goto out;							\
	ended:									\
		goes_on = false;						\
	out:									\
		goes_on;							\
	})

#define READ_ONCE(x) (*(volatile typeof(x) *)&(x))
#define WRITE_ONCE(x, value) (*(volatile typeof(x) *)&(x) = (value))

#define ENOMEM 12

struct mm_struct;

/* Only passed on; without a body the type would not match the kernel's. */
struct cpumask {
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

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

struct cgroup_subsys_state {
	struct cgroup_subsys_state *parent;
};

struct cgroup {
	struct cgroup_subsys_state self;
	int level;
	struct kernfs_node *kn;
};

struct scx_init_task_args {
	bool fork;
	struct cgroup *cgroup;
};

struct scx_exit_task_args {
	bool cancelled;
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

/* Only for their fields: relocated like the others. */
struct scx_bpf_dsq_insert_vtime_args {
	u64 dsq_id;
	u64 slice;
	u64 vtime;
	u64 enq_flags;
};

#pragma clang attribute pop

struct scx_cpu_acquire_args;
struct scx_cpu_release_args;

/* In a struct, this name and size make it the kernel's lock. */
struct bpf_spin_lock {
	u32 val;
};

struct bpf_iter_scx_dsq {
	u64 __opaque[6];
} __attribute__((aligned(8)));

/* The callbacks and settings of the keel. */
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
	u32 timeout_ms;
	u32 exit_dump_len;
	char name[128];
	/* Set by product/keel just before the load. */
	u64 flags;
	u64 hotplug_seq;
};

/* Constants of sched_ext: relocated, because their values are not stable. */
enum scx_dsq_id_flags {
	SCX_DSQ_GLOBAL = 0x8000000000000001ULL,
	SCX_DSQ_LOCAL = 0x8000000000000002ULL,
	SCX_DSQ_LOCAL_ON = 0xc000000000000000ULL,
};
enum scx_enq_flags {
	SCX_ENQ_WAKEUP = 1ULL,
	SCX_ENQ_CPU_SELECTED = 1ULL << 20,
	SCX_ENQ_REENQ = 1ULL << 40,
	SCX_ENQ_LAST = 1ULL << 41,
};
enum scx_wake_flags {
	SCX_WAKE_FORK = 4,
	SCX_WAKE_SYNC = 16,
};
enum scx_kick_flags {
	SCX_KICK_IDLE = 1,
	SCX_KICK_PREEMPT = 2,
};
enum scx_dsq_iter_flags {
	SCX_DSQ_ITER_REV = 1 << 16,
};
enum scx_ent_flags {
	SCX_TASK_QUEUED = 1,
};

#define SCX_DSQ_GLOBAL bpf_core_enum_value(enum scx_dsq_id_flags, SCX_DSQ_GLOBAL)
#define SCX_DSQ_LOCAL bpf_core_enum_value(enum scx_dsq_id_flags, SCX_DSQ_LOCAL)
#define SCX_DSQ_LOCAL_ON bpf_core_enum_value(enum scx_dsq_id_flags, SCX_DSQ_LOCAL_ON)
#define SCX_ENQ_WAKEUP bpf_core_enum_value(enum scx_enq_flags, SCX_ENQ_WAKEUP)
#define SCX_ENQ_CPU_SELECTED bpf_core_enum_value(enum scx_enq_flags, SCX_ENQ_CPU_SELECTED)
#define SCX_ENQ_LAST bpf_core_enum_value(enum scx_enq_flags, SCX_ENQ_LAST)
#define SCX_ENQ_REENQ bpf_core_enum_value(enum scx_enq_flags, SCX_ENQ_REENQ)
#define SCX_WAKE_FORK bpf_core_enum_value(enum scx_wake_flags, SCX_WAKE_FORK)
#define SCX_WAKE_SYNC bpf_core_enum_value(enum scx_wake_flags, SCX_WAKE_SYNC)
#define SCX_KICK_IDLE bpf_core_enum_value(enum scx_kick_flags, SCX_KICK_IDLE)
#define SCX_KICK_PREEMPT bpf_core_enum_value(enum scx_kick_flags, SCX_KICK_PREEMPT)
#define SCX_DSQ_ITER_REV bpf_core_enum_value(enum scx_dsq_iter_flags, SCX_DSQ_ITER_REV)
#define SCX_TASK_QUEUED bpf_core_enum_value(enum scx_ent_flags, SCX_TASK_QUEUED)

/* Functions that are the same in all supported kernels. */
s32 scx_bpf_create_dsq(u64 dsq_id, s32 node) __ksym;
s32 scx_bpf_dsq_nr_queued(u64 dsq_id) __ksym;
s32 scx_bpf_select_cpu_dfl(struct task_struct *p, s32 prev_cpu, u64 wake_flags,
			   bool *is_idle) __ksym;
s32 scx_bpf_pick_idle_cpu(const struct cpumask *cpus_allowed, u64 flags) __ksym;
bool scx_bpf_test_and_clear_cpu_idle(s32 cpu) __ksym;
void scx_bpf_kick_cpu(s32 cpu, u64 flags) __ksym;
s32 scx_bpf_task_cpu(const struct task_struct *p) __ksym;
void scx_bpf_cpuperf_set(s32 cpu, u32 perf) __ksym;
u64 scx_bpf_now(void) __ksym;
bool scx_bpf_dsq_move(struct bpf_iter_scx_dsq *it__iter, struct task_struct *p, u64 dsq_id,
		      u64 enq_flags) __ksym;
void scx_bpf_dsq_move_set_slice(struct bpf_iter_scx_dsq *it__iter, u64 slice) __ksym;
void scx_bpf_dsq_move_set_vtime(struct bpf_iter_scx_dsq *it__iter, u64 vtime) __ksym;
bool scx_bpf_dsq_move_vtime(struct bpf_iter_scx_dsq *it__iter, struct task_struct *p, u64 dsq_id,
			    u64 enq_flags) __ksym;
int bpf_iter_scx_dsq_new(struct bpf_iter_scx_dsq *it, u64 dsq_id, u64 flags) __ksym;
struct task_struct *bpf_iter_scx_dsq_next(struct bpf_iter_scx_dsq *it) __ksym;
void bpf_iter_scx_dsq_destroy(struct bpf_iter_scx_dsq *it) __ksym;
void scx_bpf_dump_bstr(char *fmt, unsigned long long *data, u32 data__sz) __ksym;
bool bpf_cpumask_test_cpu(u32 cpu, const struct cpumask *cpumask) __ksym;
struct task_struct *bpf_task_from_pid(s32 pid) __ksym;
void bpf_task_release(struct task_struct *p) __ksym;

/* The node of a task's memory; -1: the kernel (or one without NUMA balancing) does not know. */
#define preferred_node(p)                                                                          \
	(bpf_core_field_exists((p)->numa_preferred_nid) ? (p)->numa_preferred_nid : -1)

/*
 * Read through probes, because the cgroup of init_task's arguments, and so its ancestors, are not
 * trusted: the kernel's own functions would refuse them.
 */
static __always_inline u64 id_of_cgroup(struct cgroup *cgrp)
{
	return BPF_CORE_READ(cgrp, kn, id);
}

/* The root has none. */
static __always_inline struct cgroup *parent_of_cgroup(struct cgroup *cgrp)
{
	void *parent = BPF_CORE_READ(cgrp, self.parent);

	return parent - bpf_core_field_offset(struct cgroup, self);
}

/* The iterator of the innermost bpf_for_each(), for scx_bpf_dsq_move(). */
#define THIS_ITERATOR (&___it)

/* Prints into the report that the kernel makes when it ends a scheduler. */
#define scx_bpf_dump(fmt, args...)                                                                 \
	({                                                                                         \
		static char ___fmt[] = fmt;                                                        \
		unsigned long long ___param[] = { args };                                          \
		scx_bpf_dump_bstr(___fmt, ___param, sizeof(___param));                             \
	})

/*
 * Functions that changed since 6.18. The last ___part of a name is not compared with the kernel's
 * names; the kernel itself calls some new versions ___v2.
 */
void scx_bpf_dsq_insert___v1(struct task_struct *p, u64 dsq_id, u64 slice,
			     u64 enq_flags) __ksym __weak;
bool scx_bpf_dsq_insert___v2___new(struct task_struct *p, u64 dsq_id, u64 slice,
				   u64 enq_flags) __ksym __weak;
void scx_bpf_dsq_insert_vtime___v1(struct task_struct *p, u64 dsq_id, u64 slice, u64 vtime,
				   u64 enq_flags) __ksym __weak;
bool __scx_bpf_dsq_insert_vtime(struct task_struct *p,
				struct scx_bpf_dsq_insert_vtime_args *args) __ksym __weak;
bool scx_bpf_dsq_move_to_local___v1(u64 dsq_id) __ksym __weak;
bool scx_bpf_dsq_move_to_local___v2___new(u64 dsq_id, u64 enq_flags) __ksym __weak;
u32 scx_bpf_reenqueue_local___v1(void) __ksym __weak;
void scx_bpf_reenqueue_local___v2___new(void) __ksym __weak;
void scx_bpf_dsq_reenq(u64 dsq_id, u64 reenq_flags) __ksym __weak;
bool scx_bpf_task_set_slice(struct task_struct *p, u64 slice) __ksym __weak;

static __always_inline void scx_bpf_dsq_insert(struct task_struct *p, u64 dsq_id, u64 slice,
					       u64 enq_flags)
{
	if (bpf_ksym_exists(scx_bpf_dsq_insert___v2___new)) /* 6.19 */
		scx_bpf_dsq_insert___v2___new(p, dsq_id, slice, enq_flags);
	else
		scx_bpf_dsq_insert___v1(p, dsq_id, slice, enq_flags);
}

static __always_inline void scx_bpf_dsq_insert_vtime(struct task_struct *p, u64 dsq_id, u64 slice,
						     u64 vtime, u64 enq_flags)
{
	if (bpf_core_type_exists(struct scx_bpf_dsq_insert_vtime_args)) { /* 6.19 */
		struct scx_bpf_dsq_insert_vtime_args args = {
			.dsq_id = dsq_id, .slice = slice, .vtime = vtime, .enq_flags = enq_flags,
		};

		__scx_bpf_dsq_insert_vtime(p, &args);
	} else {
		scx_bpf_dsq_insert_vtime___v1(p, dsq_id, slice, vtime, enq_flags);
	}
}

static __always_inline bool scx_bpf_dsq_move_to_local(u64 dsq_id)
{
	if (bpf_ksym_exists(scx_bpf_dsq_move_to_local___v2___new)) /* 7.1 */
		return scx_bpf_dsq_move_to_local___v2___new(dsq_id, 0);
	return scx_bpf_dsq_move_to_local___v1(dsq_id);
}

static __always_inline void scx_bpf_reenqueue_local(void)
{
	if (bpf_ksym_exists(scx_bpf_dsq_reenq)) /* 7.1 */
		scx_bpf_dsq_reenq(SCX_DSQ_LOCAL, 0);
	else if (bpf_ksym_exists(scx_bpf_reenqueue_local___v2___new)) /* 6.19 */
		scx_bpf_reenqueue_local___v2___new();
	else
		scx_bpf_reenqueue_local___v1();
}

static __always_inline void set_slice(struct task_struct *p, u64 slice)
{
	if (bpf_ksym_exists(scx_bpf_task_set_slice)) /* 6.19 */
		scx_bpf_task_set_slice(p, slice);
	else
		p->scx.slice = slice;
}

#endif
