// SPDX-License-Identifier: GPL-2.0-only
//
// OpenMP's constructs as a user writes them, compiled by clang: each iteration of each loop is
// executed once, loops of one region are divided alike, and all that is no static loop works as ever.
//
//   constructs ROUNDS
//
// Prints how many iterations thread 0 of a team of four got of a loop of 8000.

#define _GNU_SOURCE
#include <omp.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "pin.h"

enum { N = 8000 };

static unsigned char times[N];
static int16_t executor[2][N];

static void clear(void)
{
	memset(times, 0, sizeof(times));
}

static void check_each_once(int from, int to)
{
	for (int i = 0; i < N; i++)
		CHECK(times[i] == (i >= from && i < to));
}

// All types and directions of loops in C.
static void loop_forms(int threads)
{
#define FORM(type, begin, condition, advance, index)         \
	do {                                                 \
		clear();                                     \
		_Pragma("omp parallel for num_threads(threads) schedule(static)") \
		for (type i = begin; condition; advance)     \
			times[index]++;                      \
	} while (0)
	FORM(int, 0, i < N, i++, i);
	check_each_once(0, N);
	FORM(int, N - 1, i >= 0, i--, i);
	check_each_once(0, N);
	FORM(signed char, -100, i < 27, i++, i + 100);
	check_each_once(0, 127);
	FORM(unsigned char, 0, i < 255, i++, i);
	check_each_once(0, 255);
	FORM(short, 0, i != N, i++, i);
	check_each_once(0, N);
	FORM(unsigned short, 0, i <= N - 1, i += 1, i);
	check_each_once(0, N);
	FORM(unsigned, N, i > 0, i--, i - 1);
	check_each_once(0, N);
	FORM(long, -N, i < N, i += 2, (i + N) / 2);
	check_each_once(0, N);
	FORM(unsigned long, 0, i < 3UL * N, i += 3, i / 3);
	check_each_once(0, N);
	FORM(long long, INT64_MAX - N, i < INT64_MAX, i++, i - (INT64_MAX - N));
	check_each_once(0, N);
	FORM(unsigned long long, UINT64_MAX, i > UINT64_MAX - N, i--, UINT64_MAX - i);
	check_each_once(0, N);
	FORM(int, 7, i < 7, i++, i);
	check_each_once(0, 0);
	FORM(int, 7, i < 8, i++, i);
	check_each_once(7, 8);
	FORM(unsigned char *, times, i < times + N, i++, i - times);
	check_each_once(0, N);
	FORM(int, 0, i < threads, i++, i);
	check_each_once(0, threads);
	clear();
#pragma omp parallel for num_threads(threads) collapse(2)
	for (int i = 0; i < 80; i++)
		for (int j = 99; j >= 0; j--)
			times[i * 100 + j]++;
	check_each_once(0, N);
	clear();
#pragma omp parallel for simd num_threads(threads)
	for (int i = 0; i < N; i++)
		times[i]++;
	check_each_once(0, N);
}

// A static loop of one region must give each thread the iterations that another one gave it, if both
// have as many: so a thread may read what it wrote itself without a barrier.
static void nowait_pairs(int threads)
{
	static int a[N], b[N];
	long sum = 0;
	int last = -1, first_private = 3;

#pragma omp parallel num_threads(threads)
	{
#pragma omp for nowait
		for (int i = 0; i < N; i++) {
			executor[0][i] = omp_get_thread_num();
			a[i] = i;
		}
#pragma omp for nowait schedule(static)
		for (long i = N; i > 0; i--)
			executor[1][N - i] = omp_get_thread_num();
#pragma omp for nowait
		for (unsigned i = 0; i < N; i++) {
			b[i] = a[i] + 1;
			a[i] = 0;
		}
#pragma omp for reduction(+ : sum) lastprivate(last) firstprivate(first_private)
		for (int i = 0; i < N; i++) {
			sum += b[i] + first_private;
			last = i;
		}
	}
	for (int i = 0; i < N; i++)
		CHECK(executor[0][i] == executor[1][i] && b[i] == i + 1);
	CHECK(sum == (long)N * (N + 1) / 2 + 3L * N);
	CHECK(last == N - 1);
}

static void orphan(void)
{
#pragma omp for nowait
	for (int i = 0; i < N; i++)
#pragma omp atomic
		times[i]++;
}

// Nested regions, a region within a loop, serial regions, a loop after a nested region, and a loop
// outside.
static void nested(int threads)
{
	static int counts[8][N];

	omp_set_max_active_levels(3);
	clear();
	memset(counts, 0, sizeof(counts));
#pragma omp parallel num_threads(threads)
	{
		int outer = omp_get_thread_num();
#pragma omp for nowait
		for (int i = 0; i < N; i++)
			executor[0][i] = outer;
#pragma omp parallel num_threads(3) if (outer != 1)
#pragma omp for
		for (int i = 0; i < N; i++)
			counts[outer][i]++;
#pragma omp parallel num_threads(1)
		{
#pragma omp parallel for num_threads(2)
			for (int i = 0; i < N; i++)
				counts[outer][i] += 16;
		}
#pragma omp for nowait
		for (int i = 0; i < N; i++)
			executor[1][i] = outer;
		orphan();
	}
	for (int i = 0; i < N; i++)
		CHECK(executor[0][i] == executor[1][i]);
	for (int outer = 0; outer < threads; outer++)
		for (int i = 0; i < N; i++)
			CHECK(counts[outer][i] == 17);
	check_each_once(0, N);
	clear();
	orphan();
	check_each_once(0, N);
#pragma omp parallel num_threads(threads) if (0)
	orphan();
	for (int i = 0; i < N; i++)
		CHECK(times[i] == 2);
	omp_set_max_active_levels(1);
}

static void leagues(void)
{
	clear();
#pragma omp teams distribute parallel for num_teams(2) thread_limit(4)
	for (int i = 0; i < N; i++)
#pragma omp atomic
		times[i]++;
	check_each_once(0, N);
	clear();
#pragma omp teams num_teams(2) thread_limit(4)
#pragma omp distribute
	for (int block = 0; block < 8; block++) {
#pragma omp parallel for
		for (int i = block * (N / 8); i < (block + 1) * (N / 8); i++)
#pragma omp atomic
			times[i]++;
	}
	check_each_once(0, N);
}

// Chunked, ordered and other schedules, and sections: as the runtime gives them.
static void others(int threads)
{
	static int order[N];
	int next = 0, sections[3] = { 0 };

#pragma omp parallel num_threads(threads)
	{
		int size = omp_get_num_threads();
#pragma omp for schedule(static, 10)
		for (int i = 0; i < N; i++)
			CHECK(omp_get_thread_num() == i / 10 % size);
#pragma omp for ordered schedule(static)
		for (int i = 0; i < 200; i++)
#pragma omp ordered
			order[next++] = i;
#pragma omp sections nowait
		{
#pragma omp section
			sections[0]++;
#pragma omp section
			sections[1]++;
#pragma omp section
			sections[2]++;
		}
#pragma omp for schedule(dynamic, 3)
		for (int i = 0; i < N; i++)
			executor[0][i] = 1;
#pragma omp for schedule(guided)
		for (int i = 0; i < N; i++)
			executor[0][i]++;
	}
	CHECK(next == 200 && sections[0] == 1 && sections[1] == 1 && sections[2] == 1);
	for (int i = 0; i < 200; i++)
		CHECK(order[i] == i);
	for (int i = 0; i < N; i++)
		CHECK(executor[0][i] == 2);
	// Two sections that wait for each other need two threads, wherever these are.
	volatile int ready[2] = { 0 };
#pragma omp parallel sections num_threads(2) shared(ready)
	{
#pragma omp section
		{
			ready[0] = 1;
			while (omp_get_num_threads() == 2 && !ready[1])
				sched_yield();
		}
#pragma omp section
		{
			ready[1] = 1;
			while (omp_get_num_threads() == 2 && !ready[0])
				sched_yield();
		}
	}
}

static void tasks_and_cancel(int threads)
{
	int done = 0;

	clear();
#pragma omp parallel num_threads(threads)
#pragma omp for
	for (int i = 0; i < N; i += 100)
#pragma omp task firstprivate(i)
		for (int j = i; j < i + 100; j++)
			times[j]++;
	check_each_once(0, N);
#pragma omp parallel num_threads(threads)
#pragma omp for
	for (int i = 0; i < N; i++) {
#pragma omp atomic
		done++;
#pragma omp cancel for if (i == N / 2)
	}
	CHECK(done > 0 && done <= N);
	clear();
#pragma omp parallel for num_threads(threads)
	for (int i = 0; i < N; i++)
		times[i]++;
	check_each_once(0, N);
}

int main(int argc, char **argv)
{
	int counts[4] = { 0 };

	CHECK(argc == 2);
	omp_set_dynamic(0);
#pragma omp parallel num_threads(8)
	pin_thread(omp_get_thread_num());
	for (int round = 0; round < atoi(argv[1]); round++) {
		// The number of threads changes between regions.
		for (int threads = 1; threads <= 5; threads++) {
			loop_forms(threads);
			nowait_pairs(threads);
			nested(threads);
			leagues();
			others(threads);
			tasks_and_cancel(threads);
		}
	}
#pragma omp parallel for num_threads(4)
	for (int i = 0; i < N; i++)
		counts[omp_get_thread_num()]++;
	printf("first=%d\n", counts[0]);
	return 0;
}
