//! Many simulations: a grid of workloads, machines and schedulers by a range of seeds. One line of
//! JSON a run, so that a sweep can be taken up where it was left, and spread by any job engine.

use std::collections::BTreeMap;
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
use crate::workers::{Ended, Worker, Workers};
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
    /// A row of the file is of something else that has the same names.
    #[error(
        "rows {path}:{line}: {run}: made of another input (the machine's costs, the workload's file, a \
         knob, another keel); write to another file"
    )]
    OtherInput {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// The run.
        run: String,
    },
    /// A worker's process cannot be started, or does not answer as one.
    #[error("a worker of the sweep: {0}")]
    Worker(io::Error),
    /// What it has simulated is another run.
    #[error("a file that the sweep depends on was changed meanwhile: start it again")]
    Changed,
    /// It cannot simulate a run.
    #[error("{0}")]
    Refused(String),
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
    /// A number of all that it depends on: two rows with the same one are of the same run.
    #[serde(default)]
    pub input: String,
    /// Its figures.
    #[serde(flatten)]
    pub report: Report,
}

/// What a run is called: workload, machine, scheduler, slice and seed. What these names stand for may
/// change, and is in a row's `input`.
type Name = (String, String, String, u64, u64);

impl Row {
    fn name(&self) -> Name {
        let Report { workload, machine, scheduler, seed, .. } = &self.report;
        (workload.clone(), machine.clone(), scheduler.clone(), self.slice_us, *seed)
    }

    pub(crate) fn is_of(&self, run: &Run) -> bool {
        self.input == run.input && self.report.seed == run.seed
    }
}

/// A run that is to be made.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    workload: String,
    machine: Machine,
    scheduler: Scheduler,
    seed: u64,
    input: String,
}

impl Grid {
    /// All runs, in the grid's order: seeds vary fastest.
    pub(crate) fn runs(&self) -> Result<Vec<Run>, SweepError> {
        let mut runs = Vec::new();
        for workload in &self.workloads {
            for machine in &self.machines {
                for scheduler in &self.schedulers {
                    let input = self.input(workload, machine, scheduler)?;
                    let run = |seed| Run {
                        workload: workload.clone(),
                        machine: machine.clone(),
                        scheduler: scheduler.clone(),
                        seed,
                        input: input.clone(),
                    };
                    runs.extend(self.seeds.clone().map(run));
                }
            }
        }
        Ok(runs)
    }

    /// A number of all that a run depends on, but its seed: the machine with its costs, what is in the
    /// workload's file, the scheduler's options and its code, and which simulator it was.
    fn input(
        &self,
        workload: &str,
        machine: &Machine,
        scheduler: &Scheduler,
    ) -> Result<String, SweepError> {
        let file = Workload::text_of(workload)?;
        let Self { aggregation, together, .. } = self;
        let options = scheduler.options();
        let all = format!(
            "{} {workload} {file:?} {machine:?} {scheduler} {options:?} {aggregation:?} {together:?}",
            env!("CARGO_PKG_VERSION")
        );
        // FNV-1a.
        let hash = all.bytes().chain(scheduler.object().iter().copied());
        let hash = hash.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        Ok(format!("{hash:016x}"))
    }
}

/// A run that came to no end, because its process did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// Which.
    pub run: String,
    /// How the process ended.
    pub why: String,
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: its process ended: {}", self.run, self.why)
    }
}

/// What came of a sweep.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Swept {
    /// Runs that were made now.
    pub done: usize,
    /// Those that were not, and will be tried again by the next sweep into the same file.
    pub lost: Vec<Lost>,
}

/// Simulates what of the grid belongs to the shard and is not in the file yet, and appends the rows.
/// `progress` hears how many are done, and of how many.
///
/// # Errors
/// [`SweepError`]; rows that were written stay.
pub fn sweep(
    grid: &Grid,
    shard: Shard,
    workers: Workers<'_>,
    out: &Path,
    mut progress: impl FnMut(usize, usize),
) -> Result<Swept, SweepError> {
    let rows_error = |source: io::Error| SweepError::Rows { path: out.to_owned(), source };
    let mut file = open(out).map_err(rows_error)?;
    let mut known: BTreeMap<Name, (usize, String)> = BTreeMap::new();
    for (at, row) in read(out)?.into_iter().enumerate() {
        known.insert(row.name(), (at + 1, row.input));
    }
    let mut todo = Vec::new();
    for (at, run) in grid.runs()?.into_iter().enumerate() {
        if at % shard.of != shard.index - 1 {
            continue;
        }
        match known.get(&run.name(grid)) {
            None => todo.push((at, run)),
            Some((_, input)) if *input == run.input => {}
            Some((line, _)) => {
                let (path, line, run) = (out.to_owned(), *line, run.to_string());
                return Err(SweepError::OtherInput { path, line, run });
            }
        }
    }
    let next = AtomicUsize::new(0);
    let mut swept = Swept::default();
    progress(0, todo.len());
    std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        for _ in 0..workers.count().clamp(1, todo.len().max(1)) {
            let (sender, next, todo) = (sender.clone(), &next, &todo);
            scope.spawn(move || {
                let mut worker = Worker::new(workers);
                let take = || todo.get(next.fetch_add(1, Ordering::Relaxed));
                let mut this = take();
                while let Some(run) = this {
                    let then = take();
                    let ended = worker.simulate(grid, run, then.map(|(at, _)| *at));
                    // Who hears nobody any more has nothing left to do.
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
                    let mut line =
                        serde_json::to_vec(&row).map_err(|why| rows_error(io::Error::from(why)))?;
                    line.push(b'\n');
                    file.write_all(&line).map_err(rows_error)?;
                    swept.done += 1;
                }
                (run, Ended::Lost(why)) => swept.lost.push(Lost { run: run.to_string(), why }),
            }
            progress(swept.done + swept.lost.len(), todo.len());
        }
        Ok(swept)
    })
}

impl std::fmt::Display for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { workload, machine, scheduler, seed, .. } = self;
        write!(f, "{workload} on {} under {scheduler}, seed {seed}", machine.name)
    }
}

impl Run {
    fn name(&self, grid: &Grid) -> Name {
        let aggregation = grid.aggregation.as_ref();
        (
            self.workload.clone(),
            self.machine.name.clone(),
            scheduler_name(&self.scheduler, aggregation, grid.together.as_deref()),
            self.scheduler.slice_us(),
            self.seed,
        )
    }

    pub(crate) fn simulate(&self, grid: &Grid) -> Result<Row, SweepError> {
        let Self { workload, machine, scheduler, seed, input } = self;
        let mut workload = Workload::by_name(workload, *seed)?;
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
        let report = Report::new(&simulation, &outcome);
        Ok(Row { slice_us: scheduler.slice_us(), input: input.clone(), report })
    }
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
