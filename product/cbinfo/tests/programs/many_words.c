/*
 * Wakes all waiters at 5000 words of memory in turn, over and over, as no program with barriers does.
 * Starts when it gets a line on its standard input, and goes on until that ends.
 */
#define _GNU_SOURCE
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

static int words[5000];

int main(void)
{
	struct pollfd input = { .fd = 0, .events = POLLIN };
	char line[2];

	printf("ready\n");
	fflush(stdout);
	if (read(0, line, sizeof(line)) <= 0)
		return 1;
	do {
		for (int i = 0; i < 5000; i++)
			syscall(SYS_futex, &words[i], FUTEX_WAKE, INT_MAX);
		printf("done\n");
		fflush(stdout);
	} while (!poll(&input, 1, 0));
	return 0;
}
