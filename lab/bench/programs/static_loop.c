// SPDX-License-Identifier: GPL-2.0-only
//
// The plainest parallel program there is: a fixed amount of pure computation, split evenly over
// the OpenMP threads (schedule(static)), with a barrier at its end. Every thread gets the same
// share, so the program is as fast as its slowest CPU: the case that balancing by capability is
// for. It touches no memory but its registers, so that nothing but CPU time decides.
//
//   static_loop --work N [--phases K] [--more P]
//
// N is the total work in units of about 1 ms of one undisturbed 2.6 GHz core, over all threads;
// K splits it into K parts with a barrier after each. The checksum depends on N and nothing else.
// With --more the first thread does P % more of each part than every other thread: it is the one
// that all wait for. The program then also says on which CPUs the first thread ended the later half
// of its parts, and how many on each (first_thread=CPU:COUNT,...).
// It says how long it took, and the CPU time that all threads together had for computing: not that
// in which they waited for each other.

#define _GNU_SOURCE
#include <omp.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_WORK 100000000ull
#define MAX_MORE 1000
// Places on other CPUs are not told.
#define MAX_CPUS 4096

// A multiply and an add that wait for each other: 4 cycles on any current core, so 650,000 of
// them are 1 ms at 2.6 GHz, and no vector unit or wider core changes that.
#define STEPS_PER_UNIT 650000

static uint64_t unit_of_work(uint64_t index)
{
	uint64_t x = index * 0x9e3779b97f4a7c15ull + 1;

	for (int step = 0; step < STEPS_PER_UNIT; step++)
		x = x * 6364136223846793005ull + 1442695040888963407ull;
	return x ^ (x >> 29);
}

// The CPU time that this thread has had, in s.
static double cpu_seconds(void)
{
	struct timespec time;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static int usage(void)
{
	fprintf(stderr,
		"usage: static_loop --work N [--phases K] [--more P], 1 <= K <= N <= %llu, "
		"1 <= P <= %d\n",
		MAX_WORK, MAX_MORE);
	return 2;
}

struct part {
	uint64_t first, end;
};

// The part of this thread of the units from `first` to `end`, where the first thread has `more` % more
// than every other.
static struct part own_part(uint64_t first, uint64_t end, uint64_t more)
{
	uint64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
	uint64_t all = 100 * threads + more, before = thread ? 100 * thread + more : 0;
	uint64_t after = 100 * (thread + 1) + more;

	return (struct part){
		.first = first + (end - first) * before / all,
		.end = first + (end - first) * after / all,
	};
}

// Where the first thread was, by CPU: how often.
static uint64_t places[MAX_CPUS];

static void note_place(void)
{
	int cpu = sched_getcpu();

	if (cpu >= 0 && cpu < MAX_CPUS)
		places[cpu]++;
}

static void print_places(void)
{
	const char *before = " first_thread=";

	for (int cpu = 0; cpu < MAX_CPUS; cpu++) {
		if (!places[cpu])
			continue;
		printf("%s%d:%llu", before, cpu, (unsigned long long)places[cpu]);
		before = ",";
	}
}

// Reads a whole positive number; 0 for anything else.
static uint64_t number(const char *text)
{
	char *end;
	unsigned long long value = strtoull(text, &end, 10);

	return *text >= '0' && *text <= '9' && *end == '\0' && value <= MAX_WORK ? value : 0;
}

int main(int argc, char **argv)
{
	uint64_t work = 0, phases = 1, more = 0, checksum = 0;

	for (int i = 1; i < argc; i += 2) {
		if (i + 1 >= argc)
			return usage();
		if (!strcmp(argv[i], "--work"))
			work = number(argv[i + 1]);
		else if (!strcmp(argv[i], "--phases"))
			phases = number(argv[i + 1]);
		else if (!strcmp(argv[i], "--more") && (more = number(argv[i + 1])) && more <= MAX_MORE)
			continue;
		else
			return usage();
	}
	if (work == 0 || phases == 0 || phases > work)
		return usage();

	double start = omp_get_wtime(), computed = 0;
#pragma omp parallel reduction(^ : checksum) reduction(+ : computed)
	for (uint64_t phase = 0; phase < phases; phase++) {
		uint64_t first = work * phase / phases, end = work * (phase + 1) / phases;

		computed -= cpu_seconds();
		if (more) {
			struct part own = own_part(first, end, more);

			for (uint64_t i = own.first; i < own.end; i++)
				checksum ^= unit_of_work(i);
			if (omp_get_thread_num() == 0 && 2 * (phase + 1) > phases)
				note_place();
		} else {
#pragma omp for schedule(static) nowait
			for (uint64_t i = first; i < end; i++)
				checksum ^= unit_of_work(i);
		}
		computed += cpu_seconds();
#pragma omp barrier
	}
	printf("static_loop seconds=%.6f computed=%.6f checksum=%016llx", omp_get_wtime() - start,
	       computed, (unsigned long long)checksum);
	if (more)
		print_places();
	putchar('\n');
	return 0;
}
