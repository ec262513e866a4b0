// SPDX-License-Identifier: GPL-2.0-only
/*
 * What the kernel runs on packets from anybody, as functions of a test process.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
#define __always_inline inline __attribute__((always_inline))

#include "../../../bpf/sais/intf.h"
#include "../../../bpf/sais/hint.h"
#include "../../../bpf/sais/parse.h"
#include "../../../bpf/sais/paper.h"
#include "../../../bpf/sais/waiting.h"

/* All that is read of a packet. */
struct sais_read {
	struct sais_flow_key key;
	struct sais_packet packet;
};

int sais_parse(const u8 *data, const u8 *end, struct sais_read *read)
{
	u8 options[MAX_OPTIONS_BYTES + sizeof(struct hint_option)] = {};
	struct sais_packet *packet = &read->packet;
	enum parse_result result = parse(data, end, true, &read->key, packet);

	if (result != PARSED || packet->has_hint != HINT_SEARCH)
		return result;
	packet->has_hint = HINT_MALFORMED;
	if (packet->options_bytes <= end - data - packet->options_at) {
		__builtin_memcpy(options, data + packet->options_at, packet->options_bytes);
		packet->has_hint = scan_options(options, packet->options_bytes, &packet->hint);
	}
	return result;
}

u64 sais_sip_hash(const u64 key[2], const struct sais_flow_key *flow, u16 core, u16 number)
{
	return sip_hash(key[0], key[1], flow, core, number);
}

bool sais_is_paper_header(const u8 header[sizeof(struct ipv4_header) + sizeof(struct paper_option)])
{
	struct paper_option option;
	struct ipv4_header ip;

	__builtin_memcpy(&ip, header, sizeof(ip));
	__builtin_memcpy(&option, header + sizeof(ip), sizeof(option));
	return is_paper_header(&ip, &option);
}

bool sais_begin_wait(u32 *asker, u32 tid)
{
	return begin_wait(asker, tid);
}

bool sais_begin_request(u32 *asker, u32 tid, u32 *outstanding)
{
	return begin_request(asker, tid, outstanding);
}

u32 sais_end_wait(u32 *asker)
{
	return end_wait(asker);
}

void sais_subtract_one(u32 *outstanding)
{
	subtract_one(outstanding);
}
