// SPDX-License-Identifier: GPL-2.0-only
/*
 * SAIs on a server (paper 001): clients' hints go back with the data that they asked for.
 * Everything here vanishes with the process that loaded it; connections go on.
 */
#include "kernel.h"
#include "intf.h"
#include "hint.h"
#include "peer.h"
#include "parse.h"
#include "paper.h"

const volatile struct sais_serve_settings settings SEC(".rodata.settings");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct sais_served);
} cpus SEC(".maps");

/* Packets are written in any context, and a softirq may come in between. */
static __always_inline void count_anywhere(enum sais_served_counter counter)
{
	u32 first = 0;
	struct sais_served *c = bpf_map_lookup_elem(&cpus, &first);

	if (c)
		__sync_fetch_and_add(&c->counters[counter], 1);
}

#include "capsuler.h"

char LICENSE[] SEC("license") = "GPL";
