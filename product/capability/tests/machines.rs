//! Both policies on the machines of `tests/fixtures/machines`, which are dumps of real ones.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, reason = "tests")]

mod common;
#[allow(dead_code, reason = "the rules of a machine are tested elsewhere")]
#[path = "../../machine/tests/common/mod.rs"]
mod fixtures;
#[path = "common/synthetic.rs"]
mod synthetic;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use common::{Dice, decide, task};
use evenkeel_capability::{
    CpuView, LagParameters, Move, PaperParameters, Plan, Policy, Reason, Snapshot, State, TaskView,
    plan,
};
use evenkeel_machine::{CpuSet, Machine};
use fixtures::read;
use synthetic::{INTERVAL_NS, advance};

fn all_machines() -> Vec<Machine> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/machines");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let fixtures = files.filter(|path| path.extension().is_some_and(|what| what == "sysfs"));
    let machines: Vec<Machine> =
        fixtures.map(|path| read(path.file_stem().unwrap().to_str().unwrap())).collect();
    assert!(machines.len() >= 7);
    machines
}

fn lag() -> Policy {
    Policy::Lag(LagParameters::default())
}

/// A program of busy tasks on the CPUs `places`, which may use `usable`.
fn program(machine: &Machine, usable: &CpuSet, places: &[u32]) -> Snapshot {
    let views = machine.cpus.iter().filter(|cpu| usable.contains(cpu.id)).map(|cpu| CpuView {
        core: cpu.core,
        node: cpu.node,
        speed: cpu.capability,
        ..common::cpu(cpu.id)
    });
    let tasks =
        (1..).zip(places).map(|(tid, cpu)| TaskView { allowed: usable.clone(), ..task(tid, *cpu) });
    let mut snapshot = common::snapshot(views.collect(), tasks.collect());
    let nothing = Plan {
        moves: vec![],
        pins: vec![],
        reasons: vec![],
        interval_ns: INTERVAL_NS,
        spread_ppm: 0,
    };
    go_on(&mut snapshot, &nothing);
    snapshot
}

/// Turns the snapshot into that of the next interval, after the moves of the plan.
fn go_on(snapshot: &mut Snapshot, plan: &Plan) {
    advance(snapshot, plan);
    let counts = counts(snapshot);
    for view in &mut snapshot.cpus {
        let is_busy = counts.contains_key(&view.cpu);
        view.idle_ns = if is_busy { 0 } else { INTERVAL_NS - view.noise_ns };
    }
}

/// Tasks by CPU.
fn counts(snapshot: &Snapshot) -> BTreeMap<u32, usize> {
    let mut counts = BTreeMap::new();
    for task in &snapshot.tasks {
        *counts.entry(task.cpu).or_default() += 1;
    }
    counts
}

/// All moves of some intervals.
fn moves_in(snapshot: &mut Snapshot, policy: Policy, rounds: usize) -> Vec<Move> {
    let mut state = State::new(policy);
    let mut moves = Vec::new();
    for _ in 0..rounds {
        let plan = decide(snapshot, &mut state);
        go_on(snapshot, &plan);
        moves.extend(plan.moves);
    }
    moves
}

/// The CPUs of so many tasks that are placed on `cpus` in turn.
fn dealt(cpus: &CpuSet, tasks: usize) -> Vec<u32> {
    let cpus: Vec<u32> = cpus.iter().collect();
    cpus.into_iter().cycle().take(tasks).collect()
}

fn node_of(machine: &Machine, cpu: u32) -> u32 {
    machine.cpu(cpu).unwrap().node
}

/// The effective capability of the CPUs that the program uses.
fn total_ns(snapshot: &Snapshot) -> u64 {
    let counts = counts(snapshot);
    let used = snapshot.cpus.iter().filter(|view| counts.contains_key(&view.cpu));
    used.map(|view| view.effective_ns(INTERVAL_NS)).sum()
}

/// A random program on a part of the machine. Some of its tasks are fixed, restricted, or on other CPUs.
fn any_program(machine: &Machine, dice: &mut Dice) -> Snapshot {
    let online: Vec<u32> = machine.online().iter().collect();
    let any = |dice: &mut Dice| online[dice.below(online.len() as u64) as usize];
    let left_out: CpuSet = (0..online.len() / 4).map(|_| any(dice)).collect();
    let usable = machine.online().difference(&left_out);
    let tasks = 1 + dice.below(2 * online.len() as u64);
    let places: Vec<u32> = (0..tasks).map(|_| any(dice)).collect();
    let mut snapshot = program(machine, &usable, &places);
    for view in &mut snapshot.cpus {
        view.noise_ns = dice.below(61) * INTERVAL_NS / 100;
    }
    for task in &mut snapshot.tasks {
        task.fixed = dice.below(8) == 0;
        if dice.below(4) == 0 {
            task.allowed = usable.iter().filter(|_| dice.below(2) == 0).collect();
        }
    }
    snapshot
}

#[test]
fn the_rules_hold_on_every_machine() {
    let cost_ns = 2 * LagParameters::default().move_cost_ns;
    for machine in all_machines() {
        for (seed, policy) in (0..16)
            .flat_map(|seed| [(seed, lag()), (seed, Policy::Paper(PaperParameters::default()))])
        {
            let name = format!("{} {seed} {policy:?}", machine.name);
            let mut snapshot = any_program(&machine, &mut Dice(seed));
            let mut state = State::new(policy);
            for _ in 0..20 {
                let plan = decide(&snapshot, &mut state);
                let mut moved = BTreeSet::new();
                for made in &plan.moves {
                    let task = snapshot.tasks.iter().find(|task| task.id == made.task).unwrap();
                    let is_usable = snapshot.cpus.iter().any(|view| view.cpu == made.to);
                    assert!(is_usable && task.may_go_to(made.to), "{name}: {made:?}");
                    assert!(moved.insert(made.task), "{name}: moved twice: {made:?}");
                    // (A task that moves back to its memory gains more than the rates show.)
                    let is_shown = node_of(&machine, made.from) == node_of(&machine, made.to);
                    if let (Reason::Behind { lag_ns, from_ppm, to_ppm }, true) =
                        (&made.reason, is_shown)
                    {
                        let grows_ns = (to_ppm - from_ppm) * plan.interval_ns / 1_000_000;
                        let gain_ns = 2 * (*lag_ns).min(grows_ns);
                        assert!(gain_ns > cost_ns, "{name}: {made:?}");
                    }
                }
                // Exchanges keep the sum, and moves for more room raise it. (With SMT, a task may leave
                // a busy CPU for a core of its own with more noise.)
                let before_ns = total_ns(&snapshot);
                go_on(&mut snapshot, &plan);
                let after_ns = total_ns(&snapshot);
                let has_room = plan.moves.iter().any(|made| made.reason.rule() == "more-room");
                if has_room && !machine.is_smt() {
                    assert!(after_ns >= before_ns - before_ns / 50, "{name}: {plan:?}");
                }
            }
        }
    }
}

#[test]
fn tasks_move_within_their_node_first() {
    let machine = read("amd-numa-sparse");
    let online = machine.online();
    for node in &machine.nodes {
        let cpus: Vec<u32> = node.cpus.iter().collect();
        // All CPUs but one are idle; that one has two tasks.
        let mut snapshot = program(&machine, &online, &[cpus[0], cpus[0]]);
        let moves = moves_in(&mut snapshot, lag(), 6);
        assert_eq!(moves.len(), 1, "node {}: {moves:?}", node.id);
        assert_eq!(node_of(&machine, moves[0].to), node.id, "{moves:?}");

        // The node is full: a whole CPU on another node is worth more than half a CPU here.
        let places: Vec<u32> = [&cpus[..1], &cpus].concat();
        let mut snapshot = program(&machine, &online, &places);
        let moves = moves_in(&mut snapshot, lag(), 6);
        assert_eq!(moves.len(), 1, "node {}: {moves:?}", node.id);
        assert_ne!(node_of(&machine, moves[0].to), node.id, "{moves:?}");
    }
}

#[test]
fn tasks_are_exchanged_within_their_node() {
    let machine = read("amd-numa-sparse");
    for (one, other) in machine.nodes.iter().zip(&machine.nodes[1..]) {
        let two = |node: &evenkeel_machine::Node| node.cpus.iter().take(2).collect::<Vec<u32>>();
        let places = [two(one), two(other)].concat();
        let usable: CpuSet = places.iter().copied().collect();
        let mut snapshot = program(&machine, &usable, &places);
        for view in snapshot.cpus.iter_mut().filter(|view| view.cpu == places[0]) {
            view.noise_ns = INTERVAL_NS / 2;
        }
        let moves = moves_in(&mut snapshot, lag(), 12);
        assert!(!moves.is_empty());
        // Later the tasks of the other node are ahead of both.
        for made in &moves[..2] {
            assert_eq!(node_of(&machine, made.to), one.id, "{made:?}");
        }
    }
}

#[test]
fn smt_siblings_count_as_sharing_their_core() {
    for machine in all_machines().iter().filter(|machine| machine.is_smt()) {
        let online = machine.online();
        let core_of = |cpu: u32| machine.cpu(cpu).unwrap().core;
        // Two tasks on one CPU: one moves to a core of its own, not to an idle SMT sibling.
        let first = online.iter().next().unwrap();
        let mut snapshot = program(machine, &online, &[first, first]);
        let moves = moves_in(&mut snapshot, lag(), 6);
        assert!(!moves.is_empty(), "{}", machine.name);
        assert_ne!(core_of(snapshot.tasks[0].cpu), core_of(snapshot.tasks[1].cpu));
        if machine.is_asymmetric() {
            continue;
        }
        // Each core has one task: no move gains.
        let cores: BTreeSet<u32> = online.iter().map(core_of).collect();
        let places: Vec<u32> = cores.into_iter().collect();
        let mut snapshot = program(machine, &online, &places);
        assert_eq!(moves_in(&mut snapshot, lag(), 6), [], "{}", machine.name);
    }
}

#[test]
fn faster_cores_get_more_tasks() {
    let machine = read("intel-hybrid-lakefield");
    let online = machine.online();
    let places = dealt(&online, 11);
    // One P-core at 1024 and four E-cores at 667: three times 341 and eight times 333.
    let mut snapshot = program(&machine, &online, &places);
    moves_in(&mut snapshot, lag(), 8);
    let counts = counts(&snapshot);
    for cpu in &machine.cpus {
        let wanted = if cpu.capability == 1024 { 3 } else { 2 };
        assert_eq!(counts[&cpu.id], wanted, "{counts:?}");
    }

    let machine = read("fake-capacity-numa");
    let online = machine.online();
    let places = dealt(&online, 2 * online.len());
    let mut snapshot = program(&machine, &online, &places);
    moves_in(&mut snapshot, lag(), 8);
    let counts = self::counts(&snapshot);
    let of = |is_fast: bool| {
        let cpus = machine.cpus.iter().filter(|cpu| (cpu.capability == 1024) == is_fast);
        cpus.map(|cpu| counts.get(&cpu.id).copied().unwrap_or(0)).collect::<Vec<usize>>()
    };
    assert!(of(true).iter().min() > of(false).iter().max(), "{counts:?}");
}

#[test]
fn the_same_seed_gives_the_same_snapshot() {
    assert_eq!(synthetic::snapshot(64, 625, 1), synthetic::snapshot(64, 625, 1));
    assert_ne!(synthetic::snapshot(64, 625, 1), synthetic::snapshot(64, 625, 2));
    assert_eq!(synthetic::snapshot(0, 0, 1).validate(), Ok(()));
}

#[test]
fn lags_stay_small_on_a_large_machine() {
    let mut snapshot = synthetic::snapshot(64, 625, 1);
    let mut state = State::new(Policy::Lag(LagParameters::default()));
    let mut lag_ns = 0;
    for _ in 0..200 {
        let plan = plan(&snapshot, &mut state).unwrap();
        advance(&mut snapshot, &plan);
        lag_ns = state.lags_ns().into_values().max().unwrap();
    }
    // 200 intervals of 100 ms and 10 tasks a CPU: without balancing the lags would be hundreds of ms.
    assert!(lag_ns < 40_000_000, "{lag_ns}");
}
