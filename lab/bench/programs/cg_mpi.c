// SPDX-License-Identifier: GPL-2.0-only
//
// CG of the NAS Parallel Benchmarks by MPI ranks; cg.h says what it computes.
//
// Each rank has a block of rows, and of the vectors all of p but only its block of the others. (The
// NPB's own MPI version splits the columns, too, which pays with many ranks only.) Each step of
// conjugate gradient has two sums over all ranks and one gathering of p.
//
//   cg_mpi [--class S|W|A] [--iterations N] [--repeat N]

#include <mpi.h>

#include "cg.h"

// The rows of this rank, and how many rows each rank has from where on.
struct block {
	int first, end;
	int *counts, *offsets;
};

struct state {
	double *x, *z, *p, *q, *r;
};

static void sum_over_ranks(double *values, int count)
{
	MPI_Allreduce(MPI_IN_PLACE, values, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

static void gather_over_ranks(const struct block *b, double *vector)
{
	MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, vector, b->counts, b->offsets, MPI_DOUBLE,
		       MPI_COMM_WORLD);
}

// q = A p for the block, given all of p; returns p.q of all blocks.
static double multiply(const struct matrix *a, const struct block *b, const double *p, double *q)
{
	double dot = 0;

	for (int j = b->first; j < b->end; j++) {
		q[j] = row_times(a, j, p);
		dot += p[j] * q[j];
	}
	sum_over_ranks(&dot, 1);
	return dot;
}

// z = A^-1 x, as far as the steps reach; returns |x - A z|.
static double solve(const struct matrix *a, const struct block *b, struct state *s)
{
	double rho = 0, residual = 0;

	for (int j = b->first; j < b->end; j++) {
		s->z[j] = 0;
		s->r[j] = s->p[j] = s->x[j];
		rho += s->x[j] * s->x[j];
	}
	sum_over_ranks(&rho, 1);
	gather_over_ranks(b, s->p);
	for (int step = 0; step < GRADIENT_STEPS; step++) {
		double alpha = rho / multiply(a, b, s->p, s->q), rho_before = rho;

		rho = 0;
		for (int j = b->first; j < b->end; j++) {
			s->z[j] += alpha * s->p[j];
			s->r[j] -= alpha * s->q[j];
			rho += s->r[j] * s->r[j];
		}
		sum_over_ranks(&rho, 1);
		for (int j = b->first; j < b->end; j++)
			s->p[j] = s->r[j] + rho / rho_before * s->p[j];
		gather_over_ranks(b, s->p);
	}
	memcpy(s->p + b->first, s->z + b->first, (b->end - b->first) * sizeof(double));
	gather_over_ranks(b, s->p);
	multiply(a, b, s->p, s->q);
	for (int j = b->first; j < b->end; j++)
		residual += (s->x[j] - s->q[j]) * (s->x[j] - s->q[j]);
	sum_over_ranks(&residual, 1);
	return sqrt(residual);
}

// All power iterations, from x = (1, ..., 1); returns whether the last zeta is the official one, which
// only rank 0 tells.
static int run(const struct matrix *a, const struct block *b, const struct size *size, int iterations,
	       struct state *s)
{
	double zeta = 0, residual = 0;

	for (int j = b->first; j < b->end; j++)
		s->x[j] = 1;
	for (int iteration = 0; iteration < iterations; iteration++) {
		double dots[2] = { 0 }; // x.z and z.z

		residual = solve(a, b, s);
		for (int j = b->first; j < b->end; j++) {
			dots[0] += s->x[j] * s->z[j];
			dots[1] += s->z[j] * s->z[j];
		}
		sum_over_ranks(dots, 2);
		zeta = size->shift + 1 / dots[0];
		for (int j = b->first; j < b->end; j++)
			s->x[j] = s->z[j] / sqrt(dots[1]);
	}
	return b->first > 0 || (iterations == POWER_ITERATIONS && verify(size, zeta, residual));
}

static struct block make_block(int n, int rank, int ranks)
{
	struct block b = {
		.counts = allocate(ranks, sizeof(int)),
		.offsets = allocate(ranks, sizeof(int)),
	};

	for (int other = 0; other < ranks; other++) {
		b.offsets[other] = (int)((int64_t)n * other / ranks);
		b.counts[other] = (int)((int64_t)n * (other + 1) / ranks) - b.offsets[other];
	}
	b.first = b.offsets[rank];
	b.end = b.first + b.counts[rank];
	return b;
}

int main(int argc, char **argv)
{
	// Before MPI is up: refused at once, with or without a launcher.
	struct options options = read_options("cg_mpi", "SWA", 1, argc, argv);
	const struct size *size = &sizes[options.index];
	int iterations = iterations_of(&options, POWER_ITERATIONS), n = size->order;
	int is_good = 1, status = 0, rank, ranks;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	// Making the matrix is not timed, so that each rank makes all of it.
	struct matrix a = make_matrix(size);
	struct block block = make_block(n, rank, ranks);
	struct state state = {
		.x = allocate(n, sizeof(double)),
		.z = allocate(n, sizeof(double)),
		.p = allocate(n, sizeof(double)),
		.q = allocate(n, sizeof(double)),
		.r = allocate(n, sizeof(double)),
	};

	MPI_Barrier(MPI_COMM_WORLD);
	double start = MPI_Wtime();
	for (int repeat = 0; repeat < options.repeats; repeat++)
		is_good &= run(&a, &block, size, iterations, &state);
	double seconds = MPI_Wtime() - start;

	if (rank == 0)
		status = report("cg_mpi", &options, "ranks", ranks, seconds,
				options.repeats * operations(size, iterations), is_good);
	MPI_Finalize();
	return status;
}
