// SPDX-License-Identifier: GPL-2.0-only
//
// Calls the entry points of static loops as compilers do, with every type, step and kind of schedule,
// and compares what comes with what the runtime itself says. Each loop must be whole, in order, with
// one last iteration; what is no unchunked static loop must be the runtime's result bit for bit.
// Prints how many results differ from the runtime's.
//
//   bounds THREADS REGIONS

#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <omp.h>
#include <stdint.h>
#include <string.h>

#include "pin.h"

struct ident {
	int32_t reserved_1, flags, reserved_2, reserved_3;
	const char *source;
};

enum { LOOP = 0x202, SECTIONS = 0x402, DISTRIBUTE = 0x802, UNMARKED = 2 };
enum { MONOTONIC = 1 << 29, NONMONOTONIC = 1 << 30 };
enum { THREADS = 64 };

int32_t __kmpc_global_thread_num(struct ident *);

// How a loop is begun, and whether it may be divided.
static const struct kind {
	int32_t flags, schedule, chunk, divisible;
} kinds[] = {
	{ LOOP, 34, 1, 1 },		  { LOOP, 34, 0, 1 },
	{ LOOP, 34 | MONOTONIC, 1, 1 },	  { LOOP, 34 | NONMONOTONIC, 1, 1 },
	{ UNMARKED, 34, 1, 1 },		  { SECTIONS, 34, 1, 0 },
	{ DISTRIBUTE, 34, 1, 0 },	  { LOOP, 33, 1, 0 },
	{ LOOP, 33, 7, 0 },		  { LOOP, 45, 8, 0 },
};

enum { KINDS = sizeof(kinds) / sizeof(*kinds) };

static int threads, regions;
static long different, divided_small_unmarked;

// The number of iterations between two values of one loop.
static __int128 count(__int128 lower, __int128 upper, __int128 step)
{
	if (step > 0)
		return lower <= upper ? (upper - lower) / step + 1 : 0;
	return lower >= upper ? (lower - upper) / -step + 1 : 0;
}

// One type: its table of loops, and the test of one loop by one region.
#define TYPE(name, type, stype, ...)                                                                 \
	void __kmpc_for_static_init_##name(struct ident *, int32_t, int32_t, int32_t *, type *,      \
					   type *, stype *, stype, stype);                           \
	static const struct loop_##name {                                                            \
		type lower, upper;                                                                   \
		stype step;                                                                          \
	} loops_##name[] = { __VA_ARGS__ };                                                          \
	struct result_##name {                                                                       \
		type lower, upper;                                                                   \
		stype stride;                                                                        \
		int32_t last;                                                                        \
	};                                                                                           \
	static void test_##name(struct loop_##name loop, const struct kind *kind)                    \
	{                                                                                            \
		static void (*runtime)(struct ident *, int32_t, int32_t, int32_t *, type *, type *,  \
				       stype *, stype, stype);                                       \
		static struct result_##name ours[THREADS], theirs[THREADS];                          \
		static struct ident ident;                                                           \
		int size = 0;                                                                        \
		ident = (struct ident){ .flags = kind->flags, .source = ";;;;;;" };                  \
		if (!runtime)                                                                        \
			runtime = dlsym(dlopen("libomp.so.5", RTLD_LAZY | RTLD_NOLOAD),              \
					"__kmpc_for_static_init_" #name);                            \
		CHECK(runtime != NULL);                                                              \
		_Pragma("omp parallel num_threads(threads)")                                         \
		{                                                                                    \
			int me = omp_get_thread_num();                                               \
			int32_t thread = __kmpc_global_thread_num(&ident);                           \
			struct result_##name a = { loop.lower, loop.upper, 0, -1 }, b = a;           \
			if (!me)                                                                     \
				size = omp_get_num_threads();                                        \
			__kmpc_for_static_init_##name(&ident, thread, kind->schedule, &a.last,       \
						      &a.lower, &a.upper, &a.stride, loop.step,      \
						      kind->chunk);                                  \
			runtime(&ident, thread, kind->schedule, &b.last, &b.lower, &b.upper,         \
				&b.stride, loop.step, kind->chunk);                                  \
			ours[me] = a;                                                                \
			theirs[me] = b;                                                              \
		}                                                                                    \
		__int128 all = count(loop.lower, loop.upper, loop.step);                             \
		__int128 most = (__int128)1 << 8 * sizeof(type);                                     \
		int same = !memcmp(ours, theirs, sizeof(*ours) * size);                              \
		for (int i = 0; i < size; i++)                                                       \
			different += memcmp(&ours[i], &theirs[i], sizeof(*ours)) != 0;               \
		CHECK(same || (kind->divisible && all >= 2 && all < most));                          \
		if (!same && kind->flags == UNMARKED)                                                \
			divided_small_unmarked += all < 8 * size;                                    \
		if (same)                                                                            \
			return;                                                                      \
		__int128 next = loop.lower;                                                          \
		int lasts = 0;                                                                       \
		for (int i = 0; i < size; i++) {                                                     \
			__int128 own = count(ours[i].lower, ours[i].upper, loop.step);               \
			lasts += ours[i].last;                                                       \
			CHECK(ours[i].stride == theirs[i].stride);                                   \
			CHECK(own > 0 || !ours[i].last);                                             \
			if (own == 0)                                                                \
				continue;                                                            \
			CHECK(ours[i].lower == next);                                                \
			CHECK(ours[i].upper == next + (own - 1) * loop.step);                        \
			next += own * loop.step;                                                     \
			CHECK(ours[i].last == (next == loop.lower + all * loop.step));               \
		}                                                                                    \
		CHECK(lasts == 1 && next == loop.lower + all * loop.step);                           \
	}                                                                                            \
	/* Whether the runtime can count the iterations: else it ends the program for a chunked loop. */ \
	static int fits_##name(struct loop_##name loop)                                              \
	{                                                                                            \
		__int128 all = count(loop.lower, loop.upper, loop.step);                             \
		return all + 8 * THREADS < (__int128)1 << 8 * sizeof(type);                          \
	}                                                                                            \
	static void test_all_##name(void)                                                            \
	{                                                                                            \
		for (size_t i = 0; i < sizeof(loops_##name) / sizeof(*loops_##name); i++)            \
			for (int kind = 0; kind < KINDS; kind++)                                     \
				if (fits_##name(loops_##name[i]) || kinds[kind].divisible)           \
					test_##name(loops_##name[i], &kinds[kind]);                  \
	}

TYPE(4, int32_t, int32_t, { 0, 999, 1 }, { 999, 0, -1 }, { -50, 50, 3 }, { 50, -51, -7 }, { 0, 0, 1 },
     { 1, 0, 1 }, { 0, 1, 1 }, { 0, 4, 1 }, { 0, 12, 1 }, { INT_MIN, INT_MAX - 1, 1 },
     { INT_MIN, INT_MAX, 1 }, { INT_MAX, INT_MIN, -1000 }, { INT_MAX - 3, INT_MAX, 1 },
     { INT_MIN + 3, INT_MIN, -1 }, { INT_MIN, INT_MAX, INT_MAX }, { INT_MAX, INT_MIN, INT_MIN })
TYPE(4u, uint32_t, int32_t, { 0, 999, 1 }, { 999, 0, -1 }, { 3, 2000000000, 3 }, { 0, 0, 1 },
     { 1, 0, 1 }, { 0, 1, 1 }, { 0, 3, 1 }, { 0, UINT_MAX - 1, 1 }, { 0, UINT_MAX, 1 },
     { UINT_MAX, 1, -5 }, { UINT_MAX - 20, UINT_MAX, 1 }, { 9, 0, -1 }, { 0, UINT_MAX, INT_MAX })
TYPE(8, int64_t, int64_t, { 0, 999, 1 }, { 999, 0, -1 }, { -50, 50, 3 }, { 0, 0, 1 }, { 1, 0, 1 },
     { LLONG_MIN, LLONG_MAX - 1, 1 }, { LLONG_MIN, LLONG_MAX, 1 }, { LLONG_MAX, LLONG_MIN, -2 },
     { LLONG_MAX - 5, LLONG_MAX, 1 }, { LLONG_MAX, LLONG_MIN, LLONG_MIN }, { 0, 1LL << 40, 1 << 20 })
TYPE(8u, uint64_t, int64_t, { 0, 999, 1 }, { 999, 0, -1 }, { 0, 0, 1 }, { 1, 0, 1 }, { 0, 6, 1 },
     { 0, ULLONG_MAX - 1, 1 }, { 0, ULLONG_MAX, 1 }, { ULLONG_MAX, 0, -3 },
     { ULLONG_MAX - 5, ULLONG_MAX, 1 })

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	threads = atoi(argv[1]);
	regions = atoi(argv[2]);
	CHECK(threads > 0 && threads <= THREADS);
#pragma omp parallel num_threads(threads)
	pin_thread(omp_get_thread_num());
	// By now the library knows where the threads were before; from the next region on, where they are.
	for (int region = 0; region < regions; region++) {
		test_all_4();
		test_all_4u();
		test_all_8();
		test_all_8u();
	}
	printf("different=%ld small_unmarked=%ld\n", different, divided_small_unmarked);
	return 0;
}
