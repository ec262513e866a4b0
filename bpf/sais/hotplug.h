/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A CPU that is to go offline is left before it goes: at the first step that the kernel takes for
 * that, when it still works. User space takes its steering thread away when it sees it, also if
 * the CPU is back by then: the kernel has let the thread run elsewhere meanwhile.
 */
#ifndef EVENKEEL_SAIS_HOTPLUG_H
#define EVENKEEL_SAIS_HOTPLUG_H

/* How often each CPU began to go offline or to come; odd: it goes, or has gone. Written here only. */
u32 changes[MAX_CPUS] SEC(".data.changes");

/* Each step from state `at` towards state `target`; the higher, the more of the CPU works. */
SEC("tp_btf/cpuhp_enter")
int BPF_PROG(on_hotplug, unsigned int cpu, int target, int at)
{
	bool is_leaving = target < at;

	if (cpu >= MAX_CPUS)
		return 0;
	if (is_leaving != (changes[cpu] & 1))
		changes[cpu]++;
	/* User space decides which CPUs may be used again. */
	if (is_leaving)
		live.rules[cpu] = RULE_REFUSED;
	return 0;
}

#endif
