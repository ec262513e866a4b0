// SPDX-License-Identifier: GPL-2.0-only
//
// EP of the NAS Parallel Benchmarks by OpenMP threads; ep.h says what it computes.
// schedule(static): equal shares, one barrier.
//
//   ep [--class S|W|A|B] [--repeat N]

#include <omp.h>

#include "ep.h"

// The whole benchmark once; returns whether its sums are the official ones.
static int run(const struct size *size, double *seconds)
{
	double sx = 0, sy = 0, start = omp_get_wtime();
	uint64_t counts[ANNULI] = { 0 };

#pragma omp parallel for schedule(static) reduction(+ : sx, sy, counts[:ANNULI])
	for (int64_t index = 0; index < batches_of(size); index++)
		do_batch((uint64_t)index, &sx, &sy, counts);

	*seconds += omp_get_wtime() - start;
	return verify(size, sx, sy, counts);
}

int main(int argc, char **argv)
{
	struct options options = read_options("ep", "SWAB", 0, argc, argv);
	const struct size *size = &sizes[options.index];
	double seconds = 0;
	int is_good = 1;

	for (int repeat = 0; repeat < options.repeats; repeat++)
		is_good &= run(size, &seconds);
	return report("ep", &options, "threads", omp_get_max_threads(), seconds,
		      operations(size, options.repeats), is_good);
}
