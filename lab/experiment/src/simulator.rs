//! Experiments in the simulator: a round is a seed, and all simulations are made at once, on all
//! CPUs of this machine.

use std::cell::Cell;
use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use evenkeel_sim::{Grid, Report, Scheduler, Shard, Workers, read_rows, sweep};
use evenkeel_trial::Sample;

use crate::{Runner, Turn};

/// Where simulations are made.
pub struct Simulator {
    jobs: usize,
    dir: tempfile::TempDir,
    sweeps: Cell<u32>,
}

impl Simulator {
    /// On all CPUs of this machine.
    ///
    /// # Errors
    /// There is no room for temporary files.
    pub fn new() -> Result<Self> {
        Ok(Self {
            jobs: std::thread::available_parallelism().map_or(1, usize::from),
            dir: tempfile::tempdir().context("cannot make a directory for the rows of sweeps")?,
            sweeps: Cell::new(0),
        })
    }

    /// Simulates all of a grid. Figures go by the scheduler's name; how it aggregates is no part of
    /// that.
    ///
    /// # Errors
    /// Something cannot be simulated, or a rule was broken in a simulation.
    pub fn run(&self, grid: &Grid) -> Result<Runs> {
        crate::interrupt::check()?;
        self.sweeps.set(self.sweeps.get() + 1);
        let rows = self.dir.path().join(format!("{}.jsonl", self.sweeps.get()));
        sweep(grid, Shard { index: 1, of: 1 }, Workers::Threads(self.jobs), &rows, |_, _| {})?;
        let mut runs = Runs::default();
        for row in read_rows(&rows)? {
            let report = row.report;
            if let Some(why) = report.end.iter().chain(&report.violations).next() {
                let Report { workload, machine, scheduler, seed, .. } = &report;
                bail!("{workload} on {machine} under {scheduler}, seed {seed}: {why}");
            }
            let whole = &report.scheduler;
            let scheduler =
                whole.split(" bonus=").next().and_then(|name| name.split(" groups=").next());
            let scheduler = scheduler.unwrap_or_default().to_owned();
            let key = (report.workload.clone(), report.machine.clone(), scheduler, row.slice_us);
            runs.by_cell.entry(key).or_default().insert(report.seed, report);
        }
        Ok(runs)
    }
}

/// Workload, machine, scheduler, slice.
type Key = (String, String, String, u64);

/// Reports by cell, scheduler and seed.
#[derive(Debug, Default)]
pub struct Runs {
    by_cell: BTreeMap<Key, BTreeMap<u64, Report>>,
}

/// A figure of a run.
pub type Value = fn(&Report) -> f64;

impl Runs {
    /// Takes those of another sweep in.
    pub fn extend(&mut self, other: Self) {
        self.by_cell.extend(other.by_cell);
    }

    fn cell(
        &self,
        workload: &str,
        machine: &str,
        scheduler: &Scheduler,
    ) -> Option<&BTreeMap<u64, Report>> {
        let key =
            (workload.to_owned(), machine.to_owned(), scheduler.to_string(), scheduler.slice_us());
        self.by_cell.get(&key)
    }

    /// A figure of all runs of this workload, by seed.
    pub fn of(
        &self,
        workload: &str,
        machine: &str,
        scheduler: &Scheduler,
        value: Value,
    ) -> Vec<f64> {
        let runs = self.cell(workload, machine, scheduler);
        runs.into_iter().flat_map(|runs| runs.values().map(value)).collect()
    }
}

/// Looks up simulations that were made before. The case is the machine, the program is the workload,
/// and the round is the seed. The A/A row has other seeds, because the same seed gives the same run.
pub struct SimulatorRunner<'a> {
    /// What was simulated: twice as many seeds as rounds.
    pub runs: &'a Runs,
    /// How many rounds.
    pub rounds: u64,
    /// The figures by the names of their metrics.
    pub figures: &'a [(&'static str, Value)],
}

impl Runner<Scheduler> for SimulatorRunner<'_> {
    fn run(&mut self, turn: &Turn<'_, Scheduler>) -> Result<Sample> {
        let Some(contestant) = turn.contestant else { bail!("simulations have no reference") };
        let again = if turn.is_again { self.rounds } else { 0 };
        let seed = 1 + turn.round as u64 + again;
        let cell = self.runs.cell(&turn.case.program, &turn.case.name, &contestant.how);
        let report = cell.and_then(|runs| runs.get(&seed));
        let report = report.with_context(|| format!("seed {seed} was not simulated"))?;
        let mut sample = Sample::default();
        for (name, value) in self.figures {
            sample.set(name, Some(value(report)));
        }
        Ok(sample)
    }
}
