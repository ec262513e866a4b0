// SPDX-License-Identifier: GPL-2.0-only
//
// How long the calls of one BPF program take: this one runs before and after it. Used on the
// callbacks of schedulers, which run with interrupts off, so that nothing comes between. Where an
// emulator executes CPUs in turn, another one may: such calls take far longer than any
// callback, and are counted apart.

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "callback.h"

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct callback);
} calls SEC(".maps");

static __always_inline struct callback *own_calls(void)
{
	__u32 key = 0;

	return bpf_map_lookup_elem(&calls, &key);
}

SEC("fentry")
int before(void *context)
{
	struct callback *c = own_calls();

	if (c)
		c->begun_ns = bpf_ktime_get_ns();
	return 0;
}

SEC("fexit")
int after(void *context)
{
	__u64 now = bpf_ktime_get_ns(), length, steps;
	struct callback *c = own_calls();

	/* It was already running when we came. */
	if (!c || !c->begun_ns)
		return 0;
	length = now - c->begun_ns;
	if (length < LONGEST_CALL_NS) {
		c->calls++;
		c->total_ns += length;
		steps = length / LENGTH_STEP_NS;
		/* The verifier does not follow divisions. */
		barrier_var(steps);
		if (steps < LENGTHS)
			c->by_length[steps]++;
	} else {
		c->interrupted++;
	}
	return 0;
}

/* For measuring what measuring takes. */
SEC("syscall")
int nothing(void *context)
{
	return 0;
}

char _license[] SEC("license") = "GPL";
