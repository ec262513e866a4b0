// SPDX-License-Identifier: GPL-2.0-only
/*
 * What each interrupt line and each NAPI instance costs on which CPU. product/irq loads and attaches
 * this, and reads its sums; it changes nothing in the kernel.
 *
 * 1. Handlers. The time between irq_handler_entry and irq_handler_exit is the line's.
 *
 * 2. Softirqs. The time between softirq_entry and softirq_exit is the softirq's, without the handlers
 *    that interrupted it (stolen_ns). A softirq that was raised inside of one line's handlers, and
 *    nowhere else since it last ran, is caused by that line: its time is the line's, too. A softirq
 *    that two lines raised, or a task, or another softirq, is no line's (RAISED_BY_MANY).
 *
 * 3. NAPI. The only tracepoint of a poll is at its end. In NET_RX the polls follow each other, so the
 *    time since the softirq's begin or the last poll's end is this poll's. Polls are summed by
 *    instance and raiser (the line whose handlers raised the softirq): user space takes an instance's
 *    most frequent raiser for its line. Drivers that tell the line are believed first (napi->irq,
 *    since 6.8).
 *
 * 4. Threaded NAPI. Polls in an instance's own kernel thread are counted, but not timed: the kernel
 *    knows the run time of a thread exactly, and user space reads it.
 *
 * 5. Consumers. A socket knows the instance that brought its last packet. Of the calls that receive, one
 *    in LOOK_EACH is looked at: on which CPU, how many bytes. Loaded only where that is asked for.
 *
 * The state of a CPU is touched only by that CPU, with interrupts off or by an interrupt that returns
 * before the interrupted program goes on. Without PREEMPT_RT a softirq does not leave its CPU, which
 * user space checks.
 */
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/bpf_core_read.h>

typedef __u32 u32;
typedef __u64 u64;
#include "irq.h"

/* Not the number of a line: its softirq has no single cause. */
#define RAISED_BY_MANY (~0U)

/* The fields of the kernel's types that are read here; relocated at load time. */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
struct ns_common {
	unsigned int inum;
};

struct net {
	struct ns_common ns;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct net_device {
	char name[DEVICE_NAME_LEN];
	int ifindex;
	possible_net_t nd_net;
};

struct task_struct {
	int pid;
};

struct sock {
	unsigned int sk_napi_id;	/* with CONFIG_NET_RX_BUSY_POLL */
};

struct napi_struct {
	struct net_device *dev;
	unsigned int napi_id;
	struct task_struct *thread;
	int irq;		/* since 6.8 */
};

#pragma clang attribute pop

/* What a CPU is doing. */
struct cpu_state {
	u64 handler_since_ns;	/* 0: no handler runs */
	u64 softirq_since_ns;	/* begin of the open stretch; 0: no softirq runs */
	u64 stolen_ns;		/* by handlers, of that stretch */
	u32 line;		/* the line of the handler that runs */
	u32 raiser;		/* of the softirq that runs: line + 1, or RAISED_BY_MANY */
	u32 raised[SOFTIRQS];	/* the same of each softirq that is to run; 0: it is not raised */
};

/* One in so many calls that receive is looked at. */
#define LOOK_EACH 8
/* kernel: include/linux/socket.h */
#define MSG_PEEK 2
#define MSG_ERRQUEUE 0x2000

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct cpu_state);
} states SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct cpu_softirqs);
} softirqs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 1);		/* set at load, by the number of lines */
	__type(key, u32);
	__type(value, struct line_account);
} lines SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_PERCPU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct napi_key);
	__type(value, struct napi_account);
} napis SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, u64);
	__type(value, struct napi_info);
} infos SEC(".maps");

/* Bytes that were received, of the calls that were looked at. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct consumer_key);
	__type(value, u64);
} consumers SEC(".maps");

/* Calls that receive, on this CPU. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} receptions SEC(".maps");

static __always_inline struct cpu_state *this_cpu(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&states, &zero);
}

/* 0 if `now` is earlier: a clock may be adjusted back by some ns. */
static __always_inline u64 elapsed_ns(u64 then, u64 now)
{
	return now > then ? now - then : 0;
}

/*
 * A softirq's number as an index. Its bound is checked in 64 bits: the verifier of 6.1 does not carry a
 * bound of the lower 32 bits over, and takes the index for 15 where clang has masked it.
 */
static __always_inline u64 index_of(unsigned int number)
{
	u64 index = number;

	barrier_var(index);
	return index;
}

static __always_inline struct cpu_softirqs *this_cpus_sums(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&softirqs, &zero);
}

static __always_inline struct line_account *line_account(u32 line)
{
	struct line_account *account = bpf_map_lookup_elem(&lines, &line);
	static const struct line_account none;

	if (account)
		return account;
	bpf_map_update_elem(&lines, &line, &none, BPF_NOEXIST);
	return bpf_map_lookup_elem(&lines, &line);
}

SEC("raw_tp/irq_handler_entry")
int BPF_PROG(on_handler_entry, int line)
{
	struct cpu_state *c = this_cpu();

	if (!c)
		return 0;
	c->line = line;
	c->handler_since_ns = bpf_ktime_get_ns();
	return 0;
}

SEC("raw_tp/irq_handler_exit")
int BPF_PROG(on_handler_exit, int line)
{
	struct cpu_state *c = this_cpu();
	struct cpu_softirqs *sums = this_cpus_sums();
	struct line_account *account;
	u64 took;

	/* The programs were attached inside of the handler. */
	if (!c || !c->handler_since_ns)
		return 0;
	took = elapsed_ns(c->handler_since_ns, bpf_ktime_get_ns());
	c->handler_since_ns = 0;
	if (c->softirq_since_ns)
		c->stolen_ns += took;
	account = line_account(line);
	if (account) {
		account->handler_ns += took;
		account->handled++;
	}
	if (sums)
		sums->handler_ns += took;
	return 0;
}

SEC("raw_tp/softirq_raise")
int BPF_PROG(on_raise, unsigned int number)
{
	struct cpu_state *c = this_cpu();
	u64 index = index_of(number);
	u32 raiser, known;

	if (!c || index >= SOFTIRQS)
		return 0;
	raiser = c->handler_since_ns ? c->line + 1 : RAISED_BY_MANY;
	known = c->raised[index];
	c->raised[index] = !known || known == raiser ? raiser : RAISED_BY_MANY;
	return 0;
}

/* Ends the stretch of the softirq that runs, begins the next, and returns its length. */
static __always_inline u64 next_stretch(struct cpu_state *c)
{
	u64 now = bpf_ktime_get_ns();
	u64 took = elapsed_ns(c->softirq_since_ns + c->stolen_ns, now);

	c->softirq_since_ns = now;
	c->stolen_ns = 0;
	return took;
}

static __always_inline void count_softirq(u32 number, u64 took, u64 runs)
{
	struct cpu_softirqs *sums = this_cpus_sums();
	u64 index = index_of(number);

	if (!sums || index >= SOFTIRQS)
		return;
	sums->ns[index] += took;
	sums->runs[index] += runs;
}

SEC("raw_tp/softirq_entry")
int BPF_PROG(on_softirq_entry, unsigned int number)
{
	struct cpu_state *c = this_cpu();
	u64 index = index_of(number);

	if (!c || index >= SOFTIRQS)
		return 0;
	c->raiser = c->raised[index];
	c->raised[index] = 0;
	c->stolen_ns = 0;
	c->softirq_since_ns = bpf_ktime_get_ns();
	return 0;
}

static __always_inline bool is_line(u32 raiser)
{
	return raiser && raiser != RAISED_BY_MANY;
}

SEC("raw_tp/softirq_exit")
int BPF_PROG(on_softirq_exit, unsigned int number)
{
	struct cpu_state *c = this_cpu();
	struct line_account *account;
	u64 took;

	if (!c || !c->softirq_since_ns)
		return 0;
	took = next_stretch(c);
	c->softirq_since_ns = 0;
	count_softirq(number, took, 1);
	if (!is_line(c->raiser))
		return 0;
	account = line_account(c->raiser - 1);
	if (account)
		account->softirq_ns += took;
	return 0;
}

static __always_inline void note_info(u64 key, struct napi_struct *napi, u32 thread)
{
	struct napi_info *known = bpf_map_lookup_elem(&infos, &key);
	struct net_device *dev = BPF_CORE_READ(napi, dev);
	u64 napi_id = BPF_CORE_READ(napi, napi_id);
	struct napi_info info = {};
	int line;

	/* The address may have been another instance's, and a thread may come and go. */
	if (known && known->napi_id == napi_id && known->thread == thread)
		return;
	info.napi_id = napi_id;
	info.thread = thread;
	if (dev) {
		info.ifindex = BPF_CORE_READ(dev, ifindex);
		info.net_ns = BPF_CORE_READ(dev, nd_net.net, ns.inum);
		BPF_CORE_READ_INTO(&info.device, dev, name);
	}
	if (bpf_core_field_exists(napi->irq)) {
		line = BPF_CORE_READ(napi, irq);
		if (line > 0)
			info.line = line + 1;
	}
	bpf_map_update_elem(&infos, &key, &info, BPF_ANY);
}

SEC("raw_tp/napi_poll")
int BPF_PROG(on_poll, struct napi_struct *napi, int packets)
{
	struct task_struct *thread = BPF_CORE_READ(napi, thread);
	bool is_in_thread = thread && (u64)thread == bpf_get_current_task();
	struct napi_key key = { .napi = (u64)napi };
	struct cpu_state *c = this_cpu();
	static const struct napi_account none;
	struct napi_account *account;
	u64 took = 0;

	if (!c)
		return 0;
	if (c->softirq_since_ns) {
		took = next_stretch(c);
		count_softirq(NET_RX_SOFTIRQ, took, 0);
		key.raiser = is_line(c->raiser) ? c->raiser : 0;
		/* A thread that is interrupted by the softirq is not what polls. */
		is_in_thread = false;
	}
	note_info(key.napi, napi, is_in_thread ? BPF_CORE_READ(thread, pid) : 0);
	account = bpf_map_lookup_elem(&napis, &key);
	if (!account) {
		bpf_map_update_elem(&napis, &key, &none, BPF_NOEXIST);
		account = bpf_map_lookup_elem(&napis, &key);
	}
	if (!account)
		return 0;
	account->softirq_ns += took;
	account->polls++;
	account->packets += packets > 0 ? packets : 0;
	return 0;
}

/* Since 6.3. */
SEC("raw_tp/sock_recv_length")
int BPF_PROG(on_receive, struct sock *sk, int bytes, int flags)
{
	struct consumer_key key = { .cpu = bpf_get_smp_processor_id() };
	u32 zero = 0, *calls = bpf_map_lookup_elem(&receptions, &zero);
	u64 *sum, first = bytes;

	/* What is only looked at, or was sent and comes back with a time stamp, is not received. */
	if (bytes <= 0 || flags & (MSG_PEEK | MSG_ERRQUEUE) || !calls || (*calls)++ % LOOK_EACH)
		return 0;
	if (!bpf_core_field_exists(sk->sk_napi_id))
		return 0;
	key.napi_id = BPF_CORE_READ(sk, sk_napi_id);
	/* No instance brought it. (A CPU's number may also stand there: user space has no such instance.) */
	if (!key.napi_id)
		return 0;
	sum = bpf_map_lookup_elem(&consumers, &key);
	if (sum)
		__sync_fetch_and_add(sum, first);
	else
		bpf_map_update_elem(&consumers, &key, &first, BPF_NOEXIST);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
