//! Measures one cell: noise on or off, the accounts before and after, and the run between.

use std::cell::Cell as Slot;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use evenkeel_experiment::accounts::Accounts;
use evenkeel_experiment::display::Display;
use evenkeel_experiment::{
    Experiment, MachineInfo, Plan, Record, Sample, Turn, interrupt, measure,
};
use evenkeel_machine::CpuSet;

use super::cell::Measured;
use super::launch::Launcher;
use super::metric;
use super::plan::Cell;
use super::state::Outcome;
use super::table::{DEFAULT, How, Lever, NOISES, Noise, Program, What, contestants};
use crate::capability::TIME;
use crate::capability::lab::Lab;
use crate::programs::{Compiler, Installed, Program as Carried};
use crate::stats::median;

/// Work for each thread with which the share of a hog is found, in ms of a core.
const HOG_PROBE_MS: usize = 500;

/// Everything that a measurement needs.
pub struct Bench {
    launcher: Launcher,
    lab: Lab,
    noisy: u32,
    /// By name: why the noise cannot be made, if so; tried when it is first wanted.
    noises: BTreeMap<&'static str, Option<String>>,
    /// By contestant: why `evenkeel run` refuses what it needs.
    refused: Vec<(String, String)>,
    hog_share: Slot<Option<f64>>,
}

impl Bench {
    /// Makes ready what all programs need. They run on the `usable` CPUs; noise falls on the first.
    ///
    /// # Errors
    /// No CPU may be used, or there is no temporary directory.
    pub fn new(executable: PathBuf, usable: CpuSet) -> Result<Self> {
        let noisy = usable.iter().next().context("no CPU may be used: is /sys mounted?")?;
        let launcher = Launcher::new(executable, &usable, noisy)?;
        let refused = contestants().into_iter().filter_map(|one| match one.how {
            How::Run(lever) if lever != Lever::Moves => {
                Some((one.name, launcher.why_refused(lever)?))
            }
            _ => None,
        });
        let refused = refused.collect();
        let lab = Lab::new(usable, noisy, Accounts::open());
        let noises = BTreeMap::new();
        Ok(Self { launcher, lab, noisy, noises, refused, hog_share: Slot::new(None) })
    }

    /// Contestants that `evenkeel run` refuses, and why.
    pub fn refused(&self) -> &[(String, String)] {
        &self.refused
    }

    /// Why the accounts are not exact, if so.
    pub fn why_not_exact(&self) -> Option<String> {
        self.lab.accounts.borrow().why_not_exact().map(str::to_owned)
    }

    /// The program with as many repeats as take about `wanted` on this machine now, undisturbed, but
    /// with no more than it has.
    pub fn shortened(&self, program: Program, wanted: Duration) -> Program {
        if program.repeats < 2 || !matches!(program.what, What::OpenMp { .. }) {
            return program;
        }
        let once = Program { repeats: 1, ..program };
        match self.launcher.run(&once, How::Kernel, &NOISES[0]) {
            Ok((ended, _)) => {
                let repeats = repeats_within(wanted.as_secs_f64(), ended.seconds, program.repeats);
                Program { repeats, ..program }
            }
            // The measurement will say why.
            Err(_) => program,
        }
    }

    /// The CPU that noise falls on, and the share of it that a noise took by its own measure, 0..=1;
    /// none of a noise that was not made, and of a hog.
    pub fn taken(&self, noise: &Noise) -> (u32, Option<f64>) {
        let stage = self.lab.stage.borrow();
        let duties = stage.duties().find(|(name, _)| *name == noise.name());
        (self.noisy, duties.and_then(|(_, duties)| median(duties)))
    }

    /// The machine, with what the reader of the figures should know.
    pub fn machine(&self) -> MachineInfo {
        let mut machine = self.lab.machine();
        if let Some(share) = self.hog_share.get() {
            let took = format!("{:.1} % of CPU {}", 100.0 * share, self.noisy);
            machine.notes.insert("hog's share beside a program".into(), took);
        }
        machine
    }

    /// Measures a cell to its end, for the file of all cells.
    ///
    /// # Errors
    /// See [`Self::record`].
    pub fn measure(
        &mut self,
        experiment: &Experiment<How>,
        cell: &Cell,
        plan: &Plan,
        commit: &str,
        display: &Display,
    ) -> Result<Outcome> {
        Ok(match self.record(experiment, cell, plan, display)? {
            Ok(record) => Outcome::Measured(Measured::new(cell, commit, &record)),
            Err(why) => Outcome::Impossible(why),
        })
    }

    /// Measures a cell to its end; or says why it cannot be measured here.
    ///
    /// # Errors
    /// A signal asked for the end, or the plan makes no sense.
    pub fn record(
        &mut self,
        experiment: &Experiment<How>,
        cell: &Cell,
        plan: &Plan,
        display: &Display,
    ) -> Result<Result<Record, String>> {
        if let Err(why) = self.launcher.ready(&cell.program) {
            return Ok(Err(format!("{why:#}")));
        }
        if let Some(why) = self.why_impossible(cell.noise) {
            return Ok(Err(why));
        }
        let case = evenkeel_experiment::Case {
            name: cell.noise.name().to_owned(),
            program: cell.program.name.to_owned(),
            contestants: cell.contestants.clone(),
            has_reference: false,
            has_second_baseline: true,
        };
        let mut run = |turn: &Turn<'_, How>| {
            let how = turn.contestant.map_or(How::Kernel, |contestant| contestant.how);
            self.run(cell, how)
        };
        let records = measure(experiment, &[case], plan, &mut run, display);
        // The noise would disturb what follows. Where it has died, its runs mean nothing.
        let quiet = self.lab.quiet();
        interrupt::check()?;
        let record = records?.into_iter().next().unwrap_or_else(empty);
        if let Err(why) = quiet {
            return Ok(Err(format!("{why:#}")));
        }
        let baseline = record.line(DEFAULT);
        if baseline.is_none_or(|line| line.estimate(TIME).is_none()) {
            let why = baseline.and_then(|line| line.failed.clone());
            let why = why.unwrap_or_else(|| "it gave no figures".to_owned());
            return Ok(Err(format!("{DEFAULT} failed: {}", why.replace('\n', " "))));
        }
        Ok(Ok(record))
    }

    fn why_impossible(&mut self, noise: &Noise) -> Option<String> {
        let noisy = self.noisy;
        let disturbance = noise.disturbance;
        let why = self.noises.entry(noise.name());
        why.or_insert_with(|| disturbance.why_impossible(noisy)).clone()
    }

    fn run(&self, cell: &Cell, how: How) -> Result<Sample> {
        let noise = cell.noise;
        if noise.disturbance.is_hog() && self.hog_share.get().is_none() {
            self.hog_share.set(Some(self.measure_hog_share()?));
        }
        let hog = noise.disturbance.is_hog().then(|| self.hog_share.get()).flatten();
        let seen = self
            .lab
            .under(noise.disturbance, hog, || self.launcher.run(&cell.program, how, noise))?;
        let (ended, summary) = &seen.ended;
        let mut sample = seen.sample(ended.seconds);
        if let Some(summary) = summary {
            metric::add(summary, &mut sample);
        }
        if noise.disturbance.noise.is_some() {
            metric::add_critical(&ended.output, self.noisy, &mut sample);
        }
        Ok(sample)
    }

    /// The share of its CPU that a hog gets beside a thread that wants it all the time.
    fn measure_hog_share(&self) -> Result<f64> {
        let programs = Installed::by(Compiler::Gcc)?;
        let work = (HOG_PROBE_MS * self.launcher.threads()).to_string();
        let mut stage = self.lab.stage.borrow_mut();
        stage.share_of_hog(|| {
            let mut command = programs.command(Carried::StaticLoop, ["--work", &work]);
            evenkeel_experiment::command::set_threads(&mut command, self.launcher.threads());
            command.env("OMP_PROC_BIND", "true").env("OMP_PLACES", "threads");
            command.env("OMP_WAIT_POLICY", "active");
            evenkeel_experiment::command::run(&mut command).map(drop)
        })
    }
}

/// How many repeats take about `wanted_s` where one takes `once_s`: 1 at least, `most` at most.
fn repeats_within(wanted_s: f64, once_s: f64, most: u32) -> u32 {
    // A float that is too large for the integer becomes the largest one.
    ((wanted_s / once_s).round() as u32).clamp(1, most.max(1))
}

fn empty() -> Record {
    Record::new(&evenkeel_experiment::Case::default())
}

#[cfg(test)]
mod tests {
    use super::repeats_within;

    #[test]
    fn a_slow_machine_repeats_less_and_a_fast_one_no_more() {
        assert_eq!(repeats_within(1.6, 0.8, 2), 2);
        assert_eq!(repeats_within(1.6, 0.2, 4), 4);
        assert_eq!(repeats_within(1.6, 1.3, 4), 1);
        assert_eq!(repeats_within(1.6, 10.0, 4), 1);
        assert_eq!(repeats_within(1.6, 0.0, 4), 4);
    }
}
