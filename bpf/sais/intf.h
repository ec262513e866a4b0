/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the SAIs programs and crates/sais say to each other. Records consist of fields of
 * one size or are padded by hand, so that C and Rust agree without packing rules.
 */
#ifndef EVENKEEL_SAIS_INTF_H
#define EVENKEEL_SAIS_INTF_H

/* The most CPUs; a power of two, so that a mask bounds an index. */
#define MAX_CPUS 1024
/* Connections that are remembered; beyond that the least recently used is forgotten. */
#define MAX_FLOWS 131072
/* In the place of a core: none, the packet goes up where it arrived. */
#define NO_CORE 0xffffffffU

/* On which core a packet's softirq is to run (paper 001, section IV). */
enum core_policy {
	POLICY_ISSUER,		/* (i) where the last request was sent */
	POLICY_RUNNER,		/* (ii) where the consumer runs now */
	POLICY_LEAST_LOADED,	/* (iii) the least loaded when the request was sent */
	POLICY_DEDICATED,	/* (iv) always the same */
};

/* Fixed at load: what is not chosen is pruned by the verifier. */
struct sais_settings {
	u64 netns_cookie;	/* the network namespace of the device */
	u32 policy;		/* enum core_policy */
	u32 dedicated;		/* the core of POLICY_DEDICATED */
};

/* Written by user space while the programs run. */
struct sais_live {
	u64 allowed[MAX_CPUS / 64];	/* the cores that packets may be sent to, as a bit mask */
	u32 ranking[MAX_CPUS];		/* those, the least loaded first */
	u32 ranked;			/* how many they are */
	u32 generation;			/* of the ranking; never 0 */
	u32 next;			/* how many flows were given a core of it; the programs count */
	u32 cpumap_id;			/* the kernel's number of the map `threads` */
};

/* A connection as its incoming packets show it, all in network order; IPv4 mapped into IPv6. */
struct sais_flow_key {
	u32 remote[4];
	u32 local[4];
	u16 remote_port;
	u16 local_port;
};

/* What is known of it. Written where its consumer runs, but for `path`. */
struct sais_flow {
	u32 core;		/* the policy's choice; NO_CORE: not made yet */
	u32 path;		/* where its packets go now: a core, or NO_CORE; written by `steer` */
	u32 tid;		/* its consumer: who received last, or until then who sent */
	u32 tgid;
	u32 has_reader;		/* 1: the consumer has received */
	u32 generation;		/* of the ranking that `core` was taken from */
	u32 pad[10];		/* `steer` reads a cache line that changes only when something changes */
	u64 received_bytes;	/* by consumers */
};

/* What is counted, each by the CPU that does it. crates/sais names them in this order. */
enum sais_counter {
	/* Every packet that arrived at the device is one of these, on the CPU where it arrived: */
	COUNT_STEERED,		/* sent to its consumer's core */
	COUNT_HOME,		/* arrived there by itself */
	COUNT_KEPT,		/* went where those before it went, which had not all arrived */
	COUNT_REFUSED,		/* its consumer is on a core that may not be used */
	COUNT_UNKNOWN,		/* nobody here is known to wait for it */
	COUNT_OTHER,		/* not TCP over IP, or a fragment */
	COUNT_MALFORMED,	/* its headers contradict themselves or end too early */
	COUNT_PACKETS,
	/* And apart from them: */
	COUNT_MOVED = COUNT_PACKETS,	/* flows that changed their core */
	COUNT_DROPPED,		/* sent to a core whose queue was full */
	COUNT_PROCESSED,	/* taken from its queue by the core that it was sent to */
	COUNTERS,
};

/* A CPU's counters; written only by itself. */
struct sais_cpu {
	u64 counters[COUNTERS];
};

#endif
