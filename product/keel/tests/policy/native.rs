//! The policies as Rust sees them: `policy/*.h` through `native/policy.c`, with the same structs.

mod balance;
mod gate;

pub use balance::*;
pub use gate::*;

/// `struct cpu_view`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct CpuView {
    pub load: u64,
    pub cpu: u32,
    pub runnable: u32,
    pub waiting: u32,
    pub capability: u32,
    pub distance: u32,
    pub sibling: u32,
    pub far: u32,
    pub idle: bool,
}

/// `struct group_view`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct GroupView {
    pub load: u64,
    pub cpus: u32,
    pub runnable: u32,
    pub waiting: u32,
    pub capability: u32,
    pub first: u32,
    pub busiest: u32,
    pub busiest_waiting: u32,
    pub busiest_capability: u32,
    pub busiest_load: u64,
}

/// `struct balance_params`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct BalanceParams {
    /// 0: count, 1: capability.
    pub kind: u32,
    /// home 1, cost 2, plain 4, bare 8, active 16, turns 32, similar 64; the laboratory's rules of
    /// `policy/balance_paper.h` from 1 << 16 on.
    pub parts: u32,
    pub faster: u32,
    pub tasks: u32,
}

/// `struct task_view`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct TaskView {
    pub weight: u64,
    pub rested_ns: u64,
    pub bound: bool,
    pub sibling: u32,
    pub far_src: u32,
    pub far_dst: u32,
}

/// `struct order_candidate`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct Candidate {
    pub exists: bool,
    pub vruntime: u64,
    pub bonus: u64,
}

impl Candidate {
    pub fn at(vruntime: Option<u64>) -> Self {
        Self { exists: vruntime.is_some(), vruntime: vruntime.unwrap_or(0), bonus: 0 }
    }
}

/// `struct aggregation`.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
pub struct Aggregation {
    pub bonus_value: u64,
    pub bonus_max_ns: u64,
    pub turn_max_ns: u64,
    pub limit: u64,
    pub bonus_type: u32,
    pub agg: u32,
}

/// `struct row_entry`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
pub struct RowEntry {
    pub vruntime: u64,
    pub tag: u32,
    pub pid: u32,
    pub weight: u32,
    pub pad: u32,
}

/// `enum ias_mode`.
pub const IAS_ROUNDS: u32 = 0;
pub const IAS_PAPER: u32 = 1;

/// `ROW_PLACES`.
pub const ROW_PLACES: usize = 128;

/// `struct sibling_row`.
#[derive(Debug, Clone, PartialEq)]
#[repr(C)]
pub struct Row {
    pub first: u32,
    pub count: u32,
    pad: [u32; 2],
    pub entry: [RowEntry; ROW_PLACES],
}

impl Row {
    /// Empty, with this first position.
    pub fn empty(first: u32) -> Self {
        Self { first, count: 0, pad: [0; 2], entry: [RowEntry::default(); ROW_PLACES] }
    }

    /// Returns whether no task was left out.
    pub fn add(&mut self, task: RowEntry, room: u32) -> bool {
        raw::test_row_insert(self, &task, room) != 0
    }

    pub fn remove(&mut self, pid: u32) {
        raw::test_row_remove(self, pid);
    }

    /// The first with this tag, and how many were looked at.
    pub fn best(&self, tag: u32) -> (Option<RowEntry>, u32) {
        let mut best = RowEntry::default();
        let looked = raw::test_row_find_first(self, tag, &mut best);
        (Some(best).filter(|best| best.pid != 0), looked)
    }

    /// All entries, in order.
    pub fn tasks(&self) -> Vec<RowEntry> {
        let place = |at: u32| self.entry[self.first.wrapping_add(at) as usize % ROW_PLACES];
        (0..self.count).map(place).collect()
    }
}

pub const NICE_0: u64 = 1 << 20;
pub const MIN_WEIGHT: u64 = 1 << 10;
pub const FULL: u32 = 1024;
pub const NO_CPU: u32 = u32::MAX;
/// `enum order_place`.
pub const PLACE_WAKE: u32 = 0;
pub const PLACE_ARRIVE: u32 = 1;
/// `ORDER_BOUND_NS`.
pub const BOUND_NS: u64 = 10_000_000_000;
/// `enum order_kind`.
pub const ORDER_FAIR: u32 = 0;
pub const ORDER_IAS: u32 = 1;
/// `enum order_choice`.
pub const CHOOSE_NONE: u32 = 0;
pub const CHOOSE_PREV: u32 = 1;
pub const CHOOSE_HEAD: u32 = 2;
pub const CHOOSE_SIBLING: u32 = 3;
pub const CHOOSE_PUBLISHED: u32 = 4;
/// `enum gate_kind`.
pub const GATE_ALWAYS: u32 = 0;
pub const GATE_ZONE: u32 = 1;
/// `enum move_reason`.
pub const MOVE_WAKE: u32 = 0;
pub const MOVE_FORK: u32 = 1;
pub const MOVE_EXEC: u32 = 2;
pub const MOVE_IDLE: u32 = 3;
pub const MOVE_PERIODIC: u32 = 4;
pub const MOVE_REASONS: u32 = 7;

/// `enum task_score`.
pub const SCORE_SECOND: u32 = 1;
pub const SCORE_FIRST: u32 = 2;
pub const SCORE_SIBLING: u32 = 3;

mod raw {
    use super::{
        Aggregation, BalanceParams, Candidate, CpuView, GateStay, GateView, GroupView, Row,
        RowEntry, TaskView, ZoneKnobs,
    };

    #[link(name = "keel_policy", kind = "dylib")]
    unsafe extern "C" {
        pub safe fn test_order_place(
            slice_ns: u64,
            v: u64,
            src_clock: u64,
            dst_clock: u64,
            place: u32,
        ) -> u64;
        pub safe fn test_order_place_new(
            slice_ns: u64,
            clock: u64,
            tasks: u64,
            parent_late: u64,
            paid_ns: u64,
            weight: u64,
        ) -> u64;
        pub safe fn test_order_calc_debt(vruntime: u64, clock: u64, weight: u64) -> u64;
        pub safe fn test_order_calc_prepayment(slice_ns: u64, prepaid_ns: i64) -> u64;
        pub safe fn test_order_keeps_prepaid(slice_ns: u64, prepaid_ns: i64, change: i64) -> bool;
        pub safe fn test_order_charge(vruntime: u64, run_ns: u64, weight: u64) -> u64;
        pub safe fn test_order_pick(kind: u32, candidates: &[Candidate; 4]) -> u32;
        pub safe fn test_order_is_head_next(kind: u32, prev: &Candidate) -> u32;
        pub safe fn test_order_update_fair_clock(
            fair_clock: u64,
            clock: u64,
            vruntime: u64,
            run_ns: u64,
            load: u64,
            tasks: u64,
        ) -> u64;
        pub safe fn test_order_is_turn_over(slice_ns: u64, turn_ns: u64, ns: u64) -> u32;
        pub safe fn test_order_passes_turn(head: u64, clock: u64, woken: u64) -> u32;
        pub safe fn test_order_may_prefer(
            mode: u32,
            space: &Aggregation,
            bonus_ns: u64,
            fair_clock: u64,
            fair: u64,
            load: u64,
            tasks: u64,
        ) -> u32;
        pub safe fn test_order_weigh_bonus(space: &Aggregation, bonus_ns: u64, weight: u64) -> u64;
        pub safe fn test_order_calc_bonus(
            mode: u32,
            space: &Aggregation,
            quantum_ns: u64,
            preferred: u64,
        ) -> u64;
        pub safe fn test_order_update_mean(
            mean: u64,
            charged: u64,
            tasks: u64,
            least: u64,
            most: u64,
        ) -> u64;
        pub safe fn test_order_place_exchanged(
            v: u64,
            src_mean: u64,
            dst_mean: u64,
            dst_clock: u64,
            spread: u64,
        ) -> u64;
        pub safe fn test_order_is_similar_weight(weight: u64, other: u64) -> u32;
        pub safe fn test_order_should_publish(choice: u32, sibling: &Candidate) -> u32;
        pub safe fn test_order_is_sibling(kind: u32, task_space: u64, running_space: u64) -> u32;
        pub safe fn test_order_should_preempt(slice_ns: u64, waking: u64, running: u64) -> u32;
        pub safe fn test_order_should_preempt_kept(waking: u64, running: u64) -> u32;
        pub safe fn test_order_should_yield(ran_ns: u64) -> u32;
        pub safe fn test_order_is_protected(slice_ns: u64, ran_ns: u64) -> u32;
        pub safe fn test_gate_judge_task(kind: u32, zone: &ZoneKnobs, view: &GateView) -> u32;
        pub safe fn test_gate_judge_cpu(kind: u32, zone: &ZoneKnobs, view: &GateView) -> u32;
        pub safe fn test_gate_enough_cpus(mean_utilisation: u32, online: u32) -> u32;
        pub safe fn test_gate_max_wait(zone: &ZoneKnobs, burst_ns: u64) -> u64;
        pub safe fn test_gate_should_stay(zone: &ZoneKnobs, stay: &GateStay) -> u32;
        pub safe fn test_gate_update_burst(mean_ns: u64, ns: u64) -> u64;
        pub safe fn test_gate_has_scores(kind: u32, zone: &ZoneKnobs) -> u32;
        pub safe fn test_gate_is_asked(reason: u32, max_idle_wait_ns: u64) -> u32;
        pub fn test_gate_calc_mean(
            zone: &ZoneKnobs,
            cpus: *const u32,
            idle: *const u8,
            n: u32,
        ) -> u32;
        pub safe fn test_gate_update_above_since(
            zone: &ZoneKnobs,
            since_ns: u64,
            share: u32,
            now: u64,
        ) -> u64;
        pub safe fn test_gate_ends_above(zone: &ZoneKnobs, rest_ns: u64) -> u32;
        pub fn test_balance_sum(
            params: &BalanceParams,
            group: *mut GroupView,
            cpus: *const CpuView,
            count: u32,
        );
        pub safe fn test_balance_is_heavier(
            params: &BalanceParams,
            a: &GroupView,
            b: &GroupView,
        ) -> u32;
        pub safe fn test_balance_pull_quota(
            params: &BalanceParams,
            busiest: &GroupView,
            own: &CpuView,
            shared: u32,
        ) -> u64;
        pub safe fn test_balance_may_take(quota: u64, weight: u64, taken: u32) -> u32;
        pub safe fn test_balance_reduce_quota(
            params: &BalanceParams,
            quota: u64,
            weight: u64,
            idle: u32,
        ) -> u64;
        pub safe fn test_balance_is_busier(a: &GroupView, b: &GroupView) -> u32;
        pub safe fn test_balance_takes_all(
            params: &BalanceParams,
            fast: u32,
            src_capability: u32,
            own_capability: u32,
        ) -> u32;
        pub safe fn test_balance_is_better_leader(
            params: &BalanceParams,
            best: &CpuView,
            candidate: &CpuView,
        ) -> u32;
        pub safe fn test_balance_update_bound_share(
            value: u32,
            known_ns: u64,
            ns: u64,
            ran: u32,
        ) -> u32;
        pub safe fn test_balance_should_abstain(params: &BalanceParams) -> u32;
        pub safe fn test_balance_is_cpu_bound(share: u32, bound: u32) -> u32;
        pub safe fn test_balance_score_task(
            params: &BalanceParams,
            task: &TaskView,
            src_capability: u32,
            dst_capability: u32,
        ) -> u32;
        pub safe fn test_balance_is_better_for_waking(
            params: &BalanceParams,
            best: &CpuView,
            candidate: &CpuView,
        ) -> u32;
        pub safe fn test_balance_is_better_for_new(
            params: &BalanceParams,
            best: &CpuView,
            candidate: &CpuView,
        ) -> u32;
        pub safe fn test_balance_is_better_for_running(
            params: &BalanceParams,
            best: &CpuView,
            candidate: &CpuView,
        ) -> u32;
        pub safe fn test_balance_should_take_turns(
            params: &BalanceParams,
            a: &CpuView,
            b: &CpuView,
        ) -> u32;
        pub safe fn test_balance_should_gather(
            params: &BalanceParams,
            own: &CpuView,
            fast: &CpuView,
            ours: u32,
            theirs: u32,
            first: u32,
        ) -> u32;
        pub safe fn test_balance_turn_ns(unlike: u32, cpus: u32) -> u64;
        pub safe fn test_balance_should_pull(
            params: &BalanceParams,
            src: &CpuView,
            dst: &CpuView,
            weight: u64,
        ) -> u32;
        pub safe fn test_balance_placing_params(params: &BalanceParams) -> u32;
        pub safe fn test_row_insert(row: &mut Row, task: &RowEntry, room: u32) -> u32;
        pub safe fn test_row_remove(row: &mut Row, pid: u32);
        pub safe fn test_row_find_first(row: &Row, tag: u32, best: &mut RowEntry) -> u32;
        pub safe fn test_decay_share(value: u32, ns: u64, busy: u32) -> u32;
    }
}

pub fn turn_ns(unlike: u32, cpus: u32) -> u64 {
    raw::test_balance_turn_ns(unlike, cpus)
}

pub fn place(slice_ns: u64, vruntime: u64, src_clock: u64, dst_clock: u64, place: u32) -> u64 {
    raw::test_order_place(slice_ns, vruntime, src_clock, dst_clock, place)
}

/// Outside cgroups, of a parent that is not late.
pub fn place_new(slice_ns: u64, clock: u64, tasks: u64) -> u64 {
    place_heir(slice_ns, clock, tasks, 0, 0, NICE_0)
}

pub use raw::test_order_place_new as place_heir;

pub use raw::test_order_calc_debt as debt_ns;

pub fn prepayment_ns(slice_ns: u64, prepaid_ns: i64) -> u64 {
    raw::test_order_calc_prepayment(slice_ns, prepaid_ns)
}

pub fn keeps_prepaid(slice_ns: u64, prepaid_ns: i64, change_ns: i64) -> bool {
    raw::test_order_keeps_prepaid(slice_ns, prepaid_ns, change_ns)
}

pub fn charge(vruntime: u64, run_ns: u64, weight: u64) -> u64 {
    raw::test_order_charge(vruntime, run_ns, weight)
}

/// What `fair` picks.
pub fn pick(prev: Option<u64>, head: Option<u64>) -> u32 {
    let none = Candidate::default();
    pick_fair(&[Candidate::at(prev), Candidate::at(head), none, none])
}

/// What `ias` picks of the task that ran, the head, the sibling and the published one.
pub fn pick_ias(candidates: &[Candidate; 4]) -> u32 {
    raw::test_order_pick(ORDER_IAS, candidates)
}

/// What `fair` picks of these.
pub fn pick_fair(candidates: &[Candidate; 4]) -> u32 {
    raw::test_order_pick(ORDER_FAIR, candidates)
}

/// Whether the queue's head runs, whatever its vruntime.
pub fn is_head(kind: u32, prev: Option<u64>) -> bool {
    raw::test_order_is_head_next(kind, &Candidate::at(prev)) != 0
}

/// In the mode `paper`, as `may_prefer`.
pub fn bonus(space: &Aggregation, quantum_ns: u64, preferred: u64) -> u64 {
    raw::test_order_calc_bonus(IAS_PAPER, space, quantum_ns, preferred)
}

pub fn bonus_in_rounds(space: &Aggregation, quantum_ns: u64, preferred: u64) -> u64 {
    raw::test_order_calc_bonus(IAS_ROUNDS, space, quantum_ns, preferred)
}

pub fn is_turn_over(slice_ns: u64, turn_ns: u64, ns: u64) -> bool {
    raw::test_order_is_turn_over(slice_ns, turn_ns, ns) != 0
}

pub fn passes_turn(head: u64, clock: u64, woken: u64) -> bool {
    raw::test_order_passes_turn(head, clock, woken) != 0
}

pub fn fair_clock_after(
    fair_clock: u64,
    clock: u64,
    vruntime: u64,
    run_ns: u64,
    load: u64,
    tasks: u64,
) -> u64 {
    raw::test_order_update_fair_clock(fair_clock, clock, vruntime, run_ns, load, tasks)
}

pub fn may_prefer(
    space: &Aggregation,
    bonus_ns: u64,
    fair_clock: u64,
    fair: u64,
    load: u64,
    tasks: u64,
) -> bool {
    raw::test_order_may_prefer(IAS_PAPER, space, bonus_ns, fair_clock, fair, load, tasks) != 0
}

pub fn may_prefer_in_rounds(
    space: &Aggregation,
    fair_clock: u64,
    fair: u64,
    load: u64,
    tasks: u64,
) -> bool {
    raw::test_order_may_prefer(IAS_ROUNDS, space, u64::MAX, fair_clock, fair, load, tasks) != 0
}

pub fn weighed(space: &Aggregation, bonus_ns: u64, weight: u64) -> u64 {
    raw::test_order_weigh_bonus(space, bonus_ns, weight)
}

pub fn mean_of_all(mean: u64, charged: u64, tasks: u64, least: u64, most: u64) -> u64 {
    raw::test_order_update_mean(mean, charged, tasks, least, most)
}

pub fn exchange(vruntime: u64, src_mean: u64, dst_mean: u64, dst_clock: u64, spread: u64) -> u64 {
    raw::test_order_place_exchanged(vruntime, src_mean, dst_mean, dst_clock, spread)
}

pub fn alike(weight: u64, other: u64) -> bool {
    raw::test_order_is_similar_weight(weight, other) != 0
}

pub fn publishes(choice: u32, sibling: &Candidate) -> bool {
    raw::test_order_should_publish(choice, sibling) != 0
}

pub fn is_sibling(kind: u32, task_space: u64, running_space: u64) -> u32 {
    raw::test_order_is_sibling(kind, task_space, running_space)
}

pub fn preempt(slice_ns: u64, waking: u64, running: u64) -> bool {
    raw::test_order_should_preempt(slice_ns, waking, running) != 0
}

pub fn gives_way(ran_ns: u64) -> bool {
    raw::test_order_should_yield(ran_ns) != 0
}

pub fn preempts_kept(waking: u64, running: u64) -> bool {
    raw::test_order_should_preempt_kept(waking, running) != 0
}

pub fn protects(slice_ns: u64, ran_ns: u64) -> bool {
    raw::test_order_is_protected(slice_ns, ran_ns) != 0
}

pub fn decayed_share(value: u32, ns: u64, busy: bool) -> u32 {
    raw::test_decay_share(value, ns, u32::from(busy))
}
