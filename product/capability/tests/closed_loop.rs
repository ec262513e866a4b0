//! The policies in a closed loop with the model of a machine: what a program gains.

#![allow(clippy::expect_used, reason = "tests")]

mod common;

use common::model::{Core, Outcome, Program, best_ns, run, run_from};
use common::{Dice, MS};
use evenkeel_capability::{LagParameters, PaperParameters, Plan, Policy, Reason};

fn core(percent: u64) -> Core {
    Core { speed: 1024, left_ppm: percent * 10_000, hogs: 0 }
}

fn cores(percents: &[u64]) -> Vec<Core> {
    percents.iter().map(|percent| core(*percent)).collect()
}

fn lag() -> Policy {
    Policy::Lag(LagParameters::default())
}

fn paper(interval_ms: u64) -> Policy {
    Policy::Paper(PaperParameters { interval_ns: interval_ms * MS, ..Default::default() })
}

/// One long phase.
fn long(tasks: usize) -> Program {
    Program { tasks, ..Program::default() }
}

fn constant(_: u64, _: &mut [Core]) {}

fn efficiency(cores: &[Core], program: &Program, outcome: &Outcome) -> f64 {
    best_ns(cores, program) as f64 / outcome.elapsed_ns as f64
}

/// Machines of `n` CPUs with capabilities of 20 to 100 %.
fn machines(n: u64, count: usize) -> impl Iterator<Item = Vec<Core>> {
    let mut dice = Dice(n);
    std::iter::repeat_with(move || (0..n).map(|_| core(20 + dice.below(81))).collect()).take(count)
}

fn room_moves(outcome: &Outcome) -> usize {
    let room = |plan: &Plan| {
        plan.moves.iter().filter(|made| matches!(made.reason, Reason::MoreRoom { .. })).count()
    };
    outcome.plans.iter().map(|(_, plan)| room(plan)).sum()
}

fn reasons(outcome: &Outcome) -> impl Iterator<Item = &Reason> {
    outcome.plans.iter().flat_map(|(_, plan)| &plan.reasons)
}

/// Checks lag against static placement and against the best possible schedule.
fn check(machine: &[Core], program: &Program) {
    let alone = run(machine, program, None, constant);
    let balanced = run(machine, program, Some(lag()), constant);
    let reached = efficiency(machine, program, &balanced);
    assert!(reached >= 0.95, "{reached:.3} with {machine:?} and {program:?}");
    assert!(
        balanced.elapsed_ns <= alone.elapsed_ns + alone.elapsed_ns / 200,
        "{} instead of {} ms alone: {machine:?} and {program:?}",
        balanced.elapsed_ns / MS,
        alone.elapsed_ns / MS
    );
}

#[test]
fn two_cpus_run_at_their_average() {
    for percents in [[100, 60], [60, 100], [100, 50], [100, 40], [100, 20], [70, 50]] {
        for tasks in 1..=5 {
            check(&cores(&percents), &long(tasks));
        }
    }
}

#[test]
fn four_and_eight_cpus_run_at_their_average() {
    for (n, count) in [(4, 12), (8, 6)] {
        for machine in machines(n, count) {
            for tasks in 1..=2 * n as usize + 1 {
                check(&machine, &long(tasks));
            }
        }
    }
}

#[test]
fn slow_cores_are_as_good_as_noise() {
    let slow = Core { speed: 512, ..core(100) };
    check(&[core(100), slow], &long(2));
    check(&[core(100), core(100), slow, Core { left_ppm: 700_000, ..slow }], &long(4));
}

#[test]
fn programs_that_spin_at_their_barrier_gain_as_much() {
    let program = Program { sleeps: false, ..long(2) };
    check(&cores(&[100, 60]), &program);
    check(&cores(&[100, 50]), &program);
    check(&cores(&[100, 80, 60, 40]), &Program { sleeps: false, ..long(4) });
}

#[test]
fn a_symmetric_machine_has_no_moves_and_comes_to_rest() {
    for (n, tasks) in [(2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (2, 1), (4, 3)] {
        for percent in [100, 70] {
            let machine = vec![core(percent); n];
            let outcome = run(&machine, &long(tasks), Some(lag()), constant);
            assert_eq!(outcome.moves(), 0);
            let last = outcome.plans.last().expect("it took long");
            assert_eq!(last.1.interval_ns, 1_000 * MS);
        }
    }
}

#[test]
fn paper_at_100_ms_reaches_the_average_of_two_cpus() {
    for percents in [[100, 60], [100, 50]] {
        let machine = cores(&percents);
        let outcome = run(&machine, &long(2), Some(paper(100)), constant);
        assert!(efficiency(&machine, &long(2), &outcome) >= 0.95);
        // It swaps in every interval.
        assert_eq!(outcome.moves(), 2 * outcome.plans.len());
    }
}

#[test]
fn phases_that_are_too_short_are_left_alone_with_that_reason() {
    for percents in [vec![100, 60], vec![100, 40], vec![100, 50, 100, 70]] {
        // A phase lasts 15 ms, the time that the worst CPU needs.
        let worst = percents.iter().min().copied().unwrap_or(0);
        let program = Program {
            tasks: percents.len(),
            work_ns: 15 * MS * worst / 100,
            phases: 300,
            ..Program::default()
        };
        let outcome = run(&cores(&percents), &program, Some(lag()), constant);
        assert_eq!(outcome.moves(), 0, "{percents:?}");
        let short = |reason: &&Reason| {
            let Reason::PhasesTooShort { phase_ns } = reason else { return false };
            (10 * MS..25 * MS).contains(phase_ns)
        };
        let count = reasons(&outcome).filter(short).count();
        assert!(count > 0 && count + 1 == outcome.plans.len(), "{percents:?}");
        // Without moves there is no need for short intervals.
        assert_eq!(outcome.plans.last().expect("it took long").1.interval_ns, 1_000 * MS);
    }
}

#[test]
fn phases_of_many_intervals_are_balanced_each() {
    let machine = cores(&[100, 60]);
    for sleeps in [true, false] {
        let program =
            Program { tasks: 2, work_ns: 400 * MS, phases: 8, sleeps, ..Program::default() };
        let alone = run(&machine, &program, None, constant);
        let outcome = run(&machine, &program, Some(lag()), constant);
        let gain = alone.elapsed_ns as f64 / outcome.elapsed_ns as f64;
        assert!(gain > 1.2, "{gain:.3} of {:.3}, sleeping: {sleeps}", 0.8 / 0.6);
    }
}

/// Also where the noise begins late, when looks have become rare.
#[test]
fn phases_of_100_ms_to_a_second_gain_most_of_what_is_possible() {
    let machine = cores(&[100, 60]);
    for (work_ms, least) in
        [(110, 1.2), (128, 1.2), (150, 1.2), (200, 1.25), (300, 1.25), (500, 1.3), (1_000, 1.3)]
    {
        for (is_seen, begins_ms) in [(false, 0), (true, 0), (true, 5_000)] {
            let phases = ((15_000 + begins_ms) / work_ms) as u32;
            let program = Program { work_ns: work_ms * MS, phases, is_seen, ..Program::default() };
            let noise = |now_ns: u64, cores: &mut [Core]| {
                cores[1].left_ppm = if now_ns < begins_ms * MS { 1_000_000 } else { 600_000 };
            };
            let alone = run(&machine, &program, None, noise);
            let outcome = run(&machine, &program, Some(lag()), noise);
            let before_ns = begins_ms * MS;
            let gain =
                (alone.elapsed_ns - before_ns) as f64 / (outcome.elapsed_ns - before_ns) as f64;
            // The next look after the noise has begun comes up to a second later.
            let least = if begins_ms > 0 { least - 0.05 } else { least };
            assert!(gain >= least, "{gain:.3}, noise from {begins_ms} ms: {program:?}");
        }
    }
}

#[test]
fn an_interval_ends_shortly_before_the_end_of_a_phase_of_known_length() {
    // 25 ms of lag at 20 %: otherwise every 125 ms.
    let machine = cores(&[100, 80]);
    for work_ms in [1_777, 1_900, 2_050] {
        let program = Program { tasks: 2, work_ns: work_ms * MS, phases: 40, ..Program::default() };
        let outcome = run(&machine, &program, Some(lag()), constant);
        let is_near = |barrier_ns: &&u64| {
            let near_ns = **barrier_ns - 50 * MS..**barrier_ns;
            outcome.plans.iter().any(|(at_ns, _)| near_ns.contains(at_ns))
        };
        let learned = &outcome.barriers_ns[5..];
        let near = learned.iter().filter(is_near).count();
        assert!(near * 10 >= learned.len() * 9, "{near} of {} with {work_ms} ms", learned.len());
    }
}

#[test]
fn tasks_reach_the_end_of_a_phase_of_known_length_together() {
    // With intervals that ignore phases this is 96.6 %.
    let machine = cores(&[100, 100, 100, 60]);
    let lengths_ms: Vec<u64> = (600..1_200).step_by(24).collect();
    let reached = lengths_ms.iter().map(|length_ms| {
        let phases = (20_000 / length_ms) as u32;
        let program = Program { tasks: 4, work_ns: length_ms * MS, phases, ..long(4) };
        efficiency(&machine, &program, &run(&machine, &program, Some(lag()), constant))
    });
    let mean = reached.sum::<f64>() / lengths_ms.len() as f64;
    assert!(mean >= 0.98, "{mean:.4}");
}

#[test]
fn phases_of_any_length_lose_nothing() {
    let machines: [&[u64]; 6] =
        [&[100, 60], &[100, 80], &[100, 40], &[100, 100], &[100, 90, 60, 50], &[100, 100, 100, 60]];
    for percents in machines {
        let machine = cores(percents);
        for tasks in [percents.len(), percents.len() + 1, 2 * percents.len()] {
            for work_ms in [5, 10, 20, 30, 50, 60, 80, 100, 150, 250] {
                for sleeps in [true, false] {
                    let phases = (3000 / work_ms) as u32;
                    let program =
                        Program { tasks, work_ns: work_ms * MS, phases, sleeps, ..long(2) };
                    let alone = run(&machine, &program, None, constant);
                    let outcome = run(&machine, &program, Some(lag()), constant);
                    let gain = alone.elapsed_ns as f64 / outcome.elapsed_ns as f64;
                    assert!(gain > 0.98, "{gain:.3} on {percents:?}: {program:?}");
                }
            }
        }
    }
}

#[test]
fn one_thread_goes_to_the_best_cpu_and_stays() {
    let machine = cores(&[60, 100, 80]);
    for start in [0, 1, 2] {
        let outcome = run_from(&machine, &long(1), &[start], Some(lag()), constant);
        assert_eq!(outcome.moves(), usize::from(start != 1), "from CPU {start}");
        assert!(matches!(
            outcome.plans.last().expect("it took long").1.reasons[..],
            [Reason::Balanced { spread_ppm: 0 }]
        ));
    }
}

#[test]
fn tasks_that_start_on_one_cpu_spread_at_once() {
    let machine = cores(&[100, 100, 60, 100]);
    for start in 0..4 {
        let outcome = run_from(&machine, &long(4), &[start; 4], Some(lag()), constant);
        assert!(efficiency(&machine, &long(4), &outcome) >= 0.93, "from CPU {start}");
        let second = &outcome.plans[1].1;
        assert_eq!(second.moves.len(), 3, "from CPU {start}: {second:?}");
        assert!(room_moves(&outcome) <= 5);
    }
}

#[test]
fn a_slow_idle_cpu_is_used_when_there_are_enough_tasks() {
    // Two tasks on the fast CPU get 50 % each; one on each CPU, in turn, 70 %.
    let machine = cores(&[100, 40]);
    let outcome = run_from(&machine, &long(2), &[0, 0], Some(lag()), constant);
    assert!(efficiency(&machine, &long(2), &outcome) >= 0.95);
}

#[test]
fn a_hog_makes_the_tasks_take_turns() {
    let machine = [Core { hogs: 1, ..core(100) }, core(100)];
    check(&machine, &long(2));
    let outcome = run(&machine, &long(2), Some(lag()), constant);
    assert!(outcome.moves() > 20);
    // No third task moves to the CPU of the hog.
    let outcome = run(&machine, &long(4), Some(lag()), constant);
    assert!(outcome.plans[..outcome.plans.len() - 4].iter().all(|(_, plan)| {
        plan.moves.iter().all(|made| !matches!(made.reason, Reason::MoreRoom { .. }))
    }));
}

#[test]
fn a_capability_that_moves_to_another_cpu_is_followed() {
    let machine = cores(&[100, 50]);
    let swap = |now_ns: u64, cores: &mut [Core]| {
        let first = (now_ns / (700 * MS)).is_multiple_of(2);
        (cores[0].left_ppm, cores[1].left_ppm) =
            if first { (1_000_000, 500_000) } else { (500_000, 1_000_000) };
    };
    let outcome = run(&machine, &long(2), Some(lag()), swap);
    assert!(efficiency(&machine, &long(2), &outcome) >= 0.95);
}

#[test]
fn an_asymmetry_that_vanishes_is_forgotten() {
    let vanish = |now_ns: u64, cores: &mut [Core]| {
        if now_ns >= 1_000 * MS {
            cores[1].left_ppm = 1_000_000;
        }
    };
    let program = Program { work_ns: 8_000 * MS, ..long(2) };
    let outcome = run(&cores(&[100, 60]), &program, Some(lag()), vanish);
    let moved = outcome.plans.iter().filter(|(_, plan)| !plan.moves.is_empty());
    let last_ns = moved.map(|(at_ns, _)| *at_ns).max().expect("it moved at first");
    assert!((900 * MS..1_500 * MS).contains(&last_ns), "last move at {} ms", last_ns / MS);
    assert_eq!(outcome.plans.last().expect("it took long").1.interval_ns, 1_000 * MS);
}

#[test]
fn an_asymmetry_that_appears_late_is_found() {
    let appear = |now_ns: u64, cores: &mut [Core]| {
        cores[1].left_ppm = if now_ns < 3_000 * MS { 1_000_000 } else { 600_000 };
    };
    let program = Program { work_ns: 8_000 * MS, ..long(2) };
    let outcome = run(&cores(&[100, 100]), &program, Some(lag()), appear);
    // Rest costs at most one long interval: 8 s of work, 3 of them done, the rest at 0.8.
    let best_ns = 3_000 * MS + 5_000 * MS * 10 / 8;
    assert!(outcome.elapsed_ns < best_ns + 300 * MS, "{} ms", outcome.elapsed_ns / MS);
}

#[test]
fn jitter_of_the_figures_causes_no_moves() {
    let mut dice = Dice(7);
    let jitter = move |_: u64, cores: &mut [Core]| {
        for core in cores {
            core.left_ppm = 960_000 + dice.below(40_000);
        }
    };
    for tasks in [2, 4] {
        let outcome = run(&[core(100); 2], &long(tasks), Some(lag()), jitter.clone());
        assert_eq!(outcome.moves(), 0);
    }
}

#[test]
fn an_asymmetry_at_the_edge_of_the_tolerance_is_confirmed_once() {
    // 93 to 94.5 % against 100 %: the tolerance of 6 % is crossed again and again.
    let mut dice = Dice(8);
    let jitter = move |_: u64, cores: &mut [Core]| {
        cores[1].left_ppm = 930_000 + dice.below(15_000);
    };
    let program = Program { work_ns: 20_000 * MS, ..long(2) };
    let outcome = run(&cores(&[100, 94]), &program, Some(lag()), jitter);
    let unconfirmed =
        reasons(&outcome).filter(|reason| matches!(reason, Reason::Unconfirmed { .. }));
    // It is confirmed once.
    assert!(unconfirmed.count() <= 2);
}

#[test]
fn costly_moves_make_exchanges_rarer_but_not_none() {
    let machine = cores(&[100, 60]);
    let program = Program { work_ns: 8_000 * MS, ..long(2) };
    let moves = |move_cost_ns| {
        let policy = Policy::Lag(LagParameters { move_cost_ns, ..Default::default() });
        let outcome = run(&machine, &program, Some(policy), constant);
        assert!(efficiency(&machine, &program, &outcome) >= 0.95);
        outcome.moves()
    };
    let (cheap, dear) = (moves(MS / 10), moves(20 * MS));
    assert!(dear > 0 && dear * 4 < cheap, "{dear} and {cheap} moves");
}
