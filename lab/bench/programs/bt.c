// SPDX-License-Identifier: GPL-2.0-only
//
// BT, "block tridiagonal", of the NAS Parallel Benchmarks, written anew from the published
// specification (Bailey et al., The NAS Parallel Benchmarks, RNR-94-007, section 3.4); the
// equations are in cfd.h, the blocks in block.h.
//
// Each step in time is implicit, one direction after the other (Beam and Warming): along each grid
// line of a direction a tridiagonal system of 5 x 5 blocks,
//
//   (1 + dt (d F - d2 N)) next = right hand side,
//
// where F and N are the Jacobians of the flux and of the viscous flux, and d, d2 the first and
// second central difference. What the third direction gives is added to u.
//
// Five loops a step, schedule(static), with a barrier at the end of each.
//
//   bt [--class S|W|A] [--iterations N] [--repeat N]

#include "cfd.h"
#include "block.h"

static const struct size {
	int n, iterations;
	double dt;
	struct cfd_values official;
} sizes[] = {
	{ 12, 60, 0.01,
	  { { 1.7034283709541311e-01, 1.2975252070034097e-02, 3.2527926989486055e-02,
	      2.6436421275166801e-02, 1.9211784131744430e-01 },
	    { 4.9976913345811579e-04, 4.5195666782961927e-05, 7.3973765172921357e-05,
	      7.3821238632439731e-05, 8.9269630987491446e-04 } } },
	{ 24, 200, 0.0008,
	  { { 0.1125590409344e+03, 0.1180007595731e+02, 0.2710329767846e+02, 0.2469174937669e+02,
	      0.2638427874317e+03 },
	    { 0.4419655736008e+01, 0.4638531260002e+00, 0.1011551749967e+01, 0.9235878729944e+00,
	      0.1018045837718e+02 } } },
	{ 64, 200, 0.0008,
	  { { 1.0806346714637264e+02, 1.1319730901220813e+01, 2.5974354511582465e+01,
	      2.3665622544678910e+01, 2.5278963211748344e+02 },
	    { 4.2348416040525025e+00, 4.4390282496995698e-01, 9.6692480136345650e-01,
	      8.8302063039765474e-01, 9.7379901770829278e+00 } } },
};

// A row of blocks in elimination: the diagonal block (5 columns), the right hand side (1), the block
// of the next point (5), and one column that fills a vector register.
#define WIDTH 12
#define RIGHT 5
#define NEXT 6
// What is kept of an eliminated row, its diagonal block now 1: the next point's block (5), the right
// hand side (1).
#define KEPT 6

// rows -= below * kept, for the diagonal block and the right hand side.
static inline void subtract_product(const double *below, const double *kept, double *rows)
{
	for (int m = 0; m < EQUATIONS; m++)
		for (int inner = 0; inner < EQUATIONS; inner++) {
			double factor = below[m * EQUATIONS + inner];

			for (int column = 0; column < KEPT; column++)
				rows[m * WIDTH + column] -= factor * kept[inner * KEPT + column];
		}
}

// Solves along the line of direction d that begins at the point `first`, in place. At both ends the
// change is 0.
static inline __attribute__((always_inline)) void solve_line(const struct field *f, int d, int first,
							      double dt)
{
	int n = f->n, stride = f->stride[d];
	double flux = dt * 0.5 / f->step, viscous = dt / (f->step * f->step);
	double kept[MAX_ORDER][EQUATIONS * KEPT];
	struct state below = state_at(f, first), here = state_at(f, first + stride);

	memset(kept[0], 0, sizeof(kept[0]));
	for (int at = 1; at < n - 1; at++) {
		struct state above = state_at(f, first + (at + 1) * stride);
		const double *right = f->right + EQUATIONS * (size_t)(first + at * stride);
		double rows[EQUATIONS * WIDTH] = { 0 }, lower[EQUATIONS * EQUATIONS] = { 0 };

		add_flux(&below, d, -flux, EQUATIONS, lower);
		add_viscous(&below, d, -viscous, EQUATIONS, lower);
		for (int m = 0; m < EQUATIONS; m++) {
			rows[m * WIDTH + m] = 1;
			rows[m * WIDTH + RIGHT] = right[m];
		}
		add_viscous(&here, d, 2 * viscous, WIDTH, rows);
		add_flux(&above, d, flux, WIDTH, rows + NEXT);
		add_viscous(&above, d, -viscous, WIDTH, rows + NEXT);
		subtract_product(lower, kept[at - 1], rows);
		eliminate(WIDTH, rows);
		for (int m = 0; m < EQUATIONS; m++) {
			memcpy(kept[at] + m * KEPT, rows + m * WIDTH + NEXT, EQUATIONS * sizeof(double));
			kept[at][m * KEPT + EQUATIONS] = rows[m * WIDTH + RIGHT];
		}
		below = here;
		here = above;
	}
	double next[EQUATIONS] = { 0 };

	for (int at = n - 2; at > 0; at--) {
		double *right = f->right + EQUATIONS * (size_t)(first + at * stride);

		for (int m = 0; m < EQUATIONS; m++) {
			const double *row = kept[at] + m * KEPT;

			right[m] = row[EQUATIONS];
			for (int inner = 0; inner < EQUATIONS; inner++)
				right[m] -= row[inner] * next[inner];
		}
		memcpy(next, right, sizeof(next));
	}
}

static void step(struct field *f, double dt)
{
	int n = f->n;

	compute_right(f, dt);
#pragma omp parallel for schedule(static)
	for (int k = 1; k < n - 1; k++)
		for (int j = 1; j < n - 1; j++)
			solve_line(f, 0, point_at(f, k, j, 0), dt);
#pragma omp parallel for schedule(static)
	for (int k = 1; k < n - 1; k++)
		for (int i = 1; i < n - 1; i++)
			solve_line(f, 1, point_at(f, k, 0, i), dt);
#pragma omp parallel for schedule(static)
	for (int j = 1; j < n - 1; j++)
		for (int i = 1; i < n - 1; i++) {
			solve_line(f, 2, point_at(f, 0, j, i), dt);
			for (int k = 1; k < n - 1; k++) {
				size_t at = EQUATIONS * (size_t)point_at(f, k, j, i);

				for (int m = 0; m < EQUATIONS; m++)
					f->u[at + m] += f->right[at + m];
			}
		}
}

// As the NPB count them.
static double operations(double n, int iterations)
{
	return iterations * (3478.8 * n * n * n - 17655.7 * n * n + 28023.7 * n);
}

int main(int argc, char **argv)
{
	struct options options = read_options("bt", "SWA", 1, argc, argv);
	const struct size *size = &sizes[options.index];
	int iterations = iterations_of(&options, size->iterations), is_good = 1;
	struct field field;
	double seconds = 0;

	field_init(&field, size->n);
	set_forcing(&field);
	for (int repeat = 0; repeat < options.repeats; repeat++) {
		set_initial(&field);
		double start = omp_get_wtime();

		for (int iteration = 0; iteration < iterations; iteration++)
			step(&field, size->dt);
		seconds += omp_get_wtime() - start;
		compute_right(&field, 1);
		if (!options.iterations)
			is_good &= verify_norms(&field, "bt", &size->official);
	}
	return report("bt", &options, "threads", omp_get_max_threads(), seconds,
		      options.repeats * operations(size->n, iterations), is_good);
}
