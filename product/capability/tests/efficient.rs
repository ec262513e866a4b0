//! A preference for CPUs that need less energy: the rules, one at a time.

#![allow(clippy::expect_used, reason = "tests")]

mod common;

use common::{
    INTERVAL_NS, MS, allowed, apply, cpu, decide, fixed, id, moves, received, snapshot, task,
};
use evenkeel_capability::{
    CpuView, LagParameters, Plan, Policy, Preference, Reason, State, TaskView,
};

fn efficient() -> State {
    let parameters = LagParameters { prefer: Preference::Efficient, ..LagParameters::default() };
    State::new(Policy::Lag(parameters))
}

/// A fast CPU.
fn fast(number: u32) -> CpuView {
    CpuView { energy_rank: Some(1), ..cpu(number) }
}

/// A CPU of half the speed, which needs less energy.
fn slow(number: u32) -> CpuView {
    CpuView { energy_rank: Some(0), speed: 512, ..cpu(number) }
}

/// Two fast CPUs, 0 and 1, and two slow ones.
fn hybrid() -> Vec<CpuView> {
    vec![fast(0), fast(1), slow(2), slow(3)]
}

fn first(cpus: Vec<CpuView>, tasks: Vec<TaskView>) -> Plan {
    decide(&snapshot(cpus, tasks), &mut efficient())
}

fn pins(plan: &Plan) -> Vec<(u32, u32)> {
    plan.pins.iter().map(|pin| (pin.task.tid, pin.cpu)).collect()
}

#[test]
fn few_tasks_go_to_the_cpus_that_need_less_energy_at_once_and_are_kept_there() {
    let plan = first(hybrid(), vec![task(1, 0), task(2, 1)]);
    assert_eq!(moves(&plan), [(1, 0, 2), (2, 1, 3)]);
    let reason = &plan.moves[0].reason;
    assert_eq!(*reason, Reason::LessEnergy { from_ppm: 1_000_000, to_ppm: 500_000 });
    assert_eq!(pins(&plan), [(1, 2), (2, 3)]);
    assert_eq!(plan.reasons, [Reason::Gathered { cpus: 2, spread_ppm: 0 }]);
    assert_eq!(plan.interval_ns, 50 * MS, "it is verified soon");
    let said = format!("{}; {}", plan.moves[0], plan.reasons[0]);
    assert!(
        said.contains("less energy for its work: from a CPU at 100 % to one at 50 %"),
        "{said}"
    );
    assert!(said.contains("2 CPUs that need less energy are enough"), "{said}");
}

#[test]
fn a_cpu_that_real_time_tasks_have_is_not_chosen() {
    let starved = CpuView { rt_ns: INTERVAL_NS, ..slow(2) };
    let cpus = vec![fast(0), fast(1), starved, slow(3)];
    assert_eq!(moves(&first(cpus, vec![task(1, 0), task(2, 1)])), [(2, 1, 3)]);
}

#[test]
fn tasks_that_are_there_stay_and_looks_become_rare() {
    let mut view = snapshot(hybrid(), vec![task(1, 0), task(2, 2)]);
    let mut state = efficient();
    let plan = decide(&view, &mut state);
    assert_eq!(moves(&plan), [(1, 0, 3)], "the other one is where it is to be");
    apply(&plan, &mut view);
    let mut intervals = Vec::new();
    for _ in 0..8 {
        let plan = decide(&view, &mut state);
        assert_eq!((moves(&plan), pins(&plan)), (vec![], vec![(2, 2), (1, 3)]));
        intervals.push(plan.interval_ns);
    }
    assert_eq!(intervals.last(), Some(&(1000 * MS)));
}

#[test]
fn the_rest_of_the_tasks_gets_faster_cpus() {
    let plan = first(hybrid(), vec![task(1, 0), task(2, 0), task(3, 1)]);
    // Three of four CPUs are needed: those of least energy, and the fast one that has a task.
    assert_eq!(moves(&plan), [(2, 0, 2), (3, 1, 3)]);
    assert_eq!(pins(&plan), [(1, 0), (2, 2), (3, 3)]);
}

#[test]
fn among_unequal_cpus_tasks_change_places_by_their_lag() {
    let mut view =
        snapshot(hybrid(), vec![task(1, 0), received(task(2, 2), 50), received(task(3, 3), 50)]);
    let mut state = efficient();
    let exchanged = (0..6).any(|_| {
        let plan = decide(&view, &mut state);
        apply(&plan, &mut view);
        plan.moves
            .iter()
            .any(|made| made.task == id(1) && matches!(made.reason, Reason::Ahead { .. }))
    });
    assert!(exchanged, "the task on the fast CPU is ahead");
}

#[test]
fn it_decides_nothing_where_all_cpus_are_needed_or_energy_is_unknown() {
    let four = || (0..4).map(|number| task(number + 1, number)).collect::<Vec<_>>();
    let untold = |cpus: Vec<CpuView>| {
        cpus.into_iter().map(|cpu| CpuView { energy_rank: None, ..cpu }).collect::<Vec<_>>()
    };
    let alike = vec![fast(0), fast(1), fast(2)];
    let mut partly = hybrid();
    partly[1].energy_rank = None;
    for (cpus, tasks) in [
        (hybrid(), four()),
        (untold(hybrid()), vec![task(1, 0), task(2, 1)]),
        (partly, vec![task(1, 0), task(2, 1)]),
        (alike, vec![task(1, 0), task(2, 1)]),
    ] {
        let plan = first(cpus.clone(), tasks.clone());
        let without =
            decide(&snapshot(cpus, tasks), &mut State::new(Policy::Lag(LagParameters::default())));
        assert_eq!(plan, without);
        assert!(plan.pins.is_empty() && moves(&plan).is_empty());
    }
}

#[test]
fn what_others_use_and_what_the_user_forbids_is_kept() {
    // A hog is on one of the slow CPUs: the second task stays on a fast one.
    let mut cpus = hybrid();
    cpus[2].foreign_milli = 1000;
    let plan = first(cpus, vec![task(1, 0), task(2, 1)]);
    assert_eq!(moves(&plan), [(2, 1, 3)], "one CPU of each kind is left");
    // Masks and tasks that must not move: only what is where it is to be is kept.
    let plan = first(hybrid(), vec![fixed(task(1, 0)), task(2, 1)]);
    assert_eq!((moves(&plan), pins(&plan)), (vec![(2, 1, 2)], vec![(2, 2)]));
    let plan = first(hybrid(), vec![allowed(task(1, 0), &[0, 1]), allowed(task(2, 1), &[1, 3])]);
    assert_eq!((moves(&plan), pins(&plan)), (vec![(2, 1, 3)], vec![(1, 0), (2, 3)]));
}

#[test]
fn tasks_that_may_use_no_better_cpu_are_not_kept_together() {
    let confined = |tid| allowed(task(tid, 0), &[0, 1]);
    let view = snapshot(hybrid(), vec![confined(1), confined(2)]);
    let mut state = efficient();
    // It only waits for confirmation, as without the preference.
    let plans = [decide(&view, &mut state), decide(&view, &mut state)];
    assert!(plans.iter().all(|plan| plan.pins.is_empty()), "{plans:?}");
    assert_eq!(moves(&plans[1]).len(), 1, "one of them goes to the idle CPU: {plans:?}");
}

#[test]
fn a_lone_task_is_left_alone() {
    let plan = first(hybrid(), vec![task(1, 0)]);
    assert!(plan.moves.is_empty() && plan.pins.is_empty(), "{plan:?}");
}

#[test]
fn a_light_task_of_others_makes_none_go_to_and_fro() {
    // It uses 40 % of CPU 2, and shows as more of a task while it has to compete.
    let (mut state, mut view) = (efficient(), snapshot(hybrid(), vec![task(1, 0), task(2, 3)]));
    let mut made = 0;
    for _ in 0..20 {
        let is_shared = view.tasks.iter().any(|task| task.cpu == 2);
        view.cpus[2].foreign_milli = if is_shared { 667 } else { 400 };
        let plan = decide(&view, &mut state);
        apply(&plan, &mut view);
        made += plan.moves.len();
    }
    assert!(made <= 1, "{made} moves");
}

#[test]
fn whole_cores_come_before_second_siblings() {
    // CPUs 0 and 1 are siblings, and so are 2 and 3; all need the same energy, less than CPU 4.
    let mut cpus: Vec<CpuView> =
        (0..4).map(|number| CpuView { core: number / 2, ..slow(number) }).collect();
    cpus.push(CpuView { core: 9, ..fast(4) });
    let plan = first(cpus, vec![task(1, 0), task(2, 4)]);
    assert_eq!(moves(&plan), [(2, 4, 2)]);
}
