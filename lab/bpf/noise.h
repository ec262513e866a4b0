/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the softirq noise generator (noise.bpf.c) and its loader (lab/noise/src/softirq.rs)
 * say to each other: the context of the two syscall programs. All times are CLOCK_MONOTONIC.
 */
#ifndef EVENKEEL_NOISE_H
#define EVENKEEL_NOISE_H

#include <linux/types.h>

/* In: what to do. The program returns 0, or a negative errno of the step that failed. */
struct noise_arm {
	__u64 busy_ns; /* to spin in each period */
	__u64 period_ns;
	__u64 limit_ns; /* after this time the timer is not armed again */
	__u64 timer_flags; /* of bpf_timer_start: older kernels know fewer */
};

/* Out: what was done, as of the moment of the stop. Returns 0 or a negative errno. */
struct noise_done {
	__u64 busy_ns; /* spun, by the generator's own clock readings */
	__u64 wall_ns; /* from arming to the stop, or to the limit if that came first */
	__u64 fired; /* callbacks on the right CPU */
	__u64 strayed; /* callbacks on a wrong CPU: nothing was spun there */
};

#endif
