// SPDX-License-Identifier: GPL-2.0-only
//
// What our NAS Parallel Benchmarks share: the specification's pseudo-random numbers (Bailey et
// al., The NAS Parallel Benchmarks, RNR-94-007, section 2.3), the command line, the comparison
// with the official verification values, and the line that is printed.
//
// Uniform numbers r_k = x_k / 2^46, x_k = 5^13 x_{k-1} mod 2^46; the seed x_0 is the benchmark's.
//
// Each program is started as
//
//   NAME [--class S|W|A] [--iterations N] [--repeat N]
//
// --iterations replaces the official number of iterations; there is no official value to verify
// then. --repeat does the whole benchmark N times from the start, verified each time. The threads
// are OpenMP's (OMP_NUM_THREADS); in the programs NAME_mpi the ranks are MPI's. The exit status is 1
// when the verification fails.

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MULTIPLIER 1220703125ull // 5^13
#define MODULUS_MASK ((1ull << 46) - 1)
#define MAX_COUNT 100000 // of iterations and of repeats

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

// The multiplier that makes `steps` steps of the generator at once.
static inline uint64_t jump(uint64_t steps)
{
	uint64_t result = 1;

	for (uint64_t square = MULTIPLIER; steps; steps >>= 1, square = times(square, square))
		if (steps & 1)
			result = times(result, square);
	return result;
}

struct options {
	char class;
	int index; // of the class in the program's list of classes
	int iterations; // 0: the class's own number
	int repeats;
};

// Reads a whole number from 1 to MAX_COUNT; 0 for anything else.
static inline int read_count(const char *text)
{
	char *end;
	long value = strtol(text, &end, 10);

	return *text >= '0' && *text <= '9' && *end == '\0' && value <= MAX_COUNT ? (int)value : 0;
}

// Reads the command line; on anything unknown says how the program is used and ends it. `classes`
// are the letters of the classes that the program has, S first: the default. EP has no iterations.
static inline struct options read_options(const char *name, const char *classes, int has_iterations,
					  int argc, char **argv)
{
	struct options options = { .class = classes[0], .repeats = 1 };
	int is_good = argc % 2 == 1;

	for (int i = 1; is_good && i < argc; i += 2) {
		const char *value = argv[i + 1], *letter;

		if (!strcmp(argv[i], "--class")) {
			letter = strlen(value) == 1 ? strchr(classes, value[0]) : NULL;
			is_good = letter != NULL;
			options.class = value[0];
			options.index = is_good ? (int)(letter - classes) : 0;
		} else if (has_iterations && !strcmp(argv[i], "--iterations")) {
			is_good = (options.iterations = read_count(value)) > 0;
		} else if (!strcmp(argv[i], "--repeat")) {
			is_good = (options.repeats = read_count(value)) > 0;
		} else {
			is_good = 0;
		}
	}
	if (is_good)
		return options;
	fprintf(stderr, "usage: %s [--class %c", name, classes[0]);
	for (const char *letter = classes + 1; *letter; letter++)
		fprintf(stderr, "|%c", *letter);
	fprintf(stderr, "]%s [--repeat N], N at most %d\n", has_iterations ? " [--iterations N]" : "",
		MAX_COUNT);
	exit(2);
}

// Zeroed memory. Ends the program where there is none.
static inline void *allocate(size_t count, size_t size)
{
	void *memory = calloc(count, size);

	if (!memory) {
		fprintf(stderr, "cannot allocate %zu times %zu bytes: choose a smaller class\n", count, size);
		exit(1);
	}
	return memory;
}

// Whether a value is the official one within a relative error; says so on standard error if not.
// A comparison with NaN is false, so a NaN does not match.
static inline int matches(const char *what, double value, double official, double relative_error)
{
	int is_good = fabs((value - official) / official) <= relative_error;

	if (!is_good)
		fprintf(stderr, "%s is %.15e, want %.15e\n", what, value, official);
	return is_good;
}

// The number of iterations to do, given the class's own. Asking for just that number is the same as
// not asking.
static inline int iterations_of(struct options *options, int official)
{
	if (options->iterations == official)
		options->iterations = 0;
	return options->iterations ? options->iterations : official;
}

// Prints the program's line and returns its exit status. `workers` is "threads" or "ranks",
// `operations` are those of all repeats, as the NPB count them.
static inline int report(const char *name, const struct options *options, const char *workers, int count,
			 double seconds, double operations, int is_good)
{
	const char *verification = options->iterations ? "NONE" : is_good ? "SUCCESSFUL" : "FAILED";

	printf("%s class=%c %s=%d seconds=%.6f mops=%.2f verification=%s\n", name, options->class, workers,
	       count, seconds, operations / seconds / 1e6, verification);
	return options->iterations || is_good ? 0 : 1;
}
