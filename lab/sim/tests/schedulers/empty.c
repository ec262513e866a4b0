// SPDX-License-Identifier: GPL-2.0-only
/* A scheduler that leaves everything to the kernel. */
#include <kernel.h>

struct sched_ext_ops empty_ops = {
	.name = "empty",
};
