/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The index of siblings: the tasks that wait in each CPU's queue, by address space and in the order
 * of vruntime. It finds the best sibling without a walk through the queue, however many programs
 * and tasks wait there. Each CPU has rows; spaces with keys that fall into one row share it.
 *
 * The index is a hint. It shares no lock with the queues, so a task that it names is checked again
 * before it gets the CPU (dispatch_sibling()), and a task that it misses waits for its turn in the
 * queue like every other task. In the mode `rounds` only tasks of spaces that aggregate are in it.
 */
#ifndef EVENKEEL_KEEL_INDEX_H
#define EVENKEEL_KEEL_INDEX_H

#include "row.h"

/* The upper bits of a key, from this one on, choose the row. */
#define ROW_SHIFT 58
_Static_assert(CPU_ROWS == 1ULL << (64 - ROW_SHIFT), "a row a value of these bits");

struct keel_row {
	struct bpf_spin_lock lock;
	u32 pad;
	struct sibling_row row;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	/* set at load to the rows of the machine's CPUs */
	__uint(max_entries, MAX_CPUS * CPU_ROWS);
	__type(key, u32);
	__type(value, struct keel_row);
} sibling_rows SEC(".maps");

/*
 * The key that siblings share, well mixed: the upper bits choose the row, the next ones the tag. 0:
 * no space.
 */
static __always_inline u64 sibling_key(u64 space, u32 process)
{
	/* 2^64 divided by the golden ratio (Knuth, The Art of Computer Programming 3, 6.4). */
	return space ? (space ^ (u64)process << 40) * 0x9e3779b97f4a7c15ULL | 1 : 0;
}

static __always_inline u32 tag_of(u64 key)
{
	return key >> (ROW_SHIFT - 32);
}

static __always_inline struct keel_row *find_row(u32 cpu, u64 key)
{
	u32 row = cpu * CPU_ROWS + (key >> ROW_SHIFT);

	return bpf_map_lookup_elem(&sibling_rows, &row);
}

KEEL_PART int insert_row_entry(u32 cpu, u64 key, u64 vruntime, u32 pid, u64 weight)
{
	struct row_entry task = {
		.vruntime = vruntime, .tag = tag_of(key), .pid = pid, .weight = weight,
	};
	u32 room = min_u64(READ_ONCE(tunables.sibling_window), ROW_PLACES);
	struct keel_row *row = find_row(cpu, key);
	bool has_room;

	if (!row)
		return 0;
	bpf_spin_lock(&row->lock);
	has_room = row_insert(&row->row, task, room);
	bpf_spin_unlock(&row->lock);
	if (!has_room)
		count(COUNT_WINDOW);
	return 0;
}

KEEL_PART int remove_row_entry(u32 cpu, u64 key, u32 pid)
{
	struct keel_row *row = find_row(cpu, key);

	if (!row)
		return 0;
	bpf_spin_lock(&row->lock);
	row_remove(&row->row, pid);
	bpf_spin_unlock(&row->lock);
	return 0;
}

/* Removes a task that does not wait any more. */
static __always_inline void index_remove(struct task_struct *p, struct task_state *t)
{
	u32 on;

	if (settings.order != ORDER_IAS || !READ_ONCE(t->listed_on))
		return;
	on = __sync_lock_test_and_set(&t->listed_on, 0);
	if (on)
		remove_row_entry(on - 1, t->listed_as, p->pid);
}

/* Looks up whether the task's address space aggregates. */
KEEL_PART int look_up_aggregates(struct task_struct *p __arg_trusted, struct task_state *t, u64 as_of)
{
	u64 space = space_of(p);
	struct keel_space *set = space ? bpf_map_lookup_elem(&spaces, &space) : NULL;

	if (!t)
		return 0;
	t->known_space = space;
	t->known_as_of = as_of;
	t->aggregates = set && set->process == (u32)p->tgid && set->aggregation.agg &&
			set->aggregation.bonus_value;
	return 0;
}

/* Whether the task's address space aggregates. */
static __always_inline bool aggregates(struct task_struct *p, struct task_state *t)
{
	u64 as_of = READ_ONCE(spaces_set);

	if (t->known_as_of != as_of || t->known_space != space_of(p))
		look_up_aggregates(p, t, as_of);
	return t->aggregates;
}

/* Inserts a task that waits in the queue of this CPU. */
static __always_inline void index_insert(struct task_struct *p, struct task_state *t, u32 cpu)
{
	if (!may_aggregate())
		return;
	index_remove(p, t);
	if (takes_turns() && !aggregates(p, t))
		return;
	/* Through memory, because the verifier forbids arithmetic on a pointer. */
	WRITE_ONCE(t->listed_as, space_of(p));
	t->listed_as = sibling_key(READ_ONCE(t->listed_as), p->tgid);
	if (!t->listed_as)
		return;
	WRITE_ONCE(t->listings, t->listings + 1);
	__sync_lock_test_and_set(&t->listed_on, cpu + 1);
	insert_row_entry(cpu, t->listed_as, t->vruntime, p->pid, t->weight);
}

/* Moves a task that migrated to the queue of another CPU, unless it has left that meanwhile. */
static __always_inline void index_move(struct task_state *t, u32 pid, u32 src_cpu, u32 dst_cpu)
{
	u32 listings = READ_ONCE(t->listings);

	if (__sync_val_compare_and_swap(&t->listed_on, src_cpu + 1, dst_cpu + 1) != src_cpu + 1)
		return;
	remove_row_entry(src_cpu, t->listed_as, pid);
	insert_row_entry(dst_cpu, t->listed_as, t->vruntime, pid, READ_ONCE(t->weight));
	/* Code that removed the task in between did not find it in the new row yet. */
	if (READ_ONCE(t->listed_on) != dst_cpu + 1 || READ_ONCE(t->listings) != listings)
		remove_row_entry(dst_cpu, t->listed_as, pid);
}

#endif
