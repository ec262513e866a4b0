//! The whole keel on simulated machines: shares, wake-ups, balancing, hotplug, real-time tasks, costs.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::{MS, Sim, hog, only, paper};
use evenkeel_invariants::Limits;
use evenkeel_keel::{Balance, Gate, Options, Order, Parts, Slice};
use evenkeel_machine::{Costs, Machine};
use evenkeel_sim::program::{Change, GroupPlan, Op, TaskPlan, Thief};
use evenkeel_sim::{Closed, End, Level, Mask, Overhead, Reason, STRICT, Scheduler};

fn ran_ms(outcome: &evenkeel_sim::Outcome) -> Vec<u64> {
    outcome.accounts.iter().map(|task| task.ran_ns / MS).collect()
}

#[test]
fn equal_tasks_share_equally() {
    let mut sim = Sim::keel(paper(1)).tasks(3, hog(10_000 * MS));
    sim.workload.duration_ns = 3000 * MS;
    let ran = ran_ms(&sim.run());
    assert!(ran.iter().all(|ms| ms.abs_diff(1000) < 10), "{ran:?}");
}

#[test]
fn tasks_share_a_cpu_by_weight() {
    let nice = |nice| TaskPlan { nice, allowed: only(0), ..hog(100_000 * MS) };
    let mut sim = Sim::keel(paper(2)).task(nice(0)).task(nice(5));
    sim.workload.duration_ns = 8000 * MS;
    let outcome = sim.run();
    let ran = ran_ms(&outcome);
    // 1024 : 335.
    let due = 8000 * 1024 / (1024 + 335);
    assert!(ran[0].abs_diff(due) < 80, "{ran:?} of {due}");
    assert!(outcome.findings.unwrap().shares_judged > 0);
}

#[test]
fn cgroups_share_a_cpu_by_weight() {
    let member = |group| TaskPlan { group, ..hog(100_000 * MS) };
    let mut sim = Sim::keel(paper(1)).task(member(1)).tasks(3, member(2));
    sim.workload.groups = [("one", 300), ("three", 100)]
        .map(|(name, weight)| GroupPlan { name: name.to_owned(), weight, parent: 0 })
        .to_vec();
    sim.workload.duration_ns = 8000 * MS;
    let ran = ran_ms(&sim.run());
    assert!(ran[0].abs_diff(6000) < 120, "{ran:?}");
}

/// A rescue moves a single task to the local DSQ. A second task there would wait for a slice, out of
/// reach of idle CPUs.
#[test]
fn a_rescue_keeps_no_other_task_waiting() {
    let slice = Slice::from_us(32_000).unwrap();
    let mut rescued = 0;
    // At some of these times the others end while the light task has its turn.
    for end_ms in (5000..5300).step_by(10) {
        let hog = |nice, ms, allowed| TaskPlan { nice, allowed, ..hog(ms * MS) };
        let mut sim = Sim::keel_with(paper(3), Options { slice, ..Options::default() })
            .task(hog(-13, end_ms, only(1)))
            .task(hog(-13, end_ms, only(2)))
            .tasks(2, hog(-10, 10_000, None))
            .task(hog(19, 10_000, only(0)));
        sim.workload.duration_ns = 6000 * MS;
        let mut simulation = sim.simulation();
        // The light task waits until the rescue.
        simulation.limits = Some(Limits { wait_ns: 5_100 * MS, wait_per_task_ns: 0, ..STRICT });
        let outcome = simulation.run().unwrap();
        assert_eq!(outcome.end, None, "others end at {end_ms} ms");
        assert!(outcome.broken.is_empty(), "others end at {end_ms} ms: {:#?}", outcome.broken);
        rescued += outcome.counters["rescue"];
    }
    assert!(rescued > 0);
}

/// The requested frequency is the utilisation plus a quarter, at most the maximum. It is updated at
/// ticks of busy CPUs.
#[test]
fn frequencies_follow_utilisation() {
    let busy = |cpu, busy_ms, idle_ms| {
        let ops = vec![Op::Run(busy_ms * MS), Op::Sleep(idle_ms * MS), Op::Goto(0)];
        TaskPlan { allowed: only(cpu), ..TaskPlan::new("busy", ops) }
    };
    let mut sim = Sim::keel(paper(4)).task(TaskPlan { allowed: only(0), ..hog(2000 * MS) });
    // The period of 13 ms is no multiple of the tick, so that ticks hit all parts of it.
    for (cpu, busy_ms) in [(1, 9), (2, 6), (3, 3)] {
        sim = sim.task(busy(cpu, busy_ms, 13 - busy_ms));
    }
    sim.workload.duration_ns = 1000 * MS;
    let found = sim.run().frequencies;
    for (found, (wanted, margin)) in
        found.iter().zip([(1024, 0), (886, 100), (591, 100), (295, 100)])
    {
        assert!(found.abs_diff(wanted) <= margin, "{found} of {wanted}");
    }
}

/// Each sleep is shorter than the wake-up granularity, so the hog is never ahead by more than that.
#[test]
fn a_task_that_a_timer_wakes_preempts_a_hog() {
    let wakes = 400;
    let ops = vec![Op::Run(MS / 10), Op::Sleep(MS / 2), Op::Repeat { to: 0, times: wakes }];
    let outcome =
        Sim::keel(paper(1)).task(hog(1000 * MS)).task(TaskPlan::new("sleeper", ops)).run();
    // At first it is not behind the hog, and waits for a slice a few times.
    let waited_ns = outcome.accounts[1].waited_ns;
    assert!(waited_ns < 40 * MS, "{waited_ns} ns");
    assert!(outcome.counters["preempt"] > wakes / 2);
}

#[test]
fn the_wakee_preempts_its_waker_at_the_next_tick() {
    let (messages, slice_ms) = (50, 40);
    let waker = vec![
        Op::Sleep(MS),
        Op::Run(MS / 10),
        Op::Send(0),
        Op::Run(3 * slice_ms * MS),
        Op::Repeat { to: 0, times: messages - 1 },
    ];
    let receiver =
        vec![Op::Receive(0), Op::Run(MS / 100), Op::Repeat { to: 0, times: messages - 1 }];
    let options = Options { slice: Slice::from_us(slice_ms * 1000).unwrap(), ..Options::default() };
    let mut sim = Sim::keel_with(paper(1), options)
        .task(TaskPlan::new("waker", waker))
        .task(TaskPlan::new("receiver", receiver));
    sim.workload.channels = 1;
    let outcome = sim.run();
    // Until the next tick, which comes every 4 ms; not at once.
    let waited_ns = outcome.accounts[1].waited_ns / messages;
    assert!((MS..=4 * MS).contains(&waited_ns), "{waited_ns} ns");
}

#[test]
fn a_task_that_always_yields_is_switched_every_ten_microseconds() {
    let yielder = vec![Op::Run(1000), Op::Yield, Op::Repeat { to: 0, times: 10_000 }];
    let outcome = Sim::keel(paper(1)).tasks(2, TaskPlan::new("yielder", yielder)).run();
    // 20 ms of work in all.
    let switches = outcome.counters["switch"];
    assert!((1900..=2100).contains(&switches), "{switches} switches");
}

#[test]
fn no_cpu_idles_while_tasks_wait() {
    let outcome = Sim::keel(paper(4)).tasks(13, hog(100 * MS)).run();
    // 13 x 100 ms on 4 CPUs; at the end they cannot all be busy.
    assert!(outcome.time_ns < 360 * MS, "{}", outcome.time_ns);
    assert!(outcome.idle_while_waiting_ns < 20 * MS, "{}", outcome.idle_while_waiting_ns);
    assert!(outcome.counters["move_idle"] > 0);
}

/// The same simulation with this real-time task, and with a deadline task that does the same.
fn higher(sim: &Sim, thief: Thief) -> [(&'static str, Sim); 2] {
    let (mut deadline, real_time) = (sim.clone(), sim.clone().thief(thief));
    deadline.workload.deadlines.push(thief);
    [("real-time", real_time), ("deadline", deadline)]
}

#[test]
fn a_task_that_a_higher_class_preempts_migrates() {
    let thief = Thief { cpu: 0, run_ns: 400 * MS, period_ns: 1000 * MS, from_ns: 50 * MS };
    for (class, sim) in higher(&Sim::keel(paper(2)).tasks(2, hog(200 * MS)), thief) {
        let outcome = sim.run();
        // 350 ms of work are left on one CPU from 50 ms on.
        assert!(outcome.time_ns < 420 * MS, "{class}: {}", outcome.time_ns);
        assert!(outcome.counters["thief"] > 0, "{class}");
    }
}

/// The kernel calls cpu_release when a higher class preempts a task, but not when it takes an idle CPU.
#[test]
fn no_task_stays_on_a_cpu_that_a_higher_class_took_while_idle() {
    let thief = Thief { cpu: 1, run_ns: 900 * MS, period_ns: 1000 * MS, from_ns: 5 * MS };
    let late = TaskPlan { arrives_ns: Some(20 * MS), ..hog(100 * MS) };
    for (class, sim) in higher(&Sim::keel(paper(2)).task(hog(600 * MS)).task(late), thief) {
        // Both share CPU 0.
        let waited_ns = sim.run().accounts[1].waited_ns;
        assert!(waited_ns < 150 * MS, "{class}: the late task waited {waited_ns} ns");
    }
}

/// An idle CPU is kicked for a waiting task, and a higher class takes it before it looks.
#[test]
fn no_task_is_pulled_behind_a_higher_class() {
    let machine = paper(2);
    let machine = Machine { costs: Costs { kick_ns: 50_000, ..machine.costs }, ..machine };
    let thief = Thief { cpu: 1, run_ns: 900 * MS, period_ns: 1000 * MS, from_ns: 50 * MS + 20_000 };
    let mut sim = Sim::keel(machine).tasks(2, TaskPlan { allowed: only(0), ..hog(300 * MS) });
    let mut both = Mask::EMPTY;
    (0..2).for_each(|cpu| both.set(cpu));
    let allowed = Arc::new(both);
    // One of them waits, and its new mask allows CPU 1 at once.
    sim.workload.changes = (0..2)
        .map(|task| (50 * MS, Change::Affinity { task, allowed: Arc::clone(&allowed) }))
        .collect();
    for (class, sim) in higher(&sim, thief) {
        // Both share CPU 0 all the same.
        for account in &sim.run().accounts[..2] {
            assert!(account.waited_ns < 350 * MS, "{class}: {} ns", account.waited_ns);
        }
    }
}

#[test]
fn no_task_is_lost_when_a_cpu_goes_offline() {
    let mut sim = Sim::keel(paper(4)).tasks(8, hog(100 * MS));
    sim.workload.changes = vec![
        (30 * MS, Change::Hotplug { cpu: 2, online: false }),
        (150 * MS, Change::Hotplug { cpu: 2, online: true }),
    ];
    let outcome = sim.run();
    assert_eq!(outcome.restarts, 2);
    assert!(outcome.time_ns < 260 * MS, "{}", outcome.time_ns);
}

#[test]
fn changing_masks_are_kept() {
    let mut sim = Sim::keel(paper(4)).tasks(6, hog(50 * MS));
    for (at, (task, cpu)) in (1..).zip([(0, 3), (1, 3), (2, 0), (0, 1), (5, 2), (0, 0)]) {
        let allowed = only(cpu).unwrap();
        sim.workload.changes.push((at * 7 * MS, Change::Affinity { task, allowed }));
    }
    let outcome = sim.run();
    assert!(outcome.migrations.keys().any(|(reason, _)| *reason == Reason::Change));
}

#[test]
fn preset_machines_are_kept_busy() {
    for name in ["amc1", "amc2", "amc3", "small", "server", "hybrid"] {
        let machine = Machine::preset(name).unwrap();
        let (cpus, nodes) = (machine.cpus.len(), machine.nodes.len());
        let worker = TaskPlan::new("worker", vec![Op::RunAbout(60 * MS)]);
        let outcome = Sim::keel(machine).tasks(cpus * 3, worker).run();
        let busy = outcome.time_ns * cpus as u64 - outcome.idle_ns;
        let lost = outcome.idle_while_waiting_ns;
        assert!(lost * 100 < busy, "{name}: {lost} of {busy} ns");
        let remote = |(_, level): &&(Reason, Level)| matches!(level, Level::Remote(_));
        let is_any_remote = outcome.migrations.keys().any(|key| remote(&key));
        assert!(is_any_remote || !name.starts_with("amc"), "{name}: no task went to another node");
        assert!(!is_any_remote || nodes > 1, "{name} has one node");
    }
}

#[test]
fn every_combination_of_policies_keeps_all_rules() {
    let ops =
        || vec![Op::RunAbout(3 * MS), Op::SleepAbout(2 * MS), Op::Repeat { to: 0, times: 20 }];
    for name in ["amc1", "hybrid"] {
        let machine = Machine::preset(name).unwrap();
        let tasks = machine.cpus.len() * 2;
        let plan = |at: usize| TaskPlan {
            space: (at / 4) as u32,
            nice: [0, 0, 5][at % 3],
            ..TaskPlan::new("worker", ops())
        };
        for options in combinations() {
            let gate = options.gate;
            let mut sim = with(options, machine.clone());
            sim.workload.tasks = (0..tasks).map(plan).collect();
            let policies = sim.scheduler.to_string();
            let mut simulation = sim.simulation();
            // A gate may let CPUs idle, but not for long.
            let idle_grace_ns = if gate == Gate::Always { STRICT.idle_grace_ns } else { 40 * MS };
            simulation.limits = Some(Limits { idle_grace_ns, ..STRICT });
            let outcome = simulation.run().unwrap();
            assert_eq!(outcome.end, None, "{policies} on {name}");
            assert!(outcome.broken.is_empty(), "{policies} on {name}: {:#?}", outcome.broken);
            assert!(outcome.accounts.iter().all(|task| task.ended_ns.is_some()), "{name}");
        }
    }
}

fn parts(active: bool) -> Parts {
    if active { "active".parse().unwrap() } else { Parts::default() }
}

fn combinations() -> Vec<Options> {
    let mut all = Vec::new();
    for (order, gate) in
        Order::ALL.iter().flat_map(|order| Gate::ALL.iter().map(move |g| (order, g)))
    {
        for (balance, active) in
            [(Balance::Count, false), (Balance::Capability, false), (Balance::Capability, true)]
        {
            let parts = parts(active);
            all.push(Options { order: *order, gate: *gate, balance, parts, ..Options::default() });
        }
    }
    all
}

fn with(options: Options, machine: Machine) -> Sim {
    let mut sim = Sim::keel(machine);
    sim.scheduler = match sim.scheduler {
        Scheduler::Built(_, build) => Scheduler::Built(options, build),
        _ => Scheduler::Keel(options),
    };
    sim
}

#[test]
fn active_migration_moves_a_lone_task_to_an_idle_fast_cpu() {
    // A fast CPU of "hybrid" is no faster than a slow one while its SMT sibling is busy.
    for (name, most_pct) in [("amc1", 90), ("hybrid", 100)] {
        let machine = Machine::preset(name).unwrap();
        let run = |active| {
            let options = Options {
                balance: Balance::Capability,
                parts: parts(active),
                ..Options::default()
            };
            let mut sim = with(options, machine.clone());
            // One task per CPU, half of which end long before the others.
            let work = (0..machine.cpus.len()).map(|at| hog([100 * MS, 300 * MS][at % 2]));
            sim.workload.tasks = work.collect();
            sim.run()
        };
        let (stay, leave) = (run(false), run(true));
        assert_eq!(stay.counters["move_active"], 0);
        assert!(leave.counters["move_active"] > 0, "{name}");
        let times = (leave.time_ns / MS, stay.time_ns / MS);
        assert!(times.0 * 100 <= times.1 * most_pct, "{name}: {times:?} ms");
    }
}

#[test]
fn active_migration_leaves_a_task_that_may_use_slow_cpus_only() {
    let options =
        Options { balance: Balance::Capability, parts: parts(true), ..Options::default() };
    let machine = Machine::preset("amc1").unwrap();
    let most = machine.cpus.iter().map(|cpu| cpu.capability).max();
    let slow = machine.cpus.iter().find(|cpu| Some(cpu.capability) < most).unwrap().id;
    let mut sim = with(options, machine);
    sim.workload.tasks = vec![TaskPlan { allowed: only(slow), ..hog(200 * MS) }];
    assert_eq!(sim.run().counters["move_active"], 0);
}

#[test]
fn searches_cost_time() {
    let mut machine = Machine::preset("amc1").unwrap();
    let ops =
        || vec![Op::RunAbout(3 * MS), Op::SleepAbout(2 * MS), Op::Repeat { to: 0, times: 20 }];
    let outcome = |machine: &Machine| {
        Sim::keel(machine.clone()).tasks(80, TaskPlan::new("worker", ops())).run()
    };
    machine.costs = evenkeel_machine::Costs::none();
    let free = outcome(&machine);
    assert_eq!(free.overhead.total_ns(), 0);
    machine.costs.balance_ns = 100_000;
    let dear = outcome(&machine);
    let attempts = dear.counters["try_idle"] + dear.counters["try_periodic"];
    assert!(dear.overhead.total_ns() > 0 && dear.overhead.total_ns() <= attempts * 100_000);
}

/// Balancing, refilled caches after migrations, stretches with interrupts off, and switches are counted
/// apart.
#[test]
fn each_cost_is_counted_under_its_cause() {
    let ops =
        || vec![Op::RunAbout(3 * MS), Op::SleepAbout(2 * MS), Op::Repeat { to: 0, times: 20 }];
    let outcome = |name: &str| {
        let mut machine = Machine::preset("server").unwrap();
        machine.costs = evenkeel_machine::Costs::none();
        machine.costs.set(name, 10_000, "test").unwrap();
        let outcome = Sim::keel(machine).tasks(300, TaskPlan::new("worker", ops())).run();
        let Overhead { balancing_ns, refill_ns, switching_ns } = outcome.overhead;
        let Closed { all_ns2, looking_ns2 } = outcome.closed;
        assert!(looking_ns2 <= all_ns2, "{name}");
        [balancing_ns, refill_ns, switching_ns, looking_ns2, all_ns2 - looking_ns2]
            .map(|cost| cost > 0)
    };
    // Searches and moves happen with interrupts off; what the running task pays for can be interrupted.
    for (name, expected) in [
        ("balance_ns", [true, false, false, true, false]),
        ("scan_ns", [true, false, false, true, false]),
        ("lock_ns", [true, false, false, false, true]),
        ("refill_core_ns", [false, true, false, false, false]),
        ("refill_cache_ns", [false, true, false, false, false]),
        ("switch_ns", [false, false, true, false, false]),
        ("kick_ns", [false; 5]),
    ] {
        assert_eq!(outcome(name), expected, "{name}");
    }
}

/// Searches and moves of one stretch are squared together; the source CPU of a move has a stretch of
/// its own.
#[test]
fn a_closed_stretch_is_squared_as_a_whole() {
    let mut closed = Closed::default();
    closed.add(3, 4);
    closed.add(0, 2);
    assert_eq!(closed, Closed { all_ns2: 49 + 4, looking_ns2: 9 });
}

/// Each DSQ has its own clock. A task that is pulled from another DSQ keeps its distance to the clock;
/// otherwise it would have the CPU for itself until it had caught up.
#[test]
fn a_pulled_task_keeps_its_distance_to_the_clock() {
    let alone = TaskPlan { allowed: only(0), ..hog(2_200 * MS) };
    let crowded = TaskPlan { allowed: only(1), ..hog(4_000 * MS) };
    let mut sim = Sim::keel(paper(2)).task(alone).tasks(10, crowded);
    let mut both = Mask::EMPTY;
    both.set(0);
    both.set(1);
    let both = Arc::new(both);
    // After two seconds five tasks may leave the crowd.
    let widened = |task| (2_000 * MS, Change::Affinity { task, allowed: Arc::clone(&both) });
    sim.workload.changes = (1..6).map(widened).collect();
    let outcome = sim.run();
    // A fifth of a second of its work is left, and it shares with five tasks at most.
    let ended_ms = outcome.accounts[0].ended_ns.unwrap() / MS;
    assert!((2_600..4_000).contains(&ended_ms), "the lone task ended at {ended_ms} ms");
}

/// The keel's dump when the watchdog ends it names each CPU with runnable tasks, and each waiting task.
#[test]
fn the_dump_names_waiting_tasks_and_leaves_out_idle_cpus() {
    let pinned = TaskPlan { allowed: only(0), ..hog(MS) };
    let outcome = Sim::keel(paper(3))
        .tasks(2, pinned)
        .thief(Thief { cpu: 0, run_ns: 50_000 * MS, period_ns: 90_000 * MS, from_ns: 0 })
        .outcome();
    assert!(matches!(outcome.end, Some(End::Scheduler(_))), "{:?}", outcome.end);
    let lines = |what: &str| outcome.dump.lines().filter(|line| line.contains(what)).count();
    assert_eq!(lines("order=0 gate=0 balance=0"), 1, "{}", outcome.dump);
    assert_eq!(lines(" runnable="), 1, "lines of CPUs; two of three CPUs idle: {}", outcome.dump);
    assert_eq!(lines(" runnable=2 "), 1, "{}", outcome.dump);
    assert_eq!(lines("home=0 counted_on=0"), 2, "{}", outcome.dump);
}
