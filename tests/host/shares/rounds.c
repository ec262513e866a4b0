// SPDX-License-Identifier: GPL-2.0-only
//
// Runs parallel regions with one static loop each until its standard input ends. For each line there, it
// prints how many iterations each thread got in the last region. At the end it checks that each
// iteration was executed exactly once in each region, and says so.
//
//   rounds THREADS

#include <omp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { N = 400, THREADS = 16, WORK = 4000 };

static unsigned long marks[N];
static int counts[THREADS];
static double sums[N];

static double work(int i)
{
	double x = i;

	for (int step = 0; step < WORK; step++)
		x = x * 0.999 + 1.0;
	return x;
}

static void round_of(int threads)
{
#pragma omp parallel num_threads(threads)
	{
		int count = 0;

#pragma omp for
		for (int i = 0; i < N; i++) {
			marks[i]++;
			sums[i] = work(i);
			count++;
		}
		counts[omp_get_thread_num()] = count;
	}
}

int main(int argc, char **argv)
{
	int threads = argc == 2 ? atoi(argv[1]) : 0;
	struct pollfd input = { .fd = 0, .events = POLLIN };
	unsigned long rounds = 0;
	char line[64];

	if (threads < 1 || threads > THREADS)
		return 2;
	for (;;) {
		round_of(threads);
		rounds++;
		if (poll(&input, 1, 0) != 1)
			continue;
		if (read(0, line, sizeof(line)) <= 0)
			break;
		for (int i = 0; i < threads; i++)
			printf("%d%s", counts[i], i + 1 < threads ? " " : "\n");
		fflush(stdout);
	}
	for (int i = 0; i < N; i++)
		if (marks[i] != rounds || sums[i] != work(i)) {
			printf("wrong at %d: %lu of %lu rounds\n", i, marks[i], rounds);
			return 1;
		}
	printf("right\n");
	return 0;
}
