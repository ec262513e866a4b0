// SPDX-License-Identifier: GPL-2.0-only
//
// Regions that several threads fork at once, within a region, again and again: the runtime hands the
// team of a region that has ended to another thread, and all members of each region must divide its loop
// alike all the same.
//
//   nested ROUNDS
//
// Fails if an iteration of any loop is not executed once. Prints how many iterations of the last loop
// the first thread got.

#define _GNU_SOURCE
#include <omp.h>
#include <string.h>

#include "pin.h"

enum { OUTER = 4, N = 200 };

static unsigned char times[OUTER][N];

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 1;
	int first = 0;

	omp_set_max_active_levels(2);
#pragma omp parallel num_threads(OUTER)
	for (int round = 0; round < rounds; round++) {
		int outer = omp_get_thread_num();
		int got = 0;

		memset(times[outer], 0, N);
#pragma omp parallel num_threads(2) reduction(+ : got)
		{
			pin_thread(outer + omp_get_thread_num());
#pragma omp for
			for (int i = 0; i < N; i++) {
				times[outer][i]++;
				got += omp_get_thread_num() == 0;
			}
		}
		for (int i = 0; i < N; i++)
			CHECK(times[outer][i] == 1);
		if (outer == 0)
			first = got;
	}
	printf("first=%d\n", first);
}
