//! The parts `turns` and `similar` of the balance policy in the whole keel: threads of a program run at
//! the average of their CPUs, or on CPUs of one kind, although no CPU idles and no task waits.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use evenkeel_keel::{Balance, Options, Slice};
use evenkeel_machine::{Costs, Machine};
use evenkeel_sim::program::{Op, TaskPlan, Thief, Workload};
use evenkeel_sim::{Mask, Report, Simulation};

use common::{MS, Sim, paper};

fn unequal(fast: u32, slow: u32) -> Machine {
    let (last, all) = (fast - 1, fast + slow - 1);
    let text = format!(
        "name = \"unequal\"\nkinds = [{{ cpus = \"0-{last}\", capability = 1024 }},\n\
         {{ cpus = \"{fast}-{all}\", capability = 512 }}]\n"
    );
    Machine { costs: Costs::none(), ..Machine::parse_toml(&text, "unequal").unwrap() }
}

fn simulation(machine: Machine, parts: &str, workload: &str) -> Simulation {
    sliced(machine, parts, workload, Slice::default())
}

fn sliced(machine: Machine, parts: &str, workload: &str, slice: Slice) -> Simulation {
    let parts = parts.parse().unwrap();
    let options = Options { balance: Balance::Capability, parts, slice, ..Options::default() };
    let workload = Workload::by_name(workload, 1).unwrap();
    Sim { workload, ..Sim::keel_with(machine, options) }.simulation()
}

/// The time until all tasks have ended in ms, and the number of active migrations.
fn takes(simulation: &Simulation) -> (f64, u64) {
    let report = Report::new(simulation, &simulation.run().unwrap());
    assert!(report.is_good(), "end {:?}, violations {:?}", report.end, report.violations);
    (report.tat.max_ms, report.counters["move_active"])
}

#[test]
fn turns_run_a_program_at_the_average_of_its_cpus() {
    for (fast, slow) in [(1, 1), (1, 3), (3, 1), (4, 4)] {
        let tasks = fast + slow;
        let workload = format!("barrier:tasks={tasks},work=200ms,rounds=10");
        let run = |parts| takes(&simulation(unequal(fast, slow), parts, &workload));
        let average = f64::from(2 * fast + slow) / f64::from(2 * tasks);
        // Also with `active` alone, late threads leave for fast CPUs at the end of a round.
        let ((plain, _), (turns, moves)) = (run("active"), run("active,turns"));
        let efficiency = 2_000.0 / average / turns;
        println!("{fast}+{slow}: {plain} {turns} {efficiency} {moves}");
        assert!(efficiency > 0.92, "{fast}+{slow}: {turns} ms, efficiency {efficiency}");
        assert!(turns < 0.95 * plain, "{fast}+{slow}: {turns} ms, without {plain} ms");
        // Each turn is 16 ms at least, and migrates one running thread.
        let changes = turns / 16.0 * f64::from(fast.min(slow)) + f64::from(10 * slow);
        assert!(
            moves > 20 && moves as f64 <= changes,
            "{moves} active migrations, at most {changes}"
        );
    }
}

/// The exchange of two threads preempts the other one instead of waiting for the end of its slice.
#[test]
fn turns_do_not_wait_for_the_end_of_slices() {
    let slice = Slice::from_us(100_000).unwrap();
    let mut simulation = sliced(unequal(1, 1), "turns", "barrier:tasks=2,work=2s,rounds=1", slice);
    // Without lateness both CPUs look at the same instant, and both threads migrate.
    simulation.faults.late_ns = MS;
    let (took, moves) = takes(&simulation);
    println!("{moves} changes, {took} ms");
    assert!(moves > 100 && took < 1.02 * 2_000.0 / 0.75, "{moves} changes, {took} ms");
}

#[test]
fn turns_run_a_program_at_the_average_beside_a_real_time_task() {
    let run = |parts| {
        let mut simulation = simulation(paper(2), parts, "barrier:tasks=2,work=200ms,rounds=10");
        let mut workload = (*simulation.workload).clone();
        workload.thieves.push(Thief { cpu: 1, run_ns: MS, period_ns: 2 * MS, from_ns: 0 });
        simulation.workload = workload.into();
        takes(&simulation)
    };
    let ((plain, _), (turns, moves)) = (run(""), run("turns"));
    println!("{plain} {turns} {moves}");
    assert!(2_000.0 / 0.75 / turns > 0.92, "with turns {turns} ms; without {plain} ms");
}

#[test]
fn turns_leave_other_programs_and_equal_cpus_alone() {
    let machine = unequal(2, 2);
    // Programs of one thread each.
    assert_eq!(takes(&simulation(machine, "turns", "hogs:tasks=4,work=500ms")).1, 0);
    assert_eq!(takes(&simulation(paper(4), "turns", "barrier:tasks=4,work=50ms,rounds=10")).1, 0);
}

/// Two busy threads with these shares of work, in this order of arrival, beside a real-time task that
/// has half of CPU 1: when each has ended, in ms.
fn hogs(parts: &str, shares: [u64; 2]) -> [f64; 2] {
    let mut simulation = simulation(paper(2), parts, "hogs");
    let task = |share| TaskPlan {
        space: 0,
        ..TaskPlan::new("hog".to_owned(), vec![Op::Run(share * 1_300 * MS)])
    };
    simulation.workload = Arc::new(Workload {
        tasks: shares.into_iter().map(task).collect(),
        thieves: vec![Thief { cpu: 1, run_ns: MS, period_ns: 2 * MS, from_ns: 0 }],
        ..Workload::default()
    });
    let report = Report::new(&simulation, &simulation.run().unwrap());
    assert!(report.is_good(), "end {:?}, violations {:?}", report.end, report.violations);
    [2.0 * report.tat.mean_ms - report.tat.max_ms, report.tat.max_ms]
}

/// The cost of turns for threads that do not wait for each other (`evenkeel-lab bench balance`,
/// staggered). Without turns the result depends on which thread began on the fast CPU, so both orders
/// are averaged.
#[test]
fn turns_shorten_the_mean_turn_around_and_delay_the_last_thread_little() {
    let both = |parts| [[1, 2], [2, 1]].map(|shares| hogs(parts, shares));
    let ([plain, turns], work) = (["active", "active,turns"].map(both), 3.0 * 1_300.0);
    println!("plain {plain:?}, turns {turns:?}");
    for [first, last] in plain.into_iter().chain(turns) {
        assert!(
            work / (1.5 * first + (last - first)) > 0.999,
            "the fast CPU idled: {first} {last}"
        );
    }
    let turnaround = |goes: [[f64; 2]; 2]| goes.concat().iter().sum::<f64>();
    let last = |goes: [[f64; 2]; 2]| goes[0][1] + goes[1][1];
    assert!(turnaround(turns) < 0.985 * turnaround(plain));
    assert!(last(turns) < last(plain) * 2.333 / 2.25 * 1.01);
}

/// Two programs of four threads each, each with its own barrier, on four fast and four slow CPUs;
/// threads of both arrive in turn. When each program has ended, in ms, the later one first. `apart`:
/// each program is pinned to CPUs of one kind.
fn two_programs(parts: &str, apart: bool) -> [f64; 2] {
    let (threads, rounds) = (4, 20);
    let mut simulation = simulation(unequal(threads, threads), parts, "hogs");
    let task = |at: u32| {
        let program = at % 2;
        let round = vec![
            Op::Run(100 * MS),
            Op::Barrier(program as usize),
            Op::Repeat { to: 0, times: rounds - 1 },
        ];
        let mut kind = Mask::EMPTY;
        (0..threads).for_each(|cpu| kind.set(program * threads + cpu));
        TaskPlan {
            space: program,
            allowed: apart.then(|| Arc::new(kind)),
            ..TaskPlan::new(format!("p{program}"), round)
        }
    };
    let tasks = (0..2 * threads).map(task).collect();
    simulation.workload =
        Arc::new(Workload { tasks, barriers: vec![threads; 2], ..Workload::default() });
    let report = Report::new(&simulation, &simulation.run().unwrap());
    assert!(report.is_good(), "end {:?}, violations {:?}", report.end, report.violations);
    let last = report.tat.max_ms;
    // All threads of a program end together.
    [last, 2.0 * report.tat.mean_ms - last]
}

/// Paper 002 places the threads of a process on similar CPUs, on fast ones if possible. With turns that
/// happens by itself: a thread that waits at a barrier leaves its CPU to a late one, and threads
/// exchange CPUs only within their program.
#[test]
fn turns_and_similar_give_each_program_cpus_of_one_kind() {
    let apart = two_programs("", true);
    let [mixed, turns, similar, alone] = ["active", "active,turns", "active,similar", "similar"]
        .map(|parts| two_programs(parts, false));
    println!(
        "apart {apart:?}, mixed {mixed:?}, turns {turns:?}, similar {similar:?} and {alone:?}"
    );
    assert_eq!(apart, [4_000.0, 2_000.0]);
    for (end, apart) in alone.iter().zip(apart) {
        assert!(*end < 1.03 * apart, "each program keeps CPUs of one kind: {alone:?}");
    }
    // The second program moves to the fast CPUs when the first has ended.
    let best = [3_000.0, 2_000.0];
    let mean = |ends: [f64; 2]| ends.iter().sum::<f64>() / 2.0;
    for ends in [turns, similar] {
        assert!(mean(ends) < 1.05 * mean(best) && ends[0] < 1.05 * best[0], "{ends:?}");
        assert!(mean(ends) < 0.9 * mean(mixed), "no better than without: {ends:?} {mixed:?}");
    }
}
