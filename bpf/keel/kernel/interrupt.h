/* SPDX-License-Identifier: GPL-2.0-only */
/* Whether a CPU serves an interrupt, by the kernel's preemption count. */
#ifndef EVENKEEL_INTERRUPT_H
#define EVENKEEL_INTERRUPT_H

/* The bits of the count for soft interrupts, hard interrupts and NMIs. */
#define SERVES_INTERRUPT 0x00ff0100

/* x86 since 6.15. Where there is none, every wake-up counts as a task's. */
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
