//! Experiments in virtual machines: a kernel is booted once, and there each turn starts a scheduler,
//! measures everything under it, and ends it (A B C A B C ...).
//!
//! | file | what it holds |
//! |---|---|
//! | `clock` | the machines, by what their clocks count: the cases |
//! | `scheduler` | how contestants schedule; a scheduler at work |
//! | `lab` | what the guests are made of |
//! | `runner` | turns, on the host |
//! | `inside` | one turn, in the guest |
//! | `callback` | what a scheduler's callbacks cost, call by call |
//! | `hogs` | busy threads, and how they share |
//! | `wake` | wake-up latency beside them |
//! | `storm` | forks, programs, threads without pause |

pub mod callback;
mod clock;
pub mod hogs;
mod inside;
mod lab;
mod runner;
mod scheduler;
pub mod storm;
pub mod wake;

use anyhow::{Result, bail};
use evenkeel_trial::{Case, Figures, Plan};

pub use clock::Clock;
pub use inside::{Inside, number_after};
pub use scheduler::{EEVDF, Scheduler, eevdf, keel, peer};

use crate::display::Display;
use crate::{Contestant, Experiment, List, Only, Options, Report, choose, measure, peers};
use lab::Lab;
use runner::GuestRunner;

/// So many pairs are wanted where times are compared.
const ROUNDS: usize = 10;
/// Runs on timed machines that are repeated in vain at most, each.
const MAX_REPEATS: usize = 1;

/// For [`Experiment::course`].
pub const COURSE: &str = "\
One kernel is booted on each machine, and there the contestants take turns (A B C A B C ...): each turn \
starts a scheduler, measures everything under it, and ends it; runs are compared round by round. On the \
timed machine a run that other programs of the host disturbed is repeated.";

/// For [`Experiment::lists`].
pub fn machines() -> List {
    let items = Clock::ALL.map(|clock| (clock.name(), clock.explanation()));
    List { title: "Machines", items: items.to_vec() }
}

/// An experiment in guests.
pub struct GuestBench {
    /// What is measured.
    pub experiment: Experiment<Scheduler>,
    /// Programs of the system that take part where they are installed.
    pub programs: &'static [&'static str],
    /// On which machines, unless others are asked for.
    pub clocks: &'static [Clock],
    /// NUMA nodes of the machines, each with a last-level cache of its own.
    pub nodes: u32,
    /// A turn takes a tenth of that, in s of the guest.
    pub limit_s: u32,
    /// Measures everything, in the guest, under the contestant that is at work.
    pub measure: fn(&Inside) -> Result<Figures>,
}

impl GuestBench {
    /// Runs it. Peers of the table that are named take part in every benchmark.
    ///
    /// # Errors
    /// A name is unknown, a file cannot be written, or no machine can be booted.
    pub fn run(mut self, options: &Options) -> Result<i32> {
        self.add_peers(&options.only.contestants, options.inside.as_deref());
        if let Some(name) = &options.inside {
            let contestant = self.experiment.contestant(name)?;
            return inside::play(&self, contestant, &options.only, options.costs);
        }
        self.experiment.run(options, || self.measure_all(options))
    }

    fn add_peers(&mut self, named: &[String], inside: Option<&str>) {
        for name in named.iter().map(String::as_str).chain(inside) {
            let is_there = self.experiment.contestants.iter().any(|one| one.name == name);
            if let Some(found) = peers::find(name).filter(|_| !is_there) {
                self.experiment.contestants.push(peer(found));
            }
        }
    }

    fn measure_all(&self, options: &Options) -> Result<Report> {
        let plan = plan(options)?;
        self.experiment.check(&options.only)?;
        let clocks = choose("clock", &options.only.cases, &Clock::ALL, |clock| clock.name())?;
        let clocks =
            if options.only.cases.is_empty() { self.clocks.iter().collect() } else { clocks };
        let lab = Lab::new(self, &options.only)?;
        let case = |clock: &&Clock| Case {
            name: clock.name().to_owned(),
            contestants: lab.contestants.clone(),
            has_second_baseline: true,
            ..Case::default()
        };
        let cases: Vec<Case> = clocks.iter().map(case).collect();
        let display = Display::new();
        for sentence in &lab.said {
            display.say(sentence);
        }
        let mut runner = GuestRunner::new(self, &options.only, &lab, &display)?;
        let records = measure(&self.experiment, &cases, &plan, &mut runner, &display)?;
        display.finish();
        let mut report = Report::new(&self.experiment, &records, &plan, &options.command);
        report.machine.notes.insert("kernel of the guests".into(), lab.kernel().to_owned());
        report.said = lab.said.clone();
        Ok(report)
    }

    /// The contestants that take part, by name.
    fn takes_part(&self, only: &Only) -> impl Iterator<Item = &Contestant<Scheduler>> {
        let contestants = &self.experiment.contestants;
        let baseline = contestants.first().map_or("", |one| one.name.as_str());
        contestants.iter().filter(move |one| only.has(baseline, &one.name))
    }
}

fn plan(options: &Options) -> Result<Plan> {
    let rounds = options.runs.unwrap_or(ROUNDS);
    if rounds == 0 {
        bail!("--rounds 0 measures nothing: give at least 1, better {ROUNDS}");
    }
    Ok(Plan { max_repeats: MAX_REPEATS, ..Plan::fixed(rounds) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bench() -> GuestBench {
        GuestBench {
            experiment: Experiment::sample(vec![eevdf()], &[]),
            programs: &[],
            clocks: &Clock::ALL,
            nodes: 1,
            limit_s: 1,
            measure: |_| Ok(Figures::new()),
        }
    }

    #[test]
    fn nonsense_is_refused_before_anything_is_booted() {
        let error = |options: Options| bench().run(&options).unwrap_err().to_string();
        let text = error(Options { runs: Some(0), ..Options::default() });
        assert!(text.contains("--rounds 0"), "{text}");
        let text = error(Options { inside: Some("nothing".into()), ..Options::default() });
        assert!(text.contains("nothing") && text.contains("eevdf"), "{text}");
        let only = Only { contestants: vec!["nothing".into()], ..Only::default() };
        let text = error(Options { only, ..Options::default() });
        assert!(text.contains("no contestant \"nothing\""), "{text}");
        let only = Only { figures: vec!["nothing".into()], ..Only::default() };
        let text = error(Options { only, ..Options::default() });
        assert!(text.contains("no figure begins with \"nothing\""), "{text}");
    }

    #[test]
    fn every_peer_of_the_table_can_take_part_in_every_benchmark() {
        let mut bench = bench();
        bench.add_peers(&["scx_lavd".to_owned(), "eevdf".to_owned()], Some("scx_lavd"));
        let names: Vec<_> = bench.experiment.contestants.iter().map(|one| &one.name).collect();
        assert_eq!(names, ["eevdf", "scx_lavd"]);
    }
}
