/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The layouts that irq.bpf.c and product/irq (layout.rs) share. Times named _ns are ns of
 * CLOCK_MONOTONIC or sums of them; all sums begin when the programs are attached.
 */
#ifndef EVENKEEL_IRQ_H
#define EVENKEEL_IRQ_H

/* kernel: include/linux/interrupt.h, NR_SOFTIRQS */
#define SOFTIRQS 10
#define NET_RX_SOFTIRQ 3
#define DEVICE_NAME_LEN 16	/* kernel: include/uapi/linux/if.h, IFNAMSIZ */

/* One interrupt line on one CPU. */
struct line_account {
	u64 handler_ns;
	u64 handled;		/* calls of its handlers */
	u64 softirq_ns;		/* softirqs that only this line had raised, without NAPI polls */
};

/* A NAPI instance, and the line that had raised the softirq in which it was polled. */
struct napi_key {
	u64 napi;		/* the kernel's address of the instance: no other has it now */
	u32 raiser;		/* line + 1; 0: no line, or not one alone (RAISED_BY_MANY) */
	u32 pad;
};

/* One such pair on one CPU. */
struct napi_account {
	u64 softirq_ns;		/* in softirqs; a kernel thread's time is counted by the kernel */
	u64 polls;
	u64 packets;
};

/* What is known of a NAPI instance. */
struct napi_info {
	u64 napi_id;		/* 0: it has none */
	u64 net_ns;		/* inode of its network namespace; 0: no device */
	u32 ifindex;		/* 0: no device */
	u32 thread;		/* its kernel thread; 0: none */
	u32 line;		/* line + 1, where the driver tells; 0: unknown */
	u32 pad;
	char device[DEVICE_NAME_LEN];
};

/* A CPU's softirqs by their number, whatever raised them. */
struct cpu_softirqs {
	u64 ns[SOFTIRQS];
	u64 runs[SOFTIRQS];
	u64 handler_ns;		/* the handlers of all lines */
};

/* A NAPI instance, and a CPU on which a thread received what it had brought. */
struct consumer_key {
	u32 napi_id;
	u32 cpu;
};

#endif
