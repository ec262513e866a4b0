//! `evenkeel bench keel`: the keel beside the kernel's own scheduler and its peers. A real kernel is
//! booted in a virtual machine once, and there they take turns (A B C A B C ...): each round starts
//! a scheduler, measures everything under it, and ends it.
//!
//! | file | the one thing in it |
//! |---|---|
//! | `metric` | what is measured, and what is wanted of the keel |
//! | `contestant` | who schedules |
//! | `lab` | the machines: what is in them, how their clocks go |
//! | `round` | one round, in the guest |
//! | `hogs` | busy threads, and how they share |
//! | `wake` | wake-up latency beside them |
//! | `storm` | forks, programs, threads without pause |
//! | `callback` | what a scheduler's callbacks cost, call by call |
//! | `table` | rounds become rows with verdicts |
//! | `page` | the rows for people: the terminal's table, the Markdown page |

mod callback;
mod contestant;
mod hogs;
mod lab;
mod metric;
mod page;
mod round;
mod storm;
mod table;
mod wake;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use evenkeel_machine::CpuSet;
use evenkeel_vm::Guest;
use serde::{Deserialize, Serialize};

pub use contestant::PEERS;
pub use lab::Clock;
pub use table::{Reached, Row};

use crate::accounts::Accounts;
use crate::capability::{display::Display, lab::usable_cpus};
use crate::interleave::Progress;
use crate::interrupt;
use crate::output::Output;
use crate::report::MachineInfo;
use lab::Lab;
use round::Figures;
use table::{Series, rows};

/// So many pairs are wanted where times are compared.
const ROUNDS: usize = 10;
/// On a machine whose clock is the host's, a round in which others took more of the host's CPU time
/// is repeated, in % ...
const MAX_FOREIGN_PCT: f64 = 5.0;
/// ... but no more rounds than this in all.
const MAX_REPEATS: usize = 3;
/// A guest whose CPUs are emulated at the same time can be lost when its kernel patches itself,
/// as it does whenever a scheduler comes or goes (tests/vm/boots.rs): so many are booted in all.
const MAX_BOOTS: usize = 4;

/// What is asked for.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// evenkeel's own executable.
    pub executable: PathBuf,
    /// Which peers; all of [`PEERS`] if none are named.
    pub peers: Vec<String>,
    /// Which machines; all if none are named.
    pub clocks: Vec<Clock>,
    /// Rounds.
    pub rounds: Option<usize>,
    /// Where to write the rows as JSON.
    pub json: Option<PathBuf>,
    /// Where to write the Markdown page.
    pub markdown: Option<PathBuf>,
    /// Measure nothing: show the report that this JSON file holds.
    pub from: Option<PathBuf>,
    /// In the guest: measure one round under this scheduler.
    pub inside: Option<String>,
    /// There: also what its callbacks cost.
    pub costs: bool,
    /// The command line, for whoever wants to run it again.
    pub command: String,
}

/// The experiment's result, as `--json` writes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KeelReport {
    /// The host.
    pub machine: MachineInfo,
    /// The command line that measured it.
    pub command: String,
    /// What could not be shown, and why.
    #[serde(default)]
    pub said: Vec<String>,
    /// Who failed, and why: left out from there on.
    #[serde(default)]
    pub failed: Vec<String>,
    /// The figures.
    pub rows: Vec<Row>,
}

/// Runs the experiment, prints its table, and writes what was asked for. Returns the exit code: 0
/// also where a peer or a program is missing (that is said) or a wish is missed, 1 if a contestant
/// failed, 128 + n if signal n ended it.
///
/// # Errors
/// A name is unknown, a file cannot be written, or no machine can be booted.
pub fn run(options: &Options) -> Result<i32> {
    if let Some(contestant) = &options.inside {
        return round::play(contestant, options.costs);
    }
    let prepare = |path: &Option<PathBuf>| path.as_deref().map(Output::prepare).transpose();
    let (json, markdown) = (prepare(&options.json)?, prepare(&options.markdown)?);
    let report = match &options.from {
        Some(path) => load(path)?,
        None => {
            let _watch = interrupt::watch();
            match measure(options) {
                _ if interrupt::asked().is_some() => return Ok(interrupt::exit_code()),
                measured => measured?,
            }
        }
    };
    println!("{}", page::table(&report.rows));
    for sentence in report.said.iter().chain(&report.failed) {
        println!("{sentence}");
    }
    if let Some(output) = json {
        output.write(&serde_json::to_string_pretty(&report)?)?;
    }
    if let Some(output) = markdown {
        output.write(&page::page(&report))?;
    }
    Ok(i32::from(!report.failed.is_empty()))
}

fn load(path: &Path) -> Result<KeelReport> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_slice(&bytes).with_context(|| {
        format!("{} is not what `evenkeel bench keel --json` writes; measure anew", path.display())
    })
}

fn measure(options: &Options) -> Result<KeelReport> {
    let rounds = options.rounds.unwrap_or(ROUNDS);
    if rounds == 0 {
        bail!("--rounds 0 measures nothing: give at least 1, better 10");
    }
    let all = || PEERS.map(str::to_owned).to_vec();
    let peers = if options.peers.is_empty() { all() } else { options.peers.clone() };
    lab::check_peers(&peers)?;
    let clocks = if options.clocks.is_empty() { &Clock::ALL[..] } else { &options.clocks };

    let lab = Lab::new(&options.executable, &peers)?;
    let display = Display::new();
    for sentence in &lab.said {
        display.say(sentence);
    }
    let mut course = Course {
        planned: rounds * lab.contestants.len() * clocks.len(),
        lab,
        display,
        accounts: Accounts::open(),
        host: usable_cpus()?,
        done: 0,
        worst_foreign_pct: None,
    };
    let all: Vec<Series> =
        clocks.iter().map(|clock| course.series(*clock, rounds)).collect::<Result<_>>()?;
    course.display.finish();

    let failed = all.iter().flat_map(|series| {
        let on = series.clock.name();
        series.failed.iter().map(move |(who, why)| format!("{who} failed, {on}: {why}"))
    });
    let mut machine = MachineInfo::read();
    machine.notes.insert("kernel of the guests".into(), course.lab.kernel().to_owned());
    if let Some(worst_pct) = course.worst_foreign_pct {
        let foreign = format!("{worst_pct:.1} % of the CPU time");
        machine.notes.insert("others on the host, in the worst timed round".into(), foreign);
    }
    Ok(KeelReport {
        machine,
        command: options.command.clone(),
        failed: failed.collect(),
        rows: rows(&all),
        said: course.lab.said,
    })
}

/// The course of the experiment.
struct Course {
    lab: Lab,
    display: Display,
    accounts: Accounts,
    /// CPUs of the host.
    host: CpuSet,
    /// Turns in all, and those that are done; repeats not counted.
    planned: usize,
    done: usize,
    /// What others took of the host's CPU time in the worst timed round; `None` before the first.
    worst_foreign_pct: Option<f64>,
}

impl Course {
    /// All rounds on one machine.
    fn series(&mut self, clock: Clock, rounds: usize) -> Result<Series> {
        let mut guest = self.boot(clock)?;
        let mut series = Series {
            clock,
            contestants: self.lab.contestants.clone(),
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
        lab::round(&mut guest, clock, contestant::EEVDF)?;
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
            match lab::round(guest, series.clock, contestant) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_is_refused_before_anything_is_booted() {
        let nothing = Options { rounds: Some(0), ..Options::default() };
        let error = run(&nothing).unwrap_err().to_string();
        assert!(error.contains("--rounds 0"), "{error}");
        let unknown = Options { peers: vec!["scx_none".into()], ..Options::default() };
        let error = run(&unknown).unwrap_err().to_string();
        assert!(error.contains("scx_none") && error.contains("scx_flash"), "{error}");
    }

    #[test]
    fn a_file_that_is_no_report_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "{}").unwrap();
        let from = Some(file.path().to_owned());
        let error = run(&Options { from, ..Options::default() }).unwrap_err();
        assert!(error.to_string().contains("measure anew"), "{error}");
    }
}
