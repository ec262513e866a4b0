//! `policy/balance_paper.h`: paper 002 to the letter. Each rule with its line of the paper, and what
//! holds without it.

use crate::balance::cpu;
use crate::native::*;

const SEVERAL: u32 = 1 << 16;
const RATIO: u32 = 1 << 17;
const KEEL: BalanceParams = BalanceParams { kind: 1, parts: 0, faster: 0, tasks: 1_000 };
const NORMAL: u32 = FULL / 2;

fn normal(id: u32, tasks: u32) -> CpuView {
    CpuView { capability: NORMAL, ..cpu(id, tasks) }
}

/// How many tasks an idle CPU pulls.
fn pulled_by_idle(params: &BalanceParams, theirs: CpuView, own: CpuView) -> u32 {
    let (mut quota, mut taken) = (params.quota(&params.sum(&[theirs]), &own, false), 0);
    while fits(quota, NICE_0, taken > 0) {
        quota = params.left(quota, NICE_0, true);
        taken += 1;
    }
    taken
}

/// Figure 3: C7 pulls 4 of C0's 10; then idle C0 pulls 3 of C7's 6 back, and then 1 of the 3 that are
/// left.
#[test]
fn an_idle_cpu_pulls_as_the_papers_figure_draws_it() {
    for kind in [0, 1] {
        let keel = BalanceParams { kind, ..KEEL };
        let drawn = BalanceParams { parts: SEVERAL, ..keel };
        let both = |theirs, own: CpuView| {
            [&drawn, &keel].map(|params| pulled_by_idle(params, cpu(7, theirs), own))
        };
        assert_eq!(both(6, cpu(0, 0)), [3, 1], "kind {kind}");
        assert_eq!(both(3, cpu(0, 0)), [1, 1], "kind {kind}");
    }
    // "In accordance with the speed" (line 44): twice as fast, two thirds of the load.
    let algorithm = BalanceParams { parts: SEVERAL, ..KEEL };
    assert_eq!(pulled_by_idle(&algorithm, normal(7, 6), cpu(0, 0)), 4);
    assert_eq!(pulled_by_idle(&algorithm, cpu(0, 6), normal(7, 0)), 2);
}

/// Lines 22 to 24: "if (systemwide task to speed core ratio is <=1) then migrate all processes from
/// busiest core to core_performing_LB", where that one is a speed core and the busiest is none.
#[test]
fn a_speed_core_takes_all_only_while_the_ratio_is_one_at_most() {
    let few = BalanceParams { parts: RATIO, tasks: 4, ..KEEL };
    assert!(few.takes_all(4, NORMAL, FULL));
    assert!(!few.takes_all(3, NORMAL, FULL), "more tasks than speed cores");
    assert!(!few.takes_all(4, FULL, FULL) && !few.takes_all(8, FULL, NORMAL));
    assert!(!BalanceParams { parts: 0, ..few }.takes_all(4, NORMAL, FULL), "without the rule");
    assert!(!BalanceParams { kind: 0, ..few }.takes_all(4, NORMAL, FULL), "count");
}

/// 4.1.4: "If faster cores are free, they are employed for performing the load balancing"; lines 8 and
/// 14: "CC is the idle core or the first core".
#[test]
fn the_first_idle_speed_core_leads() {
    let leader = |cpus: &[CpuView]| {
        let better =
            |best: CpuView, one: &CpuView| if KEEL.leads(&best, one) { *one } else { best };
        cpus[1..].iter().fold(cpus[0], better).cpu
    };
    assert_eq!(leader(&[cpu(0, 1), normal(1, 0), cpu(2, 0), cpu(3, 0)]), 2);
    assert_eq!(leader(&[cpu(0, 1), normal(1, 0), cpu(2, 1)]), 1, "the only idle one");
    assert_eq!(leader(&[normal(0, 1), cpu(1, 1)]), 0, "the first, where none idles");
}

/// Line 40 compares the loads that are there: a normal core with 1 task pulls from a speed core with 3
/// (1 < 1.5). A task that is to be placed counts on both: 4 on the speed core, 2 on the normal one.
#[test]
fn a_pull_goes_by_the_load_that_is_there() {
    let (fast, own) = (KEEL.sum(&[cpu(0, 3)]), KEEL.sum(&[normal(1, 1)]));
    assert!(busier(&fast, &own) && !busier(&own, &fast));
    assert!(!KEEL.heavier(&fast, &own) && !KEEL.heavier(&own, &fast));
    let even = KEEL.sum(&[cpu(0, 2)]);
    assert!(!busier(&even, &own) && !busier(&own, &even), "2 on a speed core are 1");
    assert!(busier(&own, &KEEL.sum(&[])), "nothing is lighter than no group");
}
