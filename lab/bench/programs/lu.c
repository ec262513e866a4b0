// SPDX-License-Identifier: GPL-2.0-only
//
// LU, "lower-upper", of the NAS Parallel Benchmarks, written anew from the published specification
// (Bailey et al., The NAS Parallel Benchmarks, RNR-94-007, section 3.6); the equations are in
// cfd.h, the blocks in block.h.
//
// Each step in pseudo-time is one of symmetric successive over-relaxation (SSOR): the implicit
// operator of all three directions, split into a block lower and a block upper triangular one. The
// lower sweep visits the points in order of k, j, i, and each needs its three neighbours below; the
// upper sweep goes back, and each needs its three neighbours above.
//
// The threads share out j, schedule(static), and sweep as a pipeline along k, as the OpenMP version
// of the NPB does: a thread begins its part of a plane once the thread before it has ended its own
// part of that plane. A thread waits for its neighbour by spinning on a flag, outside of the OpenMP
// runtime, about twice for each plane of a sweep; besides there are five barriers a step. With more
// threads than CPUs the spinning costs whole time slices.
//
//   lu [--class S|W|A] [--iterations N] [--repeat N]

#include <stdatomic.h>

#include "cfd.h"
#include "block.h"

#define RELAXATION 1.2
#define WIDTH 6 // of a block and the right hand side
#define CACHE_LINE 64

static const struct size {
	int n, iterations;
	double dt;
	struct cfd_values official;
	double surface_integral;
} sizes[] = {
	{ 12, 50, 0.5,
	  { { 1.6196343210976702e-02, 2.1976745164821318e-03, 1.5179927653399185e-03,
	      1.5029584435994323e-03, 3.4264073155896461e-02 },
	    { 6.4223319957960924e-04, 8.4144342047347926e-05, 5.8588269616485186e-05,
	      5.8474222595157350e-05, 1.3103347914111294e-03 } },
	  7.8418928865937083 },
	{ 33, 300, 0.0015,
	  { { 0.1236511638192e+02, 0.1317228477799e+01, 0.2550120713095e+01, 0.2326187750252e+01,
	      0.2826799444189e+02 },
	    { 0.4867877144216e+00, 0.5064652880982e-01, 0.9281818101960e-01, 0.8570126542733e-01,
	      0.1084277417792e+01 } },
	  0.1161399311023e+02 },
	{ 64, 250, 2.0,
	  { { 7.7902107606689367e+02, 6.3402765259692870e+01, 1.9499249727292479e+02,
	      1.7845301160418537e+02, 1.8384760349464247e+03 },
	    { 2.9964085685471943e+01, 2.8194576365003349, 7.3473412698774742, 6.7139225687777051,
	      7.0715315688392578e+01 } },
	  2.6030925604886277e+01 },
};

// One for each thread: set by the thread when it has ended its part of a plane, cleared by the next
// thread when it begins its own part of that plane.
struct flag {
	_Alignas(CACHE_LINE) atomic_int is_set;
};

static void wait_for(struct flag *flag, int value)
{
	while (atomic_load_explicit(&flag->is_set, memory_order_acquire) != value)
		;
}

// Waits until the thread before this one has ended its part of the plane.
static void begin_plane(struct flag *flags)
{
	int thread = omp_get_thread_num();

	if (thread == 0)
		return;
	wait_for(&flags[thread - 1], 1);
	atomic_store_explicit(&flags[thread - 1].is_set, 0, memory_order_release);
}

// Lets the next thread begin, once it has begun the plane before.
static void end_plane(struct flag *flags)
{
	int thread = omp_get_thread_num();

	if (thread == omp_get_num_threads() - 1)
		return;
	wait_for(&flags[thread], 0);
	atomic_store_explicit(&flags[thread].is_set, 1, memory_order_release);
}

// What the neighbours on one side give to a point's right hand side: side is -1 below, 1 above.
static inline __attribute__((always_inline)) void
couple(const struct field *f, int point, int side, double flux, double viscous, double *sum)
{
	for (int d = 0; d < DIRECTIONS; d++) {
		int neighbour = point + side * f->stride[d];
		struct state state = state_at(f, neighbour);

		add_block_times(&state, d, side * flux, -viscous,
				f->right + EQUATIONS * (size_t)neighbour, sum);
	}
}

// values = D^-1 values, with D the diagonal block of the point.
static inline __attribute__((always_inline)) void solve_diagonal(const struct field *f, int point,
								  double viscous, double *values)
{
	double rows[EQUATIONS * WIDTH] = { 0 };
	struct state state = state_at(f, point);

	for (int m = 0; m < EQUATIONS; m++) {
		rows[m * WIDTH + m] = 1;
		rows[m * WIDTH + EQUATIONS] = values[m];
	}
	for (int d = 0; d < DIRECTIONS; d++)
		add_viscous(&state, d, 2 * viscous, WIDTH, rows);
	eliminate(WIDTH, rows);
	for (int m = 0; m < EQUATIONS; m++)
		values[m] = rows[m * WIDTH + EQUATIONS];
}

static void sweep_row_lower(const struct field *f, int k, int j, double dt)
{
	double flux = dt * 0.5 / f->step, viscous = dt / (f->step * f->step);

	for (int i = 1; i < f->n - 1; i++) {
		int point = point_at(f, k, j, i);
		double *right = f->right + EQUATIONS * (size_t)point, sum[EQUATIONS] = { 0 };

		couple(f, point, -1, flux, viscous, sum);
		for (int m = 0; m < EQUATIONS; m++)
			right[m] -= RELAXATION * sum[m];
		solve_diagonal(f, point, viscous, right);
	}
}

static void sweep_row_upper(const struct field *f, int k, int j, double dt)
{
	double flux = dt * 0.5 / f->step, viscous = dt / (f->step * f->step);

	for (int i = f->n - 2; i > 0; i--) {
		int point = point_at(f, k, j, i);
		double *right = f->right + EQUATIONS * (size_t)point, sum[EQUATIONS] = { 0 };

		couple(f, point, 1, flux, viscous, sum);
		solve_diagonal(f, point, viscous, sum);
		for (int m = 0; m < EQUATIONS; m++)
			right[m] -= RELAXATION * sum[m];
	}
}

static void step(struct field *f, struct flag *flags, double dt)
{
	int n = f->n;

	compute_right(f, dt);
#pragma omp parallel
	{
		for (int k = 1; k < n - 1; k++) {
			begin_plane(flags);
#pragma omp for schedule(static) nowait
			for (int j = 1; j < n - 1; j++)
				sweep_row_lower(f, k, j, dt);
			end_plane(flags);
		}
#pragma omp barrier
		for (int k = n - 2; k > 0; k--) {
			begin_plane(flags);
#pragma omp for schedule(static) nowait
			for (int j = n - 2; j > 0; j--)
				sweep_row_upper(f, k, j, dt);
			end_plane(flags);
		}
#pragma omp barrier
#pragma omp for schedule(static)
		for (int k = 1; k < n - 1; k++)
			for (int j = 1; j < n - 1; j++)
				for (int i = 1; i < n - 1; i++) {
					size_t at = EQUATIONS * (size_t)point_at(f, k, j, i);

					for (int m = 0; m < EQUATIONS; m++)
						f->u[at + m] += f->right[at + m] /
								(RELAXATION * (2 - RELAXATION));
				}
	}
}

// The pressure at a point, where an axis' index is at[axis].
static double pressure_at(const struct field *f, const int at[DIRECTIONS])
{
	const double *u = f->u + EQUATIONS * (size_t)point_at(f, at[2], at[1], at[0]);

	return C2 * (u[ENERGY] - 0.5 * (u[1] * u[1] + u[2] * u[2] + u[3] * u[3]) / u[0]);
}

// The integral of the pressure over the surface of the box that the specification verifies by,
// by the trapezoidal rule: on each pair of opposite faces, each cell counts the mean of its corners.
static double surface_integral(const struct field *f)
{
	const int from[DIRECTIONS] = { 1, 1, 2 }, to[DIRECTIONS] = { f->n - 2, f->n - 3, f->n - 2 };
	double sum = 0;

	for (int across = 0; across < DIRECTIONS; across++) {
		int a = (across + 1) % DIRECTIONS, b = (across + 2) % DIRECTIONS;

		for (int corner = 0; corner < 8; corner++) {
			int at[DIRECTIONS];

			at[across] = corner & 1 ? to[across] : from[across];
			for (int x = from[a]; x < to[a]; x++)
				for (int y = from[b]; y < to[b]; y++) {
					at[a] = x + (corner >> 1 & 1);
					at[b] = y + (corner >> 2);
					sum += pressure_at(f, at);
				}
		}
	}
	return 0.25 * f->step * f->step * sum;
}

// As the NPB count them.
static double operations(double n, int iterations)
{
	return iterations * (1984.77 * n * n * n - 10923.3 * n * n + 27770.9 * n - 144010.0);
}

int main(int argc, char **argv)
{
	struct options options = read_options("lu", "SWA", 1, argc, argv);
	const struct size *size = &sizes[options.index];
	int iterations = iterations_of(&options, size->iterations), is_good = 1;
	struct flag *flags = aligned_alloc(CACHE_LINE, omp_get_max_threads() * sizeof(*flags));
	struct field field;
	double seconds = 0;

	if (!flags) {
		fprintf(stderr, "lu: cannot allocate the flags of %d threads\n", omp_get_max_threads());
		return 1;
	}
	for (int thread = 0; thread < omp_get_max_threads(); thread++)
		atomic_init(&flags[thread].is_set, 0);
	field_init(&field, size->n);
	set_forcing(&field);
	for (int repeat = 0; repeat < options.repeats; repeat++) {
		set_initial(&field);
		double start = omp_get_wtime();

		for (int iteration = 0; iteration < iterations; iteration++)
			step(&field, flags, size->dt);
		seconds += omp_get_wtime() - start;
		compute_right(&field, 1);
		if (!options.iterations) {
			is_good &= verify_norms(&field, "lu", &size->official);
			is_good &= matches("lu: the surface integral", surface_integral(&field),
					   size->surface_integral, 1e-8);
		}
	}
	return report("lu", &options, "threads", omp_get_max_threads(), seconds,
		      options.repeats * operations(size->n, iterations), is_good);
}
