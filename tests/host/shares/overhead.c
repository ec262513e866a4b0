// SPDX-License-Identifier: GPL-2.0-only
//
// What the begin of a static loop and a region cost the primary thread: prints the least of many
// measurements of its CPU time, in ns.
//
//   overhead THREADS

#define _GNU_SOURCE
#include <omp.h>
#include <time.h>

#include "pin.h"

enum { LOOPS = 2000, REGIONS = 50, ROUNDS = 101 };

static double now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return now.tv_sec * 1e9 + now.tv_nsec;
}

static double least(double a, double b)
{
	return a < b ? a : b;
}

// Of no use but to keep the loop.
static volatile int sink;

int main(int argc, char **argv)
{
	double loop_ns = 1e9, region_ns = 1e9;
	int threads = argc > 1 ? atoi(argv[1]) : 2;

#pragma omp parallel num_threads(threads)
	pin_thread(omp_get_thread_num());
	for (int round = 0; round < ROUNDS; round++) {
#pragma omp parallel num_threads(threads)
		{
			double begin = now_ns();

			for (int loop = 0; loop < LOOPS; loop++) {
#pragma omp for nowait
				for (int i = 0; i < 4000; i += 1000)
					sink = i;
			}
#pragma omp master
			loop_ns = least(loop_ns, (now_ns() - begin) / LOOPS);
		}
		double begin = now_ns();

		for (int region = 0; region < REGIONS; region++) {
#pragma omp parallel num_threads(threads)
			sink = region;
		}
		region_ns = least(region_ns, (now_ns() - begin) / REGIONS);
	}
	printf("loop=%.1f region=%.0f\n", loop_ns, region_ns);
	return 0;
}
