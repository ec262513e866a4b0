//! The keel's decisions in worlds of all kinds are recorded in `decisions.txt`. A change of the keel, a
//! policy or the simulator that changes any decision fails here and shows which. `make decisions`
//! records them again.
//!
//! These tests also check that no rule is broken in any of these worlds.

#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use common::torture::complaint;
use common::worlds::{self, World};
use evenkeel_sim::Outcome;

/// Set by `make decisions`: record instead of comparing.
const RECORDS: &str = "EVENKEEL_RECORD_DECISIONS";
/// The exit code if another build of the keel breaks no rule but decides differently: `scripts/mutate`
/// tells the two apart.
const DIFFERS: i32 = 3;
/// At most this many differing worlds are shown.
const MOST_SHOWN: usize = 12;
const WIDTH: usize = 110;

const HEAD: &str = "\
# What the keel decides in the worlds of common/worlds.rs. Written by `make decisions`; do not edit. A
# change here is no fault: it shows what a change of the keel, a policy or the simulator does. Each world
# has a hash of all events (trace), the engine's events, calls of the kernel's functions, queue entries
# that were looked at, migrations by reason and distance, and the keel's counters that are not 0.
";

/// The recorded figures of a world: names and values, in order.
type Record = Vec<(String, String)>;

fn record(outcome: &Outcome) -> Record {
    let mut record = vec![("trace".to_owned(), format!("{:016x}", outcome.hash))];
    let mut add = |name: String, count: u64| {
        if count > 0 {
            record.push((name, count.to_string()));
        }
    };
    add("events".to_owned(), outcome.events);
    add("calls".to_owned(), outcome.calls);
    add("scanned".to_owned(), outcome.scanned);
    for ((reason, level), count) in &outcome.migrations {
        add(format!("{reason}/{level}"), *count);
    }
    for (name, count) in &outcome.counters {
        add(name.clone(), *count);
    }
    record
}

/// Checks that the world ends well, that no rule is broken, and that the keel counts runnable tasks
/// correctly if no call fails.
fn decided(world: &World) -> Record {
    let outcome = world.simulation.run().unwrap();
    assert_eq!(complaint(&world.simulation, &outcome), None, "{}", world.name);
    if world.simulation.faults.fail_one_in == 0 {
        assert_eq!(outcome.believed_runnable, Some(outcome.runnable), "{}", world.name);
    }
    record(&outcome)
}

/// The records of all worlds, in their order; computed on all CPUs.
fn decided_everywhere(worlds: &[World]) -> Vec<Record> {
    let next = AtomicUsize::new(0);
    let records = Mutex::new(vec![Record::new(); worlds.len()]);
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(world) = worlds.get(at) else { return };
            let record = decided(world);
            records.lock().unwrap_or_else(PoisonError::into_inner)[at] = record;
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    records.into_inner().unwrap()
}

/// A block for each world: its name, and its figures below in wrapped lines.
fn print(worlds: &[World], records: &[Record]) -> String {
    let mut text = HEAD.to_owned();
    for (world, record) in worlds.iter().zip(records) {
        let mut line = String::new();
        let _ = write!(text, "\n{}\n", world.name);
        for (name, value) in record {
            if line.len() + name.len() + value.len() + 6 > WIDTH {
                let _ = writeln!(text, " {line}");
                line.clear();
            }
            let _ = write!(line, " {name} {value}");
        }
        let _ = writeln!(text, " {line}");
    }
    text
}

/// Reads the same back.
fn parse(text: &str) -> BTreeMap<String, BTreeMap<String, String>> {
    let mut known = BTreeMap::<_, BTreeMap<_, _>>::new();
    let mut world = String::new();
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if !line.starts_with(' ') {
            world = line.to_owned();
            known.entry(world.clone()).or_default();
            continue;
        }
        let mut words = line.split_whitespace().map(str::to_owned);
        let record = known.entry(world.clone()).or_default();
        while let (Some(name), Some(value)) = (words.next(), words.next()) {
            record.insert(name, value);
        }
    }
    known
}

/// The figures of a world that differ from its record.
fn difference(known: &BTreeMap<String, String>, now: &Record) -> String {
    let now: BTreeMap<_, _> = now.iter().cloned().collect();
    let mut names: Vec<_> = known.keys().chain(now.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let value = |of: &BTreeMap<String, String>, name| of.get(name).map_or("0", |at| at).to_owned();
    names
        .into_iter()
        .map(|name| (name, value(known, name), value(&now, name)))
        .filter(|(_, was, is)| was != is)
        .map(|(name, was, is)| format!("{name} {was} -> {is}"))
        .collect::<Vec<_>>()
        .join(", ")
}

/// A message, if any world differs from its record.
fn differences(known: &str, worlds: &[World], records: &[Record]) -> Option<String> {
    let mut known = parse(known);
    let mut lines = Vec::new();
    for (world, now) in worlds.iter().zip(records) {
        match known.remove(&world.name) {
            None => lines.push(format!("{}: is not recorded", world.name)),
            Some(was) => {
                let difference = difference(&was, now);
                if !difference.is_empty() {
                    lines.push(format!("{}: {difference}", world.name));
                }
            }
        }
    }
    lines.extend(known.keys().map(|name| format!("{name}: there is no such world any more")));
    let (count, shown) = (lines.len(), lines.len().min(MOST_SHOWN));
    (count > 0).then(|| {
        format!(
            "{count} worlds are decided differently from lab/sim/tests/decisions.txt:\n\n{}\n{}\n\
             If your change intends that, run `make decisions`, and review what it changes there.",
            lines[..shown].join("\n"),
            if shown < count { format!("... and {} more\n", count - shown) } else { String::new() },
        )
    })
}

#[test]
fn the_keel_decides_as_recorded() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/decisions.txt");
    let worlds = worlds::all();
    let records = decided_everywhere(&worlds);
    if std::env::var_os(RECORDS).is_some() {
        std::fs::write(&path, print(&worlds, &records)).unwrap();
        return;
    }
    let known = std::fs::read_to_string(&path).unwrap();
    if let Some(differences) = differences(&known, &worlds, &records) {
        if common::keel_build().is_some() {
            eprintln!("{differences}");
            std::process::exit(DIFFERS);
        }
        panic!("{differences}");
    }
}

#[test]
fn a_difference_is_reported_by_world_and_figure() {
    let world = |name: &str| World {
        name: name.to_owned(),
        simulation: common::Sim::new(common::paper(1)).simulation(),
    };
    let record = |preempt: &str| {
        vec![("trace".to_owned(), "00ab".to_owned()), ("preempt".to_owned(), preempt.to_owned())]
    };
    let worlds = [world("one"), world("two"), world("three")];
    let text = print(&worlds[..2], &[record("7"), record("9")]);
    assert_eq!(differences(&text, &worlds[..2], &[record("7"), record("9")]), None);
    let said = differences(&text, &worlds[1..], &[vec![record("9").remove(0)], record("1")]);
    let said = said.unwrap();
    for line in ["two: preempt 9 -> 0\n", "three: is not recorded\n", "one: there is no such world"]
    {
        assert!(said.contains(line), "{said}");
    }
    assert!(said.contains("3 worlds") && said.contains("`make decisions`"), "{said}");
}
