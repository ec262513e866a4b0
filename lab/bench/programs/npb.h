// SPDX-License-Identifier: GPL-2.0-only
//
// What our NAS Parallel Benchmarks (ep.c, cg.c) share: the specification's pseudo-random numbers
// (Bailey et al., The NAS Parallel Benchmarks, RNR-94-007, section 2.3) and the command line.
//
// Uniform numbers r_k = x_k / 2^46, x_k = 5^13 x_{k-1} mod 2^46; the seed x_0 is the benchmark's.

#include <stdint.h>
#include <string.h>

#define MULTIPLIER 1220703125ull // 5^13
#define MODULUS_MASK ((1ull << 46) - 1)

// The product mod 2^46. 2^46 divides 2^64, so the wrap of 64-bit arithmetic loses nothing.
static inline uint64_t times(uint64_t a, uint64_t b)
{
	return (a * b) & MODULUS_MASK;
}

// The next number of the sequence, in (0, 1).
static inline double next_number(uint64_t *x)
{
	*x = times(*x, MULTIPLIER);
	return (double)*x * 0x1p-46;
}

// The letter of `[--class LETTER]`; S where nothing is given, '?' for anything else.
static inline char class_from(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "--class") && strlen(argv[2]) == 1)
		return argv[2][0];
	return argc == 1 ? 'S' : '?';
}
