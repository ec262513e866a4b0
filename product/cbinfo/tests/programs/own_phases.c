/*
 * Works, and waits in own_wait of own_runtime.c, in turns, 3 to 1. Prints "ready", waits for a line,
 * runs for two seconds and prints "thread TID RUN_NS WAITED_NS" and "done". The phases differ in length,
 * as those of real programs do: a sampler would meet phases of one length always at the same moments.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

long own_clock(void);
void own_wait(long end_ns);

static volatile long sink;

int main(void)
{
	long start, before, waited = 0;
	unsigned random = 1;

	puts("ready");
	fflush(stdout);
	if (getchar() == EOF)
		return 1;
	start = own_clock();
	while (own_clock() < start + 2000000000L) {
		long part = 100000 + (random = random * 1103515245u + 12345) / 65536 % 200000;
		long end = own_clock() + 3 * part;

		while (own_clock() < end)
			for (int i = 0; i < 200000; i++)
				sink += i;
		before = own_clock();
		own_wait(before + part);
		waited += own_clock() - before;
	}
	printf("thread %ld %ld %ld\n", syscall(SYS_gettid), own_clock() - start, waited);
	puts("done");
	fflush(stdout);
	while (getchar() != EOF)
		;
	return 0;
}
