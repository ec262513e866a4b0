// SPDX-License-Identifier: GPL-2.0-only
//
// CG of the NAS Parallel Benchmarks by OpenMP threads; cg.h says what it computes.
//
// Each step of conjugate gradient is three parallel loops, schedule(static), with a barrier at
// the end of each: a step of class A is well under a millisecond of two cores.
//
//   cg [--class S|W|A] [--iterations N] [--repeat N]    class A takes well under a second

#include <omp.h>

#include "cg.h"

// q = A p; returns p.q.
static double multiply(const struct matrix *a, const double *p, double *q)
{
	double dot = 0;

#pragma omp parallel for schedule(static) reduction(+ : dot)
	for (int j = 0; j < a->order; j++) {
		double sum = row_times(a, j, p);

		q[j] = sum;
		dot += p[j] * sum;
	}
	return dot;
}

// z = A^-1 x, as far as the steps reach; returns |x - A z|. p, q and r are scratch.
static double solve(const struct matrix *a, const double *x, double *z, double *p, double *q,
		    double *r)
{
	int n = a->order;
	double rho = 0, residual = 0;

#pragma omp parallel for schedule(static) reduction(+ : rho)
	for (int j = 0; j < n; j++) {
		z[j] = 0;
		r[j] = p[j] = x[j];
		rho += x[j] * x[j];
	}
	for (int step = 0; step < GRADIENT_STEPS; step++) {
		double alpha = rho / multiply(a, p, q), rho_before = rho;

		rho = 0;
#pragma omp parallel for schedule(static) reduction(+ : rho)
		for (int j = 0; j < n; j++) {
			z[j] += alpha * p[j];
			r[j] -= alpha * q[j];
			rho += r[j] * r[j];
		}
		double beta = rho / rho_before;
#pragma omp parallel for schedule(static)
		for (int j = 0; j < n; j++)
			p[j] = r[j] + beta * p[j];
	}
	multiply(a, z, q);
#pragma omp parallel for schedule(static) reduction(+ : residual)
	for (int j = 0; j < n; j++)
		residual += (x[j] - q[j]) * (x[j] - q[j]);
	return sqrt(residual);
}

// The vectors that the iterations work on.
struct state {
	double *x, *z, *p, *q, *r;
};

// All power iterations, from x = (1, ..., 1); returns whether the last zeta is the official one.
static int run(const struct matrix *a, const struct size *size, int iterations, struct state *s)
{
	int n = size->order;
	double zeta = 0, residual = 0;

	for (int j = 0; j < n; j++)
		s->x[j] = 1;
	for (int iteration = 0; iteration < iterations; iteration++) {
		double xz = 0, zz = 0;

		residual = solve(a, s->x, s->z, s->p, s->q, s->r);
#pragma omp parallel for schedule(static) reduction(+ : xz, zz)
		for (int j = 0; j < n; j++) {
			xz += s->x[j] * s->z[j];
			zz += s->z[j] * s->z[j];
		}
		zeta = size->shift + 1 / xz;
		double scale = 1 / sqrt(zz);
#pragma omp parallel for schedule(static)
		for (int j = 0; j < n; j++)
			s->x[j] = scale * s->z[j];
	}
	return iterations == POWER_ITERATIONS && verify(size, zeta, residual);
}

int main(int argc, char **argv)
{
	struct options options = read_options("cg", "SWA", 1, argc, argv);
	const struct size *size = &sizes[options.index];
	int iterations = iterations_of(&options, POWER_ITERATIONS), n = size->order, is_good = 1;
	struct matrix a = make_matrix(size);
	struct state state = {
		.x = allocate(n, sizeof(double)),
		.z = allocate(n, sizeof(double)),
		.p = allocate(n, sizeof(double)),
		.q = allocate(n, sizeof(double)),
		.r = allocate(n, sizeof(double)),
	};

	// As the specification has it, making the matrix is not timed.
	double start = omp_get_wtime();
	for (int repeat = 0; repeat < options.repeats; repeat++)
		is_good &= run(&a, size, iterations, &state);
	double seconds = omp_get_wtime() - start;

	return report("cg", &options, "threads", omp_get_max_threads(), seconds,
		      options.repeats * operations(size, iterations), is_good);
}
