//! The rules of the `lag` policy, one at a time, on snapshots that the tests build.

#![allow(clippy::expect_used, reason = "tests")]

mod common;

use std::collections::BTreeSet;

use common::{
    Dice, INTERVAL_NS, MS, allowed, apply, cpu, decide, fixed, id, moves, noisy, received,
    snapshot, task,
};
use evenkeel_capability::{
    Barriers, CpuView, LagParameters, Plan, Policy, Preference, Reason, Seen, Snapshot, State,
    TaskView,
};

fn lag() -> State {
    State::new(Policy::Lag(LagParameters::default()))
}

/// The second decision about the same interval: the first one only waits for confirmation.
fn second(view: &Snapshot) -> Plan {
    let mut state = lag();
    let first = decide(view, &mut state);
    assert_eq!(moves(&first), []);
    decide(view, &mut state)
}

fn slept(task: TaskView, percent: u64, sleeps: u32) -> TaskView {
    let run_ns = task.run_ns * (100 - percent) / 100;
    TaskView { run_ns, received_ns: run_ns, stolen_ns: 0, sleeps, ..task }
}

fn hogged(number: u32, hogs_milli: u32) -> CpuView {
    CpuView { foreign_milli: hogs_milli, ..cpu(number) }
}

#[test]
fn an_asymmetry_must_last_before_a_task_is_moved() {
    let view = snapshot(vec![cpu(0), noisy(1, 60)], vec![task(1, 0), received(task(2, 1), 60)]);
    let mut state = lag();
    let first = decide(&view, &mut state);
    let unconfirmed = Reason::Unconfirmed { spread_ppm: 400_000, is_for_room: false };
    assert_eq!(first.reasons, [unconfirmed]);
    assert_eq!(first.interval_ns, 50 * MS);
    let second = decide(&view, &mut state);
    assert_eq!(moves(&second), [(2, 1, 0), (1, 0, 1)]);
    assert!(matches!(
        second.moves[0].reason,
        Reason::Behind { lag_ns, from_ppm: 600_000, to_ppm: 1_000_000 } if lag_ns == 80 * MS
    ));
    assert!(matches!(second.moves[1].reason, Reason::Ahead { lead_ns, .. } if lead_ns == 80 * MS));
    // 25 ms of lag at 40 %.
    assert_eq!(second.interval_ns, 62_500_000);
    assert_eq!(state.lags_ns(), [(id(1), 0), (id(2), 80 * MS)].into());
}

#[test]
fn a_plan_without_moves_has_a_reason() {
    let table = [
        (vec![cpu(0)], vec![task(1, 0)], Reason::OneCpu),
        (vec![], vec![], Reason::OneCpu),
        (vec![cpu(0), noisy(1, 50)], vec![], Reason::NoActiveTask),
        // Sleeping, and at most a tenth of the time awake.
        (vec![cpu(0), noisy(1, 50)], vec![slept(task(1, 1), 91, 1)], Reason::NoActiveTask),
        (vec![cpu(0), cpu(1)], vec![task(1, 0), task(2, 1)], Reason::Balanced { spread_ppm: 0 }),
        (
            vec![cpu(0), noisy(1, 95)],
            vec![task(1, 0), task(2, 1)],
            Reason::Balanced { spread_ppm: 50_000 },
        ),
        // A single task on the best CPU; a slower CPU idles.
        (vec![cpu(0), noisy(1, 60)], vec![task(1, 0)], Reason::Balanced { spread_ppm: 0 }),
        // One task on each of the better two of three CPUs.
        (vec![noisy(0, 80), noisy(1, 60), noisy(2, 80)], vec![task(1, 0), task(2, 2)], {
            Reason::Balanced { spread_ppm: 0 }
        }),
        // Two tasks may not move, and one has no other CPU.
        (vec![cpu(0), noisy(1, 60)], vec![fixed(task(1, 0)), fixed(task(2, 1))], Reason::Bound),
        (vec![cpu(0), noisy(1, 60)], vec![allowed(task(2, 1), &[1, 7])], Reason::Bound),
    ];
    for (cpus, tasks, reason) in table {
        let view = snapshot(cpus, tasks);
        let mut state = lag();
        for round in 0..8 {
            let plan = decide(&view, &mut state);
            assert_eq!((moves(&plan), &plan.reasons[..]), (vec![], &[reason.clone()][..]));
            let wanted_ns = ((100 * MS) << round).min(1_000 * MS);
            assert_eq!(plan.interval_ns, wanted_ns, "round {round} of {reason:?}");
        }
    }
}

#[test]
fn the_tolerance_is_a_share_of_the_rate() {
    // 16 and 17 tasks: 6.25 % and 5.9 % of a CPU; nothing to gain.
    let crowd = |n0: u32, n1: u32| {
        let tasks = (0..n0 + n1).map(|tid| task(tid + 1, u32::from(tid >= n0)));
        snapshot(vec![cpu(0), cpu(1)], tasks.collect())
    };
    assert!(matches!(second(&crowd(17, 16)).reasons[..], [Reason::Balanced { .. }]));
    // 20 and 12: the same few per cent of a CPU, but two thirds more for some than for others.
    let plan = second(&crowd(20, 12));
    assert!(plan.moves.iter().all(|made| (made.from, made.to) == (0, 1)));
    // At 17 and 15 one more would gain less than the tolerance.
    assert_eq!(plan.moves.len(), 3);
}

#[test]
fn counts_become_unequal_where_that_equalises_the_rates() {
    // 100 % and 33 %: three to one, from two to two.
    let view = snapshot(
        vec![cpu(0), noisy(1, 33)],
        vec![task(1, 0), task(2, 0), task(3, 1), received(task(4, 1), 30)],
    );
    let plan = second(&view);
    assert_eq!(moves(&plan), [(4, 1, 0)], "the one furthest behind goes");
    assert!(matches!(
        plan.moves[0].reason,
        Reason::MoreRoom { from_ppm: 165_000, to_ppm: 333_333 }
    ));
}

#[test]
fn an_idle_cpu_is_used_though_it_is_slow() {
    // Two share the fast CPU: with the slow CPU the program gets 140 % instead of 100 %.
    let view = snapshot(vec![cpu(0), noisy(1, 40)], vec![task(1, 0), received(task(2, 0), 50)]);
    // Both tasks get the same rate, so a difference of 0 % is no reason to wait.
    let first = decide(&view, &mut lag());
    assert!(matches!(first.reasons[..], [Reason::Unconfirmed { is_for_room: true, .. }]));
    // The task that is ahead moves to the lower rate.
    assert_eq!(moves(&second(&view)), [(1, 0, 1)]);
    // A CPU with hardly any capability stays idle.
    let view = snapshot(vec![cpu(0), noisy(1, 4)], vec![task(1, 0), task(2, 0)]);
    assert_eq!(moves(&second(&view)), []);
}

#[test]
fn a_cpu_shared_with_a_hog_is_used_but_not_by_a_second_task() {
    let view = snapshot(vec![hogged(0, 1000), cpu(1)], vec![task(1, 1), task(2, 1)]);
    assert_eq!(moves(&second(&view)), [(1, 1, 0)]);
    let tasks = vec![task(1, 0), task(2, 0), task(3, 1), task(4, 1)];
    let view = snapshot(vec![hogged(0, 1000), cpu(1)], tasks);
    assert_eq!(moves(&second(&view)), []);
}

#[test]
fn two_tasks_that_are_behind_do_not_play_ping_pong_on_the_fastest_cpu() {
    // Task 1 is last; task 2 is next to last, on the fastest CPU; task 3 is far ahead on the second
    // fastest.
    let view = snapshot(
        vec![noisy(0, 30), cpu(1), noisy(2, 95)],
        vec![received(task(1, 0), 30), received(task(2, 1), 40), received(task(3, 2), 95)],
    );
    assert_eq!(moves(&second(&view)), [(1, 0, 2), (3, 2, 0)]);
}

#[test]
fn a_task_without_a_faster_cpu_does_not_block_the_others() {
    // Task 1 is furthest behind but may only use the slow CPUs.
    let view = snapshot(
        vec![noisy(0, 50), noisy(1, 50), cpu(2), cpu(3)],
        vec![
            allowed(received(task(1, 0), 40), &[0, 1]),
            received(task(2, 1), 50),
            received(task(3, 2), 90),
            task(4, 3),
        ],
    );
    assert_eq!(moves(&second(&view)), [(2, 1, 3), (4, 3, 1)]);
}

#[test]
fn a_pair_that_is_not_worth_its_moves_does_not_block_the_others() {
    let dear = LagParameters { move_cost_ns: 3 * MS, ..Default::default() };
    let mut state = State::new(Policy::Lag(dear));
    // Task 1 is last, but its CPU is nearly as fast as the best: it can catch up 4 ms in 50.
    let view = snapshot(
        vec![noisy(0, 92), noisy(1, 40), cpu(2), cpu(3)],
        vec![received(task(1, 0), 30), received(task(2, 1), 40), task(3, 2), task(4, 3)],
    );
    decide(&view, &mut state);
    let plan = decide(&view, &mut state);
    assert_eq!(moves(&plan), [(2, 1, 3), (4, 3, 1)]);
    assert!(matches!(plan.reasons[..], [Reason::NotWorthIt { cost_ns, .. }] if cost_ns == 6 * MS));
}

#[test]
fn a_fixed_task_that_runs_ahead_does_not_change_the_lags_of_others() {
    // Task 1 keeps the fast CPU for minutes; tasks 2 and 3 share the rest.
    let mut view = snapshot(
        vec![cpu(0), noisy(1, 80), noisy(2, 40)],
        vec![fixed(task(1, 0)), task(2, 1), task(3, 2)],
    );
    let mut state = lag();
    let mut exchanges = 0;
    for round in 0..2000 {
        for index in [1, 2] {
            let percent = if view.tasks[index].cpu == 1 { 80 } else { 40 };
            view.tasks[index] = received(view.tasks[index].clone(), percent);
        }
        // Now and then task 2 sleeps for a third of the interval.
        if round % 50 == 0 {
            view.tasks[1] = slept(view.tasks[1].clone(), 33, 1);
        }
        let plan = decide(&view, &mut state);
        exchanges += usize::from(!plan.moves.is_empty());
        apply(&plan, &mut view);
        let lags = state.lags_ns();
        let apart_ns = lags[&id(2)].abs_diff(lags[&id(3)]);
        assert!(apart_ns < 250 * MS, "round {round}: {} ms apart", apart_ns / MS);
    }
    assert!(exchanges > 500, "{exchanges}");
}

#[test]
fn a_task_that_sleeps_now_and_then_starts_no_phase_for_all() {
    // Four tasks compute on unequal CPUs; a fifth writes a log in every other interval.
    let percents = [100, 60, 100, 60];
    let cpus = (0..).zip(percents).map(|(number, percent)| noisy(number, percent)).collect();
    let tasks = (0..4).map(|number| received(task(number + 1, number), percents[number as usize]));
    let mut view = snapshot(cpus, tasks.collect());
    view.tasks.push(task(9, 0));
    let mut state = lag();
    let mut exchanged = 0;
    for round in 0..40 {
        view.tasks[4] = if round % 2 == 0 { slept(task(9, 0), 50, 1) } else { task(9, 0) };
        for task in &mut view.tasks[..4] {
            *task = received(task.clone(), percents[task.cpu as usize]);
        }
        let plan = decide(&view, &mut state);
        exchanged += plan.moves.iter().filter(|made| made.task.tid < 9).count();
        apply(&plan, &mut view);
    }
    assert!(exchanged > 40, "{exchanged}");
}

#[test]
fn a_barrier_levels_all_leads() {
    let cpus = || vec![cpu(0), noisy(1, 60)];
    let running = || vec![task(1, 0), received(task(2, 1), 60)];
    let mut state = lag();
    decide(&snapshot(cpus(), running()), &mut state);
    assert_eq!(state.lags_ns()[&id(2)], 40 * MS);
    // Task 1 waits at the barrier ...
    let waiting =
        vec![TaskView { runnable: false, ..slept(task(1, 0), 60, 1) }, running().remove(1)];
    decide(&snapshot(cpus(), waiting), &mut state);
    // ... and both run on: only the time since then counts.
    let after = vec![slept(task(1, 0), 20, 1), received(task(2, 1), 60)];
    decide(&snapshot(cpus(), after), &mut state);
    assert_eq!(state.lags_ns()[&id(2)], 80 * MS - 48 * MS);
}

#[test]
fn new_tasks_start_level_with_the_middle() {
    let cpus = || vec![cpu(0), noisy(1, 60)];
    let mut state = lag();
    let running = vec![task(1, 0), received(task(2, 1), 60)];
    decide(&snapshot(cpus(), running.clone()), &mut state);
    let mut more = running;
    more.push(slept(task(3, 0), 70, 1));
    decide(&snapshot(cpus(), more), &mut state);
    // The middle of three is the lower of the two tasks that were there.
    assert_eq!(state.lags_ns()[&id(3)], state.lags_ns()[&id(2)]);
    // A task that ends is forgotten, and with it the lag of others behind it.
    decide(&snapshot(cpus(), vec![task(2, 1)]), &mut state);
    assert_eq!(state.lags_ns(), [(id(2), 0)].into());
}

#[test]
fn steady_phases_on_equal_cpus_cause_no_moves() {
    // Every fifth interval ends a phase: task 2 has slept for a fifth of it.
    let view = |is_end: bool| {
        let second = if is_end { slept(task(2, 1), 20, 1) } else { task(2, 1) };
        snapshot(vec![cpu(0), cpu(1)], vec![task(1, 0), second])
    };
    let mut state = lag();
    let intervals_ns = (0..40).map(|round| decide(&view(round % 5 == 4), &mut state).interval_ns);
    assert!(intervals_ns.skip(4).all(|interval_ns| interval_ns == 1_000 * MS));
}

#[test]
fn steady_phases_on_unequal_cpus_are_timed() {
    // The same with one CPU at 80 %: without phases, 25 ms of lag take 125 ms.
    let rounds = |length: usize| -> Vec<u64> {
        let mut state = lag();
        let mut view = snapshot(vec![cpu(0), noisy(1, 80)], vec![task(1, 0), task(2, 1)]);
        let plans = (0..60).map(|round| {
            for task in &mut view.tasks {
                *task = received(common::task(task.id.tid, task.cpu), [100, 80][task.cpu as usize]);
            }
            if round % length == length - 1 {
                view.tasks[0] = slept(view.tasks[0].clone(), 20, 1);
            }
            let plan = decide(&view, &mut state);
            apply(&plan, &mut view);
            plan.interval_ns
        });
        plans.skip(4 * length).collect()
    };
    let long = rounds(8);
    assert!(long.contains(&(50 * MS)) && long.contains(&(125 * MS)), "{long:?}");
    // Too short to be learned.
    assert!(rounds(2).iter().all(|interval_ns| *interval_ns == 125 * MS));
}

#[test]
fn a_server_with_threads_that_mostly_sleep_is_left_alone() {
    let mut dice = Dice(3);
    let mut state = lag();
    let mut said = false;
    for _ in 0..300 {
        let cpus = vec![cpu(0), noisy(1, 60), cpu(2), cpu(3)];
        // 16 threads, each awake for 5 to 40 % in many short turns, at any moment or not.
        let tasks = (0..16).map(|tid| {
            let asleep = 60 + dice.below(36);
            let runnable = dice.below(4) == 0;
            let place = dice.below(4) as u32;
            TaskView { runnable, ..slept(task(tid + 1, place), asleep, 20) }
        });
        let plan = decide(&snapshot(cpus, tasks.collect()), &mut state);
        assert_eq!(moves(&plan), []);
        said |= plan.reasons.iter().any(|reason| matches!(reason, Reason::PhasesTooShort { .. }));
    }
    assert!(said);
}

#[test]
fn tasks_of_one_cpu_that_received_differently_are_not_exchanged_among_themselves() {
    // Slices: four tasks on each CPU, and some had one slice more.
    let tasks = (0..8).map(|tid| received(task(tid + 1, tid % 2), 22 + u64::from(tid / 2 * 2)));
    let view = snapshot(vec![cpu(0), cpu(1)], tasks.collect());
    for plan in common::rounds(&mut view.clone(), Policy::Lag(LagParameters::default()), 20) {
        assert_eq!(moves(&plan), []);
    }
}

#[test]
fn tasks_on_cpus_that_are_gone_do_not_panic() {
    let mut state = lag();
    let tasks = || vec![task(1, 0), task(2, 1), task(3, 2)];
    for _ in 0..3 {
        decide(&snapshot(vec![cpu(0), cpu(1), noisy(2, 60)], tasks()), &mut state);
    }
    // CPU 2 goes away before the kernel has migrated its task; then all CPUs go.
    let plan = decide(&snapshot(vec![cpu(0), cpu(1)], tasks()), &mut state);
    assert!(plan.moves.iter().all(|made| made.task != id(3)));
    assert_eq!(decide(&snapshot(vec![], tasks()), &mut state).reasons, [Reason::OneCpu]);
}

#[test]
fn a_fixed_interval_stays_fixed() {
    let view = snapshot(vec![cpu(0), noisy(1, 60)], vec![task(1, 0), received(task(2, 1), 60)]);
    let policy = Policy::Lag(LagParameters::fixed(INTERVAL_NS));
    for plan in common::rounds(&mut view.clone(), policy, 10) {
        assert_eq!(plan.interval_ns, INTERVAL_NS);
    }
}

#[test]
fn parameters_that_contradict_each_other_do_not_panic() {
    let view = snapshot(vec![cpu(0), noisy(1, 60)], vec![task(1, 0), received(task(2, 1), 60)]);
    let upside_down = LagParameters {
        min_interval_ns: 2_000 * MS,
        max_interval_ns: 0,
        tolerance_ppm: u64::MAX,
        move_cost_ns: u64::MAX,
        remote_loss_ppm: u64::MAX,
        prefer: Preference::Capable,
    };
    for parameters in
        [upside_down, LagParameters { min_interval_ns: 0, tolerance_ppm: 0, ..upside_down }]
    {
        for plan in common::rounds(&mut view.clone(), Policy::Lag(parameters), 5) {
            assert_eq!(plan.interval_ns, parameters.min_interval_ns.max(1));
        }
    }
}

/// A burst of another program in one interval, of any size, is gone before it is confirmed. A lasting
/// asymmetry is acted upon, and the smaller it is, the later.
#[test]
fn a_burst_is_ignored_and_a_lasting_asymmetry_is_acted_upon() {
    let tasks = || vec![received(task(1, 0), 40), task(2, 1)];
    let quiet = || snapshot(vec![cpu(0), cpu(1)], tasks());
    let disturbed = |percent: u64| snapshot(vec![noisy(0, 100 - percent), cpu(1)], tasks());
    for percent in 5..60_u64 {
        let mut state = lag();
        for view in [quiet(), disturbed(percent), quiet(), quiet(), quiet()] {
            assert_eq!(moves(&decide(&view, &mut state)), [], "{percent} %");
        }
    }
    for (percent, looks) in [(50, 2), (10, 3)] {
        let mut state = lag();
        for look in 1..=looks {
            let made = moves(&decide(&disturbed(percent), &mut state)).len();
            assert_eq!(made > 0, look == looks, "{percent} % at look {look}");
        }
    }
}

/// Two nodes of two CPUs: 0 and 1, 2 and 3. Tasks 1 to 4 are on the nodes of their memory.
fn two_nodes(percents: [u64; 4], received_percent: [u64; 4]) -> Snapshot {
    let cpus = (0..)
        .zip(percents)
        .map(|(number, percent)| CpuView { node: number / 2, ..noisy(number, percent) });
    let tasks = (0..).zip(received_percent);
    let tasks = tasks.map(|(number, percent)| received(task(number + 1, number), percent));
    snapshot(cpus.collect(), tasks.collect())
}

#[test]
fn a_partner_on_the_same_node_goes_first() {
    // Task 1 is behind. CPU 1 beside it is fast; CPU 3 far away is faster still.
    let view = two_nodes([50, 80, 100, 100], [40, 80, 100, 100]);
    let made = moves(&second(&view));
    assert!(made.contains(&(1, 0, 1)) && made.contains(&(2, 1, 0)), "{made:?}");
    assert!(made.iter().all(|(_, from, to)| from / 2 == to / 2), "{made:?}");
}

#[test]
fn a_task_leaves_its_node_only_for_more_than_remote_memory_costs() {
    // The whole near node is slow. Ten percent more is not worth remote memory ...
    let view = two_nodes([88, 88, 100, 100], [88, 88, 100, 100]);
    let mut state = lag();
    for _ in 0..20 {
        assert_eq!(moves(&decide(&view, &mut state)), []);
    }
    // ... but 2.5 times the rate is.
    let view = two_nodes([40, 40, 100, 100], [40, 40, 100, 100]);
    let made = moves(&second(&view));
    assert!(made.iter().any(|(_, from, to)| from / 2 != to / 2), "{made:?}");
}

#[test]
fn a_task_far_from_its_memory_returns_for_less() {
    // Task 1 is first seen on its home node and then on the other node, on an equally fast CPU. Its
    // partner is far from home, too, and ahead.
    let mut state = lag();
    let at_home = two_nodes([100, 100, 100, 100], [100, 100, 100, 100]);
    decide(&at_home, &mut state);
    let mut apart = two_nodes([100, 100, 92, 92], [100, 100, 60, 92]);
    apart.tasks[0].cpu = 2;
    apart.tasks[2].cpu = 0;
    apart.tasks[0].received_ns = INTERVAL_NS * 60 / 100;
    apart.tasks[2].received_ns = INTERVAL_NS;
    let mut made = Vec::new();
    for _ in 0..6 {
        made = moves(&decide(&apart, &mut state));
        if !made.is_empty() {
            break;
        }
    }
    assert!(made.contains(&(1, 2, 0)) && made.contains(&(3, 0, 2)), "{made:?}");
}

/// Two cores of two CPUs: 0 and 1, 2 and 3.
fn two_smt_cores(tasks: Vec<TaskView>, is_idle: [bool; 4]) -> Snapshot {
    let cpus = (0..).zip(is_idle).map(|(number, is_idle)| CpuView {
        core: number / 2,
        idle_ns: if is_idle { INTERVAL_NS } else { 0 },
        ..cpu(number)
    });
    snapshot(cpus.collect(), tasks)
}

#[test]
fn an_idle_core_is_better_than_an_idle_smt_sibling() {
    // Two tasks share a core while the other core idles: exactly one of them moves there.
    let view = two_smt_cores(vec![task(1, 0), task(2, 1)], [false, false, true, true]);
    let made = moves(&second(&view));
    assert_eq!(made.len(), 1, "{made:?}");
    assert!(made[0].2 >= 2, "{made:?}");
    // With a core for each, they stay.
    let view = two_smt_cores(vec![task(1, 0), task(2, 2)], [false, true, false, true]);
    assert_eq!(moves(&second(&view)), []);
    // So do four, which share both.
    let tasks = (0..4).map(|number| task(number + 1, number)).collect();
    assert_eq!(moves(&second(&two_smt_cores(tasks, [false; 4]))), []);
}

#[test]
fn a_task_that_shares_its_core_falls_behind() {
    // Three tasks, so two must share a core; each task in turn has a core of its own.
    let mut state = lag();
    let tasks = vec![task(1, 0), task(2, 1), task(3, 2)];
    let mut view = two_smt_cores(tasks, [false, false, false, true]);
    let mut was_alone = BTreeSet::new();
    for _ in 0..40 {
        let plan = decide(&view, &mut state);
        apply(&plan, &mut view);
        let places: Vec<u32> = view.tasks.iter().map(|task| task.cpu).collect();
        for cpu in &mut view.cpus {
            cpu.idle_ns = if places.contains(&cpu.cpu) { 0 } else { INTERVAL_NS };
        }
        was_alone.extend((0..3).filter(|index| {
            let core = places[*index] / 2;
            places.iter().filter(|place| **place / 2 == core).count() == 1
        }));
    }
    assert_eq!(was_alone.into_iter().collect::<Vec<_>>(), [0, 1, 2]);
}

/// The same CPU, all of which real-time tasks have.
fn starved(number: u32) -> CpuView {
    CpuView { rt_ns: INTERVAL_NS, rt_milli: 1000, ..cpu(number) }
}

/// Where the kernel keeps no time back for it, a task would not run there at all.
#[test]
fn no_task_is_moved_to_a_cpu_that_real_time_tasks_have() {
    // Two tasks share a CPU, and the other one had time for one of them until now.
    let mut view = snapshot(vec![cpu(0), cpu(1)], vec![task(1, 0), task(2, 0)]);
    let mut state = lag();
    assert_eq!(moves(&decide(&view, &mut state)), []);
    view.cpus[1] = starved(1);
    for _ in 0..20 {
        assert_eq!(moves(&decide(&view, &mut state)), []);
    }
    // They are done.
    view.cpus[1] = cpu(1);
    let moved = (0..5).any(|_| moves(&decide(&view, &mut state)) == [(1, 0, 1)]);
    assert!(moved);
}

#[test]
fn a_task_that_real_time_tasks_keep_from_running_leaves_its_cpu_to_no_other() {
    let often = Some(Barriers { count: 100, observed_ns: INTERVAL_NS / 10 });
    // In one long phase, or in short ones.
    for barriers in [None, often] {
        let mut view = snapshot(vec![cpu(0), noisy(1, 60)], vec![task(1, 0), task(2, 1)]);
        view.seen = Seen { spinning: true, barriers, ..Seen::default() };
        let mut state = lag();
        decide(&view, &mut state);
        view.cpus[1] = starved(1);
        view.tasks[1] = TaskView { wait_ns: INTERVAL_NS, ..slept(task(2, 1), 100, 0) };
        view.seen.barriers = None;
        let plans = (0..10).map(|_| moves(&decide(&view, &mut state)));
        let first = plans.into_iter().find(|moves| !moves.is_empty());
        assert_eq!(first, Some(vec![(2, 1, 0)]), "{barriers:?}");
    }
}

/// The others wait for it, but a partner would not run in its place.
#[test]
fn a_critical_task_that_cannot_run_changes_no_places() {
    let spins = |task: TaskView, percent| {
        let spun_ns = INTERVAL_NS * percent / 100;
        TaskView { spun_ns, samples: 60, changes: 30, ..task }
    };
    let tasks = vec![spins(task(1, 0), 80), spins(task(2, 1), 50)];
    let mut view = snapshot(vec![cpu(0), cpu(1)], tasks);
    let barriers = Some(Barriers { count: 100, observed_ns: INTERVAL_NS });
    view.seen = Seen { spinning: true, barriers, ..Seen::default() };
    let mut state = lag();
    for _ in 0..15 {
        assert_eq!(moves(&decide(&view, &mut state)), []);
    }
    view.cpus[1] = starved(1);
    let plans = (0..10).map(|_| moves(&decide(&view, &mut state)));
    let first = plans.into_iter().find(|moves| !moves.is_empty());
    assert_eq!(first, Some(vec![(2, 1, 0)]));
}

#[test]
fn no_task_is_kept_on_a_cpu_that_real_time_tasks_have() {
    let tasks = vec![task(1, 0), task(2, 0), task(3, 1), allowed(task(4, 1), &[1, 2])];
    let mut view = snapshot(vec![cpu(0), noisy(1, 60), noisy(2, 60)], tasks);
    view.seen = Seen { spinning: true, ..Seen::default() };
    let mut state = lag();
    let pinned = |plan: &Plan, cpu| plan.pins.iter().any(|pin| pin.cpu == cpu);
    let plans: Vec<Plan> = (0..3).map(|_| decide(&view, &mut state)).collect();
    assert!(plans.iter().any(|plan| pinned(plan, 1)), "{plans:?}");
    (view.cpus[1], view.cpus[2]) = (starved(1), starved(2));
    let plans: Vec<Plan> = (0..3).map(|_| decide(&view, &mut state)).collect();
    assert!(plans.iter().any(|plan| pinned(plan, 0)), "{plans:?}");
    assert!(!plans.iter().any(|plan| pinned(plan, 1)), "{plans:?}");
}
