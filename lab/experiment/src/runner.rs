//! From an experiment and a runner to records.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use evenkeel_trial::{Caller, Case, Figure, Plan, Progress, Record, Sample, Seat, Slot};

use crate::display::Display;
use crate::{Contestant, Experiment};

/// One turn of a contestant.
pub struct Turn<'a, How> {
    /// The case.
    pub case: &'a Case,
    /// The contestant; `None`: the reference, which is the program undisturbed.
    pub contestant: Option<&'a Contestant<How>>,
    /// The baseline runs once more, for the A/A row.
    pub is_again: bool,
    /// The round of this case, from 0.
    pub round: usize,
}

/// A place where experiments run.
pub trait Runner<How> {
    /// Makes one run.
    ///
    /// # Errors
    /// It cannot run. The contestant is left out from here on.
    fn run(&mut self, turn: &Turn<'_, How>) -> Result<Sample>;

    /// Adds figures that follow from the run and the reference of its round.
    fn relate(&self, _reference: &Sample, _sample: &mut Sample) {}
}

impl<How, F: FnMut(&Turn<'_, How>) -> Result<Sample>> Runner<How> for F {
    fn run(&mut self, turn: &Turn<'_, How>) -> Result<Sample> {
        self(turn)
    }
}

/// The cases with an A/A row in the first case of each baseline that has none: no table of rows is
/// without one.
fn with_again(cases: &[Case]) -> Vec<Case> {
    let mut cases = cases.to_vec();
    let mut baselines: Vec<String> =
        cases.iter().filter_map(|case| case.contestants.first().cloned()).collect();
    baselines.sort_unstable();
    baselines.dedup();
    for baseline in baselines {
        // A case of one contestant compares nothing.
        let mut compared: Vec<&mut Case> = cases
            .iter_mut()
            .filter(|case| case.contestants.len() > 1 && case.contestants[0] == baseline)
            .collect();
        if compared.iter().all(|case| !case.has_second_baseline)
            && let Some(first) = compared.first_mut()
        {
            first.has_second_baseline = true;
        }
    }
    cases
}

/// Has the contestants take turns in all cases. Where no case of a baseline asks for an A/A row, its
/// first one gets it.
///
/// # Errors
/// The plan makes no sense, or a case has a contestant that the experiment has not.
pub fn measure<How>(
    experiment: &Experiment<How>,
    cases: &[Case],
    plan: &Plan,
    runner: &mut dyn Runner<How>,
    display: &Display,
) -> Result<Vec<Record>> {
    let cases = &with_again(cases);
    let contestants = |case: &Case| -> Result<Vec<&Contestant<How>>> {
        case.contestants.iter().map(|name| experiment.contestant(name)).collect()
    };
    let contestants = cases.iter().map(contestants).collect::<Result<_>>()?;
    let judged = experiment.metrics.iter().filter(|metric| metric.is_judged);
    let decisive: Vec<Figure> = judged.map(|metric| metric.figure()).collect();
    let mut turns = Turns { cases, contestants, runner, display, start: Instant::now() };
    evenkeel_trial::run(cases, &decisive, plan, &mut turns)
}

struct Turns<'a, How> {
    cases: &'a [Case],
    /// By case.
    contestants: Vec<Vec<&'a Contestant<How>>>,
    runner: &'a mut dyn Runner<How>,
    display: &'a Display,
    start: Instant,
}

impl<How> Caller for Turns<'_, How> {
    fn run(&mut self, turn: Slot) -> Result<Sample> {
        let contestants = &self.contestants[turn.case];
        let contestant = match turn.seat {
            Seat::Reference => None,
            Seat::SecondBaseline => contestants.first().copied(),
            Seat::Contestant(index) => {
                Some(*contestants.get(index).context("a turn of no contestant")?)
            }
        };
        self.runner.run(&Turn {
            case: &self.cases[turn.case],
            contestant,
            is_again: turn.seat == Seat::SecondBaseline,
            round: turn.round,
        })
    }

    fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    fn relate(&self, reference: &Sample, sample: &mut Sample) {
        self.runner.relate(reference, sample);
    }

    fn show(&mut self, progress: &Progress<'_>) {
        self.display.show(progress);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Kind, Metric, Report, rows};

    static METRICS: [Metric; 1] = [Metric::new("time", Kind::Time, "")];

    /// The cases with A/A rows, of cases of these contestants that ask for one or do not.
    fn again(cases: &[(&str, &[&str], bool)]) -> Vec<String> {
        let names = ["default", "lag", "apart", "together"];
        let contestants = names.map(|name| Contestant::new(name, "", ()));
        let experiment = Experiment::sample(contestants.to_vec(), &METRICS);
        let case = |(name, contestants, has_second_baseline): &(&str, &[&str], bool)| Case {
            name: (*name).to_owned(),
            contestants: contestants.iter().map(|name| (*name).to_owned()).collect(),
            has_second_baseline: *has_second_baseline,
            ..Case::default()
        };
        let cases: Vec<Case> = cases.iter().map(case).collect();
        let plan = Plan::fixed(2);
        let mut run = |_: &Turn<'_, ()>| Ok(Sample::new([("time", 1.0)]));
        let records = measure(&experiment, &cases, &plan, &mut run, &Display::new()).unwrap();
        assert_eq!(
            Report::new(&experiment, &records, &plan, "").rows,
            rows(&METRICS, &records, &plan)
        );
        let again = rows(&METRICS, &records, &plan).into_iter().filter(|row| row.is_again);
        again.map(|row| row.case).collect()
    }

    /// Every report's records come from [`measure`], so this holds for all experiments.
    #[test]
    fn no_table_is_without_an_a_a_row() {
        let (lag, memory): (&[&str], &[&str]) = (&["default", "lag"], &["apart", "together"]);
        assert_eq!(again(&[("a", lag, false), ("b", lag, false)]), ["a"]);
        assert_eq!(again(&[("a", &["default"], false), ("b", lag, false)]), ["b"]);
        let two = [("a", lag, false), ("b", memory, false), ("c", memory, false)];
        assert_eq!(again(&two), ["a", "b"], "one for each baseline");
        assert_eq!(again(&[("a", lag, false), ("b", lag, true)]), ["b"], "as the case asks");
        assert!(again(&[("a", &["default"], false)]).is_empty(), "nothing is compared");
    }
}
