//! The gate `zone` in the whole keel: it may keep a task waiting while a CPU idles, but not for long.
//! Each CPU has a cache of its own here, unless said otherwise: within a cache the gate is not asked.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use evenkeel_invariants::What;
use evenkeel_keel::{Balance, Gate, IdleWait, Level, Options};
use evenkeel_machine::{Costs, CpuSet, Machine};
use evenkeel_sim::program::{Change, Op, TaskPlan, Thief, Workload};
use evenkeel_sim::{Level as Distance, Mask, Report};

use common::{MS, Sim, caches, hog, only};

fn quiet(cpus: u32, level: &str, max_idle_wait: IdleWait) -> Sim {
    let mut options = Options { gate: Gate::Zone, max_idle_wait, ..Options::default() };
    options.zone.set_level(level.parse::<Level>().unwrap());
    // All tasks arrive at once, and CPUs are in the quiet zone.
    let workload = Workload::by_name(&format!("background:cpus={cpus},pct=20,gap=0ms"), 1).unwrap();
    Sim { workload, ..Sim::keel_with(caches(cpus, 1), options) }
}

#[test]
fn the_gate_keeps_no_task_waiting_beyond_max_idle_wait() {
    for cpus in [4, 16, 64] {
        for level in ["cold", "warm-mid", "hot"] {
            // The checkers judge by max_idle_wait and the usual grace.
            quiet(cpus, level, IdleWait::default()).run();
        }
    }
}

/// New tasks that the gate kept on their parent's CPU would stay there as long as the zone is quiet.
#[test]
fn new_tasks_are_placed_in_the_quiet_zone_unless_strict() {
    let forks = |wait| {
        let simulation = quiet(16, "hot", wait).simulation();
        let report = Report::new(&simulation, &simulation.run().unwrap());
        assert!(report.is_good(), "end {:?}, violations {:?}", report.end, report.violations);
        (report.counters["move_fork"], report.counters["refuse_fork"])
    };
    let ((moved, refused), strict) = (forks(IdleWait::default()), forks(IdleWait::NEVER));
    assert!(moved > 0 && refused == 0, "forked tasks: {moved} moved, {refused} refused");
    assert!(
        strict.1 > 0 && strict.0 < moved,
        "moved and refused by a strict gate: {strict:?}; moved otherwise: {moved}"
    );
}

/// The paper's three occasions: "A task is newly created", "An idle task wakes up", "A running task
/// belongs to the busiest scheduling group". A strict gate is asked on the first two; on the third no
/// CPU even looks while the gate keeps all tasks where they are. No task moves without it, not even
/// within a cache.
#[test]
fn a_strict_gate_is_asked_on_each_of_the_three_occasions() {
    for machine in [caches(16, 1), caches(1, 16)] {
        let workload = Workload::by_name("background:cpus=16,pct=40,gap=0ms", 1).unwrap();
        let sim = Sim { machine, workload, ..quiet(16, "hot", IdleWait::NEVER) };
        let simulation = sim.simulation();
        let counters = Report::new(&simulation, &simulation.run().unwrap()).counters;
        for occasion in ["fork", "wake"] {
            assert!(counters[&format!("refuse_{occasion}")] > 0, "{occasion}: {counters:?}");
        }
        assert_eq!(counters["ungated"], 0);
        // A CPU with a load above 100 % for a while; the others are left alone.
        let moved = counters["move_idle"] + counters["move_periodic"];
        let tried = counters["try_idle"] + counters["try_periodic"];
        assert!(tried <= 2 * moved + 4, "{tried} tries, {moved} moved: {counters:?}");
    }
}

/// "It controls the worst-case scenario: one CPU load exceeds 100 % even though other CPUs are not
/// fully utilized." Two tasks were forked on one CPU, where a strict gate kept them. By the mean of the
/// CPUs no level but the lowest would ever let one leave.
#[test]
fn a_cpu_above_100_pct_is_relieved_while_others_idle() {
    for mean in ["0", "1"] {
        for wait in [IdleWait::default(), IdleWait::NEVER] {
            let mut options =
                Options { gate: Gate::Zone, max_idle_wait: wait, ..Options::default() };
            for (name, value) in
                [("zone", "hot"), ("bal_cpus_avg_enable", mean), ("balance_idle_cal", "1")]
            {
                options.set_parameter(name, value).unwrap();
            }
            let sim = Sim::keel_with(caches(4, 1), options).tasks(2, hog(2_000 * MS));
            let outcome = sim.outcome();
            let ended_ms = outcome.time_ns / MS;
            // Above 99 % after seven half-lives; without the rule it takes 4,000 ms.
            assert!(ended_ms < 2_300, "{ended_ms} ms with mean {mean} and {wait:?}");
            if wait == IdleWait::NEVER {
                let name = if mean == "1" { "gate_crowded" } else { "gate_busy" };
                assert_eq!(outcome.counters[name], 1, "{:?}", outcome.counters);
            }
        }
    }
}

/// Tasks leave a CPU that a real-time task took while it was idle. No gate is asked, however low the
/// CPU's utilisation and however strict the gate.
#[test]
fn no_task_waits_behind_a_real_time_task_that_took_an_idle_cpu() {
    // It takes CPU 0 while that idles, for half a second. Soon after, the sleepers wake up, and the
    // utilisation of CPU 0 is still in the quiet zone.
    let thief = Thief { cpu: 0, run_ns: 500 * MS, period_ns: 3000 * MS, from_ns: 198 * MS };
    let ops = || vec![Op::Run(MS), Op::Sleep(200 * MS), Op::Repeat { to: 0, times: 5 }];
    for wait in [IdleWait::default(), IdleWait::NEVER] {
        let sim = Sim { workload: Workload::default(), ..quiet(2, "hot", wait) };
        let sim = sim.tasks(2, TaskPlan::new("sleeper", ops())).thief(thief);
        let simulation = sim.simulation();
        let report = Report::new(&simulation, &simulation.run().unwrap());
        assert!(report.is_good(), "end {:?}, violations {:?}", report.end, report.violations);
        assert!(report.wait.max_ms < 20.0, "{:?} under {wait:?}", report.wait);
    }
}

/// Where no CPU idles and the waker's CPU is no better, there is nothing to allow or refuse.
#[test]
fn the_gate_is_not_asked_about_tasks_that_can_only_stay() {
    let asked = |cpus| {
        let simulation = quiet(cpus, "hot", IdleWait::default()).simulation();
        let counters = Report::new(&simulation, &simulation.run().unwrap()).counters;
        (counters["refuse_wake"], counters["gate_quiet"] + counters["gate_busy"])
    };
    assert_eq!(asked(1), (0, 0));
    // With more CPUs, each question has one answer.
    let simulation = quiet(4, "hot", IdleWait::default()).simulation();
    let counters = Report::new(&simulation, &simulation.run().unwrap()).counters;
    let sum = |prefix: &str| -> u64 {
        counters.iter().filter(|(name, _)| name.starts_with(prefix)).map(|(_, count)| count).sum()
    };
    assert!(counters["refuse_wake"] > 0, "{counters:?}");
    assert_eq!(sum("move_") + sum("refuse_"), sum("gate_") + counters["ungated"], "{counters:?}");
}

/// The verdict about a CPU is known before any task of it is looked at: no CPU looks for tasks where the
/// gate keeps all of them.
#[test]
fn a_cpu_looks_only_where_tasks_may_leave() {
    let looked = |gate: Option<IdleWait>| {
        let workload = Workload::by_name("background:cpus=16,pct=60,gap=0ms", 1).unwrap();
        let mut sim = Sim { workload, ..quiet(16, "hot", gate.unwrap_or_default()) };
        if gate.is_none() {
            sim = Sim { workload: sim.workload, ..Sim::keel(caches(16, 1)) };
        }
        let counters = sim.outcome().counters;
        let tries = counters["try_idle"] + counters["try_periodic"];
        (tries, counters["refuse_idle"] + counters["refuse_periodic"])
    };
    let (always, _) = looked(None);
    // By default a CPU is also told of tasks that have waited for long.
    for (wait, times) in [(IdleWait::default(), 2), (IdleWait::NEVER, 10)] {
        let (tries, refused) = looked(Some(wait));
        assert!(times * tries < always, "{tries} tries under {wait:?}, {always} under always");
        assert_eq!(refused, 0, "{wait:?}");
    }
}

/// Within a cache an idle CPU is taken whatever the zone, unless the gate is strict.
#[test]
fn an_idle_cpu_of_the_own_cache_is_always_taken() {
    let run = |wait| {
        let workload = Workload::by_name("background:cpus=8,pct=40", 1).unwrap();
        let sim = Sim { machine: caches(2, 4), workload, ..quiet(8, "hot", wait) };
        let outcome = sim.outcome();
        let near: u64 = outcome
            .migrations
            .iter()
            .filter(|((_, level), _)| *level == Distance::Cache)
            .map(|(_, count)| count)
            .sum();
        (near, outcome.idle_while_waiting_ns / MS)
    };
    let ((near, idle_ms), strict) = (run(IdleWait::default()), run(IdleWait::NEVER));
    assert!(near > 10 * strict.0, "{near} migrations within caches, strict {}", strict.0);
    assert!(10 * idle_ms < strict.1, "{idle_ms} ms of idle time, strict {}", strict.1);
}

/// How often a task gets CPU 1, which shares a core with busy CPU 0, of so many cores. It last ran on
/// CPU 1, and may run anywhere now.
fn turns_beside_a_busy_cpu(gate: Gate, cores: u32) -> usize {
    let cpus = format!("0-{}", 2 * cores - 1);
    let pairs: Vec<_> = (0..cores).map(|at| format!("\"{}-{}\"", 2 * at, 2 * at + 1)).collect();
    let text = format!(
        "name = \"cores\"\ncores = [{}]\nkinds = [{{ cpus = \"{cpus}\", capability = 1024 }}]\n",
        pairs.join(", ")
    );
    let machine = Machine { costs: Costs::none(), ..Machine::parse_toml(&text, "cores").unwrap() };
    let ops = vec![Op::Sleep(10 * MS), Op::Run(MS), Op::Goto(0)];
    let mut sim = Sim::keel_with(machine, Options { gate, ..Options::default() })
        .task(TaskPlan { allowed: only(0), ..hog(10_000 * MS) })
        .task(TaskPlan { allowed: only(1), ..TaskPlan::new("sleeper", ops) });
    let allowed = Arc::new(Mask::from(&cpus.parse::<CpuSet>().unwrap()));
    sim.workload.changes = vec![(95 * MS, Change::Affinity { task: 1, allowed })];
    sim.workload.duration_ns = 1_000 * MS;
    let mut simulation = sim.simulation();
    simulation.records = true;
    let outcome = simulation.run().unwrap();
    assert_eq!((&outcome.end, outcome.broken.len()), (&None, 0), "{}", outcome.dump);
    let turns = outcome.record.iter().filter(|event| {
        event.cpu == 1
            && event.time_ns > 200 * MS
            && matches!(event.what, What::Switch { next: 2, .. })
    });
    turns.count()
}

/// Beside a busy CPU of its core a task gets less than on a core of its own: it goes there when it
/// wakes, as with `always`. Where no core idles as a whole, it stays.
#[test]
fn a_waking_task_takes_a_core_that_idles_as_a_whole() {
    for gate in [Gate::Always, Gate::Zone] {
        assert_eq!(turns_beside_a_busy_cpu(gate, 2), 0, "{gate:?}");
        assert!(turns_beside_a_busy_cpu(gate, 1) > 50, "{gate:?}");
    }
}

/// A task that the gate keeps from an idle CPU preempts by a smaller margin, unless the gate is strict.
#[test]
fn a_task_that_the_gate_keeps_local_preempts_earlier() {
    let kept = |wait| {
        let workload = Workload::by_name("background:cpus=4,pct=40,work=300us", 1).unwrap();
        let simulation = Sim { workload, ..quiet(4, "hot", wait) }.simulation();
        let counters = Report::new(&simulation, &simulation.run().unwrap()).counters;
        (counters["preempt"], counters["refuse_wake"])
    };
    let (preempted, refused) = kept(IdleWait::default());
    assert!(2 * preempted > refused, "{preempted} preemptions, {refused} refusals");
    let (preempted, refused) = kept(IdleWait::NEVER);
    assert!(2 * preempted < refused, "{preempted} preemptions, {refused} refusals");
}

#[test]
fn a_strict_gate_keeps_cpus_idle_for_longer() {
    let idle_ms = |wait| {
        let simulation = quiet(4, "hot", wait).simulation();
        let outcome = simulation.run().unwrap();
        Report::new(&simulation, &outcome).idle_while_waiting_ms
    };
    let (bounded, strict) = (idle_ms(IdleWait::default()), idle_ms(IdleWait::NEVER));
    assert!(
        strict > 1.3 * bounded,
        "idle ms while tasks waited: strict {strict}, bounded {bounded}"
    );
}

/// A strict gate that compares the mean of all CPUs with the level's limit.
fn scoring(level: &str) -> Options {
    let mut options =
        Options { gate: Gate::Zone, max_idle_wait: IdleWait::NEVER, ..Options::default() };
    for (name, value) in [("zone", level), ("bal_cpus_avg_enable", "1"), ("balance_idle_cal", "1")]
    {
        options.set_parameter(name, value).unwrap();
    }
    options
}

/// A task that has used 60 % of its CPU, which is above the limit of 50 %, for a minute has a prize, and
/// for one second a punishment: by this much less or more than the mean of about 48 % it stays or leaves
/// when it finds its CPU taken.
#[test]
fn a_task_that_waits_has_its_score() {
    let moved = |ran_ms: u64| {
        let turns = |work_us: u64, sleep_us: u64| {
            vec![Op::Run(work_us * MS / 1_000), Op::Sleep(sleep_us * MS / 1_000), Op::Goto(0)]
        };
        let pinned = |cpu, ops, arrives_ms: u64| TaskPlan {
            allowed: only(cpu),
            arrives_ns: Some(arrives_ms * MS),
            ..TaskPlan::new("pinned", ops)
        };
        let mut sim = Sim::keel_with(caches(2, 1), scoring("warm-mid"))
            .task(TaskPlan::new("worker", turns(6_000, 4_000)))
            .task(pinned(1, turns(1_600, 8_400), 0))
            .task(pinned(0, turns(2_000, 7_900), ran_ms));
        sim.workload.duration_ns = (ran_ms + 400) * MS;
        let mut simulation = sim.simulation();
        simulation.limits = None;
        let counters = simulation.run().unwrap().counters;
        (counters["gate_punished"], counters["gate_quiet"] + counters["gate_prized"])
    };
    let (young, old) = (moved(1_000), moved(60_000));
    assert!(young.0 > 0, "after 1 s: punished, refused {young:?}");
    assert!(old.0 == 0 && old.1 > 0, "after 60 s: punished, refused {old:?}");
}

/// The same of a task that never stops and is alone: the gate is asked about it when a faster CPU idles.
/// It has the share of a task that runs.
#[test]
fn a_task_that_never_stops_has_its_score() {
    let leaves = |ran_ms: u64| {
        let parts = "active".parse().unwrap();
        let options = Options { balance: Balance::Capability, parts, ..scoring("warm-low") };
        let mut sim = Sim::keel_with(caches(3, 1), options).task(hog(90_000 * MS));
        sim.workload.changes = vec![(ran_ms * MS, Change::Told(vec![400, 1024, 1024]))];
        sim.workload.duration_ns = (ran_ms + 300) * MS;
        let counters = sim.run().counters;
        (counters["move_active"], counters["gate_prized"])
    };
    assert_eq!(leaves(1_000), (1, 0), "after 1 s: left, prized");
    for ran_ms in [6_000, 60_000] {
        let old = leaves(ran_ms);
        assert!(old.0 == 0 && old.1 > 0, "after {ran_ms} ms: left, prized {old:?}");
    }
}

/// A long rest ends the time above the limit: the prize is for a task that stays above it.
#[test]
fn a_task_that_slept_has_to_earn_its_prize_anew() {
    let parts = "active".parse().unwrap();
    let options = Options { balance: Balance::Capability, parts, ..scoring("warm-low") };
    let ops = vec![Op::Run(6_000 * MS), Op::Sleep(1_000 * MS), Op::Run(9_000 * MS)];
    let mut sim = Sim::keel_with(caches(3, 1), options).task(TaskPlan::new("slept", ops));
    sim.workload.changes = vec![(8_000 * MS, Change::Told(vec![400, 1024, 1024]))];
    sim.workload.duration_ns = 8_300 * MS;
    let counters = sim.run().counters;
    assert_eq!((counters["move_active"], counters["gate_prized"]), (1, 0));
}
