/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Lets the threads of a running program run one after the other, and at the same time on CPUs that share
 * a cache: siblings PID. With `cc -I include include/examples/siblings.c -o siblings`.
 */
#include <evenkeel.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
	int error;

	if (argc != 2) {
		fprintf(stderr, "usage: siblings PID\n");
		return 2;
	}
	/* 3 times what ran last on the CPU, without a limit. */
	error = set_ias_agg(atoi(argv[1]), 1, 1, 3, 0);
	if (error == -ENOENT || error == -ECONNREFUSED)
		fprintf(stderr, "the keel does not run; start it with: evenkeel sched --order ias\n");
	else if (error)
		fprintf(stderr, "process %s: %s\n", argv[1], strerror(-error));
	return error ? 1 : 0;
}
