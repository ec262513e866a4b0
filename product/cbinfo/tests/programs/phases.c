/*
 * Threads that work, the second one more than the first, and meet at a barrier after each
 * phase. It measures by its own clock what its threads wait there. Waits for a line on its
 * standard input before it starts. Then prints, for each thread, "thread TID RUN_NS WAITED_NS",
 * and "barriers COUNT"; and waits for the end of its input.
 *
 * phases REGIONS BARRIERS RUN_MS [fork]: so many parallel regions, each with so many barriers
 * besides the one at its end; RUN_MS instead: until a thread has run for so long, in regions of
 * BARRIERS barriers. With `fork`, a child process does it all.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define THREADS 2

static long run_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return now.tv_sec * 1000000000L + now.tv_nsec;
}

static volatile long sink;

static void work(long ns)
{
	long end = run_ns() + ns;

	while (run_ns() < end)
		for (int i = 0; i < 2000; i++)
			sink += i;
}

static long ran[THREADS], waited[THREADS], tid[THREADS], barriers;

static void region(long phases, int me)
{
	long start = run_ns(), before, more;

	tid[me] = syscall(SYS_gettid);
	for (long phase = 0; phase < phases; phase++) {
		/* In step with the samples, phases of one length would be found in one place. */
		more = phase % 13 * 20000;
		work(me ? 1000000 + more : 500000 + more / 2);
		before = run_ns();
#pragma omp barrier
		waited[me] += run_ns() - before;
		if (!me)
			barriers++;
	}
	ran[me] += run_ns() - start;
}

/* The name that phases_late.c looks up. */
int phases(int argc, char **argv)
{
	long regions, phases, enough;

	if (argc < 4)
		return 2;
	regions = atol(argv[1]);
	phases = atol(argv[2]);
	enough = atol(argv[3]) * 1000000;
	puts("ready");
	fflush(stdout);
	if (getchar() == EOF)
		return 1;
	if (argc > 4 && !strcmp(argv[4], "fork") && fork()) {
		wait(NULL);
		return 0;
	}
	for (long i = 0; i < regions || (ran[0] < enough && ran[1] < enough); i++) {
#pragma omp parallel num_threads(THREADS)
		{
			extern int omp_get_thread_num(void);
			region(phases, omp_get_thread_num());
		}
		/* The end of a region is a barrier, too. */
		barriers++;
	}
	for (int i = 0; i < THREADS; i++)
		printf("thread %ld %ld %ld\n", tid[i], ran[i], waited[i]);
	printf("barriers %ld\n", barriers);
	puts("done");
	fflush(stdout);
	while (getchar() != EOF)
		;
	return 0;
}

#ifndef LATE
int main(int argc, char **argv)
{
	return phases(argc, argv);
}
#endif
