/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The rule of `--policy auto`: is a packet handed to the CPU that consumes its connection, or processed
 * where it arrived? The only place where this is decided. compose.h applies it to each packet;
 * product/sais/src/auto.rs, which judges whether a program on the device is of use and explains the
 * verdict, calls the same function, compiled natively (product/sais/native/auto.c).
 *
 * Pure: no map, no clock, no state.
 */
#ifndef EVENKEEL_SAIS_AUTO_H
#define EVENKEEL_SAIS_AUTO_H

enum auto_verdict {
	AUTO_HOME,	/* it arrived on the CPU that consumes it */
	AUTO_STEER,	/* handing it over saves more than it costs */
	AUTO_SATURATED,	/* interrupts and real-time tasks leave the consumer's CPU no time */
	AUTO_COSTS_MORE,	/* fetching the data from the other CPU's cache costs less */
};

/*
 * `arrived`, `consumer`: CPUs. `is_saturated`: of the consumer's CPU. `shares_cache`: both CPUs have a
 * last-level cache in common. `worth_within`, `worth_across`: whether handing over was measured to be
 * cheaper than fetching, between CPUs that share a cache and between CPUs that do not.
 */
static inline __attribute__((always_inline)) enum auto_verdict
judge_auto(u32 arrived, u32 consumer, bool is_saturated, bool shares_cache, bool worth_within,
	   bool worth_across)
{
	if (arrived == consumer)
		return AUTO_HOME;
	if (is_saturated)
		return AUTO_SATURATED;
	return (shares_cache ? worth_within : worth_across) ? AUTO_STEER : AUTO_COSTS_MORE;
}

#endif
