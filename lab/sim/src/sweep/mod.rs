//! Simulates a grid of workloads, machines, schedulers and seeds: here, or in parts that a job engine
//! runs. Each run is one line of JSON. The result file is the same, byte by byte, whatever the engine
//! and the order in which runs end, and a run that it has is never made again.
//!
//! | file | the one thing in it |
//! |---|---|
//! | `folder` | the folder beside the result file: lock, plan, rows that are not in the result yet |
//! | `rows` | files of rows: reading, and merging into the result |
//! | `slurm`, `dask` | the engines: they queue the parts, and try those again that fail |

mod dask;
mod folder;
mod rows;
mod slurm;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use crate::engine_error::EngineError;
use crate::grid::{Grid, Run, SweepError};
use crate::workers::{Ended, Worker, Workers};
use folder::{Folder, Plan, RowsFile};
use rows::Known;

pub use rows::read as read_rows;

/// One part of a sweep that its user spreads over several commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    /// From 1.
    pub index: usize,
    /// The number of parts.
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

/// Where a sweep is made.
#[derive(Clone, Copy)]
pub enum JobEngine<'a> {
    /// On this machine.
    Local(Workers<'a>),
    /// In a job array of Slurm.
    Slurm(&'a Spread),
    /// In tasks of Dask, by a Python that has its package `distributed`.
    Dask(&'a Spread, &'a Path),
}

impl JobEngine<'_> {
    /// Its name, as the command line has it.
    fn name(&self) -> &'static str {
        match self {
            Self::Local(_) => "local",
            Self::Slurm(_) => slurm::NAME,
            Self::Dask(..) => dask::NAME,
        }
    }
}

/// How an engine runs the parts of a sweep.
#[derive(Debug, Clone)]
pub struct Spread {
    /// Program and arguments that call [`sweep_part`] with the same grid and result file; the number of
    /// the part is added. Runs in this process's working directory, on whatever machine the engine
    /// chooses: both see the same files there.
    pub command: Vec<OsString>,
    /// Runs in a part; without it [`PART_RUNS`], or as many more as leave [`MAX_PARTS`] parts.
    pub part_runs: Option<usize>,
    /// So many parts at once; without it as many as the engine likes.
    pub at_once: Option<usize>,
    /// How often the engine tries a part again that failed.
    pub retries: u32,
}

/// Runs in a part, so that what an engine needs to start a part is little for each run.
const PART_RUNS: usize = 25;
/// The most parts by default: Slurm's own default (`MaxArraySize`) allows one more.
const MAX_PARTS: usize = 1000;

impl Spread {
    fn part_runs(&self, runs: usize) -> usize {
        self.part_runs.unwrap_or_else(|| PART_RUNS.max(runs.div_ceil(MAX_PARTS))).max(1)
    }
}

/// What is told of a sweep while it is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// So many of all its runs are done. An engine's are counted part by part.
    Done(usize, usize),
    /// What the engine does, for the user.
    Said(String),
}

/// A run that was lost: it has no row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// The run.
    pub run: String,
    /// What happened.
    pub why: String,
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.run, self.why)
    }
}

/// The result of a sweep.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Swept {
    /// The number of runs that were simulated.
    pub done: usize,
    /// Lost runs. The next sweep into the same file tries them again.
    pub lost: Vec<Lost>,
    /// Where an engine's logs are, if runs were lost. The next sweep removes them.
    pub logs: Option<PathBuf>,
}

/// Simulates on this machine all runs of the shard that are not in the file yet. `progress` gets how
/// many are done, and of how many.
///
/// # Errors
/// [`SweepError`]; the rows of what was simulated are kept.
pub fn sweep(
    grid: &Grid,
    shard: Shard,
    workers: Workers<'_>,
    out: &Path,
    mut progress: impl FnMut(usize, usize),
) -> Result<Swept, SweepError> {
    sweep_on(JobEngine::Local(workers), grid, shard, out, &mut |told| {
        if let Told::Done(done, of) = told {
            progress(done, of);
        }
    })
}

/// Simulates on this engine all runs of the shard that are not in the file yet, and tells of it. The
/// file then has all its rows in the order of their names: workload, machine, scheduler, slice, seed.
///
/// # Errors
/// [`SweepError`]; the rows of what was simulated are kept.
pub fn sweep_on(
    engine: JobEngine<'_>,
    grid: &Grid,
    shard: Shard,
    out: &Path,
    tell: &mut dyn FnMut(Told),
) -> Result<Swept, SweepError> {
    let out = folder::resolved(out)?;
    let folder = Folder::lock(&out)?;
    let runs = grid.runs()?;
    settle_earlier(engine, grid, &runs, &out, &folder, tell)?;
    let known = folder.collect(&out)?;
    let mine = runs.into_iter().enumerate().filter(|(at, _)| at % shard.of == shard.index - 1);
    let todo = missing(grid, mine, &known)?;
    drop(known);
    tell(Told::Done(0, todo.len()));
    let swept = match engine {
        JobEngine::Local(workers) => {
            let mut rows = RowsFile::here(&folder);
            let swept = simulate(grid, &todo, workers, &mut rows, &mut |done| {
                tell(Told::Done(done, todo.len()));
            });
            // Also after an error, what was simulated goes into the result.
            folder.collect(&out)?;
            swept?
        }
        JobEngine::Slurm(spread) | JobEngine::Dask(spread, _) => {
            let plan = Plan::new(engine.name(), grid, &todo, spread.part_runs(todo.len()))?;
            folder.write_plan(&plan)?;
            let ended = match engine {
                _ if todo.is_empty() => Ok(()),
                JobEngine::Dask(_, python) => dask::run(spread, python, &folder, &plan, tell),
                _ => slurm::run(spread, &out, &folder, &plan, tell),
            };
            let known = folder.collect(&out)?;
            ended?;
            after_engine(engine.name(), spread, grid, &todo, &known, &folder, &plan)
        }
    };
    if swept.logs.is_none() {
        folder.remove()?;
    }
    Ok(swept)
}

/// Waits for jobs that an earlier command has left in Slurm, if they make rows of the same grid.
fn settle_earlier(
    engine: JobEngine<'_>,
    grid: &Grid,
    runs: &[Run],
    out: &Path,
    folder: &Folder,
    tell: &mut dyn FnMut(Told),
) -> Result<(), SweepError> {
    let Some(plan) = folder.plan()?.filter(|plan| plan.engine == slurm::NAME) else {
        return Ok(());
    };
    // Where Slurm is gone, its jobs are, too.
    let Some(job) = slurm::jobs_of(out).unwrap_or_default().pop() else { return Ok(()) };
    if !matches!(engine, JobEngine::Slurm(_)) || plan.grid != grid.id(runs) {
        return Err(EngineError::StillRuns { job, path: out.to_owned() }.into());
    }
    tell(Told::Said(format!("Slurm's job {job} already makes rows for this file: waiting for it")));
    slurm::wait(out, folder, &plan, tell);
    Ok(())
}

/// The runs that have no row yet, with their places in the grid.
fn missing(
    grid: &Grid,
    runs: impl Iterator<Item = (usize, Run)>,
    known: &Known,
) -> Result<Vec<(usize, Run)>, SweepError> {
    let mut todo = Vec::new();
    for (at, run) in runs {
        if !known.has(grid, &run)? {
            todo.push((at, run));
        }
    }
    Ok(todo)
}

/// What became of the runs that an engine was given.
fn after_engine(
    engine: &str,
    spread: &Spread,
    grid: &Grid,
    todo: &[(usize, Run)],
    known: &Known,
    folder: &Folder,
    plan: &Plan,
) -> Swept {
    let is_lost = |run: &Run| !known.has(grid, run).unwrap_or(false);
    let lost: Vec<&(usize, Run)> = todo.iter().filter(|(_, run)| is_lost(run)).collect();
    let whys: BTreeMap<usize, String> = folder.lost(plan);
    let why = |at: &usize| match whys.get(at) {
        Some(why) => format!("{why}; {engine} gave up after attempt {}", spread.retries + 1),
        None => format!(
            "{engine} has ended without it (cancelled, out of time or memory, or on a machine that does \
             not see the same files?)"
        ),
    };
    Swept {
        done: todo.len() - lost.len(),
        logs: (!lost.is_empty()).then(|| folder.path().to_owned()),
        lost: lost.iter().map(|(at, run)| Lost { run: run.to_string(), why: why(at) }).collect(),
    }
}

/// Simulates one part of a sweep, in a job of an engine: what earlier attempts at this part have not
/// done. Numbers of parts begin at 0.
///
/// # Errors
/// [`SweepError`]; rows that were written stay.
pub fn sweep_part(
    grid: &Grid,
    workers: Workers<'_>,
    out: &Path,
    part: usize,
) -> Result<Swept, SweepError> {
    let out = folder::resolved(out)?;
    let folder = Folder::join(&out)?;
    let no_part = || SweepError::NoPart { part, path: folder.path().to_owned() };
    let plan = folder.plan()?.ok_or_else(no_part)?;
    let runs = grid.runs()?;
    if plan.grid != grid.id(&runs) {
        return Err(SweepError::Changed);
    }
    let places = plan.parts.get(part).ok_or_else(no_part)?;
    let known = folder.rows_of(&plan, part)?;
    let mine = places.iter().filter_map(|at| Some((*at, runs.get(*at)?.clone())));
    let todo = missing(grid, mine, &known)?;
    let mut rows = RowsFile::of_part(&folder, &plan, part);
    let swept = simulate(grid, &todo, workers, &mut rows, &mut |_| {})?;
    folder.end_part(&plan, part, &todo, &swept.lost)?;
    Ok(swept)
}

/// Simulates these runs, and writes a row of each as soon as it is done. `progress` gets how many have
/// ended.
fn simulate(
    grid: &Grid,
    todo: &[(usize, Run)],
    workers: Workers<'_>,
    rows: &mut RowsFile<'_>,
    progress: &mut dyn FnMut(usize),
) -> Result<Swept, SweepError> {
    let next = AtomicUsize::new(0);
    let mut swept = Swept::default();
    std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        for _ in 0..workers.count().clamp(1, todo.len().max(1)) {
            let (sender, next) = (sender.clone(), &next);
            scope.spawn(move || {
                let mut worker = Worker::new(workers);
                let take = || todo.get(next.fetch_add(1, Ordering::Relaxed));
                let mut this = take();
                while let Some(run) = this {
                    let then = take();
                    let ended = worker.simulate(grid, run, then.map(|(at, _)| *at));
                    // The receiver is gone after an error.
                    if sender.send(ended.map(|ended| (&run.1, ended))).is_err() {
                        break;
                    }
                    this = then;
                }
            });
        }
        drop(sender);
        for ended in receiver {
            match ended? {
                (_, Ended::Row(row)) => {
                    rows.write(&row)?;
                    swept.done += 1;
                }
                (run, Ended::Lost(status)) => {
                    let why = format!("its process ended: {status}");
                    swept.lost.push(Lost { run: run.to_string(), why });
                }
            }
            progress(swept.done + swept.lost.len());
        }
        Ok(swept)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_large_enough_and_not_too_many() {
        let spread =
            |part_runs| Spread { command: Vec::new(), part_runs, at_once: None, retries: 0 };
        for (runs, part_runs) in [(0, 25), (1_000, 25), (25_000, 25), (25_001, 26)] {
            assert_eq!(spread(None).part_runs(runs), part_runs, "{runs}");
        }
        assert_eq!(spread(Some(3)).part_runs(1_000_000), 3);
        assert_eq!(spread(Some(0)).part_runs(1), 1);
    }
}
