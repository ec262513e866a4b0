// SPDX-License-Identifier: GPL-2.0-only
//
// FT, "Fourier transform", of the NAS Parallel Benchmarks, written anew from the published
// specification (Bailey et al., The NAS Parallel Benchmarks, RNR-94-007, section 2.5):
//
// The heat equation du/dt = alpha Laplace u on a periodic box, by fast Fourier transforms in three
// dimensions. u at time 0 is of complex pseudo-random numbers (npb.h; real part, imaginary part, x
// fastest; seed 314159265). Its transform is multiplied by exp(-4 alpha pi^2 |k|^2 t) for t = 1, 2,
// ..., with k from -n/2 to n/2 - 1 by direction, and transformed back. Each time a checksum of 1024
// elements is taken, which must match the official one to 1e-12.
//
// A transform by one direction is Stockham's, radix 2, of LANES grid lines at once. Planes are shared
// out, schedule(static): one loop transforms by x and y within planes of z, one by z within planes of
// y; with the multiplication and the checksum there are four barriers by iteration.
//
//   ft [--class S|W|A] [--iterations N] [--repeat N]

#include <omp.h>

#include "npb.h"

#define SEED 314159265ull
#define ALPHA 1e-6
#define ITERATIONS 6
#define MAX_LENGTH 256
#define LANES 8
#define CHECKED 1024

static const struct size {
	int nx, ny, nz;
	double real[ITERATIONS], imaginary[ITERATIONS]; // the official checksums
} sizes[] = {
	{ 64, 64, 64,
	  { 5.546087004964e+02, 5.546385409189e+02, 5.546148406171e+02, 5.545423607415e+02,
	    5.544255039624e+02, 5.542683411902e+02 },
	  { 4.845363331978e+02, 4.865304269511e+02, 4.883910722336e+02, 4.901273169046e+02,
	    4.917475857993e+02, 4.932597244941e+02 } },
	{ 128, 128, 32,
	  { 5.673612178944e+02, 5.631436885271e+02, 5.594024089970e+02, 5.560698047020e+02,
	    5.530898991250e+02, 5.504159734538e+02 },
	  { 5.293246849175e+02, 5.282149986629e+02, 5.270996558037e+02, 5.260027904925e+02,
	    5.249400845633e+02, 5.239212247086e+02 } },
	{ 256, 256, 128,
	  { 5.046735008193e+02, 5.059412319734e+02, 5.069376896287e+02, 5.077892868474e+02,
	    5.085233095391e+02, 5.091487099959e+02 },
	  { 5.114047905510e+02, 5.098809666433e+02, 5.098144042213e+02, 5.101336130759e+02,
	    5.104914655194e+02, 5.107917842803e+02 } },
};

struct number {
	double real, imaginary;
};

// LANES grid lines: element i of line l is at [i][l].
struct lines {
	double real[MAX_LENGTH][LANES], imaginary[MAX_LENGTH][LANES];
};

// exp(2 pi i j / MAX_LENGTH).
static struct number roots[MAX_LENGTH];

struct box {
	int nx, ny, nz;
	struct number *spectrum, *u;
	double *decay_x, *decay_y, *decay_z; // exp(-4 alpha pi^2 k^2) by direction
};

// One of the log2(n) passes: of transforms of length `length`, interleaved, into half as long ones.
static inline void transform_pass(const struct lines *from, struct lines *to, int n, int length,
				  int sign)
{
	int half = length / 2, apart = n / length;

	for (int i = 0; i < half; i++) {
		struct number root = roots[i * (MAX_LENGTH / length)];
		double turn = sign * root.imaginary;

		for (int k = 0; k < apart; k++) {
			int low = i * apart + k, high = low + n / 2, even = 2 * i * apart + k;
			int odd = even + apart;

			for (int lane = 0; lane < LANES; lane++) {
				double real = from->real[low][lane] - from->real[high][lane];
				double imaginary = from->imaginary[low][lane] - from->imaginary[high][lane];

				to->real[even][lane] = from->real[low][lane] + from->real[high][lane];
				to->imaginary[even][lane] =
					from->imaginary[low][lane] + from->imaginary[high][lane];
				to->real[odd][lane] = root.real * real - turn * imaginary;
				to->imaginary[odd][lane] = root.real * imaginary + turn * real;
			}
		}
	}
}

// Transforms the lines in place, not scaled; `other` is scratch. sign: of the exponent.
static void transform_lines(struct lines *lines, struct lines *other, int n, int sign)
{
	struct lines *from = lines, *to = other;

	for (int length = n; length > 1; length /= 2) {
		struct lines *free = from;

		transform_pass(from, to, n, length, sign);
		from = to;
		to = free;
	}
	if (from != lines)
		memcpy(lines, from, sizeof(*lines));
}

// Transforms LANES grid lines of n elements in place. Elements of a line are `stride` apart, lines
// are `apart`.
static void transform_at(struct number *first, int n, size_t stride, size_t apart, int sign)
{
	struct lines lines, other;

	for (int i = 0; i < n; i++)
		for (int lane = 0; lane < LANES; lane++) {
			const struct number *from = first + i * stride + lane * apart;

			lines.real[i][lane] = from->real;
			lines.imaginary[i][lane] = from->imaginary;
		}
	transform_lines(&lines, &other, n, sign);
	for (int i = 0; i < n; i++)
		for (int lane = 0; lane < LANES; lane++) {
			struct number *to = first + i * stride + lane * apart;

			to->real = lines.real[i][lane];
			to->imaginary = lines.imaginary[i][lane];
		}
}

static void transform_x_y(const struct box *box, struct number *values, int sign)
{
	size_t nx = box->nx, plane = nx * box->ny;

#pragma omp parallel for schedule(static)
	for (int z = 0; z < box->nz; z++) {
		for (int y = 0; y < box->ny; y += LANES)
			transform_at(values + z * plane + y * nx, box->nx, 1, nx, sign);
		for (int x = 0; x < box->nx; x += LANES)
			transform_at(values + z * plane + x, box->ny, nx, 1, sign);
	}
}

static void transform_z(const struct box *box, struct number *values, int sign)
{
	size_t nx = box->nx, plane = nx * box->ny;

#pragma omp parallel for schedule(static)
	for (int y = 0; y < box->ny; y++)
		for (int x = 0; x < box->nx; x += LANES)
			transform_at(values + y * nx + x, box->nz, plane, 1, sign);
}

static double *make_decay(int n)
{
	double *decay = allocate(n, sizeof(double));

	for (int i = 0; i < n; i++) {
		double k = i < n / 2 ? i : i - n;

		decay[i] = exp(-4 * ALPHA * M_PI * M_PI * k * k);
	}
	return decay;
}

// u at time 0. The generator jumps ahead to each plane.
static void set_initial(const struct box *box, struct number *u)
{
	size_t plane = (size_t)box->nx * box->ny;

#pragma omp parallel for schedule(static)
	for (int z = 0; z < box->nz; z++) {
		uint64_t x = times(SEED, jump(2 * plane * z));

		for (size_t at = z * plane; at < (z + 1) * plane; at++) {
			u[at].real = next_number(&x);
			u[at].imaginary = next_number(&x);
		}
	}
}

// One unit of time on: decays the spectrum, and copies it to u.
static void decay_spectrum(const struct box *box)
{
#pragma omp parallel for schedule(static)
	for (int z = 0; z < box->nz; z++)
		for (int y = 0; y < box->ny; y++) {
			size_t row = ((size_t)z * box->ny + y) * box->nx;
			double decay = box->decay_z[z] * box->decay_y[y];

			for (int x = 0; x < box->nx; x++) {
				struct number *from = &box->spectrum[row + x];

				from->real *= decay * box->decay_x[x];
				from->imaginary *= decay * box->decay_x[x];
				box->u[row + x] = *from;
			}
		}
}

static struct number checksum(const struct box *box)
{
	double real = 0, imaginary = 0, points = (double)box->nx * box->ny * box->nz;

#pragma omp parallel for schedule(static) reduction(+ : real, imaginary)
	for (int j = 1; j <= CHECKED; j++) {
		size_t x = j % box->nx, y = 3 * j % box->ny, z = 5 * j % box->nz;
		const struct number *u = &box->u[(z * box->ny + y) * box->nx + x];

		real += u->real;
		imaginary += u->imaginary;
	}
	return (struct number){ real / points, imaginary / points };
}

// The whole benchmark once; returns whether all checksums are the official ones.
static int run(const struct box *box, const struct size *size, int iterations, double *seconds)
{
	int is_good = iterations == ITERATIONS;
	double start = omp_get_wtime();

	// As the NPB have it, making u and transforming it is timed, too.
	set_initial(box, box->spectrum);
	transform_x_y(box, box->spectrum, 1);
	transform_z(box, box->spectrum, 1);
	for (int iteration = 0; iteration < iterations; iteration++) {
		decay_spectrum(box);
		transform_z(box, box->u, -1);
		transform_x_y(box, box->u, -1);
		struct number sum = checksum(box);

		if (iterations != ITERATIONS)
			continue;
		is_good &= matches("ft: a checksum's real part", sum.real, size->real[iteration], 1e-12);
		is_good &= matches("ft: a checksum's imaginary part", sum.imaginary,
				   size->imaginary[iteration], 1e-12);
	}
	*seconds += omp_get_wtime() - start;
	return is_good;
}

int main(int argc, char **argv)
{
	struct options options = read_options("ft", "SWA", 1, argc, argv);
	const struct size *size = &sizes[options.index];
	int iterations = iterations_of(&options, ITERATIONS), is_good = 1;
	double points = (double)size->nx * size->ny * size->nz, seconds = 0;
	struct box box = {
		.nx = size->nx,
		.ny = size->ny,
		.nz = size->nz,
		.spectrum = allocate((size_t)points, sizeof(struct number)),
		.u = allocate((size_t)points, sizeof(struct number)),
		.decay_x = make_decay(size->nx),
		.decay_y = make_decay(size->ny),
		.decay_z = make_decay(size->nz),
	};

	for (int i = 0; i < MAX_LENGTH; i++)
		roots[i] = (struct number){ cos(2 * M_PI * i / MAX_LENGTH), sin(2 * M_PI * i / MAX_LENGTH) };
	for (int repeat = 0; repeat < options.repeats; repeat++)
		is_good &= run(&box, size, iterations, &seconds);
	// As the NPB count them.
	double operations = points * (14.8157 + 7.19641 * log(points) +
				      (5.23518 + 7.21113 * log(points)) * iterations);

	return report("ft", &options, "threads", omp_get_max_threads(), seconds,
		      options.repeats * operations, is_good);
}
