/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the SAIs programs and product/sais say to each other. Records consist of fields of
 * one size or are padded by hand, so that C and Rust agree without packing rules.
 */
#ifndef EVENKEEL_SAIS_INTF_H
#define EVENKEEL_SAIS_INTF_H

/* From and to network order. */
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define BE16(x) ((u16)__builtin_bswap16(x))
#define BE32(x) ((u32)__builtin_bswap32(x))
#else
#define BE16(x) ((u16)(x))
#define BE32(x) ((u32)(x))
#endif

/* An IPv4 address as an IPv6 address (RFC 4291, 2.5.5.2): 0:0:ffff:a.b.c.d. */
#define MAPPED BE32(0xffff)
/* The most CPUs; a power of two, so that a mask bounds an index. */
#define MAX_CPUS 1024
/* Connections made from here that are remembered; beyond that the least recently used is forgotten. */
#define MAX_FLOWS 131072
/* The same of accepted ones, which have a table of their own: remote hosts decide how many there are. */
#define MAX_ACCEPTED 32768
/* Threads that wait for data and are written down. */
#define MAX_READERS 4096
/* Networks that hints may be exchanged with. */
#define MAX_PEERS 64
/* In the place of a core: none, the packet goes up where it arrived. */
#define NO_CORE 0xffffffffU

/* On which core a packet's softirq is to run (paper 001, section IV). */
enum core_policy {
	POLICY_ISSUER,		/* (i) where the last request was sent */
	POLICY_RUNNER,		/* (ii) where the consumer runs now */
	POLICY_LEAST_LOADED,	/* (iii) the least loaded when the request was sent */
	POLICY_DEDICATED,	/* (iv) always the same */
	POLICY_AUTO,		/* (ii), where it saves more than it costs */
};

/* From where it is known which core waits for a packet. */
enum sais_mode {
	MODE_FLOW,		/* this machine's sockets */
	MODE_HINT,		/* the packet, which the server gave the hint back that it was sent */
};

/* How the server gives hints back. */
enum sais_wire {
	WIRE_TCP,		/* in a TCP option, with a tag */
	WIRE_PAPER,		/* in a byte of IPv4 options, as the paper has it */
};

/* Fixed at load: what is not chosen is pruned by the verifier. */
struct sais_settings {
	u64 hint_key[2];	/* secret, and another one at each load */
	u64 netns_cookie;	/* the network namespace of the device */
	u32 policy;		/* enum core_policy */
	u32 dedicated;		/* the core of POLICY_DEDICATED */
	u32 mode;		/* enum sais_mode */
	u32 wire;		/* enum sais_wire */
	u32 paper_segment;	/* the most data in a packet that still has room for the paper's byte */
	u32 hold_ms;		/* how long a thread is held without an answer; 0: none is recorded */
};

/* The same of the server's part. */
struct sais_serve_settings {
	u32 wire;		/* enum sais_wire */
};

/* An address, or those that begin with the same bits; IPv4 mapped into IPv6, in network order. */
struct sais_peer {
	u32 prefix_bits;
	u32 address[4];
};

/* What becomes of packets that a core is wanted for. */
enum core_rule {
	RULE_REFUSED,		/* it may not be used */
	RULE_ALLOWED,		/* they are sent there */
	RULE_JUDGED,		/* of POLICY_AUTO: they are, where that saves more than it costs */
	RULE_SATURATED,		/* of POLICY_AUTO: they are not, for it has no time */
};

/* Written by user space while the programs run. */
struct sais_live {
	u8 rules[MAX_CPUS];		/* enum core_rule of each core */
	u32 ranking[MAX_CPUS];		/* those, the least loaded first */
	u32 ranked;			/* how many they are */
	u32 generation;			/* of the ranking; never 0 */
	u32 next;			/* how many flows were given a core of it; the programs count */
	u32 cpumap_id;			/* the kernel's number of the map `threads` */
	/* Of POLICY_AUTO: */
	u16 domain[MAX_CPUS];	/* the last-level cache of each core */
	u32 worth_within;	/* 1: handing over pays between cores that share one */
	u32 worth_across;	/* 1: handing over pays between cores that do not */
	u32 is_looking;		/* 0: receivers are not sampled at the moment */
	u32 pad;
};

/* A connection as its incoming packets show it, all in network order; IPv4 mapped into IPv6. */
struct sais_flow_key {
	u32 remote[4];
	u32 local[4];
	union {
		struct {
			u16 remote_port;
			u16 local_port;
		};
		u32 ports;	/* both, as a packet has them */
	};
};

/* Bytes before a value in an element of the kernel's hash: struct htab_elem, and the key in words. */
#define FLOW_HEAD_BYTES (48 + 40)
#define CACHE_LINE_BYTES 64

/*
 * What is known of it. Written where its consumer runs, but for `path`, `arrived` and `echoed`.
 *
 * `steer` reads the first part for each packet, and the consumer writes the second at each call. They
 * lie in two cache lines, and elements begin with a line: `steer` fetches none that a consumer on
 * another CPU has just written.
 */
struct sais_flow {
	/* In the line of the key's end: */
	u32 core;		/* the policy's choice; NO_CORE: not made yet */
	u32 path;		/* where its packets go now: a core, or NO_CORE; written by `steer` */
	u32 tid;		/* its consumer: the last receiver, or until then the sender */
	u32 tgid;
	u32 has_reader;		/* 1: the consumer has received */
	u32 arrived;		/* of POLICY_AUTO: where its packets arrive; NO_CORE: not known yet */
	u64 hint;		/* the newest that was issued (struct sais_hint); 0: none */
	u64 echoed;		/* the newest that came back; 0: none has; written by `steer` */
	/* In a line of their own: */
	u64 received_bytes;	/* by consumers */
	u64 start_boottime_ns;	/* of `tid`: tells it from a later thread with its number */
	u64 process_start_boottime_ns;	/* of `tgid` */
	u32 asker;		/* the task that waits for the answer to a request; 0: none */
	u32 asked_ms;		/* when it was sent, on the monotonic clock */
	u32 generation;		/* of the ranking that `core` was taken from */
	u32 pad[7];
};

_Static_assert((FLOW_HEAD_BYTES + __builtin_offsetof(struct sais_flow, received_bytes)) %
	       CACHE_LINE_BYTES == 0, "the consumer's part begins a cache line");
_Static_assert((FLOW_HEAD_BYTES + sizeof(struct sais_flow)) % CACHE_LINE_BYTES == 0,
	       "each element begins a cache line");

/* What a thread waits for. */
struct sais_reader {
	u64 start_boottime_ns;	/* of the thread: tells it from a later one with its number */
	u32 tgid;
	u32 core;		/* where its last request was sent, as the policy has it */
	u32 late;		/* how many were answered only after `hold_ms` */
	u32 outstanding;	/* connections on which nothing has come since a request */
};

/* What is counted, each by the CPU that does it. product/sais names them in this order. */
enum sais_counter {
	/* Every packet that arrived at the device is one of these, on the CPU where it arrived: */
	COUNT_STEERED,		/* sent to its consumer's core */
	COUNT_HOME,		/* arrived there by itself */
	COUNT_KEPT,		/* went where those before it went, which had not all arrived */
	COUNT_REFUSED,		/* its consumer is on a core that may not be used */
	COUNT_UNKNOWN,		/* no task here is known to wait for it */
	COUNT_OTHER,		/* not TCP over IP, or a fragment */
	COUNT_MALFORMED,	/* its headers contradict themselves or end too early */
	COUNT_DISTRUSTED,	/* without the hint that its connection should bear, or with another */
	COUNT_LEFT,		/* left where it arrived: handing it over costs more than it saves */
	COUNT_PACKETS,
	/* And apart from them: */
	COUNT_MOVED = COUNT_PACKETS,	/* flows that changed their core */
	COUNT_DROPPED,		/* sent to a core with a full queue */
	COUNT_PROCESSED,	/* taken from its queue by the core that it was sent to */
	/* Of packets with a known consumer, one of these in hint mode: */
	COUNT_HINT_ECHOED,	/* the hint that was issued last; without a table: one with a right tag */
	COUNT_HINT_ABSENT,	/* none */
	COUNT_HINT_STALE,	/* one that was issued before it, and under way meanwhile */
	COUNT_HINT_REPLAYED,	/* one after which newer ones had come back already */
	COUNT_HINT_FORGED,	/* one that was never issued for this connection */
	COUNT_HINT_MALFORMED,	/* one of another length, or options that contradict themselves */
	COUNT_HINTS_SENT,	/* packets that left with a hint */
	COUNT_FOLLOWED,		/* kept or distrusted, and handed to the core of those before it */
	COUNTERS,
};

/* A CPU's counters; written only by itself, in cache lines of its own. */
struct sais_cpu {
	u64 counters[COUNTERS];
	u64 pad[4];
};

/* What a server counts. product/sais names them in this order. */
enum sais_served_counter {
	SERVED_CONNECTIONS,	/* accepted from peers */
	SERVED_HEARD,		/* packets that came with a hint */
	SERVED_MALFORMED,	/* packets that came with one of another length */
	SERVED_ECHOED,		/* packets that left with a hint */
	SERVED_NO_ROOM,		/* packets that left without: core or packet do not fit the paper's format */
	SERVED_COUNTERS,
};

struct sais_served {
	u64 counters[SERVED_COUNTERS];
};

#endif
