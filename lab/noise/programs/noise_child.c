// SPDX-License-Identifier: GPL-2.0-only
//
// The CFS hog of `evenkeel-lab noise hog`: an endless ordinary program on one CPU, in a session
// of its own. With sched_autogroup a session is a scheduling group, so it competes like another
// user's program, as an equal of everything else that the caller runs.
//
//   noise_child CPU LIMIT_MS
//
// It says "ready" when it spins. It ends at the limit, when its standard input is closed (the
// caller stops it, or died), or when the thread that started it dies; and then says what it got:
// "wall_ns=... busy_ns=...".

#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

// How long to spin between two looks at the clock and at standard input.
#define LOOK_EVERY_NS 1000000ull

static uint64_t now_ns(clockid_t clock)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	return (uint64_t)ts.tv_sec * 1000000000ull + (uint64_t)ts.tv_nsec;
}

static int fail(const char *what)
{
	fprintf(stderr, "noise_child: %s: %s\n", what, strerror(errno));
	return 1;
}

// No process writes to standard input: readable means closed.
static int caller_is_gone(void)
{
	struct pollfd input = { .fd = STDIN_FILENO, .events = POLLIN };

	return poll(&input, 1, 0) > 0;
}

int main(int argc, char **argv)
{
	if (argc != 3) {
		fprintf(stderr, "usage: noise_child CPU LIMIT_MS\n");
		return 2;
	}
	int cpu = atoi(argv[1]);
	uint64_t limit_ns = strtoull(argv[2], NULL, 10) * 1000000ull;

	prctl(PR_SET_NAME, "evenkeel-hog");
	if (prctl(PR_SET_PDEATHSIG, SIGKILL))
		return fail("cannot ask to die with the caller");
	// Fails only for a process group leader, which a fresh child is not.
	if (setsid() < 0)
		return fail("cannot start a session");

	// An ordinary program, whatever the caller is. Less nice than the caller needs privilege:
	// without it the hog stays as nice as the caller, which is the fair competition too.
	struct sched_param plain = { 0 };
	if (sched_setscheduler(0, SCHED_OTHER, &plain))
		return fail("cannot become an ordinary task");
	setpriority(PRIO_PROCESS, 0, 0);

	cpu_set_t *mask = CPU_ALLOC((size_t)cpu + 1);
	size_t size = CPU_ALLOC_SIZE((size_t)cpu + 1);
	if (!mask)
		return fail("no memory for a CPU mask");
	CPU_ZERO_S(size, mask);
	CPU_SET_S((size_t)cpu, size, mask);
	if (sched_setaffinity(0, size, mask))
		return fail("cannot pin itself to the CPU");

	// If it ever should hang in here, the kernel ends it.
	alarm((unsigned)(limit_ns / 1000000000ull) + 2);

	puts("ready");
	fflush(stdout);
	uint64_t start = now_ns(CLOCK_MONOTONIC), now = start, busy = now_ns(CLOCK_PROCESS_CPUTIME_ID);
	while (now - start < limit_ns && !caller_is_gone()) {
		uint64_t look = now + LOOK_EVERY_NS;

		while ((now = now_ns(CLOCK_MONOTONIC)) < look)
			;
	}
	busy = now_ns(CLOCK_PROCESS_CPUTIME_ID) - busy;
	printf("wall_ns=%llu busy_ns=%llu\n", (unsigned long long)(now - start),
	       (unsigned long long)busy);
	return 0;
}
