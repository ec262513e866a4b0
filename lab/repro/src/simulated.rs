//! What the simulated papers share: a laboratory that runs their grids, verdicts on what it ran, and
//! means and ratios.
//!
//! A paper's sweep is a value: some [`Grid`]s, as `evenkeel-lab sim sweep` has them. Verdicts are the
//! experiment kernel's: a simulation is a run of a contestant, its seed is the round.

use anyhow::{Result, bail};
use evenkeel_experiment::display::Display;
pub use evenkeel_experiment::simulator::{Runs, Value};
use evenkeel_experiment::simulator::{Simulator, SimulatorRunner};
use evenkeel_experiment::{
    Case, Contestant, Experiment, MachineInfo, Metric, Plan, Row, interrupt, measure, rows,
};
use evenkeel_machine::Machine;
use evenkeel_sim::{Grid, Scheduler};

use super::Options;
use super::study::{Part, Study};

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
    /// Where they are made.
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
    /// `so_far` fails, or the end was asked for. A part that fails is in the study, with the reason.
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
            interrupt::check()?;
            study.parts.push(Part::measured(id, measured, options.quick));
            so_far(&study)?;
        }
        Ok(study)
    }
}

/// How many seeds each case has, unless the command line says otherwise.
#[derive(Debug, Clone, Copy)]
pub struct Seeds {
    /// Usually.
    pub usual: u64,
    /// In a quick run.
    pub quick: u64,
}

/// Where simulations are made.
pub struct Lab {
    /// One short run of everything.
    pub is_quick: bool,
    /// The seeds of each case.
    pub seeds: u64,
    simulator: Simulator,
}

impl Lab {
    /// With `runs` seeds of each case, or as many as the paper has.
    ///
    /// # Errors
    /// There is no room for temporary files.
    pub fn new(seeds: Seeds, is_quick: bool, runs: Option<usize>) -> Result<Self> {
        let paper = if is_quick { seeds.quick } else { seeds.usual };
        let seeds = runs.map_or(paper, |runs| runs as u64);
        Ok(Self { is_quick, seeds, simulator: Simulator::new()? })
    }

    /// A grid with all seeds, in which no program aggregates.
    pub fn grid(
        &self,
        workloads: Vec<String>,
        machine: Machine,
        schedulers: Vec<Scheduler>,
    ) -> Grid {
        let (machines, seeds) = (vec![machine], 1..self.seeds + 1);
        Grid { workloads, machines, schedulers, aggregation: None, together: None, seeds }
    }

    /// Simulates all grids.
    ///
    /// # Errors
    /// Something cannot be simulated, or a rule was broken in a simulation.
    pub fn run(&self, grids: impl IntoIterator<Item = Grid>) -> Result<Runs> {
        let mut runs = Runs::default();
        for grid in grids {
            runs.extend(self.simulator.run(&grid)?);
        }
        Ok(runs)
    }
}

/// Compares schedulers with the first of them by one figure, in cases of a machine and a workload. All
/// rows are one family.
///
/// # Errors
/// A case was not simulated under one of the schedulers, with so many seeds.
pub fn judge(
    runs: &Runs,
    cases: &[(&str, String)],
    schedulers: &[(&str, Scheduler)],
    (metric, value): (&'static Metric, Value),
    seeds: u64,
) -> Result<Vec<Row>> {
    let contestant = |(name, how): &(&str, Scheduler)| Contestant::new(name, "", how.clone());
    let experiment = Experiment {
        name: "simulated",
        title: "",
        intro: "",
        case_word: "machine",
        contestants: schedulers.iter().map(contestant).collect(),
        metrics: std::slice::from_ref(metric),
        aims: Vec::new(),
        course: "",
        reading: "",
        lists: Vec::new(),
    };
    let case = |(machine, workload): &(&str, String)| Case {
        name: (*machine).to_owned(),
        program: workload.clone(),
        contestants: schedulers.iter().map(|(name, _)| (*name).to_owned()).collect(),
        ..Case::default()
    };
    let cases: Vec<Case> = cases.iter().map(case).collect();
    let plan = Plan::fixed(seeds as usize);
    let mut runner = SimulatorRunner { runs, rounds: seeds, figures: &[(metric.name, value)] };
    let display = Display::new();
    let records = measure(&experiment, &cases, &plan, &mut runner, &display)?;
    display.finish();
    for record in &records {
        if let Some(why) = record.lines.iter().find_map(|line| line.failed.as_ref()) {
            bail!("{} on {}: {why}", record.program, record.case);
        }
    }
    Ok(rows(experiment.metrics, &records, &plan))
}

/// The median; 0 of none.
pub fn median(values: &[f64]) -> f64 {
    evenkeel_stats::median(values).unwrap_or_default()
}

/// The mean; 0 of none.
pub fn mean(values: impl IntoIterator<Item = f64>) -> f64 {
    let (sum, count) =
        values.into_iter().fold((0.0, 0.0), |(sum, n), value| (sum + value, n + 1.0));
    if count == 0.0 { 0.0 } else { sum / count }
}

/// Seed by seed, how many times as large the first is: both had the same tasks.
pub fn ratios(values: &[f64], by: &[f64]) -> Vec<f64> {
    values.iter().zip(by).map(|(value, by)| value / by).collect()
}

#[cfg(test)]
mod tests {
    use evenkeel_experiment::Runner as _;
    use evenkeel_experiment::{Kind, Turn};
    use evenkeel_keel::{Options, Slice};
    use evenkeel_stats::Verdict;

    use super::*;

    static TIME: Metric = Metric::new("time", Kind::Time, "until all is done");
    const WORKLOAD: &str = "arrivals:tasks=40";

    fn keel(slice_us: u64) -> Scheduler {
        let slice = Slice::from_us(slice_us).unwrap();
        Scheduler::Keel(Options { slice, ..Options::default() })
    }

    fn seconds(report: &evenkeel_sim::Report) -> f64 {
        report.tat.mean_ms / 1e3
    }

    fn simulated(seeds: u64) -> Runs {
        let lab = Lab::new(Seeds { usual: seeds, quick: seeds }, true, None).unwrap();
        let schedulers = vec![Scheduler::Fifo, keel(4_000)];
        let machine = Machine::preset("small").unwrap();
        lab.run([lab.grid(vec![WORKLOAD.to_owned()], machine, schedulers)]).unwrap()
    }

    #[test]
    fn a_command_line_s_runs_replace_the_paper_s_seeds() {
        let seeds = Seeds { usual: 30, quick: 2 };
        let of = |is_quick, runs| Lab::new(seeds, is_quick, runs).unwrap().seeds;
        assert_eq!((of(false, None), of(true, None), of(true, Some(7))), (30, 2, 7));
    }

    #[test]
    fn schedulers_are_compared_seed_by_seed() {
        let runs = simulated(6);
        let schedulers = [("fifo", Scheduler::Fifo), ("keel", keel(4_000))];
        let cases = [("small", WORKLOAD.to_owned())];
        let rows = judge(&runs, &cases, &schedulers, (&TIME, seconds), 6).unwrap();
        assert_eq!(rows.len(), 2);
        let [fifo, keel] = [0, 1].map(|at| runs.of(WORKLOAD, "small", &schedulers[at].1, seconds));
        assert_eq!(rows[1].median, median(&keel));
        // Of an even number of seeds the kernel takes the mean of the middle logarithms.
        let difference = rows[1].ratio.unwrap() - median(&ratios(&fifo, &keel));
        assert!(difference.abs() < 1e-4, "{difference}");
        assert!(rows[1].verdict.is_some() && rows[0].verdict.is_none());
        let same = [("keel", schedulers[1].1.clone()), ("keel too", schedulers[1].1.clone())];
        let rows = judge(&runs, &cases, &same, (&TIME, seconds), 6).unwrap();
        assert_eq!((rows[1].ratio, rows[1].verdict), (Some(1.0), Some(Verdict::Undecided)));
    }

    #[test]
    fn a_case_that_was_not_simulated_is_an_error() {
        let runs = simulated(2);
        let cases = [("small", WORKLOAD.to_owned())];
        let other = [("fifo", Scheduler::Fifo), ("other", keel(8_000))];
        let error = judge(&runs, &cases, &other, (&TIME, seconds), 2).unwrap_err().to_string();
        assert!(error.contains("seed 1 was not simulated"), "{error}");
        let known = [("fifo", Scheduler::Fifo), ("keel", keel(4_000))];
        assert!(judge(&runs, &cases, &known, (&TIME, seconds), 3).is_err(), "the third seed");
    }

    #[test]
    fn the_a_a_row_has_seeds_of_its_own() {
        let runs = simulated(4);
        let contestant = Contestant::new("fifo", "", Scheduler::Fifo);
        let case = Case { name: "small".into(), program: WORKLOAD.into(), ..Case::default() };
        let mut runner = SimulatorRunner { runs: &runs, rounds: 2, figures: &[("time", seconds)] };
        let all = runs.of(WORKLOAD, "small", &Scheduler::Fifo, seconds);
        for (is_again, round, at) in [(false, 0, 0), (false, 1, 1), (true, 0, 2), (true, 1, 3)] {
            let turn = Turn { case: &case, contestant: Some(&contestant), is_again, round };
            assert_eq!(runner.run(&turn).unwrap().get("time"), Some(all[at]));
        }
        let turn = Turn { case: &case, contestant: None, is_again: false, round: 0 };
        assert!(runner.run(&turn).is_err(), "simulations have no reference");
    }
}
