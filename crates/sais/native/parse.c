// SPDX-License-Identifier: GPL-2.0-only
/*
 * The parser that the kernel runs, as a function of a test process.
 */
#include <stdint.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
#define __always_inline inline __attribute__((always_inline))

#include "../../../bpf/sais/intf.h"
#include "../../../bpf/sais/parse.h"

int sais_parse(const u8 *data, const u8 *end, struct sais_packet *packet)
{
	return parse(data, end, packet);
}
