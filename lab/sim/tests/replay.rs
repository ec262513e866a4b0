//! Tapes: the recorded keel decides the same in a replay, and a keel with a fault does not.

#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::build::{compile, with_fault};
use common::{MS, Sim, hog, only, paper};
use evenkeel_keel::{Balance, Gate, Options, Order};
use evenkeel_machine::Machine;
use evenkeel_sim::program::{Change, GroupPlan, Op, TaskPlan, Thief, Workload};
use evenkeel_sim::{FaultPlan, RecordError, Replayed, Scheduler, replay};
use evenkeel_tape::{Entry, Kind, Tape};

/// Sleepers, hogs, cgroups, a real-time task and changes.
fn busy(machine: Machine) -> Sim {
    let ops = vec![Op::RunAbout(2 * MS), Op::SleepAbout(3 * MS), Op::Repeat { to: 0, times: 30 }];
    let worker = |at: usize| TaskPlan {
        space: (at / 4) as u32,
        nice: [0, 5, -5][at % 3],
        group: at % 3,
        ..TaskPlan::new("worker", ops.clone())
    };
    let mut sim = Sim::keel(machine).tasks(5, hog(60 * MS)).thief(Thief {
        cpu: 1,
        run_ns: 3 * MS,
        period_ns: 11 * MS,
        from_ns: MS,
    });
    sim.workload.tasks.extend((0..14).map(worker));
    sim.workload.groups = [("a", 300), ("b", 50)]
        .map(|(name, weight)| GroupPlan { name: name.to_owned(), weight, parent: 0 })
        .to_vec();
    sim.workload.changes = vec![
        (7 * MS, Change::Affinity { task: 2, allowed: only(1).unwrap() }),
        (9 * MS, Change::Group { task: 3, group: 2 }),
        (12 * MS, Change::Weight { group: 1, weight: 1000 }),
        (15 * MS, Change::Nice { task: 4, nice: 10 }),
    ];
    sim
}

fn recorded(sim: &Sim) -> Tape {
    let (outcome, tape) = sim.simulation().record(&Arc::default()).unwrap();
    assert_eq!(outcome.end, None, "{}", outcome.dump);
    assert_eq!(outcome.hash, sim.outcome().hash, "a recording changes nothing");
    tape
}

fn replayed(tape: &Tape, scheduler: &Scheduler) -> Replayed {
    replay(tape, scheduler).unwrap()
}

#[test]
fn every_combination_of_policies_replays_the_same_decisions() {
    let clang = std::env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let other = compile(&clang, &["-O1"]);
    for order in Order::ALL {
        for gate in Gate::ALL {
            for balance in Balance::ALL {
                let options = Options {
                    order: *order,
                    gate: *gate,
                    balance: *balance,
                    // A tape holds no settings that change.
                    static_capacity: true,
                    ..Options::default()
                };
                let mut sim = busy(Machine::preset("hybrid").unwrap());
                sim.scheduler = Scheduler::Keel(options.clone());
                let tape = recorded(&sim);
                let again = replayed(&tape, &sim.scheduler);
                assert_eq!(again.difference, None, "{}", sim.scheduler);
                assert!(again.callbacks > 2_000 && again.compared > 5_000, "{again:?}");
                let elsewhere = Scheduler::Built(options, other.clone().into());
                assert_eq!(replayed(&tape, &elsewhere), again);
            }
        }
    }
}

#[test]
fn a_tape_survives_its_file_and_damage_is_detected() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tape");
    let tape = recorded(&busy(paper(3)));
    tape.write(&path).unwrap();
    assert_eq!(Tape::read(&path).unwrap(), tape);
    let bytes = std::fs::read(&path).unwrap();
    for (kept, why) in [
        (bytes.len() - 1, "ends within an entry"),
        (100, "ends within its beginning"),
        (3, "ends within its beginning"),
    ] {
        std::fs::write(&path, &bytes[..kept]).unwrap();
        let error = Tape::read(&path).unwrap_err().to_string();
        assert!(error.contains(why) && error.contains("tape"), "{error}");
    }
    // Cut between two entries, or with any bit flipped.
    let refused = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        Tape::read(&path).unwrap_err().to_string()
    };
    let why = refused(&bytes[..bytes.len() - size_of::<Entry>()]);
    assert!(why.contains("its checksum is another one"), "{why}");
    for at in (0..bytes.len()).step_by(bytes.len() / 97) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << (at % 8);
        let why = refused(&damaged);
        assert!(why.contains("tape: it ") || why.contains("tape: its checksum"), "{at}: {why}");
    }
    std::fs::write(&path, b"something else altogether").unwrap();
    assert!(Tape::read(&path).unwrap_err().to_string().contains("does not begin like one"));
}

#[test]
fn an_incomplete_tape_is_refused() {
    let tape = recorded(&busy(paper(3)));
    let error = |entries: Vec<Entry>| {
        let tape = Tape { entries, ..tape.clone() };
        replay(&tape, &Scheduler::Keel(Options::default())).unwrap_err().to_string()
    };
    // Without descriptions of tasks; without the begin of the first callback; with an entry of no kind.
    let of_tasks = |entry: &&Entry| entry.kind != Kind::Task as u8;
    let untold = error(tape.entries.iter().filter(of_tasks).copied().collect());
    assert!(untold.contains("the tape says nothing of task 1: it was damaged"), "{untold}");
    let cut = error(tape.entries[1..].to_vec());
    assert!(cut.contains("entry 0 of the tape comes where it cannot"), "{cut}");
    let mut odd = tape.entries.clone();
    odd[7].kind = 77;
    assert!(error(odd).contains("entry 7 of the tape comes where it cannot"));
}

#[test]
fn the_first_decision_that_differs_is_named() {
    let tape = recorded(&busy(paper(3)));
    let charge = "t->vruntime = order_charge(before, ran_ns, t->weight);";
    let faulty = with_fault("bpf/keel/task.h", charge, "");
    let scheduler = Scheduler::Built(Options::default(), faulty.into());
    let difference = replayed(&tape, &scheduler).difference.unwrap();
    // A vruntime first shows when a task is inserted into a DSQ.
    let text = difference.to_string();
    assert!(text.contains("recorded Insert of task"), "{text}");
    assert!(text.contains("Enqueue on CPU"), "{text}");
    assert_ne!(difference.recorded, difference.replayed);
}

#[test]
fn errors_name_what_cannot_be_recorded() {
    let error = |sim: Sim| sim.simulation().record(&Arc::default()).unwrap_err();
    assert!(matches!(error(Sim::new(paper(1)).task(hog(MS))), RecordError::Scheduler(_)));
    let faults = Sim { faults: FaultPlan::ALL, ..Sim::keel(paper(2)).task(hog(MS)) };
    assert!(matches!(error(faults), RecordError::Faults));
    let large = Sim::keel(Machine::preset("amc3").unwrap()).task(hog(MS));
    assert!(error(large).to_string().contains("has 128 CPU numbers"));
    let changes = vec![(MS, Change::Hotplug { cpu: 1, online: false })];
    let workload = Workload { changes, ..Workload::default() };
    let goes = Sim { workload, ..Sim::keel(paper(2)) }.task(hog(9 * MS));
    assert!(matches!(error(goes), RecordError::Faults));
}
