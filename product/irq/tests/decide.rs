//! The plan: on machines made by hand, and as properties of any machine.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use evenkeel_irq::{
    Accounting, Aim, Cpu, Held, Napi, Reason, Snapshot, Source, SourceId, Stay, plan, plan_for,
};
use evenkeel_machine::CpuSet;
use proptest::prelude::*;

const INTERVAL_NS: u64 = 1_000_000_000;

fn cpus(count: u32) -> Vec<Cpu> {
    let cpu = |number| Cpu { number, isolated: false, protected: false, other_ns: 0, net_rx: 0 };
    (0..count).map(cpu).collect()
}

/// A line that takes this much of its CPU, in thousandths, and is allowed these.
fn line(number: u32, cpu: u32, permille: u64, allowed: CpuSet) -> Source {
    Source {
        id: SourceId::Line(number),
        name: format!("eth0-{number}"),
        device: Some("eth0".into()),
        queue: Some(number),
        allowed,
        effective: [cpu].into_iter().collect(),
        interrupts: permille,
        ns: [(cpu, permille * INTERVAL_NS / 1000)].into(),
        napis: Vec::new(),
        held: None,
    }
}

fn snapshot(cpus: Vec<Cpu>, sources: Vec<Source>) -> Snapshot {
    let accounting = Accounting::Exact;
    Snapshot { interval_ns: INTERVAL_NS, accounting, cpus, sources, devices: Vec::new() }
}

fn moves(snapshot: &Snapshot) -> Vec<(SourceId, u32, u32, Reason)> {
    let plan = plan(snapshot);
    plan.moves.iter().map(|step| (step.source, step.from, step.to, step.reason)).collect()
}

#[test]
fn one_of_two_hot_queues_leaves() {
    let both = CpuSet::first(2);
    let hot = vec![line(1, 0, 300, both.clone()), line(2, 0, 250, both.clone())];
    let wanted = [(SourceId::Line(2), 0, 1, Reason::Level)];
    assert_eq!(moves(&snapshot(cpus(2), hot)), wanted);
    // A queue alone would only take its load along.
    assert!(moves(&snapshot(cpus(2), vec![line(1, 0, 600, both)])).is_empty());
}

#[test]
fn a_source_goes_to_the_cpu_that_receives_what_it_brings() {
    let brings = |mut source: Source, received_bytes: &[(u32, u64)]| {
        let received_bytes = received_bytes.iter().copied().collect();
        let napi = Napi { device: "eth0".into(), napi_id: 7, packets: 1, polls: 1, received_bytes };
        source.napis.push(napi);
        source
    };
    let aware = |sources: Vec<Source>| {
        let plan = plan_for(&snapshot(cpus(3), sources), Aim::SourceAware);
        let steps = plan.moves.iter().map(|step| (step.source, step.from, step.to, step.reason));
        steps.collect::<Vec<_>>()
    };
    let all = CpuSet::first(3);
    let hot = |number, cpu| line(number, cpu, 100, all.clone());
    let sources = vec![brings(hot(1, 0), &[(2, 90), (0, 10)]), brings(hot(2, 2), &[(1, 5)])];
    let wanted =
        [(SourceId::Line(1), 0, 2, Reason::Source), (SourceId::Line(2), 2, 1, Reason::Source)];
    assert_eq!(aware(sources.clone()), wanted);
    // To level them there is nothing to move.
    assert!(moves(&snapshot(cpus(3), sources)).is_empty());
    // It is there; two CPUs receive; none does; no room; next to no time; not allowed.
    let full = line(3, 2, 750, CpuSet::first(3));
    let idle = line(1, 0, 10, all.clone());
    for stays in [
        vec![brings(hot(1, 2), &[(2, 9)])],
        vec![brings(hot(1, 0), &[(1, 6), (2, 4)])],
        vec![hot(1, 0)],
        vec![brings(hot(1, 0), &[(2, 9)]), full],
        vec![brings(idle, &[(2, 9)])],
        vec![brings(line(1, 0, 100, CpuSet::first(2)), &[(2, 9)])],
    ] {
        assert!(aware(stays.clone()).is_empty(), "{stays:?}");
    }
}

/// The scheduler moves a kernel thread that is not pinned: that it is where it should be at the moment
/// says little.
#[test]
fn a_kernel_thread_is_brought_to_the_cpu_where_it_runs_now_and_then() {
    let received_bytes = [(1, 10)].into();
    let napi = Napi { device: "veth0".into(), napi_id: 7, packets: 1, polls: 1, received_bytes };
    let thread = |ms: &[(u32, u64)]| Source {
        id: SourceId::Thread(70),
        ns: ms.iter().map(|(cpu, ms)| (*cpu, ms * 1_000_000)).collect(),
        napis: vec![napi.clone()],
        ..line(1, 1, 0, CpuSet::first(2))
    };
    let aware = |source: Source| {
        let plan = plan_for(&snapshot(cpus(2), vec![source]), Aim::SourceAware);
        plan.moves.iter().map(|step| (step.from, step.to)).collect::<Vec<_>>()
    };
    assert_eq!(aware(thread(&[(0, 90), (1, 10)])), [(0, 1)]);
    assert_eq!(aware(thread(&[(0, 10), (1, 90)])), [(0, 1)]);
    assert!(aware(thread(&[(1, 100)])).is_empty());
}

#[test]
fn a_held_source_stays_and_the_reason_is_given() {
    let both = CpuSet::first(2);
    let mut held = line(1, 0, 300, both.clone());
    held.held = Some(Held::Managed);
    let pinned = line(2, 0, 300, CpuSet::first(1));
    let made = plan(&snapshot(cpus(2), vec![held, pinned]));
    assert!(made.moves.is_empty(), "{made:?}");
    let stay = Stay { source: SourceId::Line(1), name: "eth0-1".to_owned(), held: Held::Managed };
    assert_eq!(made.stays, [stay]);
}

#[test]
fn nothing_is_moved_to_an_isolated_cpu() {
    let mut machine = cpus(2);
    machine[1].isolated = true;
    let both = CpuSet::first(2);
    let hot = vec![line(1, 0, 300, both.clone()), line(2, 0, 250, both)];
    assert!(moves(&snapshot(machine, hot)).is_empty());
}

#[test]
fn noise_leaves_the_cpus_of_a_program_unless_it_has_all() {
    let all = CpuSet::first(3);
    let mut machine = cpus(3);
    machine[0].protected = true;
    let noise = vec![line(1, 0, 20, all.clone()), line(2, 1, 100, all)];
    let wanted = [(SourceId::Line(1), 0, 2, Reason::Protect)];
    assert_eq!(moves(&snapshot(machine.clone(), noise.clone())), wanted);
    machine.iter_mut().for_each(|cpu| cpu.protected = true);
    assert!(moves(&snapshot(machine, noise)).is_empty());
}

#[test]
fn a_cpu_that_would_be_filled_takes_no_noise() {
    let mut machine = cpus(2);
    machine[0].protected = true;
    let noise = vec![line(1, 0, 300, CpuSet::first(2)), line(2, 1, 600, CpuSet::first(2))];
    assert!(moves(&snapshot(machine, noise)).is_empty());
}

/// CPUs, some of them isolated or protected, and lines on them.
fn machines() -> impl Strategy<Value = Snapshot> {
    (1u32..7).prop_flat_map(|count| {
        let marks = prop::collection::vec((0u8..6, 0u64..100), count as usize);
        let masks = prop::collection::btree_set(0..count, 1..=count as usize);
        let sources = prop::collection::vec((0..count, 0u64..400, masks, 0u8..8), 0..12);
        (marks, sources).prop_map(move |(marks, sources)| {
            let mut machine = cpus(count);
            for (cpu, (mark, other)) in machine.iter_mut().zip(marks) {
                cpu.isolated = mark == 0;
                cpu.protected = mark == 1;
                cpu.other_ns = other * INTERVAL_NS / 1000;
            }
            let made = (0..).zip(sources).map(|(number, (cpu, permille, mask, held))| {
                let mut source = line(number, cpu, permille, mask.into_iter().collect());
                source.held = (held == 0).then_some(Held::Managed);
                source
            });
            snapshot(machine, made.collect())
        })
    })
}

/// The snapshot after the plan is carried out.
fn carried_out(before: &Snapshot) -> Snapshot {
    let mut after = before.clone();
    for step in plan(before).moves {
        let source = after.sources.iter_mut().find(|source| source.id == step.source).unwrap();
        source.ns = [(step.to, source.total_ns())].into();
        source.effective = [step.to].into_iter().collect();
    }
    after
}

/// The largest load of the CPUs for which this holds.
fn largest(snapshot: &Snapshot, holds: impl Fn(&Cpu) -> bool) -> u64 {
    let loads: BTreeMap<u32, u64> = snapshot.loads();
    snapshot.cpus.iter().filter(|cpu| holds(cpu)).map(|cpu| loads[&cpu.number]).max().unwrap_or(0)
}

proptest! {
    #[test]
    fn levelling_never_makes_the_largest_share_larger(mut before in machines()) {
        before.cpus.iter_mut().for_each(|cpu| cpu.protected = false);
        let after = carried_out(&before);
        prop_assert!(largest(&after, |_| true) <= largest(&before, |_| true));
    }

    #[test]
    fn masks_held_sources_and_marked_cpus_are_respected(before in machines()) {
        let made = plan(&before);
        let is_all_protected =
            before.cpus.iter().filter(|cpu| !cpu.isolated).all(|cpu| cpu.protected);
        let mut seen = Vec::new();
        for step in &made.moves {
            let source = before.sources.iter().find(|source| source.id == step.source).unwrap();
            let to = before.cpus.iter().find(|cpu| cpu.number == step.to).unwrap();
            prop_assert!(source.held.is_none() && source.allowed.contains(step.to));
            prop_assert!(step.from != step.to && !to.isolated);
            prop_assert!(!to.protected || is_all_protected);
            prop_assert!(!seen.contains(&step.source), "a source is moved once");
            seen.push(step.source);
        }
    }

    #[test]
    fn a_machine_that_was_levelled_becomes_stable(before in machines()) {
        let mut now = before;
        for _ in 0..20 {
            if plan(&now).moves.is_empty() {
                return Ok(());
            }
            now = carried_out(&now);
        }
        prop_assert!(false, "it goes on moving: {:?}", plan(&now));
    }
}
