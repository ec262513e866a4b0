//! The grid of a sweep: its runs, and the row of each.

use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use evenkeel_keel::Aggregation;
use evenkeel_machine::Machine;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::engine_error::EngineError;
use crate::host_error::HostError;
use crate::limits::STRICT;
use crate::program::Workload;
use crate::report::{Report, scheduler_name};
use crate::scheduler::Scheduler;
use crate::simulation::{FaultPlan, MAX_EVENTS, Simulation};
use crate::workload::WorkloadError;

/// Why a sweep cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// A workload is malformed, or does not fit a machine.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// A machine is malformed.
    #[error(transparent)]
    Machine(#[from] evenkeel_machine::Error),
    /// A scheduler cannot be loaded.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The file of rows cannot be read or written.
    #[error("rows {path}: {source}")]
    Rows {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A row of the file is of a run with the same name but another input.
    #[error(
        "rows {path}:{line}: {run}: made of another input (the machine's costs, the workload's file, an \
         option, another keel); write to another file"
    )]
    OtherInput {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// The run.
        run: String,
    },
    /// Two rows of the same run and input differ.
    #[error(
        "rows {path}:{line}: {run}: it already has another row of the same input, so the simulator was \
         built anew meanwhile; remove the rows of one of both builds"
    )]
    Differ {
        /// The file of the second row.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// The run.
        run: String,
    },
    /// Another process makes a sweep into the same file.
    #[error("another sweep writes to {path}: wait for its end, or write to another file")]
    Busy {
        /// The file.
        path: PathBuf,
    },
    /// The folder beside the file of rows cannot be used.
    #[error("the sweep's folder {path}: {source}; write to a file in a directory of yours")]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What is wrong.
        source: io::Error,
    },
    /// There is no such part: the sweep has ended, or was planned anew.
    #[error("{path} has no part {part}: parts are only made by the jobs of a sweep that runs")]
    NoPart {
        /// The part.
        part: usize,
        /// The folder of the sweep.
        path: PathBuf,
    },
    /// The engine cannot run the sweep.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A worker process cannot be started, or its answer is malformed.
    #[error("a worker of the sweep: {0}")]
    Worker(io::Error),
    /// A worker process, or a job on another machine, has another input than this process wants.
    #[error(
        "a file that the sweep depends on was changed meanwhile, or is another one on this machine (as \
         `--machine host` is): start it again"
    )]
    Changed,
    /// A worker process cannot simulate a run.
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

/// The runs of a sweep: all combinations.
#[derive(Debug, Clone)]
pub struct Grid {
    /// Workloads by name: a shape, or a file.
    pub workloads: Vec<String>,
    /// Machines.
    pub machines: Vec<Machine>,
    /// Schedulers.
    pub schedulers: Vec<Scheduler>,
    /// How all programs aggregate under the order `ias`, if they do (its `pid` is ignored).
    pub aggregation: Option<Aggregation>,
    /// The groups of CPUs that aggregate together, as in `evenkeel ias alloc --groups`; none: CPUs that
    /// share a last-level cache.
    pub together: Option<String>,
    /// Seeds.
    pub seeds: Range<u64>,
}

/// The version of [`Row`] as a line of JSON.
pub const ROW_FORMAT: u32 = 1;

/// The row of a run: its place in the grid, and its figures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Row {
    /// The version of this line; 0 where a row that was read is older than versions.
    #[serde(default)]
    pub format: u32,
    /// The slice in microseconds; 0: the scheduler has no such option.
    pub slice_us: u64,
    /// A hash of all input but the seed: rows with the same hash and seed are of the same run.
    #[serde(default)]
    pub input: String,
    /// Its figures.
    #[serde(flatten)]
    pub report: Report,
}

/// A run's name: workload, machine, scheduler, slice and seed. What these names stand for may change;
/// that is what a row's `input` is for.
pub(crate) type Name = (String, String, String, u64, u64);

impl Row {
    pub(crate) fn name(&self) -> Name {
        let Report { workload, machine, scheduler, seed, .. } = &self.report;
        (workload.clone(), machine.clone(), scheduler.clone(), self.slice_us, *seed)
    }

    pub(crate) fn is_of(&self, run: &Run) -> bool {
        self.input == run.input && self.report.seed == run.seed
    }
}

/// A run to be simulated.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    workload: String,
    machine: Machine,
    scheduler: Scheduler,
    seed: u64,
    pub(crate) input: String,
}

impl Grid {
    /// All runs in the grid's order: seeds vary fastest.
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

    /// A hash of all that a run depends on but its seed: the machine with its costs, the content of the
    /// workload's file, the scheduler's options and code, and the version of the simulator.
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
        let hash = fnv1a(all.bytes().chain(scheduler.object().iter().copied()));
        Ok(format!("{hash:016x}"))
    }

    /// A hash of all runs of the grid and their inputs.
    pub(crate) fn id(&self, runs: &[Run]) -> String {
        let seeds = format!("{:?}", self.seeds);
        let inputs = runs.iter().flat_map(|run| run.input.bytes());
        format!("{:016x}", fnv1a(seeds.bytes().chain(inputs)))
    }
}

/// The 64-bit hash FNV-1a.
pub(crate) fn fnv1a(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

impl std::fmt::Display for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { workload, machine, scheduler, seed, .. } = self;
        write!(f, "{workload} on {} under {scheduler}, seed {seed}", machine.name)
    }
}

impl Run {
    pub(crate) fn name(&self, grid: &Grid) -> Name {
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
        let slice_us = scheduler.slice_us();
        Ok(Row { format: ROW_FORMAT, slice_us, input: input.clone(), report })
    }
}
