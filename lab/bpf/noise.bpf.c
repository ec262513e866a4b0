// SPDX-License-Identifier: GPL-2.0-only
//
// Softirq noise: takes a CPU away as a busy network card does, at a chosen duty. A BPF timer
// fires each period on one CPU (its callback runs in softirq context) and spins there. The
// scheduler sees nothing of it, as it sees nothing of a NIC's softirqs: the asymmetry of paper 000.
//
// It cannot run away: the callback arms the timer again only before the limit, spins at most half
// a period whatever it was told, and the kernel cancels the timer when the last file descriptor of
// the map is closed, so also when the loader is killed.

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "noise.h"

#define CLOCK_MONOTONIC 1
#define TIMER_ABS 1 /* BPF_F_TIMER_ABS, since 6.4 */
#define ERANGE 34
#define ENOENT 2

struct noise {
	struct bpf_timer timer;
	__u64 busy_ns;
	__u64 period_ns;
	__u64 start_ns;
	__u64 end_ns;
	__u64 next_ns; /* when the timer is due: kept on a grid, so that the period holds */
	__u64 flags;
	__u64 cpu;
	__u64 spun_ns;
	__u64 fired;
	__u64 strayed;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct noise);
} state SEC(".maps");

/* Enough steps for the longest spin at 1 ns a step; each reads the clock, so far fewer are made. */
#define MAX_STEPS (1 << 23)

static long spin_step(__u32 step, __u64 *until_ns)
{
	return bpf_ktime_get_ns() >= *until_ns;
}

static int arm_next(struct noise *noise, __u64 now)
{
	__u64 when = noise->next_ns;

	if (!(noise->flags & TIMER_ABS))
		when = when > now ? when - now : 0;
	return bpf_timer_start(&noise->timer, when, noise->flags);
}

static int fire(void *map, __u32 *key, struct noise *noise)
{
	__u64 start = bpf_ktime_get_ns(), until = start + noise->busy_ns;

	if (start >= noise->end_ns)
		return 0;
	if (bpf_get_smp_processor_id() == noise->cpu) {
		bpf_loop(MAX_STEPS, spin_step, &until, 0);
		noise->spun_ns += bpf_ktime_get_ns() - start;
		noise->fired++;
	} else {
		noise->strayed++;
	}

	/* Periods that were missed (the CPU was away itself) are dropped, not made up for. */
	__u64 now = bpf_ktime_get_ns();

	noise->next_ns += noise->period_ns;
	if (noise->next_ns < now)
		noise->next_ns = now + noise->period_ns - noise->busy_ns;
	arm_next(noise, now);
	return 0;
}

/* Run on the CPU that is to be disturbed: the timer stays where it was armed. */
SEC("syscall")
int arm(struct noise_arm *request)
{
	__u32 zero = 0;
	struct noise *noise = bpf_map_lookup_elem(&state, &zero);
	int error;

	if (!noise)
		return -ENOENT;
	if (request->busy_ns == 0 || request->busy_ns > request->period_ns / 2)
		return -ERANGE;
	error = bpf_timer_init(&noise->timer, &state, CLOCK_MONOTONIC);
	if (error)
		return error;
	error = bpf_timer_set_callback(&noise->timer, fire);
	if (error)
		return error;

	noise->busy_ns = request->busy_ns;
	noise->period_ns = request->period_ns;
	noise->flags = request->timer_flags;
	noise->cpu = bpf_get_smp_processor_id();
	noise->start_ns = bpf_ktime_get_ns();
	noise->end_ns = noise->start_ns + request->limit_ns;
	noise->next_ns = noise->start_ns + noise->period_ns;
	return arm_next(noise, noise->start_ns);
}

/* Waits for a callback that is running, so the figures are final. */
SEC("syscall")
int disarm(struct noise_done *done)
{
	__u32 zero = 0;
	struct noise *noise = bpf_map_lookup_elem(&state, &zero);
	int was_armed;

	if (!noise)
		return -ENOENT;
	was_armed = bpf_timer_cancel(&noise->timer);
	if (was_armed < 0)
		return was_armed;

	__u64 now = bpf_ktime_get_ns();

	done->wall_ns = (now < noise->end_ns ? now : noise->end_ns) - noise->start_ns;
	done->busy_ns = noise->spun_ns;
	done->fired = noise->fired;
	done->strayed = noise->strayed;
	return 0;
}

/* bpf_timer is for GPL-compatible programs only. */
char LICENSE[] SEC("license") = "GPL";
