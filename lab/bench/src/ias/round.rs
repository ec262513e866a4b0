//! One round, in the guest: everything that is measured under a contestant.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use evenkeel_control::{KEEL_SOCKET, Request, ask};
use evenkeel_keel::{Aggregation, Statistics, allocation_request};
use evenkeel_witness::Tracer;

use super::crowd::Crowd;
use super::turns::Turns;
use super::{bonus, metric, sched};
use evenkeel_experiment::Figures;
use evenkeel_experiment::command::Running;
use evenkeel_experiment::guest::callback::Stopwatch;
use evenkeel_experiment::guest::storm::Storm;
use evenkeel_experiment::guest::{Inside, number_after};

/// A program of the system, as one that has the machine to itself.
pub const SYSBENCH: &str = "/usr/bin/sysbench";

/// Ten programs of a hundred threads: section 4.1.
const PROGRAMS: usize = 10;
const THREADS: usize = 100;
const SPACES: usize = 500;
/// The paper's two groups on four CPUs.
const ROLES: [u16; 4] = [0, 1, 2, 3];
/// How many threads each parent of the storm starts.
const CHILDREN: usize = 100;

/// What a scheduler gets to order so many new threads, before anything is measured.
pub const SETTLE: Duration = Duration::from_millis(300);
/// How long the threads' turns are watched: a turn of 250 threads takes a second or a little more, and
/// waits that are longer than a turn are to end in that time.
pub const WATCH: Duration = Duration::from_millis(4500);
/// Between two looks at what has happened meanwhile.
const LOOK: Duration = Duration::from_millis(250);
const BUFFER_MIB: u32 = 16;

/// Measures everything under the contestant that is at work.
///
/// # Errors
/// A program or a thread cannot be started, or fails; the keel refuses what it is told.
pub fn measure(inside: &Inside) -> Result<Figures> {
    let bonus = bonus(&inside.contestant.name);
    if bonus.is_some() {
        ask(Path::new(KEEL_SOCKET), &allocation_request(&ROLES))?;
    }
    let mut figures = Figures::new();
    aggregate(&[std::process::id()], bonus)?;
    let storm = Storm::Join.rage(2 * inside.cpus, CHILDREN)?;
    figures.insert(metric::JOIN_STORM.to_owned(), storm.as_secs_f64());
    // Our own threads are not to be preferred to those that are measured.
    aggregate(&[std::process::id()], bonus.map(|_| 0))?;
    if Path::new(SYSBENCH).exists() {
        alone(bonus, &mut figures)?;
    }
    sched::hurry()?;
    let has_costs = inside.measures_callbacks();
    crowd(bonus, has_costs, &mut figures)?;
    // Without a bonus dispatch does not search.
    if has_costs && bonus != Some(0) {
        spaces(bonus, &mut figures)?;
    }
    Ok(figures)
}

/// Lets these processes aggregate with a bonus of so many times what ran last.
fn aggregate(pids: &[u32], bonus: Option<u64>) -> Result<()> {
    let Some(bonus_value) = bonus else { return Ok(()) };
    for pid in pids {
        let how = Aggregation { pid: *pid, agg: 1, bonus_type: 1, bonus_value, limit: 0 };
        ask(Path::new(KEEL_SOCKET), &how.request())?;
    }
    Ok(())
}

/// One program that has the machine to itself.
fn alone(bonus: Option<u64>, figures: &mut Figures) -> Result<()> {
    let mut command = Command::new(SYSBENCH);
    command.args(["memory", "--threads=16", "--memory-block-size=1M", "--memory-total-size=256M"]);
    let command = command.args(["--memory-scope=global", "--time=0", "run"]);
    let program = Running::start(command)?;
    aggregate(&[program.pid()], bonus)?;
    let ended = program.wait()?;
    let took = number_after(&ended.output, "total time:");
    let took =
        took.with_context(|| format!("{SYSBENCH} does not say its time: {}", ended.output))?;
    figures.insert(metric::ALONE.to_owned(), took);
    Ok(())
}

fn crowd(bonus: Option<u64>, has_costs: bool, figures: &mut Figures) -> Result<()> {
    let mut crowd = Crowd::gather(PROGRAMS, THREADS)?;
    aggregate(&crowd.pids(), bonus)?;
    let roles = (0..).zip(ROLES).collect();
    let turns = Rc::new(RefCell::new(Turns::new(crowd.programs()?, &roles)));
    let (told, counts) = (Rc::clone(&turns), Rc::new(Cell::new(false)));
    let begun = Rc::clone(&counts);
    // Whatever takes long is done while the machine is still idle.
    let ear = Tracer::open(BUFFER_MIB, move |event| {
        if begun.get() {
            told.borrow_mut().see(event);
        }
    })?;
    let calls = has_costs.then(Calls::begin).transpose()?;
    crowd.go();
    std::thread::sleep(SETTLE);
    ear.look()?;
    counts.set(true);
    let before = bonus.map(|_| counters()).transpose()?;
    let start = Instant::now();
    while start.elapsed() < WATCH {
        std::thread::sleep(LOOK);
        ear.look()?;
    }
    let after = bonus.map(|_| counters()).transpose()?;
    ear.end()?;
    if let Some(costs) = calls.map(|calls| calls.end()).transpose()? {
        figures.extend(costs.dispatch.map(|each| (metric::DISPATCH.to_owned(), each)));
        figures.extend(costs.together.map(|all| (metric::CALLBACKS.to_owned(), all)));
    }
    if let Some((before, after)) = before.zip(after) {
        let count = |name: &str| {
            let of = |counters: &BTreeMap<String, u64>| counters.get(name).copied();
            of(&after).unwrap_or_default() as f64 - of(&before).unwrap_or_default() as f64
        };
        figures.insert(metric::MISSED.to_owned(), count("window") / count("enqueue").max(1.0));
    }
    let turns = Rc::into_inner(turns).context("the tracer still has the turns")?;
    let seen = turns.into_inner().end();
    let mut add = |name: &str, value: Option<f64>| {
        figures.extend(value.map(|value| (name.to_owned(), value)));
    };
    add(metric::SPACES, Some(seen.switches as f64 / seen.time_s));
    add(metric::RUN, Some(seen.time_s * seen.cpus as f64 / seen.switches.max(1) as f64));
    add(metric::TOGETHER, seen.co_scheduled);
    add(metric::WAIT_P50, seen.wait_s(50));
    add(metric::WAIT_P99, seen.wait_s(99));
    add(metric::EVEN, seen.even);
    Ok(())
}

/// Many address spaces, and in each hardly a sibling to prefer: the longest searches.
fn spaces(bonus: Option<u64>, figures: &mut Figures) -> Result<()> {
    let mut crowd = Crowd::gather(SPACES, 2)?;
    aggregate(&crowd.pids(), bonus)?;
    let calls = Calls::begin()?;
    crowd.go();
    std::thread::sleep(SETTLE);
    let costs = calls.end()?;
    figures.extend(costs.together.map(|all| (metric::CALLBACKS_500.to_owned(), all)));
    let Some(many) = costs.dispatch else { return Ok(()) };
    figures.insert(metric::DISPATCH_500.to_owned(), many);
    if let Some(few) = figures.get(metric::DISPATCH) {
        figures.insert(metric::DISPATCH_GROWTH.to_owned(), many / few);
    }
    Ok(())
}

/// The callbacks of a thread's turn: the thread before it goes back to its queue, the CPU picks, the
/// thread runs.
const CALLBACKS: [&str; 3] = [DISPATCH, "enqueue", "running"];
const DISPATCH: &str = "dispatch";

/// Calls that are counted as long as it lives.
struct Calls {
    stopwatches: Vec<(&'static str, Stopwatch)>,
    own_ns: f64,
}

/// What calls take, in instructions.
struct Costs {
    /// One of dispatch.
    dispatch: Option<f64>,
    /// One of each callback, together.
    together: Option<f64>,
}

impl Calls {
    fn begin() -> Result<Self> {
        let own_ns = Stopwatch::own_ns()?;
        let mut stopwatches = Vec::new();
        for callback in CALLBACKS {
            stopwatches.extend(Stopwatch::around(callback)?.map(|stopwatch| (callback, stopwatch)));
        }
        Ok(Self { stopwatches, own_ns })
    }

    fn end(self) -> Result<Costs> {
        let mut each = BTreeMap::new();
        for (callback, stopwatch) in &self.stopwatches {
            let each_ns = stopwatch.cost()?.each_ns();
            each.extend(each_ns.map(|each_ns| (*callback, each_ns - self.own_ns)));
        }
        Ok(Costs {
            dispatch: each.get(DISPATCH).copied(),
            together: (each.len() == CALLBACKS.len()).then(|| each.values().sum()),
        })
    }
}

fn counters() -> Result<BTreeMap<String, u64>> {
    let answer = ask(Path::new(KEEL_SOCKET), &Request::new("stats"))?;
    let statistics: Statistics =
        serde_json::from_value(answer).context("the keel's statistics are of another version")?;
    Ok(statistics.counters)
}
