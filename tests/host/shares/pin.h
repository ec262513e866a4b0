// SPDX-License-Identifier: GPL-2.0-only
//
// What the programs under the shares library have in common: a thread pins itself, so that threads are
// on CPUs of different weights; and a check that fails the program with its line.

#ifndef PIN_H
#define PIN_H

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                        \
	do {                                                                    \
		if (!(condition)) {                                             \
			printf("%s:%d: %s\n", __FILE__, __LINE__, #condition);  \
			exit(1);                                                \
		}                                                               \
	} while (0)

static cpu_set_t pin_allowed;

// The CPUs that the program may use, before a thread pins itself.
__attribute__((constructor)) static void find_allowed(void)
{
	CHECK(!sched_getaffinity(0, sizeof(pin_allowed), &pin_allowed));
}

// Pins the calling thread to one of the CPUs that the program may use: by turns, for threads that count
// upwards.
static inline void pin_thread(int number)
{
	cpu_set_t one;

	number %= CPU_COUNT(&pin_allowed);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET(cpu, &pin_allowed) || number-- != 0)
			continue;
		CPU_ZERO(&one);
		CPU_SET(cpu, &one);
		CHECK(!sched_setaffinity(0, sizeof(one), &one));
	}
}

#endif
