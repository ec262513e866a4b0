// SPDX-License-Identifier: GPL-2.0-only
//
// A program for ThreadSanitizer: data that a thread wrote in one loop is read by the same thread in
// the next one, without a barrier. If loops of one region were divided differently, that would be a
// data race. The sanitizer cannot see the barriers of a runtime that is not compiled for it, so the
// program orders the begin and the end of its regions itself.
//
//   race REGIONS [broken]
//
// With "broken" the second loop is shifted by one iteration, which is a race for certain.

#define _GNU_SOURCE
#include <omp.h>
#include <stdatomic.h>

#include "pin.h"

enum { N = 1000, THREADS = 3 };

static long a[N + 1], b[N + 1];
static atomic_int forked, joined;

int main(int argc, char **argv)
{
	CHECK(argc >= 2);
	int regions = atoi(argv[1]), shift = argc > 2;

	for (int region = 0; region < regions; region++) {
		atomic_store(&forked, region);
#pragma omp parallel num_threads(THREADS)
		{
			(void)atomic_load(&forked);
			if (region == 0)
				pin_thread(omp_get_thread_num());
#pragma omp for nowait
			for (int i = 0; i < N; i++)
				a[i] = i + region;
#pragma omp for nowait
			for (long i = 0; i < N; i++)
				b[i] = a[i + shift] + 1;
#pragma omp for nowait schedule(static)
			for (unsigned i = 0; i < N; i++)
				a[i] = b[i];
			atomic_fetch_add(&joined, 1);
		}
		(void)atomic_load(&joined);
		for (int i = 0; i < N && !shift; i++)
			CHECK(b[i] == i + region + 1);
	}
	printf("whole\n");
	return 0;
}
