//! The turns: for each size and order of a working set, the first walk after each event, beside a walk
//! after nothing.
//!
//! A figure of a turn is a low quantile of many walks: whatever else happens on a machine (interrupts,
//! other programs, other guests of the host) only ever makes a walk longer, so the shortest walks show
//! what the caches cost. Each event is compared with "nothing" turn by turn.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use evenkeel_experiment::accounts::Accounts;
use evenkeel_experiment::display::Display;
use evenkeel_experiment::host::usable_cpus;
use evenkeel_experiment::{
    Case, Contestant, Experiment, Kind, Metric, Plan, Record, Report, Sample, Turn, interrupt,
};
use evenkeel_machine::CpuSet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::others::{Other, Sibling, Stranger, run_on};
use super::walk::{Order, Set};
use crate::stats::{Verdict, estimate};

/// Working sets, in KiB.
pub const SIZES_KIB: [usize; 11] = [4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096];
/// Walks of a turn, and turns.
const WALKS: usize = 30;
const ROUNDS: usize = 7;
/// The quantile of a turn's walks that counts.
const QUANTILE: f64 = 0.1;
/// After so many walks a set is as near as it can be.
const WARM: usize = 2;
/// How long a CPU that was idle is kept busy before anything is timed on it.
const AWAKE: Duration = Duration::from_micros(50);
/// The baseline's name.
const NOTHING: &str = "nothing";
/// The figure: a walk, in s.
const WALK: &str = "walk";
static METRICS: [Metric; 1] = [Metric::new(WALK, Kind::Time, "the walk that counts")];

/// What happens between two walks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// A thread of the same address space has the CPU, and walks over the same set.
    Sibling,
    /// A process with another address space has it, and walks over more than the core's caches hold.
    #[default]
    Stranger,
    /// The thread comes back from another CPU; the caches there have the set.
    Moved,
    /// Nothing once more: the A/A row, which shows what the table can resolve.
    Again,
}

impl Event {
    /// All that happen.
    pub const ALL: [Self; 3] = [Self::Sibling, Self::Stranger, Self::Moved];

    /// As reports have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sibling => "sibling",
            Self::Stranger => "stranger",
            Self::Moved => "moved",
            Self::Again => "nothing again",
        }
    }
}

/// What a first walk took more than any other, for one set and one event.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Point {
    /// How it was walked.
    pub order: Order,
    /// Its size.
    pub kib: u64,
    /// What happened before.
    pub event: Event,
    /// The median of the turns, in ns: may be below 0 where nothing is lost.
    pub cost_ns: f64,
    /// Its 95 % interval.
    pub ci95_ns: [f64; 2],
    /// A walk when nothing had happened, in ns.
    pub walk_ns: f64,
    /// Whether the walk was longer than that: `better` never is meant, `worse` is longer.
    pub verdict: Option<Verdict>,
    /// Turns that count.
    pub turns: usize,
    /// CPU time that others took in the median turn, in %.
    pub foreign_pct: f64,
}

impl Default for Point {
    fn default() -> Self {
        Self {
            order: Order::Scattered,
            kib: 0,
            event: Event::Stranger,
            cost_ns: 0.0,
            ci95_ns: [0.0; 2],
            walk_ns: 0.0,
            verdict: None,
            turns: 0,
            foreign_pct: 0.0,
        }
    }
}

/// What a core's own caches hold, in KiB, as its sysfs says; `None` where it does not.
pub fn near_kib(cpu: u32) -> Option<u64> {
    let read = |what: &str| {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/cache/index2/{what}");
        Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
    };
    (read("level")? == "2").then_some(())?;
    read("size")?.strip_suffix('K')?.parse().ok()
}

/// Where it is measured.
pub struct Place {
    /// The CPU on which walks are timed.
    pub cpu: u32,
    /// Another one, if there is one.
    pub other: Option<u32>,
    /// What the caches of its core hold.
    pub near_kib: u64,
}

impl Place {
    /// The last two CPUs that this process may use: the first one has the most interrupts.
    ///
    /// # Errors
    /// It is not known what may be used, or what its caches hold.
    pub fn find() -> Result<Self> {
        let usable: Vec<u32> = usable_cpus()?.iter().collect();
        let mut last = usable.iter().rev().copied();
        let cpu = last.next().context("no CPU may be used")?;
        let near_kib = near_kib(cpu).with_context(|| {
            format!("sysfs does not say how large the level-2 cache of CPU {cpu} is")
        })?;
        Ok(Self { cpu, other: last.next(), near_kib })
    }

    /// A walk over so much evicts everything: twice what the caches hold.
    fn evicting_kib(&self) -> usize {
        2 * self.near_kib as usize
    }
}

/// Measures all points; with `is_quick` only a few sizes and turns.
///
/// # Errors
/// A thread or process cannot be started or pinned, or a signal asked for the end.
pub fn measure(place: &Place, is_quick: bool) -> Result<Vec<Point>> {
    let before = usable_cpus()?;
    let measured = turns(place, &before, is_quick);
    // Whatever came of it: this thread was pinned.
    evenkeel_journal::affinity::set(nix::unistd::gettid().as_raw(), &before)?;
    let (records, report) = measured?;
    interrupt::check()?;
    if let Some(failed) = report.failed.first() {
        bail!("{}", failed.words());
    }
    Ok(points(&records, &report))
}

/// The baseline, and the events that can happen in this place.
fn experiment(place: &Place) -> Experiment<Option<Event>> {
    let events = Event::ALL.into_iter();
    let events = events.filter(|event| *event != Event::Moved || place.other.is_some());
    let events = events.map(|event| Contestant::new(event.name(), "", Some(event)));
    Experiment {
        name: "refill",
        title: "",
        intro: "",
        case_word: "KiB",
        contestants: std::iter::once(Contestant::new(NOTHING, "", None)).chain(events).collect(),
        metrics: &METRICS,
        aims: Vec::new(),
        course: "",
        reading: "",
        lists: Vec::new(),
    }
}

fn turns(place: &Place, cpus: &CpuSet, is_quick: bool) -> Result<(Vec<Record>, Report)> {
    run_on(place.cpu)?;
    let experiment = experiment(place);
    let names: Vec<String> = experiment.contestants.iter().map(|one| one.name.clone()).collect();
    let mut walkers = Walkers {
        place,
        stranger: Stranger::start(place.cpu, place.evicting_kib())?,
        evicting: Set::new(place.evicting_kib(), Order::InSequence),
        sets: BTreeMap::new(),
    };
    let sizes = SIZES_KIB.iter().filter(|kib| !is_quick || [16, 256].contains(*kib));
    let mut cases = Vec::new();
    for order in Order::ALL {
        for kib in sizes.clone() {
            let set = Arc::new(Mutex::new(Set::new(*kib, order)));
            let sibling = Sibling::start(place.cpu, &set)?;
            let (name, program) = (kib.to_string(), order.name().to_owned());
            walkers.sets.insert((name.clone(), program.clone()), (set, sibling));
            cases.push(Case {
                name,
                program,
                contestants: names.clone(),
                has_second_baseline: true,
                ..Case::default()
            });
        }
    }
    let mut accounts = Accounts::open();
    let mut run = |turn: &Turn<'_, Option<Event>>| {
        interrupt::check()?;
        let alive = [walkers.stranger.pid()];
        let before = accounts.read(cpus, &alive)?;
        let seconds = walkers.turn(turn)?;
        let foreign_pct = accounts.read(cpus, &alive)?.since(&before).foreign_pct;
        Ok(Sample { foreign_pct, ..Sample::new([(WALK, seconds)]) })
    };
    let plan = Plan::fixed(if is_quick { 2 } else { ROUNDS });
    let display = Display::new();
    let measured = evenkeel_experiment::measure(&experiment, &cases, &plan, &mut run, &display);
    display.finish();
    let records = measured?;
    let report = Report::new(&experiment, &records, &plan, "");
    Ok((records, report))
}

/// A working set, and the thread that shares it.
type Shared = (Arc<Mutex<Set>>, Sibling);

/// What walks, and what happens between two walks.
struct Walkers<'a> {
    place: &'a Place,
    stranger: Stranger,
    /// A walk over it evicts everything else.
    evicting: Set,
    /// By case and program.
    sets: BTreeMap<(String, String), Shared>,
}

impl Walkers<'_> {
    /// Many walks after the same event; the walk that counts, in s.
    fn turn(&mut self, turn: &Turn<'_, Option<Event>>) -> Result<f64> {
        let event = turn.contestant.and_then(|contestant| contestant.how);
        let Self { place, stranger, evicting, sets } = self;
        let shared = sets.get_mut(&(turn.case.name.clone(), turn.case.program.clone()));
        let (set, sibling) = shared.context("a turn without a working set")?;
        let warm = || {
            let mut set = set.lock().unwrap_or_else(PoisonError::into_inner);
            (0..WARM).for_each(|_| set.walk());
        };
        let mut walks_s = Vec::with_capacity(WALKS);
        for _ in 0..WALKS {
            match event {
                None | Some(Event::Again) => warm(),
                Some(Event::Sibling) => {
                    warm();
                    sibling.turn()?;
                }
                Some(Event::Stranger) => {
                    warm();
                    stranger.turn()?;
                }
                Some(Event::Moved) => {
                    // The set is evicted from this core, warm on the other; then back.
                    run_on(place.cpu)?;
                    evicting.walk();
                    run_on(place.other.context("there is no other CPU")?)?;
                    warm();
                    run_on(place.cpu)?;
                    let start = Instant::now();
                    while start.elapsed() < AWAKE {}
                }
            }
            let time = set.lock().unwrap_or_else(PoisonError::into_inner).time();
            walks_s.push(time.as_secs_f64());
        }
        Ok(low(&mut walks_s))
    }
}

/// The walk that counts.
fn low(walks: &mut [f64]) -> f64 {
    walks.sort_unstable_by(f64::total_cmp);
    let at = (walks.len() as f64 * QUANTILE) as usize;
    walks.get(at).copied().unwrap_or_default()
}

/// What each event costs, by working set.
fn points(records: &[Record], report: &Report) -> Vec<Point> {
    let mut points = Vec::new();
    for record in records {
        let order = Order::ALL.into_iter().find(|order| order.name() == record.program);
        let (Some(order), Ok(kib)) = (order, record.case.parse()) else { continue };
        let row = |name: &str| report.row(&record.case, &record.program, WALK, name);
        for event in Event::ALL.into_iter().chain([Event::Again]) {
            let (nothing, after) = record.pairs(WALK, NOTHING, event.name());
            let costs: Vec<f64> = nothing
                .iter()
                .zip(&after)
                .map(|(nothing, after)| 1e9 * (after - nothing))
                .collect();
            let rows = row(NOTHING).zip(row(event.name()));
            let (Some(cost), Some((nothing, after))) = (estimate(&costs), rows) else { continue };
            points.push(Point {
                order,
                kib,
                event,
                cost_ns: cost.median,
                ci95_ns: cost.ci95(),
                walk_ns: 1e9 * nothing.median,
                verdict: after.verdict,
                turns: costs.len(),
                foreign_pct: after.foreign_pct,
            });
        }
    }
    points
}

#[cfg(test)]
mod tests {
    use evenkeel_experiment::rows;

    use super::*;

    #[test]
    fn a_cost_is_the_difference_to_a_walk_after_nothing_turn_by_turn() {
        let mut record = Record::new(&Case {
            name: "64".into(),
            program: Order::Scattered.name().into(),
            contestants: vec![NOTHING.into(), "stranger".into()],
            has_second_baseline: true,
            ..Case::default()
        });
        // The machine becomes slower meanwhile, which must not count.
        let walks_us = [[10.0, 20.0, 30.0], [15.0, 25.0, 36.0], [10.0, 20.5, 29.5]];
        for (line, walks_us) in record.lines.iter_mut().zip(walks_us) {
            line.rounds = walks_us.map(|us| Some(Sample::new([(WALK, us / 1e6)]))).into();
        }
        let rows = rows(&METRICS, std::slice::from_ref(&record), &Plan::fixed(3));
        let points = points(&[record], &Report { rows, ..Report::default() });
        assert_eq!(points.len(), 2, "the baseline has no point but the A/A row's");
        assert_eq!((points[1].event, points[1].event.name()), (Event::Again, "nothing again"));
        assert!(points[1].cost_ns.abs() < 1e-6 && points[1].ci95_ns[1] > 400.0);
        let Point { kib, event, cost_ns, walk_ns, turns, .. } = points[0];
        assert_eq!((kib, event, turns), (64, Event::Stranger, 3));
        assert!((cost_ns - 5_000.0).abs() < 1e-6 && (walk_ns - 20_000.0).abs() < 1e-6);
    }

    #[test]
    fn short_walks_count_and_the_very_shortest_does_not() {
        let mut walks: Vec<f64> = (0..30).map(|at| f64::from((at * 7) % 30)).collect();
        assert_eq!(low(&mut walks), 3.0);
        assert_eq!(low(&mut []), 0.0);
    }

    #[test]
    fn a_thread_without_another_cpu_is_never_moved() {
        let mut place = Place { cpu: 0, other: None, near_kib: 64 };
        assert_eq!(experiment(&place).contestants.len(), 3);
        place.other = Some(1);
        assert_eq!(experiment(&place).contestants.len(), 4);
    }

    #[test]
    fn everything_is_measured_on_cpus_that_may_be_used() {
        let Ok(place) = Place::find() else { return };
        assert!(usable_cpus().unwrap().contains(place.cpu));
        assert_ne!(place.other, Some(place.cpu));
        assert!(place.evicting_kib() as u64 > place.near_kib);
    }
}
