//! Which source is moved to which CPU, and why. Pure: no I/O, no clock.
//!
//! 1. *Protect*: a source that burdens a CPU of the program (`--for`) goes to the least burdened CPU
//!    outside of it, if one is allowed that it does not fill.
//! 2. *Level*: the CPU with the largest share of interrupt time gives one source away, to where the
//!    larger of the two shares becomes smallest. It must become smaller by a clear margin, so on a level
//!    machine nothing is moved. Repeated until no move helps the CPU with the largest share.
//!
//! A source is moved at most once in a plan, so planning ends.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;

use crate::snapshot::{Held, Snapshot, Source, SourceId};

/// The largest share must become smaller by this much of the interval, in percent.
const MARGIN_PCT: u64 = 2;
/// And by this part of itself.
const MARGIN_PART: u64 = 8;
/// Less time than this of the interval, in percent, does not disturb a protected CPU.
const NOISE_PCT: f64 = 0.1;
/// A protected CPU's source is not moved to where interrupts would then take more than this, in percent.
const FULL_PCT: f64 = 80.0;

/// Why a source is moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Its CPU is one of the program's.
    Protect,
    /// Its CPU has the largest share.
    Level,
}

/// One move.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Move {
    /// What is moved.
    pub source: SourceId,
    /// As the kernel names it.
    pub name: String,
    /// The CPU that it burdens.
    pub from: u32,
    /// The CPU that it is moved to.
    pub to: u32,
    /// Why.
    pub reason: Reason,
    /// Its time, in percent of a CPU.
    pub pct: f64,
    /// The share of `from` before, in percent.
    pub from_pct: f64,
    /// The larger of the two shares afterwards, in percent.
    pub after_pct: f64,
}

impl fmt::Display for Move {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, name, from, to, pct, from_pct, after_pct, reason } = self;
        write!(f, "{name} ({source}): CPU {from} -> CPU {to}, ")?;
        match reason {
            Reason::Protect => write!(f, "because CPU {from} is the program's; takes {pct:.1} %"),
            Reason::Level => write!(
                f,
                "because interrupts take {from_pct:.1} % of CPU {from}, {pct:.1} % by this; afterwards \
                 at most {after_pct:.1} % of either"
            ),
        }
    }
}

/// What is to be changed.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Plan {
    /// In this order.
    pub moves: Vec<Move>,
    /// Sources on the CPU with the largest share, or on a protected one, that must stay, and why.
    pub stays: Vec<(SourceId, String, Held)>,
}

/// The loads of the CPUs while a plan is made.
struct Planner<'a> {
    snapshot: &'a Snapshot,
    loads: BTreeMap<u32, u64>,
    moved: BTreeSet<SourceId>,
    plan: Plan,
}

/// Plans the moves for what was observed.
pub fn plan(snapshot: &Snapshot) -> Plan {
    let mut planner = Planner {
        snapshot,
        loads: snapshot.loads(),
        moved: BTreeSet::new(),
        plan: Plan::default(),
    };
    planner.protect();
    while planner.level() {}
    planner.plan
}

impl Planner<'_> {
    /// The CPUs that take part in levelling: neither isolated nor, where others exist, protected.
    fn targets(&self) -> Vec<u32> {
        let usable = self.snapshot.cpus.iter().filter(|cpu| !cpu.isolated);
        let is_all_protected = usable.clone().all(|cpu| cpu.protected);
        usable.filter(|cpu| is_all_protected || !cpu.protected).map(|cpu| cpu.number).collect()
    }

    fn load(&self, cpu: u32) -> u64 {
        self.loads.get(&cpu).copied().unwrap_or(0)
    }

    /// The load of a CPU that a source is moved to.
    fn load_with(&self, source: &Source, cpu: u32) -> u64 {
        let there = source.ns.get(&cpu).copied().unwrap_or(0);
        (self.load(cpu) + source.total_ns()).saturating_sub(there)
    }

    /// The allowed target with the smallest load afterwards.
    fn best_target(&self, source: &Source, from: u32) -> Option<u32> {
        let targets = self.targets().into_iter();
        let allowed = targets.filter(|cpu| *cpu != from && source.allowed.contains(*cpu));
        allowed.min_by_key(|cpu| (self.load_with(source, *cpu), *cpu))
    }

    /// The sources that burden this CPU, those that take most first.
    fn sources_of(&self, cpu: u32) -> Vec<&Source> {
        let sources = self.snapshot.sources.iter();
        let mut sources: Vec<&Source> = sources
            .filter(|source| source.home() == Some(cpu) && !self.moved.contains(&source.id))
            .collect();
        sources.sort_by_key(|source| (std::cmp::Reverse(source.total_ns()), source.id));
        sources
    }

    fn protect(&mut self) {
        let snapshot = self.snapshot;
        let targets = self.targets();
        let protected = snapshot.cpus.iter().filter(|cpu| cpu.protected);
        for cpu in protected.map(|cpu| cpu.number).filter(|cpu| !targets.contains(cpu)) {
            let sources: Vec<Source> = self.sources_of(cpu).into_iter().cloned().collect();
            for source in sources {
                if snapshot.percent(source.total_ns()) < NOISE_PCT {
                    continue;
                }
                if self.note_held(&source) {
                    continue;
                }
                let Some(to) = self.best_target(&source, cpu) else { continue };
                if snapshot.percent(self.load_with(&source, to)) <= FULL_PCT {
                    self.move_to(&source, cpu, to, Reason::Protect);
                }
            }
        }
    }

    /// One move that makes the largest share smaller; false: there is none.
    fn level(&mut self) -> bool {
        let targets = self.targets();
        let hottest = targets.iter().copied().max_by_key(|cpu| (self.load(*cpu), u32::MAX - cpu));
        let Some(from) = hottest else { return false };
        let largest = self.load(from);
        let margin = (self.snapshot.interval_ns / 100 * MARGIN_PCT).max(largest / MARGIN_PART);
        let mut best: Option<(u64, Source, u32)> = None;
        let sources: Vec<Source> = self.sources_of(from).into_iter().cloned().collect();
        for source in sources.into_iter().filter(|source| source.total_ns() >= margin) {
            if self.note_held(&source) {
                continue;
            }
            let Some(to) = self.best_target(&source, from) else { continue };
            let left = largest.saturating_sub(source.ns.get(&from).copied().unwrap_or(0));
            let after = left.max(self.load_with(&source, to));
            // Of moves that are as good, that of the smaller source disturbs less.
            let is_better = best.as_ref().is_none_or(|(least, other, _)| {
                (after, source.total_ns()) < (*least, other.total_ns())
            });
            if after + margin <= largest && is_better {
                best = Some((after, source, to));
            }
        }
        match best {
            Some((_, source, to)) => {
                self.move_to(&source, from, to, Reason::Level);
                true
            }
            None => false,
        }
    }

    fn note_held(&mut self, source: &Source) -> bool {
        let Some(held) = source.held else { return false };
        if !self.plan.stays.iter().any(|(id, ..)| *id == source.id) {
            self.plan.stays.push((source.id, source.name.clone(), held));
        }
        true
    }

    fn move_to(&mut self, source: &Source, from: u32, to: u32, reason: Reason) {
        let from_pct = self.snapshot.percent(self.load(from));
        for (cpu, ns) in &source.ns {
            if let Some(load) = self.loads.get_mut(cpu) {
                *load = load.saturating_sub(*ns);
            }
        }
        if let Some(load) = self.loads.get_mut(&to) {
            *load += source.total_ns();
        }
        self.moved.insert(source.id);
        self.plan.moves.push(Move {
            source: source.id,
            name: source.name.clone(),
            from,
            to,
            reason,
            pct: self.snapshot.percent(source.total_ns()),
            from_pct,
            after_pct: self.snapshot.percent(self.load(from).max(self.load(to))),
        });
    }
}
