//! The engine under a trivial scheduler: what must happen is known to the nanosecond.

#![allow(clippy::unwrap_used)]

mod common;

use common::{MS, Sim, hog, paper};
use evenkeel_sim::program::{Interrupts, Op, TaskPlan, Thief};
use evenkeel_sim::{Account, End, Level, Reason, Scheduler};

#[test]
fn one_task_runs_for_exactly_its_work() {
    let outcome = Sim::new(paper(1)).task(hog(10 * MS)).run();
    assert_eq!(outcome.time_ns, 10 * MS);
    assert_eq!(outcome.accounts[0].ran_ns, 10 * MS);
    assert_eq!(outcome.accounts[0].waited_ns, 0);
    assert_eq!(outcome.accounts[0].worked_ns, 10 * MS);
}

#[test]
fn a_cpu_of_half_the_capability_takes_twice_as_long() {
    let mut machine = paper(1);
    machine.cpus[0].capability = 512;
    assert_eq!(Sim::new(machine).task(hog(10 * MS)).run().time_ns, 20 * MS);
}

#[test]
fn two_tasks_on_one_cpu_take_turns_of_a_slice() {
    let outcome = Sim::new(paper(1)).task(hog(10 * MS)).task(hog(10 * MS)).run();
    assert_eq!(outcome.time_ns, 20 * MS);
    // Slices of 4 ms, ticks of 4 ms: 0 - 4, 8 - 12, 16 - 18 and 4 - 8, 12 - 16, 18 - 20.
    let ended: Vec<_> = outcome.accounts.iter().map(|task| task.ended_ns.unwrap()).collect();
    assert_eq!(ended, [18 * MS, 20 * MS]);
}

#[test]
fn what_runs_or_waits_at_the_end_is_accounted() {
    let mut sim = Sim::new(paper(1)).task(hog(10 * MS)).task(hog(10 * MS));
    sim.workload.duration_ns = 7 * MS;
    let times = |task: &Account| (task.ran_ns / MS, task.waited_ns / MS);
    let times: Vec<_> = sim.run().accounts.iter().map(times).collect();
    assert_eq!(times, [(4, 3), (3, 4)]);
}

#[test]
fn a_full_record_ends_the_simulation() {
    let ops = vec![Op::Run(100), Op::Sleep(100), Op::Goto(0)];
    let mut sim = Sim::new(paper(1)).task(TaskPlan::new("restless", ops));
    sim.workload.duration_ns = 60_000 * MS;
    let mut simulation = sim.simulation();
    simulation.records = true;
    let outcome = simulation.run().unwrap();
    assert_eq!(outcome.end, Some(End::Kept));
    let events = outcome.record.len();
    assert!((4_000_000..4_000_100).contains(&events), "{events} events were kept");
}

#[test]
fn tasks_spread_over_idle_cpus() {
    let outcome = Sim::new(paper(4)).tasks(4, hog(10 * MS)).run();
    assert_eq!(outcome.time_ns, 10 * MS);
    assert_eq!(outcome.idle_ns, 0);
}

#[test]
fn run_idle_and_work_times_add_up() {
    let outcome = Sim::new(paper(4)).tasks(7, hog(10 * MS)).run();
    let worked: u64 = outcome.accounts.iter().map(|task| task.worked_ns).sum();
    assert_eq!(worked, 70 * MS);
    let ran: u64 = outcome.accounts.iter().map(|task| task.ran_ns).sum();
    assert_eq!(ran, 70 * MS, "without costs, run time is work");
    assert_eq!(ran + outcome.idle_ns, 4 * outcome.time_ns);
}

#[test]
fn a_real_time_task_delays_the_task_by_its_run_time() {
    let thief = Thief { cpu: 0, run_ns: 3 * MS, period_ns: 100 * MS, from_ns: 5 * MS };
    let outcome = Sim::new(paper(1)).task(hog(10 * MS)).thief(thief).run();
    assert_eq!(outcome.time_ns, 13 * MS);
    assert_eq!(outcome.accounts[0].waited_ns, 3 * MS);
}

#[test]
fn interrupts_delay_a_task_with_and_without_irq_accounting() {
    let source = Interrupts { cpu: 0, run_ns: MS, period_ns: 4 * MS };
    for accounting in [0, 1] {
        let mut machine = paper(1);
        machine.costs.irq_accounting = accounting;
        let outcome = Sim::new(machine).task(hog(9 * MS)).interrupts(source).run();
        // Of every 4 ms, 1 ms is lost from the first interrupt on: 4 + (1 + 3) + (1 + 2).
        assert_eq!(outcome.time_ns, 11 * MS);
        assert_eq!(outcome.accounts[0].worked_ns, 9 * MS);
    }
}

#[test]
fn the_cost_of_a_switch_delays_the_task() {
    let mut machine = paper(1);
    machine.costs.switch_ns = 1000;
    let outcome = Sim::new(machine).task(hog(10 * MS)).run();
    assert_eq!(outcome.time_ns, 10 * MS + 1000);
    assert_eq!(outcome.overhead.total_ns(), 1000);
}

#[test]
fn smt_siblings_share_their_core() {
    let mut machine = evenkeel_machine::Machine::preset("server").unwrap();
    machine.costs = evenkeel_machine::Costs { smt_pct: 60, ..evenkeel_machine::Costs::none() };
    let pinned = |cpu| TaskPlan { allowed: common::only(cpu), ..hog(6 * MS) };
    let both = Sim::new(machine.clone()).task(pinned(0)).task(pinned(64)).run();
    assert!(both.time_ns.abs_diff(10 * MS) < 20, "{} ns", both.time_ns);
    let apart = Sim::new(machine).task(pinned(0)).task(pinned(1)).run();
    assert_eq!(apart.time_ns, 6 * MS);
}

#[test]
fn remote_memory_is_slower() {
    let machine = evenkeel_machine::Machine::preset("amc3").unwrap();
    let costs = evenkeel_machine::Costs { remote_pct: 100, ..evenkeel_machine::Costs::none() };
    // From node 0's first CPU to memory on node 31: distance 20, so half the speed.
    for (home, time) in [(0, 10), (31, 20)] {
        let machine = evenkeel_machine::Machine { costs, ..machine.clone() };
        let task = TaskPlan { allowed: common::only(0), home: Some(home), ..hog(10 * MS) };
        assert_eq!(Sim::new(machine).task(task).run().time_ns, time * MS, "home {home}");
    }
}

#[test]
fn a_barrier_waits_for_the_last() {
    let member = |ns| TaskPlan::new("member", vec![Op::Run(ns), Op::Barrier(0), Op::Run(MS)]);
    let mut sim = Sim::new(paper(2)).task(member(2 * MS)).task(member(5 * MS));
    sim.workload.barriers = vec![2];
    let outcome = sim.run();
    assert_eq!(outcome.time_ns, 6 * MS);
    assert_eq!(outcome.idle_while_waiting_ns, 0);
}

#[test]
fn mutexes_conditions_and_channels_block_and_wake() {
    let mut sim = Sim::new(paper(4))
        .tasks(3, TaskPlan::new("locker", vec![Op::Lock(0), Op::Run(2 * MS), Op::Unlock(0)]))
        .task(TaskPlan::new(
            "server",
            vec![Op::Receive(0), Op::Run(MS), Op::Send(1), Op::Repeat { to: 0, times: 1 }],
        ))
        .tasks(2, TaskPlan::new("client", vec![Op::Send(0), Op::Receive(1)]))
        .task(TaskPlan::new("waiter", vec![Op::Wait { condition: 0, mutex: None }]))
        .task(TaskPlan::new("caller", vec![Op::Sleep(9 * MS), Op::Signal(0)]));
    (sim.workload.mutexes, sim.workload.channels, sim.workload.conditions) = (1, 2, 1);
    let outcome = sim.run();
    let ended = |task: usize| outcome.accounts[task].ended_ns.unwrap();
    assert_eq!([ended(0), ended(1), ended(2)], [2 * MS, 4 * MS, 6 * MS]);
    assert_eq!(ended(3), 2 * MS, "the server has served both clients");
    assert_eq!(ended(6), 9 * MS);
}

#[test]
fn a_deadlock_is_reported() {
    let mut sim = Sim::new(paper(1)).task(TaskPlan::new("lonely", vec![Op::Receive(0)]));
    sim.workload.channels = 1;
    let end = sim.outcome().end.unwrap().to_string();
    assert_eq!(end, "1 tasks sleep, and nothing will ever wake them: lonely is one");
}

#[test]
fn a_loop_without_work_is_reported() {
    let task = TaskPlan::new("spinner", vec![Op::Goto(0)]);
    let end = Sim::new(paper(1)).task(task).outcome().end.unwrap().to_string();
    assert!(end.starts_with("task spinner took 10000 steps without working"), "{end}");
}

#[test]
fn a_migration_is_counted_by_reason_and_distance() {
    // It starts on CPU 0, and then sets its mask to CPU 1.
    let ops = vec![Op::Run(MS), Op::Affinity(common::only(1).unwrap()), Op::Run(MS)];
    let outcome = Sim::new(paper(2)).task(TaskPlan::new("mover", ops)).run();
    assert_eq!(outcome.migrations, [((Reason::Change, Level::Cache), 1)].into());
    assert_eq!(outcome.time_ns, 2 * MS);
}

#[test]
fn a_task_that_waits_for_too_long_ends_the_scheduler() {
    // A real-time task never releases the CPU.
    let thief = Thief { cpu: 0, run_ns: 100_000 * MS, period_ns: 200_000 * MS, from_ns: MS };
    let outcome = Sim::new(paper(1)).task(hog(10 * MS)).thief(thief).outcome();
    let end = outcome.end.unwrap().to_string();
    assert_eq!(
        end,
        "the kernel would have ended the scheduler: runnable task stall (hog failed to run for \
         44.999s)"
    );
}

#[test]
fn the_seed_determines_the_history() {
    let sim = |seed| {
        let ops = vec![Op::RunAbout(MS), Op::SleepAbout(MS), Op::Repeat { to: 0, times: 50 }];
        let mut sim = Sim::new(paper(4)).tasks(9, TaskPlan::new("random", ops));
        sim.seed = seed;
        sim.run().hash
    };
    assert_eq!(sim(1), sim(1));
    assert_ne!(sim(1), sim(2));
}

#[test]
fn parallel_simulations_do_not_affect_each_other() {
    let sim = || Sim::keel(paper(4)).tasks(9, hog(20 * MS)).run().hash;
    let alone = sim();
    let together: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(sim)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(together.iter().all(|hash| *hash == alone));
    assert_ne!(alone, Sim::new(paper(4)).tasks(9, hog(20 * MS)).run().hash);
    assert_eq!(Scheduler::Fifo.to_string(), "fifo");
}

#[test]
fn the_kernel_schedules_for_a_scheduler_without_callbacks() {
    let built = common::build::compile_other("lab/sim/tests/schedulers/empty.c", &[]);
    let mut sim = Sim::new(paper(2)).tasks(3, hog(10 * MS));
    sim.scheduler = Scheduler::Plain("empty".to_owned(), built.into());
    // The first two tasks get idle CPUs at once; the third one follows on one of these.
    assert_eq!(sim.run().time_ns, 20 * MS);
    assert_eq!(sim.run().idle_while_waiting_ns, 0);
}
