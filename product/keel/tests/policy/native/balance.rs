//! The rules of balancing as Rust sees them.

use super::{BalanceParams, CpuView, GroupView, TaskView, raw};

impl BalanceParams {
    pub fn place(&self, best: &CpuView, candidate: &CpuView) -> bool {
        raw::test_balance_is_better_for_new(self, best, candidate) != 0
    }

    pub fn active(&self, best: &CpuView, candidate: &CpuView) -> bool {
        raw::test_balance_is_better_for_running(self, best, candidate) != 0
    }

    pub fn change(&self, a: &CpuView, b: &CpuView) -> bool {
        raw::test_balance_should_take_turns(self, a, b) != 0
    }

    /// `[ours, theirs]` are how many each program has on faster CPUs.
    pub fn gather(
        &self,
        own: &CpuView,
        fast: &CpuView,
        [ours, theirs]: [u32; 2],
        first: bool,
    ) -> bool {
        raw::test_balance_should_gather(self, own, fast, ours, theirs, u32::from(first)) != 0
    }

    pub fn pays(&self, src: &CpuView, dst: &CpuView, weight: u64) -> bool {
        raw::test_balance_should_pull(self, src, dst, weight) != 0
    }

    /// The kind of balancing by which tasks are placed.
    pub fn placing(&self) -> u32 {
        raw::test_balance_placing_params(self)
    }

    pub fn sum(&self, cpus: &[CpuView]) -> GroupView {
        let mut group = GroupView::default();
        // SAFETY: the function writes one struct, and reads as many as there are.
        unsafe { raw::test_balance_sum(self, &raw mut group, cpus.as_ptr(), cpus.len() as u32) };
        group
    }

    pub fn heavier(&self, a: &GroupView, b: &GroupView) -> bool {
        raw::test_balance_is_heavier(self, a, b) != 0
    }

    /// Of a CPU with this capability: `fast` CPUs have at least as much.
    pub fn takes_all(&self, fast: u32, src_capability: u32, own_capability: u32) -> bool {
        raw::test_balance_takes_all(self, fast, src_capability, own_capability) != 0
    }

    pub fn leads(&self, best: &CpuView, candidate: &CpuView) -> bool {
        raw::test_balance_is_better_leader(self, best, candidate) != 0
    }

    /// What is left of a quota after a task of this weight.
    pub fn left(&self, quota: u64, weight: u64, idle: bool) -> u64 {
        raw::test_balance_reduce_quota(self, quota, weight, u32::from(idle))
    }

    pub fn quota(&self, busiest: &GroupView, own: &CpuView, shared: bool) -> u64 {
        raw::test_balance_pull_quota(self, busiest, own, u32::from(shared))
    }

    pub fn task_score(&self, task: &TaskView, src_capability: u32, dst_capability: u32) -> u32 {
        raw::test_balance_score_task(self, task, src_capability, dst_capability)
    }

    pub fn abstains(&self) -> bool {
        raw::test_balance_should_abstain(self) != 0
    }

    pub fn home(&self, best: &CpuView, candidate: &CpuView) -> bool {
        raw::test_balance_is_better_for_waking(self, best, candidate) != 0
    }
}

/// The share of running, in the unit of [`decayed_share`].
pub fn bound_share(value: u32, known_ns: u64, ns: u64, ran: bool) -> u32 {
    raw::test_balance_update_bound_share(value, known_ns, ns, u32::from(ran))
}

pub fn bound(share: u32, bound: bool) -> bool {
    raw::test_balance_is_cpu_bound(share, u32::from(bound)) != 0
}

pub fn fits(quota: u64, weight: u64, taken: bool) -> bool {
    raw::test_balance_may_take(quota, weight, u32::from(taken)) != 0
}

/// What is left of a quota after a task of this weight, without the laboratory's rules.
pub fn left(quota: u64, weight: u64, idle: bool) -> u64 {
    BalanceParams::default().left(quota, weight, idle)
}

/// Whether a CPU of b pulls from a.
pub fn busier(a: &GroupView, b: &GroupView) -> bool {
    raw::test_balance_is_busier(a, b) != 0
}
