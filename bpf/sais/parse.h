/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * SrcParser (paper 001, section IV): whose packet is this? Reads the headers of an
 * Ethernet frame, with up to two VLAN tags, before anything else in the kernel does.
 *
 * What it is given comes from anybody. Nothing is read past `end`; the same file is compiled
 * natively and fuzzed. Words are read whole at any address, which is what the kernel's BPF
 * allows where the CPU can do it (x86, arm64, ...), and takes half the instructions of bytes.
 * Fragments and IPv6 extension headers are left alone: their connection cannot be told
 * cheaply, and they are rare.
 */
#ifndef EVENKEEL_SAIS_PARSE_H
#define EVENKEEL_SAIS_PARSE_H

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define BE16(x) ((u16)__builtin_bswap16(x))
#define BE32(x) ((u32)__builtin_bswap32(x))
#else
#define BE16(x) ((u16)(x))
#define BE32(x) ((u32)(x))
#endif

#define ETHERTYPE_IPV4 BE16(0x0800)
#define ETHERTYPE_IPV6 BE16(0x86dd)
#define ETHERTYPE_VLAN BE16(0x8100)
#define ETHERTYPE_VLAN_OUTER BE16(0x88a8)
#define PROTOCOL_TCP 6
/* In the field of fragments: more of them follow, or this is not the first. */
#define IS_FRAGMENT BE16(0x3fff)
/* An IPv4 address as an IPv6 address (RFC 4291, 2.5.5.2): 0:0:ffff:a.b.c.d. */
#define MAPPED BE32(0xffff)

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

struct sais_packet {
	struct sais_flow_key key;
	u32 sequence;		/* of its first byte, in host order */
};

/* The whole header must lie before `end`. */
#define FITS(header, end) ((const u8 *)(header) + sizeof(*(header)) <= (const u8 *)(end))

static __always_inline enum parse_result parse_tcp(const u8 *data, const u8 *end,
						   struct sais_packet *packet)
{
	const struct tcp_header *tcp = (const void *)data;

	if (!FITS(tcp, end) || tcp->length >> 4 < 5)
		return PARSED_MALFORMED;
	packet->key.remote_port = tcp->source;
	packet->key.local_port = tcp->destination;
	packet->sequence = BE32(tcp->sequence);
	return PARSED;
}

static __always_inline enum parse_result parse_ipv4(const u8 *data, const u8 *end,
						    struct sais_packet *packet)
{
	const struct ipv4_header *ip = (const void *)data;

	if (!FITS(ip, end) || ip->version_length >> 4 != 4 || (ip->version_length & 15) < 5)
		return PARSED_MALFORMED;
	if (ip->protocol != PROTOCOL_TCP || ip->fragment & IS_FRAGMENT)
		return PARSED_OTHER;
	packet->key.remote[0] = 0;
	packet->key.remote[1] = 0;
	packet->key.remote[2] = MAPPED;
	packet->key.remote[3] = ip->source;
	packet->key.local[0] = 0;
	packet->key.local[1] = 0;
	packet->key.local[2] = MAPPED;
	packet->key.local[3] = ip->destination;
	return parse_tcp(data + (ip->version_length & 15) * 4, end, packet);
}

static __always_inline enum parse_result parse_ipv6(const u8 *data, const u8 *end,
						    struct sais_packet *packet)
{
	const struct ipv6_header *ip = (const void *)data;

	if (!FITS(ip, end) || ip->version_class >> 4 != 6)
		return PARSED_MALFORMED;
	if (ip->next != PROTOCOL_TCP)
		return PARSED_OTHER;
	__builtin_memcpy(packet->key.remote, ip->source, sizeof(packet->key.remote));
	__builtin_memcpy(packet->key.local, ip->destination, sizeof(packet->key.local));
	return parse_tcp(data + sizeof(*ip), end, packet);
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

/* Fills all of `packet` if it returns PARSED. */
static __always_inline enum parse_result parse(const u8 *data, const u8 *end,
					       struct sais_packet *packet)
{
	const struct ethernet_header *frame = (const void *)data;
	u16 type;

	if (!FITS(frame, end))
		return PARSED_MALFORMED;
	type = frame->type;
	data += sizeof(*frame);
	data = skip_vlan(data, end, &type);
	data = skip_vlan(data, end, &type);
	switch (type) {
	case ETHERTYPE_IPV4:
		return parse_ipv4(data, end, packet);
	case ETHERTYPE_IPV6:
		return parse_ipv6(data, end, packet);
	case 0:
		return PARSED_MALFORMED;
	default:
		return PARSED_OTHER;
	}
}

#endif
