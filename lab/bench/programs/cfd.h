// SPDX-License-Identifier: GPL-2.0-only
//
// What the three simulated applications of the NAS Parallel Benchmarks (bt.c, lu.c, sp.c) share,
// written anew from the published specification (Bailey et al., The NAS Parallel Benchmarks,
// RNR-94-007, sections 3.1 to 3.6): the equations, their discretisation in space, the initial and
// boundary values, and the norms that are verified. The applications differ in how they solve for
// the next step in time.
//
// Five coupled equations on the unit cube, those of a compressible, viscous fluid, modified:
// u = (density, momentum by direction, energy). In each direction
//
//   du/dt = -d flux(u) + d viscous(u) + second differences of u - dissipation(u) + forcing
//
// on a grid of n points by direction. An exact steady solution is given by polynomials; the forcing
// is what makes it one. u starts from the exact solution on the faces, interpolated inside.
//
// A point's index is (k * n + j) * n + i, with i along direction 0 (x), k along direction 2 (z).
// Loops that run in parallel share out k (or j), schedule(static).

#include <omp.h>

#include "npb.h"

#define EQUATIONS 5
#define DIRECTIONS 3
#define ENERGY 4
#define MAX_ORDER 64 // grid points by direction

// The specification's physical constants.
#define C1 1.4
#define C2 0.4
#define C34 0.1
#define C15 (1.4 * 1.4)
#define C1345 (C15 * C34)
#define FOUR_THIRDS (4.0 / 3.0)
// The factor of the fourth-order dissipation: a quarter of the largest factor below.
#define DISSIPATION 0.25

// The factor of the second differences, by direction, for all equations.
static const double diffusion[DIRECTIONS] = { 0.75, 0.75, 1.0 };

// The exact solution's coefficients by equation: constant, then linear, quadratic, cubic and quartic,
// each by direction.
static const double exact_coefficients[EQUATIONS][13] = {
	{ 2, 0, 0, 4, 5, 3, 0.5, 0.02, 0.01, 0.03, 0.5, 0.4, 0.3 },
	{ 1, 0, 0, 0, 1, 2, 3, 0.01, 0.03, 0.02, 0.4, 0.3, 0.5 },
	{ 2, 2, 0, 0, 0, 2, 3, 0.04, 0.03, 0.05, 0.3, 0.5, 0.4 },
	{ 2, 2, 0, 0, 0, 2, 3, 0.03, 0.05, 0.04, 0.2, 0.1, 0.3 },
	{ 5, 4, 3, 2, 0.1, 0.4, 0.3, 0.05, 0.04, 0.03, 0.1, 0.3, 0.2 },
};

// The fourth differences' coefficients at one place along a direction, of the points from 2 below to 2
// above, and how far the outer two are. Where they would lie outside the grid they count nothing.
struct stencil {
	double factor[5];
	int below, above;
};

// What follows from u at each point; each array is by point.
struct derived {
	double *inverse_density;
	double *velocity[DIRECTIONS];
	double *kinetic; // half the square of the velocity: kinetic energy by mass
	double *heat; // energy by mass
};

// A vector of the five equations' values is at 5 * point.
struct field {
	int n;
	int stride[DIRECTIONS]; // from a point to its neighbour
	double step; // between neighbours
	double *u, *forcing, *right;
	struct derived derived;
	struct stencil stencil[MAX_ORDER];
};

// Which values an application is verified by, and the official ones by class.
struct cfd_values {
	double residual[EQUATIONS], error[EQUATIONS];
};

static inline int point_at(const struct field *f, int k, int j, int i)
{
	return (k * f->n + j) * f->n + i;
}

// The exact solution at a place in the unit cube.
static inline void exact_solution(const double place[DIRECTIONS], double *u)
{
	for (int m = 0; m < EQUATIONS; m++) {
		const double *c = exact_coefficients[m];

		u[m] = c[0];
		for (int d = 0; d < DIRECTIONS; d++) {
			double x = place[d];

			u[m] += x * (c[1 + d] + x * (c[4 + d] + x * (c[7 + d] + x * c[10 + d])));
		}
	}
}

// The place of a point in the unit cube.
static inline void place_of(const struct field *f, int k, int j, int i, double place[DIRECTIONS])
{
	place[0] = i * f->step;
	place[1] = j * f->step;
	place[2] = k * f->step;
}

static inline void stencil_init(struct field *f)
{
	static const double inner[5] = { 1, -4, 6, -4, 1 };

	for (int at = 1; at < f->n - 1; at++) {
		struct stencil *stencil = &f->stencil[at];
		int from_edge = at < f->n - 1 - at ? at : f->n - 1 - at;

		memcpy(stencil->factor, inner, sizeof(inner));
		stencil->below = at >= 2 ? 2 : 0;
		stencil->above = at <= f->n - 3 ? 2 : 0;
		// The grid's outermost points are beyond the reach of the fourth difference.
		if (at <= 2)
			stencil->factor[0] = 0;
		if (at >= f->n - 3)
			stencil->factor[4] = 0;
		if (from_edge == 1) {
			stencil->factor[2] = 5;
			stencil->factor[at == 1 ? 1 : 3] = 0;
		}
	}
}

static inline void field_init(struct field *f, int n)
{
	size_t points = (size_t)n * n * n;

	f->n = n;
	f->step = 1.0 / (n - 1);
	for (int d = 0, stride = 1; d < DIRECTIONS; d++, stride *= n) {
		f->stride[d] = stride;
		f->derived.velocity[d] = allocate(points, sizeof(double));
	}
	f->derived.inverse_density = allocate(points, sizeof(double));
	f->derived.kinetic = allocate(points, sizeof(double));
	f->derived.heat = allocate(points, sizeof(double));
	f->u = allocate(points * EQUATIONS, sizeof(double));
	f->forcing = allocate(points * EQUATIONS, sizeof(double));
	f->right = allocate(points * EQUATIONS, sizeof(double));
	stencil_init(f);
}

static inline void derive_point(const struct field *f, int point)
{
	const double *u = f->u + EQUATIONS * (size_t)point;
	double inverse = 1 / u[0], square = 0;

	for (int d = 0; d < DIRECTIONS; d++) {
		double velocity = u[1 + d] * inverse;

		f->derived.velocity[d][point] = velocity;
		square += velocity * velocity;
	}
	f->derived.inverse_density[point] = inverse;
	f->derived.kinetic[point] = 0.5 * square;
	f->derived.heat[point] = u[ENERGY] * inverse;
}

static inline double second_difference(const double *a, int at, int stride)
{
	return a[at + stride] - 2 * a[at] + a[at - stride];
}

// Adds what direction d gives to the right hand side at a point, `place` of n along d.
static inline __attribute__((always_inline)) void add_direction(const struct field *f, int d, int point,
								 int place, double *right)
{
	const struct derived *derived = &f->derived;
	const struct stencil *stencil = &f->stencil[place];
	int s = f->stride[d], up = point + s, down = point - s;
	const double *u = f->u + EQUATIONS * (size_t)point, *above = u + EQUATIONS * s;
	const double *below = u - EQUATIONS * s;
	const double *far_above = u + EQUATIONS * s * stencil->above;
	const double *far_below = u - EQUATIONS * s * stencil->below;
	const double *along = derived->velocity[d], *kinetic = derived->kinetic;
	double half = 0.5 / f->step, square = 1 / (f->step * f->step), viscosity = C34 * square;
	double v_up = along[up], v_down = along[down];
	double second[EQUATIONS];

	for (int m = 0; m < EQUATIONS; m++) {
		second[m] = above[m] - 2 * u[m] + below[m];
		right[m] += diffusion[d] * square * second[m];
		right[m] -= DISSIPATION * (stencil->factor[0] * far_below[m] + stencil->factor[1] * below[m] +
					   stencil->factor[2] * u[m] + stencil->factor[3] * above[m] +
					   stencil->factor[4] * far_above[m]);
	}
	right[0] -= half * (above[1 + d] - below[1 + d]);
	for (int m = 0; m < DIRECTIONS; m++) {
		double factor = m == d ? viscosity * FOUR_THIRDS : viscosity;

		right[1 + m] += factor * second_difference(derived->velocity[m], point, s) -
				half * (above[1 + m] * v_up - below[1 + m] * v_down);
	}
	// Kinetic energy by volume; pressure is C2 times the rest of the energy.
	double k_up = kinetic[up] * above[0], k_down = kinetic[down] * below[0];

	right[1 + d] -= half * C2 * ((above[ENERGY] - k_up) - (below[ENERGY] - k_down));
	right[ENERGY] +=
		viscosity * ((1 - C15) * second_difference(kinetic, point, s) +
			     (v_up * v_up - 2 * along[point] * along[point] + v_down * v_down) / 6 +
			     C15 * second_difference(derived->heat, point, s)) -
		half * ((C1 * above[ENERGY] - C2 * k_up) * v_up - (C1 * below[ENERGY] - C2 * k_down) * v_down);
}

// right = scale * (du/dt) at all inner points; two loops with a barrier after each.
static void compute_right(struct field *f, double scale)
{
	int n = f->n;

#pragma omp parallel
	{
#pragma omp for schedule(static)
		for (int k = 0; k < n; k++)
			for (int point = point_at(f, k, 0, 0); point < point_at(f, k + 1, 0, 0); point++)
				derive_point(f, point);
#pragma omp for schedule(static)
		for (int k = 1; k < n - 1; k++)
			for (int j = 1; j < n - 1; j++)
				for (int i = 1; i < n - 1; i++) {
					int point = point_at(f, k, j, i);
					size_t at = EQUATIONS * (size_t)point;
					double right[EQUATIONS];

					memcpy(right, f->forcing + at, sizeof(right));
					add_direction(f, 0, point, i, right);
					add_direction(f, 1, point, j, right);
					add_direction(f, 2, point, k, right);
					for (int m = 0; m < EQUATIONS; m++)
						f->right[at + m] = scale * right[m];
				}
	}
}

// u = the exact solution everywhere.
static void set_exact(struct field *f)
{
#pragma omp parallel for schedule(static)
	for (int k = 0; k < f->n; k++)
		for (int j = 0; j < f->n; j++)
			for (int i = 0; i < f->n; i++) {
				double place[DIRECTIONS];

				place_of(f, k, j, i, place);
				exact_solution(place, f->u + EQUATIONS * (size_t)point_at(f, k, j, i));
			}
}

// The forcing that makes the exact solution a steady one. Overwrites u and the right hand side.
static void set_forcing(struct field *f)
{
	size_t values = EQUATIONS * (size_t)f->n * f->n * f->n;

	memset(f->forcing, 0, values * sizeof(double));
	set_exact(f);
	compute_right(f, -1);
	memcpy(f->forcing, f->right, values * sizeof(double));
}

// The first u of an inner point: from the exact solution on the six faces, interpolated linearly in
// each direction and combined ("transfinite").
static inline void interpolate_point(const double place[DIRECTIONS], double *u)
{
	double rest[EQUATIONS] = { 1, 1, 1, 1, 1 };

	for (int d = 0; d < DIRECTIONS; d++) {
		double on_face[DIRECTIONS], low[EQUATIONS], high[EQUATIONS];

		memcpy(on_face, place, sizeof(on_face));
		on_face[d] = 0;
		exact_solution(on_face, low);
		on_face[d] = 1;
		exact_solution(on_face, high);
		for (int m = 0; m < EQUATIONS; m++)
			rest[m] *= 1 - (place[d] * high[m] + (1 - place[d]) * low[m]);
	}
	// 1 - (1 - p)(1 - q)(1 - r) is p + q + r - pq - pr - qr + pqr.
	for (int m = 0; m < EQUATIONS; m++)
		u[m] = 1 - rest[m];
}

static void set_initial(struct field *f)
{
	set_exact(f);
#pragma omp parallel for schedule(static)
	for (int k = 1; k < f->n - 1; k++)
		for (int j = 1; j < f->n - 1; j++)
			for (int i = 1; i < f->n - 1; i++) {
				double place[DIRECTIONS];

				place_of(f, k, j, i, place);
				interpolate_point(place, f->u + EQUATIONS * (size_t)point_at(f, k, j, i));
			}
}

// The root of the mean square of each equation, over the inner points: of u - exact solution.
static void error_norms(const struct field *f, double *norms)
{
	double sums[EQUATIONS] = { 0 };

#pragma omp parallel for schedule(static) reduction(+ : sums[:EQUATIONS])
	for (int k = 1; k < f->n - 1; k++)
		for (int j = 1; j < f->n - 1; j++)
			for (int i = 1; i < f->n - 1; i++) {
				const double *u = f->u + EQUATIONS * (size_t)point_at(f, k, j, i);
				double place[DIRECTIONS], exact[EQUATIONS];

				place_of(f, k, j, i, place);
				exact_solution(place, exact);
				for (int m = 0; m < EQUATIONS; m++)
					sums[m] += (u[m] - exact[m]) * (u[m] - exact[m]);
			}
	for (int m = 0; m < EQUATIONS; m++)
		norms[m] = sqrt(sums[m] / pow(f->n - 2, 3));
}

// The same of the right hand side.
static void residual_norms(const struct field *f, double *norms)
{
	double sums[EQUATIONS] = { 0 };

#pragma omp parallel for schedule(static) reduction(+ : sums[:EQUATIONS])
	for (int k = 1; k < f->n - 1; k++)
		for (int j = 1; j < f->n - 1; j++)
			for (int i = 1; i < f->n - 1; i++)
				for (int m = 0; m < EQUATIONS; m++) {
					double value = f->right[EQUATIONS * (size_t)point_at(f, k, j, i) + m];

					sums[m] += value * value;
				}
	for (int m = 0; m < EQUATIONS; m++)
		norms[m] = sqrt(sums[m] / pow(f->n - 2, 3));
}

// Whether both kinds of norms are the official ones, given u and its right hand side, unscaled.
static int verify_norms(const struct field *f, const char *name, const struct cfd_values *official)
{
	double residual[EQUATIONS], error[EQUATIONS];
	int is_good = 1;

	residual_norms(f, residual);
	error_norms(f, error);
	for (int m = 0; m < EQUATIONS; m++) {
		char what[64];

		snprintf(what, sizeof(what), "%s: the residual of equation %d", name, m + 1);
		is_good &= matches(what, residual[m], official->residual[m], 1e-8);
		snprintf(what, sizeof(what), "%s: the error of equation %d", name, m + 1);
		is_good &= matches(what, error[m], official->error[m], 1e-8);
	}
	return is_good;
}
