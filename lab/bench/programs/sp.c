// SPDX-License-Identifier: GPL-2.0-only
//
// SP, "scalar pentadiagonal", of the NAS Parallel Benchmarks, written anew from the published
// specification (Bailey et al., The NAS Parallel Benchmarks, RNR-94-007, section 3.5); the
// equations are in cfd.h.
//
// Each step in time is implicit, one direction after the other, as in BT, but in the variables that
// make the flux's Jacobian of that direction diagonal (Pulliam and Chaussee): along each grid line
// five scalar systems, made pentadiagonal by the implicit part of the dissipation. Their advection
// speeds are v, v, v, v + c and v - c, with c the speed of sound. Between two directions the
// variables of one become those of the next, by constant factors.
//
// Five loops a step, schedule(static), with a barrier at the end of each.
//
//   sp [--class S|W|A] [--iterations N] [--repeat N]

#include "cfd.h"

static const struct size {
	int n, iterations;
	double dt;
	struct cfd_values official;
} sizes[] = {
	{ 12, 100, 0.015,
	  { { 2.7470315451339479e-02, 1.0360746705285417e-02, 1.6235745065095532e-02,
	      1.5840557224455615e-02, 3.4849040609362460e-02 },
	    { 2.7289258557377227e-05, 1.0364446640837285e-05, 1.6154798287166471e-05,
	      1.5750704994480102e-05, 3.4177666183390531e-05 } } },
	{ 36, 400, 0.0015,
	  { { 0.1893253733584e-02, 0.1717075447775e-03, 0.2778153350936e-03, 0.2887475409984e-03,
	      0.3143611161242e-02 },
	    { 0.7542088599534e-04, 0.6512852253086e-05, 0.1049092285688e-04, 0.1128838671535e-04,
	      0.1212845639773e-03 } } },
	{ 64, 400, 0.0015,
	  { { 2.4799822399300195, 1.1276337964368832, 1.5028977888770491, 1.4217816211695179,
	      2.1292113035138280 },
	    { 1.0900140297820550e-04, 3.7343951769282091e-05, 5.0092785406541633e-05,
	      4.7671093939528255e-05, 1.3621613399213001e-04 } } },
};

// The variables of a direction: the first three move with the fluid, then two waves of sound.
#define WITH_FLUID 3
#define WITH_SOUND 3
#define AGAINST_SOUND 4
#define SYSTEMS 3

// An eliminated row: x = right hand side - next * (x one on) - after * (x two on).
struct row {
	double next, after;
};

// What a row of a system is made of: the coefficients of the points from 2 below to 2 above.
struct coefficients {
	double below2, below, here, above, above2;
};

// Eliminates the two unknowns below from a row, given their rows, and scales it; `values` of the three
// points are `stride` apart, `count` for each point share the coefficients.
static inline __attribute__((always_inline)) struct row
eliminate(struct coefficients c, const struct row *below2, const struct row *below, double *values,
	  int stride, int count)
{
	double lower = c.below - c.below2 * below2->next;
	double inverse = 1 / (c.here - c.below2 * below2->after - lower * below->next);

	for (int m = 0; m < count; m++)
		values[m] = inverse * (values[m] - c.below2 * values[m - 2 * stride] -
				       lower * values[m - stride]);
	return (struct row){ inverse * (c.above - lower * below->after), inverse * c.above2 };
}

// Solves along the line of direction d that begins at the point `first`, in place. At both ends the
// change is 0.
static inline __attribute__((always_inline)) void solve_line(const struct field *f, const double *sound,
							      int d, int first, double dt)
{
	int n = f->n, s = f->stride[d];
	double flux = dt * 0.5 / f->step, viscous = dt / (f->step * f->step);
	const double *velocity = f->derived.velocity[d] + first;
	const double *inverse_density = f->derived.inverse_density + first;
	// Two rows of zeros stand before the first inner point's.
	struct row rows[SYSTEMS][MAX_ORDER + 1] = { 0 };
	double lines[MAX_ORDER + 1][EQUATIONS] = { 0 };

	sound += first;
	// The largest of the five equations' viscosities is the energy's.
#define VISCOSITY(point) (diffusion[d] + C1345 * inverse_density[point])
	for (int at = 1; at < n - 1; at++) {
		const double *factor = f->stencil[at].factor;
		int here = at * s, up = here + s, down = here - s;
		double damping = dt * DISSIPATION, *values = lines[at + 1];
		struct coefficients fluid = {
			.below2 = damping * factor[0],
			.below = damping * factor[1] - flux * velocity[down] - viscous * VISCOSITY(down),
			.here = damping * factor[2] + 1 + 2 * viscous * VISCOSITY(here),
			.above = damping * factor[3] + flux * velocity[up] - viscous * VISCOSITY(up),
			.above2 = damping * factor[4],
		};
		struct coefficients with = fluid, against = fluid;

		with.below -= flux * sound[down];
		with.above += flux * sound[up];
		against.below += flux * sound[down];
		against.above -= flux * sound[up];
		memcpy(values, f->right + EQUATIONS * (size_t)(first + here), sizeof(lines[0]));
		rows[0][at + 1] = eliminate(fluid, &rows[0][at - 1], &rows[0][at], values, EQUATIONS,
					    WITH_FLUID);
		rows[1][at + 1] = eliminate(with, &rows[1][at - 1], &rows[1][at], values + WITH_SOUND,
					    EQUATIONS, 1);
		rows[2][at + 1] = eliminate(against, &rows[2][at - 1], &rows[2][at], values + AGAINST_SOUND,
					    EQUATIONS, 1);
	}
#undef VISCOSITY
	double next[EQUATIONS] = { 0 }, after[EQUATIONS] = { 0 };

	for (int at = n - 2; at > 0; at--) {
		double *right = f->right + EQUATIONS * (size_t)(first + at * s);

		for (int m = 0; m < EQUATIONS; m++) {
			const struct row *row = &rows[m < WITH_FLUID ? 0 : m - 2][at + 1];
			double value = lines[at + 1][m] - row->next * next[m] - row->after * after[m];

			after[m] = next[m];
			next[m] = right[m] = value;
		}
	}
}

// From the equations' values to the variables of direction x; sets the speed of sound on the way.
static void enter_x(const struct field *f, double *sound, int point)
{
	const struct derived *derived = &f->derived;
	double *r = f->right + EQUATIONS * (size_t)point, inverse = derived->inverse_density[point];
	double u = derived->velocity[0][point], v = derived->velocity[1][point];
	double w = derived->velocity[2][point], kinetic = derived->kinetic[point];
	double sound2 = C1 * C2 * (derived->heat[point] - kinetic);

	sound[point] = sqrt(sound2);
	double pressure = C2 * (kinetic * r[0] - u * r[1] - v * r[2] - w * r[3] + r[4]) / sound2;
	double stream = M_SQRT1_2 * inverse * (r[1] - u * r[0]);
	double wave = M_SQRT1_2 * inverse * sound[point] * pressure;
	double density = r[0];

	r[0] -= pressure;
	double across_y = inverse * (v * density - r[2]);

	r[1] = inverse * (r[3] - w * density);
	r[2] = across_y;
	r[3] = wave + stream;
	r[4] = wave - stream;
}

// From the variables of direction x to those of y.
static void pass_x_to_y(double *r)
{
	double difference = M_SQRT1_2 * (r[3] - r[4]), mean = 0.5 * (r[3] + r[4]);
	double turned = M_SQRT1_2 * r[2], first = r[0];

	r[0] = -r[1];
	r[1] = first;
	r[2] = difference;
	r[3] = mean - turned;
	r[4] = mean + turned;
}

// From the variables of direction y to those of z.
static void pass_y_to_z(double *r)
{
	double difference = M_SQRT1_2 * (r[3] - r[4]), mean = 0.5 * (r[3] + r[4]);
	double turned = M_SQRT1_2 * r[0], second = r[1];

	r[0] = difference;
	r[1] = -r[2];
	r[2] = second;
	r[3] = mean - turned;
	r[4] = mean + turned;
}

// From the variables of direction z to the equations' values, which are added to u.
static void leave_z(const struct field *f, const double *sound, int point)
{
	const struct derived *derived = &f->derived;
	const double *r = f->right + EQUATIONS * (size_t)point;
	double *u = f->u + EQUATIONS * (size_t)point, density = u[0];
	double vx = derived->velocity[0][point], vy = derived->velocity[1][point];
	double vz = derived->velocity[2][point];
	double wave = M_SQRT1_2 * density / sound[point] * (r[3] + r[4]);
	double stream = M_SQRT1_2 * density * (r[3] - r[4]), sum = r[2] + wave;

	u[0] += sum;
	u[1] += vx * sum - density * r[1];
	u[2] += vy * sum + density * r[0];
	u[3] += vz * sum + stream;
	u[4] += density * (vy * r[0] - vx * r[1]) + derived->kinetic[point] * sum + vz * stream +
		sound[point] * sound[point] * wave / C2;
}

static void step(struct field *f, double *sound, double dt)
{
	int n = f->n;

	compute_right(f, dt);
#pragma omp parallel for schedule(static)
	for (int k = 1; k < n - 1; k++)
		for (int j = 1; j < n - 1; j++) {
			int first = point_at(f, k, j, 0);

			for (int i = 1; i < n - 1; i++)
				enter_x(f, sound, first + i);
			solve_line(f, sound, 0, first, dt);
			for (int i = 1; i < n - 1; i++)
				pass_x_to_y(f->right + EQUATIONS * (size_t)(first + i));
		}
#pragma omp parallel for schedule(static)
	for (int k = 1; k < n - 1; k++) {
		for (int i = 1; i < n - 1; i++)
			solve_line(f, sound, 1, point_at(f, k, 0, i), dt);
		for (int j = 1; j < n - 1; j++)
			for (int i = 1; i < n - 1; i++)
				pass_y_to_z(f->right + EQUATIONS * (size_t)point_at(f, k, j, i));
	}
#pragma omp parallel for schedule(static)
	for (int j = 1; j < n - 1; j++) {
		for (int i = 1; i < n - 1; i++)
			solve_line(f, sound, 2, point_at(f, 0, j, i), dt);
		for (int k = 1; k < n - 1; k++)
			for (int i = 1; i < n - 1; i++)
				leave_z(f, sound, point_at(f, k, j, i));
	}
}

// As the NPB count them.
static double operations(double n, int iterations)
{
	return iterations * (881.174 * n * n * n - 4683.91 * n * n + 11484.5 * n - 19272.4);
}

int main(int argc, char **argv)
{
	struct options options = read_options("sp", "SWA", 1, argc, argv);
	const struct size *size = &sizes[options.index];
	int iterations = iterations_of(&options, size->iterations), is_good = 1;
	double *sound = allocate((size_t)size->n * size->n * size->n, sizeof(double)), seconds = 0;
	struct field field;

	field_init(&field, size->n);
	set_forcing(&field);
	for (int repeat = 0; repeat < options.repeats; repeat++) {
		set_initial(&field);
		double start = omp_get_wtime();

		for (int iteration = 0; iteration < iterations; iteration++)
			step(&field, sound, size->dt);
		seconds += omp_get_wtime() - start;
		compute_right(&field, 1);
		if (!options.iterations)
			is_good &= verify_norms(&field, "sp", &size->official);
	}
	return report("sp", &options, "threads", omp_get_max_threads(), seconds,
		      options.repeats * operations(size->n, iterations), is_good);
}
