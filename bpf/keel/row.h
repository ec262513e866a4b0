/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A row of the index of siblings (index.h): tasks in the order of vruntime, in a ring, because most
 * leave at the front and come at the end. Freestanding like a policy, and tested like one.
 */
#ifndef EVENKEEL_KEEL_ROW_H
#define EVENKEEL_KEEL_ROW_H

/* A row's places; a power of two. */
#define ROW_PLACES 128

struct row_entry {
	u64 vruntime;
	u32 tag;	/* whose sibling it is, of all that share the row */
	u32 pid;	/* 0: none */
};

struct sibling_row {
	u32 first;	/* place of the smallest vruntime; counts on and on */
	volatile u32 count;
	volatile u32 hole;	/* where the last one was that left, counted from the first */
	u32 pad;
	struct row_entry entry[ROW_PLACES];
};

POLICY u32 row_slot(u32 place)
{
	return place & (ROW_PLACES - 1);
}

/* Puts a task where it belongs, behind its equals; the last one gives way if `room` are there. */
POLICY bool row_insert(struct sibling_row *row, struct row_entry task, u32 room)
{
	bool is_full = row->count >= room;
	u32 end, i;

	if (is_full) {
		end = row->first + row->count - 1;
		if (!row->count || !is_vruntime_before(task.vruntime, row->entry[row_slot(end)].vruntime))
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

/* Takes a task out, if it is there. */
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
	 * By way of memory, like the count: of what is in a register the verifier knows where the first
	 * loop ended, and follows the second one for each such place.
	 */
	row->hole = i;
	for (i = row->hole; i < ROW_PLACES; i++) {
		if (i >= row->count)
			break;
		row->entry[row_slot(row->first + i)] = row->entry[row_slot(row->first + i + 1)];
	}
}

/*
 * The first one with this tag; `looked`: how many were looked at. Whoever changes the row meanwhile
 * may have it miss one or see one twice: what it finds is a hint.
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
