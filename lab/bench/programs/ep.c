// SPDX-License-Identifier: GPL-2.0-only
//
// EP, "embarrassingly parallel", of the NAS Parallel Benchmarks, written anew from the published
// specification (Bailey et al., The NAS Parallel Benchmarks, RNR-94-007, sections 2.2 and 2.3):
//
// Uniform pseudo-random numbers r_k (npb.h) from the seed 271828183.
// For j = 1..n: x = 2 r_{2j-1} - 1, y = 2 r_{2j} - 1, t = x^2 + y^2. A pair with t <= 1 is
// accepted and gives two independent Gaussian deviates (Marsaglia's polar method)
// X = x sqrt(-2 ln t / t), Y = y sqrt(-2 ln t / t), that are summed and counted by the square
// annulus l <= max(|X|, |Y|) < l + 1, l = 0..9. The sums must match the official ones to 1e-8.
//
// Pairs are made in batches; the generator jumps ahead to the start of each batch by a power of
// its multiplier, so threads share nothing. schedule(static): equal shares, one barrier.
//
//   ep [--class S|W|A|B]

#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <stdio.h>

#include "npb.h"

#define SEED 271828183ull
#define ANNULI 10
#define LOG2_PAIRS_PER_BATCH 16
#define MAX_RELATIVE_ERROR 1e-8

static const struct size {
	char name;
	int log2_pairs;
	double sx, sy; // the official verification values
} sizes[] = {
	{ 'S', 24, -3.247834652034740e+3, -6.958407078382297e+3 },
	{ 'W', 25, -2.863319731645753e+3, -6.320053679109499e+3 },
	{ 'A', 28, -4.295875165629892e+3, -1.580732573678431e+4 },
	{ 'B', 30, 4.033815542441498e+4, -2.660669192809235e+4 },
};

// The multiplier that makes `steps` steps of the generator at once.
static uint64_t jump(uint64_t steps)
{
	uint64_t result = 1;

	for (uint64_t square = MULTIPLIER; steps; steps >>= 1, square = times(square, square))
		if (steps & 1)
			result = times(result, square);
	return result;
}

// The next number of the sequence, scaled to (-1, 1).
static double next_coordinate(uint64_t *x)
{
	return 2.0 * next_number(x) - 1.0;
}

// One batch: adds its sums and counts to the caller's.
static void batch(uint64_t index, double *sx, double *sy, uint64_t *counts)
{
	uint64_t x = times(SEED, jump(index << (LOG2_PAIRS_PER_BATCH + 1)));

	for (int pair = 0; pair < 1 << LOG2_PAIRS_PER_BATCH; pair++) {
		double first = next_coordinate(&x), second = next_coordinate(&x);
		double t = first * first + second * second;

		if (t > 1.0)
			continue;
		double scale = sqrt(-2.0 * log(t) / t);
		double gx = first * scale, gy = second * scale;
		int annulus = (int)fmax(fabs(gx), fabs(gy));

		// |X| >= 10 needs t < 2e-22: no such pair in these sequences, but never index by trust.
		if (annulus < ANNULI)
			counts[annulus]++;
		*sx += gx;
		*sy += gy;
	}
}

static int matches(double value, double official)
{
	return fabs((value - official) / official) <= MAX_RELATIVE_ERROR;
}

int main(int argc, char **argv)
{
	const struct size *size = NULL;
	char name = class_from(argc, argv);

	for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		if (sizes[i].name == name)
			size = &sizes[i];
	if (!size) {
		fprintf(stderr, "usage: ep [--class S|W|A|B]\n");
		return 2;
	}

	double sx = 0, sy = 0;
	uint64_t counts[ANNULI] = { 0 }, accepted = 0;
	int64_t batches = 1ll << (size->log2_pairs - LOG2_PAIRS_PER_BATCH);
	double start = omp_get_wtime();

#pragma omp parallel for schedule(static) reduction(+ : sx, sy, counts[:ANNULI])
	for (int64_t index = 0; index < batches; index++)
		batch((uint64_t)index, &sx, &sy, counts);

	double seconds = omp_get_wtime() - start;
	for (int i = 0; i < ANNULI; i++)
		accepted += counts[i];
	// pi/4 of all pairs lie in the circle: a second check that the sums alone do not give.
	double share = (double)accepted / ldexp(1.0, size->log2_pairs);
	int good = matches(sx, size->sx) && matches(sy, size->sy) && fabs(share - M_PI / 4) < 1e-3;

	printf("ep class=%c seconds=%.6f verification=%s\n", size->name, seconds,
	       good ? "SUCCESSFUL" : "FAILED");
	if (!good)
		fprintf(stderr, "ep: sx=%.15e sy=%.15e accepted=%llu, want sx=%.15e sy=%.15e\n", sx, sy,
			(unsigned long long)accepted, size->sx, size->sy);
	return good ? 0 : 1;
}
