//! Values beyond a bound count as the bound, so that no overflow reverses a decision.

use crate::balance::cpu;
use crate::native::*;

/// `MAX_LOAD`, `MAX_CPU_LOAD` and `BOUND_NS` of `policy/balance.h`.
const MAX_LOAD: u64 = 1 << 55;
const MAX_CPU_LOAD: u64 = MAX_LOAD >> 10;
const BALANCE_BOUND_NS: u64 = 1 << 30;

/// Loads of a CPU: none, realistic ones, those at the bound, and larger ones.
const LOADS: [u64; 8] = [
    0,
    NICE_0,
    1_000 * NICE_0,
    MAX_CPU_LOAD - NICE_0,
    MAX_CPU_LOAD,
    MAX_CPU_LOAD + 1,
    MAX_LOAD,
    1 << 61,
];

fn cpus() -> Vec<CpuView> {
    let mut all = Vec::new();
    for load in LOADS {
        for (capability, idle) in [(1, false), (600, false), (FULL, false), (FULL, true)] {
            all.push(CpuView { load, capability, idle, far: capability % 20, ..cpu(7, 3) });
        }
    }
    all
}

fn kinds() -> impl Iterator<Item = BalanceParams> {
    [(0, 0), (1, 0), (1, 3), (1, 15)].into_iter().map(|(kind, parts)| BalanceParams {
        kind,
        parts,
        faster: 0,
        tasks: 1_000,
    })
}

fn bounded(cpu: &CpuView) -> CpuView {
    CpuView { load: cpu.load.min(MAX_CPU_LOAD), ..*cpu }
}

#[test]
fn loads_of_cpus() {
    for (params, a) in kinds().flat_map(|params| cpus().into_iter().map(move |a| (params, a))) {
        for b in cpus() {
            let (a, b) = (a, CpuView { cpu: 9, ..b });
            let (less_a, less_b) = (bounded(&a), bounded(&b));
            let what = format!("{params:?} {a:?} {b:?}");
            assert_eq!(params.home(&a, &b), params.home(&less_a, &less_b), "{what}");
            assert_eq!(params.place(&a, &b), params.place(&less_a, &less_b), "{what}");
            let (sum, less) = (params.sum(&[a, b]), params.sum(&[less_a, less_b]));
            assert_eq!((sum.load, sum.busiest), (less.load, less.busiest), "{what}");
            let quota = |from: &GroupView, own| params.quota(from, own, true);
            assert_eq!(
                quota(&params.sum(&[a]), &b),
                quota(&params.sum(&[less_a]), &less_b),
                "{what}"
            );
            for weight in [1, NICE_0, MAX_CPU_LOAD, 1 << 61] {
                assert_eq!(
                    params.pays(&a, &b, weight),
                    params.pays(&less_a, &less_b, weight.min(MAX_CPU_LOAD)),
                    "{weight} {what}"
                );
            }
        }
    }
}

#[test]
fn loads_of_groups() {
    let loads = [0, NICE_0, MAX_LOAD - NICE_0, MAX_LOAD - 1, MAX_LOAD, 1 << 60, 1 << 62];
    for params in kinds() {
        for (load_a, load_b) in loads.iter().flat_map(|a| loads.map(|b| (*a, b))) {
            for (cpus_a, cpus_b) in [(1, 1), (1, 1024), (1024, 1), (1024, 1024)] {
                let group = |load, cpus| GroupView {
                    load,
                    cpus,
                    capability: cpus * FULL,
                    ..GroupView::default()
                };
                let less = |load: u64| load.min(MAX_LOAD - 1);
                assert_eq!(
                    params.heavier(&group(load_a, cpus_a), &group(load_b, cpus_b)),
                    params.heavier(&group(less(load_a), cpus_a), &group(less(load_b), cpus_b)),
                    "{params:?}: {load_a} on {cpus_a}, {load_b} on {cpus_b}"
                );
            }
        }
    }
}

#[test]
fn shares_of_run_time() {
    let full = FULL << 10;
    for (known_ns, ns) in [(0, 1), (1 << 20, 1 << 20), (1 << 29, 1 << 28), (BALANCE_BOUND_NS, 5)] {
        for ran in [true, false] {
            for value in [full + 1, 2 * full, u32::MAX] {
                let share = |value| bound_share(value, known_ns, ns, ran);
                assert_eq!(share(value), share(full), "{value}, {known_ns} ns, {ns} ns, {ran}");
            }
            let known = |known_ns| bound_share(full / 2, known_ns, ns, ran);
            assert_eq!(known(u64::MAX), known(BALANCE_BOUND_NS));
        }
    }
}

#[test]
fn times_in_the_order_policy() {
    let clock = 1 << 50;
    for slice_ns in [2 * BOUND_NS, u64::MAX / 2, u64::MAX] {
        assert_eq!(place(slice_ns, 0, clock, clock, PLACE_WAKE), clock - BOUND_NS / 2);
        assert_eq!(place_new(slice_ns, clock, 1), clock + BOUND_NS);
        assert_eq!(prepayment_ns(slice_ns, 0), BOUND_NS);
    }
    for weight in [100 * NICE_0 + 1, u64::MAX] {
        let most = debt_ns(clock + BOUND_NS, clock, 100 * NICE_0);
        assert_eq!(debt_ns(clock + (1 << 40), clock, weight), most, "{weight}");
    }
    for weight in [0, MIN_WEIGHT, NICE_0 - 1, NICE_0, NICE_0 + 1, 100 * NICE_0] {
        for run_ns in [(1 << 40) + 1, 1 << 50, u64::MAX] {
            assert_eq!(charge(7, run_ns, weight), charge(7, 1 << 40, weight), "{run_ns} {weight}");
        }
    }
    // With any slice, a task ahead by more than the granularity preempts.
    for slice_ns in [4_000_000, 100_000_000, 1_000_000_000] {
        assert!(preempt(slice_ns, clock, clock + 1_000_001), "{slice_ns}");
        assert!(!preempt(slice_ns, clock, clock + 1_000_000), "{slice_ns}");
        assert!(protects(slice_ns, 999_999) && !protects(slice_ns, 1_000_000), "{slice_ns}");
    }
    assert!(preempt(1_000_000, clock, clock + 250_001), "a quarter of a short one");
}
