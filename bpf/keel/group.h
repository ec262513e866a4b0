/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * cpu.weight of cgroups. A group competes in its parent like one task of the group's weight. Its
 * runnable tasks and child groups share what it gets, by their weights. So a task weighs
 *
 *     its own weight x product over its groups of (group's weight / active weight in it)
 *
 * up to the root group, which is left out. Each group has a slot. The root has slot 0, and tasks in
 * it are not counted in any group.
 *
 * A group without a slot counts as its nearest ancestor that has one. So do groups deeper than
 * MAX_DEPTH, and groups beyond their ancestors' quotas: a user with a delegated subtree cannot use
 * up the slots of others. A slot is reused when nothing refers to it any more: neither a cgroup nor a
 * task nor the slot of a child. A task that ends can outlive its cgroup.
 */
#ifndef EVENKEEL_KEEL_GROUP_H
#define EVENKEEL_KEEL_GROUP_H

/* The number of slots. */
#define MAX_GROUPS 16384
#define ROOT_GROUP 0
/* Groups on deeper levels have no slot. (The root is on level 0.) */
#define MAX_DEPTH 32
/* Each level halves the quota of slots (calc_slot_quota()), down to this one. */
#define QUOTA_LEVELS 5
/* The default cpu.weight of a group, and the kernel's weight of a nice-0 task. */
#define DEFAULT_WEIGHT 100

struct group_state {
	u64 weight;	/* in NICE_0_WEIGHT */
	u64 active;	/* weights of its runnable tasks and active child groups; atomic */
	u64 shown;	/* what the group adds to the parent's `active`; atomic */
	u32 parent;	/* slot of the nearest ancestor that has one */
	u32 users;	/* its cgroup, its tasks, and slots with it as parent; 0: free; atomic */
	u32 level;	/* of its cgroup */
	u32 slots;	/* how many slots its descendants have; atomic */
	u64 prepaid_ns;	/* signed: what its new tasks have paid for and not used; atomic */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_GROUPS);
	__type(key, u32);
	__type(value, struct group_state);
} groups SEC(".maps");

/* The slots, by cgroup id. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_GROUPS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, u64);
	__type(value, u32);
} group_slots SEC(".maps");

static __always_inline struct group_state *group_state(u32 slot)
{
	return bpf_map_lookup_elem(&groups, &slot);
}

/* The slot of a cgroup; ROOT_GROUP: it has none of its own. */
static __always_inline u32 find_own_slot(u64 id)
{
	u32 *slot = bpf_map_lookup_elem(&group_slots, &id);

	return slot ? *slot : ROOT_GROUP;
}

/* The slot that a cgroup counts as: its own, or that of its nearest ancestor that has one. */
static __always_inline u32 find_slot(struct cgroup *cgrp)
{
	u32 levels = cgrp->level, level, slot;

	bpf_for(level, 0, levels) {
		slot = find_own_slot(id_of_cgroup(cgrp));
		if (slot != ROOT_GROUP)
			return slot;
		cgrp = parent_of_cgroup(cgrp);
	}
	return ROOT_GROUP;
}

/* Converts the kernel's weight (1..=10000, 100 for nice 0) to units of NICE_0_WEIGHT. */
static __always_inline u64 scaled_weight(u64 weight)
{
	return weight * NICE_0_WEIGHT / DEFAULT_WEIGHT;
}

/* The weight of a task after its groups' shares. */
KEEL_PART u64 weigh_in_groups(u64 weight, u32 slot)
{
	int depth;

	bpf_for(depth, 0, MAX_DEPTH) {
		struct group_state *g = group_state(slot);
		u64 active;

		if (slot == ROOT_GROUP || !g)
			break;
		active = READ_ONCE(g->active);
		/*
		 * Both are at most 100 x NICE_0_WEIGHT, and no member weighs more than all members
		 * together.
		 */
		weight = active > weight ? weight * g->weight / active : g->weight;
		slot = g->parent;
	}
	return weight > MIN_WEIGHT ? weight : MIN_WEIGHT;
}

static __always_inline void refresh_weight(struct task_struct *p, struct task_state *t)
{
	u64 weight = scaled_weight(p->scx.weight);

	t->weight = t->group == ROOT_GROUP ? weight : weigh_in_groups(weight, t->group);
}

/*
 * A group adds its weight to its parent while a task is active in it, and so on upwards. Several
 * CPUs may change `active` at the same time: the last one to write `shown` checks again.
 */
KEEL_PART int propagate_group_weight(u32 slot)
{
	int step;

	bpf_for(step, 0, 2 * MAX_DEPTH) {
		struct group_state *g = group_state(slot), *parent;
		u64 weight, added;

		if (slot == ROOT_GROUP || !g)
			break;
		weight = READ_ONCE(g->active) ? READ_ONCE(g->weight) : 0;
		if (READ_ONCE(g->shown) == weight)
			break;
		added = weight - __sync_lock_test_and_set(&g->shown, weight);
		parent = group_state(g->parent);
		if (g->parent != ROOT_GROUP && parent)
			__sync_fetch_and_add(&parent->active, added);
		if (weight == (READ_ONCE(g->active) ? READ_ONCE(g->weight) : 0))
			slot = g->parent;
	}
	return 0;
}

/* A task that becomes runnable adds its weight to its group. */
static __always_inline void count_in_group(struct task_struct *p, struct task_state *t)
{
	struct group_state *g;

	t->grouped_weight = 0;
	if (t->group == ROOT_GROUP)
		return;
	g = group_state(t->group);
	if (!g)
		return;
	t->grouped_weight = scaled_weight(p->scx.weight);
	if (!__sync_fetch_and_add(&g->active, t->grouped_weight))
		propagate_group_weight(t->group);
}

static __always_inline void uncount_in_group(struct task_state *t)
{
	struct group_state *g;

	if (!t->grouped_weight)
		return;
	g = group_state(t->group);
	if (!g)
		return;
	if (__sync_fetch_and_sub(&g->active, t->grouped_weight) == t->grouped_weight)
		propagate_group_weight(t->group);
	t->grouped_weight = 0;
}

/*
 * How many slots the descendants of a group on this level may have. Children of its own may use all
 * of them, deeper descendants three quarters: so that a child's subtree cannot keep its siblings
 * from having a slot each.
 */
static __always_inline u32 calc_slot_quota(u32 level, bool is_child)
{
	u32 quota = level < QUOTA_LEVELS ? MAX_GROUPS >> level : MAX_GROUPS >> QUOTA_LEVELS;

	return is_child ? quota : quota - quota / 4;
}

/* Whether all ancestors, from the slot `parent` up, have room for the slot of one more child of it. */
KEEL_PART bool has_slot_quota(u32 parent)
{
	u32 slot = parent;
	int step;

	bpf_for(step, 0, MAX_DEPTH + 1) {
		struct group_state *g = group_state(slot);

		if (!g || READ_ONCE(g->slots) >= calc_slot_quota(g->level, slot == parent))
			return 0;
		if (slot == ROOT_GROUP)
			break;
		slot = g->parent;
	}
	return 1;
}

/* Counts a slot more (1) or less (-1) for all ancestors, from the slot `parent` up. */
KEEL_PART int count_slot(u32 parent, int more)
{
	u32 slot = parent;
	int step;

	bpf_for(step, 0, MAX_DEPTH + 1) {
		struct group_state *g = group_state(slot);

		if (!g)
			break;
		__sync_fetch_and_add(&g->slots, more);
		if (slot == ROOT_GROUP)
			break;
		slot = g->parent;
	}
	return 0;
}

static __always_inline void get_slot(u32 slot)
{
	struct group_state *g = group_state(slot);

	if (slot != ROOT_GROUP && g)
		__sync_fetch_and_add(&g->users, 1);
}

/* The last user frees the slot, which is then no user of its parent's any more. */
KEEL_PART int put_slot(u32 slot)
{
	int step;

	bpf_for(step, 0, MAX_DEPTH + 1) {
		struct group_state *g = group_state(slot);
		u32 parent;

		if (slot == ROOT_GROUP || !g)
			break;
		/* Once it is free, another cgroup may claim it. */
		parent = g->parent;
		if (__sync_fetch_and_sub(&g->users, 1) != 1)
			break;
		count_slot(parent, -1);
		slot = parent;
	}
	return 0;
}

/* Where the next search for a free slot begins. */
u32 next_slot;

/* Claims a free slot; ROOT_GROUP: there is none. */
KEEL_PART u32 claim_slot(void)
{
	u32 first = READ_ONCE(next_slot), step;

	bpf_for(step, 0, MAX_GROUPS) {
		u32 slot = BOUNDED(first + step, MAX_GROUPS);
		struct group_state *g = group_state(slot);

		if (slot == ROOT_GROUP || !g || __sync_val_compare_and_swap(&g->users, 0, 1))
			continue;
		WRITE_ONCE(next_slot, slot + 1);
		return slot;
	}
	return ROOT_GROUP;
}

/* What the group's new tasks have paid for and not used; of the root group, which is no user's, 0. */
static __always_inline u64 get_prepaid_ns(u32 slot)
{
	struct group_state *g = group_state(slot);

	return slot != ROOT_GROUP && g ? READ_ONCE(g->prepaid_ns) : 0;
}

/*
 * `change_ns` is signed. It is what a new task pays beyond its slice, or what it did not use of that
 * slice; negative where it pays less or used more, and for the debt of a task that ends.
 */
static __always_inline void change_prepaid(u32 slot, u64 change_ns)
{
	struct group_state *g = group_state(slot);
	struct order_params params = order_params();

	if (slot != ROOT_GROUP && g && order_keeps_prepaid(&params, READ_ONCE(g->prepaid_ns), change_ns))
		__sync_fetch_and_add(&g->prepaid_ns, change_ns);
}

/* The task counts in the group of this slot from now on. It is not runnable now. */
static __always_inline void join_group(struct task_state *t, u32 slot)
{
	u32 before = t->group;

	get_slot(slot);
	t->group = slot;
	put_slot(before);
}

/* Larger quotas are the kernel's way to say that there is none. */
#define MAX_QUOTA_US (1ULL << 44)

/* cpu.max is not enforced. It is counted, so that user space can warn. */
static __always_inline void count_unenforced_quota(u64 quota_us)
{
	if (quota_us < MAX_QUOTA_US)
		count(COUNT_UNLIMITED);
}

s32 KEEL_OPS_S(keel_cgroup_init, struct cgroup *cgrp, struct scx_cgroup_init_args *args)
{
	u64 id = id_of_cgroup(cgrp);
	u32 level = cgrp->level, parent, slot;
	struct group_state *g;

	if (!level)
		return 0;
	count_unenforced_quota(args->bw_quota_us);
	/* The group itself has no slot yet. */
	parent = find_slot(cgrp);
	slot = level > MAX_DEPTH || !has_slot_quota(parent) ? ROOT_GROUP : claim_slot();
	g = group_state(slot);
	if (slot == ROOT_GROUP || !g) {
		count(COUNT_SLOTLESS);
		return 0;
	}
	g->weight = scaled_weight(args->weight);
	g->parent = parent;
	g->level = level;
	g->active = 0;
	g->shown = 0;
	g->slots = 0;
	g->prepaid_ns = 0;
	get_slot(parent);
	count_slot(parent, 1);
	if (bpf_map_update_elem(&group_slots, &id, &slot, BPF_ANY)) {
		count(COUNT_SLOTLESS);
		put_slot(slot);
	}
	return 0;
}

void KEEL_OPS(keel_cgroup_exit, struct cgroup *cgrp)
{
	u64 id = id_of_cgroup(cgrp);
	u32 slot = find_own_slot(id);

	if (slot == ROOT_GROUP)
		return;
	bpf_map_delete_elem(&group_slots, &id);
	put_slot(slot);
}

/* The task is in no queue meanwhile, so it is not counted in either group. */
void KEEL_OPS(keel_cgroup_move, struct task_struct *p, struct cgroup *src, struct cgroup *dst)
{
	struct task_state *t = task_state(p);

	if (t)
		join_group(t, find_slot(dst));
}

void KEEL_OPS(keel_cgroup_set_weight, struct cgroup *cgrp, u32 weight)
{
	u32 slot = find_own_slot(id_of_cgroup(cgrp));
	struct group_state *g = group_state(slot);

	if (slot == ROOT_GROUP || !g)
		return;
	WRITE_ONCE(g->weight, scaled_weight(weight));
	propagate_group_weight(slot);
}

void KEEL_OPS(keel_cgroup_set_bandwidth, struct cgroup *cgrp, u64 period_us, u64 quota_us,
	      u64 burst_us)
{
	count_unenforced_quota(quota_us);
}

#endif
