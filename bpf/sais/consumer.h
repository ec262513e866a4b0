/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Learns which thread consumes a connection, and on which CPU. The kernel calls these programs when a
 * thread comes back from sending or receiving: only there the running thread is the consumer. The
 * paper's HintMessager asks when a request's packet is written; that may be in a softirq, which
 * interrupts any thread.
 */
#ifndef EVENKEEL_SAIS_CONSUMER_H
#define EVENKEEL_SAIS_CONSUMER_H

#include "waiting.h"

/* From the kernel's include/linux/socket.h. */
#define MSG_PEEK 2
#define MSG_ERRQUEUE 0x2000

static __always_inline struct sais_flow *make_flow(void *table, const struct sais_flow_key *key)
{
	struct sais_flow none = { .core = NO_CORE, .path = NO_CORE, .arrived = NO_CORE };

	bpf_map_update_elem(table, key, &none, BPF_NOEXIST);
	return bpf_map_lookup_elem(table, key);
}

/* In the table of connections that were made from here, or of those that were accepted. */
static __always_inline struct sais_flow *flow_of(struct sock *sk, const struct sais_flow_key *key,
						 bool *is_accepted)
{
	struct sais_flow *flow = bpf_map_lookup_elem(&flows, key);

	*is_accepted = false;
	if (flow)
		return flow;
	*is_accepted = bpf_sk_storage_get(&accepted, sk, 0, 0);
	if (!*is_accepted)
		return make_flow(&flows, key);
	flow = bpf_map_lookup_elem(&accepted_flows, key);
	return flow ? flow : make_flow(&accepted_flows, key);
}

/* One core after the other, the least loaded first: flows that ask at once do not crowd. */
static __always_inline void choose_least_loaded(struct sais_flow *flow)
{
	u32 ranked = live.ranked;

	if (flow->generation == live.generation || !ranked)
		return;
	flow->generation = live.generation;
	flow->core = live.ranking[__sync_fetch_and_add(&live.next, 1) % ranked & (MAX_CPUS - 1)];
}

/* Writes only a change: otherwise the other CPUs would have to fetch the cache line again. */
static __always_inline void note(u32 *place, u32 value)
{
	if (*place != value)
		*place = value;
}

/*
 * Notes the running thread. A number alone does not name a thread: when that has ended, a later thread
 * may get its number. The start of the process is read for a new consumer only: it lies in a cache line
 * that the leader's CPU writes at each of the leader's switches.
 */
static __always_inline void note_consumer(struct sais_flow *flow)
{
	struct task_struct *task = bpf_get_current_task_btf();
	u64 start_ns = task->start_boottime;
	u64 id = bpf_get_current_pid_tgid();
	u32 tgid = id >> 32;
	u32 tid = (u32)id;

	if (flow->tid == tid && flow->tgid == tgid && flow->start_boottime_ns == start_ns)
		return;
	flow->tid = tid;
	flow->tgid = tgid;
	flow->start_boottime_ns = start_ns;
	flow->process_start_boottime_ns = task->group_leader->start_boottime;
}

static __always_inline void choose(struct sais_flow *flow, bool is_request)
{
	bool is_first = flow->core == NO_CORE;

	switch (settings.policy) {
	case POLICY_ISSUER:
		/* A task that never sends counts as having asked where it first received. */
		if (is_request || is_first)
			note(&flow->core, bpf_get_smp_processor_id());
		break;
	case POLICY_RUNNER:
	case POLICY_AUTO:
		note(&flow->core, bpf_get_smp_processor_id());
		break;
	case POLICY_LEAST_LOADED:
		if (is_request || is_first)
			choose_least_loaded(flow);
		break;
	case POLICY_DEDICATED:
		note(&flow->core, settings.dedicated);
		break;
	}
}

static __always_inline u32 now_ms(void)
{
	return bpf_ktime_get_ns() / 1000000;
}

/* The paper's process "bundled on the core which requested data": product/sais/src/hold.rs. */
static __always_inline void note_request(struct sais_flow *flow)
{
	u32 tid = flow->tid;
	struct sais_reader *reader = bpf_map_lookup_elem(&readers, &tid);
	u64 start_ns = flow->start_boottime_ns;
	struct sais_reader none = { .start_boottime_ns = start_ns, .tgid = flow->tgid };

	if (!reader) {
		bpf_map_update_elem(&readers, &tid, &none, BPF_NOEXIST);
		reader = bpf_map_lookup_elem(&readers, &tid);
	}
	if (!reader)
		return;
	/* The thread has ended, and a later one has its number. */
	if (reader->start_boottime_ns > start_ns)
		return;
	/* An earlier thread had the number: its requests are not this thread's. */
	if (reader->start_boottime_ns < start_ns) {
		reader->outstanding = 0;
		reader->start_boottime_ns = start_ns;
	}
	note(&reader->tgid, flow->tgid);
	note(&reader->core, flow->core);
	if (flow->asker)
		return;
	/* Before begin_request(): from then on user space sees the request, and needs its time. */
	flow->asked_ms = now_ms();
	begin_request(&flow->asker, tid, &reader->outstanding);
}

static __always_inline void note_answer(struct sais_flow *flow)
{
	bool is_late = now_ms() - flow->asked_ms >= settings.hold_ms;
	u32 tid = end_wait(&flow->asker);
	struct sais_reader *reader;

	if (!tid)
		return;
	reader = bpf_map_lookup_elem(&readers, &tid);
	if (!reader)
		return;
	if (is_late)
		__sync_fetch_and_add(&reader->late, 1);
	subtract_one(&reader->outstanding);
}

static __always_inline void learn(struct sock *sk, bool is_request, int bytes)
{
	struct sais_flow_key key = {};
	struct sais_flow *flow;
	bool is_accepted;

	/* While nothing is steered, this is all that a call takes for most of the time. */
	if (settings.policy == POLICY_AUTO && !live.is_looking)
		return;
	if (!key_of(sk, &key))
		return;
	flow = flow_of(sk, &key, &is_accepted);
	if (!flow)
		return;
	/* Where one thread sends and another receives, the second is the consumer. */
	if (!is_request || !flow->has_reader) {
		note_consumer(flow);
		note(&flow->has_reader, !is_request);
		choose(flow, is_request);
	} else if (settings.policy != POLICY_RUNNER && settings.policy != POLICY_AUTO) {
		choose(flow, true);
	}
	/* Where packets are handed over, apply_rule() in compose.h notes it instead. */
	if (settings.policy == POLICY_AUTO && !is_request && flow->path == NO_CORE)
		note(&flow->arrived, sk->__sk_common.skc_incoming_cpu);
	if (settings.mode == MODE_HINT)
		issue(flow, &key);
	/* What a server sends is an answer: it waits for nothing, however long its connection stays open. */
	if (settings.hold_ms && !is_accepted) {
		if (is_request)
			note_request(flow);
		else
			note_answer(flow);
	}
	if (!is_request)
		__sync_fetch_and_add(&flow->received_bytes, bytes);
}

SEC("tp_btf/sock_send_length")
int BPF_PROG(on_send, struct sock *sk, int bytes)
{
	if (bytes > 0)
		learn(sk, true, bytes);
	return 0;
}

/*
 * A call that fails consumes nothing: a thread that only tries would take the connection from its
 * consumer. Data that is only looked at (MSG_PEEK) is still to be received, perhaps by another thread;
 * and what the error queue gives (MSG_ERRQUEUE) is a packet that was sent, with its time stamp.
 */
SEC("tp_btf/sock_recv_length")
int BPF_PROG(on_receive, struct sock *sk, int bytes, int flags)
{
	if (bytes > 0 && !(flags & (MSG_PEEK | MSG_ERRQUEUE)))
		learn(sk, false, bytes);
	return 0;
}

SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(on_state, struct sock *sk, int before, int after)
{
	struct sais_flow_key key = {};
	struct sais_flow *flow;

	/* A new socket of a connection that is accepted: the kernel copies it from the listening one. */
	if (before == TCP_LISTEN && after == TCP_SYN_RECV)
		bpf_sk_storage_get(&accepted, sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (after != TCP_CLOSE || !key_of(sk, &key))
		return 0;
	flow = settings.hold_ms ? bpf_map_lookup_elem(&flows, &key) : NULL;
	if (flow)
		note_answer(flow);
	bpf_map_delete_elem(&flows, &key);
	bpf_map_delete_elem(&accepted_flows, &key);
	return 0;
}

#endif
