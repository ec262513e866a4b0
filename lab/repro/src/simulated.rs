//! What the simulated papers share: a laboratory, contestants, and means and ratios.
//!
//! All sweeps are grids of `evenkeel-lab sim sweep`, and all verdicts the experiment's: a simulation is
//! a run of a contestant, its seed is the round. Every baseline has an A/A line with other seeds.

use std::time::{Duration, Instant};

use anyhow::Result;
use evenkeel_experiment::simulator::Simulator;
pub use evenkeel_experiment::simulator::{How, Runs, Value};
use evenkeel_experiment::{MachineInfo, interrupt, time_left};
use evenkeel_machine::Machine;
use evenkeel_trial::again;

use super::Options;
use super::study::{Part, Study};

/// A contestant of a simulated paper.
pub type Contestant = evenkeel_experiment::Contestant<How>;

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
        let parts: Vec<_> = self.parts.iter().filter(|(id, _)| chosen.contains(id)).collect();
        let start = Instant::now();
        for (done, (id, measure)) in parts.iter().enumerate() {
            eprintln!("{}", heading(id, done, parts.len(), start.elapsed()));
            let measured = measure(&lab);
            interrupt::check()?;
            study.parts.push(Part::measured(id, measured, options.quick));
            so_far(&study)?;
        }
        Ok(study)
    }
}

/// What is said as a part begins: which of all it is, and how long they take yet.
fn heading(id: &str, done: usize, planned: usize, elapsed: Duration) -> String {
    let place = format!("{id}, part {} of {planned}", done + 1);
    match time_left::estimate(elapsed, done, planned) {
        Some(left) => format!("{place}, about {} left", time_left::words(left)),
        None => place,
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

    /// In a quick run with so many seeds.
    #[cfg(test)]
    pub fn quick(seeds: u64) -> Self {
        Self { is_quick: true, seeds, simulator: Simulator::new().unwrap() }
    }

    /// Simulates all workloads on a machine with so many seeds, the baseline with as many more.
    ///
    /// # Errors
    /// Something cannot be simulated, or a rule was broken in a simulation.
    pub fn run(
        &self,
        machine: &Machine,
        workloads: &[String],
        contestants: &[Contestant],
        seeds: u64,
    ) -> Result<Runs> {
        self.simulator.run(machine, workloads, contestants, seeds)
    }
}

/// A contestant by its name on the page.
pub fn contestant(name: &str, how: impl Into<How>) -> Contestant {
    Contestant::new(name, "", how.into())
}

/// The contestants' names, and at the end that of the first one's A/A line.
pub fn with_again<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut names: Vec<String> = names.into_iter().map(str::to_owned).collect();
    names.extend(names.first().map(|baseline| again(baseline)));
    names
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
    use evenkeel_experiment::{Kind, Metric, Row};
    use evenkeel_keel::{IasOptions, Mode, Options, Order};
    use evenkeel_sim::{Aggregation, Report, Scheduler};
    use evenkeel_stats::Verdict;

    use super::*;

    static TIME: Metric = Metric::new("time", Kind::Time, "until all is done");
    const WORKLOAD: &str = "arrivals:tasks=40";
    const SEEDS: Seeds = Seeds { usual: 30, quick: 4 };

    fn time(report: &Report) -> f64 {
        report.tat.mean_ms / 1e3
    }

    /// On four CPUs, two to a cache.
    fn simulated(workload: &str, contestants: &[Contestant]) -> Runs {
        let lab = Lab::quick(4);
        let text = "name = \"small\"\nkinds = [{ cpus = \"0-3\", capability = 1024 }]\n\
                    llcs = [\"0-1\", \"2-3\"]\n";
        let machine = Machine::parse_toml(text, "test").unwrap();
        lab.run(&machine, &[workload.to_owned()], contestants, 4).unwrap()
    }

    fn two() -> [Contestant; 2] {
        let keel = Scheduler::Keel(Options::default());
        [contestant("fifo", Scheduler::Fifo), contestant("keel", keel)]
    }

    #[test]
    fn a_part_begins_with_its_place_and_the_time_that_is_left() {
        let said = |done| heading("fit", done, 4, Duration::from_secs(300));
        assert_eq!(said(0), "fit, part 1 of 4");
        assert_eq!(said(2), "fit, part 3 of 4, about 5 min left");
    }

    #[test]
    fn a_command_line_s_runs_replace_the_paper_s_seeds() {
        let of = |is_quick, runs| Lab::new(SEEDS, is_quick, runs).unwrap().seeds;
        assert_eq!((of(false, None), of(true, None), of(true, Some(7))), (30, 4, 7));
    }

    #[test]
    fn contestants_are_compared_seed_by_seed_and_the_baseline_with_other_seeds_of_its_own() {
        let runs = simulated(WORKLOAD, &two());
        let of = |name: &str| runs.of("small", WORKLOAD, name, time);
        let [fifo, keel, other] = ["fifo", "keel", "fifo again"].map(of);
        assert_eq!((fifo.len(), keel.len(), other.len()), (4, 4, 4));
        assert!(fifo.iter().all(|time| !other.contains(time)), "no seed of its own: {other:?}");
        let cases = [("small", WORKLOAD.to_owned())];
        let rows = |names: &[&str]| runs.rows(&cases, names, (&TIME, time));
        let found: Vec<Row> = rows(&["fifo", "keel"]).unwrap();
        let names: Vec<_> = found.iter().map(|row| (&*row.contestant, row.is_again)).collect();
        assert_eq!(names, [("fifo", false), ("keel", false), ("fifo again", true)]);
        assert_eq!(found[1].median, median(&keel));
        // Of an even number of seeds the kernel takes the mean of the middle logarithms.
        let difference = found[1].ratio.unwrap() - median(&ratios(&fifo, &keel));
        assert!(difference.abs() < 1e-4, "{difference}");
        assert!(found[0].verdict.is_none() && found[2].verdict == Some(Verdict::Undecided));
        let error = rows(&["fifo", "other"]).unwrap_err().to_string();
        assert!(error.contains("was not simulated under other"), "{error}");
    }

    #[test]
    fn contestants_that_only_differ_in_bonus_or_groups_are_told_apart() {
        let ias = |name: &str, bonus_value, together: Option<&str>| {
            let ias = IasOptions { mode: Mode::Paper, ..IasOptions::default() };
            let options = Options { order: Order::Ias, ias, ..Options::default() };
            let aggregation = Aggregation { pid: 0, agg: 1, bonus_type: 1, bonus_value, limit: 0 };
            let how = How {
                scheduler: Scheduler::Keel(options),
                aggregation: Some(aggregation),
                together: together.map(str::to_owned),
            };
            contestant(name, how)
        };
        let all = [ias("1x", 1, None), ias("3x", 3, None), ias("3x, one group", 3, Some("node"))];
        let workload = "memory:programs=4,threads=10,total=1";
        let runs = simulated(workload, &all);
        let hash = |name: &str| {
            let hash = |report: &Report| u32::from_str_radix(&report.hash[..8], 16).unwrap().into();
            runs.of("small", workload, name, hash)
        };
        assert_ne!(hash("1x"), hash("3x"));
        assert_ne!(hash("3x"), hash("3x, one group"));
    }
}
