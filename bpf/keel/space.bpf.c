// SPDX-License-Identifier: GPL-2.0-only
/*
 * The present address space of a process, for the user-space side of set_ias_agg, and when a task was
 * started, which tells it from others that have its number later. The keel itself knows a task's space
 * only as of its last turn, and nothing of tasks in other scheduling classes. /proc does not tell when a
 * process has become another program; and a process in a call of exec that does not end holds up each
 * reader of its stat file, where the start is.
 */
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

/* The kernel's flag of its own threads. */
#define PF_KTHREAD 0x00200000

/* The fields of the kernel's own type that are read; relocated at load time. */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct task_struct {
	unsigned int flags;
	__u64 self_exec_id;
	__u64 start_boottime;
	struct mm_struct *mm;
};
#pragma clang attribute pop

/* The question and its answer; `RawSpaceOf` in product/keel/src/ias/space.rs. */
struct space_of {
	__u32 pid;
	__u32 exists;
	__u64 is_kernel;
	__u64 space;	/* the keel's identity of the space; 0: none (any more) */
	__u64 exec;	/* changes with each exec; a new space may have the address of the old one */
	__u64 started_ns;	/* since boot */
};

extern struct task_struct *bpf_task_from_pid(__s32 pid) __ksym;
extern void bpf_task_release(struct task_struct *p) __ksym;

SEC("syscall")
int space_of(struct space_of *asked)
{
	struct task_struct *p = bpf_task_from_pid(asked->pid);

	if (!p)
		return 0;
	asked->exists = 1;
	asked->is_kernel = !!(BPF_CORE_READ(p, flags) & PF_KTHREAD);
	asked->space = (__u64)BPF_CORE_READ(p, mm);
	asked->exec = BPF_CORE_READ(p, self_exec_id);
	asked->started_ns = BPF_CORE_READ(p, start_boottime);
	bpf_task_release(p);
	return 0;
}

char _license[] SEC("license") = "GPL";
