// SPDX-License-Identifier: GPL-2.0-only
//
// Five by five blocks, for the applications of the NAS Parallel Benchmarks that solve the five
// equations coupled (bt.c, lu.c): the Jacobians of the flux and of the viscous flux in one
// direction (RNR-94-007, sections 3.4 and 3.6), and the solution of a block by elimination.
//
// No pivoting, as the specification's applications have it: the blocks are dominated by their
// diagonals.

// What the Jacobians at a point depend on.
struct state {
	double inverse_density, velocity[DIRECTIONS], kinetic, heat;
};

static inline struct state state_at(const struct field *f, int point)
{
	const struct derived *derived = &f->derived;

	return (struct state){
		.inverse_density = derived->inverse_density[point],
		.velocity = { derived->velocity[0][point], derived->velocity[1][point],
			      derived->velocity[2][point] },
		.kinetic = derived->kinetic[point],
		.heat = derived->heat[point],
	};
}

// The viscous flux of the momentum in direction m, across direction d.
static inline double viscosity_of(int m, int d)
{
	return m == d ? FOUR_THIRDS * C34 : C34;
}

// y += (flux * F + viscous * (N + diffusion)) x, where F and N are the Jacobians in direction d.
static inline __attribute__((always_inline)) void
add_block_times(const struct state *s, int d, double flux, double viscous, const double *x, double *y)
{
	const double *v = s->velocity;
	double across = x[1 + d], along = v[d], projected = 0, friction = 0;

	for (int m = 0; m < DIRECTIONS; m++) {
		double slip = s->inverse_density * (x[1 + m] - v[m] * x[0]);

		projected += v[m] * x[1 + m];
		friction += (viscosity_of(m, d) - C1345) * v[m] * slip;
		y[1 + m] += flux * (v[m] * (across - along * x[0]) + along * x[1 + m]) +
			    viscous * (viscosity_of(m, d) * slip + diffusion[d] * x[1 + m]);
	}
	double pressure = C2 * (s->kinetic * x[0] - projected + x[ENERGY]);

	y[0] += flux * across + viscous * diffusion[d] * x[0];
	y[1 + d] += flux * pressure;
	y[ENERGY] += flux * (along * (C1 * (x[ENERGY] - s->heat * x[0]) +
				      C2 * (2 * s->kinetic * x[0] - projected)) +
			     (C1 * s->heat - C2 * s->kinetic) * across) +
		     viscous * (friction + C1345 * s->inverse_density * (x[ENERGY] - s->heat * x[0]) +
				diffusion[d] * x[ENERGY]);
}

// block += viscous * (N + diffusion).
static inline __attribute__((always_inline)) void
add_viscous(const struct state *s, int d, double viscous, int width, double *block)
{
	double *last = block + ENERGY * width, scaled = viscous * s->inverse_density;

	for (int m = 0; m < EQUATIONS; m++)
		block[m * width + m] += viscous * diffusion[d];
	for (int m = 0; m < DIRECTIONS; m++) {
		double factor = scaled * viscosity_of(m, d), in_energy = (factor - scaled * C1345);

		block[(1 + m) * width] -= factor * s->velocity[m];
		block[(1 + m) * width + 1 + m] += factor;
		last[0] -= in_energy * s->velocity[m] * s->velocity[m];
		last[1 + m] += in_energy * s->velocity[m];
	}
	last[0] -= scaled * C1345 * s->heat;
	last[ENERGY] += scaled * C1345;
}

// block += flux * F.
static inline __attribute__((always_inline)) void add_flux(const struct state *s, int d, double flux,
							    int width, double *block)
{
	const double *v = s->velocity;
	double along = flux * v[d], *same = block + (1 + d) * width, *last = block + ENERGY * width;

	block[1 + d] += flux;
	for (int m = 0; m < DIRECTIONS; m++) {
		double *row = block + (1 + m) * width;

		row[0] -= along * v[m];
		row[1 + d] += flux * v[m];
		row[1 + m] += along;
		same[1 + m] -= flux * C2 * v[m];
		last[1 + m] -= along * C2 * v[m];
	}
	same[0] += flux * C2 * s->kinetic;
	same[ENERGY] += flux * C2;
	last[0] += along * (2 * C2 * s->kinetic - C1 * s->heat);
	last[1 + d] += flux * (C1 * s->heat - C2 * s->kinetic);
	last[ENERGY] += along * C1;
}

// Solves for all columns at once: the first five columns of `rows` are a block B, the others become
// B^-1 times what they were.
static inline __attribute__((always_inline)) void eliminate(int width, double *rows)
{
	for (int pivot = 0; pivot < EQUATIONS; pivot++) {
		double *row = rows + pivot * width, inverse = 1 / row[pivot];

		for (int column = pivot + 1; column < width; column++)
			row[column] *= inverse;
		for (int other = 0; other < EQUATIONS; other++) {
			double factor = rows[other * width + pivot];

			if (other == pivot)
				continue;
			for (int column = pivot + 1; column < width; column++)
				rows[other * width + column] -= factor * row[column];
		}
	}
}
