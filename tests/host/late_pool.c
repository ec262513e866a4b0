// SPDX-License-Identifier: GPL-2.0-only
//
// A program that computes alone until it is told (by a line on its standard input) to start its
// OpenMP pool, as interpreters do that load a numerical library late. Prints its thread number at
// once; then how many threads the pool has, and on how many CPUs each of them may run in the end.

#define _GNU_SOURCE
#include <omp.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

static int cpus(void)
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof(set), &set) ? 0 : CPU_COUNT(&set);
}

int main(void)
{
	struct pollfd input = { .fd = 0, .events = POLLIN };
	int threads = 0, narrow = 0;
	long online = sysconf(_SC_NPROCESSORS_ONLN);

	printf("@tid=%d\n", (int)gettid());
	fflush(stdout);
	while (poll(&input, 1, 0) == 0)
		for (volatile int i = 0; i < 100000; i++)
			;
#pragma omp parallel reduction(+ : threads, narrow)
	{
		threads += 1;
		// A pin that was inherited is taken off soon, not at once: up to a minute here. (Later
		// the thread may be placed for its own sake.) The first thread is the one that was
		// moved: pinned, if that is what was asked for.
		int seen = 0;
		for (int i = 0; i < 60000 && seen < online; i++) {
			seen = cpus();
			usleep(1000);
		}
		if (omp_get_thread_num() != 0)
			narrow += seen < online;
	}
	printf("@pool=%d threads, %d narrow\n", threads, narrow);
	return 0;
}
