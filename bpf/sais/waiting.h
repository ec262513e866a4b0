/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Counting the requests that a thread waits for (product/sais/src/hold.rs). Threads send and receive on
 * one connection at the same time, on several CPUs, so each step is one atomic operation: a request is
 * counted once, and no count falls below zero. consumer.h calls these; product/sais/native compiles them
 * for tests.
 */
#ifndef EVENKEEL_SAIS_WAITING_H
#define EVENKEEL_SAIS_WAITING_H

/*
 * Tries to subtract while other CPUs change the count. If all fail, the count stays one too high, as if
 * the request got no answer.
 */
#define MAX_TRIES 128

/* Makes a thread the one that waits for a connection's answer; false: a request waits already. */
static inline __attribute__((always_inline)) bool begin_wait(u32 *asker, u32 tid)
{
	return !*asker && !__sync_val_compare_and_swap(asker, 0, tid);
}

/* Returns the thread that waited, for exactly one caller; 0: none did. */
static inline __attribute__((always_inline)) u32 end_wait(u32 *asker)
{
	return *asker ? __sync_lock_test_and_set(asker, 0) : 0;
}

/*
 * Subtracts one, but not below 0: a thread's count may be younger than the request, because the table
 * drops what was not used for long.
 */
static inline __attribute__((always_inline)) void subtract_one(u32 *outstanding)
{
	u32 seen = *(volatile u32 *)outstanding, now;

	for (u32 i = 0; i < MAX_TRIES && seen; i++) {
		now = __sync_val_compare_and_swap(outstanding, seen, seen - 1);
		if (now == seen)
			return;
		seen = now;
	}
}

/*
 * Counts a request, and makes its thread the one that waits; false: a request waits already. Counted
 * first: an answer that comes at once finds the request in the count.
 */
static inline __attribute__((always_inline)) bool begin_request(u32 *asker, u32 tid, u32 *outstanding)
{
	if (*asker)
		return false;
	__sync_fetch_and_add(outstanding, 1);
	if (begin_wait(asker, tid))
		return true;
	subtract_one(outstanding);
	return false;
}

#endif
