/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A hint (paper 001's aff_core_id) as it travels: in a TCP option from the client to the server
 * and, unchanged, back in every packet. The server understands nothing of it; the client
 * trusts only what it issued itself.
 *
 * The paper has five bits for the core and nothing else. Here a number tells newer hints from
 * older ones, and a tag over connection, core and number, with a key that never leaves the
 * client, tells them from those that another host made.
 */
#ifndef EVENKEEL_SAIS_HINT_H
#define EVENKEEL_SAIS_HINT_H

/* For experiments (RFC 4727), shared by means of a number of one's own (RFC 6994). */
#define HINT_KIND 253
#define HINT_EXPERIMENT_HIGH 0xa1
#define HINT_EXPERIMENT_LOW 0xf5
#define HINT_EXPERIMENT BE16(HINT_EXPERIMENT_HIGH << 8 | HINT_EXPERIMENT_LOW)

/* In network order. As a number, 0 is none: numbers begin with 1. */
struct sais_hint {
	u16 core;
	u16 number;
	u32 tag;
};

struct hint_option {
	u8 kind;
	u8 bytes;		/* of all of it */
	u16 experiment;
	u64 hint;		/* struct sais_hint */
} __attribute__((packed));

/* Kind, length and experiment as one word. */
#define HINT_BEGINNING \
	BE32((u32)HINT_KIND << 24 | (u32)sizeof(struct hint_option) << 16 | \
	     HINT_EXPERIMENT_HIGH << 8 | HINT_EXPERIMENT_LOW)

/* As one word, wherever it stands. */
static __always_inline u64 hint_of(const struct hint_option *option)
{
	return *(const u64 *)((const u8 *)option + offsetof(struct hint_option, hint));
}

static __always_inline u64 hint_word(struct sais_hint hint)
{
	u64 word;

	__builtin_memcpy(&word, &hint, sizeof(word));
	return word;
}

static __always_inline struct sais_hint hint_fields(u64 word)
{
	struct sais_hint hint;

	__builtin_memcpy(&hint, &word, sizeof(word));
	return hint;
}

static __always_inline u64 rotate_left(u64 word, u32 bits)
{
	return word << bits | word >> (64 - bits);
}

static __always_inline void sip_round(u64 v[4])
{
	v[0] += v[1];
	v[2] += v[3];
	v[1] = rotate_left(v[1], 13) ^ v[0];
	v[3] = rotate_left(v[3], 16) ^ v[2];
	v[0] = rotate_left(v[0], 32);
	v[2] += v[1];
	v[0] += v[3];
	v[1] = rotate_left(v[1], 17) ^ v[2];
	v[3] = rotate_left(v[3], 21) ^ v[0];
	v[2] = rotate_left(v[2], 32);
}

static __always_inline void sip_word(u64 v[4], u64 word)
{
	v[3] ^= word;
	sip_round(v);
	sip_round(v);
	v[0] ^= word;
}

/* SipHash-2-4 of connection, core and number, of which a hint carries the lower half. */
static __always_inline u64 sip_hash(u64 key_low, u64 key_high, const struct sais_flow_key *flow,
				    u16 core, u16 number)
{
	u64 v[4] = {
		key_low ^ 0x736f6d6570736575ULL,
		key_high ^ 0x646f72616e646f6dULL,
		key_low ^ 0x6c7967656e657261ULL,
		key_high ^ 0x7465646279746573ULL,
	};
	u64 words[5];

	__builtin_memcpy(words, flow, sizeof(*flow));
	__builtin_memcpy((u8 *)words + sizeof(*flow), &core, sizeof(core));
	__builtin_memcpy((u8 *)words + sizeof(*flow) + sizeof(core), &number, sizeof(number));
	sip_word(v, words[0]);
	sip_word(v, words[1]);
	sip_word(v, words[2]);
	sip_word(v, words[3]);
	sip_word(v, words[4]);
	/* The last word holds the length, of which no bytes are left over. */
	sip_word(v, (u64)sizeof(words) << 56);
	v[2] ^= 0xff;
	sip_round(v);
	sip_round(v);
	sip_round(v);
	sip_round(v);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}

#endif
