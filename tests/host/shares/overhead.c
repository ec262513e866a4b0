// SPDX-License-Identifier: GPL-2.0-only
//
// What the begin of a static loop and a region cost: prints the median over many measurements, in ns.
//
//   overhead THREADS

#define _GNU_SOURCE
#include <omp.h>
#include <time.h>

#include "pin.h"

enum { LOOPS = 2000, ROUNDS = 301 };

static double now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1e9 + now.tv_nsec;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

// Of no use but to keep the loop.
static volatile int sink;

int main(int argc, char **argv)
{
	static double loops[ROUNDS], regions[ROUNDS];
	int threads = argc > 1 ? atoi(argv[1]) : 2;

#pragma omp parallel num_threads(threads)
	pin_thread(omp_get_thread_num());
	for (int round = 0; round < ROUNDS; round++) {
#pragma omp parallel num_threads(threads)
		{
			double begin = now_ns();
			for (int loop = 0; loop < LOOPS; loop++) {
#pragma omp for nowait
				for (int i = 0; i < 100; i += 50)
					sink = i;
			}
#pragma omp master
			loops[round] = (now_ns() - begin) / LOOPS;
		}
		double begin = now_ns();
		for (int region = 0; region < 100; region++) {
#pragma omp parallel num_threads(threads)
			sink = region;
		}
		regions[round] = (now_ns() - begin) / 100;
	}
	qsort(loops, ROUNDS, sizeof(*loops), compare);
	qsort(regions, ROUNDS, sizeof(*regions), compare);
	printf("loop=%.1f region=%.0f\n", loops[ROUNDS / 2], regions[ROUNDS / 2]);
	return 0;
}
