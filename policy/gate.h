/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * When may load be balanced?
 *
 * Moving a task costs time to look for it, cold caches, and the latency of others.
 * The gate is asked before every move that is optional, with its reason, and may
 * refuse it. It is not asked where a move is a matter of life: a task whose CPU was
 * taken by a real-time task or went offline, whose affinity changed, or that has
 * waited too long (see bpf/keel/migrate.h). So no gate can let a task starve.
 *
 * `always`: yes. This is classic Linux, and what the other policies are measured
 * against.
 *
 * Paper 004 answers by the utilisation of the CPU that would be relieved or of all
 * CPUs (section 3.1), shifted by a score of the task (3.2): all three are in the
 * view.
 */
#ifndef EVENKEEL_GATE_H
#define EVENKEEL_GATE_H

#include "views.h"

enum gate_kind {
	GATE_ALWAYS,
	GATE_KINDS,
};

struct gate_params {
	u32 kind;	/* enum gate_kind */
};

struct gate_view {
	u32 reason;		/* enum move_reason */
	u32 source_utilisation;	/* of the CPU that would be relieved, 0..=FULL */
	u32 mean_utilisation;	/* of all CPUs, 0..=FULL */
	u32 task_share;		/* of the task: its share of running, 0..=FULL */
};

/* The answer and its reason in one code; what is not below GATE_REFUSALS is a refusal. */
enum gate_verdict {
	GATE_OPEN,		/* always */
	GATE_REFUSALS,		/* none yet */
};

POLICY enum gate_verdict gate_may(const struct gate_params *params, const struct gate_view *view)
{
	(void)params, (void)view;
	return GATE_OPEN;
}

#endif
