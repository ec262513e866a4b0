// SPDX-License-Identifier: GPL-2.0-only
/*
 * What the followed tasks do with their time on the CPUs: work, or spin until another
 * task arrives. An object of its own, because most programs never need it: product/cbinfo (waiting.rs)
 * loads it beside cbinfo.bpf.c, with the same maps `tasks` and `cpus`, the first time that it is asked
 * for. It only looks at followed tasks, and changes nothing but their accounts.
 *
 * A clock interrupts the CPUs of the programs at a rate that user space sets. The address at which the
 * task is then, in user space, lies in the text of a synchronisation runtime (wait_ranges, found by user
 * space in the maps of the process), or it does not. For a task in the kernel, the address is that of
 * its system call. In sched_yield(2), which libomp calls while it waits, a task waits whatever its
 * address is. Interrupts and softirqs are no time of the task, so a sample that hits a softirq counts
 * for no task. The address goes to user space, too, which finds by it where threads wait in code of
 * their own (product/host, profile.rs).
 *
 * No field of a kernel's type is read here, so nothing is relocated, and loading does not parse the
 * kernel's type information.
 */
#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/bpf_perf_event.h>
#include <asm/unistd.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

typedef __u32 u32;
typedef __u64 u64;
#include "cbinfo.h"
#include "system_call.h"

struct task_struct;

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);		/* the map of cbinfo.bpf.c takes its place */
	__type(key, u32);
	__type(value, struct cpu_account);
} cpus SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task_account);
} tasks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 16384);
	__type(key, u32);		/* process */
	__type(value, struct wait_ranges);
} ranges SEC(".maps");

/* The places of samples. User space empties it at each look; samples that find no room are lost. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 256 * 1024);
} places SEC(".maps");

static __always_inline bool is_user_address(u64 address)
{
	return (long)address >= 0;
}

static __always_inline bool lies_in(const struct wait_ranges *r, u64 address)
{
	u32 i;

	for (i = 0; i < MAX_WAIT_RANGES; i++) {
		if (i >= r->count)
			break;
		if (address >= r->ranges[i].start && address < r->ranges[i].end)
			return true;
	}
	return false;
}

static __always_inline void note_place(u64 address, u32 cpu)
{
	struct sampled_place place = {
		.address = address, .tid = (u32)bpf_get_current_pid_tgid(), .cpu = cpu,
	};

	/* User space looks by a clock of its own: to wake it up would disturb the tasks that are sampled. */
	bpf_ringbuf_output(&places, &place, sizeof(place), BPF_RB_NO_WAKEUP);
}

SEC("perf_event")
int on_sample(struct bpf_perf_event_data *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct task_account *t = bpf_task_storage_get(&tasks, task, 0, 0);
	u32 cpu = bpf_get_smp_processor_id();
	u32 tgid = bpf_get_current_pid_tgid() >> 32;
	u64 address = PT_REGS_IP(&ctx->regs);
	const struct wait_ranges *r;
	const struct cpu_account *c;
	bool yields = false;
	u64 spins;

	if (!t)
		return 0;
	c = bpf_map_lookup_elem(&cpus, &cpu);
	r = bpf_map_lookup_elem(&ranges, &tgid);
	/* A process that user space has not looked at yet has no ranges: nothing is known of it. */
	if (!c || c->in_softirq || !r)
		return 0;
	if (!is_user_address(address)) {
		bpf_user_pt_regs_t regs = {};

		if (bpf_probe_read_kernel(&regs, sizeof(regs), (void *)bpf_task_pt_regs(task)))
			return 0;
		yields = system_call_of(&regs) == __NR_sched_yield;
		address = PT_REGS_IP(&regs);
	}
	t->samples++;
	spins = yields || lies_in(r, address);
	t->spun += spins;
	t->changes += spins != t->spins;
	t->spins = spins;
	note_place(address, cpu);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
