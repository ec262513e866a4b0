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

/// Has the contestants take turns in all cases.
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
            Seat::Again => contestants.first().copied(),
            Seat::Contestant(index) => {
                Some(*contestants.get(index).context("a turn of no contestant")?)
            }
        };
        self.runner.run(&Turn {
            case: &self.cases[turn.case],
            contestant,
            is_again: turn.seat == Seat::Again,
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
