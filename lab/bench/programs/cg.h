// SPDX-License-Identifier: GPL-2.0-only
//
// CG, "conjugate gradient", of the NAS Parallel Benchmarks, for cg.c (OpenMP) and cg_mpi.c, written
// anew from the published specification (Bailey et al., The NAS Parallel Benchmarks, RNR-94-007,
// sections 2.2 and 2.3):
//
// The eigenvalue of a sparse symmetric matrix A that is nearest to a shift, by inverse power
// iteration: x = (1, ..., 1), then 15 times: z = A^-1 x by 25 steps of conjugate gradient,
// zeta = shift + 1 / (x.z), x = z / |z|. The last zeta must match the official one to 1e-10.
//
// A = sum over i of w_i v_i v_i^T + (0.1 - shift) I, where w_i falls from 1 to 0.1 in a geometric
// progression and v_i is a sparse vector: a given number of random elements at random places, and
// 0.5 at place i. The random numbers (npb.h) start from the seed 314159265; the first is not used.

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
// meet at a place off the diagonal leave two elements there; their sum is meant. This is rare.
struct matrix {
	int order;
	double *diagonal;
	int *first;
	int *column;
	double *value;
};

static inline int find(const struct vector *v, int place)
{
	int at = 0;

	while (at < v->count && v->place[at] != place)
		at++;
	return at;
}

// Sets the element at a place that find() has given.
static inline void set(struct vector *v, int at, int place, double value)
{
	v->place[at] = place;
	v->value[at] = value;
	if (at == v->count)
		v->count++;
}

// v_i. Places are drawn from the next power of 2; one beyond the order, or that is taken already,
// is drawn anew together with its value.
static inline void make_vector(struct vector *v, int i, const struct size *size, uint64_t *x)
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

static inline struct matrix make_matrix(const struct size *size)
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

// Element j of A p.
static inline double row_times(const struct matrix *a, int j, const double *p)
{
	double sum = a->diagonal[j] * p[j];

	for (int k = a->first[j]; k < a->first[j + 1]; k++)
		sum += a->value[k] * p[a->column[k]];
	return sum;
}

// Whether the last zeta is the official one, and the last system was solved.
static inline int verify(const struct size *size, double zeta, double residual)
{
	int is_solved = residual <= MAX_RESIDUAL; // not of a NaN

	if (!is_solved)
		fprintf(stderr, "cg: the residual is %.3e, want at most %.3e\n", residual, MAX_RESIDUAL);
	return matches("cg: zeta", zeta, size->zeta, MAX_RELATIVE_ERROR) && is_solved;
}

// As the NPB count them.
static inline double operations(const struct size *size, int iterations)
{
	double elements = size->random_elements * (size->random_elements + 1.0);

	return 2.0 * iterations * size->order * (3 + elements + 25 * (5 + elements) + 3);
}
