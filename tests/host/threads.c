// SPDX-License-Identifier: GPL-2.0-only
//
// An OpenMP program with a barrier every few milliseconds, until its standard input ends, and for ten
// minutes at most. Prints how many threads it was told to start and how many it has.
//
//   threads [COUNT [SECONDS]]    COUNT threads, whatever it was told; and only until all of them have
//                                run for SECONDS in all, whatever its input

#include <omp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now_s(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return now.tv_sec + 1e-9 * now.tv_nsec;
}

// A millisecond of work.
static void work(void)
{
	double end = now_s(CLOCK_THREAD_CPUTIME_ID) + 1e-3;

	while (now_s(CLOCK_THREAD_CPUTIME_ID) < end)
		for (volatile int i = 0; i < 1000; i++)
			;
}

int main(int argc, char **argv)
{
	struct pollfd input = { .fd = 0, .events = POLLIN };
	double end = now_s(CLOCK_MONOTONIC) + 600;
	int told = omp_get_max_threads(), goes_on = 1;
	double run_s = argc > 2 ? atof(argv[2]) : 0;

	if (argc > 1)
		omp_set_num_threads(atoi(argv[1]));
#pragma omp parallel
	{
#pragma omp single
		{
			printf("@told=%d,%d\n", told, omp_get_num_threads());
			fflush(stdout);
		}
		while (goes_on) {
			work();
#pragma omp barrier
#pragma omp single
			goes_on = now_s(CLOCK_MONOTONIC) < end &&
				  (run_s ? now_s(CLOCK_PROCESS_CPUTIME_ID) < run_s
					 : poll(&input, 1, 0) == 0);
		}
	}
	return 0;
}
