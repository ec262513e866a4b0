//! The rounds of `irq run`, and the moves of `irq once`, on machines made by hand, with an actuator that
//! moves time instead of interrupts.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;

use evenkeel_irq::{
    Accounting, Actuator, Aim, Change, Cpu, Event, Move, MovedByOther, Outcome, Rounds, Snapshot,
    Source, SourceId, Spread, once,
};
use evenkeel_machine::CpuSet;
use proptest::prelude::*;

const INTERVAL_NS: u64 = 1_000_000_000;

/// Lines on the first of these CPUs, each with its time in thousandths.
fn machine(cpus: u32, permille: &[u64]) -> Snapshot {
    let cpu = |number| Cpu { number, isolated: false, protected: false, other_ns: 0, net_rx: 0 };
    let line = |(number, permille): (u32, &u64)| Source {
        id: SourceId::Line(number),
        name: format!("eth0-{number}"),
        device: None,
        queue: None,
        allowed: CpuSet::first(cpus),
        effective: CpuSet::first(1),
        interrupts: *permille,
        ns: [(0, permille * INTERVAL_NS / 1000)].into(),
        napis: Vec::new(),
        held: None,
    };
    Snapshot {
        interval_ns: INTERVAL_NS,
        accounting: Accounting::Exact,
        cpus: (0..cpus).map(cpu).collect(),
        sources: (0..).zip(permille).map(line).collect(),
        devices: Vec::new(),
    }
}

struct Fake {
    machine: Snapshot,
    /// The kernel refuses to move these.
    refused: BTreeSet<SourceId>,
    /// What has become of moved sources since the last round.
    changes: Vec<Change>,
    tried: Vec<(SourceId, u32)>,
    is_broken: bool,
}

impl Fake {
    fn new(machine: Snapshot) -> Self {
        let (refused, changes, tried) = Default::default();
        Self { machine, refused, changes, tried, is_broken: false }
    }

    fn round(&mut self, rounds: &mut Rounds) -> Vec<String> {
        let events = rounds.round(self.machine.clone(), self).unwrap();
        events.iter().map(Event::to_string).collect()
    }
}

impl Actuator for Fake {
    type Error = &'static str;

    fn look(&mut self) -> Result<Vec<Change>, Self::Error> {
        Ok(std::mem::take(&mut self.changes))
    }

    fn carry_out(&mut self, step: &Move) -> Result<Outcome, Self::Error> {
        if self.is_broken {
            return Err("the journal is full");
        }
        self.tried.push((step.source, step.to));
        if self.refused.contains(&step.source) {
            return Ok(Outcome::Refused { why: "EPERM".to_owned() });
        }
        let source = self.machine.sources.iter_mut().find(|source| source.id == step.source);
        let source = source.unwrap();
        source.ns = [(step.to, source.total_ns())].into();
        source.effective = [step.to].into_iter().collect();
        Ok(Outcome::Moved)
    }

    fn spread(&mut self, step: &Spread) -> Result<Outcome, Self::Error> {
        panic!("{step}: no device has a table here");
    }
}

#[test]
fn a_move_is_made_in_the_second_round_that_plans_it() {
    let mut rounds = Rounds::default();
    let mut fake = Fake::new(machine(2, &[300, 250]));
    assert!(fake.round(&mut rounds).is_empty());
    let said = fake.round(&mut rounds);
    assert_eq!(fake.tried, [(SourceId::Line(1), 1)]);
    assert!(said[0].starts_with("moved eth0-1 (line 1): CPU 0 -> CPU 1, because"), "{said:?}");
    for _ in 0..5 {
        assert!(fake.round(&mut rounds).is_empty());
    }
}

#[test]
fn nothing_is_moved_on_a_level_machine_or_for_bursts() {
    let mut rounds = Rounds::default();
    let mut level = machine(2, &[300, 290]);
    level.sources[1].ns = [(1, level.sources[1].total_ns())].into();
    level.sources[1].effective = [1].into_iter().collect();
    let mut fake = Fake::new(level.clone());
    for round in 0..20 {
        // Every second round one line alone is busy, or both are on one CPU.
        fake.machine = if round % 2 == 0 { level.clone() } else { machine(2, &[300, 250]) };
        assert!(fake.round(&mut rounds).is_empty());
    }
    assert!(fake.tried.is_empty());
}

#[test]
fn one_move_a_round() {
    let mut rounds = Rounds::default();
    let mut fake = Fake::new(machine(4, &[200, 200, 200, 200]));
    let moves: Vec<usize> = (0..6).map(|_| fake.round(&mut rounds).len()).collect();
    assert_eq!(moves, [0, 1, 1, 1, 0, 0]);
}

#[test]
fn what_is_refused_is_said_once_and_not_tried_again() {
    let mut rounds = Rounds::default();
    let mut fake = Fake::new(machine(2, &[300, 250, 240]));
    fake.refused = [SourceId::Line(0), SourceId::Line(1)].into();
    let said: Vec<String> = (0..10).flat_map(|_| fake.round(&mut rounds)).collect();
    let stays: Vec<&String> = said.iter().filter(|event| event.starts_with("stays")).collect();
    assert_eq!(stays.len(), 2, "{said:?}");
    assert!(stays.iter().all(|event| event.ends_with("not tried again: EPERM")), "{said:?}");
    assert_eq!(said.len(), 3, "the third line is moved instead: {said:?}");
    // Another line that has got the number is tried.
    fake.machine = machine(2, &[300, 250]);
    fake.machine.sources.iter_mut().for_each(|source| source.name = "nvme0".to_owned());
    fake.refused.clear();
    let said: Vec<String> = (0..3).flat_map(|_| fake.round(&mut rounds)).collect();
    assert_eq!(said.len(), 1, "{said:?}");
}

#[test]
fn what_another_process_moved_is_left_alone_and_said_once() {
    let mut rounds = Rounds::default();
    let mut fake = Fake::new(machine(2, &[300, 250]));
    let _ = (fake.round(&mut rounds), fake.round(&mut rounds));
    assert_eq!(fake.tried, [(SourceId::Line(1), 1)]);
    // An administrator moves it back.
    fake.machine = machine(2, &[300, 250]);
    let (source, name) = (SourceId::Line(1), "eth0-1".to_owned());
    fake.changes = vec![Change::ByOther(MovedByOther { source, name, found: CpuSet::first(1) })];
    let said: Vec<String> = (0..5).flat_map(|_| fake.round(&mut rounds)).collect();
    let wanted = "left alone eth0-1 (line 1): another process set its affinity to CPUs 0";
    assert_eq!(said[0], wanted);
    assert_eq!(fake.tried[1..], [(SourceId::Line(0), 1)], "{said:?}");
    assert_eq!(said.len(), 2, "{said:?}");
}

#[test]
fn what_was_set_back_is_said_and_moved_again() {
    let mut rounds = Rounds::default();
    let mut fake = Fake::new(machine(3, &[300, 250]));
    let _ = (fake.round(&mut rounds), fake.round(&mut rounds));
    let first = fake.tried[0];
    fake.machine = machine(3, &[300, 250]);
    let (source, name) = (first.0, format!("eth0-{}", first.0.to_string().replace("line ", "")));
    let offline = [first.1].into_iter().collect();
    fake.changes = vec![Change::SetBack { source, name: name.clone(), offline }];
    let said: Vec<String> = (0..3).flat_map(|_| fake.round(&mut rounds)).collect();
    let wanted = format!("set back {name} ({source}) to its earlier affinity: CPU 1 went offline");
    assert_eq!(said[0], wanted);
    assert_eq!(fake.tried, [first, first], "{said:?}");
}

#[test]
fn once_makes_all_moves_of_a_plan() {
    let mut fake = Fake::new(machine(4, &[200, 200, 200, 200]));
    let events = once(fake.machine.clone(), Aim::Level, &mut fake).unwrap();
    assert_eq!(events.len(), 3, "{events:?}");
    assert!(events.iter().all(|event| matches!(event, Event::Moved(_))), "{events:?}");
    let cpus: BTreeSet<u32> = fake.tried.iter().map(|(_, cpu)| *cpu).collect();
    assert_eq!(cpus, [1, 2, 3].into());
    // Nothing is left to do.
    assert_eq!(once(fake.machine.clone(), Aim::Level, &mut fake).unwrap(), []);
}

#[test]
fn once_plans_again_without_what_is_refused() {
    let mut fake = Fake::new(machine(3, &[200, 200, 200, 200]));
    let first = once(fake.machine.clone(), Aim::Level, &mut fake).unwrap();
    let Some(Event::Moved(step)) = first.first() else { panic!("{first:?}") };
    let mut fake = Fake::new(machine(3, &[200, 200, 200, 200]));
    fake.refused = [step.source].into();
    let events = once(fake.machine.clone(), Aim::Level, &mut fake).unwrap();
    let moved: Vec<_> = events.iter().filter(|event| matches!(event, Event::Moved(_))).collect();
    assert_eq!((events.len(), moved.len()), (3, 2), "{events:?}");
    assert_eq!(fake.tried.iter().filter(|(source, _)| *source == step.source).count(), 1);
    fake.is_broken = true;
    assert_eq!(
        once(machine(2, &[300, 250]), Aim::Level, &mut fake).unwrap_err(),
        "the journal is full"
    );
}

#[test]
fn an_error_ends_the_run() {
    let mut rounds = Rounds::default();
    let mut fake = Fake::new(machine(2, &[300, 250]));
    fake.is_broken = true;
    assert!(fake.round(&mut rounds).is_empty());
    let why = rounds.round(fake.machine.clone(), &mut fake).unwrap_err();
    assert_eq!(why, "the journal is full");
}

proptest! {
    #[test]
    fn a_steady_machine_comes_to_rest(
        cpus in 1u32..6, permille in prop::collection::vec(0u64..300, 0..8)
    ) {
        let mut rounds = Rounds::default();
        let mut fake = Fake::new(machine(cpus, &permille));
        for _ in 0..60 {
            prop_assert!(fake.round(&mut rounds).len() <= 1);
        }
        let made = fake.tried.len();
        for _ in 0..5 {
            prop_assert!(fake.round(&mut rounds).is_empty());
        }
        prop_assert_eq!(fake.tried.len(), made);
    }
}

/// What was planned before a rest is not made after it: the rounds before and after do not follow each
/// other.
#[test]
fn a_rest_forgets_what_was_planned() {
    let mut fake = Fake::new(machine(2, &[300, 250]));
    let mut rounds = Rounds::default();
    assert!(fake.round(&mut rounds).is_empty());
    assert!(rounds.rest(&mut fake).unwrap().is_empty());
    assert!(fake.round(&mut rounds).is_empty());
    assert_eq!(fake.round(&mut rounds).len(), 1);
}

#[test]
fn what_became_of_moved_sources_is_told_at_rest_too() {
    let mut fake = Fake::new(machine(2, &[]));
    let moved =
        MovedByOther { source: SourceId::Line(1), name: "eth0-1".into(), found: CpuSet::first(1) };
    fake.changes.push(Change::ByOther(moved.clone()));
    let events = Rounds::default().rest(&mut fake).unwrap();
    assert_eq!(events, [Event::LetGo(moved)]);
}
