//! Many simulations: a grid of workloads, machines and schedulers by a range of seeds. One line of
//! JSON a run, so that a sweep can be taken up where it was left, and spread by any job engine.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};

use evenkeel_keel::Aggregation;
use evenkeel_machine::Machine;
use serde::{Deserialize, Serialize};

use crate::kernel::FaultPlan;
use crate::native::HostError;
use crate::observe::STRICT;
use crate::program::Workload;
use crate::report::{Report, scheduler_name};
use crate::run::{MAX_EVENTS, Simulation};
use crate::scheduler::Scheduler;
use crate::workload::WorkloadError;

/// Why a sweep cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// A workload makes no sense, or does not go with a machine.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// A machine makes no sense.
    #[error(transparent)]
    Machine(#[from] evenkeel_machine::Error),
    /// A scheduler cannot be loaded.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The file of the rows.
    #[error("rows {path}: {source}")]
    Rows {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A line of the file is not a row.
    #[error("rows {path}:{line}: {why}; expected a file that `sim sweep --out` wrote")]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        why: serde_json::Error,
    },
}

/// One part of a sweep that was spread over several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    /// From 1.
    pub index: usize,
    /// How many there are.
    pub of: usize,
}

impl std::str::FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once('/').and_then(|(index, of)| {
            Some(Self { index: index.parse().ok()?, of: of.parse().ok()? })
        });
        parsed
            .filter(|shard| (1..=shard.of).contains(&shard.index))
            .ok_or_else(|| format!("\"{text}\": expected a part of all, like 2/8"))
    }
}

/// What is swept over.
#[derive(Debug, Clone)]
pub struct Grid {
    /// Workloads by name: a shape, or a file.
    pub workloads: Vec<String>,
    /// Machines.
    pub machines: Vec<Machine>,
    /// Schedulers.
    pub schedulers: Vec<Scheduler>,
    /// How all programs aggregate under the order `ias`, if they do (its `pid` does not count).
    pub aggregation: Option<Aggregation>,
    /// CPUs that aggregate together, as `evenkeel ias alloc --groups` takes them; none: those that share a
    /// last-level cache.
    pub together: Option<String>,
    /// Each with all of these seeds.
    pub seeds: Range<u64>,
}

/// A run of a sweep: where it stands in the grid, and its figures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The length of a slice, in microseconds; 0 for a scheduler without.
    pub slice_us: u64,
    /// Its figures.
    #[serde(flatten)]
    pub report: Report,
}

/// What tells a row from all others.
type Key = (String, String, String, u64, u64);

impl Row {
    fn key(&self) -> Key {
        let Report { workload, machine, scheduler, seed, .. } = &self.report;
        (workload.clone(), machine.clone(), scheduler.clone(), self.slice_us, *seed)
    }
}

impl Grid {
    /// All runs, in the grid's order: seeds vary fastest.
    pub fn runs(&self) -> Vec<(String, Machine, Scheduler, u64)> {
        let mut runs = Vec::new();
        for workload in &self.workloads {
            for machine in &self.machines {
                for scheduler in &self.schedulers {
                    let run = |seed| (workload.clone(), machine.clone(), scheduler.clone(), seed);
                    runs.extend(self.seeds.clone().map(run));
                }
            }
        }
        runs
    }
}

/// Simulates what of the grid belongs to the shard and is not in the file yet, on `jobs` threads,
/// and appends the rows. Returns how many it did. `progress` hears how many are done, and of how
/// many.
///
/// # Errors
/// [`SweepError`]; rows that were written stay.
pub fn sweep(
    grid: &Grid,
    shard: Shard,
    jobs: usize,
    out: &Path,
    mut progress: impl FnMut(usize, usize),
) -> Result<usize, SweepError> {
    let rows_error = |source: io::Error| SweepError::Rows { path: out.to_owned(), source };
    let mut file = open(out).map_err(rows_error)?;
    let known: BTreeSet<Key> = read(out)?.iter().map(Row::key).collect();
    let mine = grid.runs().into_iter().enumerate();
    let todo: Vec<_> = mine
        .filter(|(at, _)| at % shard.of == shard.index - 1)
        .map(|(_, run)| run)
        .filter(|(workload, machine, scheduler, seed)| {
            let key = (
                workload.clone(),
                machine.name.clone(),
                scheduler_name(scheduler, grid.aggregation.as_ref(), grid.together.as_deref()),
                scheduler.slice_us(),
                *seed,
            );
            !known.contains(&key)
        })
        .collect();
    let next = AtomicUsize::new(0);
    let mut done = 0;
    progress(0, todo.len());
    std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        for _ in 0..jobs.clamp(1, todo.len().max(1)) {
            let (sender, next, todo) = (sender.clone(), &next, &todo);
            scope.spawn(move || {
                while let Some(run) = todo.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let line = simulate(run, grid).and_then(|row| {
                        let mut line = serde_json::to_vec(&row)
                            .map_err(|why| rows_error(io::Error::from(why)))?;
                        line.push(b'\n');
                        Ok(line)
                    });
                    // Who hears nobody any more has nothing left to do.
                    if sender.send(line).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        for line in receiver {
            file.write_all(&line?).map_err(rows_error)?;
            done += 1;
            progress(done, todo.len());
        }
        Ok(done)
    })
}

fn simulate(run: &(String, Machine, Scheduler, u64), grid: &Grid) -> Result<Row, SweepError> {
    let (name, machine, scheduler, seed) = run;
    let mut workload = Workload::by_name(name, *seed)?;
    workload.aggregate(grid.aggregation);
    workload.together = grid.together.clone();
    workload.check(machine)?;
    let simulation = Simulation {
        machine: machine.clone(),
        scheduler: scheduler.clone(),
        balancer: None,
        workload: Arc::new(workload),
        faults: FaultPlan::default(),
        seed: *seed,
        limits: Some(STRICT),
        records: false,
        max_events: MAX_EVENTS,
    };
    let outcome = simulation.run()?;
    Ok(Row { slice_us: scheduler.slice_us(), report: Report::new(&simulation, &outcome) })
}

/// Opens the file for more rows. A last line without an end was cut off with its run: it goes.
fn open(path: &Path) -> io::Result<File> {
    let mut file = OpenOptions::new().create(true).read(true).append(true).open(path)?;
    let text = fs::read(path)?;
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    file.set_len(whole as u64)?;
    file.seek(io::SeekFrom::End(0))?;
    Ok(file)
}

/// The rows of a file.
///
/// # Errors
/// [`SweepError::Rows`], [`SweepError::Line`].
pub fn read(path: &Path) -> Result<Vec<Row>, SweepError> {
    let text = fs::read_to_string(path)
        .map_err(|source| SweepError::Rows { path: path.to_owned(), source })?;
    let row = |(at, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|why| SweepError::Line {
            path: path.to_owned(),
            line: at + 1,
            why,
        })
    };
    text.lines().enumerate().map(row).collect()
}
