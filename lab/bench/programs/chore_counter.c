// SPDX-License-Identifier: GPL-2.0-only
//
// The chore-counter of the capability balancer's paper (Kim, Eom, Yeom, section 4.2), an MPI
// program: each rank does a very small piece of work, a chore, again and again, and counts. The
// root prints how many each has done (task_chores), their mean (avg_chore: how much of the CPUs
// the program got) and their standard deviation (stdev_chore: how evenly; of all ranks, so the
// sum of squares is divided by their number), and how often they changed their CPU meanwhile
// (migrations), whatever moved them; that is left out where the kernel does not count it for us.
//
//   chore_counter --seconds S [--barrier-every-us U]    for a time, the paper's form (S = 100)
//   chore_counter --chores N [--barrier-every-us U]     fixed work for each rank: as fast as the
//                                                       slowest, `seconds` is what it took
//
// With --barrier-every-us the ranks wait for each other after every U us of work, counted in whole
// chores (10 us of one undisturbed 2.6 GHz core); without, only at the end. Waiting is MPI's:
// the usual ones poll.

#include <linux/perf_event.h>
#include <math.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define US_PER_CHORE 10
// A multiply and an add that wait for each other: 4 cycles on any current core. A look at the
// clock after each chore is less than a hundredth of it.
#define STEPS_PER_CHORE (US_PER_CHORE * 650)

struct options {
	double seconds; // 0: by chores
	uint64_t chores; // 0: by time
	uint64_t chores_per_barrier; // 0: no barriers
};

// Keeps the compiler from dropping the work.
static volatile uint64_t sink;

static void chore(void)
{
	uint64_t x = sink;

	for (int step = 0; step < STEPS_PER_CHORE; step++)
		x = x * 6364136223846793005ull + 1442695040888963407ull;
	sink = x;
}

// Reads a number between the bounds; 0 for anything else.
static double number(const char *text, double least, double most)
{
	char *end;
	double value = strtod(text, &end);

	return *end == '\0' && value >= least && value <= most ? value : 0;
}

static int parse(int argc, char **argv, struct options *options)
{
	for (int i = 1; i < argc; i += 2) {
		const char *value = i + 1 < argc ? argv[i + 1] : "";

		if (!strcmp(argv[i], "--seconds") && (options->seconds = number(value, 1e-3, 1e6)))
			continue;
		if (!strcmp(argv[i], "--chores") && (options->chores = number(value, 1, 1e12)))
			continue;
		if (!strcmp(argv[i], "--barrier-every-us") &&
		    (options->chores_per_barrier = number(value, US_PER_CHORE, 1e9) / US_PER_CHORE))
			continue;
		return 0;
	}
	return !options->seconds != !options->chores;
}

// Does this rank's chores and returns their number. A barrier is an agreement whether any rank has
// reached its end, so that all leave at the same one.
static uint64_t count_chores(const struct options *options, double start)
{
	uint64_t count = 0;
	int over = 0;

	while (!over) {
		chore();
		count++;
		over = options->chores ? count == options->chores :
					 MPI_Wtime() - start >= options->seconds;
		if (options->chores_per_barrier && (over || count % options->chores_per_barrier == 0))
			MPI_Allreduce(MPI_IN_PLACE, &over, 1, MPI_INT, MPI_LOR, MPI_COMM_WORLD);
	}
	return count;
}

// Has the kernel count this thread's migrations from now on; negative where it does not.
static int open_migrations(void)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_SOFTWARE,
		.size = sizeof(attr),
		.config = PERF_COUNT_SW_CPU_MIGRATIONS,
	};

	return (int)syscall(SYS_perf_event_open, &attr, 0, -1, -1, 0);
}

// What was counted; negative where nothing is.
static int64_t read_migrations(int counter)
{
	uint64_t count;

	if (counter < 0 || read(counter, &count, sizeof(count)) != sizeof(count))
		return -1;
	return (int64_t)count;
}

static void report(const uint64_t *counts, const int64_t *migrations, int ranks, double seconds)
{
	int64_t moved = 0;
	int are_known = 1;
	double total = 0, squares = 0;

	for (int i = 0; i < ranks; i++)
		total += (double)counts[i];
	double avg = total / ranks;
	for (int i = 0; i < ranks; i++)
		squares += ((double)counts[i] - avg) * ((double)counts[i] - avg);

	printf("chore_counter ranks=%d seconds=%.6f task_chores=", ranks, seconds);
	for (int i = 0; i < ranks; i++)
		printf("%s%llu", i ? "," : "", (unsigned long long)counts[i]);
	printf(" avg_chore=%.3f stdev_chore=%.3f", avg, sqrt(squares / ranks));
	for (int i = 0; i < ranks; i++) {
		moved += migrations[i];
		are_known &= migrations[i] >= 0;
	}
	if (are_known)
		printf(" migrations=%lld", (long long)moved);
	printf("\n");
}

int main(int argc, char **argv)
{
	struct options options = { 0 };
	int rank, ranks;

	// Before MPI is up: refused at once, with or without a launcher.
	if (!parse(argc, argv, &options)) {
		fprintf(stderr, "usage: chore_counter --seconds S | --chores N "
				"[--barrier-every-us U], U >= %d\n", US_PER_CHORE);
		return 2;
	}
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	uint64_t *counts = calloc((size_t)ranks, sizeof(*counts));
	int64_t *migrations = calloc((size_t)ranks, sizeof(*migrations));
	if (!counts || !migrations) {
		fprintf(stderr, "chore_counter: out of memory\n");
		MPI_Abort(MPI_COMM_WORLD, 1);
	}

	int counter = open_migrations();
	MPI_Barrier(MPI_COMM_WORLD);
	double start = MPI_Wtime();
	uint64_t count = count_chores(&options, start);
	double seconds = MPI_Wtime() - start, slowest = 0;
	int64_t moved = read_migrations(counter);

	MPI_Gather(&count, 1, MPI_UINT64_T, counts, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
	MPI_Gather(&moved, 1, MPI_INT64_T, migrations, 1, MPI_INT64_T, 0, MPI_COMM_WORLD);
	MPI_Reduce(&seconds, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
	if (rank == 0)
		report(counts, migrations, ranks, slowest);
	free(migrations);
	free(counts);
	MPI_Finalize();
	return 0;
}
