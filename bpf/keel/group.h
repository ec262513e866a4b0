/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * cpu.weight of cgroups. A group competes in its parent like one task of the group's weight. Its
 * runnable tasks and child groups share what it gets, by their weights. So a task weighs
 *
 *     its own weight x product over its groups of (group's weight / active weight in it)
 *
 * without the root group. Each group has a slot. The root has slot 0, and tasks in it are not
 * counted in any group.
 */
#ifndef EVENKEEL_KEEL_GROUP_H
#define EVENKEEL_KEEL_GROUP_H

/* The maximum number of groups with a slot; further ones count as their parents. */
#define MAX_GROUPS 4096
#define ROOT_GROUP 0
/* The maximum number of levels that count. */
#define MAX_DEPTH 8
/* The default cpu.weight of a group, and the kernel's weight of a nice-0 task. */
#define DEFAULT_WEIGHT 100

struct group_state {
	u64 id;		/* of the cgroup */
	u64 weight;	/* in NICE_0_WEIGHT */
	u64 active;	/* weights of its runnable tasks and active child groups; atomic */
	u64 shown;	/* what the group adds to the parent's `active`; atomic */
	u32 parent;	/* slot of the parent */
	u32 used;	/* atomic */
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

static __always_inline u32 find_slot(struct cgroup *cgrp)
{
	u64 id = cgrp->kn->id;
	u32 *slot;

	if (!cgrp->level)
		return ROOT_GROUP;
	slot = bpf_map_lookup_elem(&group_slots, &id);
	return slot ? *slot : ROOT_GROUP;
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

/* Claims a free slot; ROOT_GROUP: there is none. */
KEEL_PART u32 claim_slot(void)
{
	u32 slot;

	bpf_for(slot, 1, MAX_GROUPS) {
		struct group_state *g = group_state(slot);

		if (g && !__sync_val_compare_and_swap(&g->used, 0, 1))
			return slot;
	}
	return ROOT_GROUP;
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
	struct group_state *g;
	struct cgroup *above;
	u64 id = cgrp->kn->id;
	u32 parent, slot;

	if (!cgrp->level)
		return 0;
	count_unenforced_quota(args->bw_quota_us);
	above = bpf_cgroup_ancestor(cgrp, cgrp->level - 1);
	if (!above)
		return 0;
	parent = find_slot(above);
	bpf_cgroup_release(above);
	slot = claim_slot();
	g = group_state(slot);
	if (slot == ROOT_GROUP || !g) {
		/* No slot left: the group counts as its parent. */
		bpf_map_update_elem(&group_slots, &id, &parent, BPF_ANY);
		return 0;
	}
	g->id = id;
	g->weight = scaled_weight(args->weight);
	g->parent = parent;
	g->active = 0;
	g->shown = 0;
	if (bpf_map_update_elem(&group_slots, &id, &slot, BPF_ANY))
		g->used = 0;
	return 0;
}

void KEEL_OPS(keel_cgroup_exit, struct cgroup *cgrp)
{
	u64 id = cgrp->kn->id;
	struct group_state *g;
	u32 slot = find_slot(cgrp);

	bpf_map_delete_elem(&group_slots, &id);
	g = group_state(slot);
	/* A group without a slot of its own has its parent's, which stays. */
	if (slot != ROOT_GROUP && g && g->id == id)
		g->used = 0;
}

/* The task is in no queue meanwhile, so it is not counted in either group. */
void KEEL_OPS(keel_cgroup_move, struct task_struct *p, struct cgroup *src, struct cgroup *dst)
{
	struct task_state *t = task_state(p);

	if (t)
		t->group = find_slot(dst);
}

void KEEL_OPS(keel_cgroup_set_weight, struct cgroup *cgrp, u32 weight)
{
	u32 slot = find_slot(cgrp);
	struct group_state *g = group_state(slot);

	if (slot == ROOT_GROUP || !g || g->id != cgrp->kn->id)
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
