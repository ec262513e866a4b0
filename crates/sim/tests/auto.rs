//! The helper thread of the order `ias` in the whole keel: what it finds by itself is nearly as good as
//! the best fixed bonus, and it harms nobody. Its constants were chosen by the first workload alone.

#![allow(clippy::unwrap_used)]

mod common;

use common::Sim;
use evenkeel_keel::{Aggregation, Options, Order, Tuning, Why};
use evenkeel_machine::Machine;
use evenkeel_sim::Outcome;
use evenkeel_sim::program::Workload;

/// Four CPUs under a cache; how long it takes to fill what is nearer than that after another space.
fn machine(refill_us: u64) -> Machine {
    let mut machine = Machine::preset("small").unwrap();
    machine.costs.refill_space_ns = refill_us * 1_000;
    if refill_us == 0 {
        machine.costs.space_ns = 0;
    }
    machine
}

enum Bonus {
    None,
    Fixed(u64),
    Auto,
}

fn run(workload: &str, refill_us: u64, bonus: Bonus) -> Outcome {
    let mut options = Options { order: Order::Ias, ..Options::default() };
    options.ias.auto = matches!(bonus, Bonus::Auto);
    let mut workload = Workload::by_name(workload, 1).unwrap();
    if let Bonus::Fixed(bonus_value) = bonus {
        let how = Aggregation { pid: 0, agg: 1, bonus_type: 1, bonus_value, limit: 0 };
        workload.aggregate(Some(how));
    }
    Sim { workload, ..Sim::keel_with(machine(refill_us), options) }.run()
}

/// Its time in parts of that of the best fixed bonus, and of none.
fn beside_fixed(workload: &str, refill_us: u64) -> (f64, f64) {
    let fixed = [1, 2, 4, 8, 16].map(|times| run(workload, refill_us, Bonus::Fixed(times)).time_ns);
    let none = run(workload, refill_us, Bonus::None).time_ns;
    let best = fixed.into_iter().fold(none, u64::min) as f64;
    let auto = run(workload, refill_us, Bonus::Auto).time_ns as f64;
    let (by_best, by_none) = (auto / best, auto / none as f64);
    println!("{workload}, refill {refill_us} us: {by_best:.4} of the best, {by_none:.4} of none");
    (by_best, by_none)
}

/// What was decided, trials left out.
fn decisions(outcome: &Outcome) -> Vec<Tuning> {
    let changes = outcome.changes.iter().map(|(_, change)| *change);
    changes.filter(|change| !matches!(change.why, Why::Tried { .. })).collect()
}

#[test]
fn it_is_nearly_as_good_as_the_best_fixed_bonus() {
    for (workload, refill_us) in [
        ("groups:programs=6,threads=8,work=2ms,rounds=4000,pause=1ms", 200),
        ("groups:programs=4,threads=16,work=3ms,rounds=2000,pause=2ms", 1_000),
        ("groups:programs=3,threads=30,work=4ms,rounds=2000,pause=10ms", 500),
    ] {
        let (by_best, by_none) = beside_fixed(workload, refill_us);
        assert!(by_best <= 1.05 && by_none <= 1.01, "{workload}");
    }
}

#[test]
fn where_siblings_share_nothing_it_harms_nobody() {
    let workload = "groups:programs=6,threads=8,work=2ms,rounds=2000,pause=1ms";
    let auto = run(workload, 0, Bonus::Auto);
    let none = run(workload, 0, Bonus::None);
    assert!(!auto.changes.is_empty(), "nothing was tried");
    assert!(auto.time_ns as f64 <= 1.01 * none.time_ns as f64);
}

#[test]
fn who_waits_for_io_most_of_the_time_is_left_alone() {
    let workload = "groups:programs=6,threads=4,work=200us,rounds=2000,pause=20ms";
    let auto = run(workload, 200, Bonus::Auto);
    assert_eq!(decisions(&auto), []);
    assert_eq!(auto.time_ns, run(workload, 200, Bonus::None).time_ns);
}

#[test]
fn threads_that_never_sleep_show_nothing() {
    let workload = "groups:programs=4,threads=4,work=20s,rounds=1,pause=0ms";
    let auto = run(workload, 200, Bonus::Auto);
    assert_eq!(auto.changes, []);
    assert_eq!(auto.hash, run(workload, 200, Bonus::None).hash);
}

#[test]
fn it_says_what_it_found_and_why() {
    let auto =
        run("groups:programs=4,threads=16,work=3ms,rounds=1000,pause=2ms", 1_000, Bonus::Auto);
    let better = |change: &Tuning| {
        change.multiplier == 4
            && matches!(change.why, Why::Better { than: 0, gain_pct } if gain_pct > 1.0)
    };
    assert!(decisions(&auto).iter().any(better), "{:?}", decisions(&auto));
}
