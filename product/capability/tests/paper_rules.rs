//! The rules of the paper's policy (000, sections 3.1 and 3.2), step by step.

#![allow(clippy::expect_used, reason = "tests")]

mod common;

use common::{INTERVAL_NS, MS, allowed, cpu, decide, fixed, moves, noisy, snapshot, task};
use evenkeel_capability::{
    CpuView, Invalid, Move, PaperParameters, Policy, Reason, Selection, Snapshot, State, TaskView,
    ecpt, plan,
};

fn parameters() -> PaperParameters {
    PaperParameters { interval_ns: INTERVAL_NS, ..PaperParameters::default() }
}

fn state(selection: Selection) -> State {
    State::new(Policy::Paper(PaperParameters { selection, ..parameters() }))
}

fn fifo() -> State {
    state(Selection::Fifo)
}

/// The moves of one decision on CPUs with these percentages left, and these tasks.
fn once(percents: &[u64], tasks: Vec<TaskView>) -> Vec<(u32, u32, u32)> {
    let cpus = (0..).zip(percents).map(|(number, percent)| noisy(number, *percent)).collect();
    moves(&decide(&snapshot(cpus, tasks), &mut fifo()))
}

fn with_working_set(task: TaskView, bytes: Option<u64>) -> TaskView {
    TaskView { working_set_bytes: bytes, ..task }
}

#[test]
fn equations_4_to_7() {
    // (speed, noise %, RT %, tasks in thousandths) -> EC and ECPT in ms of 100.
    let table = [
        ((1024, 0, 0, 0), (100, 100)),
        ((1024, 0, 0, 1000), (100, 100)),
        ((1024, 0, 0, 2000), (100, 50)),
        ((1024, 40, 0, 1000), (60, 60)),
        ((1024, 40, 0, 3000), (60, 20)),
        ((512, 40, 0, 1000), (30, 30)),
        // Idle time is effective, real-time tasks are tasks.
        ((1024, 0, 50, 2000), (100, 50)),
        ((1024, 20, 50, 2000), (80, 40)),
        // Half a task on average does not make ECPT larger than EC.
        ((1024, 0, 0, 500), (100, 100)),
        // More noise than time: clocks disagree.
        ((1024, 120, 0, 1000), (0, 0)),
    ];
    for ((speed, noise, rt, tasks_milli), (ec, per_task)) in table {
        let view = CpuView {
            speed,
            noise_ns: INTERVAL_NS / 100 * noise,
            rt_ns: INTERVAL_NS / 100 * rt,
            ..cpu(0)
        };
        let effective_ns = view.paper_effective_ns(INTERVAL_NS);
        assert_eq!(effective_ns, ec * MS, "EC of {view:?}");
        assert_eq!(ecpt(effective_ns, tasks_milli), per_task * MS, "ECPT of {view:?}");
    }
}

#[test]
fn step_3_only_a_cpu_strictly_above_the_mean_acts() {
    let pair = || vec![task(1, 0), task(2, 1)];
    assert_eq!(once(&[100, 100], pair()), []);
    assert_eq!(once(&[60, 60], pair()), []);
    // One per cent is enough: the paper has no tolerance.
    assert_eq!(once(&[100, 99], pair()), [(2, 1, 0), (1, 0, 1)]);
    assert_eq!(once(&[99, 100], pair()), [(1, 0, 1), (2, 1, 0)]);
    // 80 is the mean of 100, 80 and 60: only the first one acts.
    let three = || vec![task(1, 0), task(2, 1), task(3, 2)];
    assert_eq!(once(&[100, 80, 60], three()), [(3, 2, 0), (1, 0, 2)]);
}

#[test]
fn step_4_the_smallest_ecpt_that_was_not_recently_part_of_a_migration() {
    let four = || vec![task(1, 0), task(2, 1), task(3, 2), task(4, 3)];
    // The first takes the smallest, the second the smallest of the rest.
    assert_eq!(once(&[100, 90, 20, 50], four()), [(3, 2, 0), (1, 0, 2), (4, 3, 1), (2, 1, 3)]);
    // No CPU is left for the second CPU above the mean.
    let three = || vec![task(1, 0), task(2, 1), task(3, 2)];
    assert_eq!(once(&[100, 90, 20], three()), [(3, 2, 0), (1, 0, 2)]);
    // Of equal CPUs, the lower number.
    assert_eq!(once(&[100, 50, 50], three()), [(2, 1, 0), (1, 0, 1)]);
}

#[test]
fn step_5_fifo_takes_the_first_in_runqueue_order_that_may_move() {
    let at = |tid, number, queue| TaskView { queue, ..task(tid, number) };
    let both = vec![at(1, 0, 20), at(2, 0, 10), at(3, 1, 20), at(4, 1, 10)];
    assert_eq!(once(&[100, 50], both.clone()), [(4, 1, 0), (2, 0, 1)]);
    // The first task is fixed, or may not go there: the next task.
    let mut some = both.clone();
    some[1] = fixed(some[1].clone());
    some[3] = allowed(some[3].clone(), &[1, 2]);
    assert_eq!(once(&[100, 50], some), [(3, 1, 0), (1, 0, 1)]);
    // A sleeping task is in no runqueue.
    let mut some = both;
    some[3].runnable = false;
    some[0].runnable = false;
    assert_eq!(once(&[100, 50], some), [(3, 1, 0), (2, 0, 1)]);
}

#[test]
fn step_5_cache_takes_the_smallest_working_set_and_unknown_sets_last() {
    let tasks = vec![
        with_working_set(task(1, 0), Some(3 << 20)),
        with_working_set(task(2, 0), Some(1 << 20)),
        with_working_set(task(3, 1), None),
        with_working_set(task(4, 1), Some(9 << 20)),
    ];
    let mut view = snapshot(vec![cpu(0), noisy(1, 50)], tasks);
    let decided = |view: &Snapshot| moves(&decide(view, &mut state(Selection::Cache)));
    assert_eq!(decided(&view), [(4, 1, 0), (2, 0, 1)]);
    let plan = decide(&view, &mut state(Selection::Cache));
    assert!(plan.moves[0].reason.to_string().ends_with("; its working set is 9.0 MiB"), "{plan:?}");
    // FIFO does not use it, so the reason does not name it.
    let plan = decide(&view, &mut fifo());
    assert!(!plan.moves[0].reason.to_string().contains("working set"), "{plan:?}");
    for task in &mut view.tasks {
        task.working_set_bytes = None;
    }
    // All unknown: runqueue order.
    assert_eq!(decided(&view), [(3, 1, 0), (1, 0, 1)]);
}

#[test]
fn step_6_a_swap_or_a_pull_into_an_empty_cpu() {
    let plan = |tasks| decide(&snapshot(vec![cpu(0), noisy(1, 50)], tasks), &mut fifo());
    let swap = plan(vec![task(1, 0), task(2, 1)]);
    assert_eq!(moves(&swap), [(2, 1, 0), (1, 0, 1)]);
    assert!(swap.moves.iter().all(|made| matches!(
        made.reason,
        Reason::Swap { local_ecpt_ns, remote_ecpt_ns, working_set_bytes: None }
            if local_ecpt_ns == 100 * MS && remote_ecpt_ns == 50 * MS
    )));
    let pull = plan(vec![task(2, 1)]);
    assert_eq!(moves(&pull), [(2, 1, 0)]);
    assert!(matches!(pull.moves[0].reason, Reason::Pull { .. }));
    // No task to give in return, but not empty: neither swap nor pull.
    assert_eq!(moves(&plan(vec![fixed(task(1, 0)), task(2, 1)])), []);
    assert_eq!(moves(&plan(vec![allowed(task(1, 0), &[0]), task(2, 1)])), []);
    // No task to take.
    assert_eq!(moves(&plan(vec![task(1, 0), fixed(task(2, 1))])), []);
    assert_eq!(moves(&plan(vec![task(1, 0), allowed(task(2, 1), &[1])])), []);
}

#[test]
fn step_6_a_cpu_that_has_just_swapped_its_only_task_is_not_empty() {
    // CPU 0 swaps with 2, and CPU 1 with 3 (the smallest left). Then CPU 3 is above the mean. Its own
    // task is gone, but another task has arrived: it must not pull a second task from CPU 4.
    let tasks = (0..5).map(|number| task(number + 1, number)).collect();
    let made = once(&[80, 100, 10, 90, 95], tasks);
    let mut count = [1i32; 5];
    for (_, from, to) in &made {
        count[*from as usize] -= 1;
        count[*to as usize] += 1;
    }
    assert_eq!(count, [1; 5], "{made:?}");
    assert_eq!(made.len(), 4);
}

#[test]
fn step_7_the_vector_changes_after_each_migration() {
    // Both empty CPUs are above the mean at first: 100, 100, 30, 90 (mean 80). The pull does not change
    // the ECPT of CPU 0 (one task gets all of it); CPU 1 finds only CPU 3 left.
    let cpus = || vec![cpu(0), cpu(1), noisy(2, 30), noisy(3, 90)];
    let tasks = || vec![task(1, 2), task(2, 3)];
    let plan = decide(&snapshot(cpus(), tasks()), &mut fifo());
    assert_eq!(moves(&plan), [(1, 2, 0), (2, 3, 1)]);
    // With hogs, CPU 0 is at 50 and does not pull; CPU 1 takes the smallest.
    let mut hogged = cpus();
    hogged[0].foreign_milli = 2000;
    let plan = decide(&snapshot(hogged, tasks()), &mut fifo());
    assert_eq!(moves(&plan), [(1, 2, 1)]);
    // At first 72 (90 shared by 1.25 hogs), 58, 50 and 56: the mean is 59. CPU 0 pulls from CPU 2 and
    // falls to 40, and the mean to 51. Only then is CPU 1 above the mean.
    let cpus = vec![
        CpuView { foreign_milli: 1250, ..noisy(0, 90) },
        noisy(1, 58),
        noisy(2, 50),
        noisy(3, 56),
    ];
    let tasks = vec![task(1, 1), task(2, 2), task(3, 3)];
    let plan = decide(&snapshot(cpus, tasks), &mut fifo());
    assert_eq!(moves(&plan), [(2, 2, 0), (3, 3, 1), (1, 1, 3)]);
}

#[test]
fn fifo_swaps_in_each_interval() {
    // 100 to 60, in either order: a swap in every interval, without end.
    for cpus in [[cpu(0), noisy(1, 60)], [noisy(0, 60), cpu(1)]] {
        let mut view = snapshot(cpus.to_vec(), vec![task(1, 0), task(2, 1)]);
        let policy = Policy::Paper(PaperParameters::default());
        for plan in common::rounds(&mut view, policy, 10) {
            assert_eq!(plan.moves.len(), 2);
            assert_eq!(plan.interval_ns, 1_000 * MS);
        }
    }
}

#[test]
fn real_time_tasks_count_as_tasks_and_their_time_as_user_time() {
    let pair = || vec![task(1, 0), task(2, 1)];
    let decided =
        |first: CpuView| moves(&decide(&snapshot(vec![first, cpu(1)], pair()), &mut fifo()));
    // Half of the CPU's time, but no runnable RT task on average: no noise, no asymmetry.
    assert_eq!(decided(CpuView { rt_ns: INTERVAL_NS / 2, ..cpu(0) }), []);
    // With half a task on average: ECPT 67 against 100.
    let thief = CpuView { rt_ns: INTERVAL_NS / 2, rt_milli: 500, ..cpu(0) };
    assert_eq!(decided(thief), [(1, 0, 1), (2, 1, 0)]);
}

#[test]
fn a_hog_of_another_program_is_visible() {
    let hogged = CpuView { foreign_milli: 1000, ..cpu(0) };
    let view = snapshot(vec![hogged, cpu(1)], vec![task(1, 0), task(2, 1)]);
    let plan = decide(&view, &mut fifo());
    assert_eq!(moves(&plan), [(1, 0, 1), (2, 1, 0)]);
    assert_eq!(plan.spread_ppm, 500_000);
}

/// The moves of a start, and those of the same tasks in the next interval.
fn start(cpus: &[CpuView], tasks: Vec<TaskView>) -> [Vec<(u32, u32, u32)>; 2] {
    let policy = Policy::Paper(PaperParameters { placed_at_start: true, ..parameters() });
    let mut view = snapshot(cpus.to_vec(), tasks);
    let plans = common::rounds(&mut view, policy, 2);
    let is_placed = |made: &Move| matches!(made.reason, Reason::Placed { .. });
    assert!(plans[0].moves.iter().all(is_placed), "{plans:?}");
    assert!(!plans[1].moves.iter().any(is_placed), "{plans:?}");
    [moves(&plans[0]), moves(&plans[1])]
}

#[test]
fn chcb_places_new_tasks_in_the_order_of_ecpt() {
    let cpus = [noisy(0, 50), noisy(1, 90), cpu(2), noisy(3, 70)];
    // The kernel started all on CPU 0. Two go to CPUs 2 and 1, and of four one stays.
    let pile = |count: u32| (0..count).map(|number| task(number + 1, 0)).collect::<Vec<_>>();
    assert_eq!(start(&cpus, pile(2))[0], [(1, 0, 2), (2, 0, 1)]);
    assert_eq!(start(&cpus, pile(4))[0], [(2, 0, 2), (3, 0, 1), (4, 0, 3)]);
    // The fifth begins the order anew.
    assert_eq!(start(&cpus, pile(5))[0], [(2, 0, 2), (3, 0, 1), (4, 0, 3), (5, 0, 2)]);
    // With other programs' tasks, ECPT is what counts, not EC.
    let mut hogged = cpus.to_vec();
    hogged[2].foreign_milli = 2000;
    assert_eq!(start(&hogged, pile(2))[0], [(1, 0, 1), (2, 0, 3)]);
    // Masks are respected, and tasks that may not be moved or that sleep are left where they are.
    let asleep = TaskView { runnable: false, ..task(9, 1) };
    let tasks = vec![fixed(task(1, 2)), allowed(task(2, 0), &[0, 3]), task(3, 0), asleep];
    assert_eq!(start(&cpus, tasks)[0], [(2, 0, 3), (3, 0, 1)]);
}

#[test]
fn a_task_is_placed_once_and_then_takes_part_in_the_eight_steps() {
    let [placed, next] = start(&[cpu(0), noisy(1, 60)], vec![task(1, 0), task(2, 0)]);
    assert_eq!(placed, [(2, 0, 1)]);
    assert_eq!(next, [(2, 1, 0), (1, 0, 1)]);
    // Tasks that come later are placed, too; tasks that slept are placed when they wake.
    let policy = Policy::Paper(PaperParameters { placed_at_start: true, ..parameters() });
    let mut state = State::new(policy);
    assert_eq!(state.first_interval_ns(), INTERVAL_NS.min(100 * MS));
    let asleep = TaskView { runnable: false, ..task(2, 0) };
    let first = snapshot(vec![cpu(0), cpu(1)], vec![task(1, 0), asleep]);
    assert_eq!(moves(&decide(&first, &mut state)), []);
    let then = snapshot(vec![cpu(0), cpu(1)], vec![task(1, 0), task(2, 0)]);
    assert_eq!(moves(&decide(&then, &mut state)), [(2, 0, 1)]);
}

#[test]
fn a_plan_without_moves_has_a_reason() {
    let reason = |view: Snapshot| decide(&view, &mut fifo()).reasons;
    let none = |reasons: Vec<Reason>, wanted: Reason| assert_eq!(reasons, [wanted]);
    none(reason(snapshot(vec![cpu(0)], vec![task(1, 0)])), Reason::OneCpu);
    none(reason(snapshot(vec![], vec![])), Reason::OneCpu);
    none(reason(snapshot(vec![cpu(0), noisy(1, 50)], vec![])), Reason::NoActiveTask);
    none(
        reason(snapshot(vec![cpu(0), cpu(1)], vec![task(1, 0), task(2, 1)])),
        Reason::Balanced { spread_ppm: 0 },
    );
}

#[test]
fn invalid_snapshots_are_refused_and_leave_the_state_as_it_was() {
    let good = || snapshot(vec![cpu(0), noisy(1, 60)], vec![task(1, 0), task(2, 1)]);
    type Spoil = fn(&mut Snapshot);
    let table: [(Spoil, Invalid); 5] = [
        (|view| view.interval_ns = 0, Invalid::EmptyInterval),
        (|view| view.cpus.push(cpu(1)), Invalid::DuplicateCpu(1)),
        (|view| view.cpus[1].speed = 0, Invalid::Speed { cpu: 1, speed: 0 }),
        (|view| view.cpus[1].speed = 1025, Invalid::Speed { cpu: 1, speed: 1025 }),
        (|view| view.tasks.push(task(2, 0)), Invalid::DuplicateTask(2)),
    ];
    for (spoil, wanted) in table {
        let mut bad = good();
        spoil(&mut bad);
        let (mut untouched, mut tried) = (fifo(), fifo());
        decide(&good(), &mut untouched);
        decide(&good(), &mut tried);
        assert_eq!(plan(&bad, &mut tried), Err(wanted));
        assert_eq!(format!("{tried:?}"), format!("{untouched:?}"));
        assert_eq!(plan(&good(), &mut tried), plan(&good(), &mut untouched));
    }
}
