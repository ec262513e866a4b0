// SPDX-License-Identifier: GPL-2.0-only
/*
 * A scheduler with an exclusive section, guarded by an atomic test-and-set (-DATOMIC) or by a check
 * and a separate set. In the latter case two CPUs that check before either sets are both inside. The
 * section detects a second CPU by the changed owner.
 */
#include <kernel.h>

#define SLICE_NS 4000000
/* No such queue: the kernel ends a scheduler that uses it. */
#define NOWHERE 0xbad

u32 taken, owner;

static bool try_lock(void)
{
#ifdef ATOMIC
	return !__sync_lock_test_and_set(&taken, 1);
#else
	if (READ_ONCE(taken))
		return false;
	WRITE_ONCE(taken, 1);
	return true;
#endif
}

/* Every task goes through the queue, also if a CPU is idle. */
static s32 trylock_select_cpu(struct task_struct *p, s32 prev, u64 wake_flags)
{
	bool is_idle;

	return scx_bpf_select_cpu_dfl(p, prev, wake_flags, &is_idle);
}

static void trylock_enqueue(struct task_struct *p, u64 flags)
{
	u64 queue = SCX_DSQ_GLOBAL;
	u32 own = bpf_get_smp_processor_id();

	if (try_lock()) {
		WRITE_ONCE(owner, own);
		if (READ_ONCE(owner) != own)
			queue = NOWHERE;
		WRITE_ONCE(taken, 0);
	}
	scx_bpf_dsq_insert(p, queue, SLICE_NS, flags);
}

struct sched_ext_ops trylock_ops = {
	.select_cpu = trylock_select_cpu,
	.enqueue = trylock_enqueue,
	.timeout_ms = 30000,
	.name = "trylock",
};
