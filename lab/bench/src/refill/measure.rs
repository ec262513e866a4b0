//! The rounds: for each size and order of a working set, the first walk after each of the events by turns,
//! beside a walk after nothing.
//!
//! A figure of a turn is a low quantile of many walks: whatever else happens on a machine (interrupts, other
//! programs, other guests of the host) only ever makes a walk longer, so that the shortest ones say what the
//! caches cost. Turns are repeated where other programs took the CPUs, and each event is compared with
//! "nothing" turn by turn, as in every experiment here ([`crate::interleave`]).

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use evenkeel_machine::CpuSet;
use serde::{Deserialize, Serialize};

use super::others::{Other, Sibling, Stranger, run_on};
use super::walk::{Order, Set};
use crate::interleave::{self, Contestant, Group, Measurement, Outcome, Plan};
use crate::stats::{Verdict, estimate};
use evenkeel_experiment::accounts::{Accounts, Reading};
use evenkeel_experiment::interrupt;
use evenkeel_experiment::{display::Display, host::usable_cpus};

/// Working sets, in KiB.
pub const SIZES_KIB: [usize; 11] = [4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096];
/// Walks of a turn, and turns.
const WALKS: usize = 30;
const ROUNDS: usize = 7;
/// Which of a turn's walks counts: this part of them is shorter.
const QUANTILE: f64 = 0.1;
/// After so many walks a set is as near as it can be.
const WARM: usize = 2;
/// How long a CPU that was idle is kept busy before anything is timed on it.
const AWAKE: Duration = Duration::from_micros(50);
/// The baseline's name.
const NOTHING: &str = "nothing";

/// What happens between two walks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// A thread of the same address space has the CPU, and walks over the same set.
    Sibling,
    /// A process with another address space has it, and walks over more than the core's caches hold.
    #[default]
    Stranger,
    /// The thread comes back from another CPU, whose caches have the set.
    Moved,
}

impl Event {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Sibling, Self::Stranger, Self::Moved];

    /// As reports have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sibling => "sibling",
            Self::Stranger => "stranger",
            Self::Moved => "moved",
        }
    }
}

/// What a first walk took more than any other, for one set and one event.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
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

    /// What evicts everything: twice what the caches hold.
    fn evicting_kib(&self) -> usize {
        2 * self.near_kib as usize
    }
}

/// Measures all points; with `is_quick` few sizes and turns.
///
/// # Errors
/// Somebody cannot be started or pinned, or asked for the end.
pub fn measure(place: &Place, is_quick: bool) -> Result<Vec<Point>> {
    let before = usable_cpus()?;
    let measured = rounds(place, &before, is_quick);
    // Whatever became of it: this thread was pinned.
    evenkeel_journal::affinity::set(nix::unistd::gettid().as_raw(), &before)?;
    let outcomes = measured?;
    interrupt::check()?;
    outcomes.iter().filter_map(failure).next().map_or(Ok(()), Err)?;
    Ok(points(&outcomes))
}

fn failure(outcome: &Outcome) -> Option<anyhow::Error> {
    let why = outcome.failed.as_ref()?;
    Some(anyhow::anyhow!("{}, {}: {why}", outcome.case, outcome.contestant))
}

fn rounds(place: &Place, cpus: &CpuSet, is_quick: bool) -> Result<Vec<Outcome>> {
    run_on(place.cpu)?;
    let stranger = Stranger::start(place.cpu, place.evicting_kib())?;
    let stranger_pid = stranger.pid();
    let stranger: Rc<RefCell<dyn Other>> = Rc::new(RefCell::new(stranger));
    let evicting = Rc::new(RefCell::new(Set::new(place.evicting_kib(), Order::InSequence)));
    let accounts = Rc::new(RefCell::new(Accounts::open()));
    let sizes = SIZES_KIB.iter().filter(|kib| !is_quick || [16, 256].contains(*kib));
    let mut groups = Vec::new();
    for order in Order::ALL {
        for kib in sizes.clone() {
            let set = Arc::new(Mutex::new(Set::new(*kib, order)));
            let sibling = Rc::new(RefCell::new(Sibling::start(place.cpu, &set)?));
            let contestant = |name: &str, before: Before| {
                let (set, accounts) = (set.clone(), accounts.clone());
                let run = move || {
                    let read = || accounts.borrow_mut().read(cpus, &[stranger_pid]);
                    turn(&set, &before, read)
                };
                Contestant { name: name.to_owned(), run: Box::new(run) }
            };
            let mut contestants = vec![
                contestant(NOTHING, Before::Nothing),
                contestant(Event::Sibling.name(), Before::Other(sibling)),
                contestant(Event::Stranger.name(), Before::Other(stranger.clone())),
            ];
            if let Some(other) = place.other {
                let moved = Before::Moved { home: place.cpu, other, evicting: evicting.clone() };
                contestants.push(contestant(Event::Moved.name(), moved));
            }
            groups.push(Group {
                case: kib.to_string(),
                program: order.name().to_owned(),
                reference: None,
                contestants,
            });
        }
    }
    let rounds = if is_quick { 2 } else { ROUNDS };
    let plan = Plan { initial_runs: rounds, max_runs: rounds, ..Plan::default() };
    let start = Instant::now();
    let display = Display::new();
    let outcomes = interleave::run(&mut groups, &plan, &|| start.elapsed(), &mut |progress| {
        display.show(&progress);
    });
    display.finish();
    outcomes
}

/// What is done before a walk is timed.
enum Before {
    Nothing,
    Other(Rc<RefCell<dyn Other>>),
    Moved { home: u32, other: u32, evicting: Rc<RefCell<Set>> },
}

impl Before {
    /// From a set that is warm here to the moment at which its walk is timed.
    fn happen(&self, set: &Mutex<Set>) -> Result<()> {
        let warm = || {
            let mut set = set.lock().unwrap_or_else(PoisonError::into_inner);
            (0..WARM).for_each(|_| set.walk());
        };
        match self {
            Self::Nothing => warm(),
            Self::Other(other) => {
                warm();
                other.borrow_mut().turn()?;
            }
            Self::Moved { home, other, evicting } => {
                // At home it is forgotten, over there it is near; then back.
                run_on(*home)?;
                evicting.borrow_mut().walk();
                run_on(*other)?;
                warm();
                run_on(*home)?;
                let start = Instant::now();
                while start.elapsed() < AWAKE {}
            }
        }
        Ok(())
    }
}

/// Many walks after the same event.
fn turn(
    set: &Mutex<Set>,
    before: &Before,
    read: impl Fn() -> Result<Reading>,
) -> Result<Measurement> {
    interrupt::check()?;
    let start = read()?;
    let mut walks_s = Vec::with_capacity(WALKS);
    for _ in 0..WALKS {
        before.happen(set)?;
        let time = set.lock().unwrap_or_else(PoisonError::into_inner).time();
        walks_s.push(time.as_secs_f64());
    }
    let window = read()?.since(&start);
    Ok(Measurement {
        seconds: low(&mut walks_s),
        foreign_pct: window.foreign_pct,
        ..Measurement::default()
    })
}

/// The walk that counts.
fn low(walks: &mut [f64]) -> f64 {
    walks.sort_unstable_by(f64::total_cmp);
    let at = (walks.len() as f64 * QUANTILE) as usize;
    walks.get(at).copied().unwrap_or_default()
}

/// Costs, from the rows of each group.
fn points(outcomes: &[Outcome]) -> Vec<Point> {
    let mut points = Vec::new();
    for row in outcomes {
        let Some(event) = Event::ALL.into_iter().find(|event| event.name() == row.contestant)
        else {
            continue;
        };
        let Some(order) = Order::ALL.into_iter().find(|order| order.name() == row.program) else {
            continue;
        };
        let is_baseline = |other: &&Outcome| {
            other.contestant == NOTHING
                && (&other.case, &other.program) == (&row.case, &row.program)
        };
        let Some(nothing) = outcomes.iter().find(is_baseline) else { continue };
        let pairs = row.rounds.iter().zip(&nothing.rounds);
        let ns = |run: &Measurement| 1e9 * run.seconds;
        let costs: Vec<f64> = pairs
            .filter_map(|(run, nothing)| Some(ns(run.as_ref()?) - ns(nothing.as_ref()?)))
            .collect();
        let walks: Vec<f64> = nothing.runs().map(ns).collect();
        let foreign: Vec<f64> = row.runs().map(|run| run.foreign_pct).collect();
        let (Some(cost), Ok(kib)) = (estimate(&costs), row.case.parse()) else { continue };
        points.push(Point {
            order,
            kib,
            event,
            cost_ns: cost.median,
            ci95_ns: cost.ci95(),
            walk_ns: crate::stats::median(&walks).unwrap_or_default(),
            verdict: row.judged.map(|judged| judged.verdict),
            turns: costs.len(),
            foreign_pct: crate::stats::median(&foreign).unwrap_or_default(),
        });
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(contestant: &str, times_us: &[f64]) -> Outcome {
        let run = |us: &f64| Some(Measurement { seconds: us / 1e6, ..Measurement::default() });
        Outcome {
            case: "64".into(),
            program: Order::Scattered.name().into(),
            contestant: contestant.into(),
            rounds: times_us.iter().map(run).collect(),
            judged: None,
            repeated: 0,
            failed: None,
        }
    }

    #[test]
    fn a_cost_is_what_a_walk_takes_more_than_after_nothing_turn_by_turn() {
        // The machine becomes slower meanwhile, which is none of it.
        let outcomes =
            [outcome(NOTHING, &[10.0, 20.0, 30.0]), outcome("stranger", &[15.0, 25.0, 36.0])];
        let points = points(&outcomes);
        assert_eq!(points.len(), 1, "the baseline is none itself");
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
    fn who_failed_is_named() {
        let mut failed = outcome("stranger", &[]);
        assert!(failure(&failed).is_none());
        failed.failed = Some("gone".into());
        assert_eq!(failure(&failed).unwrap().to_string(), "64, stranger: gone");
    }

    #[test]
    fn everything_is_measured_on_cpus_that_may_be_used() {
        let Ok(place) = Place::find() else { return };
        assert!(usable_cpus().unwrap().contains(place.cpu));
        assert_ne!(place.other, Some(place.cpu));
        assert!(place.evicting_kib() as u64 > place.near_kib);
    }
}
