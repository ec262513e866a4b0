// SPDX-License-Identifier: GPL-2.0-only
//
// Another tool of OpenMP's tool interface, which counts regions and prints their number at the end.

#include <omp-tools.h>
#include <stdio.h>

static int regions;

static void begin(ompt_data_t *task, const ompt_frame_t *frame, ompt_data_t *parallel,
		  unsigned int threads, int flags, const void *code)
{
	(void)task, (void)frame, (void)threads, (void)flags, (void)code;
	// A tool owns this word.
	parallel->value = ~0ULL;
	__atomic_fetch_add(&regions, 1, __ATOMIC_RELAXED);
}

static int initialize(ompt_function_lookup_t lookup, int device, ompt_data_t *data)
{
	ompt_set_callback_t set = (ompt_set_callback_t)lookup("ompt_set_callback");

	(void)device, (void)data;
	return set(ompt_callback_parallel_begin, (ompt_callback_t)begin) == ompt_set_always;
}

static void finalize(ompt_data_t *data)
{
	(void)data;
	printf("tool saw regions: %s\n", regions > 0 ? "yes" : "no");
}

ompt_start_tool_result_t *ompt_start_tool(unsigned int version, const char *runtime)
{
	static ompt_start_tool_result_t result = { initialize, finalize, { 0 } };

	(void)version, (void)runtime;
	return &result;
}
