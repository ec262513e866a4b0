// SPDX-License-Identifier: GPL-2.0-only
//
// A module with loops, for late.c: prints how many iterations of 1000 each of two threads got in its
// last region.

#define _GNU_SOURCE
#include <omp.h>

#include "pin.h"

int run_module(void)
{
	int counts[2] = { 0 };

#pragma omp parallel num_threads(2)
	pin_thread(omp_get_thread_num());
	for (int region = 0; region < 3; region++) {
#pragma omp parallel num_threads(2)
		{
			int me = omp_get_thread_num();

			counts[me] = 0;
#pragma omp for
			for (int i = 0; i < 1000; i++)
				counts[me]++;
		}
	}
	printf("%d %d\n", counts[0], counts[1]);
	fflush(stdout);
	return counts[0] + counts[1] != 1000;
}
