// SPDX-License-Identifier: GPL-2.0-only
/* A scheduler without callbacks: the kernel decides everything. */
#include <kernel.h>

struct sched_ext_ops empty_ops = {
	.name = "empty",
};
