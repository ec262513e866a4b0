//! Many simulations, and their figures by workload, machine and scheduler.

use std::cell::Cell as Counter;
use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use evenkeel_keel::Aggregation;
use evenkeel_machine::Machine;
use evenkeel_sim::{Grid, Report, Scheduler, Shard, Workers, read_rows, sweep};

use super::Options;
use super::study::{Part, Study};
use crate::report::MachineInfo;

/// Where simulations are made.
pub struct Simulator {
    jobs: usize,
    dir: tempfile::TempDir,
    sweeps: Counter<u32>,
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
            sweeps: Counter::new(0),
        })
    }

    /// Simulates all workloads on all machines under all schedulers, with seeds from 1. With an
    /// `aggregation` the threads of all programs aggregate so under the order `ias`.
    ///
    /// # Errors
    /// Something cannot be simulated, or a rule was broken in a simulation.
    pub fn sweep(
        &self,
        workloads: Vec<String>,
        machines: Vec<Machine>,
        schedulers: Vec<Scheduler>,
        aggregation: Option<Aggregation>,
        seeds: u64,
    ) -> Result<Runs> {
        let seeds = 1..seeds + 1;
        self.run(&Grid { workloads, machines, schedulers, aggregation, together: None, seeds })
    }

    /// Simulates all of a grid. Figures go by the scheduler's name; how it aggregates is no part of that.
    ///
    /// # Errors
    /// As [`Self::sweep`].
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

/// What makes a part.
pub type Measure<L> = fn(&L) -> Result<Part>;

/// A paper that is simulated.
pub struct Simulated<L: 'static> {
    /// The paper's number.
    pub number: &'static str,
    /// Its authors and title.
    pub title: &'static str,
    /// The machines.
    pub machines: &'static str,
    /// All parts, and what makes them.
    pub parts: &'static [(&'static str, Measure<L>)],
    /// What they are made in.
    pub lab: fn(&Options) -> Result<L>,
}

impl<L> Simulated<L> {
    /// The names of all parts.
    pub fn names(&self) -> Vec<&'static str> {
        self.parts.iter().map(|(id, _)| *id).collect()
    }

    /// Makes these parts; `so_far` gets the study after each of them.
    ///
    /// # Errors
    /// `so_far` fails, or somebody asked for the end. A part that fails is in the study, with the
    /// reason.
    pub fn measure(
        &self,
        chosen: &[&str],
        options: &Options,
        so_far: &mut dyn FnMut(&Study) -> Result<()>,
    ) -> Result<Study> {
        let lab = (self.lab)(options)?;
        let mut machine = MachineInfo::read();
        let simulated = format!("on {}; no figure depends on the machine above", self.machines);
        machine.notes.insert("simulated".to_owned(), simulated);
        let mut study = Study {
            paper: self.number.to_owned(),
            title: self.title.to_owned(),
            command: options.command.clone(),
            machine,
            ..Study::default()
        };
        for (id, measure) in self.parts.iter().filter(|(id, _)| chosen.contains(id)) {
            eprintln!("{id}");
            let measured = measure(&lab);
            crate::interrupt::check()?;
            study.parts.push(Part::measured(id, measured, options.quick));
            so_far(&study)?;
        }
        Ok(study)
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

    /// A figure of all runs of this workload, by seed.
    pub fn of(
        &self,
        workload: &str,
        machine: &str,
        scheduler: &Scheduler,
        value: Value,
    ) -> Vec<f64> {
        let key =
            (workload.to_owned(), machine.to_owned(), scheduler.to_string(), scheduler.slice_us());
        self.by_cell.get(&key).into_iter().flat_map(|runs| runs.values().map(value)).collect()
    }
}

/// The median; 0 of none.
pub fn median(values: &[f64]) -> f64 {
    crate::stats::median(values).unwrap_or_default()
}

/// The mean; 0 of none.
pub fn mean(values: impl IntoIterator<Item = f64>) -> f64 {
    let (sum, count) =
        values.into_iter().fold((0.0, 0.0), |(sum, n), value| (sum + value, n + 1.0));
    if count == 0.0 { 0.0 } else { sum / count }
}

/// By seed, how many times as large the first is: both had the same tasks.
pub fn ratios(values: &[f64], by: &[f64]) -> Vec<f64> {
    values.iter().zip(by).map(|(value, by)| value / by).collect()
}
