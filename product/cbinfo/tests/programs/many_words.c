/*
 * Wakes all waiters at 5000 words of memory in turn, as no program with barriers does: once for each
 * line on its standard input.
 */
#define _GNU_SOURCE
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

static int words[5000];

int main(void)
{
	char line;

	printf("ready\n");
	fflush(stdout);
	while (read(0, &line, 1) > 0) {
		for (int i = 0; i < 5000; i++)
			syscall(SYS_futex, &words[i], FUTEX_WAKE, INT_MAX);
		printf("done\n");
		fflush(stdout);
	}
	return 0;
}
