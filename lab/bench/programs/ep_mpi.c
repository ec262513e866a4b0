// SPDX-License-Identifier: GPL-2.0-only
//
// EP of the NAS Parallel Benchmarks by MPI ranks; ep.h says what it computes. Each rank does an equal
// share of the batches; then the sums of all are added up, which is the only communication.
//
//   ep_mpi [--class S|W|A|B] [--repeat N]

#include <mpi.h>

#include "ep.h"

// The whole benchmark once; returns whether its sums are the official ones, which only rank 0 tells.
static int run(const struct size *size, int rank, int ranks, double *seconds)
{
	double sums[2] = { 0 };
	uint64_t counts[ANNULI] = { 0 };
	int64_t batches = batches_of(size), end = batches * (rank + 1) / ranks;

	MPI_Barrier(MPI_COMM_WORLD);
	double start = MPI_Wtime();
	for (int64_t index = batches * rank / ranks; index < end; index++)
		do_batch((uint64_t)index, &sums[0], &sums[1], counts);
	MPI_Allreduce(MPI_IN_PLACE, sums, 2, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
	MPI_Allreduce(MPI_IN_PLACE, counts, ANNULI, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
	*seconds += MPI_Wtime() - start;
	return rank > 0 || verify(size, sums[0], sums[1], counts);
}

int main(int argc, char **argv)
{
	// Before MPI is up: refused at once, with or without a launcher.
	struct options options = read_options("ep_mpi", "SWAB", 0, argc, argv);
	const struct size *size = &sizes[options.index];
	double seconds = 0;
	int is_good = 1, status = 0, rank, ranks;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	for (int repeat = 0; repeat < options.repeats; repeat++)
		is_good &= run(size, rank, ranks, &seconds);
	if (rank == 0)
		status = report("ep_mpi", &options, "ranks", ranks, seconds,
				operations(size, options.repeats), is_good);
	MPI_Finalize();
	return status;
}
