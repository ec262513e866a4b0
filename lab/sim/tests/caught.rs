//! A keel with a fault is caught, and the report shows the history of the violation. (`scripts/mutate`
//! makes all such faults in turn; here is one of each kind.)

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::build::with_fault;
use common::torture::simulation;
use common::{MS, Sim, hog, only, paper};
use evenkeel_keel::{Options, Slice};
use evenkeel_machine::CpuSet;
use evenkeel_sim::program::{Change, TaskPlan, Thief};
use evenkeel_sim::{Mask, Outcome, Scheduler, history};

/// All that is reported of a simulation.
fn told(sim: &Sim, outcome: &Outcome) -> String {
    let end = outcome.end.as_ref().map(ToString::to_string).unwrap_or_default();
    end + &outcome.dump + &history(outcome, &sim.workload)
}

fn built(sim: Sim, build: Vec<u8>) -> Sim {
    Sim { scheduler: Scheduler::Built(Options::default(), build.into()), ..sim }
}

#[test]
fn run_time_that_is_not_charged_is_caught() {
    let charge = "t->vruntime = order_charge(before, ran_ns, t->weight);";
    let build = with_fault("bpf/keel/task.h", charge, "");
    let nice = |nice| TaskPlan { nice, allowed: only(0), ..hog(100_000 * MS) };
    let mut sim = built(Sim::keel(paper(1)).task(nice(0)).task(nice(5)), build);
    sim.workload.duration_ns = 8_000 * MS;
    let outcome = sim.outcome();
    let told = told(&sim, &outcome);
    assert!(told.contains("weights_honoured"), "{told}");
    assert!(told.contains("switches from"), "{told}");
    let longest = outcome.broken.iter().map(|broken| broken.history.len()).max().unwrap();
    assert!((2..=50).contains(&longest), "the longest history has {longest} events");
    // The same again.
    assert_eq!(sim.outcome().broken, outcome.broken);
}

#[test]
fn an_insertion_into_an_unknown_queue_is_caught() {
    let insert =
        "scx_bpf_dsq_insert_vtime(p, cpu, READ_ONCE(tunables.slice_ns), t->vruntime, flags);";
    let lost = "scx_bpf_dsq_insert_vtime(p, 77, 0, t->vruntime, flags);";
    let sim = built(
        Sim::keel(paper(2)).tasks(5, hog(50 * MS)),
        with_fault("bpf/keel/queue.h", insert, lost),
    );
    let told = told(&sim, &sim.outcome());
    assert!(told.contains("is put into queue 0x4d, which does not exist"), "{told}");
    assert!(told.contains("keel: order=0 gate=0 balance=0"), "the dump is missing: {told}");
}

#[test]
fn the_choice_of_an_unknown_cpu_is_caught() {
    let returned = "if (!t)\n\t\treturn prev;";
    let build = with_fault("bpf/keel/place.h", returned, "return 5000;");
    let sim = built(Sim::keel(paper(2)).tasks(3, hog(50 * MS)), build);
    let told = told(&sim, &sim.outcome());
    assert!(told.contains("select_cpu chose CPU 5000, which does not exist"), "{told}");
}

#[test]
fn a_missing_kick_of_an_idle_cpu_is_caught() {
    let kick = "if (!is_own || flags & SCX_ENQ_LAST)\n\t\t\tscx_bpf_kick_cpu(cpu, SCX_KICK_IDLE);";
    let build = with_fault("bpf/keel/queue.h", kick, ";");
    let thief = Thief { cpu: 0, run_ns: 400 * MS, period_ns: 1_000 * MS, from_ns: 50 * MS };
    let sim = built(Sim::keel(paper(2)).task(hog(200 * MS)).thief(thief), build);
    let told = told(&sim, &sim.outcome());
    assert!(told.contains("work_conservation"), "{told}");
}

#[test]
fn a_wrong_count_of_runnable_tasks_is_caught() {
    let atomic = "u32 on = __sync_lock_test_and_set(&t->counted_on, 0);";
    let build = with_fault(
        "bpf/keel/load.h",
        atomic,
        "u32 on = t->counted_on; t->counted_on = 0; \
         if (t->weight & 1) return;",
    );
    let wrong = (1..=6).any(|seed| {
        let mut simulation = simulation(seed, Some(&build));
        simulation.faults.fail_one_in = 0;
        let outcome = simulation.run().unwrap();
        outcome.believed_runnable != Some(outcome.runnable)
    });
    assert!(wrong);
}

#[test]
fn a_shield_that_is_not_kept_is_caught() {
    let lodging = "if (t->barred)\n\t\tset_slice(p, 0);";
    let build = with_fault("bpf/keel/evict.h", lodging, "");
    // The end of a short slice would evict the task, too.
    let slice = Slice::from_us(Slice::MAX_US).unwrap();
    let options = Options { shield: "1".parse().unwrap(), slice, ..Options::default() };
    let widened = Change::Affinity { task: 1, allowed: Arc::new(Mask::from(&CpuSet::first(2))) };
    let mut sim = Sim::keel(paper(2))
        .task(hog(1_000 * MS))
        .task(TaskPlan { allowed: only(1), ..hog(1_000 * MS) });
    sim.workload.changes = vec![(10 * MS, widened)];
    let sound = Sim { scheduler: Scheduler::Keel(options.clone()), ..sim.clone() };
    sound.run();
    let sim = Sim { scheduler: Scheduler::Built(options, build.into()), ..sim };
    let told = told(&sim, &sim.outcome());
    assert!(told.contains("shield_kept"), "{told}");
}
