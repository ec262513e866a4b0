// SPDX-License-Identifier: GPL-2.0-only
//
// Runs loops when it is told to, by a line on its standard input, and prints how many iterations of
// 1000 each thread got: "run" runs regions of their own; "hold" one region, with a loop, a pause until
// the next line, another loop, and the first one again; "team N" does "run" with so many threads from
// now on; "fork" does "run" in a child; "exec" starts this program anew; anything else ends it.
//
//   steady THREADS

#define _GNU_SOURCE
#include <omp.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pin.h"

enum { N = 1000, REGIONS = 5, THREADS = 16 };

static int counts[2][THREADS], threads;

// Of no use but to keep a loop.
static volatile int sink;

static void loop(int *count)
{
	int me = omp_get_thread_num();

	count[me] = 0;
#pragma omp for nowait
	for (int i = 0; i < N; i++)
		count[me]++;
}

static void print(const int *count)
{
	for (int i = 0; i < threads; i++)
		printf("%d%s", count[i], i + 1 < threads ? " " : "\n");
	fflush(stdout);
}

static int read_line(char *line, int size)
{
	return fgets(line, size, stdin) != NULL;
}

static void run(void)
{
	for (int region = 0; region < REGIONS; region++)
#pragma omp parallel num_threads(threads)
		loop(counts[0]);
	print(counts[0]);
}

static void hold(void)
{
	char line[16];

#pragma omp parallel num_threads(threads)
	{
		loop(counts[0]);
#pragma omp barrier
#pragma omp master
		{
			print(counts[0]);
			CHECK(read_line(line, sizeof(line)));
		}
#pragma omp barrier
		// A loop of another length, in between.
#pragma omp for nowait
		for (int i = 0; i < N / 2; i++)
			sink = i;
		loop(counts[1]);
	}
	print(counts[1]);
}

int main(int argc, char **argv)
{
	const char *preload = getenv("LD_PRELOAD"), *page = getenv("EVENKEEL_SHARES");
	char line[16];
	int status;

	CHECK(argc == 2);
	threads = atoi(argv[1]);
	CHECK(threads > 0 && threads <= THREADS);
	printf("preload=%s page=%s\n", preload ? preload : "-", page ? page : "-");
	fflush(stdout);
#pragma omp parallel num_threads(threads)
	pin_thread(omp_get_thread_num());
	while (read_line(line, sizeof(line))) {
		if (!strcmp(line, "run\n")) {
			run();
		} else if (!strcmp(line, "hold\n")) {
			hold();
		} else if (!strncmp(line, "team ", 5)) {
			threads = atoi(line + 5);
			CHECK(threads > 0 && threads <= THREADS);
			run();
		} else if (!strcmp(line, "fork\n")) {
			pid_t child = fork();

			CHECK(child >= 0);
			if (!child) {
#pragma omp parallel num_threads(threads)
				pin_thread(omp_get_thread_num());
				run();
				_exit(0);
			}
			CHECK(waitpid(child, &status, 0) == child && !status);
		} else if (!strcmp(line, "exec\n")) {
			CHECK(!sched_setaffinity(0, sizeof(pin_allowed), &pin_allowed));
			execv("/proc/self/exe", argv);
			CHECK(!"execv");
		} else {
			break;
		}
	}
	return 0;
}
