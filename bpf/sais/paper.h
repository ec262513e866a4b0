/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The paper's own wire format (001, section IV): one byte of IPv4 options in each returning
 * packet, "copied" and "class" 1 and the core in the five bits left, then EOL. Linux takes that
 * for a malformed option and drops the packet, so it is taken off before the kernel sees it;
 * whatever stands between the two machines must let it through.
 *
 * The byte bears no proof of anything: a core that was never issued for the connection is
 * taken for forged, and an old hint that comes again cannot be told from a late one. It is taken
 * off packets of peers only: to all others, this machine answers as one without SAIs.
 */
#ifndef EVENKEEL_SAIS_PAPER_H
#define EVENKEEL_SAIS_PAPER_H

#define PAPER_CLASS 0xa0
#define PAPER_CLASS_MASK 0xe0
#define PAPER_CORE_MASK 0x1f
/* How an IPv4 header begins that has this option, of one word, and no other. */
#define PAPER_IPV4 (USUAL_IPV4 + 1)

/* The byte, EOL, and filling up to a word. */
struct paper_option {
	u8 core;
	u8 end[3];
};

/* Of an IPv4 header with options that, in 16-bit words, add up to `more`. */
static __always_inline u16 header_checksum(const struct ipv4_header *ip, u32 more)
{
	const u16 *words = (const void *)ip;
	u32 sum = more;

	for (u32 i = 0; i < sizeof(*ip) / sizeof(*words); i++)
		sum += words[i];
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

/*
 * Whether a header is the paper's, and arrived as it was sent. Where the option is taken off, the
 * checksum is made anew: a damaged header must not become a valid one by that.
 */
static __always_inline bool is_paper_header(const struct ipv4_header *ip,
					    const struct paper_option *option)
{
	return ip->version_length == PAPER_IPV4 && ip->protocol == PROTOCOL_TCP &&
	       (option->core & PAPER_CLASS_MASK) == PAPER_CLASS && !option->end[0] &&
	       !option->end[1] && !option->end[2] &&
	       !header_checksum(ip, BE16(option->core << 8));
}

#endif
