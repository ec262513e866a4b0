// SPDX-License-Identifier: GPL-2.0-only
/*
 * Reports a fault of the running sched_ext scheduler, as the kernel itself and any BPF program may do.
 * For tests of what happens then: lab/witness/src/fault.rs runs it.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

void scx_bpf_error_bstr(char *fmt, unsigned long long *data, __u32 data__sz) __ksym;

SEC("syscall")
int report_fault(void *unused)
{
	static char text[] = "a fault made for a test";
	unsigned long long none[1] = {};

	scx_bpf_error_bstr(text, none, 0);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
