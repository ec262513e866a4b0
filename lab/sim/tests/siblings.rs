//! The order `ias` in its mode `paper`, in the whole keel: siblings run one after the other on a CPU,
//! and at the same time on CPUs that share a cache, as far as the bonus allows. (rounds.rs has the other
//! mode.)

#![allow(clippy::unwrap_used)]

mod common;

use std::ops::Range;
use std::sync::Arc;

use common::build::with_fault;
use common::{MS, Sim, hog, keel_build, paper};
use evenkeel_invariants::{Left, What};
use evenkeel_keel::{Aggregation, Gate, IasOptions, Mode, Options, Order};
use evenkeel_machine::Machine;
use evenkeel_sim::program::{GroupPlan, KERNEL, Op, TaskPlan, Workload};
use evenkeel_sim::{Mask, Outcome, Scheduler};

/// Programs of several threads each, on CPUs that share a cache.
const GROUPS: &str = "groups:programs=4,threads=8,work=40ms,rounds=4,pause=1ms";

/// The order `ias` in the mode `paper`.
fn literal() -> Options {
    let ias = IasOptions { mode: Mode::Paper, ..IasOptions::default() };
    Options { order: Order::Ias, ias, ..Options::default() }
}

fn run(order: Order, bonus_ms: Option<u64>, limit: u64) -> Outcome {
    let options = Options { order, ..literal() };
    let mut workload = Workload::by_name(GROUPS, 1).unwrap();
    let how = bonus_ms.map(|ms| Aggregation {
        pid: 0,
        agg: 1,
        bonus_type: 0,
        bonus_value: ms * MS,
        limit,
    });
    workload.aggregate(how);
    let machine = Machine::preset("small").unwrap();
    Sim { workload, ..Sim::keel_with(machine, options) }.run()
}

#[test]
fn aggregation_halves_switches_between_address_spaces() {
    let (plain, aggregated) = (run(Order::Ias, None, 0), run(Order::Ias, Some(50), 0));
    assert!(aggregated.counters["aggregate"] > 0);
    assert!(
        2 * aggregated.switches_other < plain.switches_other,
        "switches between spaces: aggregated {}, plain {}",
        aggregated.switches_other,
        plain.switches_other
    );
}

#[test]
fn a_larger_bonus_means_fewer_switches_between_address_spaces() {
    let others: Vec<u64> =
        [1, 5, 20].map(|ms| run(Order::Ias, Some(ms), 0).switches_other).to_vec();
    assert!(others.is_sorted_by(|less, more| less > more), "switches by bonus: {others:?}");
}

#[test]
fn a_limit_means_more_switches_between_address_spaces() {
    let (limited, free) = (run(Order::Ias, Some(80), 2), run(Order::Ias, Some(80), 0));
    assert!(limited.switches_other > free.switches_other);
}

#[test]
fn slaves_follow_their_masters_address_space() {
    let options = literal();
    let mut workload = Workload::by_name(GROUPS, 1).unwrap();
    workload.aggregate(Some(Aggregation {
        pid: 0,
        agg: 1,
        bonus_type: 1,
        bonus_value: 6,
        limit: 0,
    }));
    // Eight CPUs under two caches: two groups by the default roles.
    let text = "name = \"two\"\nllcs = [\"0-3\", \"4-7\"]\n\
                kinds = [{ cpus = \"0-7\", capability = 1024 }]\n";
    let machine = Machine::parse_toml(text, "two").unwrap();
    let outcome = Sim { workload, ..Sim::keel_with(machine, options) }.run();
    assert!(outcome.counters["follow"] > 0);
}

#[test]
fn programs_without_a_bonus_or_under_fair_do_not_aggregate() {
    let (ias, fair) = (run(Order::Ias, None, 0), run(Order::Fair, Some(50), 0));
    assert_eq!((ias.counters["aggregate"], ias.counters["follow"]), (0, 0));
    assert_eq!((fair.counters["aggregate"], fair.counters["follow"]), (0, 0));
}

/// Four CPUs that share a cache, every program with this bonus; parameters as NAME=VALUE.
fn run_with(workload: &str, gate: Gate, bonus_ms: u64, knobs: &[&str]) -> Outcome {
    let mut options = Options { gate, ..literal() };
    for knob in knobs {
        let (name, value) = knob.split_once('=').unwrap();
        options.set_parameter(name, value).unwrap();
    }
    let mut workload = Workload::by_name(workload, 1).unwrap();
    workload.aggregate(Some(Aggregation {
        pid: 0,
        agg: 1,
        bonus_type: 0,
        bonus_value: bonus_ms * MS,
        limit: 0,
    }));
    let machine = Machine::preset("small").unwrap();
    Sim { workload, ..Sim::keel_with(machine, options) }.run()
}

/// Ten programs of forty threads, so that a hundred wait on each CPU. (With a hundred threads each, as
/// in the paper's evaluation, tasks wait for 4 s even under `fair`. A small index makes some of them
/// starve, and rescues interrupt what is aggregated.)
const CROWD: &str = "groups:programs=10,threads=40,work=20ms,rounds=3,pause=0ms";

#[test]
fn the_default_index_has_room_for_all_and_a_small_one_aggregates_less() {
    for bonus_ms in [1, 10, 50] {
        let run = |knobs: &[&str]| run_with(CROWD, Gate::Always, bonus_ms, knobs);
        let fair = run_with(CROWD, Gate::Always, 0, &[]).switches_other;
        let (whole, narrow) = (run(&[]), run(&["ias_window=1"]));
        assert_eq!(whole.counters["window"], 0);
        assert!(narrow.counters["window"] > 0);
        assert!(whole.switches_other < narrow.switches_other, "{bonus_ms} ms");
        assert!(narrow.switches_other < fair, "{bonus_ms} ms");
    }
}

#[test]
fn a_search_is_bounded_however_many_tasks_wait() {
    for programs in [10, 500] {
        let threads = 1000 / programs;
        let load =
            format!("groups:programs={programs},threads={threads},work=20ms,rounds=3,pause=0ms");
        let counters = run_with(&load, Gate::Always, 10, &[]).counters;
        assert!(counters["searched"] < 16 * counters["search"], "{programs}: {counters:?}");
        assert!(counters["aggregate"] > 0);
    }
}

/// In all other tests simulations end without a violation. Here the checker finds a sibling that is
/// passed over: the index loses tasks, or a search finds nothing in a row of more than eight.
#[test]
fn an_index_that_loses_tasks_is_caught() {
    let insert = "	insert_row_entry(cpu, t->listed_as, t->vruntime, p->pid, t->weight);\n";
    let (forgets, finds) = (format!("	if (p->pid & 1)\n	{insert}"), "if (entry->tag == tag) {\n");
    let misses = "if (entry->tag == tag && row->count <= 8) {\n";
    for (load, file, text, fault) in [
        (GROUPS, "bpf/keel/index.h", insert, forgets.as_str()),
        (CROWD, "bpf/keel/row.h", finds, misses),
    ] {
        let build = with_fault(file, text, fault);
        let outcome = judged(load, Scheduler::Built(literal(), build.into()));
        let named = |broken: &evenkeel_sim::Broken| broken.violation.invariant == "siblings_first";
        assert!(outcome.broken.iter().any(named), "{file}: {:?}", outcome.broken);
    }
}

/// Programs in which the checker `siblings_first` judges each pick: the bonus is in ns.
fn judged(load: &str, scheduler: Scheduler) -> Outcome {
    let mut workload = Workload::by_name(load, 1).unwrap();
    let how = Aggregation { pid: 0, agg: 1, bonus_type: 0, bonus_value: 50 * MS, limit: 0 };
    workload.aggregate(Some(how));
    let machine = Machine::preset("small").unwrap();
    Sim { workload, scheduler, ..Sim::new(machine) }.outcome()
}

/// A kernel thread uses the address space that ran before it: siblings go on after it as before,
/// however often it runs.
#[test]
fn kernel_threads_do_not_end_a_run_of_siblings() {
    let others = |threads: bool| {
        let mut workload = Workload::by_name(GROUPS, 1).unwrap();
        // Not a multiple of the last run: interrupted runs are shorter.
        let bonus_value = 12 * MS;
        let how = Aggregation { pid: 0, agg: 1, bonus_type: 0, bonus_value, limit: 0 };
        workload.aggregate(Some(how));
        for cpu in (0..4).filter(|_| threads) {
            let mut only = Mask::EMPTY;
            only.set(cpu);
            let turns = (0..500).flat_map(|_| [Op::Run(20_000), Op::Sleep(1_500_000)]);
            workload.tasks.push(TaskPlan {
                space: KERNEL,
                allowed: Some(Arc::new(only)),
                ..TaskPlan::new(format!("kworker{cpu}"), turns.collect())
            });
        }
        let options = literal();
        let machine = Machine::preset("small").unwrap();
        Sim { workload, ..Sim::keel_with(machine, options) }.run().switches_other
    };
    let (alone, beside) = (others(false), others(true));
    println!("{alone} {beside}");
    assert!(beside * 10 < alone * 15, "{alone} {beside}");
}

/// Programs that leave CPUs idle while a strict gate keeps waiting tasks where they are.
const SLEEPERS: &str = "groups:programs=4,threads=8,work=5ms,rounds=100,pause=100ms";

#[test]
fn ias_kick_selects_which_slaves_are_kicked() {
    let kicked = |gate, workload, kick| {
        let strict = [kick, "zone=hot", "max_idle_wait=never"];
        let knobs: &[&str] = if gate == Gate::Zone { &strict } else { &[kick] };
        let counters = run_with(workload, gate, 50, knobs).counters;
        (counters["kick_idle"], counters["kick_busy"])
    };
    assert_eq!(kicked(Gate::Zone, SLEEPERS, "ias_kick=none"), (0, 0));
    let (idle, busy) = kicked(Gate::Zone, SLEEPERS, "ias_kick=idle");
    assert!(idle > 0 && busy == 0, "kicked: {idle} idle slaves, {busy} busy ones");
    assert_eq!(kicked(Gate::Always, GROUPS, "ias_kick=idle").1, 0);
    assert!(kicked(Gate::Always, GROUPS, "ias_kick=busy").1 > 0);
}

#[test]
fn an_idle_slave_fetches_a_waiting_sibling() {
    // With more programs than CPUs, few of the waiting tasks are siblings of the master's task.
    let counters = run_with(SLEEPERS, Gate::Zone, 50, &["zone=cold"]).counters;
    assert!(counters["move_aggregate"] > 0, "{counters:?}");
}

/// Programs whose threads wait on random CPUs: each program forks its threads while the machine is
/// idle, and all threads begin `work` at the same moment. Two groups of two CPUs.
fn gathered(scheduler: Scheduler, how: Option<Aggregation>, sizes: [usize; 2], work: &[Op]) -> Sim {
    const GATE: Op = Op::Wait { condition: 0, mutex: None };
    let [programs, threads] = sizes;
    let mut tasks = Vec::new();
    for space in 0..programs as u32 {
        let own = tasks.len() + 1..tasks.len() + threads;
        let mut ops: Vec<Op> =
            own.clone().flat_map(|task| [Op::Run(30_000), Op::Fork(task)]).collect();
        let does = [&[GATE], work].concat();
        ops.extend(does.iter().cloned());
        let arrives_ns = Some(u64::from(space) * 20 * MS);
        tasks.push(TaskPlan { space, arrives_ns, ..TaskPlan::new("first", ops) });
        let ops = [&[Op::Run(20_000)], &does[..]].concat();
        let other = TaskPlan { space, arrives_ns: None, ..TaskPlan::new("other", ops) };
        tasks.extend(own.map(|_| other.clone()));
    }
    let gate = vec![Op::Sleep(300 * MS), Op::Broadcast(0)];
    tasks.push(TaskPlan { space: programs as u32, ..TaskPlan::new("gate", gate) });
    let mut workload = Workload { tasks, conditions: 1, ..Workload::default() };
    workload.aggregate(how);
    let text = "name = \"quad\"\nllcs = [\"0-1\", \"2-3\"]\n\
                kinds = [{ cpus = \"0-3\", capability = 1024 }]\n";
    let machine = Machine::parse_toml(text, "quad").unwrap();
    Sim { workload, scheduler, ..Sim::new(machine) }
}

/// Ten programs of a hundred threads each, busy for forty seconds.
fn crowded(options: Options, how: Option<Aggregation>) -> Outcome {
    let mut sim = gathered(keel(options), how, [10, 100], &[Op::Run(50_000 * MS)]);
    sim.workload.duration_ns = 40_300 * MS;
    sim.run()
}

/// The least and the largest run time of all threads, in ms.
fn extremes_ms(outcome: &Outcome) -> (u64, u64) {
    let threads = &outcome.accounts[..outcome.accounts.len() - 1];
    let ran = || threads.iter().map(|account| account.ran_ns / MS);
    (ran().min().unwrap(), ran().max().unwrap())
}

/// A slave whose DSQ holds no thread of its master's program fetches one, in exchange for another task.
#[test]
fn slaves_run_their_masters_program_wherever_its_threads_wait() {
    const BONUS_MS: u64 = 3 * 4;

    let (plain, together) = (crowded(literal(), None), crowded(literal(), Some(multiple(3))));
    let share = |outcome: &Outcome| outcome.same_space_ns as f64 / outcome.together_ns as f64;
    println!("{:.3} -> {:.3}", share(&plain), share(&together));
    assert_eq!(plain.counters["move_aggregate"], 0);
    assert!(share(&plain) < 0.3 && share(&together) > 0.8);
    // No thread gains or loses more than the lead of siblings at the end.
    let (before, after) = (extremes_ms(&plain), extremes_ms(&together));
    println!("{before:?} -> {after:?} ms");
    assert!(after.0 + 2 * BONUS_MS >= before.0 && after.1 <= before.1 + 2 * BONUS_MS);
    // The gate is asked about each exchanged task.
    let asked = crowded(Options { gate: Gate::Zone, ..literal() }, Some(multiple(3))).counters;
    assert!(asked["move_aggregate"] > 0 && asked["gate_busy"] >= asked["move_aggregate"]);
}

/// Neither cgroups, in which a task's weight is that of its arrival, nor nice values keep slaves from
/// running their master's program, or let a thread gain or lose by it.
#[test]
fn slaves_run_their_masters_program_whatever_threads_weigh() {
    let group = |parent| GroupPlan { name: "group".to_owned(), weight: 100, parent };
    // All in the first cgroup; each program in a nested cgroup of its own; or all at nice 10.
    let groups: Vec<_> = [0, 1, 1, 1, 1].map(group).into();
    let changes: [fn(&mut TaskPlan); 3] =
        [|task| task.group = 1, |task| task.group = 2 + task.space as usize, |task| task.nice = 10];
    for change in changes {
        let run = |how| {
            let options = literal();
            let mut sim = gathered(keel(options), how, [4, 24], &[Op::Run(50_000 * MS)]);
            let threads = sim.workload.tasks.len() - 1;
            sim.workload.tasks[..threads].iter_mut().for_each(change);
            sim.workload.groups.clone_from(&groups);
            sim.workload.duration_ns = 10_300 * MS;
            sim.run()
        };
        let (plain, together) = (run(None), run(Some(multiple(3))));
        let share = |outcome: &Outcome| outcome.same_space_ns as f64 / outcome.together_ns as f64;
        println!("{:.3} -> {:.3}", share(&plain), share(&together));
        assert!(share(&plain) < 0.3 && share(&together) > 0.8);
        let (before, after) = (extremes_ms(&plain), extremes_ms(&together));
        println!("{before:?} -> {after:?} ms");
        assert!(after.1 - after.0 <= 2 * (before.1 - before.0));
    }
}

/// A moved task may run before it is entered in the destination's index. Then it is in no DSQ any more,
/// or in the same one again. Here that happens to every other task.
#[test]
fn the_index_does_not_keep_tasks_that_left_during_a_move() {
    let left = |meanwhile: &str, looks_again: bool| {
        let text = std::fs::read_to_string("../../bpf/keel/index.h").unwrap();
        let after = "	remove_row_entry(src_cpu, t->listed_as, pid);\n";
        let end = text.split_once(after).unwrap().1.split_once("\n}\n").unwrap().0;
        let (enters, _) = end.split_once("	/* Code that removed the task").unwrap();
        let then = if looks_again { end } else { enters };
        let other = format!("{after}	if (pid & 1) {{ {meanwhile} }}\n{then}");
        let keel = with_fault("bpf/keel/index.h", &format!("{after}{end}"), &other);
        let options = literal();
        let scheduler = Scheduler::Built(options, keel.into());
        let outcome = gathered(scheduler, Some(multiple(3)), [4, 24], &[Op::Run(20 * MS)]).run();
        assert!(outcome.counters["move_aggregate"] > 0 && outcome.runnable == 0);
        outcome.listed.unwrap()
    };
    let leaves = "if (__sync_lock_test_and_set(&t->listed_on, 0)) \
                  remove_row_entry(dst_cpu, t->listed_as, pid);";
    let comes_back = "t->listings++; \
                      insert_row_entry(dst_cpu, t->listed_as, t->vruntime, pid, t->weight);";
    for meanwhile in [leaves, comes_back] {
        assert_eq!(left(meanwhile, true), 0, "{meanwhile}");
        assert!(left(meanwhile, false) > 0, "{meanwhile}");
    }
}

/// Ten programs of many threads on four CPUs, two under each cache; a cache holds less than a program
/// uses.
fn memory(scheduler: Scheduler, bonus: Option<u64>, together: Option<&str>) -> Outcome {
    let text = "name = \"quad\"\nllcs = [\"0-1\", \"2-3\"]\n\
                kinds = [{ cpus = \"0-3\", capability = 1024 }]\n\
                costs = { cache_kib = 3072, scan_ns = 0 }";
    let mut workload = Workload::by_name("memory:threads=40,total=2", 1).unwrap();
    workload.aggregate(bonus.map(multiple));
    workload.together = together.map(str::to_owned);
    let machine = Machine::parse_toml(text, "quad").unwrap();
    Sim { workload, scheduler, ..Sim::new(machine) }.run()
}

fn multiple(of: u64) -> Aggregation {
    Aggregation { pid: 0, agg: 1, bonus_type: 1, bonus_value: of, limit: 0 }
}

fn keel(options: Options) -> Scheduler {
    match keel_build() {
        Some(build) => Scheduler::Built(options, build),
        None => Scheduler::Keel(options),
    }
}

fn ias() -> Scheduler {
    keel(literal())
}

#[test]
fn without_a_bonus_ias_has_the_history_of_fair() {
    let fair = memory(Scheduler::Keel(Options::default()), None, None);
    assert_eq!(memory(ias(), Some(0), None).hash, fair.hash);
    assert_ne!(memory(ias(), Some(1), None).hash, fair.hash);
    let spawn = |scheduler, bonus: Option<u64>| {
        let mut workload = Workload::by_name("spawn:threads=300", 1).unwrap();
        workload.aggregate(bonus.map(multiple));
        let machine = Machine::preset("small").unwrap();
        Sim { workload, scheduler, ..Sim::new(machine) }.run()
    };
    let fair = spawn(Scheduler::Keel(Options::default()), None);
    assert_eq!(spawn(ias(), Some(0)).hash, fair.hash);
}

#[test]
fn aggregation_saves_cache_refills() {
    let fair = memory(Scheduler::Keel(Options::default()), None, None);
    let aggregated = memory(ias(), Some(3), None);
    let share = |outcome: &Outcome| outcome.same_space_ns as f64 / outcome.together_ns as f64;
    assert!(
        share(&aggregated) > 3.0 * share(&fair),
        "co-scheduled: aggregated {}, fair {}",
        share(&aggregated),
        share(&fair)
    );
    assert!(
        aggregated.time_ns < fair.time_ns,
        "ns: aggregated {}, fair {}",
        aggregated.time_ns,
        fair.time_ns
    );
    assert!(aggregated.overhead.total_ns() < fair.overhead.total_ns());
}

#[test]
fn groups_follow_the_workloads_setting() {
    // One group over both caches: slaves follow across caches and have more misses.
    let (two, one) = (memory(ias(), Some(3), None), memory(ias(), Some(3), Some("node")));
    assert_eq!(memory(ias(), Some(3), Some("0-1/2-3")).hash, two.hash);
    assert!(one.together_ns > two.together_ns, "three slaves, not two");
    assert!(one.time_ns > two.time_ns, "ns: one group {}, two groups {}", one.time_ns, two.time_ns);
}

/// In no pick is a sibling passed over that goes first.
#[test]
fn neither_exact_nor_bounded_searches_miss_a_task() {
    for scheduler in [Scheduler::Exact(literal()), ias()] {
        let outcome = judged(CROWD, scheduler);
        assert_eq!((&outcome.end, outcome.broken.len()), (&None, 0), "{:?}", outcome.broken);
        let counters = &outcome.counters;
        assert!(counters["window"] == 0 && counters["aggregate"] > 100, "{counters:?}");
    }
}

/// A lone thread among a thousand siblings falls behind by at most the bonus and a slice. So it ends
/// before any sibling on its CPU is further ahead than that.
#[test]
fn a_lone_thread_among_a_thousand_siblings_falls_behind_by_at_most_the_bonus() {
    const CPUS: u64 = 4;
    const SIBLINGS: u64 = 1_000;
    const WORK_NS: u64 = 60 * MS;
    let done_ns = |bonus_ms: u64| {
        let sibling = || TaskPlan::new("sibling", vec![Op::Run(200 * MS)]);
        let mut tasks: Vec<TaskPlan> = (0..SIBLINGS).map(|_| sibling()).collect();
        tasks.push(TaskPlan { space: 1, ..TaskPlan::new("lone", vec![Op::Run(WORK_NS)]) });
        let mut workload = Workload { tasks, ..Workload::default() };
        let bonus_value = bonus_ms * MS;
        let how = Aggregation { pid: 1, agg: 1, bonus_type: 0, bonus_value, limit: 0 };
        workload.aggregations = vec![how];
        let options = literal();
        let outcome = Sim { workload, ..Sim::keel_with(paper(CPUS as u32), options) }.run();
        outcome.accounts.last().unwrap().ended_ns.unwrap()
    };
    let slice_ns = Options::default().slice.ns();
    for bonus_ms in [0, 20, 100] {
        let behind_ns = bonus_ms * MS + slice_ns;
        let bound_ns = (WORK_NS + behind_ns) * (SIBLINGS / CPUS + 1);
        let done_ns = done_ns(bonus_ms);
        assert!(
            done_ns <= bound_ns * 11 / 10,
            "bonus {bonus_ms} ms: ended at {done_ns} ns, bound {bound_ns} ns"
        );
    }
}

/// Preferred siblings run ahead of all other tasks. A task that wakes up meanwhile waits until their
/// bonus is used up, but not also for all tasks that have fallen behind.
#[test]
fn a_wakee_does_not_wait_behind_tasks_that_fell_behind() {
    const THREADS: usize = 20;
    const BONUS_NS: u64 = 100 * MS;
    const TIMES: u64 = 40;
    let of = |space, ops| TaskPlan { space, ..TaskPlan::new("thread", ops) };
    let hog = |space| of(space, vec![Op::Run(MS), Op::Goto(0)]);
    let mut tasks: Vec<TaskPlan> = [0, 1].map(|space| vec![hog(space); THREADS]).concat();
    let times = (0..TIMES).flat_map(|_| [Op::Sleep(97 * MS), Op::Run(MS)]);
    tasks.push(of(2, times.collect()));
    let how = Aggregation { pid: 1, agg: 1, bonus_type: 0, bonus_value: BONUS_NS, limit: 0 };
    let duration_ns = 200_000 * MS;
    let workload = Workload { tasks, aggregations: vec![how], duration_ns, ..Workload::default() };
    let options = literal();
    let outcome = Sim { workload, ..Sim::keel_with(paper(1), options) }.run();
    let waited_ns = outcome.accounts.last().unwrap().ended_ns.unwrap() / TIMES - 98 * MS;
    // Preferred runs take half of the time, and on average half of one is still to come.
    let sprint_ns = THREADS as u64 * BONUS_NS;
    assert!(
        waited_ns < sprint_ns / 2,
        "the wakee waited {waited_ns} ns, a preferred run takes {sprint_ns} ns"
    );
}

/// Two programs on one CPU, each of which uses this many KiB; the caches hold 2000. Returns how many
/// KiB were refilled, and how often the CPU switched between the programs.
fn fetched_kib(kib: u64) -> (u64, u64) {
    let mut machine = paper(1);
    (machine.costs.near_kib, machine.costs.near_fetch_ns) = (2000, 100);
    let text = format!("groups:programs=2,threads=1,work=20ms,rounds=5,pause=0ms,kib={kib}");
    let workload = Workload::by_name(&text, 1).unwrap();
    let outcome = Sim { workload, ..Sim::keel(machine) }.run();
    assert!(outcome.switches_other > 4);
    (outcome.overhead.total_ns() / 100, outcome.switches_other)
}

#[test]
fn a_cores_own_caches_are_refilled_after_another_program() {
    assert_eq!(fetched_kib(0).0, 0);
    // Both fit: each is fetched once.
    assert_eq!(fetched_kib(900).0, 2 * 900);
    // They do not fit together: all but 200 KiB is evicted each time.
    let (kib, switches) = fetched_kib(1800);
    assert_eq!(kib, 2 * 1800 + (switches - 1) * 1600);
    // Memory that does not even fit alone misses in every pass, with or without switches.
    assert_eq!(fetched_kib(2001).0, 0);
}

/// How far one of the tasks `ahead` got ahead of one of the tasks `behind` in run time at most, in ms.
/// Tasks by their places in the workload.
fn lead_ms(sim: &Sim, ahead: Range<u32>, behind: Range<u32>) -> u64 {
    let mut simulation = sim.simulation();
    simulation.records = true;
    let outcome = simulation.run().unwrap();
    assert_eq!(outcome.end, None, "{}", outcome.dump);
    assert!(outcome.broken.is_empty(), "{:#?}", outcome.broken);
    let (mut ran, mut lead_ns) = (vec![0; sim.workload.tasks.len()], 0);
    for event in &outcome.record {
        let What::Switch { prev, charged_ns, .. } = event.what else { continue };
        let Some(task) = prev.checked_sub(1).filter(|task| (*task as usize) < ran.len()) else {
            continue;
        };
        ran[task as usize] = charged_ns;
        let of = |tasks: &Range<u32>| &ran[tasks.start as usize..tasks.end as usize];
        let (most, least) = (of(&ahead).iter().max().unwrap(), of(&behind).iter().min().unwrap());
        lead_ns = lead_ns.max(most.saturating_sub(*least));
    }
    lead_ns / MS
}

/// A multiple of the last run is a multiple of its time, whatever the task weighs that ran. Threads of
/// nice 19 that run for a moment each do not let their siblings of nice 0 run further ahead.
#[test]
fn threads_of_little_weight_lend_their_siblings_no_larger_bonus() {
    const TIMES: u64 = 3;
    let lead = |nice: i32| {
        let of = |space| TaskPlan { space, ..hog(100_000 * MS) };
        let options = literal();
        let mut sim = Sim::keel_with(paper(1), options).tasks(2, of(0)).tasks(3, of(1));
        for at in 0..30 {
            let ops = vec![Op::Run(MS / 2 + at * MS / 100), Op::Sleep(MS / 20), Op::Goto(0)];
            sim = sim.task(TaskPlan { nice, ..TaskPlan::new("brief", ops) });
        }
        sim.workload.aggregations = vec![Aggregation { pid: 1, ..multiple(TIMES) }];
        sim.workload.duration_ns = 20_000 * MS;
        lead_ms(&sim, 0..2, 2..5)
    };
    let bonus_ms = TIMES * Options::default().slice.ns() / MS;
    let (equal, light) = (lead(0), lead(19));
    println!("{equal} {light} ms");
    assert!(equal <= 2 * bonus_ms && light <= 2 * bonus_ms, "{equal} and {light} ms ahead");
}

/// Threads of little weight have the same bonus, in run time.
#[test]
fn threads_of_little_weight_have_a_bonus_too() {
    let switches = |times: u64| {
        let of = |space| TaskPlan { space, nice: 15, ..hog(100_000 * MS) };
        let options = literal();
        let mut sim = Sim::keel_with(paper(1), options).tasks(8, of(0)).tasks(8, of(1));
        sim.workload.aggregate(Some(multiple(times)));
        sim.workload.duration_ns = 10_000 * MS;
        sim.run().switches_other
    };
    let (plain, together) = (switches(0), switches(3));
    assert!(together * 4 < plain, "switches between programs: {plain}, aggregated {together}");
}

/// A waking task that siblings go before by their bonus does not preempt: the CPU would only switch to
/// one of these.
#[test]
fn no_waking_task_preempts_in_vain() {
    const SLICE_NS: u64 = 4 * MS;
    for how in [Aggregation { bonus_type: 0, bonus_value: 50 * MS, ..multiple(0) }, multiple(12)] {
        let of = |space, ops| TaskPlan { space, ..TaskPlan::new("thread", ops) };
        let options = literal();
        let mut sim = Sim::keel_with(paper(1), options)
            .tasks(8, of(0, vec![Op::Run(100_000 * MS)]))
            .tasks(3, of(1, vec![Op::Sleep(17 * MS), Op::Run(MS / 2), Op::Goto(0)]));
        sim.workload.aggregations = vec![Aggregation { pid: 1, ..how }];
        sim.workload.duration_ns = 10_000 * MS;
        let mut simulation = sim.simulation();
        simulation.records = true;
        let outcome = simulation.run().unwrap();
        assert!(outcome.broken.is_empty(), "{:#?}", outcome.broken);
        let (mut since_ns, mut in_vain) = (0, 0);
        for event in &outcome.record {
            let What::Switch { prev, left, next, .. } = event.what else { continue };
            let siblings = (1..=8).contains(&prev) && (1..=8).contains(&next);
            in_vain += u32::from(
                siblings && left == Left::Runnable && event.time_ns - since_ns < SLICE_NS / 2,
            );
            since_ns = event.time_ns;
        }
        let counters = &outcome.counters;
        println!("{in_vain} in vain, {} preempted", counters["preempt"]);
        assert!(counters["aggregate"] > 1_000 && counters["switch"] > 50, "{counters:?}");
        assert_eq!(in_vain, 0, "switches from sibling to sibling within a slice");
    }
}
