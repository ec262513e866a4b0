// SPDX-License-Identifier: GPL-2.0-only
/*
 * The barriers that processes pass. An object of its own, which needs nothing of the other two:
 * product/cbinfo (barriers.rs) loads it alone to learn, before anything else slows a program down,
 * whether its phases are too short for moves.
 *
 * The last thread that arrives at a barrier wakes all others: futex(FUTEX_WAKE, INT_MAX), also where
 * none of them sleeps. libgomp's and glibc's barriers do that; so these calls tell of a program's
 * barriers. They are counted by the word that the others wait at, because an OpenMP region has two such
 * words: one at its beginning, one for its barriers. Attached, it slows the system calls of all tasks,
 * so user space attaches it in short windows.
 *
 * No field of a kernel's type is read here, so nothing is relocated, and loading does not parse the
 * kernel's type information.
 */
#include <linux/bpf.h>
#include <linux/bpf_perf_event.h>
#include <linux/futex.h>
#include <asm/unistd.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

typedef __u32 u32;
typedef __u64 u64;
#include "cbinfo.h"
#include "system_call.h"

/* For each process, at most so many words at which its threads wait are counted. OpenMP has two. */
#define MAX_WORDS 16
#define ALL_WAITERS 0x7fffffff	/* INT_MAX */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, u32);		/* process */
	__type(value, struct barrier_process);
} processes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, struct wake_word);
	__type(value, u64);		/* how often all its waiters were woken */
} wakes SEC(".maps");

static __always_inline void count_wake(u64 address)
{
	struct wake_word word = {
		.address = address, .tgid = bpf_get_current_pid_tgid() >> 32,
	};
	struct barrier_process *process = bpf_map_lookup_elem(&processes, &word.tgid);
	u64 zero = 0, *count;

	if (!process)
		return;
	word.program = process->program;
	count = bpf_map_lookup_elem(&wakes, &word);
	if (!count) {
		if (__sync_fetch_and_add(&process->words, 1) >= MAX_WORDS)
			return;
		bpf_map_update_elem(&wakes, &word, &zero, BPF_NOEXIST);
		count = bpf_map_lookup_elem(&wakes, &word);
	}
	if (count)
		__sync_fetch_and_add(count, 1);
}

SEC("raw_tp")
int on_system_call(struct bpf_raw_tracepoint_args *ctx)
{
	u64 call = ctx->args[1];
	bpf_user_pt_regs_t regs;

	if (call != __NR_futex ||
	    bpf_probe_read_kernel(&regs, sizeof(regs), (void *)ctx->args[0]))
		return 0;
	if (system_call_of(&regs) == (long)call &&
	    (PT_REGS_PARM2_SYSCALL(&regs) & FUTEX_CMD_MASK) == FUTEX_WAKE &&
	    (u32)PT_REGS_PARM3_SYSCALL(&regs) == ALL_WAITERS)
		count_wake(first_argument_of(&regs));
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
