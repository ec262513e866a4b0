// SPDX-License-Identifier: GPL-2.0-only
//
// CG, "conjugate gradient", of the NAS Parallel Benchmarks, written anew from the published
// specification (Bailey et al., The NAS Parallel Benchmarks, RNR-94-007, sections 2.2 and 2.3):
//
// The eigenvalue of a sparse symmetric matrix A that is nearest to a shift, by inverse power
// iteration: x = (1, ..., 1), then 15 times: z = A^-1 x by 25 steps of conjugate gradient,
// zeta = shift + 1 / (x.z), x = z / |z|. The last zeta must match the official one to 1e-10.
//
// A = sum over i of w_i v_i v_i^T + (0.1 - shift) I, where w_i falls from 1 to 0.1 in a geometric
// progression and v_i is a sparse vector: a given number of random elements at random places, and
// 0.5 at place i. The random numbers (npb.h) start from the seed 314159265; the first is not used.
//
// Each step of conjugate gradient is three parallel loops, schedule(static), with a barrier at
// the end of each: a step of class A is well under a millisecond of two cores.
//
//   cg [--class S|W|A] [--iterations N] [--repeat N]    class A takes well under a second

#include "npb.h"

#define SEED 314159265ull
#define POWER_ITERATIONS 15
#define GRADIENT_STEPS 25
#define SMALLEST_WEIGHT 0.1
#define MAX_RELATIVE_ERROR 1e-10
#define MAX_RESIDUAL 1e-8 // of z = A^-1 x; far above what correct arithmetic leaves
#define MAX_RANDOM_ELEMENTS 11

static const struct size {
	int order, random_elements;
	double shift, zeta; // zeta: the official verification value
} sizes[] = {
	{ 1400, 7, 10, 8.5971775078648 },
	{ 7000, 8, 12, 10.362595087124 },
	{ 14000, 11, 20, 17.130235054029 },
};

// One v_i: `count` elements, in no order.
struct vector {
	int count;
	int place[MAX_RANDOM_ELEMENTS + 1];
	double value[MAX_RANDOM_ELEMENTS + 1];
};

// Row j: diagonal[j], and beside it the elements first[j] .. first[j + 1] - 1. Two vectors that
// meet at a place off the diagonal leave two elements there, whose sum is meant: this is rare.
struct matrix {
	int order;
	double *diagonal;
	int *first;
	int *column;
	double *value;
};

static int find(const struct vector *v, int place)
{
	int at = 0;

	while (at < v->count && v->place[at] != place)
		at++;
	return at;
}

// Sets the element at a place that find() has given.
static void set(struct vector *v, int at, int place, double value)
{
	v->place[at] = place;
	v->value[at] = value;
	if (at == v->count)
		v->count++;
}

// v_i. Places are drawn from the next power of 2; one beyond the order, or that is taken already,
// is drawn anew together with its value.
static void make_vector(struct vector *v, int i, const struct size *size, uint64_t *x)
{
	int range = 1;

	while (range < size->order)
		range *= 2;
	while (v->count < size->random_elements) {
		double value = next_number(x);
		int place = (int)(range * next_number(x)), at = find(v, place);

		if (place < size->order && at == v->count)
			set(v, at, place, value);
	}
	set(v, find(v, i), i, 0.5);
}

static struct matrix make_matrix(const struct size *size)
{
	int n = size->order;
	uint64_t x = times(SEED, MULTIPLIER); // beyond the number that is not used
	struct vector *vectors = allocate(n, sizeof(*vectors));
	struct matrix a = {
		.order = n,
		.diagonal = allocate(n, sizeof(double)),
		.first = allocate(n + 1, sizeof(int)),
	};

	for (int i = 0; i < n; i++) {
		struct vector *v = &vectors[i];

		make_vector(v, i, size, &x);
		a.diagonal[i] = SMALLEST_WEIGHT - size->shift;
		for (int row = 0; row < v->count; row++)
			a.first[v->place[row] + 1] += v->count - 1;
	}
	for (int j = 0; j < n; j++)
		a.first[j + 1] += a.first[j];
	a.column = allocate(a.first[n], sizeof(int));
	a.value = allocate(a.first[n], sizeof(double));

	int *end = allocate(n, sizeof(int));
	memcpy(end, a.first, n * sizeof(int));
	for (int i = 0; i < n; i++) {
		const struct vector *v = &vectors[i];
		double weight = pow(SMALLEST_WEIGHT, (double)i / n);

		for (int row = 0; row < v->count; row++) {
			int j = v->place[row];

			for (int other = 0; other < v->count; other++) {
				double product = weight * v->value[row] * v->value[other];

				if (other == row) {
					a.diagonal[j] += product;
					continue;
				}
				a.column[end[j]] = v->place[other];
				a.value[end[j]++] = product;
			}
		}
	}
	free(end);
	free(vectors);
	return a;
}

// q = A p; returns p.q.
static double multiply(const struct matrix *a, const double *p, double *q)
{
	double dot = 0;

#pragma omp parallel for schedule(static) reduction(+ : dot)
	for (int j = 0; j < a->order; j++) {
		double sum = a->diagonal[j] * p[j];

		for (int k = a->first[j]; k < a->first[j + 1]; k++)
			sum += a->value[k] * p[a->column[k]];
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
	if (iterations != POWER_ITERATIONS)
		return 0;
	int is_solved = residual <= MAX_RESIDUAL; // not of a NaN

	if (!is_solved)
		fprintf(stderr, "cg: the residual is %.3e, want at most %.3e\n", residual, MAX_RESIDUAL);
	return matches("cg: zeta", zeta, size->zeta, MAX_RELATIVE_ERROR) && is_solved;
}

// As the NPB count them.
static double operations(const struct size *size, int iterations)
{
	double elements = size->random_elements * (size->random_elements + 1.0);

	return 2.0 * iterations * size->order * (3 + elements + 25 * (5 + elements) + 3);
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

	return report("cg", &options, seconds, options.repeats * operations(size, iterations), is_good);
}
