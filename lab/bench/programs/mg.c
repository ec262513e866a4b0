// SPDX-License-Identifier: GPL-2.0-only
//
// MG, "multigrid", of the NAS Parallel Benchmarks, written anew from the published specification
// (Bailey et al., The NAS Parallel Benchmarks, RNR-94-007, section 2.4), with the sizes and
// verification values of NPB 3:
//
// An approximate solution of Laplace u = v on the unit cube with periodic boundaries, by V-cycles:
// from u = 0, some times r = v - A u, u = u + M r. v is 1 at ten points, -1 at ten others, else 0:
// where the pseudo-random numbers (npb.h, one for each point, seed 314159265) are largest and
// smallest. M goes down the grids, each of half as many points by direction, to one of 2 x 2 x 2, and
// up again, with a smoothing step on each. The root of the mean square of the last r must match.
//
// A, the smoother, the restriction and the prolongation weigh the 27 points around a point by how many
// directions they are away in: none (centre), one (face), two (edge), three (corner).
//
// A grid of n points by direction is kept with one more plane on each side, that of the opposite side.
// Each operation is one loop over planes, schedule(static), and one that copies the outer planes; on
// the small grids the barriers are a few us apart.
//
//   mg [--class S|W|A] [--iterations N] [--repeat N]

#include <omp.h>

#include "npb.h"

#define SEED 314159265ull
#define EXTREMES 10
#define MAX_LEVELS 9
#define MAX_WIDTH 258

static const struct size {
	int levels, iterations; // the finest grid has 2^levels points by direction
	double norm; // the official verification value
} sizes[] = {
	{ 5, 4, 0.5307707005734e-04 },
	{ 7, 4, 0.6467329375339e-05 },
	{ 8, 4, 0.2433365309069e-05 },
};

// By the number of directions that a point is away in.
struct weights {
	double centre, face, edge, corner;
};

static const struct weights laplace = { -8.0 / 3.0, 0, 1.0 / 6.0, 1.0 / 12.0 };
static const struct weights smoother = { -3.0 / 8.0, 1.0 / 32.0, -1.0 / 64.0, 0 };
static const struct weights restriction = { 0.5, 0.25, 0.125, 0.0625 };

struct grid {
	int width; // points by direction, with the outer planes
	double *u, *r;
};

struct problem {
	struct grid grids[MAX_LEVELS]; // the coarsest first, at 1
	double *v; // of the finest grid
	int levels;
};

static inline double *row_at(double *values, int width, int k, int j)
{
	return values + ((size_t)k * width + j) * width;
}

// Copies the outer columns and rows of plane k from the opposite sides.
static void wrap_plane(double *values, int width, int k)
{
	for (int j = 1; j < width - 1; j++) {
		double *row = row_at(values, width, k, j);

		row[0] = row[width - 2];
		row[width - 1] = row[1];
	}
	memcpy(row_at(values, width, k, 0), row_at(values, width, k, width - 2), width * sizeof(double));
	memcpy(row_at(values, width, k, width - 1), row_at(values, width, k, 1), width * sizeof(double));
}

// Copies the outer planes from the opposite sides; by the whole team.
static void wrap_outer(double *values, int width)
{
#pragma omp for schedule(static)
	for (int j = 0; j < width; j++) {
		memcpy(row_at(values, width, 0, j), row_at(values, width, width - 2, j),
		       width * sizeof(double));
		memcpy(row_at(values, width, width - 1, j), row_at(values, width, 1, j),
		       width * sizeof(double));
	}
}

// The sums, by column, of the rows around row j of plane k that are away in one of the two
// directions, and in both.
static inline void sum_around(double *values, int width, int k, int j, double *one, double *both)
{
	const double *south = row_at(values, width, k, j - 1), *north = row_at(values, width, k, j + 1);
	const double *below = row_at(values, width, k - 1, j), *above = row_at(values, width, k + 1, j);
	const double *a = row_at(values, width, k - 1, j - 1), *b = row_at(values, width, k - 1, j + 1);
	const double *c = row_at(values, width, k + 1, j - 1), *d = row_at(values, width, k + 1, j + 1);

	for (int i = 0; i < width; i++) {
		one[i] = south[i] + north[i] + below[i] + above[i];
		both[i] = a[i] + b[i] + c[i] + d[i];
	}
}

// The weighted sum around column i.
static inline double weigh(const struct weights *w, const double *row, const double *one,
			   const double *both, int i)
{
	return w->centre * row[i] + w->face * (row[i - 1] + row[i + 1] + one[i]) +
	       w->edge * (one[i - 1] + one[i + 1] + both[i]) + w->corner * (both[i - 1] + both[i + 1]);
}

// r = v - A u; v may be r.
static void compute_residual(double *u, double *v, double *r, int width)
{
	const struct weights w = laplace;

#pragma omp parallel
	{
#pragma omp for schedule(static)
		for (int k = 1; k < width - 1; k++) {
			for (int j = 1; j < width - 1; j++) {
				double one[MAX_WIDTH], both[MAX_WIDTH], *to = row_at(r, width, k, j);
				const double *row = row_at(u, width, k, j), *from = row_at(v, width, k, j);

				sum_around(u, width, k, j, one, both);
				// Without the faces: their weight is 0.
				for (int i = 1; i < width - 1; i++)
					to[i] = from[i] - w.centre * row[i] -
						w.edge * (one[i - 1] + one[i + 1] + both[i]) -
						w.corner * (both[i - 1] + both[i + 1]);
			}
			wrap_plane(r, width, k);
		}
		wrap_outer(r, width);
	}
}

// u = u + S r, with S the smoother.
static void smooth(double *r, double *u, int width)
{
	const struct weights w = smoother;

#pragma omp parallel
	{
#pragma omp for schedule(static)
		for (int k = 1; k < width - 1; k++) {
			for (int j = 1; j < width - 1; j++) {
				double one[MAX_WIDTH], both[MAX_WIDTH], *to = row_at(u, width, k, j);
				const double *row = row_at(r, width, k, j);

				sum_around(r, width, k, j, one, both);
				// Without the corners: their weight is 0.
				for (int i = 1; i < width - 1; i++)
					to[i] += w.centre * row[i] +
						 w.face * (row[i - 1] + row[i + 1] + one[i]) +
						 w.edge * (one[i - 1] + one[i + 1] + both[i]);
			}
			wrap_plane(u, width, k);
		}
		wrap_outer(u, width);
	}
}

// coarse = the restriction of fine.
static void restrict_to(const struct grid *fine, const struct grid *coarse)
{
	int width = coarse->width;

#pragma omp parallel
	{
#pragma omp for schedule(static)
		for (int k = 1; k < width - 1; k++) {
			for (int j = 1; j < width - 1; j++) {
				double one[MAX_WIDTH], both[MAX_WIDTH];
				double *to = row_at(coarse->r, width, k, j);
				const double *row = row_at(fine->r, fine->width, 2 * k, 2 * j);

				sum_around(fine->r, fine->width, 2 * k, 2 * j, one, both);
				for (int i = 1; i < width - 1; i++)
					to[i] = weigh(&restriction, row, one, both, 2 * i);
			}
			wrap_plane(coarse->r, width, k);
		}
		wrap_outer(coarse->r, width);
	}
}

// Adds to one row of the fine grid the mean of four rows of the coarse one (which may coincide),
// interpolated along the row.
static inline void add_between(double *row, int width, const double *a, const double *b, const double *c,
			       const double *d)
{
	double mean[MAX_WIDTH];

	for (int i = 0; i < width; i++)
		mean[i] = 0.25 * (a[i] + b[i] + c[i] + d[i]);
	for (int i = 0; i < width - 1; i++) {
		row[2 * i] += mean[i];
		row[2 * i + 1] += 0.5 * (mean[i] + mean[i + 1]);
	}
}

// fine u = fine u + the trilinear interpolation of coarse u. Reaches the outer planes, too.
static void prolong(const struct grid *coarse, const struct grid *fine)
{
	int width = coarse->width;

#pragma omp parallel for schedule(static)
	for (int k = 0; k < width - 1; k++)
		for (int j = 0; j < width - 1; j++)
			for (int at = 0; at < 4; at++) {
				int up = at >> 1, north = at & 1;

				add_between(row_at(fine->u, fine->width, 2 * k + up, 2 * j + north), width,
					    row_at(coarse->u, width, k, j),
					    row_at(coarse->u, width, k, j + north),
					    row_at(coarse->u, width, k + up, j),
					    row_at(coarse->u, width, k + up, j + north));
			}
}

static void clear(double *values, int width)
{
#pragma omp parallel for schedule(static)
	for (int k = 0; k < width; k++)
		memset(row_at(values, width, k, 0), 0, (size_t)width * width * sizeof(double));
}

// u = u + M r on the finest grid.
static void cycle(struct problem *p)
{
	for (int level = p->levels; level > 1; level--)
		restrict_to(&p->grids[level], &p->grids[level - 1]);
	for (int level = 1; level <= p->levels; level++) {
		struct grid *grid = &p->grids[level];
		int is_finest = level == p->levels;

		if (!is_finest)
			clear(grid->u, grid->width);
		if (level > 1) {
			prolong(&p->grids[level - 1], grid);
			compute_residual(grid->u, is_finest ? p->v : grid->r, grid->r, grid->width);
		}
		smooth(grid->r, grid->u, grid->width);
	}
}

// The root of the mean square of the finest grid's residual.
static double norm(const struct problem *p)
{
	const struct grid *grid = &p->grids[p->levels];
	int width = grid->width;
	double sum = 0;

#pragma omp parallel for schedule(static) reduction(+ : sum)
	for (int k = 1; k < width - 1; k++)
		for (int j = 1; j < width - 1; j++) {
			const double *row = row_at(grid->r, width, k, j);

			for (int i = 1; i < width - 1; i++)
				sum += row[i] * row[i];
		}
	return sqrt(sum / pow(width - 2, 3));
}

// A point and its pseudo-random number.
struct extreme {
	double number;
	size_t at;
};

// Puts a number into a list of the largest, in falling order, if it is one of them.
static void keep_largest(struct extreme *largest, double number, size_t at)
{
	int place = EXTREMES;

	while (place > 0 && number > largest[place - 1].number)
		place--;
	if (place == EXTREMES)
		return;
	memmove(&largest[place + 1], &largest[place], (EXTREMES - 1 - place) * sizeof(*largest));
	largest[place] = (struct extreme){ number, at };
}

static void set_charges(double *v, int width)
{
	struct extreme largest[EXTREMES], smallest[EXTREMES];
	uint64_t x = SEED;

	for (int i = 0; i < EXTREMES; i++)
		largest[i] = smallest[i] = (struct extreme){ -2, 0 };
	for (int k = 1; k < width - 1; k++)
		for (int j = 1; j < width - 1; j++)
			for (int i = 1; i < width - 1; i++) {
				double number = next_number(&x);
				size_t at = (size_t)(row_at(v, width, k, j) + i - v);

				keep_largest(largest, number, at);
				keep_largest(smallest, -number, at);
			}
	for (int i = 0; i < EXTREMES; i++) {
		v[largest[i].at] = 1;
		v[smallest[i].at] = -1;
	}
#pragma omp parallel
	{
#pragma omp for schedule(static)
		for (int k = 1; k < width - 1; k++)
			wrap_plane(v, width, k);
		wrap_outer(v, width);
	}
}

static void problem_init(struct problem *p, int levels)
{
	p->levels = levels;
	for (int level = 1; level <= levels; level++) {
		struct grid *grid = &p->grids[level];

		grid->width = (1 << level) + 2;
		size_t points = (size_t)grid->width * grid->width * grid->width;
		grid->u = allocate(points, sizeof(double));
		grid->r = allocate(points, sizeof(double));
		if (level == levels)
			p->v = allocate(points, sizeof(double));
	}
	set_charges(p->v, p->grids[levels].width);
}

int main(int argc, char **argv)
{
	struct options options = read_options("mg", "SWA", 1, argc, argv);
	const struct size *size = &sizes[options.index];
	int iterations = iterations_of(&options, size->iterations), is_good = 1;
	struct problem problem = { 0 };
	struct grid *finest = &problem.grids[size->levels];
	double seconds = 0;

	problem_init(&problem, size->levels);
	for (int repeat = 0; repeat < options.repeats; repeat++) {
		clear(finest->u, finest->width);
		double start = omp_get_wtime();

		compute_residual(finest->u, problem.v, finest->r, finest->width);
		for (int iteration = 0; iteration < iterations; iteration++) {
			cycle(&problem);
			compute_residual(finest->u, problem.v, finest->r, finest->width);
		}
		double result = norm(&problem);

		seconds += omp_get_wtime() - start;
		if (!options.iterations)
			is_good &= matches("mg: the norm of the residual", result, size->norm, 1e-8);
	}
	// As the NPB count them.
	double operations = 58.0 * iterations * pow(2, 3 * size->levels);

	return report("mg", &options, "threads", omp_get_max_threads(), seconds,
		      options.repeats * operations, is_good);
}
