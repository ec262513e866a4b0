/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Paper 002 to the letter, and the classic balancer as that paper draws it: rules that only the
 * laboratory switches on, to measure what a reading of the paper is worth. The simulator's keel is
 * built with LABORATORY; the keel that a kernel loads is built without it and has none of these
 * rules.
 *
 * Lines and sections are those of paper 002. The other readings are parts of the policy
 * `capability` (balance.h): PART_PLAIN places "a least loaded core", PART_BARE is line 40's bare
 * "<", PART_ACTIVE migrates running tasks.
 */
#ifndef EVENKEEL_BALANCE_PAPER_H
#define EVENKEEL_BALANCE_PAPER_H

#ifndef LABORATORY
#define LABORATORY 0
#endif

/* Bits of balance_params.parts above those of enum balance_part. */
enum paper_rule {
	/*
	 * Figure 3, lines 44 and 45: an idle CPU pulls as many tasks as make the loads even, not
	 * one. Algorithm 1 then goes on with the next domain (lines 4 and 49), the classic balancer
	 * ends there.
	 */
	RULE_SEVERAL = 1 << 16,
	/*
	 * Lines 22 to 24 and 33 to 35: only while there are no more tasks than speed cores do
	 * running tasks leave normal cores, and speed cores pull all that wait there.
	 */
	RULE_RATIO = 1 << 17,
	/* Lines 2 and 3: a normal core, busy or idle, that is not to balance does not search. */
	RULE_NO_SEARCH = 1 << 18,
	/* 4.1.4, lines 8 and 14: the first idle speed core of a group balances for it. */
	RULE_LEADER = 1 << 19,
	/* 1.1 (iii), 5.2: each CPU that becomes idle searches, also where no task waits. */
	RULE_EAGER = 1 << 20,
	/* 1.1 (iii): an idle CPU of the classic balancer begins at the parent domain. */
	RULE_PARENT = 1 << 21,
};

/* Whether a set of parts has this rule; never outside the laboratory. */
POLICY bool paper_has_rule(u32 parts, enum paper_rule rule)
{
	return LABORATORY && parts & rule;
}

#endif
