// SPDX-License-Identifier: GPL-2.0-only
//
// EP, "embarrassingly parallel", of the NAS Parallel Benchmarks, for ep.c (OpenMP) and ep_mpi.c,
// written anew from the published specification (Bailey et al., The NAS Parallel Benchmarks,
// RNR-94-007, sections 2.2 and 2.3):
//
// Uniform pseudo-random numbers r_k (npb.h) from the seed 271828183.
// For j = 1..n: x = 2 r_{2j-1} - 1, y = 2 r_{2j} - 1, t = x^2 + y^2. A pair with t <= 1 is
// accepted and gives two independent Gaussian deviates (Marsaglia's polar method)
// X = x sqrt(-2 ln t / t), Y = y sqrt(-2 ln t / t), that are summed and counted by the square
// annulus l <= max(|X|, |Y|) < l + 1, l = 0..9. The sums must match the official ones to 1e-8.
//
// Pairs are made in batches; the generator jumps ahead to the start of each batch by a power of
// its multiplier, so threads and ranks share nothing.

#include "npb.h"

#define SEED 271828183ull
#define ANNULI 10
#define LOG2_PAIRS_PER_BATCH 16
#define MAX_RELATIVE_ERROR 1e-8

static const struct size {
	int log2_pairs;
	double sx, sy; // the official verification values
} sizes[] = {
	{ 24, -3.247834652034740e+3, -6.958407078382297e+3 },
	{ 25, -2.863319731645753e+3, -6.320053679109499e+3 },
	{ 28, -4.295875165629892e+3, -1.580732573678431e+4 },
	{ 30, 4.033815542441498e+4, -2.660669192809235e+4 },
};

// The next number of the sequence, scaled to (-1, 1).
static inline double next_coordinate(uint64_t *x)
{
	return 2.0 * next_number(x) - 1.0;
}

// One batch: adds its sums and counts to the caller's.
static inline void do_batch(uint64_t index, double *sx, double *sy, uint64_t *counts)
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

static inline int64_t batches_of(const struct size *size)
{
	return 1ll << (size->log2_pairs - LOG2_PAIRS_PER_BATCH);
}

// Whether the sums are the official ones.
static inline int verify(const struct size *size, double sx, double sy, const uint64_t *counts)
{
	uint64_t accepted = 0;

	for (int i = 0; i < ANNULI; i++)
		accepted += counts[i];
	// pi/4 of all pairs lie in the circle: a second check that the sums alone do not give.
	double share = (double)accepted / ldexp(1.0, size->log2_pairs);
	int is_good = matches("ep: the sum of X", sx, size->sx, MAX_RELATIVE_ERROR);

	is_good &= matches("ep: the sum of Y", sy, size->sy, MAX_RELATIVE_ERROR);
	return is_good & matches("ep: the share of accepted pairs", share, M_PI / 4, 1e-3);
}

// Random numbers, as the NPB count them.
static inline double operations(const struct size *size, int repeats)
{
	return ldexp(repeats, size->log2_pairs + 1);
}
