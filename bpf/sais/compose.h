/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * IMComposer (paper 001, section IV): directs a packet to the core of its consumer.
 * The interrupt itself cannot be moved any more when the packet can be read, but nearly all
 * that it costs is the softirq, which a kernel thread on that core does in its place.
 */
#ifndef EVENKEEL_SAIS_COMPOSE_H
#define EVENKEEL_SAIS_COMPOSE_H

/* Where the policy wants the flow's packets now. */
static __always_inline u32 wanted_core(const struct sais_flow *flow)
{
	u32 core = flow->core;
	struct task_struct *consumer;

	if (settings.policy != POLICY_RUNNER && settings.policy != POLICY_AUTO)
		return core;
	/* The consumer may have moved since it received last; when it has ended, its CPU is not known. */
	consumer = bpf_task_from_pid(flow->tid);
	if (consumer) {
		core = consumer->thread_info.cpu;
		bpf_task_release(consumer);
	}
	return core;
}

/*
 * Whether all that the sender sent before this packet has arrived at the socket: then no packet of
 * the flow is on its way through the old core, so this one may take another core and overtakes
 * none. Flowlet switching waits for a pause between two bursts instead, which makes that likely.
 * The socket knows it exactly.
 */
static __always_inline bool all_before_arrived(struct xdp_md *ctx)
{
	const u8 *data = (const void *)(long)ctx->data, *end = (const void *)(long)ctx->data_end;
	struct bpf_sock_tuple tuple = {};
	bool has_arrived = false;
	u32 bytes = sizeof(tuple.ipv6);
	struct sais_packet packet;
	struct sais_flow_key key;
	struct tcp_sock *tcp;
	struct bpf_sock *sk;

	if (parse(data, end, false, &key, &packet) != PARSED)
		return false;
	if (!key.remote[0] && !key.remote[1] && key.remote[2] == MAPPED) {
		tuple.ipv4.saddr = key.remote[3];
		tuple.ipv4.daddr = key.local[3];
		tuple.ipv4.sport = key.remote_port;
		tuple.ipv4.dport = key.local_port;
		bytes = sizeof(tuple.ipv4);
	} else {
		__builtin_memcpy(tuple.ipv6.saddr, key.remote, sizeof(key.remote));
		__builtin_memcpy(tuple.ipv6.daddr, key.local, sizeof(key.local));
		tuple.ipv6.sport = key.remote_port;
		tuple.ipv6.dport = key.local_port;
	}
	sk = bpf_skc_lookup_tcp(ctx, &tuple, bytes, BPF_F_CURRENT_NETNS, 0);
	if (!sk)
		return false;
	tcp = bpf_skc_to_tcp_sock(sk);
	if (tcp)
		has_arrived = BE32(packet.sequence) == tcp->rcv_nxt;
	bpf_sk_release(sk);
	return has_arrived;
}

/*
 * Takes the paper's option off the packet of a peer, and says which core it names; NO_CORE: there is
 * none, and the packet is as it was.
 */
static __always_inline u32 take_off(struct xdp_md *ctx)
{
	const u8 *start = (const void *)(long)ctx->data, *end = (const void *)(long)ctx->data_end;
	const struct ethernet_header *frame = (const void *)start;
	u32 address[4] = { 0, 0, MAPPED };
	struct paper_option option;
	struct ipv4_header ip;
	u8 link[LONGEST_LINK_HEADER];
	u32 link_bytes = sizeof(*frame);
	const u8 *network;
	u16 type;

	if (!FITS(frame, end))
		return NO_CORE;
	type = frame->type;
	/* Counted, not subtracted: the verifier then knows it. */
	for (u32 tag = 0; tag < 2; tag++) {
		network = start + link_bytes;
		if (skip_vlan(network, end, &type) != network)
			link_bytes += sizeof(struct vlan_header);
	}
	network = start + link_bytes;
	if (type != ETHERTYPE_IPV4 || network + sizeof(ip) + sizeof(option) > end)
		return NO_CORE;
	__builtin_memcpy(&ip, network, sizeof(ip));
	__builtin_memcpy(&option, network + sizeof(ip), sizeof(option));
	if (!is_paper_header(&ip, &option))
		return NO_CORE;
	address[3] = ip.source;
	if (!is_peer(address))
		return NO_CORE;
	ip.version_length = USUAL_IPV4;
	ip.total_bytes = BE16(BE16(ip.total_bytes) - sizeof(option));
	ip.checksum = 0;
	ip.checksum = header_checksum(&ip, 0);
	if (bpf_xdp_load_bytes(ctx, 0, link, link_bytes) ||
	    bpf_xdp_adjust_head(ctx, sizeof(option)))
		return NO_CORE;
	/* Both fit: they lie where the headers were. */
	bpf_xdp_store_bytes(ctx, 0, link, link_bytes);
	bpf_xdp_store_bytes(ctx, link_bytes, &ip, sizeof(ip));
	return option.core & PAPER_CORE_MASK;
}

/* Reads options that are in no usual order; verified by itself. */
__noinline int search_options(struct xdp_md *ctx, u32 at, u32 bytes, u64 *hint)
{
	u8 options[MAX_OPTIONS_BYTES + sizeof(struct hint_option)] = {};

	if (!hint || !bytes)
		return HINT_MALFORMED;
	/*
	 * Each bound in a comparison of its own: where clang makes one comparison of both, the verifier
	 * before 6.19 learns neither bound.
	 */
	barrier_var(bytes);
	if (bytes > MAX_OPTIONS_BYTES || bpf_xdp_load_bytes(ctx, at, options, bytes))
		return HINT_MALFORMED;
	return scan_options(options, bytes, hint);
}

/* The worth of a hint other than the one that was issued last. */
static __always_inline enum sais_counter judge_other(const struct sais_flow *flow,
						     const struct sais_flow_key *key, u64 word)
{
	struct sais_hint hint = hint_fields(word);
	u16 number = BE16(hint.number);

	if (tag_of(key, hint.core, hint.number) != hint.tag)
		return COUNT_HINT_FORGED;
	/* Numbers wrap around, so their difference says which one is ahead. */
	if ((s16)(BE16(hint_fields(flow->hint).number) - number) < 0)
		return COUNT_HINT_FORGED;
	if (flow->echoed && (s16)(number - BE16(hint_fields(flow->echoed).number)) < 0)
		return COUNT_HINT_REPLAYED;
	return COUNT_HINT_STALE;
}

/* Of the paper's wire format: its hint is a core and nothing else. */
static __always_inline enum sais_counter judge_core(const struct sais_flow *flow, u32 core)
{
	struct sais_hint issued = hint_fields(flow->hint);

	if (core == NO_CORE)
		return COUNT_HINT_ABSENT;
	if (flow->hint && core == BE16(issued.core))
		return COUNT_HINT_ECHOED;
	return flow->hint && core == issued.tag ? COUNT_HINT_STALE : COUNT_HINT_FORGED;
}

/* The core for a packet with a hint of this worth; NO_CORE: the hint cannot be trusted. */
static __always_inline u32 hinted_core(struct sais_flow *flow, u64 issued, enum sais_counter worth)
{
	if (worth == COUNT_HINT_ECHOED) {
		if (flow->echoed != issued)
			flow->echoed = issued;
		return BE16(hint_fields(issued).core);
	}
	/* The server echoes nothing: what this machine knows must do. */
	if (worth == COUNT_HINT_ABSENT && !flow->echoed)
		return wanted_core(flow);
	return NO_CORE;
}

static __noinline int pass(enum sais_counter why)
{
	count(why, 1);
	return XDP_PASS;
}

/* Whether a packet for core `wanted` is steered there, and if not, why. */
static __always_inline enum sais_counter apply_rule(struct sais_flow *flow, u32 wanted, u32 here)
{
	u32 rule;

	if (wanted >= MAX_CPUS)
		return wanted == NO_CORE ? COUNT_DISTRUSTED : COUNT_REFUSED;
	rule = live.rules[wanted];
	if (rule != RULE_ALLOWED) {
		enum auto_verdict verdict;

		if (rule == RULE_REFUSED)
			return COUNT_REFUSED;
		note(&flow->arrived, here);
		verdict = judge_auto(here, wanted, rule == RULE_SATURATED,
				     live.domain[here] == live.domain[wanted], live.worth_within,
				     live.worth_across);
		if (verdict != AUTO_HOME && verdict != AUTO_STEER)
			return COUNT_LEFT;
	}
	/* On the wanted core already: the softirq does at once what the steering thread would do. */
	return wanted == here ? COUNT_HOME : COUNT_STEERED;
}

/*
 * Puts a packet into the queue of a core. Counted here and not at the tracepoint of that queue: Linux
 * 6.18 was seen to leave out some packets of a softirq there.
 */
static __always_inline int hand_over(struct sais_cpu *counts, u32 core, enum sais_counter verdict)
{
	/* A core that went offline a moment ago has no thread: then the packet goes up here. */
	if (bpf_redirect_map(&threads, core, XDP_PASS) != XDP_REDIRECT)
		return pass(COUNT_REFUSED);
	counts->counters[verdict]++;
	return XDP_REDIRECT;
}

/* Changes the flow's path if this packet then overtakes none before it; otherwise keeps the path. */
static __noinline int change_path(struct xdp_md *ctx, struct sais_flow *flow, u32 wanted,
				  enum sais_counter verdict)
{
	u32 core = verdict == COUNT_STEERED ? wanted : NO_CORE;
	struct sais_cpu *counts = &cpus[bpf_get_smp_processor_id() & (MAX_CPUS - 1)];
	int action;

	if (all_before_arrived(ctx)) {
		flow->path = core;
		counts->counters[COUNT_MOVED]++;
	} else {
		core = flow->path;
		if (verdict != COUNT_DISTRUSTED)
			verdict = core == wanted ? COUNT_STEERED : COUNT_KEPT;
	}
	if (core == NO_CORE)
		return pass(verdict);
	action = hand_over(counts, core, verdict);
	if (action == XDP_REDIRECT && verdict != COUNT_STEERED)
		counts->counters[COUNT_FOLLOWED]++;
	return action;
}

/* Directs a packet to core `wanted`. `worth`: of its hint; COUNTERS: hints are not looked at. */
static __always_inline int direct(struct xdp_md *ctx, struct sais_flow *flow, u32 wanted,
				  enum sais_counter worth)
{
	u32 here = bpf_get_smp_processor_id() & (MAX_CPUS - 1);
	enum sais_counter verdict = apply_rule(flow, wanted, here);
	u32 core = verdict == COUNT_STEERED ? wanted : NO_CORE;
	struct sais_cpu *counts = &cpus[here];

	if (worth != COUNTERS)
		counts->counters[worth]++;
	if (core != flow->path)
		return change_path(ctx, flow, wanted, verdict);
	if (verdict == COUNT_STEERED)
		return hand_over(counts, core, COUNT_STEERED);
	counts->counters[verdict]++;
	return XDP_PASS;
}

/*
 * Directs a packet with a hint that is not where Linux puts it, or is not the one that was issued last.
 * Such packets are rare. So the packet is parsed once more here: otherwise steer() would have to keep
 * what it parsed for every packet.
 */
static __noinline int direct_otherwise(struct xdp_md *ctx, struct sais_flow *flow)
{
	const u8 *data = (const void *)(long)ctx->data, *end = (const void *)(long)ctx->data_end;
	enum sais_counter worth;
	struct sais_packet packet;
	struct sais_flow_key key;
	u64 issued, hint;

	if (parse(data, end, true, &key, &packet) != PARSED)
		return pass(COUNT_MALFORMED);
	issued = flow->hint;
	hint = packet.hint;
	if (packet.has_hint == HINT_SEARCH)
		packet.has_hint = search_options(ctx, packet.options_at, packet.options_bytes,
						 &hint);
	switch (packet.has_hint) {
	case HINT_ABSENT:
		worth = COUNT_HINT_ABSENT;
		break;
	case HINT_MALFORMED:
		worth = COUNT_HINT_MALFORMED;
		break;
	default:
		worth = hint == issued ? COUNT_HINT_ECHOED : judge_other(flow, &key, hint);
	}
	return direct(ctx, flow, hinted_core(flow, issued, worth), worth);
}

/* `mode` and `wire` are constants: there is a program for each pair, and the settings choose one. */
static __always_inline int steer(struct xdp_md *ctx, enum sais_mode mode, enum sais_wire wire)
{
	bool is_paper = mode == MODE_HINT && wire == WIRE_PAPER;
	u32 named = is_paper ? take_off(ctx) : NO_CORE;
	const u8 *data = (const void *)(long)ctx->data, *end = (const void *)(long)ctx->data_end;
	enum sais_counter worth = COUNT_HINT_ECHOED;
	struct sais_packet packet = {};
	struct sais_flow_key key;
	struct sais_flow *flow;
	u64 issued;

	switch (parse(data, end, mode == MODE_HINT && !is_paper, &key, &packet)) {
	case PARSED:
		break;
	case PARSED_OTHER:
		return pass(COUNT_OTHER);
	default:
		return pass(COUNT_MALFORMED);
	}
	flow = bpf_map_lookup_elem(&flows, &key);
	if (!flow)
		flow = bpf_map_lookup_elem(&accepted_flows, &key);
	if (!flow)
		return pass(COUNT_UNKNOWN);
	/* An entry that is being made has no core yet, and no hint. */
	issued = flow->hint;
	if (mode == MODE_HINT ? !issued : flow->core == NO_CORE)
		return pass(COUNT_UNKNOWN);

	if (mode == MODE_FLOW)
		return direct(ctx, flow, wanted_core(flow), COUNTERS);
	if (is_paper)
		worth = judge_core(flow, named);
	else if (packet.hint != issued)
		return direct_otherwise(ctx, flow);
	return direct(ctx, flow, hinted_core(flow, issued, worth), worth);
}

/* What the hint of a TCP packet is worth by itself, and which core it names. */
static __always_inline enum sais_counter judge_alone(struct xdp_md *ctx,
						     const struct sais_flow_key *key,
						     struct sais_packet *packet, u32 *core)
{
	u64 word = packet->hint;
	struct sais_hint hint;

	if (packet->has_hint == HINT_SEARCH)
		packet->has_hint = search_options(ctx, packet->options_at, packet->options_bytes,
						  &word);
	if (packet->has_hint != HINT_FOUND)
		return packet->has_hint == HINT_ABSENT ? COUNT_HINT_ABSENT : COUNT_HINT_MALFORMED;
	hint = hint_fields(word);
	if (tag_of(key, hint.core, hint.number) != hint.tag)
		return COUNT_HINT_FORGED;
	*core = BE16(hint.core);
	return COUNT_HINT_ECHOED;
}

/*
 * The paper's SrcParser as the paper has it: the packet's hint alone says the core. No table is looked
 * up, so there is no limit to connections; a tag (in the paper's own format: the peer's address) and the
 * allowed cores are all that a hint is checked by. What needs a memory is not done: an old hint that
 * comes again is not told from the last one, and a connection that changes its core may overtake itself.
 */
static __always_inline int steer_alone(struct xdp_md *ctx, enum sais_wire wire)
{
	u32 here = bpf_get_smp_processor_id() & (MAX_CPUS - 1);
	u32 core = wire == WIRE_PAPER ? take_off(ctx) : NO_CORE;
	const u8 *data = (const void *)(long)ctx->data, *end = (const void *)(long)ctx->data_end;
	struct sais_cpu *counts = &cpus[here];
	struct sais_packet packet = {};
	struct sais_flow_key key;
	enum sais_counter worth;

	switch (parse(data, end, wire == WIRE_TCP, &key, &packet)) {
	case PARSED:
		break;
	case PARSED_OTHER:
		return pass(COUNT_OTHER);
	default:
		return pass(COUNT_MALFORMED);
	}
	if (wire == WIRE_PAPER)
		worth = core == NO_CORE ? COUNT_HINT_ABSENT : COUNT_HINT_ECHOED;
	else
		worth = judge_alone(ctx, &key, &packet, &core);
	/* Most connections of a machine are with hosts that send no hints. */
	if (worth == COUNT_HINT_ABSENT)
		return pass(COUNT_UNKNOWN);
	counts->counters[worth]++;
	if (worth != COUNT_HINT_ECHOED)
		return pass(COUNT_DISTRUSTED);
	if (core >= MAX_CPUS || live.rules[core] != RULE_ALLOWED)
		return pass(COUNT_REFUSED);
	return core == here ? pass(COUNT_HOME) : hand_over(counts, core, COUNT_STEERED);
}

SEC("xdp")
int steer_flow(struct xdp_md *ctx)
{
	return steer(ctx, MODE_FLOW, WIRE_TCP);
}

SEC("xdp")
int steer_hint(struct xdp_md *ctx)
{
	return steer(ctx, MODE_HINT, WIRE_TCP);
}

SEC("xdp")
int steer_paper(struct xdp_md *ctx)
{
	return steer(ctx, MODE_HINT, WIRE_PAPER);
}

SEC("xdp")
int steer_hint_alone(struct xdp_md *ctx)
{
	return steer_alone(ctx, WIRE_TCP);
}

SEC("xdp")
int steer_paper_alone(struct xdp_md *ctx)
{
	return steer_alone(ctx, WIRE_PAPER);
}

SEC("tp_btf/xdp_cpumap_enqueue")
int BPF_PROG(on_enqueue, int map_id, unsigned int taken, unsigned int dropped)
{
	if (dropped && map_id == live.cpumap_id)
		count(COUNT_DROPPED, dropped);
	return 0;
}

SEC("tp_btf/xdp_cpumap_kthread")
int BPF_PROG(on_thread, int map_id, unsigned int processed)
{
	if (map_id == live.cpumap_id)
		count(COUNT_PROCESSED, processed);
	return 0;
}

#endif
