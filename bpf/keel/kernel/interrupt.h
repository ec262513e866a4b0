/* SPDX-License-Identifier: GPL-2.0-only */
/* Whether a CPU serves an interrupt: the kernel's own word, which it keeps in its preemption count. */
#ifndef EVENKEEL_INTERRUPT_H
#define EVENKEEL_INTERRUPT_H

/* Of the count: a soft interrupt is served, or a hard one, or one that cannot be masked. */
#define SERVES_INTERRUPT 0x00ff0100

/* x86 since 6.15; where there is none, all that happens counts as a task's doing. */
extern const int __preempt_count __ksym __weak;

static __always_inline bool in_interrupt(void)
{
	const int *count;

	if (!&__preempt_count)
		return false;
	count = bpf_this_cpu_ptr(&__preempt_count);
	return *count & SERVES_INTERRUPT;
}

#endif
