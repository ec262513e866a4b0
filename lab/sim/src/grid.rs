//! The grid of a sweep: its runs, and the row of each.

use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use evenkeel_keel::Aggregation;
use evenkeel_machine::Machine;
use serde::{Deserialize, Serialize};

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

/// A run that is to be made.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    workload: String,
    machine: Machine,
    scheduler: Scheduler,
    seed: u64,
    pub(crate) input: String,
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
        Ok(Row { slice_us: scheduler.slice_us(), input: input.clone(), report })
    }
}
