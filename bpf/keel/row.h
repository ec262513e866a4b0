/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A row of the index of siblings (index.h): tasks in the order of vruntime. It is a ring, because
 * most tasks leave at the front and come at the end. Freestanding like a policy, and tested like
 * one. Its loops end where the entries do; `can_loop` is of the kernel that hosts it.
 */
#ifndef EVENKEEL_KEEL_ROW_H
#define EVENKEEL_KEEL_ROW_H

/* The capacity of a row; a power of two. */
#define ROW_PLACES 128

struct row_entry {
	u64 vruntime;
	u32 tag;	/* bits of the sibling key: tells apart the spaces that share a row */
	u32 pid;	/* 0: none */
	u32 weight;
	u32 pad;
};

struct sibling_row {
	volatile u32 first;	/* position of the smallest vruntime; monotonic, masked on access */
	volatile u32 count;
	u32 pad[2];
	struct row_entry entry[ROW_PLACES];
};

POLICY u32 row_slot(u32 place)
{
	return place & (ROW_PLACES - 1);
}

/*
 * Inserts a task in order, behind its equals. If `room` tasks are there already, the last one gives
 * way.
 */
POLICY bool row_insert(struct sibling_row *row, struct row_entry task, u32 room)
{
	bool is_full = row->count >= room;
	u32 first = row->first, at;

	if (is_full) {
		at = first + row->count - 1;
		if (!row->count ||
		    !is_vruntime_before(task.vruntime, row->entry[row_slot(at)].vruntime))
			return false;
		row->count--;
	}
	at = first + row->count;
	while (can_loop && at != first) {
		struct row_entry *before = &row->entry[row_slot(at - 1)];

		if (!is_vruntime_before(task.vruntime, before->vruntime))
			break;
		row->entry[row_slot(at)] = *before;
		at--;
	}
	row->entry[row_slot(at)] = task;
	row->count++;
	return !is_full;
}

/* Removes a task, if it is there. */
POLICY void row_remove(struct sibling_row *row, u32 pid)
{
	u32 at = row->first, end = at + row->count;

	while (can_loop && at != end && row->entry[row_slot(at)].pid != pid)
		at++;
	if (at == end)
		return;
	row->count--;
	if (at == row->first) {
		row->first++;
		return;
	}
	for (end--; can_loop && at != end; at++)
		row->entry[row_slot(at)] = row->entry[row_slot(at + 1)];
}

/*
 * The first entry with this tag; `looked`: how many entries were looked at. A concurrent change may
 * make it miss an entry, or see one twice or one that has just left: the result is a hint.
 */
POLICY struct row_entry row_find_first(const struct sibling_row *row, u32 tag, u32 *looked)
{
	struct row_entry none = {};
	u32 first = row->first, at = first, end = first + row->count;

	for (; can_loop && at != end; at++) {
		const struct row_entry *entry = &row->entry[row_slot(at)];

		if (entry->tag == tag) {
			*looked = at - first + 1;
			return *entry;
		}
	}
	*looked = at - first;
	return none;
}

#endif
