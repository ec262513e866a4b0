//! Many simulations, and their figures by workload, machine and scheduler.

use anyhow::Result;
pub use evenkeel_experiment::simulator::{Runs, Simulator, Value};

use super::Options;
use super::study::{Part, Study};
use evenkeel_experiment::MachineInfo;

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
            evenkeel_experiment::interrupt::check()?;
            study.parts.push(Part::measured(id, measured, options.quick));
            so_far(&study)?;
        }
        Ok(study)
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
