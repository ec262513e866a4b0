/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * SrcParser (paper 001, section IV): to which connection does this packet belong, and which hint does it
 * bear? Reads the headers of an Ethernet frame, with up to two VLAN tags, before anything else in the
 * kernel does.
 *
 * What it is given comes from anybody. Nothing is read past `end`; the same file is compiled
 * natively and fuzzed. Words are read whole at any address, which is what the kernel's BPF
 * allows where the CPU can do it (x86, arm64, ...), and takes half the instructions of bytes.
 * Fragments and IPv6 extension headers are left alone: their connection cannot be told
 * cheaply, and they are rare.
 */
#ifndef EVENKEEL_SAIS_PARSE_H
#define EVENKEEL_SAIS_PARSE_H

#define ETHERTYPE_IPV4 BE16(0x0800)
#define ETHERTYPE_IPV6 BE16(0x86dd)
#define ETHERTYPE_VLAN BE16(0x8100)
#define ETHERTYPE_VLAN_OUTER BE16(0x88a8)
#define PROTOCOL_TCP 6
/* Version 4 and no options. */
#define USUAL_IPV4 (4 << 4 | 5)
/* In the field of fragments: more of them follow, or this is not the first. */
#define IS_FRAGMENT BE16(0x3fff)

/* Headers as they stand in the packet; none has holes. */

struct ethernet_header {
	u8 destination[6];
	u8 source[6];
	u16 type;
};

struct vlan_header {
	u16 tag;
	u16 type;
};

/* With two VLAN tags. */
#define LONGEST_LINK_HEADER (sizeof(struct ethernet_header) + 2 * sizeof(struct vlan_header))

struct ipv4_header {
	u8 version_length;	/* in the lower half: words of 4 bytes */
	u8 service;
	u16 total_bytes;
	u16 id;
	u16 fragment;
	u8 hops;
	u8 protocol;
	u16 checksum;
	u32 source;
	u32 destination;
};

struct ipv6_header {
	u8 version_class;
	u8 class_label[3];
	u16 payload_bytes;
	u8 next;
	u8 hops;
	u32 source[4];
	u32 destination[4];
};

struct tcp_header {
	u16 source;
	u16 destination;
	u32 sequence;
	u32 acknowledged;
	u8 length;		/* in the upper half: words of 4 bytes */
	u8 flags;
	u16 window;
	u16 checksum;
	u16 urgent;
};

enum parse_result {
	PARSED,
	PARSED_OTHER,
	PARSED_MALFORMED,
};

enum hint_result {
	HINT_ABSENT,
	HINT_FOUND,
	HINT_MALFORMED,
	HINT_SEARCH,		/* the options have to be read one by one (scan_options) */
};

/* All this can be in registers; only the key of the connection must lie in memory. */
struct sais_packet {
	u64 hint;		/* where one was looked for and found */
	u32 sequence;		/* of its first byte, in network order */
	u32 has_hint;		/* enum hint_result */
	u16 options_at;		/* of HINT_SEARCH, where in the packet, */
	u16 options_bytes;	/* and how many */
};

/* The whole header must lie before `end`. */
#define FITS(header, end) ((const u8 *)(header) + sizeof(*(header)) <= (const u8 *)(end))

/* NOP, NOP, time stamps of 10 bytes: what Linux begins its options with. */
#define TIME_STAMPS BE32(0x0101080a)
#define TIME_STAMPS_BYTES 12
/* Of a TCP header with these and a hint behind them. */
#define HINTED_WORDS \
	((sizeof(struct tcp_header) + TIME_STAMPS_BYTES + sizeof(struct hint_option)) / 4)
/* The longest options that a TCP header can have. */
#define MAX_OPTIONS_BYTES 40

enum tcp_option {
	OPTION_END = 0,
	OPTION_NOP = 1,
};

static __always_inline enum hint_result take_hint(const struct hint_option *option, u64 *hint)
{
	if (option->bytes != sizeof(*option))
		return HINT_MALFORMED;
	*hint = hint_of(option);
	return HINT_FOUND;
}

/*
 * The hint among so many bytes of options, in a copy of its own: the verifier then has to look
 * at this loop once, and not once for each way that leads through the headers before.
 */
static __always_inline enum hint_result
scan_options(const u8 options[MAX_OPTIONS_BYTES + sizeof(struct hint_option)], u32 bytes, u64 *hint)
{
	struct hint_option option;
	u32 at = 0, length;

	/* An option has at least one byte. */
	for (u32 i = 0; i < MAX_OPTIONS_BYTES; i++) {
		if (at >= bytes || at >= MAX_OPTIONS_BYTES || options[at] == OPTION_END)
			return HINT_ABSENT;
		if (options[at] == OPTION_NOP) {
			at++;
			continue;
		}
		length = options[at + 1];
		if (length < 2 || at + length > bytes)
			return HINT_MALFORMED;
		if (options[at] == HINT_KIND && length >= offsetof(struct hint_option, hint) &&
		    options[at + 2] == HINT_EXPERIMENT_HIGH &&
		    options[at + 3] == HINT_EXPERIMENT_LOW) {
			__builtin_memcpy(&option, options + at, sizeof(option));
			return take_hint(&option, hint);
		}
		at += length;
	}
	return HINT_ABSENT;
}

/* The hint where Linux puts it; else `packet` says which options are to be searched. */
static __always_inline enum hint_result find_hint(const u8 *start, const struct tcp_header *tcp,
						  u32 words, const u8 *end,
						  struct sais_packet *packet)
{
	const u8 *options = (const u8 *)(tcp + 1);
	const struct hint_option *option = (const void *)(options + TIME_STAMPS_BYTES);

	if (words == HINTED_WORDS && FITS(option, end) && *(const u32 *)options == TIME_STAMPS &&
	    *(const u32 *)option == HINT_BEGINNING) {
		packet->hint = hint_of(option);
		return HINT_FOUND;
	}
	packet->options_at = options - start;
	packet->options_bytes = words * 4 - sizeof(*tcp);
	return packet->options_bytes ? HINT_SEARCH : HINT_ABSENT;
}

/* Looks for a hint only if it is told to: `wants_hint` is known at load. */
static __always_inline enum parse_result parse_tcp(const u8 *start, const u8 *data, const u8 *end,
						   bool wants_hint, struct sais_flow_key *key,
						   struct sais_packet *packet)
{
	const struct tcp_header *tcp = (const void *)data;
	u32 words;

	if (!FITS(tcp, end))
		return PARSED_MALFORMED;
	words = tcp->length >> 4;
	if (words * 4 < sizeof(*tcp))
		return PARSED_MALFORMED;
	key->ports = *(const u32 *)tcp;
	packet->sequence = tcp->sequence;
	if (wants_hint)
		packet->has_hint = find_hint(start, tcp, words, end, packet);
	return PARSED;
}

/* Where TCP begins; NULL: `result` says why not. */
static __always_inline const u8 *parse_ipv4(const u8 *data, const u8 *end,
					    struct sais_flow_key *key, enum parse_result *result)
{
	const struct ipv4_header *ip = (const void *)data;
	u32 header_bytes = sizeof(*ip);

	*result = PARSED_MALFORMED;
	if (!FITS(ip, end))
		return 0;
	if (ip->version_length != USUAL_IPV4) {
		if (ip->version_length >> 4 != 4 || (ip->version_length & 15) < 5)
			return 0;
		header_bytes = (ip->version_length & 15) * 4;
	}
	*result = PARSED_OTHER;
	if (ip->protocol != PROTOCOL_TCP || ip->fragment & IS_FRAGMENT)
		return 0;
	key->remote[0] = 0;
	key->remote[1] = 0;
	key->remote[2] = MAPPED;
	key->remote[3] = ip->source;
	key->local[0] = 0;
	key->local[1] = 0;
	key->local[2] = MAPPED;
	key->local[3] = ip->destination;
	return data + header_bytes;
}

static __always_inline const u8 *parse_ipv6(const u8 *data, const u8 *end,
					    struct sais_flow_key *key, enum parse_result *result)
{
	const struct ipv6_header *ip = (const void *)data;

	*result = PARSED_MALFORMED;
	if (!FITS(ip, end) || ip->version_class >> 4 != 6)
		return 0;
	*result = PARSED_OTHER;
	if (ip->next != PROTOCOL_TCP)
		return 0;
	__builtin_memcpy(key->remote, ip->source, sizeof(key->remote));
	__builtin_memcpy(key->local, ip->destination, sizeof(key->local));
	return data + sizeof(*ip);
}

/* Takes a VLAN tag off, if there is one. The type is 0, which is no protocol, if it is cut off. */
static __always_inline const u8 *skip_vlan(const u8 *data, const u8 *end, u16 *type)
{
	const struct vlan_header *vlan = (const void *)data;

	if (*type != ETHERTYPE_VLAN && *type != ETHERTYPE_VLAN_OUTER)
		return data;
	if (!FITS(vlan, end)) {
		*type = 0;
		return data;
	}
	*type = vlan->type;
	return data + sizeof(*vlan);
}

/* Fills `key`, and all of `packet` that was asked for, if it returns PARSED. */
static __always_inline enum parse_result parse(const u8 *data, const u8 *end, bool wants_hint,
					       struct sais_flow_key *key, struct sais_packet *packet)
{
	const struct ethernet_header *frame = (const void *)data;
	const u8 *start = data;
	enum parse_result result;
	u16 type;

	if (!FITS(frame, end))
		return PARSED_MALFORMED;
	type = frame->type;
	data += sizeof(*frame);
	if (type != ETHERTYPE_IPV4) {
		data = skip_vlan(data, end, &type);
		data = skip_vlan(data, end, &type);
	}
	switch (type) {
	case ETHERTYPE_IPV4:
		data = parse_ipv4(data, end, key, &result);
		break;
	case ETHERTYPE_IPV6:
		data = parse_ipv6(data, end, key, &result);
		break;
	case 0:
		return PARSED_MALFORMED;
	default:
		return PARSED_OTHER;
	}
	return data ? parse_tcp(start, data, end, wants_hint, key, packet) : result;
}

#endif
