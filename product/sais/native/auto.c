// SPDX-License-Identifier: GPL-2.0-only
/*
 * The rule of `--policy auto` (bpf/sais/auto.h) as a function of the process that judges connections.
 */
#include <stdbool.h>
#include <stdint.h>

typedef uint32_t u32;

#include "../../../bpf/sais/auto.h"

u32 sais_judge_auto(u32 arrived, u32 consumer, bool is_saturated, bool shares_cache, bool worth_within,
		    bool worth_across)
{
	return judge_auto(arrived, consumer, is_saturated, shares_cache, worth_within, worth_across);
}
