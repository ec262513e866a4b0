//! Which source is moved to which CPU, and why. Pure: no I/O, no clock.
//!
//! 1. *Protect*: a source that burdens a CPU of the program (`--for`) goes to the least burdened CPU
//!    outside of it, if one is allowed that it does not fill.
//! 2. *Level*: the CPU with the largest share of interrupt time gives one source away, to where the
//!    larger of the two shares becomes smallest. It must become smaller by a clear margin, so on a level
//!    machine nothing is moved. Repeated until no move helps the CPU with the largest share.
//! 3. *Spread*: where no move helps that CPU any more, buckets of a card's indirection table are moved
//!    from its queue to another one (`spread`).
//!
//! With the aim `source-aware` one rule takes the place of *level* and *spread*: a source goes to the
//! CPU on which the packets that it brings are received, if most of them are received on one CPU, and
//! that CPU has room for the source.
//!
//! A source is moved at most once in a plan, so planning ends. `can_move` tells from two figures of an
//! interval whether a plan for it could have a move; if not, the interval's other figures are not read.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::gauge::Burden;
use crate::margin::{CONSUMER_PCT, MARGIN_PCT, margin_ns};
use crate::snapshot::{Held, Snapshot, Source, SourceId};
use crate::spread::{Spread, StayingTable, plan_spreads};

/// A source that takes less than this of the interval, in percent, does not disturb a protected CPU.
const NOISE_PCT: f64 = 0.1;
/// A source is not moved to a CPU of which interrupts would then take more than this, in percent. The
/// rule *level* has no such bound.
const FULL_PCT: f64 = 80.0;
/// A kernel thread that spends less than this of its time on one CPU, in percent, belongs to no CPU.
const AT_HOME_PCT: u64 = 99;

/// What moves are made for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Aim {
    /// No CPU loses much more than the others.
    #[default]
    Level,
    /// Packets are processed on the CPU where they are received.
    SourceAware,
}

impl fmt::Display for Aim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Level => "level",
            Self::SourceAware => "source-aware",
        })
    }
}

impl FromStr for Aim {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = [Self::Level, Self::SourceAware];
        let found = known.into_iter().find(|aim| aim.to_string() == text);
        found.ok_or_else(|| "expected level or source-aware".to_owned())
    }
}

/// Why a source is moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Its CPU is one of the program's.
    Protect,
    /// Its CPU has the largest share.
    Level,
    /// What it brings is received on the other CPU.
    Source,
}

/// One move.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
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
            Reason::Source => write!(
                f,
                "because what it brings is received on CPU {to}; takes {pct:.1} %, afterwards \
                 interrupts take at most {after_pct:.1} % of either"
            ),
            Reason::Level => write!(
                f,
                "because interrupts take {from_pct:.1} % of CPU {from}, {pct:.1} % by this; afterwards \
                 at most {after_pct:.1} % of either"
            ),
        }
    }
}

/// What is to be changed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct Plan {
    /// In this order.
    pub moves: Vec<Move>,
    /// Sources on the CPU with the largest share, or on a protected one, that must stay, and why.
    pub stays: Vec<Stay>,
    /// Changes of indirection tables, in this order, after the moves.
    pub spreads: Vec<Spread>,
    /// Devices with a busy queue on the CPU with the largest share of which the table stays, and why.
    pub unspread: Vec<StayingTable>,
}

/// A source that must stay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Stay {
    /// The source.
    pub source: SourceId,
    /// As the kernel names it.
    pub name: String,
    /// Why.
    pub held: Held,
}

/// The loads of the CPUs while a plan is made.
struct Planner<'a> {
    snapshot: &'a Snapshot,
    loads: BTreeMap<u32, u64>,
    moved: BTreeSet<SourceId>,
    plan: Plan,
}

/// Plans the moves that level what was observed.
pub fn plan(snapshot: &Snapshot) -> Plan {
    plan_for(snapshot, Aim::Level)
}

/// Plans the moves with this aim for what was observed.
pub fn plan_for(snapshot: &Snapshot, aim: Aim) -> Plan {
    let mut planner = Planner {
        snapshot,
        loads: snapshot.loads(),
        moved: BTreeSet::new(),
        plan: Plan::default(),
    };
    planner.protect();
    match aim {
        Aim::Level => {
            while planner.level() {}
            planner.spread();
        }
        Aim::SourceAware => planner.follow_consumers(),
    }
    planner.plan
}

/// Whether there can be a move in a plan for an interval with this burden. False is certain; true is
/// not.
pub(crate) fn can_move(burden: Burden, aim: Aim, is_protecting: bool) -> bool {
    let percent = |ns: u64| ns as f64 * 100.0 / burden.interval_ns.max(1) as f64;
    // Levelling takes from the CPU with the largest share; the other rules look at each source's time
    // on all.
    let is_level = match aim {
        Aim::Level => burden.largest_ns < burden.interval_ns / 100 * MARGIN_PCT,
        Aim::SourceAware => burden.total_ns < burden.interval_ns / 100 * MARGIN_PCT,
    };
    !is_level || (is_protecting && percent(burden.total_ns) >= NOISE_PCT)
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
        let margin = margin_ns(self.snapshot.interval_ns, largest);
        let mut best: Option<(u64, Source, u32)> = None;
        let sources: Vec<Source> = self.sources_of(from).into_iter().cloned().collect();
        for source in sources.into_iter().filter(|source| source.total_ns() >= margin) {
            if self.note_held(&source) {
                continue;
            }
            let Some(to) = self.best_target(&source, from) else { continue };
            let left = largest.saturating_sub(source.ns.get(&from).copied().unwrap_or(0));
            let after = left.max(self.load_with(&source, to));
            // Of equally good moves, the move of the smaller source disturbs less.
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

    /// Changes of tables for what the moves leave.
    fn spread(&mut self) {
        if self.snapshot.devices.is_empty() {
            return;
        }
        let mut after = self.snapshot.clone();
        for step in &self.plan.moves {
            after.relocate(step.source, step.to);
        }
        (self.plan.spreads, self.plan.unspread) = plan_spreads(&after, &self.targets());
    }

    /// Moves each source to the CPU on which what it brings is received, the busiest source first.
    fn follow_consumers(&mut self) {
        let least_ns = self.snapshot.interval_ns / 100 * MARGIN_PCT;
        let targets = self.targets();
        let mut sources: Vec<&Source> = self.snapshot.sources.iter().collect();
        sources.sort_by_key(|source| (std::cmp::Reverse(source.total_ns()), source.id));
        for source in sources.into_iter().filter(|source| source.total_ns() >= least_ns) {
            let Some((to, share_pct)) = source.consumer() else { continue };
            let Some(from) = away_from(source, to) else { continue };
            if share_pct < CONSUMER_PCT || self.moved.contains(&source.id) {
                continue;
            }
            let is_target = targets.contains(&to) && source.allowed.contains(to);
            let has_room = self.snapshot.percent(self.load_with(source, to)) <= FULL_PCT;
            if is_target && has_room && !self.note_held(source) {
                self.move_to(source, from, to, Reason::Source);
            }
        }
    }

    fn note_held(&mut self, source: &Source) -> bool {
        let Some(held) = source.held else { return false };
        if !self.plan.stays.iter().any(|stay| stay.source == source.id) {
            self.plan.stays.push(Stay { source: source.id, name: source.name.clone(), held });
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

/// The other CPU that a source burdens; `None`: it burdens `to` alone. A line is where its affinity is,
/// a kernel thread where it ran: without a pin the scheduler moves it.
fn away_from(source: &Source, to: u32) -> Option<u32> {
    if !matches!(source.id, SourceId::Thread(_)) {
        return source.home().filter(|home| *home != to);
    }
    let there = source.ns.get(&to).copied().unwrap_or(0);
    if there >= source.total_ns() / 100 * AT_HOME_PCT {
        return None;
    }
    let others = source.ns.iter().filter(|(cpu, _)| **cpu != to);
    others.max_by_key(|(_, ns)| **ns).map(|(cpu, _)| *cpu)
}

#[cfg(test)]
mod tests {
    use evenkeel_machine::CpuSet;
    use proptest::prelude::*;

    use super::*;
    use crate::snapshot::{Accounting, Cpu, Napi};

    const CPUS: u32 = 4;
    const INTERVAL_NS: u64 = 3_000_000_000;

    prop_compose! {
        /// A source with a little time or much on its CPU, and consumers on one or two.
        fn sources()(
            cpu in 0..CPUS, ns in prop_oneof![0..INTERVAL_NS / 40, 0..INTERVAL_NS / 2],
            consumers in prop::collection::btree_map(0..CPUS, 1..1000_u64, 0..3),
        ) -> Source {
            let napi = Napi {
                device: "eth0".into(), napi_id: 9, packets: 1, polls: 1, received_bytes: consumers,
            };
            Source {
                id: SourceId::Line(0), name: "eth0".into(), device: None, queue: None,
                allowed: CpuSet::first(CPUS), effective: [cpu].into_iter().collect(), interrupts: 1,
                ns: [(cpu, ns)].into(), napis: vec![napi], held: None,
            }
        }
    }

    prop_compose! {
        fn snapshots()(
            mut sources in prop::collection::vec(sources(), 0..6),
            protected in prop::collection::btree_set(0..CPUS, 0..3),
            other_ns in prop::collection::vec(0..INTERVAL_NS / 60, CPUS as usize),
        ) -> Snapshot {
            for (number, source) in (0..).zip(&mut sources) {
                source.id = SourceId::Line(number);
            }
            let cpu = |(number, other_ns): (u32, u64)| Cpu {
                number, isolated: false, protected: protected.contains(&number), other_ns, net_rx: 0,
            };
            Snapshot {
                interval_ns: INTERVAL_NS, accounting: Accounting::Exact,
                cpus: (0..).zip(other_ns).map(cpu).collect(), sources, devices: Vec::new(),
            }
        }
    }

    proptest! {
        #[test]
        fn no_plan_has_a_move_where_there_can_be_none(
            snapshot in snapshots(), is_source_aware in any::<bool>(),
        ) {
            let aim = if is_source_aware { Aim::SourceAware } else { Aim::Level };
            let loads = snapshot.loads();
            let burden = Burden {
                interval_ns: INTERVAL_NS,
                largest_ns: loads.values().copied().max().unwrap_or(0),
                total_ns: loads.values().sum(),
            };
            let is_protecting = snapshot.cpus.iter().any(|cpu| cpu.protected);
            let moves = plan_for(&snapshot, aim).moves;
            prop_assert!(moves.is_empty() || can_move(burden, aim, is_protecting), "{moves:?}");
        }

        #[test]
        fn a_source_aware_move_leads_to_the_consumer(snapshot in snapshots()) {
            for step in plan_for(&snapshot, Aim::SourceAware).moves {
                let source = snapshot.sources.iter().find(|source| source.id == step.source);
                if step.reason == Reason::Source {
                    let consumer = source.and_then(Source::consumer);
                    prop_assert!(
                        consumer.is_some_and(|(cpu, pct)| cpu == step.to && pct >= CONSUMER_PCT)
                    );
                }
            }
        }
    }

    #[test]
    fn at_rest_there_can_be_no_move() {
        let burden = |pct: f64| {
            let ns = (INTERVAL_NS as f64 * pct / 100.0) as u64;
            Burden { interval_ns: INTERVAL_NS, largest_ns: ns, total_ns: ns }
        };
        for aim in [Aim::Level, Aim::SourceAware] {
            assert!(!can_move(burden(1.9), aim, false) && can_move(burden(2.0), aim, false));
            assert!(!can_move(burden(0.09), aim, true) && can_move(burden(0.2), aim, true));
        }
    }
}
