// SPDX-License-Identifier: GPL-2.0-only
/*
 * A scheduler that does not come back from a callback: its first one (-DINIT), or the tenth dispatch, where
 * it does nothing (-DNOTHING), calls the kernel (-DCALLS) or waits for another CPU that will never do
 * anything for it (-DWAITS). With none of these it does come back.
 */
#include <kernel.h>

u32 dispatches, never;

static s32 spin_init(void)
{
#ifdef INIT
	while (1)
		;
#endif
	return 0;
}

static void spin_dispatch(s32 cpu, struct task_struct *prev)
{
	(void)prev;
	(void)cpu;
	if (++dispatches < 10)
		return;
#ifdef NOTHING
	while (1)
		;
#endif
#ifdef CALLS
	while (1)
		scx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);
#endif
#ifdef WAITS
	while (!READ_ONCE(never))
		;
#endif
}

struct sched_ext_ops spin_ops = {
	.init = spin_init,
	.dispatch = spin_dispatch,
	.timeout_ms = 30000,
	.name = "spin",
};
