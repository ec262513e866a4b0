// SPDX-License-Identifier: GPL-2.0-only
/*
 * A scheduler that hangs in a callback: in init (-DINIT), or in the tenth dispatch, where it spins
 * (-DNOTHING), calls the kernel (-DCALLS) or waits for another CPU in vain (-DWAITS). With none of
 * these it does not hang.
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
