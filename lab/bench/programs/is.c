// SPDX-License-Identifier: GPL-2.0-only
//
// IS, "integer sort", of the NAS Parallel Benchmarks, written anew from the published specification
// (Bailey et al., The NAS Parallel Benchmarks, RNR-94-007, section 2.6):
//
// Keys are a quarter of the largest key times the sum of four pseudo-random numbers (npb.h, seed
// 314159265). Ten times: key i (the iteration's number, from 1) becomes i, key i + 10 becomes the
// largest key - i, and all keys are ranked: a key's rank is the number of smaller keys. Five ranks
// must be the official ones each time; at last the keys are put in order by their ranks, and must be
// in order.
//
// Ranking is by counting. Each thread counts its share of the keys in a table of its own, then sums
// the tables of all threads for its share of the values, then adds what the shares below have:
// schedule(static), three barriers by iteration.
//
//   is [--class S|W|A] [--iterations N] [--repeat N]

#include <omp.h>

#include "npb.h"

#define SEED 314159265ull
#define ITERATIONS 10
#define TESTS 5
#define NUMBERS_PER_KEY 4
#define KEYS_PER_JUMP 4096 // keys that are made from one place of the sequence
#define CACHE_LINE 64

// One of the keys that are verified by their ranks.
struct test {
	int at; // its index
	int rank; // at iteration 0
	int by_iteration; // 1 if its rank rises by one each iteration, -1 if it falls
};

static const struct size {
	int log2_keys, log2_values;
	struct test tests[TESTS];
} sizes[] = {
	{ 16, 11, { { 48427, 0, 1 }, { 17148, 18, 1 }, { 23627, 346, 1 }, { 62548, 64917, -1 },
		    { 4431, 65463, -1 } } },
	{ 20, 16, { { 357773, 1247, 1 }, { 934767, 11696, 1 }, { 875723, 1039987, -1 },
		    { 898999, 1043896, -1 }, { 404505, 1048018, -1 } } },
	{ 23, 19, { { 2112377, 103, 1 }, { 662041, 17522, 1 }, { 5336171, 123927, 1 },
		    { 3642833, 8288933, -1 }, { 4250760, 8388265, -1 } } },
};

struct sort {
	int keys, values;
	int *key;
	int *ranks; // by value: the number of smaller keys; one more at the end: of all keys
	int *counts; // by thread, then by value
	int *share_sums; // by thread, a cache line each: how many keys have values of its share
};

#define SHARE_STEP (CACHE_LINE / (int)sizeof(int))

static void make_keys(struct sort *s)
{
#pragma omp parallel for schedule(static)
	for (int batch = 0; batch < s->keys / KEYS_PER_JUMP; batch++) {
		int first = batch * KEYS_PER_JUMP;
		uint64_t x = times(SEED, jump((uint64_t)first * NUMBERS_PER_KEY));

		for (int i = first; i < first + KEYS_PER_JUMP; i++) {
			double sum = next_number(&x);

			for (int number = 1; number < NUMBERS_PER_KEY; number++)
				sum += next_number(&x);
			s->key[i] = (int)(s->values / NUMBERS_PER_KEY * sum);
		}
	}
}

// Ranks all keys.
static void rank_keys(struct sort *s)
{
#pragma omp parallel
	{
		int thread = omp_get_thread_num(), threads = omp_get_num_threads(), sum = 0, below = 0;
		int first = (int)((int64_t)s->values * thread / threads);
		int end = (int)((int64_t)s->values * (thread + 1) / threads);
		int *counts = s->counts + (size_t)thread * s->values;

		memset(counts, 0, s->values * sizeof(*counts));
#pragma omp for schedule(static)
		for (int i = 0; i < s->keys; i++)
			counts[s->key[i]]++;

		for (int value = first; value < end; value++) {
			s->ranks[value] = sum;
			for (int other = 0; other < threads; other++)
				sum += s->counts[(size_t)other * s->values + value];
		}
		s->share_sums[thread * SHARE_STEP] = sum;
#pragma omp barrier
		for (int other = 0; other < thread; other++)
			below += s->share_sums[other * SHARE_STEP];
		for (int value = first; value < end; value++)
			s->ranks[value] += below;
	}
}

// Whether the ranks of the test keys are the official ones.
static int verify_ranks(const struct sort *s, const struct size *size, int iteration)
{
	int is_good = 1;

	for (int i = 0; i < TESTS; i++) {
		const struct test *test = &size->tests[i];
		int rank = s->ranks[s->key[test->at]], want = test->rank + test->by_iteration * iteration;

		if (rank == want)
			continue;
		fprintf(stderr, "is: iteration %d: the rank of key %d is %d, want %d\n", iteration, test->at,
			rank, want);
		is_good = 0;
	}
	return is_good;
}

// Puts the keys in order by their ranks; whether they are in order then, none lost.
static int verify_order(const struct sort *s)
{
	int *place = allocate(s->values, sizeof(*place)), *sorted = allocate(s->keys, sizeof(*sorted));
	int is_good = 1;

	memcpy(place, s->ranks, s->values * sizeof(*place));
	for (int i = 0; is_good && i < s->keys; i++) {
		int at = place[s->key[i]]++;

		is_good = at >= 0 && at < s->keys && sorted[at] == 0;
		if (is_good)
			sorted[at] = s->key[i] + 1; // 0: no key has come here
	}
	for (int i = 1; i < s->keys; i++)
		is_good &= sorted[i - 1] <= sorted[i];
	if (!is_good)
		fprintf(stderr, "is: the keys are not in order\n");
	free(place);
	free(sorted);
	return is_good;
}

int main(int argc, char **argv)
{
	struct options options = read_options("is", "SWA", 1, argc, argv);
	const struct size *size = &sizes[options.index];
	int iterations = iterations_of(&options, ITERATIONS), is_good = 1;
	struct sort sort = {
		.keys = 1 << size->log2_keys,
		.values = 1 << size->log2_values,
	};
	size_t threads = omp_get_max_threads();
	double seconds = 0;

	sort.key = allocate(sort.keys, sizeof(int));
	sort.ranks = allocate(sort.values, sizeof(int));
	sort.counts = allocate(threads * sort.values, sizeof(int));
	sort.share_sums = allocate(threads * SHARE_STEP, sizeof(int));
	for (int repeat = 0; repeat < options.repeats; repeat++) {
		make_keys(&sort);
		for (int iteration = 1; iteration <= iterations; iteration++) {
			// Beyond the official number the keys change as in the last iteration.
			int change = iteration < ITERATIONS ? iteration : ITERATIONS;

			sort.key[change] = change;
			sort.key[change + ITERATIONS] = sort.values - change;
			double start = omp_get_wtime();

			rank_keys(&sort);
			seconds += omp_get_wtime() - start;
			if (!options.iterations)
				is_good &= verify_ranks(&sort, size, iteration);
		}
		if (!options.iterations)
			is_good &= verify_order(&sort);
	}
	double operations = (double)iterations * sort.keys; // keys ranked, as the NPB count them

	return report("is", &options, "threads", omp_get_max_threads(), seconds,
		      options.repeats * operations, is_good);
}
