// SPDX-License-Identifier: GPL-2.0-only
/*
 * Reports a fault of the sched_ext scheduler that runs, as the kernel itself does and as any BPF
 * program may: for tests of what happens then.
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
