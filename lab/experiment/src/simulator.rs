//! Experiments in the simulator: a case is a machine and a workload, a round is a seed, and all
//! simulations are made at once, on all CPUs of this machine.
//!
//! What is simulated are the grids of `evenkeel-lab sim sweep`. The same seed gives the same run, so the
//! A/A line has seeds of its own: it shows what the draw of a workload alone does to a figure.

use std::cell::Cell;
use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use evenkeel_machine::Machine;
use evenkeel_sim::{Aggregation, Grid, Report, Scheduler, Shard, Workers, read_rows, sweep};
use evenkeel_trial::{Case, Line, Plan, Record, Sample, again};

use crate::display::Display;
use crate::{Contestant, Metric, Row, rows};

/// How a contestant is simulated.
#[derive(Debug, Clone)]
pub struct How {
    /// The scheduler. The searches of [`Scheduler::Exact`] cost nothing.
    pub scheduler: Scheduler,
    /// How all programs aggregate, if they do.
    pub aggregation: Option<Aggregation>,
    /// The groups of CPUs that aggregate together; none: CPUs that share a last-level cache.
    pub together: Option<String>,
}

impl From<Scheduler> for How {
    fn from(scheduler: Scheduler) -> Self {
        Self { scheduler, aggregation: None, together: None }
    }
}

/// A figure of a run.
pub type Value = fn(&Report) -> f64;

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

    /// Simulates the workloads on a machine under all contestants with the seeds from 1 to `seeds`, and
    /// under the first one, the baseline, with as many more for its A/A line.
    ///
    /// # Errors
    /// Something cannot be simulated, or a rule was broken in a simulation.
    pub fn run(
        &self,
        machine: &Machine,
        workloads: &[String],
        contestants: &[Contestant<How>],
        seeds: u64,
    ) -> Result<Runs> {
        let mut runs = Runs::default();
        let display = Display::counting("simulations");
        for (index, Contestant { name, how, .. }) in contestants.iter().enumerate() {
            crate::interrupt::check()?;
            // The baseline is simulated twice as often.
            let each = workloads.len() * seeds as usize;
            let before = if index == 0 { 0 } else { (index + 1) * each };
            let all = (contestants.len() + 1) * each;
            let tell = |done: usize| display.step((before + done) as u64, all as u64, name);
            let mut machine = machine.clone();
            if matches!(how.scheduler, Scheduler::Exact(_)) {
                machine.costs.scan_ns = 0;
            }
            let most = if index == 0 { 2 * seeds } else { seeds };
            let grid = Grid {
                workloads: workloads.to_vec(),
                machines: vec![machine],
                schedulers: vec![how.scheduler.clone()],
                aggregation: how.aggregation,
                together: how.together.clone(),
                seeds: 1..most + 1,
            };
            for report in self.sweep(&grid, &tell)? {
                let (round, name) = match report.seed {
                    seed if seed > seeds => (seed - seeds, again(name)),
                    seed => (seed, name.clone()),
                };
                let case = (report.machine.clone(), report.workload.clone());
                let lines = runs.by_case.entry(case).or_default();
                lines.entry(name).or_default().insert(round, report);
            }
        }
        display.finish();
        Ok(runs)
    }

    /// Simulates all of a grid; `tell` gets how many simulations are done.
    fn sweep(&self, grid: &Grid, tell: &dyn Fn(usize)) -> Result<Vec<Report>> {
        self.sweeps.set(self.sweeps.get() + 1);
        let path = self.dir.path().join(format!("{}.jsonl", self.sweeps.get()));
        let (whole, workers) = (Shard { index: 1, of: 1 }, Workers::Threads(self.jobs));
        sweep(grid, whole, workers, &path, |done, _| tell(done))?;
        let reports = read_rows(&path)?.into_iter().map(|row| row.report);
        let good = reports.map(|report| {
            let Report { workload, machine, scheduler, seed, .. } = &report;
            match report.end.iter().chain(&report.violations).next() {
                Some(why) => bail!("{workload} on {machine} under {scheduler}, seed {seed}: {why}"),
                None => Ok(report),
            }
        });
        good.collect()
    }
}

/// Machine and workload.
type Place = (String, String);

/// Reports by case, contestant and round.
#[derive(Debug, Default)]
pub struct Runs {
    by_case: BTreeMap<Place, BTreeMap<String, BTreeMap<u64, Report>>>,
}

impl Runs {
    /// Takes those of other cases or contestants in.
    pub fn extend(&mut self, other: Self) {
        for (case, lines) in other.by_case {
            self.by_case.entry(case).or_default().extend(lines);
        }
    }

    /// A figure of all runs of a contestant, by round.
    pub fn of(&self, machine: &str, workload: &str, contestant: &str, value: Value) -> Vec<f64> {
        let lines = self.by_case.get(&(machine.to_owned(), workload.to_owned()));
        let runs = lines.and_then(|lines| lines.get(contestant));
        runs.into_iter().flat_map(|runs| runs.values().map(value)).collect()
    }

    /// Compares contestants with the first of them by one figure, in these cases. All rows are one
    /// family. A baseline that was simulated with more seeds has an A/A row.
    ///
    /// # Errors
    /// A case was not simulated under one of them.
    pub fn rows(
        &self,
        cases: &[(&str, String)],
        contestants: &[&str],
        (metric, value): (&Metric, Value),
    ) -> Result<Vec<Row>> {
        let mut records = Vec::new();
        for (machine, workload) in cases {
            let values = |name: &str| self.of(machine, workload, name, value);
            let mut record = Record::new(&Case {
                name: (*machine).to_owned(),
                program: workload.clone(),
                contestants: contestants.iter().map(|name| (*name).to_owned()).collect(),
                has_second_baseline: contestants
                    .first()
                    .is_some_and(|name| !values(&again(name)).is_empty()),
                ..Case::default()
            });
            for Line { contestant, rounds, .. } in &mut record.lines {
                let samples = values(contestant).into_iter();
                *rounds = samples.map(|value| Some(Sample::new([(metric.name, value)]))).collect();
                if rounds.is_empty() {
                    bail!("{workload} on {machine} was not simulated under {contestant}");
                }
            }
            records.push(record);
        }
        Ok(rows(std::slice::from_ref(metric), &records, &Plan::fixed(1)))
    }
}
