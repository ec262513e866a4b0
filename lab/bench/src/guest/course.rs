//! The course of an experiment on the host: boots a guest on each machine, lets the contestants take
//! turns there, repeats what was disturbed.

use std::collections::BTreeMap;

use anyhow::Result;
use evenkeel_machine::CpuSet;
use evenkeel_vm::Guest;

use super::lab::{self, Lab};
use super::table::Series;
use super::{Clock, Experiment, Figures, Only};
use crate::accounts::Accounts;
use crate::capability::{display::Display, lab::usable_cpus};
use crate::interleave::Progress;
use crate::interrupt;

/// On a machine whose clock is the host's, a round in which others took more of the host's CPU time
/// is repeated, in % ...
const MAX_FOREIGN_PCT: f64 = 5.0;
/// ... but no more rounds than this in all.
const MAX_REPEATS: usize = 3;
/// A guest whose CPUs are emulated at the same time can be lost when its kernel patches itself,
/// as it does whenever a scheduler comes or goes (tests/vm/boots.rs): so many are booted in all.
const MAX_BOOTS: usize = 4;

/// What came of it.
pub struct Outcome {
    /// The rounds on each machine.
    pub series: Vec<Series>,
    /// Why something took no part, in sentences.
    pub said: Vec<String>,
    /// The kernel in the guests.
    pub kernel: String,
    /// What others took of the host's CPU time in the worst timed round, in %; `None` without one.
    pub worst_foreign_pct: Option<f64>,
}

/// All rounds on all of these machines.
///
/// # Errors
/// No machine can be booted, or every one is lost.
pub fn run(
    experiment: &Experiment,
    only: &Only,
    clocks: &[Clock],
    rounds: usize,
) -> Result<Outcome> {
    let lab = Lab::new(experiment, only)?;
    let display = Display::new();
    for sentence in &lab.said {
        display.say(sentence);
    }
    let mut course = Course {
        planned: rounds * lab.contestants.len() * clocks.len(),
        experiment,
        only,
        lab,
        display,
        accounts: Accounts::open(),
        host: usable_cpus()?,
        done: 0,
        worst_foreign_pct: None,
    };
    let series = clocks.iter().map(|clock| course.series(*clock, rounds)).collect::<Result<_>>()?;
    course.display.finish();
    Ok(Outcome {
        series,
        kernel: course.lab.kernel().to_owned(),
        said: course.lab.said,
        worst_foreign_pct: course.worst_foreign_pct,
    })
}

struct Course<'a> {
    experiment: &'a Experiment,
    only: &'a Only,
    lab: Lab,
    display: Display,
    accounts: Accounts,
    /// CPUs of the host.
    host: CpuSet,
    /// Turns in all, and those that are done; repeats not counted.
    planned: usize,
    done: usize,
    worst_foreign_pct: Option<f64>,
}

impl Course<'_> {
    /// All rounds on one machine.
    fn series(&mut self, clock: Clock, rounds: usize) -> Result<Series> {
        let mut guest = self.boot(clock)?;
        let contestants = self.lab.contestants.iter().map(|contestant| contestant.name.clone());
        let mut series = Series {
            clock,
            contestants: contestants.collect(),
            rounds: Vec::new(),
            failed: BTreeMap::new(),
        };
        let (mut boots, mut repeats) = (1, 0);
        while series.rounds.len() < rounds {
            let done = self.done;
            let before = self.accounts.read(&self.host, &[guest.pid()])?;
            let round = match self.round(&mut guest, &mut series) {
                Err(error) if error.is::<evenkeel_vm::Error>() && boots < MAX_BOOTS => {
                    interrupt::check()?;
                    self.display.say("the guest was lost: this round once more, in another one");
                    tracing::info!("{error:#}");
                    boots += 1;
                    self.done = done;
                    guest = self.boot(clock)?;
                    continue;
                }
                other => other?,
            };
            let window = self.accounts.read(&self.host, &[guest.pid()])?.since(&before);
            let is_disturbed = clock == Clock::Timed && window.foreign_pct > MAX_FOREIGN_PCT;
            if is_disturbed && repeats < MAX_REPEATS {
                repeats += 1;
                self.done = done;
                self.display.say(&format!(
                    "other programs took {:.0} % of the CPU time: this round once more",
                    window.foreign_pct
                ));
                continue;
            }
            if clock == Clock::Timed {
                let worst_pct = self.worst_foreign_pct.unwrap_or(0.0).max(window.foreign_pct);
                self.worst_foreign_pct = Some(worst_pct);
            }
            series.rounds.push(round);
        }
        Ok(series)
    }

    /// A guest in which everything was done once: the first time takes longer, and never counts.
    fn boot(&self, clock: Clock) -> Result<Guest> {
        self.display.message(&format!("booting the {} machine", clock.name()));
        let mut guest = self.lab.boot(clock)?;
        if let Some(baseline) = self.lab.contestants.first() {
            lab::round(&mut guest, clock, self.experiment, self.only, &baseline.name)?;
        }
        Ok(guest)
    }

    /// Everybody in turn. Who fails is left out from there on.
    fn round(
        &mut self,
        guest: &mut Guest,
        series: &mut Series,
    ) -> Result<BTreeMap<String, Figures>> {
        let mut round = BTreeMap::new();
        for contestant in &series.contestants {
            self.done += 1;
            if series.failed.contains_key(contestant) {
                continue;
            }
            interrupt::check()?;
            self.display.show(&Progress::Begin {
                case: series.clock.name(),
                program: "all workloads",
                contestant,
                round: series.rounds.len() + 1,
                done: self.done - 1,
                planned: self.planned,
            });
            match lab::round(guest, series.clock, self.experiment, self.only, contestant) {
                Ok(figures) => drop(round.insert(contestant.clone(), figures)),
                // Nobody can go on in a guest that is lost.
                Err(error) if error.is::<evenkeel_vm::Error>() => {
                    return Err(error.context(format!("under {contestant}")));
                }
                Err(error) => {
                    self.display.show(&Progress::Failed { contestant, error: &error });
                    series.failed.insert(contestant.clone(), format!("{error:#}"));
                }
            }
        }
        Ok(round)
    }
}
