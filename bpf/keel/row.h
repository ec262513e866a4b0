/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A row of the index of siblings (index.h): tasks in the order of vruntime. It is a ring, because
 * most tasks leave at the front and come at the end. Freestanding like a policy, and tested like
 * one.
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
	u32 first;	/* position of the smallest vruntime; monotonic, masked on access */
	volatile u32 count;
	volatile u32 hole;	/* where row_remove() removed, relative to `first` */
	u32 pad;
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
	u32 end, i;

	if (is_full) {
		end = row->first + row->count - 1;
		if (!row->count ||
		    !is_vruntime_before(task.vruntime, row->entry[row_slot(end)].vruntime))
			return false;
		row->count--;
	}
	end = row->first + row->count;
	for (i = 0; i < ROW_PLACES; i++) {
		struct row_entry *before = &row->entry[row_slot(end - i - 1)];

		if (i >= row->count || !is_vruntime_before(task.vruntime, before->vruntime))
			break;
		row->entry[row_slot(end - i)] = *before;
	}
	row->entry[row_slot(end - i)] = task;
	row->count++;
	return !is_full;
}

/* Removes a task, if it is there. */
POLICY void row_remove(struct sibling_row *row, u32 pid)
{
	u32 i;

	for (i = 0; i < ROW_PLACES; i++) {
		if (i >= row->count || row->entry[row_slot(row->first + i)].pid == pid)
			break;
	}
	if (i >= row->count || i >= ROW_PLACES)
		return;
	row->count--;
	if (!i) {
		row->first++;
		return;
	}
	/*
	 * In memory, like the count: in a register, the verifier would know for each turn of the
	 * first loop where it ended, and follow the second loop for each.
	 */
	row->hole = i;
	for (i = row->hole; i < ROW_PLACES; i++) {
		if (i >= row->count)
			break;
		row->entry[row_slot(row->first + i)] = row->entry[row_slot(row->first + i + 1)];
	}
}

/*
 * The first entry with this tag; `looked`: how many entries were looked at. A concurrent change may
 * make it miss one entry or see one twice: the result is a hint.
 */
POLICY struct row_entry row_find_first(const struct sibling_row *row, u32 tag, u32 *looked)
{
	struct row_entry none = {};
	u32 i;

	for (i = 0; i < ROW_PLACES; i++) {
		const struct row_entry *entry = &row->entry[row_slot(row->first + i)];

		if (i >= row->count)
			break;
		if (entry->tag == tag) {
			*looked = i + 1;
			return *entry;
		}
	}
	*looked = i;
	return none;
}

#endif
